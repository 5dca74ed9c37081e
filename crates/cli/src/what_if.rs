//! `tonnage replay --conf`: the same requests under other settings.

use std::fmt::Write;

use owo_colors::OwoColorize;
use tonnage::analysis::report::HistoryPurposes;
use tonnage::analysis::{Levels, Lifetimes, devices};
use tonnage::replay::Outcome;
use tonnage::replay::what_if::{AtPeak, Prediction, RecordedTimes, Report, WhatIf};
use tonnage::snapshot::SnapshotFile;
use tonnage::{Bytes, Config, Stats};

use crate::ask::Answered;
use crate::outcome_text::{describe_inferred, heading, shown};
use crate::output::{counted, grouped};
use crate::replay::Arguments;
use crate::upgrade;

pub(crate) fn answer(
    arguments: &Arguments,
    name: &str,
    file: &SnapshotFile,
) -> anyhow::Result<Answered> {
    if let Some(other) = &arguments.other {
        return upgrade::answer(arguments, other, name, file);
    }
    let limit = arguments.limit.map(|limit| limit.0);
    let (recorded, job) = arguments.source.read_job(file, limit)?;
    let conf = arguments.conf.as_deref().unwrap_or(&recorded.conf);
    let config = Config::parse(conf, recorded.release)?;
    let total = arguments.source.total.map(|total| total.0);
    let policy = arguments.policy.unwrap_or_default();
    let what_if = WhatIf { policy, limit, total, ..WhatIf::new(config) };
    if let Some(reason) = what_if.refusal() {
        anyhow::bail!(reason);
    }
    let report = Report::new(&recorded, &job, &what_if);
    let times = recorded_times(file, recorded.device);
    let report = report.with_passes(&job, &what_if, arguments.repeat.into(), times);
    Ok(Answered {
        text: describe(name, &recorded, &report),
        json: report.to_json(&recorded, name),
        negative: false,
    })
}

/// How long the recorded job took, and each of its iterations.
fn recorded_times(file: &SnapshotFile, ordinal: u32) -> RecordedTimes {
    let devices = devices(file);
    let Some(device) = devices.iter().find(|it| it.device.0 == ordinal) else {
        return RecordedTimes::default();
    };
    let lifetimes = Lifetimes::of(device);
    let levels = Levels::of(device, &lifetimes);
    let starts = HistoryPurposes::of(device, &lifetimes, &levels).iterations;
    RecordedTimes::of(device.entries, &starts)
}

/// The report for people.
fn describe(name: &str, recorded: &Outcome, report: &Report) -> String {
    let mut text = heading(name, recorded);
    let limit = report.prediction.limit.map_or_else(
        || "no limit".to_owned(),
        |limit| format!("limit {limit} bytes ({})", Bytes(limit)),
    );
    // Writing to a string cannot fail.
    let _ = writeln!(text, "recorded: {}", shown(&recorded.conf));
    let _ = writeln!(text, "what if:  {}; {limit}\n", shown(&report.conf));
    describe_oom(&mut text, report);
    describe_peaks(&mut text, recorded, &report.prediction);
    describe_pages(&mut text, report);
    describe_waste(&mut text, &report.at_peak);
    describe_inferred(&mut text, &report.inferred);
    text
}

fn describe_oom(text: &mut String, report: &Report) {
    let Some(oom) = &report.prediction.oom else {
        let _ = writeln!(
            text,
            "{}: every request is served{}\n",
            "runs through".green().bold(),
            report.reach.words()
        );
        return;
    };
    let _ = writeln!(
        text,
        "{} at entry {}, after {}: {} on stream {}",
        "out of memory".red().bold(),
        oom.event,
        counted(oom.request, "request"),
        Bytes(oom.bytes),
        oom.stream
    );
    let _ = writeln!(text, "  {}\n", report.oom_means.as_deref().unwrap_or_default());
}

type Figure = fn(&Stats) -> i64;

const PEAKS: [(&str, Figure); 4] = [
    ("requested", |stats| stats.requested_bytes.all.peak),
    ("allocated", |stats| stats.allocated_bytes.all.peak),
    ("active", |stats| stats.active_bytes.all.peak),
    ("reserved", |stats| stats.reserved_bytes.all.peak),
];

const COUNTS: [(&str, Figure, &str); 4] = [
    ("segments", |stats| stats.segment.all.peak, "fixed ones, at most"),
    (
        "driver",
        |stats| stats.num_device_alloc + stats.num_device_free,
        "memory obtained or given back",
    ),
    ("retries", |stats| stats.num_alloc_retries, "after giving back all that was cached"),
    ("failures", Stats::failed_requests, "out of memory"),
];

fn describe_peaks(text: &mut String, recorded: &Outcome, prediction: &Prediction) {
    let stats = &prediction.stats;
    // Figures of a recording that was not understood to its end are not its own.
    let before = recorded.exact().then_some(&recorded.stats);
    let was = |figure: Figure, show: fn(i64) -> String| {
        before.map_or_else(|| "?".to_owned(), |before| show(figure(before)))
    };
    let bytes = |bytes: i64| Bytes(u64::try_from(bytes).unwrap_or(0)).to_string();
    let _ = writeln!(text, "{:<11}{:>14}{:>14}", "peak", "recorded", "what if");
    for (name, figure) in PEAKS {
        let _ = write!(text, "{name:<11}{:>14}{:>14}", was(figure, bytes), bytes(figure(stats)));
        if name == "reserved"
            && !prediction.stopped()
            && let Some(was) = before.map(figure)
            && was != figure(stats)
        {
            let _ = write!(text, "  {}", changed(figure(stats) - was, was));
        }
        text.push('\n');
    }
    let floor = Bytes(prediction.floor).to_string();
    let meaning = "most that is live at once: no allocator can do with less";
    let _ = writeln!(text, "{:<11}{:>14}{floor:>14}  {meaning}", "floor", "");
    for (name, figure, meaning) in COUNTS {
        let (was, now) = (was(figure, |count| count.to_string()), figure(stats));
        let _ = writeln!(text, "{name:<11}{was:>14}{now:>14}  {meaning}");
    }
}

/// What the driver's calls about pages take, where there are any.
fn describe_pages(text: &mut String, report: &Report) {
    if report.passes.iter().all(|pass| pass.calls.nanoseconds() == 0) {
        return;
    }
    if let Some(ratio) = report.waste_ratio() {
        let _ = writeln!(text, "waste      {ratio:>28.3}  peak reserved ÷ floor");
    }
    for (pass, number) in report.passes.iter().zip(1..) {
        let percent = report.driver_percent(pass).unwrap_or(0.0);
        let _ = writeln!(
            text,
            "pages      {:>25.1} ms  {percent:.2} % of the recorded time{}: {} made, {} mapped, {} unmapped, {} given back",
            pass.calls.nanoseconds() as f64 / 1e6,
            if number > 1 { format!(", time {number}") } else { String::new() },
            pass.calls.created,
            pass.calls.mapped,
            pass.calls.unmapped,
            pass.calls.destroyed,
        );
    }
}

/// A change in bytes, and in percent of what it was.
pub(crate) fn changed(by: i64, was: i64) -> String {
    let sign = if by < 0 { '−' } else { '+' };
    let percent = by.unsigned_abs() as f64 / was.max(1) as f64 * 100.0;
    let text = format!("{sign}{} ({sign}{percent:.1} %)", Bytes(by.unsigned_abs()));
    if by < 0 { text.green().to_string() } else { text.red().to_string() }
}

fn describe_waste(text: &mut String, at_peak: &AtPeak) {
    let AtPeak { event, reserved, requested, waste } = at_peak;
    let _ = writeln!(
        text,
        "\nat the peak of reserved memory (entry {}): {} reserved, {} of them requested; the rest:",
        grouped(*event),
        Bytes(*reserved),
        Bytes(*requested)
    );
    for (kind, bytes) in waste.iter().filter(|&(_, bytes)| bytes > 0) {
        let share = bytes as f64 / (*reserved).max(1) as f64 * 100.0;
        let _ = writeln!(
            text,
            "  {:<15}{:>12}{share:>7.1} %  {}",
            kind.name(),
            Bytes(bytes).to_string(),
            kind.meaning()
        );
    }
}
