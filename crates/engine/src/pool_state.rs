//! States of a private pool that are gone back to, as graph trees do: before a graph is captured behind another, its pool
//! is put into the state in which that one left it.
//!
//! In:  a pool, earlier or now. Out: [`PoolState`], and the pool as it was, in the same places.
//!
//! As in PyTorch everything in the pool is freed, every block of the state is handed out in its place, and those that
//! were free in it are freed again: so the figures and the history tell.

use thiserror::Error;
use tonnage_device::{Device, DeviceError};
use tonnage_events::{Address, PoolId, StackId, StreamId};

use crate::allocate::Found;
use crate::block::BlockId;
use crate::engine::Engine;
use crate::history::Context;
use crate::owner::Allocation;
use crate::pool::PoolRef;
use crate::request::Request;

/// Where the blocks of a private pool lie, and which of them are in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolState {
    pool: PoolId,
    /// The blocks of each segment, in order.
    segments: Vec<Vec<Piece>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Piece {
    address: Address,
    size: u64,
    stream: StreamId,
    pool: PoolRef,
    in_use: bool,
}

/// What going back to a state changed.
#[derive(Clone, Debug, Default)]
pub struct PoolChange {
    /// Blocks that were in use, and are their owners' no more.
    pub freed: Vec<Address>,
    /// Blocks that are in use now. An address may be among both.
    pub handed_out: Vec<Allocation>,
}

/// A state that a pool cannot go back to.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PoolStateError {
    /// There is no such pool.
    #[error("there is no private pool {0}")]
    NoPool(PoolId),
    /// Something still uses a block.
    #[error(
        "the block at {0} is recorded on other streams: wait for them before the pool goes back to a state"
    )]
    InUse(Address),
    /// The memory is not where it was.
    #[error("the pool has no free memory of {1} bytes at {0} any more")]
    Gone(Address, u64),
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

impl<D: Device> Engine<D> {
    /// The state of a private pool now; an empty one if there is no such pool.
    pub fn pool_state(&mut self, pool: PoolId) -> PoolState {
        self.settle();
        let set = self.pools.set_of(pool);
        let of_pool = |id: BlockId| Some(self.blocks[id].pool.set) == set;
        let is_first = |id: BlockId| {
            let before = self.blocks[id].prev;
            self.blocks[id].mapped && !before.is_some_and(|it| self.blocks[it].mapped)
        };
        let firsts = self.blocks.iter().map(|it| it.0).filter(|&id| of_pool(id) && is_first(id));
        let mut segments: Vec<Vec<Piece>> = firsts.map(|first| self.pieces_from(first)).collect();
        segments.sort_unstable_by_key(|pieces| pieces.first().map(|it| it.address));
        PoolState { pool, segments }
    }

    fn pieces_from(&self, first: BlockId) -> Vec<Piece> {
        let mapped = |id: &BlockId| self.blocks[*id].mapped;
        let pieces = std::iter::successors(Some(first), |&id| self.blocks[id].next.filter(mapped));
        pieces
            .map(|id| {
                let block = &self.blocks[id];
                let in_use = block.allocated || block.is_used_elsewhere();
                Piece {
                    address: block.address,
                    size: block.size,
                    stream: block.stream,
                    pool: block.pool,
                    in_use,
                }
            })
            .collect()
    }

    /// Puts a private pool into a state that it was in before.
    ///
    /// # Errors
    ///
    /// If there is no such pool, if other streams may still use its blocks, or if memory of the state is gone. Of a pool
    /// that is not as it must be, blocks may have been freed by then.
    pub fn set_pool_state(&mut self, state: &PoolState) -> Result<PoolChange, PoolStateError> {
        self.settle();
        let set = self.pools.set_of(state.pool).ok_or(PoolStateError::NoPool(state.pool))?;
        let mut live: Vec<BlockId> = self.live_blocks(set).collect();
        live.sort_unstable_by_key(|&id| self.blocks[id].address);
        if let Some(&id) = live.iter().find(|&&id| self.blocks[id].is_used_elsewhere()) {
            return Err(PoolStateError::InUse(self.blocks[id].address));
        }
        let stack = self.ledger.history.as_mut().and_then(|it| it.foreign_stack(Context::State));
        let mut change = PoolChange::default();
        for id in live {
            change.freed.push(self.blocks[id].address);
            self.take_from_owner(id)?;
        }
        self.settle();
        for pieces in &state.segments {
            self.restore_pieces(pieces, stack, &mut change)?;
        }
        self.debug_walk("set_pool_state");
        Ok(change)
    }

    fn take_from_owner(&mut self, id: BlockId) -> Result<(), DeviceError> {
        let address = self.blocks[id].address;
        if let Some(live) = &mut self.live {
            live.remove(&address);
        }
        self.give_back(id, std::panic::Location::caller())
    }

    fn restore_pieces(
        &mut self,
        pieces: &[Piece],
        stack: Option<StackId>,
        change: &mut PoolChange,
    ) -> Result<(), PoolStateError> {
        let mut made = Vec::with_capacity(pieces.len());
        for (number, piece) in pieces.iter().enumerate() {
            let rest = number + 1 < pieces.len();
            let id = self.free_at(piece, rest)?;
            let request = Request {
                bytes: piece.size,
                size: piece.size,
                stream: piece.stream,
                pool: piece.pool,
                segment_size: piece.size,
                expandable: self.blocks[id].range.is_some(),
            };
            made.push(self.hand_out_cut(Found::Cached(id), &request, rest, stack));
        }
        for (allocation, piece) in made.into_iter().zip(pieces) {
            if piece.in_use {
                change.handed_out.push(allocation);
            } else {
                self.take_from_owner(allocation.block)?;
                self.settle();
            }
        }
        Ok(())
    }

    /// The free block where a piece was: as large, or larger if there is a rest.
    fn free_at(&self, piece: &Piece, rest: bool) -> Result<BlockId, PoolStateError> {
        let free = self.pools.half(piece.pool).free();
        let found = free.iter().find(|&id| self.blocks[id].address == piece.address);
        let fits = |id: &BlockId| {
            let size = self.blocks[*id].size;
            if rest { size > piece.size } else { size == piece.size }
        };
        found.filter(fits).ok_or(PoolStateError::Gone(piece.address, piece.size))
    }
}
