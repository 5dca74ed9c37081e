//! What every allocation of a history is for, and where its iterations begin.
//!
//! In:  a device, its lifetimes and levels.
//! Out: [`HistoryPurposes`], for whoever shows all allocations; the report itself names those of the peak.

use super::growth::Grown;
use super::lines::Lines;
use super::moments::{live_after, reserved_peak};
use super::purpose::{Purpose, Purposes};
use crate::device_view::DeviceView;
use crate::levels::Levels;
use crate::lifetimes::Lifetimes;

/// The purposes of all allocations of a history, and its iterations.
#[derive(Clone, Debug, Default)]
pub struct HistoryPurposes {
    /// First entries of iterations, in order; empty if none were found.
    pub iterations: Vec<usize>,
    /// What each allocation is for, in the order of the lifetimes.
    pub purposes: Vec<Purpose>,
}

impl HistoryPurposes {
    /// Looks at one device.
    #[must_use]
    pub fn of(device: &DeviceView<'_>, lifetimes: &Lifetimes, levels: &Levels) -> Self {
        let live = live_after(lifetimes.iter(), device.entries.len());
        let (peak, _) = reserved_peak(device, levels, &live);
        let mut lines = Lines::new(&device.file.stacks);
        let grown = Grown::of(device, lifetimes, levels, &live, peak, &mut lines);
        let purposes = Purposes::new(device, &grown);
        let loops = grown.iterations.as_ref().map_or(&[][..], |it| &it.ranges);
        Self {
            iterations: loops.iter().map(|it| it.start).collect(),
            purposes: lifetimes
                .iter()
                .enumerate()
                .map(|(row, it)| purposes.of(row, &it).0)
                .collect(),
        }
    }
}
