//! Blocks in their owners' hands: what an owner has, and how a block is known again by it.

use tonnage_device::Device;
use tonnage_events::{Address, BlockEvent, DeviceId, Event, SplitChange, StackId, StreamId};

use crate::block::BlockId;
use crate::engine::Engine;
use crate::error::FreeError;
use crate::history::Caller;
use crate::request::Request;

/// A block in its owner's hands.
///
/// Goes back with [`Engine::free`]. A copy that is freed twice is an error, even if the memory was
/// handed out again in between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// Where it begins.
    pub address: Address,
    /// Bytes that may be used.
    pub size: u64,
    /// Bytes that were asked for.
    pub requested: u64,
    /// The stream it was allocated on.
    pub stream: StreamId,
    /// The device it lies on.
    pub device: DeviceId,
    pub(crate) block: BlockId,
    /// Tells it from others that had the same block before or after.
    serial: u32,
}

impl<D: Device> Engine<D> {
    /// Writes the request into the block that serves it.
    #[inline]
    pub(crate) fn give_to_owner(
        &mut self,
        id: BlockId,
        request: &Request,
        split: SplitChange,
        stack: Option<StackId>,
    ) -> Allocation {
        let block = &mut self.blocks[id];
        block.allocated = true;
        block.requested = request.bytes;
        block.stack = stack;
        block.serial = block.serial.wrapping_add(1);
        let allocation = Allocation {
            address: block.address,
            size: block.size,
            requested: block.requested,
            stream: block.stream,
            device: self.device.id(),
            block: id,
            serial: block.serial,
        };
        if let Some(live) = &mut self.live {
            live.insert(block.address, id);
        }
        let event = Event::Alloc(BlockEvent { split, ..self.block_event(id) });
        self.emit(&event, stack);
        allocation
    }

    /// Whether the owner of the allocation still has its block.
    #[inline]
    pub(crate) fn is_owned(&self, allocation: &Allocation) -> bool {
        self.blocks.get(allocation.block).is_some_and(|block| {
            block.allocated
                && block.serial == allocation.serial
                && block.address == allocation.address
        })
    }

    /// The live block that begins at `address`.
    pub(crate) fn live_at(&mut self, address: Address) -> Option<BlockId> {
        let blocks = &self.blocks;
        let live = self.live.get_or_insert_with(|| {
            let live = blocks.iter().filter(|(_, block)| block.allocated);
            live.map(|(id, block)| (block.address, id)).collect()
        });
        live.get(&address).copied()
    }

    pub(crate) fn free_live(
        &mut self,
        address: Address,
        id: BlockId,
        caller: Caller,
    ) -> Result<(), FreeError> {
        if let Some(live) = &mut self.live {
            live.remove(&address);
        }
        let result = self.give_back(id, caller);
        self.debug_walk("free");
        result.map_err(FreeError::Device)
    }

    pub(crate) fn record_use(&mut self, id: BlockId, stream: StreamId) {
        let capturing = self.is_captured();
        let block = &mut self.blocks[id];
        if stream == block.stream {
            return;
        }
        let foreign = block.foreign_mut();
        if !foreign.streams.contains(&stream) {
            foreign.streams.push(stream);
        }
        if capturing && !foreign.while_capturing.contains(&stream) {
            foreign.while_capturing.push(stream);
        }
    }
}
