//! The pages of a device, where each of them lies, and the views made of them.
//!
//! *Each byte of a page is in use in one place: all of the page in the same one, or, where it has lent a part, that part in another. In
//! every place blocked blocks stand for what is in use elsewhere. The pages of a device are what it has reserved, each counted
//! once.*

use slotmap::{SlotMap, new_key_type};
use tonnage_device::PageId;
use tonnage_events::{Address, StreamId};

use super::leftovers::Leftover;
use super::order::Marks;
use crate::block::BlockId;
use crate::policy::Governor;
use crate::pool::PoolRef;
use crate::segment::RangeId;

new_key_type! {
    /// Names a page that moves.
    pub(crate) struct PageKey;
    /// Names a view.
    pub(crate) struct ViewKey;
}

/// A piece of physical memory.
#[derive(Clone, Debug)]
pub(crate) struct Page {
    pub(crate) id: PageId,
    pub(crate) size: u64,
    /// Where it is mapped. The first place is its home, the others are views.
    pub(crate) places: Vec<Place>,
    /// Which of them is in use.
    pub(crate) active: usize,
    /// A part of it that is in use in another one.
    pub(crate) lent: Option<Lent>,
}

/// A part of a page that is in use elsewhere than the rest.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lent {
    /// Where it is in use.
    pub(crate) range: RangeId,
    /// Where in the page it begins: it reaches to one of the page's ends.
    pub(crate) offset: u64,
    pub(crate) size: u64,
}

/// Where a page is mapped.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) range: RangeId,
    pub(crate) address: Address,
    /// The block that stands for it while the page is in use elsewhere.
    pub(crate) blocked: Option<BlockId>,
}

impl Page {
    /// Which of its places lies in this range.
    pub(crate) fn place_in(&self, range: RangeId) -> Option<usize> {
        self.places.iter().position(|place| place.range == range)
    }

    /// Where in the page the part begins that is in use in this range, and its size: all of it, if nothing is lent.
    pub(crate) fn used_in(&self, range: RangeId) -> Option<(u64, u64)> {
        match self.lent {
            Some(lent) if lent.range == range => Some((lent.offset, lent.size)),
            _ => (self.places[self.active].range == range).then_some((0, self.size)),
        }
    }
}

/// Pages that lie one behind the other a second time: those laid in its range.
#[derive(Clone, Debug)]
pub(crate) struct View {
    pub(crate) range: RangeId,
    pub(crate) pool: PoolRef,
    pub(crate) size: u64,
    /// Bytes of the block that it was made for. With ends of pages that is less than its pages have.
    pub(crate) made_for: u64,
    /// Stitches so far when it was last used.
    pub(crate) used_at: u64,
    /// The streams that have used it, each until a mark.
    users: Vec<(StreamId, u64)>,
    /// It serves no more, and goes once nothing is in use there and its users are done.
    pub(crate) retired: bool,
}

impl View {
    pub(crate) fn new(range: RangeId, pool: PoolRef, size: u64, made_for: u64) -> Self {
        Self { range, pool, size, made_for, used_at: 0, users: Vec::new(), retired: false }
    }

    /// Notes that a stream has used it until a mark. Those that are done are forgotten.
    pub(crate) fn note_use(&mut self, stream: StreamId, until: u64, marks: &Marks) {
        if let Some((_, known)) = self.users.iter_mut().find(|(user, _)| *user == stream) {
            *known = until.max(*known);
            return;
        }
        self.users.retain(|&(user, until)| !marks.is_done(user, until));
        self.users.push((stream, until));
    }

    /// Who has used it, until when.
    pub(crate) fn users(&self) -> &[(StreamId, u64)] {
        &self.users
    }
}

/// Every page that moves, of one device.
#[derive(Clone, Debug, Default)]
pub(crate) struct PageStore {
    pub(crate) pages: SlotMap<PageKey, Page>,
    pub(crate) views: SlotMap<ViewKey, View>,
    /// The homes of each half of a pool.
    pub(crate) homes: Vec<(PoolRef, RangeId)>,
    /// Most bytes that were in use at once, as far as growing has seen.
    pub(crate) live_peak: u64,
    /// Whether the program has emptied the cache, and memory went back: it will again.
    pub(crate) emptied: bool,
    /// Views used so far: the clock by which they age.
    pub(crate) stitches: u64,
    /// Views that serve no more and are still there.
    pub(crate) retired: Vec<ViewKey>,
    pub(crate) governor: Governor,
    /// How far streams are.
    pub(crate) marks: Marks,
    /// What released pools have left.
    pub(super) leftovers: Vec<Leftover>,
}
