//! Equal blocks, of which nobody knows what came first.
//!
//! In: the state before a call, what the engine then did and what was recorded. Out: a [`Tied`], if the two differ by
//! nothing but which of several equal free blocks was taken, and these were there before the history.

use rustc_hash::{FxHashMap, FxHashSet};
use tonnage_engine::Engine;
use tonnage_engine::config::Tie;
use tonnage_events::{Action, Address, BlockState, PoolId, PoolKind, SnapshotSegment, StreamId};

use super::run::{Run, Way};
use super::{Plan, Player};
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

/// Which of equal blocks an engine takes first.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Turn {
    OldestFirst,
    YoungestFirst,
}

impl Free<'_> {
    /// Free blocks are tied if this is the same.
    fn likeness(&self) -> (PoolId, bool, StreamId, u64) {
        let &SnapshotSegment { pool, kind, stream, .. } = self.segment;
        (pool, kind == PoolKind::Large, stream, self.size)
    }

    fn is_tied_with(&self, other: &Self) -> bool {
        self.likeness() == other.likeness()
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

    /// Looks for the tie that explains what happened in the call that comes next, played as the plan says.
    pub(in crate::recording) fn tied(&mut self, mismatch: &Mismatch, plan: &Plan) -> Option<Tied> {
        let run = self.run_ahead(&plan.pools);
        let (way, _) = self.way(&run, plan);
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
        let turn = match recorded.action {
            Action::Alloc => Turn::OldestFirst,
            _ => self.turn_to_go_back(&taken, way, &run)?,
        };
        let ranks = self.engine.ranks();
        let mut equal = FxHashMap::<_, Vec<_>>::default();
        for it in &free {
            if let Some(name) = self.name_of(it.address, &ranks) {
                equal.entry(it.likeness()).or_default().push((it.address, name));
            }
        }
        let mut tied = equal.remove(&taken.likeness())?;
        let named = |it: &Free<'_>| tied.iter().find(|&&(at, _)| at == it.address).map(|it| it.1);
        let (taken, instead) = (named(&taken)?, named(&instead)?);
        let mut others: Vec<_> = equal.into_values().filter(|equal| equal.len() > 1).collect();
        others.sort_unstable();
        others.push(std::mem::take(&mut tied));
        self.sort_by_turn(&mut others, mismatch.event);
        let mut others: Vec<_> = others.into_iter().map(names_once).collect();
        let mut all = others.pop()?;
        all.retain(|&name| name != taken);
        all.insert(0, taken);
        let (mut older, mut younger) = (taken, instead);
        if turn == Turn::YoungestFirst {
            all.reverse();
            (older, younger) = (younger, older);
        }
        Some(Tied { older, younger, all, others })
    }

    /// Which of equal segments goes back first in this call. None if that is not a matter of what came first.
    fn turn_to_go_back(&self, free: &Free<'_>, way: Way, run: &Run) -> Option<Turn> {
        let config = self.engine.config();
        let (Way::Request { .. }, Some(request)) = (way, run.request) else {
            return Some(Turn::OldestFirst);
        };
        // How often it was passed over decides.
        if self.engine.limit().is_some() && config.garbage_collection_threshold() > 0.0 {
            return None;
        }
        // Of several that are oversize but too small for the request, the last in the set go first.
        let least = config.max_split_size();
        let want = config.rounded_size(request.size)?.max(least);
        let segment = free.segment;
        let several = (least..want).contains(&free.size)
            && !segment.expandable
            && (segment.stream, segment.pool) == (request.stream, run.pool);
        Some(if several { Turn::YoungestFirst } else { Turn::OldestFirst })
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

    /// Sorts free blocks that are equal by when the recording takes what lies at their addresses, from this entry on.
    fn sort_by_turn(&self, equal: &mut [Vec<(Address, Address)>], from: usize) {
        let mut turns: FxHashMap<Address, usize> =
            equal.iter().flatten().map(|&(address, _)| (address, usize::MAX)).collect();
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
        for free in equal {
            free.sort_by_key(|(address, _)| (turns[address], *address));
        }
    }
}

/// The names of free blocks, in order: two of one segment have one name.
fn names_once(free: Vec<(Address, Address)>) -> Vec<Address> {
    let mut seen = FxHashSet::default();
    free.into_iter().map(|(_, name)| name).filter(|&name| seen.insert(name)).collect()
}
