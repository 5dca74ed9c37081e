//! Pending blocks taken back by someone who knows that nothing uses them.
//!
//! In: a freed block that waits for other streams. Out: the block in its pool, as if its events had been
//! found complete. Who replays a history knows when that was; the events do not.

use tonnage_device::{Device, DeviceError};
use tonnage_events::Address;

use crate::engine::Engine;

impl<D: Device> Engine<D> {
    /// Takes back the pending block that begins at `address`, whatever its events say, and says whether
    /// there was one. No stream may use it any more.
    ///
    /// # Errors
    ///
    /// If the device fails to destroy an event; the block is taken back nevertheless.
    pub fn complete_pending(&mut self, address: Address) -> Result<bool, DeviceError> {
        let places = self.pending.places_of(address);
        let mut result = Ok(!places.is_empty());
        for place in places {
            if let Err(error) = self.event_complete(place) {
                result = Err(error);
            }
        }
        self.debug_walk("complete_pending");
        result
    }
}

#[cfg(test)]
mod tests {
    use tonnage_device::Dry;
    use tonnage_events::StreamId;

    use crate::{Config, Engine};

    #[test]
    fn a_pending_block_is_taken_back_before_its_events_complete() {
        let mut device = Dry::new(1 << 30);
        device.hold_events();
        let mut engine = Engine::new(device, Config::default());
        let blocks = [0; 3].map(|_| engine.allocate(1000, StreamId(0)).unwrap());
        for block in &blocks {
            engine.record_stream(block.address, StreamId(1)).unwrap();
            engine.record_stream(block.address, StreamId(2)).unwrap();
            engine.free(block).unwrap();
        }
        assert_eq!(engine.stats().active.all.current, 3);
        assert!(engine.complete_pending(blocks[1].address).unwrap());
        assert!(!engine.complete_pending(blocks[1].address).unwrap());
        assert_eq!(engine.stats().active.all.current, 2);
        engine.empty_cache().unwrap();
        assert_eq!(engine.stats().memory_reserved(), 0);
    }
}
