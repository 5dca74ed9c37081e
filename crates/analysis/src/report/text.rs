//! The report as a page of text.
//!
//! In: a [`Report`]. Out: lines of at most 100 columns, the verdict first, readable without colours. Every
//! figure is the report's own. Text from the file is made safe for terminals.

use std::fmt::Write;

use tonnage_events::{Bytes, grouped, plain};

use super::Report;
use super::growth::GrowthKind;
use crate::inspect::HistoryKind;

const COLUMNS: usize = 100;

/// How many rows of each table are shown; the JSON has more.
const ROWS: usize = 6;

pub(super) fn page(report: &Report, file: &str) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = writeln!(
        text,
        "{}: device {}, {} entries, {} history",
        plain(file),
        report.device,
        grouped(report.events),
        report.history.name()
    );
    let conf = if report.conf.is_empty() { "defaults" } else { &report.conf };
    let _ = writeln!(text, "settings: {}", plain(conf));
    if let Some(limit) = report.limit {
        let _ = writeln!(text, "limit: {} ({} bytes)", Bytes(limit), grouped(limit));
    }
    text.push('\n');
    wrapped(&mut text, "", &report.verdict.text);
    waste(&mut text, report);
    peak(&mut text, report);
    growth(&mut text, report);
    ooms(&mut text, report);
    advice(&mut text, report);
    pinned(&mut text, report);
    if !report.notes.is_empty() {
        heading(&mut text, "Not in the file, concluded");
        for note in &report.notes {
            wrapped(&mut text, "  - ", note);
        }
    }
    text
}

/// The host's pinned memory, which is part of no figure above.
fn pinned(text: &mut String, report: &Report) {
    let Some(it) = &report.pinned else { return };
    heading(text, "Pinned memory of the host, part of no figure above");
    let mut row = |word: &str, bytes: u64, peak: Option<u64>| {
        let peak = peak.map_or(String::new(), |peak| format!("  at most {}", Bytes(peak)));
        let _ = writeln!(text, "  {word:<15}{:>11}{peak}", Bytes(bytes).to_string());
    };
    row("reserved", it.reserved, it.reserved_peak);
    row("allocated", it.allocated, it.allocated_peak);
    row("cached", it.cached, None);
    for held in it.lines.iter().take(ROWS) {
        let line = held.line.as_deref().unwrap_or("(no line of the program)");
        let line = format!(
            "  {:>13}{:>9} blocks  {}",
            Bytes(held.bytes).to_string(),
            grouped(held.blocks),
            plain(line)
        );
        let _ = writeln!(text, "{}", cut(&line));
    }
}

fn heading(text: &mut String, title: &str) {
    let _ = writeln!(text, "\n{title}");
}

fn waste(text: &mut String, report: &Report) {
    let peak = &report.peak.reserved;
    let share = |bytes: u64| bytes as f64 / peak.bytes.max(1) as f64 * 100.0;
    let moment = match report.history {
        HistoryKind::None => "when the snapshot was taken".to_owned(),
        _ => format!("where it first peaks, entry {}", grouped(peak.event)),
    };
    heading(text, &format!("Reserved memory {moment}"));
    let mut row = |word: &str, bytes: u64, more: &str| {
        let line = format!(
            "  {word:<15}{:>11}{:>17} {:>6.1} %  {more}",
            Bytes(bytes).to_string(),
            grouped(bytes),
            share(bytes)
        );
        let _ = writeln!(text, "{}", cut(line.trim_end()));
    };
    row("reserved", peak.bytes, "");
    row("requested", peak.requested, "asked for and live");
    for it in report.waste.kinds.iter().filter(|it| it.bytes > 0) {
        let line = it.lines.first().and_then(|it| it.line.as_deref());
        let more = match line {
            Some(line) => format!("{}: {}", it.kind.meaning(), plain(line)),
            None => it.kind.meaning().to_owned(),
        };
        row(it.kind.name(), it.bytes, &more);
    }
}

fn peak(text: &mut String, report: &Report) {
    let peak = &report.peak;
    let iteration = peak.iteration.map_or(String::new(), |it| format!(", iteration {it}"));
    heading(
        text,
        &format!(
            "What was live when most was: {} ({} bytes) in {} blocks, entry {}{iteration}",
            Bytes(peak.requested),
            grouped(peak.requested),
            grouped(peak.blocks),
            grouped(peak.event)
        ),
    );
    for it in peak.purposes.iter().take(ROWS) {
        let _ = writeln!(
            text,
            "  {:<15}{:>11}{:>9} blocks  (confidence: {})",
            it.purpose.name(),
            Bytes(it.bytes).to_string(),
            grouped(it.blocks),
            it.confidence.name()
        );
    }
    if peak.sites.iter().any(|it| it.line.is_some()) {
        let _ = writeln!(text, "  by line:");
        for it in peak.sites.iter().take(ROWS) {
            let line = it.line.as_deref().unwrap_or("(no line of the program)");
            let line = format!(
                "  {:>13}{:>9} blocks  {}",
                Bytes(it.bytes).to_string(),
                grouped(it.blocks),
                plain(line)
            );
            let _ = writeln!(text, "{}", cut(&line));
        }
    }
    let _ = writeln!(text, "  largest:");
    for it in peak.top.iter().take(ROWS) {
        let lived = match (it.lived_us, it.freed) {
            (Some(us), _) => format!("lived {}", duration(us)),
            (None, None) => "never freed".to_owned(),
            (None, Some(_)) => "older than the history".to_owned(),
        };
        let line = it.line.as_deref().map_or(String::new(), |line| format!("  {}", plain(line)));
        let line = format!(
            "  {:>13}  {:<12} {lived}{line}",
            Bytes(it.bytes).to_string(),
            it.purpose.name()
        );
        let _ = writeln!(text, "{}", cut(&line));
    }
}

fn duration(us: u64) -> String {
    match us {
        0..1_000 => format!("{us} µs"),
        1_000..1_000_000 => format!("{:.1} ms", us as f64 / 1e3),
        _ => format!("{:.1} s", us as f64 / 1e6),
    }
}

fn growth(text: &mut String, report: &Report) {
    let growth = &report.growth;
    let Some(told_by) = growth.told_by else {
        if report.history != HistoryKind::None {
            heading(text, "Growth: no iterations were found");
        }
        return;
    };
    let (told_by, kind) = (told_by.words(), growth.kind.words());
    heading(
        text,
        &format!("Growth over {} iterations, told by {told_by}: {kind}", growth.iterations),
    );
    // Less than a thousandth is noise.
    let least = report.peak.reserved.bytes / 1000;
    for (word, bytes) in [
        ("leaked", growth.leak),
        ("longer inputs", growth.longer_inputs),
        ("fragmentation", growth.fragmentation),
    ] {
        if bytes > least {
            let _ = writeln!(
                text,
                "  {word:<15}{:>11}{:>17}",
                Bytes(bytes).to_string(),
                grouped(bytes)
            );
        }
    }
    let shown = growth.lines.iter().filter(|it| it.line.is_some() && it.bytes > least);
    for it in shown.take(ROWS) {
        let word = if it.kind == GrowthKind::Leak { "leaks" } else { "grows" };
        let line = it.line.as_deref().unwrap_or_default();
        let line = format!("  {word:<15}{:>11}  {}", Bytes(it.bytes).to_string(), plain(line));
        let _ = writeln!(text, "{}", cut(&line));
    }
}

fn ooms(text: &mut String, report: &Report) {
    if report.failed_requests == 0 {
        return;
    }
    heading(text, &format!("Failed requests: {}", grouped(report.failed_requests)));
    // The first and the last tell most.
    let last = report.ooms.len().saturating_sub(1);
    for (place, it) in report.ooms.iter().enumerate() {
        if place != 0 && place != last {
            continue;
        }
        let line = it.line.as_deref().map_or(String::new(), |line| format!(" at {}", plain(line)));
        let ended = if it.fatal { "; it ended the job" } else { "; the job went on" };
        wrapped(
            text,
            "  - ",
            &format!(
                "entry {}: {} on stream {}{line}{ended}. Reserved were {}: {} live, {} pending, {} cached. {}.",
                grouped(it.event),
                Bytes(it.bytes),
                it.stream,
                Bytes(it.reserved),
                Bytes(it.requested),
                Bytes(it.pending),
                Bytes(it.cached),
                capital(&it.why)
            ),
        );
        if let Some(outside) = it.outside {
            let least = if it.outside_at_least { "at least " } else { "" };
            let _ = writeln!(text, "    outside this allocator: {least}{}", Bytes(outside));
        }
        for would in &it.would_have {
            wrapped(text, "    would have helped: ", would);
        }
        for would_not in &it.would_not_have {
            wrapped(text, "    would not have helped: ", would_not);
        }
    }
}

fn advice(text: &mut String, report: &Report) {
    if report.advice.is_empty() {
        return;
    }
    heading(text, "What to change");
    for it in report.advice.iter().take(ROWS) {
        let basis = it.basis.words();
        let at = it.line.as_deref().map_or(String::new(), |line| format!(" ({})", plain(line)));
        wrapped(
            text,
            "  - ",
            &format!(
                "{}{at}: saves {} ({basis}, confidence: {}). Costs: {}.",
                plain(&it.change),
                Bytes(it.bytes),
                it.confidence.name(),
                it.cost
            ),
        );
        for code in &it.code {
            let _ = writeln!(text, "{}", cut(&format!("        {}", plain(code))));
        }
    }
}

fn capital(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or(String::new(), |first| first.to_uppercase().chain(chars).collect())
}

/// Words of `words`, in lines of at most [`COLUMNS`]; the first begins with `lead`, the others as far in.
pub(super) fn wrapped(text: &mut String, lead: &str, words: &str) {
    let inset = if lead.trim_end().ends_with(':') { 6 } else { lead.chars().count() };
    let mut line = lead.to_owned();
    let mut filled = false;
    for word in plain(words).split(' ') {
        if filled && line.chars().count() + 1 + word.chars().count() > COLUMNS {
            let _ = writeln!(text, "{line}");
            line = " ".repeat(inset);
            filled = false;
        }
        if filled {
            line.push(' ');
        }
        line += word;
        filled = true;
    }
    let _ = writeln!(text, "{line}");
}

/// At most as wide as the page; the beginning of a path matters less than its end.
pub(super) fn cut(line: &str) -> String {
    if line.chars().count() <= COLUMNS {
        return line.to_owned();
    }
    let kept: String = line.chars().take(COLUMNS - 1).collect();
    kept + "…"
}
