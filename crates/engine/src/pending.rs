//! Blocks that their owner gave back while another stream may still use them.
//!
//! Each such use becomes an event on that stream at the moment of the free. A block is reused once
//! all its events are complete; streams complete in order, so the events of each are kept by age.
//! A capture forbids to record events, so blocks freed during one are deferred until it ends.

use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Unbounded};

use rustc_hash::FxHashMap;
use tonnage_device::EventId;
use tonnage_events::{Address, StreamId};

use crate::block::BlockId;

/// A block that waits for an event of a stream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiting {
    pub(crate) event: EventId,
    pub(crate) block: BlockId,
    /// Where the block begins: a block that waits stays where it is.
    pub(crate) address: Address,
}

/// The place of an event among all: by stream, and by age within its stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    pub(crate) stream: StreamId,
    number: u64,
}

/// What waits, and for what.
///
/// Streams are polled in the order of their handles. PyTorch walks a hash map there; the order
/// decides nothing but which stale requested size a merged block keeps, and the order of entries in
/// the history.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pending {
    events: BTreeMap<Place, Waiting>,
    /// Events so far.
    numbers: u64,
    pub(crate) deferred: Vec<BlockId>,
    /// The places of each block's events; kept from the first time that someone names a pending block by
    /// its address.
    places: Option<FxHashMap<Address, Vec<Place>>>,
}

impl Pending {
    pub(crate) fn push(&mut self, stream: StreamId, waiting: Waiting) {
        self.numbers += 1;
        let place = Place { stream, number: self.numbers };
        self.events.insert(place, waiting);
        if let Some(places) = &mut self.places {
            places.entry(waiting.address).or_default().push(place);
        }
    }

    /// Whether nothing waits for anything.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.events.is_empty() && self.deferred.is_empty()
    }

    /// The oldest event of the first stream.
    pub(crate) fn first(&self) -> Option<(Place, Waiting)> {
        self.events.first_key_value().map(|(&place, &waiting)| (place, waiting))
    }

    /// The next event: of the same stream or, if that has no younger one, the oldest of the next.
    pub(crate) fn after(&self, place: Place) -> Option<(Place, Waiting)> {
        let mut behind = self.events.range((Excluded(place), Unbounded));
        behind.next().map(|(&place, &waiting)| (place, waiting))
    }

    /// The oldest event of the next stream.
    pub(crate) fn after_stream(&self, stream: StreamId) -> Option<(Place, Waiting)> {
        self.after(Place { stream, number: u64::MAX })
    }

    /// Forgets an event, and says what waited for it.
    pub(crate) fn remove(&mut self, place: Place) -> Option<Waiting> {
        let waiting = self.events.remove(&place)?;
        if let Some(places) = &mut self.places
            && let Some(of_block) = places.get_mut(&waiting.address)
        {
            of_block.retain(|&other| other != place);
            if of_block.is_empty() {
                places.remove(&waiting.address);
            }
        }
        Some(waiting)
    }

    /// The places of the events that the block at this address waits for.
    pub(crate) fn places_of(&mut self, address: Address) -> Vec<Place> {
        let events = &self.events;
        let places = self.places.get_or_insert_with(|| {
            let mut places = FxHashMap::<Address, Vec<Place>>::default();
            for (&place, waiting) in events {
                places.entry(waiting.address).or_default().push(place);
            }
            places
        });
        let mut places = places.get(&address).cloned().unwrap_or_default();
        places.sort_unstable();
        places
    }

    /// Everything that waits for an event, with the event's stream.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (StreamId, Waiting)> + '_ {
        self.events.iter().map(|(place, &waiting)| (place.stream, waiting))
    }

    /// Events that are waited for.
    pub(crate) fn len(&self) -> usize {
        self.events.len()
    }

    /// Whether the places of blocks' events, if they are kept, are those of all events.
    pub(crate) fn knows_its_places(&self) -> bool {
        self.places.as_ref().is_none_or(|places| {
            let known = |(place, waiting): (&Place, &Waiting)| {
                places.get(&waiting.address).is_some_and(|places| places.contains(place))
            };
            places.values().map(Vec::len).sum::<usize>() == self.events.len()
                && self.events.iter().all(known)
        })
    }
}
