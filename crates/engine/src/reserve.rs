//! How many addresses a new expandable segment reserves.

use tonnage_device::Device;
use tonnage_events::StreamId;

use crate::engine::Engine;

impl<D: Device> Engine<D> {
    /// Tags a stream with a class, so that `expandable_segments_reserve_by_class` sizes the segments it gets from
    /// now on; an empty class takes the tag away.
    pub fn set_stream_reserve_class(&mut self, stream: StreamId, class: &str) {
        if class.is_empty() {
            self.reserve_classes.remove(&stream);
        } else {
            self.reserve_classes.insert(stream, class.to_owned());
        }
    }

    /// Bytes that a range for a stream reserves, in whole pages; none if there is no such range.
    pub(crate) fn range_size(&self, stream: StreamId, page: u64) -> Option<u64> {
        let total = self.device.total();
        let of_class = self.reserve_classes.get(&stream).and_then(|class| {
            self.config.expandable_segments_reserve_by_class().get(class).copied()
        });
        let reserve = of_class.or_else(|| self.config.expandable_segments_reserve());
        let most = reserve.map_or(u64::MAX, |reserve| reserve.bytes(total));
        self.policy.range_size(total, most, page)
    }
}
