//! `tonnage schema`: what the JSON of a verb is made of.
//!
//! The files lie in `docs/schema`; a test compares what verbs print with them.

use std::fmt::Write;

use clap::Args;
use clap::builder::PossibleValuesParser;

use crate::Answer;
use crate::output::print;

/// A verb that has `--json`, what that prints in a few words, and its JSON Schema.
struct Schema {
    verb: &'static str,
    what: &'static str,
    text: &'static str,
}

const SCHEMAS: [Schema; 12] = [
    Schema { verb: "run", what: "what a recipe took", text: include_str!("../schema/run.json") },
    Schema {
        verb: "predict",
        what: "what a recipe would take, and what fits",
        text: include_str!("../schema/predict.json"),
    },
    Schema {
        verb: "inspect",
        what: "what is in a file",
        text: include_str!("../schema/inspect.json"),
    },
    Schema {
        verb: "replay",
        what: "a replay, a what-if or an upgrade",
        text: include_str!("../schema/replay.json"),
    },
    Schema {
        verb: "report",
        what: "the reports of one file or several",
        text: include_str!("../schema/report.json"),
    },
    Schema {
        verb: "tune",
        what: "settings, best first",
        text: include_str!("../schema/tune.json"),
    },
    Schema {
        verb: "diff",
        what: "what changed between two files",
        text: include_str!("../schema/diff.json"),
    },
    Schema {
        verb: "export",
        what: "what was written",
        text: include_str!("../schema/export.json"),
    },
    Schema {
        verb: "fleet",
        what: "which ranks differ, and why",
        text: include_str!("../schema/fleet.json"),
    },
    Schema {
        verb: "top",
        what: "the memory of running processes",
        text: include_str!("../schema/top.json"),
    },
    Schema {
        verb: "devices",
        what: "the GPUs of this machine",
        text: include_str!("../schema/devices.json"),
    },
    Schema { verb: "bench", what: "measurements", text: include_str!("../schema/bench.json") },
];

/// Print the JSON Schema of what a verb prints with --json
///
/// Draft 2020-12, with a description of every field. `schema` in the JSON counts up when a field changes its meaning or
/// goes; a new field may come without that. Without a VERB: which there are.
#[derive(Args)]
pub(crate) struct Arguments {
    /// The verb
    #[arg(value_parser = PossibleValuesParser::new(SCHEMAS.each_ref().map(|it| it.verb)))]
    verb: Option<String>,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<Answer> {
    let mut text = String::new();
    for Schema { verb, what, text: schema } in &SCHEMAS {
        match arguments.verb.as_deref() {
            Some(wanted) if wanted == *verb => text.push_str(schema),
            Some(_) => {}
            // Writing to a string cannot fail.
            None => {
                let _ = writeln!(text, "{:<26} {what}", format!("tonnage schema {verb}"));
            }
        }
    }
    print(&text)?;
    Ok(Answer::Yes)
}
