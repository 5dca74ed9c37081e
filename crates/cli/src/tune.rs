//! `tonnage tune`: which settings a recorded job needs least memory under.

use std::borrow::Cow;
use std::fmt::Write;

use anyhow::Context;
use clap::Args;
use owo_colors::OwoColorize;
use tonnage::analysis::report::{Answer as Said, Asked, LimitSource, Tuned};
use tonnage::replay::Outcome;
use tonnage::replay::tune::{Candidate, Lead, Tuning, tune};
use tonnage::snapshot::SnapshotFile;
use tonnage::{Bytes, Policy, Release};

use crate::Answer;
use crate::ask::Answered;
use crate::outcome_text::{describe_inferred, heading, shown};
use crate::output::{counted, plain};
use crate::progress::Progress;
use crate::recording::{Recording, Source};
use crate::size::memory_size;
use crate::what_if::changed;

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

    /// Would it have fit into this much? Bytes, `24GiB`, `24GB`. Without it, where a request failed, the limit that it ran
    /// into is concluded as far as the recording tells
    #[arg(long, value_name = "SIZE", value_parser = memory_size)]
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
    answer(arguments, &name, &file)?.print(arguments.json)
}

/// The settings for a file.
pub(crate) fn answer(
    arguments: &Arguments,
    name: &str,
    file: &SnapshotFile,
) -> anyhow::Result<Answered> {
    let limit = arguments.limit.map(|limit| limit.0);
    let (recorded, job) =
        arguments.source.read_job(file, limit).with_context(|| name.to_owned())?;
    let devices = tonnage::analysis::devices(file);
    let device = devices.iter().find(|it| it.device.0 == recorded.device);
    let device = device.with_context(|| format!("{name}: no history to tune"))?;
    let asked = Asked { limit, total: arguments.source.total.map(|total| total.0) };
    let tuned = {
        let bar = Progress::steps("trying settings");
        Tuned::of(device, &recorded, &job, asked, |job, conditions| {
            tune(job, conditions, &|done, of| bar.set(done, of))
        })
    };
    let tuning = &tuned.tuning;
    let mut inferred = recorded.inferred.clone();
    inferred.extend_from_slice(job.notes());
    inferred.extend(tuning.best().and_then(|best| best.prediction.unknown(&job)));
    Ok(Answered {
        text: describe(name, &recorded, &tuned, &inferred),
        json: tuned.to_json(&recorded, &inferred, name),
        negative: tuning.best().is_none(),
    })
}

fn describe(name: &str, recorded: &Outcome, tuned: &Tuned, inferred: &[String]) -> String {
    let tuning = &tuned.tuning;
    let mut text = heading(name, recorded);
    // Writing to a string cannot fail.
    let _ = writeln!(text, "recorded with: {}", shown(&recorded.conf));
    match (&tuned.limit, tuning.limit) {
        (Some(concluded), _) if concluded.source != LimitSource::Given => {
            let _ = writeln!(text, "limit: {}", concluded.in_a_line());
        }
        (_, Some(limit)) => {
            let _ = writeln!(text, "limit: {limit} bytes ({})", Bytes(limit));
        }
        (_, None) => {}
    }
    text.push('\n');
    advise(&mut text, tuned, &recorded.candidates);
    describe_candidates(&mut text, tuning);
    describe_inferred(&mut text, inferred);
    text
}

/// What to do, and why.
fn advise(text: &mut String, tuned: &Tuned, releases: &[Release]) {
    let tuning = &tuned.tuning;
    match tuning.lead(releases) {
        Some(lead) => advise_setting(text, tuned, lead),
        None => {
            let limit =
                tuning.limit.map_or_else(|| "the device".to_owned(), |it| Bytes(it).to_string());
            let _ = writeln!(
                text,
                "{}: the job does not get through with {limit} under any setting that was tried",
                "nothing helps".red().bold()
            );
            if let Some(failure) =
                tuned.failure.as_ref().filter(|it| it.answer == Said::DependsOnLimit)
            {
                let _ = writeln!(text, "{}", failure.sentence());
            }
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
        let (bytes, conf) = (Bytes(need.bytes), shown(&need.conf));
        let fitting = tuning.settings().filter(|it| it.prediction.fits());
        let more =
            fitting.map(Candidate::reserved_peak).min().is_some_and(|least| least < need.bytes);
        // What an expandable segment grows by is compared with a limit before all of it is there.
        let more =
            if more { "; a limit leaves no room for what is only obtained in passing" } else { "" };
        let _ = match tuning.reach.at_least() {
            None => writeln!(
                text,
                "needed: the job gets through with a limit of {bytes} ({} bytes) under {conf}, the least that was found{more}",
                need.bytes
            ),
            Some(why) => writeln!(
                text,
                "needed: at least a limit of {bytes} ({} bytes), under {conf}: {why}",
                need.bytes
            ),
        };
    }
    text.push('\n');
}

fn advise_setting(text: &mut String, tuned: &Tuned, lead: Lead<'_>) {
    let tuning = &tuned.tuning;
    let (now, first) = (tuning.recorded(), lead.candidate);
    let peak = first.reserved_peak();
    let was = now.map_or(0, Candidate::reserved_peak);
    let known = tuning.reach.words();
    let rescued = now.is_some_and(|now| !now.prediction.fits());
    let saving = if rescued { 0 } else { was.saturating_sub(peak) };
    let worthwhile = saving as f64 >= was as f64 * WORTHWHILE && saving > 0;
    if rescued || worthwhile {
        let needs =
            lead.needs.map_or(String::new(), |release| format!("  (needs PyTorch {release})"));
        let _ = writeln!(text, "{}{needs}\n", to_set(&first.conf).green().bold());
    }
    if now.is_none() {
        let _ = writeln!(
            text,
            "{}\n\nreserved at the peak{known}: {}; the recorded settings cannot be followed, so there is nothing to compare with",
            to_set(&first.conf).green().bold(),
            Bytes(peak)
        );
    } else if rescued {
        let _ = match &tuned.failure {
            Some(failure) if failure.answer == Said::Served => {
                writeln!(text, "{}", failure.sentence())
            }
            _ => writeln!(
                text,
                "with it the job gets through{known}; with the recorded settings it does not"
            ),
        };
    } else if worthwhile {
        let change = changed(-saving.cast_signed(), was.cast_signed());
        let _ = writeln!(
            text,
            "reserved at the peak{known}: {} instead of {}: {change}",
            Bytes(peak),
            Bytes(was)
        );
    } else {
        let _ = writeln!(
            text,
            "{}: no setting that was tried reserves noticeably less than the recorded ones ({} at the peak{known})",
            "nothing to gain".bold(),
            Bytes(was)
        );
    }
    if let Some(best) = tuning.best().filter(|_| rescued || worthwhile)
        && best.reserved_peak().saturating_add(best.reserved_peak() / 100) < peak
    {
        let newer =
            if lead.needs.is_none() { ", but not of every release that this may be" } else { "" };
        let least = Bytes(best.reserved_peak());
        let _ = writeln!(text, "less still ({least}){newer}: {}", to_set(&best.conf));
    }
    if let Some(limit) = tuning.limit {
        let fits = tuning.settings().filter(|it| it.prediction.fits()).count();
        let _ = writeln!(
            text,
            "{}{known}: under {fits} of {} settings tried; {} to spare under this one",
            "fits".green().bold(),
            tuning.settings().count(),
            Bytes(limit.saturating_sub(peak))
        );
    }
}

/// The line that sets it.
fn to_set(conf: &str) -> String {
    if conf.is_empty() {
        return "unset PYTORCH_CUDA_ALLOC_CONF".to_owned();
    }
    format!("export PYTORCH_CUDA_ALLOC_CONF={}", quoted(conf))
}

/// A word as a shell takes it: lists of divisions have a `>` and brackets.
fn quoted(conf: &str) -> Cow<'_, str> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_:,.-".contains(c);
    if conf.chars().all(is_plain) {
        return Cow::Borrowed(conf);
    }
    Cow::Owned(format!("'{}'", plain(conf).replace('\'', "'\\''")))
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
            (candidate.driver_calls(), stats.num_alloc_retries, stats.failed_requests());
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
        let over = !candidate.prediction.stopped() && !candidate.prediction.fits();
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
            match candidate.policy {
                Policy::Pytorch => shown(&candidate.conf).to_string(),
                policy => format!("policy {policy}"),
            }
        );
    }
    let _ = writeln!(text, "{} settings tried", tuning.settings().count());
    if let Some(pages) = tuning.candidates.iter().find(|it| it.policy != Policy::Pytorch) {
        let _ = writeln!(
            text,
            "policy {}: Tonnage's own rules, which PyTorch has no setting for (`TONNAGE_CONF=policy:{}`); the driver takes {:.1} ms for its {}",
            pages.policy,
            pages.policy,
            pages.page_ns() as f64 / 1e6,
            counted(pages.driver_calls().unsigned_abs(), "call")
        );
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_is_quoted_where_a_shell_would_take_it_apart() {
        for (conf, line) in [
            ("", "unset PYTORCH_CUDA_ALLOC_CONF"),
            (
                "expandable_segments:True,garbage_collection_threshold:0.6",
                "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True,garbage_collection_threshold:0.6",
            ),
            (
                "roundup_power2_divisions:[256:1,>:8]",
                "export PYTORCH_CUDA_ALLOC_CONF='roundup_power2_divisions:[256:1,>:8]'",
            ),
            ("a'b", "export PYTORCH_CUDA_ALLOC_CONF='a'\\''b'"),
        ] {
            assert_eq!(to_set(conf), line);
        }
    }
}
