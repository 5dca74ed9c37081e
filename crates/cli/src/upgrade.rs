//! `tonnage replay --as`: the same requests by the rules of another release.

use std::fmt::Write;

use anyhow::Context;
use owo_colors::OwoColorize;
use tonnage::engine::config::Nearest;
use tonnage::replay::Outcome;
use tonnage::replay::what_if::{Figures, UnderRelease, Upgrade, Verdict, WhatIf};
use tonnage::snapshot::SnapshotFile;
use tonnage::{Bytes, Config};

use crate::ask::Answered;
use crate::outcome_text::{describe_inferred, heading, shown};
use crate::output::{grouped, plain};
use crate::replay::Arguments;
use crate::what_if::changed;

pub(crate) fn answer(
    arguments: &Arguments,
    other: &Nearest,
    name: &str,
    file: &SnapshotFile,
) -> anyhow::Result<Answered> {
    let limit = arguments.limit.map(|limit| limit.0);
    let (recorded, job) = arguments.source.read_job(file, limit)?;
    let conf = arguments.conf.as_deref();
    let release = other.release;
    let refuses = || match conf {
        Some(_) => format!("PyTorch {release} refuses these settings"),
        None => format!(
            "PyTorch {release} refuses the settings that this was recorded under ({}); give others with --conf",
            plain(&recorded.conf)
        ),
    };
    let config = Config::parse(conf.unwrap_or(&recorded.conf), release).with_context(refuses)?;
    let like = WhatIf {
        policy: arguments.policy.unwrap_or_default(),
        limit,
        total: arguments.source.total.map(|total| total.0),
        ..WhatIf::new(config)
    };
    let mut upgrade = Upgrade::new(&recorded, &job, release, conf, &like)?;
    upgrade.inferred.extend(other.note());
    Ok(Answered {
        text: describe(name, &recorded, &upgrade),
        json: upgrade.to_json(&recorded, name),
        negative: false,
    })
}

/// The answer for people.
fn describe(name: &str, recorded: &Outcome, upgrade: &Upgrade) -> String {
    let Upgrade { own, other, inferred } = upgrade;
    let mut text = heading(name, recorded);
    // Writing to a string cannot fail.
    let limit = own.prediction.limit.map_or_else(
        || "no limit".to_owned(),
        |limit| format!("limit {limit} bytes ({})", Bytes(limit)),
    );
    let _ = writeln!(text, "settings: {}; {limit}", shown(&own.conf));
    if other.conf != own.conf {
        let _ = writeln!(text, "under {}: {}", other.release, shown(&other.conf));
    }
    text.push('\n');
    let _ = writeln!(text, "{}\n", in_a_sentence(upgrade));
    describe_failure(&mut text, other);
    describe_figures(&mut text, recorded, upgrade);
    describe_inferred(&mut text, inferred);
    text
}

/// The answer in a sentence.
fn in_a_sentence(upgrade: &Upgrade) -> String {
    let (own, other) = (upgrade.own.release, upgrade.other.release);
    let bytes = || Bytes(upgrade.difference().reserved.unsigned_abs());
    match upgrade.verdict() {
        Verdict::Same => format!(
            "{}: PyTorch {other} serves this job as {own} does, in every figure",
            "no difference".green().bold()
        ),
        Verdict::Otherwise => format!(
            "{}: PyTorch {other} reserves as much as {own} for this job; other figures differ",
            "as much memory".green().bold()
        ),
        Verdict::More => format!(
            "{}: PyTorch {other} reserves {} more than {own} for this job",
            "more memory".red().bold(),
            bytes()
        ),
        Verdict::Less => format!(
            "{}: PyTorch {other} reserves {} less than {own} for this job",
            "less memory".green().bold(),
            bytes()
        ),
        Verdict::Fails => format!(
            "{}: by the rules of PyTorch {other} this job ends {} where by those of {own} it does not",
            "out of memory".red().bold(),
            ends(&upgrade.other)
        ),
        Verdict::Runs if upgrade.other.prediction.stopped() => format!(
            "{}: by the rules of PyTorch {other} this job gets past where it ends by those of {own}, and ends {}",
            "gets further".green().bold(),
            ends(&upgrade.other)
        ),
        Verdict::Runs => format!(
            "{}: by the rules of PyTorch {other} this job gets past where it ends by those of {own}",
            "runs through".green().bold()
        ),
    }
}

/// Where a failure ends the job.
fn ends(under: &UnderRelease) -> String {
    under
        .prediction
        .stopped_at
        .map_or_else(String::new, |entry| format!("at entry {}", grouped(entry)))
}

fn describe_failure(text: &mut String, other: &UnderRelease) {
    if let Some(oom) = &other.prediction.oom {
        let _ = writeln!(
            text,
            "  by the rules of {} the first request that fails is that of entry {}: {} on stream {}\n",
            other.release,
            grouped(oom.event),
            Bytes(oom.bytes),
            oom.stream
        );
    }
}

fn describe_figures(text: &mut String, recorded: &Outcome, upgrade: &Upgrade) {
    let (own, other) = (upgrade.own.figures(), upgrade.other.figures());
    let stats = recorded.exact().then_some(&recorded.stats);
    let _ = writeln!(
        text,
        "{:<11}{:>14}{:>14}{:>14}",
        "peak",
        "recorded",
        upgrade.own.release.name(),
        upgrade.other.release.name()
    );
    let bytes = |bytes: i64| Bytes(u64::try_from(bytes).unwrap_or(0)).to_string();
    for (name, was, of) in [
        (
            "reserved",
            stats.map(|it| it.reserved_bytes.all.peak),
            (|it| it.reserved) as fn(&Figures) -> i64,
        ),
        ("allocated", stats.map(|it| it.allocated_bytes.all.peak), |it| it.allocated),
    ] {
        let was = was.map_or_else(|| "?".to_owned(), bytes);
        let (before, after) = (of(&own), of(&other));
        let _ = write!(text, "{name:<11}{was:>14}{:>14}{:>14}", bytes(before), bytes(after));
        if before != after {
            let _ = write!(text, "  {}", changed(after - before, before));
        }
        text.push('\n');
    }
    for (name, was, of, meaning) in [
        (
            "driver",
            stats.map(|it| it.num_device_alloc + it.num_device_free),
            (|it| it.driver_calls) as fn(&Figures) -> i64,
            "memory obtained or given back",
        ),
        (
            "retries",
            stats.map(|it| it.num_alloc_retries),
            |it| it.retries,
            "after giving back all that was cached",
        ),
        ("failures", stats.map(|it| it.failed_requests()), |it| it.ooms, "out of memory"),
    ] {
        let was = was.map_or_else(|| "?".to_owned(), |count| count.to_string());
        let _ = writeln!(text, "{name:<11}{was:>14}{:>14}{:>14}  {meaning}", of(&own), of(&other));
    }
    let _ = writeln!(
        text,
        "\nThe columns of releases are predictions of one kind: new segments lie at the same modelled addresses, \
         so that the\nrules alone make the difference."
    );
}
