//! Tracks for slices that overlap.
//!
//! On one track slices must nest. Allocations do not: each goes to the lowest lane that is free, so
//! that there are as many lanes as slices at once, and no more.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::packets::Track;

/// The lanes of one kind of slice.
#[derive(Default)]
pub(super) struct Lanes {
    tracks: Vec<Track>,
    free: BinaryHeap<Reverse<usize>>,
}

/// A slice's place among the lanes.
#[derive(Clone, Copy)]
pub(super) struct Lane(usize);

impl Lanes {
    /// The lowest lane that is free; a new one has the track that `new` makes.
    pub(super) fn take<E>(
        &mut self,
        new: impl FnOnce() -> Result<Track, E>,
    ) -> Result<(Lane, Track), E> {
        let lane = match self.free.pop() {
            Some(Reverse(lane)) => lane,
            None => {
                self.tracks.push(new()?);
                self.tracks.len() - 1
            }
        };
        Ok((Lane(lane), self.tracks[lane]))
    }

    /// Frees a lane, and says its track.
    pub(super) fn put(&mut self, lane: Lane) -> Track {
        self.free.push(Reverse(lane.0));
        self.tracks[lane.0]
    }
}
