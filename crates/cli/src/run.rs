//! `tonnage run`: trains a recipe, and shows where its memory went.

use std::fmt::Write;
use std::time::Instant;

use clap::Args;
use tonnage::Bytes;
use tonnage::plan::{
    Checkpoint, DeviceKind, Error, Options, Outcome, Symbols, host_speed, predict, train,
};
use tonnage::snapshot::spare_memory;
use tonnage::tensor::Device;

use crate::Answer;
use crate::ask::Answered;
use crate::live::{Live, Shown};
use crate::output::{as_a_word, counted, note, remove_unfinished_when_stopped};
use crate::progress::Progress;
use crate::recipe::{Flags, command, describe, does_not_fit, parameters, title, try_next};

/// Seconds from which on a run is announced: chosen.
const LONG: f64 = 10.0;

/// Multiplications and additions that take any machine less than that.
const SHORT: f64 = 1e10;

/// Train a recipe, and show where the memory went
///
/// Without a RECIPE it is a small GPT-2 that learns this project's own documents, byte by byte, in this
/// machine's memory. At the end: the peak, what its bytes were for, the phase and the line that
/// reached it. The same options and seed give the same losses and the same bytes.
///
/// Exit status: 0 if it ran, 1 if memory does not suffice, 2 for bad input.
#[derive(Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    flags: Flags,

    /// `host`, this machine's memory; `cuda:0`, a GPU; or `dry`: nothing is computed, the bytes are the same
    #[arg(long, value_name = "DEVICE", default_value = "host")]
    device: DeviceKind,

    #[command(flatten)]
    live: Live,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<Answer> {
    with_page(arguments, |answered| answered.print(arguments.flags.json))
}

/// What the recipe took.
pub(crate) fn answer(arguments: &Arguments) -> anyhow::Result<Answered> {
    with_page(arguments, Ok)
}

/// Trains, and passes on what that took, with a page on it if one is wanted.
fn with_page<T>(
    arguments: &Arguments,
    tell: impl FnOnce(Answered) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let kind = arguments.device;
    let options = kind.adapt(arguments.flags.options()?);
    // With a page, that is told of Ctrl-C.
    if options.save.is_some() && !arguments.live.has_page() {
        remove_unfinished_when_stopped();
    }
    if kind == DeviceKind::Host {
        look_ahead(&options)?;
    }
    let device = kind.open(&options)?;
    let mut shown = arguments.live.begin(&options, &device)?;
    let answer = train_and_tell(arguments, &options, &device, &mut shown).and_then(tell);
    if answer.is_ok() {
        shown.wait();
    }
    answer
}

fn train_and_tell(
    arguments: &Arguments,
    options: &Options,
    device: &Device,
    shown: &mut Shown<'_>,
) -> anyhow::Result<Answered> {
    let kind = arguments.device;
    let started = Instant::now();
    let outcome = {
        let bar = Progress::steps(options.recipe().name());
        train(device, options, &mut |step| {
            let memory = Bytes(step.allocated_peak);
            let what = if options.recipe().trains() { "loss" } else { "symbol error rate" };
            let measure = step.measure.map_or_else(String::new, |it| format!(" {what} {it:.4},"));
            bar.say(format!("{}{measure} {memory} allocated at most", options.recipe()));
            bar.set(step.done, step.of);
            shown.step(step);
        })
    };
    shown.end(outcome.as_ref().err());
    let outcome = match outcome {
        Ok(outcome) => outcome,
        Err(error) => return does_not_fit("run", options, kind, error),
    };
    let seconds = started.elapsed().as_secs_f64();
    let mut text = format!("{}\n", title(options, kind));
    arguments.flags.say_which(&mut text, "run");
    // Writing to a string cannot fail.
    if options.recipe().trains() {
        let _ = write!(text, "{} parameters, ", parameters(&outcome));
    }
    let _ = writeln!(text, "{} in {seconds:.1} s", counted(options.steps, "step"));
    describe_losses(&mut text, &outcome);
    text.push('\n');
    describe(&mut text, &outcome);
    what_next(&mut text, options, kind);
    Ok(Answered { text, json: outcome.to_json(None), negative: false })
}

/// Says how long a long run takes, and refuses one that the machine has no memory for: the system ends a program that
/// fills its memory, and perhaps others.
fn look_ahead(options: &Options) -> anyhow::Result<()> {
    // Nothing is saved of this: a history would have every step.
    let mut unsaved = options.clone();
    unsaved.save = None;
    let predicted = match predict(&unsaved) {
        Ok(predicted) => Some(predicted),
        Err(Error::OutOfMemory { .. }) => None,
        Err(other) => return Err(other.into()),
    };
    // What does not fit fills all that it may have.
    let all = options.limit.unwrap_or(DeviceKind::UNLIMITED);
    let needed = predicted.as_ref().map_or(all, |it| it.reserved_peak);
    refuse_more_than_the_machine_has(options, needed)?;
    if let Some(outcome) = predicted {
        let operations = outcome.work.operations * options.steps as f64;
        if operations < SHORT {
            return Ok(());
        }
        let seconds = operations / host_speed()?;
        if seconds >= LONG {
            note(&format!(
                "{} of {} take about {} and {} here: an estimate, by the speed of one product of matrices",
                counted(options.steps, "step"),
                options.recipe(),
                duration(seconds),
                Bytes(needed)
            ));
        }
    }
    Ok(())
}

/// In the largest unit of which there are two.
fn duration(seconds: f64) -> String {
    match seconds {
        ..120.0 => format!("{seconds:.0} s"),
        ..7200.0 => format!("{:.0} min", seconds / 60.0),
        _ => format!("{:.0} h", seconds / 3600.0),
    }
}

fn refuse_more_than_the_machine_has(options: &Options, needed: u64) -> anyhow::Result<()> {
    match spare_memory() {
        Some(available) if needed > available => anyhow::bail!(
            "this takes at least {}, and the machine has {} to spare: make it smaller, or see where the bytes go with `{}`",
            Bytes(needed),
            Bytes(available),
            command("predict", options)
        ),
        _ => Ok(()),
    }
}

fn describe_losses(text: &mut String, outcome: &Outcome) {
    if let Some(Symbols { sent, rate: Some(rate), interval: Some((low, high)), theory, .. }) =
        outcome.symbols
    {
        let _ = writeln!(
            text,
            "symbol error rate {rate:.5} over {sent} symbols ({low:.5} to {high:.5} with a confidence of 99 %); theory says {theory:.5}"
        );
    }
    if let (Some(first), Some(last)) = (outcome.losses.first(), outcome.losses.last()) {
        let _ = writeln!(text, "loss {first:.3} at first, {last:.3} at last");
    }
    if outcome.skipped_steps > 0 {
        let skipped = outcome.skipped_steps;
        let skipped = counted(skipped, "step");
        let _ = writeln!(text, "{skipped} changed nothing: gradients of f16 were not finite");
    }
}

fn what_next(text: &mut String, options: &Options, kind: DeviceKind) {
    let mut lines = Vec::new();
    // What was not computed may be too large for this machine.
    let device = if kind == DeviceKind::Host { String::new() } else { format!(" --device {kind}") };
    let with = |flags: &str| format!("{} {flags}{device}", command("run", options));
    lines.push((command("predict", options), "the same bytes, without running"));
    if options.recipe().trains() && options.checkpoint == Checkpoint::None {
        lines.push((with("--checkpoint sqrt"), "recompute instead of keeping"));
    }
    match &options.save {
        Some(path) => {
            lines.push((
                format!("tonnage report {}", as_a_word(&path.to_string_lossy())),
                "causes of waste, and advice",
            ));
        }
        None => lines.push((with("--save run.pickle"), "then `tonnage report run.pickle`")),
    }
    lines.push(("tonnage predict gpt2-xl --fit 80GiB".to_owned(), "what of GPT-2 XL fits"));
    try_next(text, &lines);
}
