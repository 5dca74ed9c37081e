//! `tonnage predict`: the peak of a recipe before it runs, and what fits.

use std::fmt::Write;
use std::time::Instant;

use clap::Args;
use owo_colors::OwoColorize;
use tonnage::Bytes;
use tonnage::plan::{DeviceKind, Fit, Outcome, fit, predict};

use crate::Answer;
use crate::output::{grouped, print, print_json};
use crate::progress::Progress;
use crate::recipe::{Flags, command, describe, does_not_fit, parameters, title};

/// Predict the memory of a recipe, to the byte, without running it
///
/// The same program on a device without memory: what it allocates and reserves is what a run does,
/// split by purpose and phase. The formulas of textbooks stand beside it, with their errors.
///
/// With --fit, the largest batch for so much memory, and what each technique would buy.
///
/// Exit status: 0 if it fits, 1 if it does not fit the limit, 2 for bad input.
#[derive(Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    flags: Flags,

    /// Find the largest batch for this much memory, and what each technique buys. Bytes, `24GiB`
    #[arg(long, value_name = "SIZE", conflicts_with_all = ["limit", "save"])]
    fit: Option<Bytes>,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<Answer> {
    let mut options = arguments.flags.options()?;
    let fitted = match arguments.fit {
        Some(Bytes(limit)) => {
            let _progress = Progress::unmeasured("fitting");
            Some(fit(&options, limit)?)
        }
        None => None,
    };
    if let Some(Fit { outcome: Some(outcome), .. }) = &fitted {
        options = outcome.options.clone();
    }
    let started = Instant::now();
    let outcome = match predict(&options) {
        Ok(outcome) => outcome,
        Err(error) => {
            let json = arguments.flags.json;
            return does_not_fit("predict", &options, DeviceKind::Dry, error, json);
        }
    };
    let took = started.elapsed();
    let answer = match &fitted {
        Some(fitted) if fitted.batch == 0 => Answer::No,
        _ => Answer::Yes,
    };
    if arguments.flags.json {
        print_json(&outcome.to_json(fitted.as_ref()))?;
        return Ok(answer);
    }
    let mut text = format!("{}\n", title(&outcome.options, outcome.device));
    // Writing to a string cannot fail.
    if outcome.options.recipe().trains() {
        let _ = write!(text, "{} parameters, ", parameters(&outcome));
    }
    let _ = writeln!(text, "predicted in {:.0} ms\n", took.as_secs_f64() * 1e3);
    if let Some(fitted) = &fitted {
        describe_fit(&mut text, fitted);
    }
    describe(&mut text, &outcome);
    describe_formulas(&mut text, &outcome);
    if fitted.is_none() {
        let _ = writeln!(text, "\n{}", "try next:".bold());
        let mut unlimited = outcome.options.clone();
        unlimited.limit = None;
        let _ = writeln!(text, "  {} --fit 24GiB", command("predict", &unlimited));
        let _ = writeln!(text, "  {}", command("run", &outcome.options));
    }
    print(&text)?;
    Ok(answer)
}

fn describe_fit(text: &mut String, fit: &Fit) {
    let limit = Bytes(fit.limit);
    match fit.batch {
        0 => {
            let _ = writeln!(text, "{}: no batch fits into {limit}", "does not fit".red().bold());
        }
        batch => {
            let _ = writeln!(
                text,
                "{}: a batch of {} into {limit}",
                "fits".green().bold(),
                grouped(batch)
            );
        }
    }
    let _ = writeln!(
        text,
        "{:>12}{:>12}{:>15}  with (at a batch of {})",
        "saves",
        "recomputes",
        "largest batch",
        grouped(fit.compared_at)
    );
    for gain in &fit.gains {
        let sign = if gain.saved < 0 { "-" } else { "" };
        let saved = format!("{sign}{}", Bytes(gain.saved.unsigned_abs()));
        let recomputed = match gain.recomputed {
            0 => String::new(),
            count => format!("{count} ops"),
        };
        let batch = grouped(gain.batch);
        let _ =
            writeln!(text, "{saved:>12}{recomputed:>12}{batch:>15}  {}", gain.technique.flags());
    }
    text.push('\n');
}

fn describe_formulas(text: &mut String, outcome: &Outcome) {
    let _ = writeln!(
        text,
        "\n{:<12}{:>12}{:>12}{:>10}  textbook's formula",
        "purpose", "at most", "formula", "error"
    );
    for formula in outcome.formulas() {
        let error = formula.error().map_or_else(String::new, |it| format!("{:+.1} %", it * 100.0));
        let _ = writeln!(
            text,
            "{:<12}{:>12}{:>12}{error:>10}  {}",
            formula.name,
            Bytes(formula.exact).to_string(),
            Bytes(formula.bytes).to_string(),
            formula.formula
        );
    }
}
