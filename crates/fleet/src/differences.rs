//! In what ranks differ.
//!
//! In:  the middle of a group and another group or rank; of the largest, their files.
//! Out: [`Difference`]s, each with its bytes or words; and for the first ranks what `tonnage diff` says of them and the middle
//!      rank of their group, for which both files are read once more.

use std::panic::{AssertUnwindSafe, catch_unwind};

use serde::Serialize;
use tonnage_analysis::Comparison;
use tonnage_events::Bytes;
use tonnage_replay::Until;
use tonnage_snapshot::SnapshotFile;

use crate::answer::Answer;
use crate::look::{LookOptions, read_whole};
use crate::profile::{Family, Name};
use crate::source::Found;

/// How many ranks have their files compared: each takes as long as two more files.
const COMPARED: usize = 8;

/// How many changes of each list a comparison keeps.
const KEPT: usize = 8;

/// Something that differs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// `reserved`, `live`, `waste`, `growth`, `purpose`, `phase`, `site`, `settings` or `history`.
    pub kind: &'static str,
    /// Which of the kind: of waste and growth their kinds, a purpose, a phase, a line; empty if there is one alone.
    pub name: String,
    /// The middle of the group; of settings and histories none.
    pub usual: Option<u64>,
    /// Here.
    pub here: Option<u64>,
    /// Words instead of bytes, for settings and histories: those of the group.
    pub usual_text: Option<String>,
    /// Here.
    pub here_text: Option<String>,
}

impl Difference {
    pub(crate) fn figure(kind: &'static str, name: &str, usual: u64, here: u64) -> Self {
        Self {
            kind,
            name: name.to_owned(),
            usual: Some(usual),
            here: Some(here),
            usual_text: None,
            here_text: None,
        }
    }

    pub(crate) fn held((family, name): &Name, usual: u64, here: u64) -> Self {
        let kind = match family {
            Family::Purpose => "purpose",
            Family::Phase => "phase",
            Family::Site => "site",
        };
        Self::figure(kind, name, usual, here)
    }

    pub(crate) fn text(kind: &'static str, usual: &str, here: &str) -> Self {
        Self {
            kind,
            name: String::new(),
            usual: None,
            here: None,
            usual_text: Some(usual.to_owned()),
            here_text: Some(here.to_owned()),
        }
    }

    /// Bytes between the two.
    pub(crate) fn size(&self) -> u64 {
        self.usual.unwrap_or(0).abs_diff(self.here.unwrap_or(0))
    }

    /// What says where comes before what says what for, and that before how much; each the largest first.
    pub(crate) fn sort(differences: &mut [Self]) {
        let order = |it: &Self| match it.kind {
            "site" | "growth" | "waste" => 0,
            "purpose" | "phase" => 1,
            _ => 2,
        };
        differences.sort_by(|a, b| {
            (order(a), b.size(), a.kind, &a.name).cmp(&(order(b), a.size(), b.kind, &b.name))
        });
    }

    /// In a few words: how much more or less, and of what.
    #[must_use]
    pub fn words(&self) -> String {
        let what = match (self.kind, self.name.as_str()) {
            ("reserved", _) => "reserved".to_owned(),
            ("live", _) => "live at the peak".to_owned(),
            ("waste", name) => format!("of no use: {name}"),
            ("growth", name) => format!("growth: {name}"),
            ("site", name) => name.to_owned(),
            (kind, name) => format!("{name} ({kind})"),
        };
        match (self.usual, self.here) {
            (Some(usual), Some(here)) => {
                let sign = if here < usual { "-" } else { "+" };
                format!("{sign}{} {what}", Bytes(usual.abs_diff(here)))
            }
            _ => {
                let shown = |text: &Option<String>| match text.as_deref() {
                    None | Some("") => "the defaults".to_owned(),
                    Some(text) => text.to_owned(),
                };
                let (here, usual) = (shown(&self.here_text), shown(&self.usual_text));
                format!("{}: {here} instead of {usual}", self.kind)
            }
        }
    }
}

/// Adds to the first outliers what `tonnage diff` says of the middle rank of their group and them, until the work is to end. A
/// file that is gone meanwhile has no diff, nor has one that is of no use to it.
pub fn compare_outliers(
    answer: &mut Answer,
    files: &[Found],
    options: &LookOptions,
    until: &Until,
) {
    let open = |address: &str| -> Option<SnapshotFile> {
        let file = files.iter().find(|it| it.address == address)?;
        caught(|| read_whole(file, options, until).1.ok())
    };
    let mut middle: Option<(usize, Option<SnapshotFile>)> = None;
    let mut order: Vec<usize> = (0..answer.outliers.len().min(COMPARED)).collect();
    // Each group's middle is read once.
    order.sort_by_key(|&it| answer.outliers[it].group);
    for place in order {
        if until.is_over() {
            return;
        }
        let group = answer.outliers[place].group;
        if middle.as_ref().is_none_or(|it| it.0 != group) {
            let address = answer.groups[group].middle.opened();
            middle = Some((group, open(address)));
        }
        let Some((_, Some(usual))) = &middle else { continue };
        let outlier = &mut answer.outliers[place];
        let Some(own) = open(outlier.whose.opened()) else { continue };
        outlier.diff = caught(|| {
            let mut comparison = Comparison::of(usual, &own);
            for device in &mut comparison.devices {
                device.segment_sizes.truncate(KEPT);
                device.live.truncate(KEPT);
                if let Some(at_peak) = &mut device.at_peak {
                    at_peak.truncate(KEPT);
                }
            }
            serde_json::to_value(&comparison).ok()
        });
    }
}

/// What work gives; nothing where it panics: a mistake with one file is no reason to lose what is said of all.
fn caught<T>(work: impl FnOnce() -> Option<T>) -> Option<T> {
    catch_unwind(AssertUnwindSafe(work)).ok().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistake_with_one_file_is_no_end() {
        assert_eq!(caught(|| Some(1)), Some(1));
        assert_eq!(caught(|| [1].get(1).map(|_| panic!())), None::<u8>);
        assert_eq!(caught(|| -> Option<u8> { panic!("a mistake") }), None);
    }
}
