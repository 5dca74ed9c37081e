//! `tonnage diff`: what changed between two snapshots, largest changes first.

use std::fmt::Write;
use std::path::PathBuf;
use std::str::FromStr;

use anyhow::bail;
use clap::Args;
use owo_colors::OwoColorize;
use tonnage::Bytes;
use tonnage::analysis::{Change, Comparison, DeviceComparison, Group, GroupChange, HistoryKind};

use crate::Answer;
use crate::input::{Input, ReadOptions};
use crate::output::{grouped, plain, print, print_json};

/// Show what changed between two PyTorch memory snapshots
///
/// Peaks, what is held at the peak and at the end by call site (by requested size, if one of the files
/// has no stacks), segments and settings; largest changes first.
///
/// Exit status: 0, or 1 if `--fail-if-peak-grows` was given and the peak grew by more, 2 for bad input.
#[derive(Args)]
pub(crate) struct Arguments {
    /// The snapshot before
    a: PathBuf,

    /// The snapshot after
    b: PathBuf,

    /// Exit with 1 if the peak of allocated bytes of any device grew by more than this: `5%`, `200MiB`,
    /// `0`
    #[arg(long, value_name = "GROWTH")]
    fail_if_peak_grows: Option<Growth>,

    /// How many call sites or sizes to show
    #[arg(long, value_name = "N", default_value_t = 10)]
    top: usize,

    #[command(flatten)]
    read: ReadOptions,

    /// Print one JSON object, with all changes; `grown` lists the devices whose peak grew too much
    #[arg(long)]
    json: bool,
}

/// A growth that is put up with.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Growth {
    Percent(f64),
    Bytes(u64),
}

impl FromStr for Growth {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let Some(number) = text.trim().strip_suffix('%') else {
            let bytes = text.parse::<Bytes>();
            return bytes
                .map(|bytes| Self::Bytes(bytes.0))
                .map_err(|error| format!("{error}, or a share of the peak before, as in `5%`"));
        };
        match number.trim().parse::<f64>() {
            Ok(percent) if percent.is_finite() && percent >= 0.0 => Ok(Self::Percent(percent)),
            _ => Err(format!("`{text}` is not a share: write it as in `5%` or `0.5%`")),
        }
    }
}

impl Growth {
    fn is_passed_by(self, a: u64, b: u64) -> bool {
        let grown = b.saturating_sub(a);
        match self {
            Self::Percent(percent) => grown as f64 > a as f64 * percent / 100.0,
            Self::Bytes(bytes) => grown > bytes,
        }
    }
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<Answer> {
    let read = arguments.read;
    let (a, b) = (read.read_snapshot(&arguments.a)?, read.read_snapshot(&arguments.b)?);
    let comparison = Comparison::of(&a.file, &b.file);
    let allowed = arguments.fail_if_peak_grows;
    let grown = allowed.map(|growth| grown_devices(growth, &comparison, [&a, &b])).transpose()?;
    if arguments.json {
        print_json(&comparison.to_json(&a.name, &b.name, grown.as_deref()))?;
    } else {
        let mut text = describe(&a.name, &b.name, &comparison, arguments.top);
        for device in grown.iter().flatten() {
            let _ = writeln!(
                text,
                "{}: the peak of device {device} grew by more than is allowed",
                "grown".red().bold()
            );
        }
        print(&text)?;
    }
    Ok(if grown.is_none_or(|grown| grown.is_empty()) { Answer::Yes } else { Answer::No })
}

/// The devices whose peak grew too much.
fn grown_devices(
    growth: Growth,
    comparison: &Comparison,
    inputs: [&Input; 2],
) -> anyhow::Result<Vec<u32>> {
    let mut grown = Vec::new();
    for device in &comparison.devices {
        match device.allocated_peak {
            Change { a: Some(a), b: Some(b) } => {
                if growth.is_passed_by(a, b) {
                    grown.push(device.device);
                }
            }
            Change { a, .. } => {
                let without = if a.is_none() { inputs[0] } else { inputs[1] };
                bail!(
                    "{}: device {} has no history, so its peak is not known: call \
                     torch.cuda.memory._record_memory_history() before the work",
                    without.name,
                    device.device
                );
            }
        }
    }
    Ok(grown)
}

fn describe(a: &str, b: &str, comparison: &Comparison, top: usize) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = writeln!(text, "a: {}\nb: {}", plain(a).bold(), plain(b).bold());
    if !comparison.settings.is_empty() {
        text += "\nsettings\n";
    }
    for setting in &comparison.settings {
        let shown = |value: &Option<String>| match value.as_deref() {
            None => "not in the file".to_owned(),
            Some("") => "defaults".to_owned(),
            Some(value) => plain(value).into_owned(),
        };
        let _ =
            writeln!(text, "  {}: {} → {}", setting.setting, shown(&setting.a), shown(&setting.b));
    }
    for device in &comparison.devices {
        describe_device(&mut text, device, top);
    }
    text
}

fn describe_device(text: &mut String, device: &DeviceComparison, top: usize) {
    let _ = writeln!(text, "\n{}", format!("device {}", device.device).bold());
    for (side, history) in ["a", "b"].into_iter().zip(device.histories) {
        if history == HistoryKind::Partial {
            let _ = writeln!(text, "  the history of {side} does not go back to the beginning");
        }
    }
    let _ = writeln!(text, "  {:<16}{:>13}{:>13}{:>14}", "", "a", "b", "change");
    for (name, change) in [
        ("allocated peak", device.allocated_peak),
        ("reserved peak", device.reserved_peak),
        ("requested", device.requested),
        ("allocated", device.allocated),
        ("reserved", device.reserved),
    ] {
        let shown = |bytes: Option<u64>| {
            bytes.map_or_else(|| "no history".to_owned(), |bytes| Bytes(bytes).to_string())
        };
        let share = match (change.a, change.by()) {
            (Some(a), Some(by)) if a > 0 && by != 0 => {
                format!("  {:+.1} %", by as f64 / a as f64 * 100.0)
            }
            _ => String::new(),
        };
        let by = change.by().map(signed_bytes).unwrap_or_default();
        let line =
            format!("  {name:<16}{:>13}{:>13}{by:>14}{share}", shown(change.a), shown(change.b));
        let _ = writeln!(text, "{}", line.trim_end());
    }
    let count = |count: Option<u64>| grouped(count.unwrap_or(0));
    let by =
        device.segments.by().filter(|&by| by != 0).map_or(String::new(), |by| format!("{by:+}"));
    let (a, b) = (count(device.segments.a), count(device.segments.b));
    let _ = writeln!(text, "{}", format!("  {:<16}{a:>13}{b:>13}{by:>14}", "segments").trim_end());
    for it in device.segment_sizes.iter().take(top) {
        let kind = if it.expandable { " expandable" } else { "" };
        let by = it.count.by().unwrap_or(0);
        let _ = writeln!(text, "    {by:+} of {}{kind}", Bytes(it.size));
    }
    if let Some(groups) = &device.at_peak {
        describe_groups(text, "held at the peak", groups, top);
    }
    describe_groups(text, "held at the end", &device.live, top);
}

fn describe_groups(text: &mut String, title: &str, groups: &[GroupChange], top: usize) {
    if groups.is_empty() {
        return;
    }
    let _ = writeln!(text, "\n  {title}, by change");
    for it in groups.iter().take(top) {
        let name = match &it.group {
            Group::CallSite(Some(site)) => plain(site).into_owned(),
            Group::CallSite(None) => "no call site".to_owned(),
            Group::Size(size) => format!("allocations of {} each", Bytes(*size)),
        };
        let by = signed_bytes(it.allocated.by().unwrap_or(0));
        let (a, b) = (it.count.a.unwrap_or(0), it.count.b.unwrap_or(0));
        let _ = writeln!(text, "  {by:>14}  {a} → {b}  {name}");
    }
    if groups.len() > top {
        let _ = writeln!(text, "  {:>14}  {} more: --top", "", grouped(groups.len() - top));
    }
}

fn signed_bytes(by: i64) -> String {
    match by {
        0 => String::new(),
        by => format!("{}{}", if by > 0 { "+" } else { "-" }, Bytes(by.unsigned_abs())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_is_a_share_or_a_size() {
        assert_eq!("5%".parse(), Ok(Growth::Percent(5.0)));
        assert_eq!("0.5 %".parse(), Ok(Growth::Percent(0.5)));
        assert_eq!("200MiB".parse(), Ok(Growth::Bytes(200 << 20)));
        for text in ["-5%", "NaN%", "%", "much", ""] {
            let message = text.parse::<Growth>().unwrap_err();
            assert!(message.contains("5%"), "{message}");
        }
    }

    #[test]
    fn only_more_than_is_allowed_counts() {
        for (growth, a, b, passed) in [
            (Growth::Percent(5.0), 100, 105, false),
            (Growth::Percent(5.0), 100, 106, true),
            (Growth::Percent(5.0), 100, 50, false),
            (Growth::Percent(5.0), 0, 1, true),
            (Growth::Percent(0.0), 0, 0, false),
            (Growth::Bytes(0), 100, 101, true),
            (Growth::Bytes(10), 100, 110, false),
        ] {
            assert_eq!(growth.is_passed_by(a, b), passed, "{growth:?} {a} {b}");
        }
    }
}
