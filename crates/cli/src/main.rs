//! The command `tonnage`: one file per verb.
//!
//! Exit status: 0 if all is well, 1 for a negative answer, 2 for bad input or usage.

#![forbid(unsafe_code)]

// What verbs share.
mod input;

mod live;

mod outcome_text;

mod output;

mod progress;

mod recipe;

mod recording;

mod release;

mod size;

// The verbs.
mod bench;

mod diff;

mod export;

mod inspect;

mod manual;

mod predict;

mod replay;

mod report;

mod run;

mod schema;

mod top;

mod tune;

mod upgrade;

mod view;

mod what_if;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

/// How much can your GPU carry? GPU memory management for deep learning
///
/// A first look at a snapshot: `tonnage inspect snapshot.pickle`. What limits the job, and what to change:
/// `tonnage report` and `tonnage tune`. To make one in PyTorch: torch.cuda.memory._record_memory_history()
/// before the work, torch.cuda.memory._dump_snapshot("snapshot.pickle") after it.
///
/// Exit status of every verb: 0 if all is well, 1 for a negative answer, 2 for bad input or usage.
#[derive(Parser)]
#[command(name = "tonnage", version, propagate_version = true)]
struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    Run(run::Arguments),
    Predict(predict::Arguments),
    Inspect(inspect::Arguments),
    Replay(replay::Arguments),
    Report(report::Arguments),
    Tune(tune::Arguments),
    View(view::Arguments),
    Diff(diff::Arguments),
    Export(export::Arguments),
    Top(top::Arguments),
    Bench(bench::Arguments),
    Schema(schema::Arguments),
    Completions(manual::CompletionsArguments),
    Man(manual::ManArguments),
}

/// What the shell is told.
enum Answer {
    Yes,
    No,
}

fn main() -> ExitCode {
    let Arguments { verb } = Arguments::parse();
    let answer = match verb {
        Verb::Run(arguments) => run::run(&arguments),
        Verb::Predict(arguments) => predict::run(&arguments),
        Verb::Inspect(arguments) => inspect::run(&arguments),
        Verb::Replay(arguments) => replay::run(&arguments),
        Verb::Report(arguments) => report::run(&arguments),
        Verb::Tune(arguments) => tune::run(&arguments),
        Verb::View(arguments) => view::run(&arguments),
        Verb::Diff(arguments) => diff::run(&arguments),
        Verb::Export(arguments) => export::run(&arguments),
        Verb::Top(arguments) => top::run(&arguments),
        Verb::Bench(arguments) => bench::run(&arguments),
        Verb::Schema(arguments) => schema::run(&arguments),
        Verb::Completions(arguments) => manual::completions(&arguments, Arguments::command()),
        Verb::Man(arguments) => manual::man(&arguments, Arguments::command()),
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
