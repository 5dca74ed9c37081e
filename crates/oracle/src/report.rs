//! Summaries as text and as JSON.

use std::fmt::Write as _;

use serde_json::{Value, json};
use tonnage_events::grouped;

use crate::campaign::{Found, Summary};
use crate::command::Stream;
use crate::compare::{Cut, Verdict};

/// The letters of a stream, for whoever reads one.
const LEGEND: &str = "  a ID SIZE STREAM allocate, f ID free, r ID STREAM record_stream, e POOL empty_cache, d 0|1 events complete,
  s STREAM its events complete, b POOL [STREAM] begin, x POOL end, R POOL release, u POOL use, n POOL no_split,
  o POOL 0|1 use_on_oom, C 0|1 capture begins (1: here), E ends, t STREAM CLASS of reserves, p SHARE memory fraction,
  c SETTINGS configure, k reset peaks, z reset sums, H record history, ? snapshot\n";

/// The summary as lines of text, such as are kept under `benches/results/`.
#[must_use]
pub fn text(summary: &Summary) -> String {
    let mut text = String::new();
    let release = summary.nearest.release;
    let seconds = summary.time.as_secs_f64();
    // Writing to a string does not fail.
    let _ = writeln!(
        text,
        "PyTorch {} against the engine's rules of {release}, seed {}: {} commands in {} streams, {} different ({seconds:.0} s)",
        summary.plan.version,
        summary.plan.seed,
        grouped(summary.commands),
        grouped(summary.streams),
        grouped(summary.different),
    );
    if let Some(note) = summary.nearest.note() {
        let _ = writeln!(text, "  {note}");
    }
    let cut: u64 = summary.cut.values().map(|cut| cut.streams).sum();
    let _ = writeln!(
        text,
        "  cut {} streams; peaks and sums of inactive_split masked in {}, order of entries in {}",
        grouped(cut),
        grouped(summary.masked),
        grouped(summary.reordered)
    );
    for (why, cut) in &summary.cut {
        let _ = writeln!(text, "  {:>8}  {why} (first: {})", grouped(cut.streams), cut.first);
    }
    for found in &summary.differences {
        let _ = writeln!(
            text,
            "\nstream {} ({} commands) differs; the smallest of it that does:",
            found.number, found.length
        );
        let _ = writeln!(text, "{}", found.smallest);
        let _ = writeln!(text, "{}", found.difference);
    }
    let more = summary.different.saturating_sub(summary.differences.len() as u64);
    if more > 0 {
        let _ = writeln!(text, "\n{} more streams differ", grouped(more));
    }
    if !summary.differences.is_empty() {
        text += LEGEND;
    }
    text
}

/// One stream, and what came of it.
#[must_use]
pub fn one(stream: &Stream, verdict: &Verdict) -> String {
    let verdict = match verdict {
        Verdict::Same => "equal to the end".to_owned(),
        Verdict::Cut { at, why } => format!("cut at command {at}: {why}"),
        Verdict::Different(difference) => difference.to_string(),
    };
    format!("{stream}\n{verdict}\n{LEGEND}")
}

/// The summary as one JSON object.
#[must_use]
pub fn to_json(summary: &Summary) -> Value {
    json!({
        "schema": 1,
        "pytorch": summary.plan.version,
        "rules": summary.nearest.release.name(),
        "note": summary.nearest.note(),
        "seed": summary.plan.seed,
        "streams": summary.streams,
        "commands": summary.commands,
        "cut": summary.cut.iter().map(cut).collect::<Vec<_>>(),
        "masked": summary.masked,
        "reordered": summary.reordered,
        "different": summary.different,
        "differences": summary.differences.iter().map(found).collect::<Vec<_>>(),
        "seconds": summary.time.as_secs_f64(),
    })
}

fn cut((why, cut): (&String, &Cut)) -> Value {
    json!({ "why": why, "streams": cut.streams, "first": cut.first })
}

fn found(found: &Found) -> Value {
    json!({
        "stream": found.number,
        "smallest": found.smallest.to_string().lines().collect::<Vec<_>>(),
        "at": found.difference.at,
        "what": found.difference.what,
        "pytorch": found.difference.expected,
        "engine": found.difference.got,
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::campaign::Plan;
    use crate::command::{Command, Start};
    use crate::compare::Difference;

    #[test]
    fn a_summary_counts_names_and_shows() {
        let plan = Plan {
            version: "2.99.0".to_owned(),
            commands: 1,
            seed: 7,
            first: 0,
            workers: 1,
            shrink: 1,
        };
        let difference = Difference {
            at: 0,
            what: "reserved".to_owned(),
            expected: "1".to_owned(),
            got: "2".to_owned(),
        };
        let smallest = Stream { start: Start::plain(), commands: vec![Command::Snapshot] };
        let summary = Summary {
            plan,
            nearest: "2.99.0".parse().unwrap(),
            streams: 1000,
            commands: 1_234_567,
            cut: [("it asserts".to_owned(), Cut { streams: 3, first: 7 })].into(),
            masked: 5,
            reordered: 4,
            different: 2,
            differences: vec![Found { number: 9, length: 300, smallest, difference }],
            time: Duration::from_secs(61),
        };
        let text = text(&summary);
        for part in [
            "PyTorch 2.99.0 against the engine's rules of ",
            "PyTorch 2.99.0 is newer than",
            "1,234,567 commands in 1,000 streams, 2 different (61 s)",
            "cut 3 streams; peaks and sums of inactive_split masked in 5, order of entries in 4",
            "3  it asserts (first: 7)",
            "stream 9 (300 commands) differs",
            "stream 8589934592 8589934592\n?\nend\n",
            "command 0: reserved: PyTorch 1, engine 2",
            "1 more streams differ",
        ] {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
        let json = to_json(&summary);
        assert_eq!(json["cut"][0]["streams"], 3);
        assert_eq!(json["differences"][0]["smallest"][1], "?");
    }
}
