//! A verb from inside a program: with options as on the command line, on snapshots that are read already.
//!
//! In:  the verb and its flags, and snapshots with the names they go by.
//! Out: what the command would say, as text and as JSON; or the command's error.
//!
//! Nothing is printed but progress and warnings.

use anyhow::bail;
use clap::Parser;
use tonnage::analysis::report::Ranks;
use tonnage::replay::Until;
use tonnage::snapshot::SnapshotFile;

use crate::output::{print, print_json};
use crate::plot::Picture;
use crate::{
    Answer, Arguments, Verb, diff, fleet, inspect, plot, predict, replay, report, run, tune,
};

/// What a verb says.
#[derive(Clone, Debug)]
pub struct Answered {
    /// For people, with the colours of a terminal.
    pub text: String,
    /// For programs: what the verb prints with `--json`.
    pub json: String,
    /// Whether the answer is negative: the command's exit status is then 1.
    pub negative: bool,
}

impl Answered {
    /// Writes it to standard output, and says what the shell is told.
    pub(crate) fn print(&self, json: bool) -> anyhow::Result<Answer> {
        if json {
            print_json(&self.json)?
        } else {
            print(&self.text)?
        }
        Ok(if self.negative { Answer::No } else { Answer::Yes })
    }
}

/// A snapshot and the name it goes by.
pub type Named<'a> = (&'a str, &'a SnapshotFile);

/// The verb that these words are, with the names where files stand on the command line.
fn parse(words: &[String], inputs: &[Named<'_>]) -> anyhow::Result<Verb> {
    // Names are no flags, whatever they begin with.
    let names = inputs.iter().map(|it| it.0);
    let line = ["tonnage"].into_iter().chain(words.iter().map(String::as_str));
    let line = line.chain((!inputs.is_empty()).then_some("--")).chain(names);
    Ok(Arguments::try_parse_from(line)?.verb)
}

/// Asks a verb about snapshots: `inspect`, `replay` and `tune` about one, `diff` about two; `predict`, `run`
/// and `fleet` need none.
///
/// # Errors
///
/// As the command: words that it does not know ([`clap::Error`]), and whatever the verb refuses.
pub fn ask(words: &[String], inputs: &[Named<'_>]) -> anyhow::Result<Answered> {
    ask_until(words, inputs, &Until::default())
}

/// The same until the work is to end, which `fleet` heeds: what is done by then is kept, and the dataset free for others.
///
/// # Errors
///
/// As [`ask`].
pub fn ask_until(
    words: &[String],
    inputs: &[Named<'_>],
    until: &Until,
) -> anyhow::Result<Answered> {
    match (parse(words, inputs)?, inputs) {
        (Verb::Inspect(_), &[(name, file)]) => Ok(inspect::answer(name, file)),
        (Verb::Replay(arguments), &[(name, file)]) => replay::answer(&arguments, name, file),
        (Verb::Tune(arguments), &[(name, file)]) => tune::answer(&arguments, name, file),
        (Verb::Diff(arguments), &[a, b]) => diff::answer(&arguments, a, b),
        (Verb::Predict(arguments), []) => predict::answer(&arguments),
        (Verb::Run(arguments), []) => run::answer(&arguments),
        (Verb::Fleet(arguments), []) => fleet::answer(&arguments, Some(until)),
        _ => bail!("no verb that answers about {} snapshots: {}", inputs.len(), words.join(" ")),
    }
}

/// Asks `report` about snapshots.
///
/// # Errors
///
/// As [`ask`].
pub fn ask_report(words: &[String], inputs: &[Named<'_>]) -> anyhow::Result<Ranks> {
    match parse(words, inputs)? {
        Verb::Report(arguments) => report::answer(&arguments, inputs),
        _ => bail!("no report: {}", words.join(" ")),
    }
}

/// Asks `plot` for the picture of a snapshot.
///
/// # Errors
///
/// As [`ask`].
pub fn ask_plot(words: &[String], (name, file): Named<'_>) -> anyhow::Result<Picture> {
    match parse(words, &[(name, file)])? {
        Verb::Plot(arguments) => plot::picture(&arguments, name, file),
        _ => bail!("no picture: {}", words.join(" ")),
    }
}
