//! The way back: from the owner, over the streams that may still use a block, to its pool.

use tonnage_device::{Device, DeviceError};
use tonnage_events::{BlockEvent, Event, SplitChange, StackId};

use crate::block::BlockId;
use crate::engine::Engine;
use crate::history::{Caller, Context};
use crate::pending::{Place, Waiting};
use crate::pool::PoolSet;

impl<D: Device> Engine<D> {
    /// Takes a block, which is live no more, out of its owner's hands.
    pub(crate) fn give_back(&mut self, id: BlockId, caller: Caller) -> Result<(), DeviceError> {
        if !self.was_freed_last(id) {
            self.settle();
        }
        let stack = self.ledger.stack(Context::All, caller).or(self.blocks[id].stack);
        self.blocks[id].allocated = false;
        let event = Event::FreeRequested(self.block_event(id));
        self.emit(&event, stack);
        if !self.blocks[id].is_used_elsewhere() {
            let before = self.block_event(id);
            match self.leave_unmerged(id) {
                Some(split) => {
                    let event = Event::FreeCompleted(BlockEvent { split, ..before });
                    self.emit(&event, stack);
                }
                None => self.complete_free(id, stack),
            }
            return Ok(());
        }
        self.settle();
        if self.capturing() {
            self.pending.deferred.push(id);
            return Ok(());
        }
        // Only blocks that are freed during a capture forget the streams recorded in it.
        self.blocks[id].foreign_mut().while_capturing.clear();
        let result = self.record_events(id);
        if result.is_err() {
            // Tried again before the next allocation.
            self.pending.deferred.push(id);
        }
        result
    }

    /// Puts a block that nothing uses back into its pool, merged with its neighbours.
    pub(crate) fn complete_free(&mut self, id: BlockId, stack: Option<StackId>) {
        self.settle();
        let before = self.block_event(id);
        let block = &mut self.blocks[id];
        let fixed = block.range.is_none();
        let neighbours = [block.prev, block.next];
        block.stack = None;
        block.used_until = self.store.marks.last();
        block.forget_foreign();
        let mut split = SplitChange::default();
        // The first neighbour's place in the pool becomes the whole's.
        let mut place = None;
        for neighbour in neighbours {
            let Some(neighbour) = self.mergeable(id, neighbour) else { continue };
            let other = &self.blocks[neighbour];
            split.count -= 1;
            split.bytes -= other.size.cast_signed();
            if place.is_none() && other.stream == before.stream {
                place = Some((other.size, other.rank));
            } else {
                self.take(neighbour);
            }
            self.absorb(id, neighbour);
        }
        if self.policy.moves_pages() {
            self.merge_all(id);
        }
        let block = &self.blocks[id];
        if block.is_split() {
            split.count += 1;
            split.bytes += block.size.cast_signed();
        }
        let pool = self.pools.half_mut(block.pool);
        match place {
            Some(old) => pool.replace(old, id, &mut self.blocks),
            None => pool.put(id, &mut self.blocks),
        }
        let split = if fixed { split } else { SplitChange::default() };
        self.emit(&Event::FreeCompleted(BlockEvent { split, ..before }), stack);
        if !fixed && self.policy.moves_pages() {
            self.send_pages_home(id, stack);
        }
    }

    /// Marks, on every foreign stream of the block, the end of what may use it.
    fn record_events(&mut self, id: BlockId) -> Result<(), DeviceError> {
        while let Some(&stream) = self.blocks[id].foreign().streams.last() {
            let event = self.device.record_event(stream)?;
            let address = self.blocks[id].address;
            self.pending.push(stream, Waiting { event, block: id, address });
            let foreign = self.blocks[id].foreign_mut();
            foreign.streams.pop();
            foreign.events += 1;
        }
        Ok(())
    }

    /// Records the events that a capture had put off. Streams that were recorded during it are
    /// forgotten: the captured work runs later, under its own order.
    pub(crate) fn settle_deferred(&mut self) -> Result<(), DeviceError> {
        let mut deferred = std::mem::take(&mut self.pending.deferred).into_iter();
        while let Some(id) = deferred.next() {
            let foreign = self.blocks[id].foreign_mut();
            let forgotten = std::mem::take(&mut foreign.while_capturing);
            foreign.streams.retain(|stream| !forgotten.contains(stream));
            if let Err(error) = self.record_events(id) {
                self.pending.deferred.push(id);
                self.pending.deferred.extend(deferred);
                return Err(error);
            }
            if self.blocks[id].foreign().events == 0 {
                let stack = self.blocks[id].stack;
                self.complete_free(id, stack);
            }
        }
        Ok(())
    }

    /// Takes back the blocks whose events are all complete. Of each stream only the oldest events
    /// are asked, up to the first that is not.
    pub(crate) fn collect_complete(&mut self) -> Result<(), DeviceError> {
        let mut at = self.pending.first();
        while let Some((place, oldest)) = at {
            at = if self.device.query_event(oldest.event)? {
                self.event_complete(place)?;
                self.pending.after(place)
            } else {
                self.pending.after_stream(place.stream)
            };
        }
        Ok(())
    }

    /// Waits for every event, or for those of one private pool's blocks, and takes back the blocks.
    pub(crate) fn synchronize_events(&mut self, of: Option<PoolSet>) -> Result<(), DeviceError> {
        self.emit(&Event::Synchronize, None);
        self.settle_deferred()?;
        let mut at = self.pending.first();
        while let Some((place, waiting)) = at {
            if of.is_none_or(|set| self.blocks[waiting.block].pool.set == set) {
                self.device.wait_event(waiting.event)?;
                self.event_complete(place)?;
            }
            at = self.pending.after(place);
        }
        Ok(())
    }

    pub(crate) fn event_complete(&mut self, place: Place) -> Result<(), DeviceError> {
        let Some(done) = self.pending.remove(place) else { return Ok(()) };
        self.blocks[done.block].foreign_mut().events -= 1;
        if !self.blocks[done.block].is_used_elsewhere() {
            let stack = self.blocks[done.block].stack;
            self.complete_free(done.block, stack);
        }
        // Last, so that a failure here loses nothing but the event's handle.
        self.device.destroy_event(done.event)
    }
}
