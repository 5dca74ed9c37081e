//! Stage 3: how many bytes there were of each kind, after every entry.
//!
//! In:  a device and its lifetimes.
//! Out: [`Levels`], and the [`Peak`] of any of them.

use tonnage_events::Action;

use crate::device_view::DeviceView;
use crate::lifetimes::{Lifetimes, Moment};

/// Bytes at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Level {
    /// What callers asked for, of active blocks.
    pub requested: u64,
    /// Blocks handed out, after rounding and including what could not be split off.
    pub allocated: u64,
    /// Allocated, and freed but still in use by a stream.
    pub active: u64,
    /// Obtained from the device.
    pub reserved: u64,
}

/// The largest value that a level took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peak {
    /// The value.
    pub bytes: u64,
    /// When it was first reached: before the first entry, if the history begins with it.
    pub moment: Moment,
}

/// The levels of a history.
#[derive(Clone, Debug, Default)]
pub struct Levels {
    /// Before the first entry.
    pub start: Level,
    after: Vec<Level>,
}

impl Levels {
    /// The levels of a device's history.
    #[must_use]
    pub fn of(device: &DeviceView<'_>, lifetimes: &Lifetimes) -> Self {
        let mut changes = vec![Change::default(); device.entries.len()];
        let mut sum = Change::default();
        for it in lifetimes.iter() {
            // Beyond the address space there are no blocks.
            let bytes = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
            let (requested, size) = (bytes(it.requested), bytes(it.size));
            let mut change = |moment: Moment, [by_requested, by_allocated, by_active]: [i64; 3]| {
                let place = match moment {
                    Moment::Before => &mut sum,
                    Moment::Event(event) => &mut changes[event],
                    Moment::After => return,
                };
                place.add([by_requested, by_allocated, by_active, 0]);
            };
            change(it.allocated, [requested, size, size]);
            change(it.free_requested, [0, -size, 0]);
            change(it.free_completed, [-requested, 0, -size]);
        }
        for (change, entry) in changes.iter_mut().zip(device.entries) {
            let size = i64::try_from(entry.size).unwrap_or(i64::MAX);
            match entry.action {
                Action::SegmentAlloc | Action::SegmentMap => change.add([0, 0, 0, size]),
                Action::SegmentFree | Action::SegmentUnmap => change.add([0, 0, 0, -size]),
                _ => {}
            }
        }
        // What is there at the end, less what was obtained on the way, was there at the beginning.
        let reserved =
            device.segments.iter().fold(0_u64, |sum, it| sum.saturating_add(it.total_size));
        let gained = changes.iter().fold(0_i64, |sum, it| sum.saturating_add(it.0[3]));
        sum.0[3] = i64::try_from(reserved).unwrap_or(i64::MAX).saturating_sub(gained).max(0);
        let start = sum.level();
        // A level takes as much room as a change: it goes where that was.
        let after = changes.into_iter().map(|change| {
            sum.add(change.0);
            sum.level()
        });
        Self { start, after: after.collect() }
    }

    /// The levels after each entry.
    #[must_use]
    pub fn after(&self) -> &[Level] {
        &self.after
    }

    /// The peak of one level within the history, its beginning included; none without a history.
    pub fn peak(&self, of: impl Fn(&Level) -> u64) -> Option<Peak> {
        if self.after.is_empty() {
            return None;
        }
        let mut peak = Peak { bytes: of(&self.start), moment: Moment::Before };
        for (event, level) in self.after.iter().enumerate() {
            if of(level) > peak.bytes {
                peak = Peak { bytes: of(level), moment: Moment::Event(event) };
            }
        }
        Some(peak)
    }
}

/// Requested, allocated, active, reserved; sums stop at the ends of the range, which only files
/// that contradict themselves reach.
#[derive(Clone, Copy, Debug, Default)]
struct Change([i64; 4]);

impl Change {
    fn add(&mut self, by: [i64; 4]) {
        for (place, by) in self.0.iter_mut().zip(by) {
            *place = place.saturating_add(by);
        }
    }

    fn level(self) -> Level {
        let [requested, allocated, active, reserved] =
            self.0.map(|bytes| u64::try_from(bytes).unwrap_or(0));
        Level { requested, allocated, active, reserved }
    }
}
