//! `tonnage tune`: which settings a recorded job needs least memory under.

use std::fmt::Write;

use anyhow::Context;
use clap::Args;
use owo_colors::OwoColorize;
use tonnage::Bytes;
use tonnage::replay::Outcome;
use tonnage::replay::tune::{Candidate, Conditions, Tuning, tune};

use crate::Answer;
use crate::output::{grouped, print};
use crate::progress::Progress;
use crate::recording::{Recording, Source};
use crate::what_if::{changed, shown};

/// How many settings are shown.
const SHOWN: usize = 10;

/// Savings below this share of what is reserved are not worth a setting.
const WORTHWHILE: f64 = 0.01;

/// Find the settings under which a recorded job needs least memory
///
/// Serves the job's requests under PyTorch's defaults, expandable segments, and several values of
/// max_split_size_mb, roundup_power2_divisions, large_segment_size_mb and, under a limit,
/// garbage_collection_threshold; then around the best of these. Runs in which no request fails come
/// first, then less reserved memory, fewer driver calls, fewer retries, the simpler setting.
///
/// Exit status: 0 if the job gets through, 1 if it does not fit the limit under any setting tried, 2
/// for bad input.
#[derive(Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    source: Source,

    /// Would it have fit into this much? Bytes, `24GiB`, `24GB`
    #[arg(long, value_name = "SIZE")]
    limit: Option<Bytes>,

    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<Answer> {
    let (name, recording) = arguments.source.read()?;
    let Recording::Snapshot(file) = recording else {
        anyhow::bail!("{name}: a command stream cannot be tuned: this needs a snapshot");
    };
    let limit = arguments.limit.map(|limit| limit.0);
    let (recorded, job) = arguments.source.read_job(&file, limit).with_context(|| name.clone())?;
    let conditions = Conditions {
        release: recorded.release,
        recorded: recorded.conf.clone(),
        limit,
        total: arguments.source.total.map(|total| total.0),
    };
    let tuning = {
        let bar = Progress::steps("trying settings");
        tune(&job, &conditions, &|done, of| bar.set(done, of))
    };
    let mut inferred = recorded.inferred.clone();
    inferred.extend_from_slice(job.notes());
    inferred.extend(tuning.best().and_then(|best| best.prediction.unknown(&job)));
    let text = if arguments.json {
        tuning.to_json(&recorded, &inferred, &name) + "\n"
    } else {
        describe(&name, &recorded, &tuning, &inferred)
    };
    print(&text)?;
    Ok(if tuning.best().is_some() { Answer::Yes } else { Answer::No })
}

fn describe(name: &str, recorded: &Outcome, tuning: &Tuning, inferred: &[String]) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = writeln!(
        text,
        "{}: {} entries, device {}, PyTorch {}",
        name.bold(),
        grouped(recorded.events),
        recorded.device,
        recorded.release
    );
    let _ = writeln!(text, "recorded with: {}", shown(&recorded.conf));
    if let Some(limit) = tuning.limit {
        let _ = writeln!(text, "limit: {limit} bytes ({})", Bytes(limit));
    }
    text.push('\n');
    advise(&mut text, tuning);
    describe_candidates(&mut text, tuning);
    let _ = writeln!(text, "\nnot in the file, inferred:");
    for line in inferred {
        let _ = writeln!(text, "  - {line}");
    }
    text
}

/// What to do, and why.
fn advise(text: &mut String, tuning: &Tuning) {
    match tuning.best() {
        Some(best) => advise_setting(text, tuning, best),
        None => {
            let limit =
                tuning.limit.map_or_else(|| "the device".to_owned(), |it| Bytes(it).to_string());
            let _ = writeln!(
                text,
                "{}: the job does not get through with {limit} under any setting that was tried",
                "nothing helps".red().bold()
            );
        }
    }
    let _ = writeln!(
        text,
        "floor: {} are live at once at the most; no allocator can do with less",
        Bytes(tuning.floor)
    );
    if tuning.limit.is_some_and(|limit| limit < tuning.floor) {
        let _ = writeln!(text, "the limit is below that: only asking for less helps");
    }
    if let Some(need) = &tuning.need {
        let _ = writeln!(
            text,
            "needed: the job gets through with {} ({} bytes) under {}, the least that was found",
            Bytes(need.bytes),
            need.bytes,
            shown(&need.conf)
        );
    }
    text.push('\n');
}

fn advise_setting(text: &mut String, tuning: &Tuning, best: &Candidate) {
    let now = tuning.recorded();
    let (saving, peak) = (tuning.saving(), best.reserved_peak());
    let was = now.map_or(0, Candidate::reserved_peak);
    let rescued = now.is_some_and(|now| !now.prediction.fits());
    let worthwhile = saving as f64 >= was as f64 * WORTHWHILE && saving > 0;
    if rescued || worthwhile {
        let _ = writeln!(text, "{}\n", to_set(&best.conf).green().bold());
    }
    if rescued {
        let _ =
            writeln!(text, "with it the job gets through, with the recorded settings it does not");
    } else if worthwhile {
        let change = changed(-saving.cast_signed(), was.cast_signed());
        let _ = writeln!(
            text,
            "reserved at the peak: {} instead of {}: {change}",
            Bytes(peak),
            Bytes(was)
        );
    } else {
        let _ = writeln!(
            text,
            "{}: no setting that was tried reserves noticeably less than the recorded ones ({} at the peak)",
            "nothing to gain".bold(),
            Bytes(was)
        );
    }
    if let Some(simpler) = tuning.simpler().filter(|_| rescued || worthwhile) {
        let peak = Bytes(simpler.reserved_peak());
        let _ = writeln!(text, "simpler, and nearly the same ({peak}): {}", to_set(&simpler.conf));
    }
    if let Some(limit) = tuning.limit {
        let fits = tuning.candidates.iter().filter(|it| it.prediction.fits()).count();
        let _ = writeln!(
            text,
            "{}: under {fits} of {} settings tried; {} to spare under the best",
            "fits".green().bold(),
            tuning.candidates.len(),
            Bytes(limit.saturating_sub(peak))
        );
    }
}

/// The line that sets it.
fn to_set(conf: &str) -> String {
    if conf.is_empty() {
        return "unset PYTORCH_CUDA_ALLOC_CONF".to_owned();
    }
    format!("export PYTORCH_CUDA_ALLOC_CONF={conf}")
}

/// The best, of those with the same figures the simplest alone; and the recorded settings.
fn describe_candidates(text: &mut String, tuning: &Tuning) {
    let now = tuning.recorded();
    let is_now = |candidate: &Candidate| now.is_some_and(|now| std::ptr::eq(now, candidate));
    let compared = if tuning.limit.is_some() { "to spare" } else { "of recorded" };
    let _ = writeln!(
        text,
        "{:>12}{compared:>13}{:>9}{:>9}{:>9}  settings",
        "reserved", "driver", "retries", "failures"
    );
    let mut shown_figures = Vec::new();
    let mut left_out = false;
    for candidate in &tuning.candidates {
        let stats = &candidate.prediction.stats;
        let (driver, retries, ooms) =
            (candidate.driver_calls(), stats.num_alloc_retries, stats.num_ooms);
        let figures = (candidate.reserved_peak(), driver, retries, ooms);
        let repeats = shown_figures.last() == Some(&figures);
        if !is_now(candidate) && (repeats || shown_figures.len() >= SHOWN) {
            left_out |= !repeats;
            continue;
        }
        if std::mem::take(&mut left_out) {
            let _ = writeln!(text, "{:>12}", "…");
        }
        shown_figures.push(figures);
        let over = !candidate.prediction.stopped && !candidate.prediction.fits();
        let note = match (is_now(candidate), over) {
            (true, _) => "  (recorded)",
            (false, true) => "  (over the limit)",
            (false, false) => "",
        };
        let _ = writeln!(
            text,
            "{:>12}{:>13}{driver:>9}{retries:>9}{ooms:>9}  {}{note}",
            Bytes(candidate.reserved_peak()).to_string(),
            comparison(tuning, candidate),
            shown(&candidate.conf)
        );
    }
    let _ = writeln!(text, "{} settings tried", tuning.candidates.len());
}

/// Bytes to spare under a limit; without one, the share of what the recorded settings reserve. Nothing
/// for a job that does not get through.
fn comparison(tuning: &Tuning, candidate: &Candidate) -> String {
    if !candidate.prediction.fits() {
        return String::new();
    }
    let peak = candidate.reserved_peak();
    match (tuning.limit, tuning.recorded()) {
        (Some(limit), _) => Bytes(limit.saturating_sub(peak)).to_string(),
        (None, Some(now)) => {
            format!("{:.1} %", peak as f64 / now.reserved_peak().max(1) as f64 * 100.0)
        }
        (None, None) => String::new(),
    }
}
