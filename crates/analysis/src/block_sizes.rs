//! How large the blocks were that served a history's requests.
//!
//! In:  lifetimes with requested sizes, the entries, the blocks at the end.
//! Out: the size of each one's block.
//!
//! A request is rounded, and what a free block has beyond that is split off and stays free: in the
//! small pool and in expandable segments always, in large segments only if it is over 1 MiB and the
//! request below `max_split_size`. Free blocks that touch are one, and none in a large segment is as
//! small as 1 MiB. So the bytes between the rounded end of a block and the next active block, or the
//! end of the segment, tell whether they belong to it.
//!
//! A block that is older than the history may have a free neighbour that was there before the history
//! began. Where that one is used later it tells where the block ends; where it is not, nothing does,
//! and the block counts with its rounded size.

use std::collections::BTreeMap;

use tonnage_engine::Config;
use tonnage_events::{Action, Address};
use tonnage_replay::recording::fixed_before;

use crate::device_view::DeviceView;
use crate::lifetimes::{Lifetimes, Moment};

/// Remainders up to this stay with a block of a large segment; rounded requests up to this are
/// served by the small pool.
const SMALL_SIZE: u64 = 1 << 20;

/// Sets the size of every block. `measured` are rows whose size is known.
pub(crate) fn fill(lifetimes: &mut Lifetimes, device: &DeviceView<'_>, measured: &[(usize, u64)]) {
    let config = device.sizing();
    for row in 0..lifetimes.len() {
        let requested = lifetimes.get(row).requested;
        lifetimes.size[row] = config.rounded_size(requested).unwrap_or(requested);
    }
    if !config.expandable_segments() {
        add_remainders(lifetimes, device, &config);
    }
    for &(row, size) in measured {
        lifetimes.size[row] = size;
    }
}

/// What changes the neighbourhood of large blocks, besides segments.
#[derive(Clone, Copy)]
enum Step {
    Begins(usize),
    Ends(usize),
}

fn add_remainders(lifetimes: &mut Lifetimes, device: &DeviceView<'_>, config: &Config) {
    let mut places = Places::at_start(device);
    let mut steps = Vec::new();
    let mut first = Vec::new();
    for row in (0..lifetimes.len()).filter(|&row| lifetimes.size[row] > SMALL_SIZE) {
        let it = lifetimes.get(row);
        match it.allocated {
            Moment::Event(event) => steps.push((event, Step::Begins(row))),
            _ => {
                places.active.insert(it.address, row);
                first.push(row);
            }
        }
        if let Moment::Event(event) = it.free_completed {
            steps.push((event, Step::Ends(row)));
        }
    }
    // At an entry where one block takes the place of another, the old one ends first.
    steps.sort_by_key(|&(event, step)| (event, matches!(step, Step::Begins(_))));
    for row in first {
        places.extend(lifetimes, row, config);
    }
    let mut steps = steps.into_iter().peekable();
    for (event, entry) in device.entries.iter().enumerate() {
        match entry.action {
            Action::SegmentAlloc => places.obtained(entry.address, entry.size),
            Action::SegmentFree => drop(places.fixed.remove(&entry.address)),
            Action::Alloc | Action::FreeRequested | Action::FreeCompleted => {}
            _ => continue,
        }
        while let Some((_, step)) = steps.next_if(|&(at, _)| at == event) {
            match step {
                Step::Ends(row) => drop(places.active.remove(&lifetimes.get(row).address)),
                Step::Begins(row) => {
                    places.measure_below(lifetimes, row);
                    places.active.insert(lifetimes.get(row).address, row);
                    places.extend(lifetimes, row, config);
                }
            }
        }
    }
}

/// Where large blocks lie.
#[derive(Default)]
struct Places {
    /// Fixed segments: where each begins and ends.
    fixed: BTreeMap<Address, u64>,
    /// The rows of active large blocks, by where each begins.
    active: BTreeMap<Address, usize>,
}

impl Places {
    /// The fixed segments where the history begins.
    fn at_start(device: &DeviceView<'_>) -> Self {
        let mut places = Self::default();
        for segment in fixed_before(device.entries, device.segments.iter().copied()) {
            places.obtained(segment.address(), segment.size());
        }
        places
    }

    fn obtained(&mut self, address: Address, size: u64) {
        self.fixed.insert(address, address.0.saturating_add(size));
    }

    /// A block begins where the free block began that it was cut from: the active one below, if it is
    /// older than the history, reaches up to there.
    fn measure_below(&self, lifetimes: &mut Lifetimes, row: usize) {
        let address = lifetimes.get(row).address;
        let Some((_, &below)) = self.active.range(..address).next_back() else { return };
        let it = lifetimes.get(below);
        let Some(end) = it.address.0.checked_add(it.size) else { return };
        let segment = self.fixed.range(..=address).next_back();
        let inside = segment.is_some_and(|(&start, _)| start <= it.address);
        if inside && end < address.0 && address.0 - end <= SMALL_SIZE {
            lifetimes.size[below] = address.0 - it.address.0;
        }
    }

    /// Adds to a block that has just begun what was not split off.
    fn extend(&self, lifetimes: &mut Lifetimes, row: usize, config: &Config) {
        let it = lifetimes.get(row);
        let Some((_, &segment_end)) = self.fixed.range(..=it.address).next_back() else { return };
        let Some(end) = it.address.0.checked_add(it.size) else { return };
        let after = Address(it.address.0.saturating_add(1));
        let next = self.active.range(after..).next().map_or(u64::MAX, |(next, _)| next.0);
        let Some(remainder) = next.min(segment_end).checked_sub(end) else { return };
        if remainder <= SMALL_SIZE || it.size >= config.max_split_size() {
            lifetimes.size[row] = it.size + remainder;
        }
    }
}
