//! The command `tonnage`: one file per verb.
//!
//! Exit status: 0 if all is well, 1 for a negative answer, 2 for bad input or usage.

#![forbid(unsafe_code)]

mod bench;

mod output;

mod progress;

mod recording;

mod replay;

mod tune;

mod what_if;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// How much can your GPU carry? GPU memory management for deep learning.
#[derive(Parser)]
#[command(name = "tonnage", version, about, propagate_version = true)]
struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    Replay(replay::Arguments),
    Tune(tune::Arguments),
    Bench(bench::Arguments),
}

/// What the shell is told.
enum Answer {
    Yes,
    No,
}

fn main() -> ExitCode {
    let Arguments { verb } = Arguments::parse();
    let answer = match verb {
        Verb::Replay(arguments) => replay::run(&arguments),
        Verb::Tune(arguments) => tune::run(&arguments),
        Verb::Bench(arguments) => bench::run(&arguments),
    };
    match answer {
        Ok(Answer::Yes) => ExitCode::SUCCESS,
        Ok(Answer::No) => ExitCode::from(1),
        Err(error) => {
            output::error(&error);
            ExitCode::from(2)
        }
    }
}
