//! What every allocation of a history is for, and where its iterations begin.
//!
//! In:  a device, its lifetimes and levels.
//! Out: [`Told`], for whoever shows all allocations; the report itself names those of the peak.

use super::growth::Grown;
use super::lines::Lines;
use super::purpose::{Purpose, Purposes};
use super::{live_after, reserved_peak};
use crate::device_view::DeviceView;
use crate::levels::Levels;
use crate::lifetimes::Lifetimes;

/// What is concluded of a whole history.
#[derive(Clone, Debug, Default)]
pub struct Told {
    /// First entries of iterations, in order; empty if none were found.
    pub iterations: Vec<usize>,
    /// What each allocation is for, in the order of the lifetimes.
    pub purposes: Vec<Purpose>,
}

impl Told {
    /// Looks at one device.
    #[must_use]
    pub fn of(device: &DeviceView<'_>, lifetimes: &Lifetimes, levels: &Levels) -> Self {
        let live = live_after(lifetimes.iter(), device.entries.len());
        let (peak, _) = reserved_peak(device, levels, &live);
        let mut lines = Lines::new(&device.file.stacks);
        let grown = Grown::of(device, lifetimes, levels, &live, peak, &mut lines);
        let purposes = Purposes::new(device, &grown);
        let told = lifetimes.iter().enumerate().map(|(row, it)| purposes.of(row, &it).0);
        let loops = grown.iterations.as_ref().map_or(&[][..], |it| &it.ranges);
        Self { purposes: told.collect(), iterations: loops.iter().map(|it| it.start).collect() }
    }
}
