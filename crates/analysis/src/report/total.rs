//! The bytes of the device, where a file tells them.
//!
//! In:  a device, its levels.
//! Out: the total, a few MiB too large at most; none where nothing tells it.
//!
//! PyTorch writes no total. But an expandable segment reserves addresses for an eighth more than the device has, and
//! the driver lays such ranges one behind the other: the least distance of two is 9/8 of the total, rounded up to what
//! the driver aligns ranges to. Where ranges begin is known only if the history has their first pages.

use tonnage_events::Action;

use crate::device_view::DeviceView;
use crate::levels::Levels;

pub(super) fn total_of(device: &DeviceView<'_>, levels: &Levels) -> Option<u64> {
    if levels.start.reserved > 0 {
        return None;
    }
    let maps = device.entries.iter().filter(|entry| entry.action == Action::SegmentMap);
    let mut pages: Vec<u64> = maps.map(|entry| entry.address.0).collect();
    pages.sort_unstable();
    // Pages that lie farther apart than all memory there ever was are of two ranges.
    let reserved = levels.peak(|level| level.reserved)?.bytes;
    let mut begin = *pages.first()?;
    let mut least = None::<u64>;
    for pair in pages.windows(2).filter(|pair| pair[1] - pair[0] > reserved) {
        let apart = pair[1] - std::mem::replace(&mut begin, pair[1]);
        least = Some(least.map_or(apart, |least| least.min(apart)));
    }
    least.map(|apart| apart / 9 * 8)
}
