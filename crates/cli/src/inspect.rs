//! `tonnage inspect`: what is in a file, in ten lines.

use std::fmt::Write;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use owo_colors::OwoColorize;
use tonnage::Bytes;
use tonnage::analysis::{DeviceInspection, HistoryKind, Inspection, PinnedInspection};
use tonnage::events::Action;
use tonnage::snapshot::SnapshotFile;

use crate::ask::Answered;
use crate::input::ReadOptions;
use crate::output::{counted, grouped, plain};

/// Show what is in a PyTorch memory snapshot
///
/// For each device what it held when the snapshot was taken, how far back its history goes, and the
/// peak of allocated bytes within it; then the pinned memory of the host, which is no device's. Every
/// file that can be read can be inspected, with a history or without.
///
/// Exit status: 0, or 2 for bad input.
#[derive(Args)]
pub(crate) struct Arguments {
    /// A snapshot (`.pickle`, also compressed); `-` reads standard input
    file: PathBuf,

    #[command(flatten)]
    read: ReadOptions,

    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<crate::Answer> {
    let input = arguments.read.read_snapshot(&arguments.file)?;
    answer(&input.name, &input.file).print(arguments.json)
}

/// What is in a file.
pub(crate) fn answer(name: &str, file: &SnapshotFile) -> Answered {
    let inspection = Inspection::of(file);
    let (text, json) = (describe(name, &inspection), inspection.to_json(name));
    Answered { text, json, negative: false }
}

fn describe(name: &str, inspection: &Inspection) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = writeln!(
        text,
        "{}: {}, {}, {}",
        plain(name).bold(),
        counted(inspection.devices.len(), "device"),
        counted(inspection.stacks, "distinct stack"),
        counted(inspection.annotations, "annotation"),
    );
    let settings = match inspection.conf.as_deref() {
        Some("") => "defaults".into(),
        Some(conf) => plain(conf),
        None => "not in the file".into(),
    };
    let _ = writeln!(text, "settings: {settings}");
    if inspection.skipped_events > 0 {
        let _ = writeln!(
            text,
            "left out: {} whose action is not known",
            counted(inspection.skipped_events, "event")
        );
    }
    if inspection.devices.is_empty() {
        text += "nothing was allocated and nothing was recorded\n";
    }
    for device in &inspection.devices {
        describe_device(&mut text, device);
    }
    if let Some(pinned) = &inspection.pinned {
        describe_pinned(&mut text, pinned);
    }
    text
}

/// The host's pinned memory, in a table of its own.
fn describe_pinned(text: &mut String, pinned: &PinnedInspection) {
    let history = match pinned.events {
        0 => "no history: record it with record_pinned_host_memory=True".to_owned(),
        events => counted(events, "event"),
    };
    let _ = writeln!(text, "{}: {history}", "pinned memory of the host".bold());
    let _ = writeln!(text, "  blocks     {:>13}", grouped(pinned.segments));
    let _ = writeln!(text, "             {:>13}  {:>13}", "at the end", "peak");
    for (word, bytes, peak) in [
        ("allocated", pinned.allocated, pinned.allocated_peak),
        ("active", pinned.active, None),
        ("cached", pinned.cached, None),
        ("reserved", pinned.reserved, pinned.reserved_peak),
    ] {
        level(text, word, bytes, peak, "");
    }
    for it in pinned.lines.iter().take(LINES) {
        let line = it.line.as_deref().unwrap_or("(no line of the program)");
        let _ = writeln!(text, "  {:>13} held by {}", Bytes(it.bytes).to_string(), plain(line));
    }
}

/// Lines that hold pinned memory; the JSON has more.
const LINES: usize = 3;

/// A row of a table: what there is at the end, and the peak if that is known.
fn level(text: &mut String, word: &str, bytes: u64, peak: Option<u64>, more: &str) {
    let bytes = Bytes(bytes).to_string();
    let peak = peak.map(|peak| Bytes(peak).to_string()).unwrap_or_default();
    let line = format!("  {word:<11}{bytes:>13}  {peak:>13}{more}");
    let _ = writeln!(text, "{}", line.trim_end());
}

fn describe_device(text: &mut String, device: &DeviceInspection) {
    let name = format!("device {}", device.device);
    let history = match device.history {
        HistoryKind::None => {
            "no history: call torch.cuda.memory._record_memory_history() before the work".to_owned()
        }
        kind => {
            format!("{} history, {}{}", kind.name(), counted(device.events, "event"), span(device))
        }
    };
    let _ = writeln!(text, "{}: {history}", name.bold());
    let failed = match device.count(Action::Oom) {
        0 => None,
        number => Some(format!("{} failed: out of memory", counted(number, "request"))),
    };
    if let Some(failed) = failed {
        let _ = writeln!(text, "  {}", failed.red());
    }
    let expandable = match device.expandable_segments {
        0 => String::new(),
        number => format!(", {} expandable", grouped(number)),
    };
    let _ = writeln!(text, "  segments   {:>13}{expandable}", grouped(device.segments));
    let _ = writeln!(text, "             {:>13}  {:>13}", "at the end", "peak");
    let event = device.allocated_peak_event.map(|event| format!("  at event {}", grouped(event)));
    for (word, bytes, peak, more) in [
        ("requested", device.requested, device.requested_peak, None),
        ("allocated", device.allocated, device.allocated_peak, event),
        ("active", device.active, None, None),
        ("cached", device.cached, None, None),
        ("reserved", device.reserved, device.reserved_peak, None),
    ] {
        level(text, word, bytes, peak, &more.unwrap_or_default());
    }
}

/// How long the history is, if its entries have times.
fn span(device: &DeviceInspection) -> String {
    let (Some(first), Some(last)) = (device.first_time_us, device.last_time_us) else {
        return String::new();
    };
    let seconds = Duration::from_micros(last.saturating_sub(first)).as_secs_f64();
    format!(" over {seconds:.1} s")
}
