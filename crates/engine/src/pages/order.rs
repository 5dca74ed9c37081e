//! Which streams wait for which.
//!
//! # Note \[Order between streams\]
//!
//! Under PyTorch's policy a free block serves only its own stream, whose order is enough. Under `pages` free blocks of
//! several streams are merged and lent. A free block then has a *fence*: the streams besides its own that
//! have used parts of it. Whoever takes it on a stream makes that stream wait for an event on each of
//! the others, recorded now: after everything that they have queued, and so after what used the block. The caller does not
//! wait. During a capture no events can be recorded, and only blocks of the stream itself are taken.

use tonnage_device::{Device, DeviceError};
use tonnage_events::StreamId;

use crate::block::{Block, BlockId};
use crate::engine::Engine;

impl<D: Device> Engine<D> {
    /// Lets whoever takes `id` come after those who have used its neighbour.
    #[cold]
    pub(crate) fn join_fences(&mut self, id: BlockId, neighbour: BlockId) {
        // An unmapped block has no memory that anyone has used.
        if !self.blocks[neighbour].mapped {
            return;
        }
        let users = users(&self.blocks[neighbour]);
        self.add_fence(id, &users);
    }

    /// Lets whoever takes `id` come after these streams.
    pub(crate) fn add_fence(&mut self, id: BlockId, users: &[StreamId]) {
        let block = &mut self.blocks[id];
        for &user in users {
            if user != block.stream && !block.foreign().fence.contains(&user) {
                block.foreign_mut().fence.push(user);
            }
        }
    }

    /// The streams that have used a free block.
    pub(crate) fn users_of(&self, id: BlockId) -> Vec<StreamId> {
        users(&self.blocks[id])
    }

    /// Whether a request on `stream` may take what these streams have used: at once, or once the stream waits for
    /// them, which it does from now on. Not during a capture.
    pub(crate) fn order_after(
        &mut self,
        stream: StreamId,
        users: &[StreamId],
    ) -> Result<bool, DeviceError> {
        let mut others = users.iter().copied().filter(|&user| user != stream).peekable();
        if others.peek().is_some() && self.capturing() {
            return Ok(false);
        }
        others.try_for_each(|user| self.wait_for(stream, user))?;
        Ok(true)
    }

    /// Makes what is queued on `stream` from now on wait for what is queued on another by now.
    fn wait_for(&mut self, stream: StreamId, other: StreamId) -> Result<(), DeviceError> {
        let event = self.device.record_event(other)?;
        let waits = self.device.wait_on(stream, event);
        let forgotten = self.device.destroy_event(event);
        waits.and(forgotten)
    }

    /// Whether a request may take a free block of its own stream, in its pool, now: see
    /// [`order_after`](Self::order_after).
    #[inline]
    pub(crate) fn may_take(&mut self, id: BlockId, stream: StreamId) -> Result<bool, DeviceError> {
        if self.blocks[id].is_unfenced() {
            return Ok(true);
        }
        self.order_fenced(id, stream)
    }

    #[cold]
    fn order_fenced(&mut self, id: BlockId, stream: StreamId) -> Result<bool, DeviceError> {
        let users = self.users_of(id);
        let ordered = self.order_after(stream, &users)?;
        if ordered {
            self.blocks[id].forget_foreign();
        }
        Ok(ordered)
    }
}

fn users(block: &Block) -> Vec<StreamId> {
    let mut users = block.foreign().fence.clone();
    users.push(block.stream);
    users
}
