//! The command `tonnage`: one file per verb.
//!
//! In:  the words of a command line; or a verb, its options and snapshots that are read already.
//! Out: what is printed, and the exit status: 0 if all is well, 1 for a negative answer, 2 for bad input or
//!      usage; or the same [`Answered`] as text and JSON.

#![forbid(unsafe_code)]

// A verb from inside a program.
mod ask;

// What verbs share.
mod circumstances;

mod input;

mod live;

mod outcome_text;

mod output;

mod passed_on;

mod progress;

mod recipe;

mod recording;

mod release;

mod size;

mod stopped;

// The verbs.
mod bench;

mod devices;

mod diff;

mod exec;

mod export;

mod fleet;

mod inspect;

mod manual;

mod plot;

mod predict;

mod predict_model;

mod predict_script;

mod predict_ranks;

mod predict_search;

mod record;

mod replay;

mod report;

mod run;

mod schema;

mod top;

mod tune;

mod upgrade;

mod view;

mod what_if;

use std::ffi::OsString;

use clap::{CommandFactory, Parser, Subcommand};

pub use crate::ask::{Answered, Named, ask, ask_plot, ask_report, ask_until};
pub use crate::input::{TooMuch, read_columns_within};
pub use crate::output::with_causes;
pub use crate::plot::{Picture, png};
pub use crate::predict_script::ScriptFailed;
pub use crate::progress::{Counted, Progress};
pub use crate::report::report_page;
pub use tonnage_scripts::{fake_gpu, libraries_in, stop_scripts_when};

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
#[allow(clippy::large_enum_variant, reason = "a process has one")]
enum Verb {
    Run(run::Arguments),
    Predict(predict::Arguments),
    Inspect(inspect::Arguments),
    Replay(replay::Arguments),
    Report(report::Arguments),
    Tune(tune::Arguments),
    Record(record::Arguments),
    Exec(exec::Arguments),
    View(view::Arguments),
    Diff(diff::Arguments),
    Export(export::Arguments),
    Fleet(fleet::Arguments),
    Plot(plot::Arguments),
    Top(top::Arguments),
    Devices(devices::Arguments),
    Bench(bench::Arguments),
    Schema(schema::Arguments),
    Completions(manual::CompletionsArguments),
    Man(manual::ManArguments),
}

/// What the shell is told.
enum Answer {
    Yes,
    No,
    /// The exit status of another program.
    Passed(u8),
}

/// Exit status for bad input or usage.
const BAD_INPUT: u8 = 2;

/// Runs the command with these words, of which the first is its name, and returns its exit status.
///
/// It handles signals as the command does: only for processes that are nothing else.
pub fn command(words: impl IntoIterator<Item = OsString>) -> u8 {
    output::be_the_command();
    let Arguments { verb } = match Arguments::try_parse_from(words) {
        Ok(arguments) => arguments,
        Err(error) => {
            // Help and the version are told by the same way; who does not listen is not told.
            let _ = error.print();
            return u8::try_from(error.exit_code()).unwrap_or(BAD_INPUT);
        }
    };
    let answer = match verb {
        Verb::Run(arguments) => run::run(&arguments),
        Verb::Predict(arguments) => predict::run(&arguments),
        Verb::Inspect(arguments) => inspect::run(&arguments),
        Verb::Replay(arguments) => replay::run(&arguments),
        Verb::Report(arguments) => report::run(&arguments),
        Verb::Tune(arguments) => tune::run(&arguments),
        Verb::Record(arguments) => record::run(&arguments),
        Verb::Exec(arguments) => exec::run(&arguments),
        Verb::View(arguments) => view::run(&arguments),
        Verb::Diff(arguments) => diff::run(&arguments),
        Verb::Export(arguments) => export::run(&arguments),
        Verb::Fleet(arguments) => fleet::run(&arguments),
        Verb::Plot(arguments) => plot::run(&arguments),
        Verb::Top(arguments) => top::run(&arguments),
        Verb::Devices(arguments) => devices::run(&arguments),
        Verb::Bench(arguments) => bench::run(&arguments),
        Verb::Schema(arguments) => schema::run(&arguments),
        Verb::Completions(arguments) => manual::completions(&arguments, Arguments::command()),
        Verb::Man(arguments) => manual::man(&arguments, Arguments::command()),
    };
    match answer {
        Ok(Answer::Yes) => 0,
        Ok(Answer::No) => 1,
        Ok(Answer::Passed(status)) => status,
        Err(error) => {
            output::error(&error);
            BAD_INPUT
        }
    }
}
