//! `tonnage predict`: the peak of a recipe, or of a script, before it runs, and what fits.

use std::fmt::Write;

use clap::Args;
use owo_colors::OwoColorize;
use tonnage::Bytes;
use tonnage::plan::{DeviceKind, Fit, Outcome, fit, predict, spelled};

use crate::Answer;
use crate::ask::Answered;
use crate::output::{grouped, remove_unfinished_when_stopped};
use crate::predict_script;
use crate::progress::Progress;
use crate::recipe::{Flags, command, describe, does_not_fit, parameters, title, try_next};
use crate::size::memory_size;

/// What any machine has to spare: chosen. Running more than that is not suggested.
const MODEST: u64 = 1 << 30;

/// Predict the memory of a recipe, to the byte, without running it
///
/// The same program on a device without memory: what it allocates and reserves is what a run does,
/// split by purpose and phase. The formulas of textbooks stand beside it, with their errors.
///
/// With --fit, the largest batch for so much memory, what each technique would buy, and what they buy together.
///
/// With a command after `--`, such as `tonnage predict -- python train.py`, the memory of a PyTorch script instead: the
/// script and PyTorch run unchanged, without a GPU, on libraries that compute nothing. --limit, --conf, --save and --json
/// mean the same then.
///
/// Exit status: 0 if it fits, 1 if it does not fit the limit, 2 for bad input.
#[derive(Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    flags: Flags,

    /// Find the largest batch for this much memory, and what each technique buys. Bytes, `24GiB`
    #[arg(long, value_name = "SIZE", value_parser = memory_size, conflicts_with_all = ["limit", "save"])]
    fit: Option<Bytes>,

    /// Of that memory, what the CUDA context and its libraries take: what `nvidia-smi` shows of a process that has
    /// allocated one number. Nothing unless given: it depends on card, driver and libraries
    #[arg(long, value_name = "SIZE", value_parser = memory_size, requires = "fit")]
    context: Option<Bytes>,

    #[command(flatten)]
    script: predict_script::Script,
}

impl Arguments {
    /// What is left for the allocator of the memory that it is to fit into.
    fn room(&self) -> anyhow::Result<Option<u64>> {
        let Some(Bytes(fit)) = self.fit else { return Ok(None) };
        let Bytes(context) = self.context.unwrap_or(Bytes(0));
        match fit.checked_sub(context) {
            Some(room) if room > 0 => Ok(Some(room)),
            _ if self.context.is_none() => {
                anyhow::bail!("--fit {}: nothing fits into that", Bytes(fit))
            }
            _ => anyhow::bail!(
                "--context {}: of {} nothing is left to fit into",
                Bytes(context),
                Bytes(fit)
            ),
        }
    }
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<Answer> {
    if arguments.script.is_asked_for() {
        return predict_script::run(&arguments.script, &arguments.flags);
    }
    answer(arguments)?.print(arguments.flags.json)
}

/// What the recipe, or the script, would take.
pub(crate) fn answer(arguments: &Arguments) -> anyhow::Result<Answered> {
    if arguments.script.is_asked_for() {
        return predict_script::answer(&arguments.script, &arguments.flags);
    }
    let mut options = arguments.flags.options()?;
    if options.save.is_some() {
        remove_unfinished_when_stopped();
    }
    let fitted = match arguments.room()? {
        Some(limit) => {
            let _progress = Progress::unmeasured("fitting");
            Some(fit(&options, limit)?)
        }
        None => None,
    };
    if let Some(Fit { outcome: Some(outcome), .. }) = &fitted {
        options = outcome.options.clone();
    }
    let outcome = match predict(&options) {
        Ok(outcome) => outcome,
        Err(error) => return does_not_fit("predict", &options, DeviceKind::Dry, error),
    };
    let negative = fitted.as_ref().is_some_and(|fitted| fitted.batch == 0);
    let mut text = format!("{}\n", title(&outcome.options, outcome.device));
    arguments.flags.say_which(&mut text, "predict");
    // Writing to a string cannot fail.
    if outcome.options.recipe().trains() {
        let _ = writeln!(text, "{} parameters", parameters(&outcome));
    }
    text.push('\n');
    if let Some(fitted) = &fitted {
        describe_fit(&mut text, fitted, arguments.context);
    }
    describe(&mut text, &outcome);
    describe_formulas(&mut text, &outcome);
    what_next(&mut text, &outcome, fitted.as_ref());
    Ok(Answered { text, json: outcome.to_json(fitted.as_ref()), negative })
}

fn describe_fit(text: &mut String, fit: &Fit, context: Option<Bytes>) {
    let limit = match context {
        Some(context) => format!("{}, which a context of {context} leaves", Bytes(fit.limit)),
        None => Bytes(fit.limit).to_string(),
    };
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
    let at = grouped(fit.compared_at);
    let why = match fit.compared_at == fit.batch {
        true => "the largest",
        false => "near the largest, and splits into eight parts",
    };
    let _ = writeln!(text, "\nwhat each technique buys, at a batch of {at} ({why}):");
    let _ = writeln!(text, "{:<33}{:>12}{:>12}{:>15}", "", "saves", "recomputes", "largest batch");
    for gain in &fit.gains {
        let sign = if gain.saved < 0 { "-" } else { "" };
        let saved = format!("{sign}{}", Bytes(gain.saved.unsigned_abs()));
        let recomputed = match gain.recomputed.kernels {
            0 => String::new(),
            _ => format!("{:.1} %", gain.recomputed_share * 100.0),
        };
        let (flags, batch) = (gain.technique.flags(), grouped(gain.batch));
        let _ = writeln!(text, "{flags:<33}{saved:>12}{recomputed:>12}{batch:>15}");
    }
    if fit.gains.iter().any(|gain| gain.recomputed.kernels > 0) {
        text.push_str("recomputes: arithmetic done once more, as a share of a step's\n");
    }
    if let Some(together) = &fit.together {
        let flags: Vec<_> = together.techniques.iter().map(|it| it.flags()).collect();
        let (batch, runs) = (grouped(together.batch), grouped(together.runs));
        let _ = writeln!(text, "together: a batch of {batch} with {}", flags.join(" "));
        let left = if together.out_of_budget { "; more was left untried" } else { "" };
        let _ =
            writeln!(text, "(the best of {runs} dry runs, one technique added at a time{left})");
    }
    text.push('\n');
}

/// Commands that go on from here.
fn what_next(text: &mut String, outcome: &Outcome, fitted: Option<&Fit>) {
    let options = &outcome.options;
    let mut unlimited = options.clone();
    unlimited.limit = None;
    let mut lines = Vec::new();
    match fitted {
        Some(fitted) => {
            let most = fitted.gains.iter().max_by_key(|gain| gain.batch);
            if let Some(together) = &fitted.together {
                lines.push((command("predict", &together.options), "where the bytes go then"));
            } else if let Some(gain) = most.filter(|gain| gain.batch > fitted.batch)
                && let Some(with) = gain.technique.apply(&unlimited)
            {
                let fit = spelled(fitted.limit);
                let line = format!("{} --fit {fit}", command("predict", &with));
                lines.push((line, "with what lets most fit"));
            }
        }
        None => {
            let line = format!("{} --fit 24GiB", command("predict", &unlimited));
            lines.push((line, "the largest batch, and what each technique buys"));
        }
    }
    if outcome.reserved_peak <= MODEST {
        lines.push((command("run", options), "the same bytes, with numbers in them"));
    } else {
        let line = format!("{} --device dry --save run.pickle", command("run", options));
        lines.push((line, "its history, for `tonnage report`"));
    }
    try_next(text, &lines);
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
