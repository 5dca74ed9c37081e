//! The bytes of the device, where a file tells them.
//!
//! In:  a device, its levels.
//! Out: the total, a few MiB too large at most; none where nothing tells it.
//!
//! PyTorch writes no total. But an expandable segment reserves addresses for an eighth more than the device has, unless
//! settings say otherwise, and the driver lays such ranges one behind the other: the least distance of two is 9/8 of the
//! total, rounded up to what the driver aligns ranges to ([`told_total`]). Where ranges begin is known only if the history
//! has their first pages.

use tonnage_replay::recording::told_total;

use crate::device_view::DeviceView;
use crate::levels::Levels;

pub(super) fn total_of(device: &DeviceView<'_>, levels: &Levels) -> Option<u64> {
    if levels.start.reserved > 0 {
        return None;
    }
    told_total(device.file, device.device.0 as usize)
}
