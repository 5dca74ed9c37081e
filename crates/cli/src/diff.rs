//! `tonnage diff`: what changed between two snapshots, largest changes first.

use std::fmt::Write;
use std::path::PathBuf;
use std::str::FromStr;

use anyhow::bail;
use clap::Args;
use owo_colors::OwoColorize;
use tonnage::Bytes;
use tonnage::analysis::{
    Change, Comparison, DeviceComparison, Group, GroupChange, GrownPeak, HistoryKind,
};

use crate::Answer;
use crate::ask::{Answered, Named};
use crate::input::ReadOptions;
use crate::output::{counted, grouped, plain};

/// Show what changed between two PyTorch memory snapshots
///
/// Peaks, what is held at the peak and at the end by call site (by requested size, if one of the files
/// has no stacks), segments and settings; largest changes first.
///
/// Exit status: 0, or 1 if `--fail-if-peak-grows` or `--fail-if-reserved-grows` was given and a peak grew by more, 2 for bad
/// input.
#[derive(Args)]
pub(crate) struct Arguments {
    /// The snapshot before
    a: PathBuf,

    /// The snapshot after
    b: PathBuf,

    /// Exit with 1 if the peak of allocated or of reserved bytes of any device grew by more than this: `5%`, `200MiB`,
    /// `0`
    #[arg(long, value_name = "GROWTH")]
    fail_if_peak_grows: Option<Growth>,

    /// The same for the peak of reserved bytes alone, in place of what --fail-if-peak-grows says of it; `off` leaves it
    /// unguarded
    #[arg(long, value_name = "GROWTH")]
    fail_if_reserved_grows: Option<Guard>,

    /// How many call sites or sizes to show
    #[arg(long, value_name = "N", default_value_t = 10)]
    top: usize,

    #[command(flatten)]
    read: ReadOptions,

    /// Print one JSON object, with all changes; `grown` lists the peaks that grew too much
    #[arg(long)]
    json: bool,

    /// Print Markdown, for a comment on a pull request
    #[arg(long, conflicts_with = "json")]
    markdown: bool,
}

/// How much reserved memory may grow.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Guard {
    Off,
    By(Growth),
}

impl FromStr for Guard {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "off" => Ok(Self::Off),
            text => text.parse().map(Self::By).map_err(|error| format!("{error}, or `off`")),
        }
    }
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
    answer(arguments, (&a.name, &a.file), (&b.name, &b.file))?.print(arguments.json)
}

/// What changed from one to the other.
pub(crate) fn answer(
    arguments: &Arguments,
    a: Named<'_>,
    b: Named<'_>,
) -> anyhow::Result<Answered> {
    let comparison = Comparison::of(a.1, b.1);
    let allowed = arguments.allowed();
    let grown = allowed.map(|allowed| allowed.grown(&comparison, [a.0, b.0])).transpose()?;
    let top = arguments.top;
    let text = if arguments.markdown {
        markdown(a.0, b.0, &comparison, grown.as_deref(), top)
    } else {
        let mut text = describe(a.0, b.0, &comparison, top);
        for it in grown.iter().flatten() {
            let _ = writeln!(text, "{}: {}", "grown".red().bold(), too_much(it));
        }
        text
    };
    let json = comparison.to_json(a.0, b.0, grown.as_deref());
    Ok(Answered { text, json, negative: grown.is_some_and(|grown| !grown.is_empty()) })
}

/// A peak that grew too much, in words.
fn too_much(it: &GrownPeak) -> String {
    let GrownPeak { device, peak, a, b } = *it;
    format!(
        "the {peak} peak of device {device} grew by more than is allowed, from {} to {}",
        Bytes(a),
        Bytes(b)
    )
}

/// How much peaks may grow.
#[derive(Clone, Copy)]
struct Allowed {
    allocated: Option<Growth>,
    reserved: Option<Growth>,
}

impl Arguments {
    /// What peaks may grow by, if someone asked.
    fn allowed(&self) -> Option<Allowed> {
        let allocated = self.fail_if_peak_grows;
        let reserved = match self.fail_if_reserved_grows {
            None => allocated,
            Some(Guard::Off) => None,
            Some(Guard::By(growth)) => Some(growth),
        };
        (allocated.is_some() || reserved.is_some()).then_some(Allowed { allocated, reserved })
    }
}

impl Allowed {
    /// The peaks that grew by more.
    fn grown(self, comparison: &Comparison, names: [&str; 2]) -> anyhow::Result<Vec<GrownPeak>> {
        let mut grown = Vec::new();
        for it in &comparison.devices {
            for (peak, allowed, change) in [
                ("allocated", self.allocated, it.allocated_peak),
                ("reserved", self.reserved, it.reserved_peak),
            ] {
                let Some(allowed) = allowed else { continue };
                let Change { a: Some(a), b: Some(b) } = change else {
                    let without = if change.a.is_none() { names[0] } else { names[1] };
                    bail!(
                        "{}: device {} has no history, so its peak is not known: call \
                         torch.cuda.memory._record_memory_history() before the work",
                        without,
                        it.device
                    );
                };
                if allowed.is_passed_by(a, b) {
                    grown.push(GrownPeak { device: it.device, peak, a, b });
                }
            }
        }
        Ok(grown)
    }
}

/// The comparison as Markdown, for a comment on a pull request.
fn markdown(
    a: &str,
    b: &str,
    comparison: &Comparison,
    grown: Option<&[GrownPeak]>,
    top: usize,
) -> String {
    let mut text = format!("### Memory: {} → {}\n", code(a), code(b));
    // Writing to a string cannot fail.
    match grown {
        Some([]) => text += "\n✅ no peak grew by more than is allowed\n",
        Some(grown) => {
            text.push('\n');
            for it in grown {
                let _ = writeln!(text, "- ❌ {}", too_much(it));
            }
        }
        None => {}
    }
    for setting in &comparison.settings {
        let shown = |value: &Option<String>| match value.as_deref() {
            None => "not in the file".to_owned(),
            Some("") => "defaults".to_owned(),
            Some(value) => code(value),
        };
        let (a, b) = (shown(&setting.a), shown(&setting.b));
        let _ = writeln!(text, "\n{}: {a} → {b}", code(setting.setting));
    }
    for device in &comparison.devices {
        let _ = writeln!(text, "\n| device {} | before | after | change |", device.device);
        text += "| --- | ---: | ---: | ---: |\n";
        for (name, change) in figures(device) {
            let Shown { a, b, by, share } = Shown::of(change);
            let _ = writeln!(text, "| {name} | {a} | {b} | {by}{share} |");
        }
        let lists = [
            ("held at the peak", device.at_peak.as_deref()),
            ("held at the end", Some(&device.live)),
        ];
        for (title, groups) in lists {
            let Some(groups @ [_, ..]) = groups else { continue };
            let _ = writeln!(text, "\n| {title}, by change | before | after | change |");
            text += "| --- | ---: | ---: | ---: |\n";
            for it in groups.iter().take(top) {
                let blocks = |count: Option<u64>| counted(count.unwrap_or(0), "block");
                let (a, b) = (blocks(it.count.a), blocks(it.count.b));
                let (name, by) =
                    (code(&name_of(&it.group)), signed_bytes(it.allocated.by().unwrap_or(0)));
                let _ = writeln!(text, "| {name} | {a} | {b} | {by} |");
            }
        }
    }
    if is_equal(comparison) {
        text += NOTHING;
    }
    text
}

/// Text of a file as it stands in a table's cell of Markdown: nothing of it is read as more than text.
fn code(text: &str) -> String {
    let text = plain(text).replace('|', "\\|");
    let longest = text.split(|c| c != '`').map(str::len).max().unwrap_or(0);
    let fence = "`".repeat(longest + 1);
    let space = if text.contains('`') { " " } else { "" };
    format!("{fence}{space}{text}{space}{fence}")
}

/// What is said of files that hold the same.
const NOTHING: &str = "\nnothing differs\n";

fn is_equal(comparison: &Comparison) -> bool {
    let same = |change: &Change| change.a == change.b;
    let device = |it: &DeviceComparison| {
        figures(it).iter().all(|(_, change)| same(change))
            && it.segment_sizes.is_empty()
            && it.live.is_empty()
            && it.at_peak.as_ref().is_none_or(Vec::is_empty)
    };
    comparison.settings.is_empty() && comparison.devices.iter().all(device)
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
    if is_equal(comparison) {
        text += NOTHING;
    }
    text
}

/// The figures of a device that are compared.
fn figures(device: &DeviceComparison) -> [(&'static str, Change); 5] {
    [
        ("allocated peak", device.allocated_peak),
        ("reserved peak", device.reserved_peak),
        ("requested", device.requested),
        ("allocated", device.allocated),
        ("reserved", device.reserved),
    ]
}

/// A figure in words: before, after, the change and its share.
struct Shown {
    a: String,
    b: String,
    by: String,
    share: String,
}

impl Shown {
    fn of(change: Change) -> Self {
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
        Self { a: shown(change.a), b: shown(change.b), by, share }
    }
}

fn describe_device(text: &mut String, device: &DeviceComparison, top: usize) {
    let _ = writeln!(text, "\n{}", format!("device {}", device.device).bold());
    for (side, history) in ["a", "b"].into_iter().zip(device.histories) {
        if history == HistoryKind::Partial {
            let _ = writeln!(text, "  the history of {side} does not go back to the beginning");
        }
    }
    let _ = writeln!(text, "  {:<16}{:>13}{:>13}{:>14}", "", "a", "b", "change");
    for (name, change) in figures(device) {
        let Shown { a, b, by, share } = Shown::of(change);
        let line = format!("  {name:<16}{a:>13}{b:>13}{by:>14}{share}");
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
        let name = name_of(&it.group);
        let by = signed_bytes(it.allocated.by().unwrap_or(0));
        let (a, b) = (it.count.a.unwrap_or(0), it.count.b.unwrap_or(0));
        let blocks = match counted(b, "block") {
            blocks if a == b => format!("{blocks}, as before"),
            blocks => format!("{} → {blocks}", grouped(a)),
        };
        let _ = writeln!(text, "  {by:>14}  {blocks}  {name}");
    }
    if groups.len() > top {
        let more = grouped(groups.len() - top);
        let _ = writeln!(text, "  {:>14}  {more} more: --top {}", "", groups.len());
    }
}

fn name_of(group: &Group) -> String {
    match group {
        Group::CallSite(Some(site)) => plain(site).into_owned(),
        Group::CallSite(None) => "no call site".to_owned(),
        Group::Size(size) => format!("allocations of {} each", Bytes(*size)),
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
    fn text_of_files_is_only_text_in_a_table() {
        for (text, shown) in [
            ("train.py:3 f", "`train.py:3 f`"),
            ("a|b", "`a\\|b`"),
            ("a `b` ``c", "``` a `b` ``c ```"),
            ("a\nb", "`a\\u{a}b`"),
        ] {
            assert_eq!(code(text), shown);
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
