//! Equal blocks, of which nobody knows what came first.
//!
//! In: the state before a call, what the engine then did and what was recorded. Out: a [`Tied`], if the two differ by
//! nothing but which of several equal free blocks was taken, and these were there before the history.

use rustc_hash::{FxHashMap, FxHashSet};
use tonnage_engine::Engine;
use tonnage_engine::config::Tie;
use tonnage_events::{Action, Address, BlockState, SnapshotSegment};

use super::Player;
use crate::recording::order::Tied;
use crate::recording::pools::Place;
use crate::recording::script::{Mismatch, Script};

/// What was there at the start, by what it is known by where it is tied: its address then.
#[derive(Debug)]
pub(super) struct Named {
    /// By ascending address: where segments and ranges begin, or blocks, where these have numbers.
    all: Vec<Address>,
    /// The blocks by their numbers, if they have some.
    by_number: FxHashMap<u64, Address>,
    tie: Tie,
}

impl Named {
    /// The names in an allocator that was just restored.
    pub(super) fn of(engine: &Engine<Script>, tie: Tie) -> Self {
        let (mut all, mut by_number) = (Vec::new(), FxHashMap::default());
        match tie {
            Tie::Address => {}
            Tie::Segment => all = engine.device().begins(),
            Tie::Block => {
                let ranks = engine.ranks();
                all = ranks.iter().map(|&(address, _)| address).collect();
                by_number = ranks.into_iter().map(|(address, rank)| (rank, address)).collect();
            }
        }
        Self { all, by_number, tie }
    }
}

/// A free block, and what is equal in those that are tied with it.
#[derive(Clone, Copy)]
struct Free<'a> {
    segment: &'a SnapshotSegment,
    address: Address,
    size: u64,
}

impl Free<'_> {
    fn is_tied_with(&self, other: &Self) -> bool {
        let like = |it: &Self| (it.segment.pool, it.segment.kind, it.segment.stream, it.size);
        like(self) == like(other)
    }

    fn holds(&self, address: Address) -> bool {
        address.0.checked_sub(self.address.0).is_some_and(|offset| offset < self.size)
    }
}

impl Player {
    /// What was there at the start, by ascending address.
    pub(in crate::recording) fn names(&self) -> &[Address] {
        &self.named.all
    }

    /// What the engine did last instead of what was recorded.
    pub(in crate::recording) fn mismatch(&self) -> Option<Mismatch> {
        self.engine.device().mismatch().cloned()
    }

    /// Whether the last difference may be one of which equal block was taken.
    pub(in crate::recording) fn may_be_tied(&self) -> bool {
        let recorded = |mismatch: &Mismatch| self.entries().get(mismatch.event).map(|it| it.action);
        self.named.all.len() > 1
            && self.engine.device().mismatch().is_some_and(|mismatch| {
                let got = mismatch.got.action;
                let takes = [Action::Alloc, Action::SegmentFree, Action::SegmentUnmap];
                takes.contains(&got) && recorded(mismatch) == Some(got)
            })
    }

    /// Looks for the tie that explains what happened in the call that comes next.
    pub(in crate::recording) fn tied(&mut self, mismatch: &Mismatch) -> Option<Tied> {
        self.complete_leading();
        let recorded = *self.entries().get(mismatch.event)?;
        let segments = self.engine.segments();
        let free: Vec<Free<'_>> = segments
            .iter()
            .flat_map(|segment| segment.blocks.iter().map(move |block| (segment, block)))
            .filter(|(_, block)| block.state == BlockState::Inactive)
            .map(|(segment, block)| Free { segment, address: block.address, size: block.size })
            .collect();
        let at = |address: Address| {
            let below = free.partition_point(|it| it.address <= address).checked_sub(1)?;
            Some(free[below]).filter(|it| it.holds(address))
        };
        let (taken, instead) = (at(recorded.address)?, at(mismatch.got.address)?);
        // A request takes the beginning of a free block; what goes back may be a part.
        let is_begin = taken.address == recorded.address && instead.address == mismatch.got.address;
        if !taken.is_tied_with(&instead) || (recorded.action == Action::Alloc && !is_begin) {
            return None;
        }
        let ranks = self.engine.ranks();
        let name = |it: &Free<'_>| self.name_of(it.address, &ranks);
        let (taken_name, instead_name) = (name(&taken)?, name(&instead)?);
        let mut all: Vec<_> = free
            .iter()
            .filter(|it| it.is_tied_with(&taken))
            .filter_map(|it| Some((it.address, name(it)?)))
            .collect();
        self.sort_by_turn(&mut all, mismatch.event);
        // Two free blocks of one segment have one name.
        let mut seen = FxHashSet::default();
        let names = std::iter::once(taken_name).chain(all.into_iter().map(|(_, name)| name));
        let all = names.filter(|&name| seen.insert(name)).collect();
        Some(Tied { taken: taken_name, instead: instead_name, all })
    }

    /// What decides when this free block serves: none if that is newer than the start.
    fn name_of(&self, address: Address, ranks: &[(Address, u64)]) -> Option<Address> {
        match self.named.tie {
            Tie::Address => None,
            Tie::Segment => match self.engine.device().owner(address)? {
                Place::Start(begin) => Some(begin),
                Place::Entry(_) => None,
            },
            Tie::Block => {
                let place = ranks.partition_point(|&(at, _)| at < address);
                let &(_, rank) = ranks.get(place).filter(|&&(at, _)| at == address)?;
                self.named.by_number.get(&rank).copied()
            }
        }
    }

    /// Sorts free blocks by when the recording takes what lies at their addresses, from this entry on.
    fn sort_by_turn(&self, free: &mut [(Address, Address)], from: usize) {
        let mut turns: FxHashMap<Address, usize> =
            free.iter().map(|&(address, _)| (address, usize::MAX)).collect();
        let mut open = turns.len();
        for (turn, entry) in self.entries()[from..].iter().enumerate() {
            let takes =
                matches!(entry.action, Action::Alloc | Action::SegmentFree | Action::SegmentUnmap);
            if takes
                && let Some(first) = turns.get_mut(&entry.address)
                && *first == usize::MAX
            {
                *first = turn;
                open -= 1;
            }
            if open == 0 {
                break;
            }
        }
        free.sort_by_key(|(address, _)| (turns[address], *address));
    }
}
