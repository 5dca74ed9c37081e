//! The report as a page of text.
//!
//! In: a [`Report`] and a [`Layout`]. Out: lines, the verdict first, readable without colours. Every figure is the
//! report's own. Text from the file is made safe for terminals.
//!
//! Paragraphs are wrapped. On a screen, rows are as wide as it is, and the path of a culprit is shortened from its
//! beginning; elsewhere rows are whole. Lines to copy are whole everywhere.

use std::fmt::Write;

use tonnage_events::{Bytes, counted, grouped, plain};

use super::Report;
use super::growth::GrowthKind;
use crate::inspect::HistoryKind;

/// Where paragraphs are wrapped if no screen says.
const COLUMNS: usize = 100;

/// The narrowest screen that rows are made for.
const NARROWEST: usize = 40;

/// How a page of text is laid out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// Columns of the screen; none for files and pipes.
    pub columns: Option<usize>,
    /// Whether headings stand out, by escape sequences of terminals.
    pub colours: bool,
}

impl Layout {
    /// A paragraph, wrapped, with its first line behind `first` and the others as far in.
    pub fn paragraph(self, text: &mut String, first: &str, words: &str) {
        wrapped(text, self, first, words);
    }

    fn wrap(self) -> usize {
        self.columns.unwrap_or(COLUMNS).max(NARROWEST)
    }

    /// A row that names a culprit behind its figures: on a screen no wider than that, with the culprit's end.
    pub fn row(self, text: &mut String, figures: &str, culprit: &str) {
        let culprit = plain(culprit);
        let (wide, name) = (figures.chars().count(), culprit.chars().count());
        let columns = self.columns.map_or(usize::MAX, |it| it.max(NARROWEST));
        // Writing to a string cannot fail.
        let _ = if wide.saturating_add(name) <= columns || culprit.is_empty() {
            writeln!(text, "{}", format!("{figures}{culprit}").trim_end())
        } else if columns >= wide + SHORTEST {
            writeln!(text, "{figures}{}", end_of(&culprit, columns - wide))
        } else {
            writeln!(text, "{}\n      {}", figures.trim_end(), end_of(&culprit, columns - 6))
        };
    }

    /// A line between two parts, which stands out where colours do.
    pub fn heading(self, text: &mut String, title: &str) {
        let (bold, plain) = if self.colours { ("\x1b[1m", "\x1b[0m") } else { ("", "") };
        text.push('\n');
        let mut lines = String::new();
        wrapped(&mut lines, self, "", title);
        let _ = writeln!(text, "{bold}{}{plain}", lines.trim_end());
    }
}

/// Letters of a culprit that a row has room for at least; else it gets a line of its own.
const SHORTEST: usize = 24;

/// The end of a name: of a path, the file and the line matter most.
fn end_of(name: &str, columns: usize) -> String {
    let letters = name.chars().count();
    if letters <= columns {
        return name.to_owned();
    }
    let end: String = name.chars().skip(letters + 1 - columns).collect();
    format!("…{end}")
}

/// How many rows of each table are shown; the JSON has more.
const ROWS: usize = 6;

pub(super) fn page(report: &Report, file: &str, layout: Layout) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = writeln!(
        text,
        "{}: device {}, {}",
        plain(file),
        report.device,
        report.history.with_entries(report.events)
    );
    let conf = if report.conf.is_empty() { "defaults" } else { &report.conf };
    let _ = writeln!(text, "settings: {}", plain(conf));
    match (&report.failure, report.limit) {
        (Some(failure), _) => {
            wrapped(&mut text, layout, "", &format!("limit: {}", failure.limit.in_a_line()));
        }
        (None, Some(limit)) => {
            let _ = writeln!(text, "limit: {} ({} bytes)", Bytes(limit), grouped(limit));
        }
        (None, None) => {}
    }
    text.push('\n');
    wrapped(&mut text, layout, "", &report.verdict.text);
    waste(&mut text, layout, report);
    peak(&mut text, layout, report);
    growth(&mut text, layout, report);
    ooms(&mut text, layout, report);
    advice(&mut text, layout, report);
    pinned(&mut text, layout, report);
    if !report.notes.is_empty() {
        layout.heading(&mut text, "Not in the file, concluded");
        for note in &report.notes {
            wrapped(&mut text, layout, "  - ", note);
        }
    }
    text
}

/// The host's pinned memory, which is part of no figure above.
fn pinned(text: &mut String, layout: Layout, report: &Report) {
    let Some(it) = &report.pinned else { return };
    layout.heading(text, "Pinned memory of the host, part of no figure above");
    let mut row = |word: &str, bytes: u64, peak: Option<u64>| {
        let peak = peak.map_or(String::new(), |peak| format!("  at most {}", Bytes(peak)));
        let _ = writeln!(text, "  {word:<15}{:>11}{peak}", Bytes(bytes).to_string());
    };
    row("reserved", it.reserved, it.reserved_peak);
    row("allocated", it.allocated, it.allocated_peak);
    row("cached", it.cached, None);
    for held in it.lines.iter().take(ROWS) {
        let line = held.line.as_deref().unwrap_or("(no line of the program)");
        let figures = format!("  {:>13}{}", Bytes(held.bytes).to_string(), blocks(held.blocks));
        layout.row(text, &figures, line);
    }
}

fn waste(text: &mut String, layout: Layout, report: &Report) {
    let peak = &report.peak.reserved;
    let share = |bytes: u64| bytes as f64 / peak.bytes.max(1) as f64 * 100.0;
    let moment = match report.history {
        HistoryKind::None => "when the snapshot was taken".to_owned(),
        _ => format!("where it first peaked, entry {}", grouped(peak.event)),
    };
    layout.heading(text, &format!("Reserved memory {moment}"));
    let mut row = |word: &str, bytes: u64, more: &str, culprit: &str| {
        let colon = if culprit.is_empty() { "" } else { ": " };
        let figures = format!(
            "  {word:<15}{:>11}{:>17} {:>6.1} %",
            Bytes(bytes).to_string(),
            grouped(bytes),
            share(bytes)
        );
        let beside = format!("{figures}  {more}{colon}");
        let columns = layout.columns.map_or(usize::MAX, |it| it.max(NARROWEST));
        if more.is_empty() || beside.trim_end().chars().count() <= columns {
            layout.row(text, &beside, culprit);
        } else {
            // What it means has a line of its own, rather than one wider than the screen.
            let _ = writeln!(text, "{figures}");
            layout.row(text, &format!("      {more}{colon}"), culprit);
        }
    };
    row("reserved", peak.bytes, "", "");
    row("requested", peak.requested, "asked for and live", "");
    if report.history == HistoryKind::None {
        // What is free now says nothing of why.
        row("not live", report.waste.total(), "cached, pending or rounded up", "");
        return;
    }
    for it in report.waste.kinds.iter().filter(|it| it.bytes > 0) {
        let line = it.lines.first().and_then(|it| it.line.as_deref());
        row(it.kind.name(), it.bytes, it.kind.meaning(), line.unwrap_or_default());
    }
}

/// A column that says how many blocks there are.
fn blocks(number: usize) -> String {
    let word = if number == 1 { "block" } else { "blocks" };
    format!("{:>9} {word:<6}  ", grouped(number))
}

fn peak(text: &mut String, layout: Layout, report: &Report) {
    let peak = &report.peak;
    let iteration = peak.iteration.map_or(String::new(), |it| format!(", iteration {it}"));
    layout.heading(
        text,
        &format!(
            "What was live when most was: {} ({} bytes) in {}, entry {}{iteration}",
            Bytes(peak.requested),
            grouped(peak.requested),
            counted(peak.blocks, "block"),
            grouped(peak.event)
        ),
    );
    for it in peak.purposes.iter().take(ROWS) {
        let _ = writeln!(
            text,
            "  {:<15}{:>11}{}({})",
            it.purpose.name(),
            Bytes(it.bytes).to_string(),
            blocks(it.blocks),
            it.confidence.in_words()
        );
    }
    if peak.sites.iter().any(|it| it.line.is_some()) {
        let _ = writeln!(text, "  by line:");
        for it in peak.sites.iter().take(ROWS) {
            let line = it.line.as_deref().unwrap_or("(no line of the program)");
            let figures = format!("  {:>13}{}", Bytes(it.bytes).to_string(), blocks(it.blocks));
            layout.row(text, &figures, line);
        }
    }
    if !peak.modules.is_empty() {
        let _ = writeln!(text, "  by module, told from calls of `forward` on the stacks:");
        for it in peak.modules.iter().take(ROWS) {
            let module = it.indexed.as_deref().or(it.module.as_deref()).unwrap_or("(no module)");
            let figures = format!("  {:>13}{}", Bytes(it.bytes).to_string(), blocks(it.blocks));
            layout.row(text, &figures, module);
            if let Some(layer) = it.largest_layer() {
                let figures =
                    format!("  {:>13}{}", Bytes(layer.bytes).to_string(), blocks(layer.blocks));
                layout.row(text, &format!("{figures}of these, most: "), &layer.module);
            }
        }
    }
    if !peak.libraries.is_empty() {
        let _ = writeln!(text, "  by line of a library:");
        for it in peak.libraries.iter().take(ROWS) {
            let line = it.line.as_deref().unwrap_or("(no line of a library)");
            let figures = format!("  {:>13}{}", Bytes(it.bytes).to_string(), blocks(it.blocks));
            layout.row(text, &figures, line);
        }
    }
    let _ = writeln!(text, "  largest, and what for (confidence):");
    for it in peak.top.iter().take(ROWS) {
        let lived = match (it.lived_us, it.freed) {
            (Some(us), _) => format!("lived {}", duration(us)),
            (None, None) => "never freed".to_owned(),
            (None, Some(_)) => "older than the history".to_owned(),
        };
        let purpose = format!("{} ({})", it.purpose.name(), it.confidence.name());
        let figures = format!("  {:>13}  {purpose:<20} {lived}  ", Bytes(it.bytes).to_string());
        layout.row(text, &figures, it.line.as_deref().unwrap_or_default());
    }
}

fn duration(us: u64) -> String {
    match us {
        0..1_000 => format!("{us} µs"),
        1_000..1_000_000 => format!("{:.1} ms", us as f64 / 1e3),
        _ => format!("{:.1} s", us as f64 / 1e6),
    }
}

fn growth(text: &mut String, layout: Layout, report: &Report) {
    let growth = &report.growth;
    let Some(told_by) = growth.told_by else {
        if report.history != HistoryKind::None {
            layout.heading(text, "Growth: no iterations were found");
        }
        return;
    };
    let (told_by, kind) = (told_by.words(), growth.kind.words());
    layout.heading(
        text,
        &format!(
            "Growth over {}, told by {told_by}: {kind}",
            counted(growth.iterations, "iteration")
        ),
    );
    // Less than a thousandth is noise.
    let least = report.peak.reserved.bytes / 1000;
    for (word, bytes) in [
        ("leaked", growth.leak),
        ("longer inputs", growth.longer_inputs),
        ("growing tensor", growth.growing_tensor),
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
        let figures = format!("  {word:<15}{:>11}  ", Bytes(it.bytes).to_string());
        layout.row(text, &figures, line);
    }
}

fn ooms(text: &mut String, layout: Layout, report: &Report) {
    if report.failed_requests == 0 {
        return;
    }
    layout.heading(text, &format!("Failed requests: {}", grouped(report.failed_requests)));
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
            layout,
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
            wrapped(text, layout, "    would have helped: ", would);
        }
        for would_not in &it.would_not_have {
            wrapped(text, layout, "    would not have helped: ", would_not);
        }
    }
}

fn advice(text: &mut String, layout: Layout, report: &Report) {
    if report.advice.is_empty() {
        return;
    }
    layout.heading(text, "What to change");
    for it in report.advice.iter().take(ROWS) {
        let at = it.line.as_deref().map_or(String::new(), |line| format!(" ({})", plain(line)));
        wrapped(
            text,
            layout,
            "  - ",
            &format!(
                "{}{at}: {} (confidence: {}). Costs: {}.",
                plain(&it.change),
                it.effect(),
                it.confidence.name(),
                it.cost
            ),
        );
        for code in &it.code {
            let _ = writeln!(text, "        {}", plain(code));
        }
    }
}

fn capital(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or(String::new(), |first| first.to_uppercase().chain(chars).collect())
}

/// Words of `words`, in lines of the layout's width; the first begins with `lead`, the others as far in.
pub(super) fn wrapped(text: &mut String, layout: Layout, lead: &str, words: &str) {
    let inset = if lead.trim_end().ends_with(':') { 6 } else { lead.chars().count() };
    let columns = layout.wrap();
    let mut line = lead.to_owned();
    let mut filled = false;
    for word in plain(words).split(' ') {
        if filled && line.chars().count() + 1 + word.chars().count() > columns {
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
