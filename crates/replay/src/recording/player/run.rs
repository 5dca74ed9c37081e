//! Runs of entries, and the ways to read them.
//!
//! In: the entries at the cursor. Out: a [`Run`] up to the next request, or to something else, and the
//! calls that can have made it, the likeliest first.

use tonnage_events::{Action, PoolId, TraceEntry};

use super::{Plan, Player};
use crate::recording::pools::{Place, Pools};

/// A way to read a run of entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// A request; memory given back inside it, and its failure, are the driver's refusal if that is
    /// to be believed. Inside a capture less is given back before it fails.
    Request { believes_refusals: bool, capturing: bool },
    /// `empty_cache()`; all pools of which memory goes back lost their last use before it. Inside a capture it leaves
    /// the default pool alone and waits for nothing.
    EmptyCache { capturing: bool },
    /// The memory of one pool goes back, the first of the run: `empty_cache()` for the default pool.
    EmptyOnePool,
    /// Frees are found complete, and nothing goes back: another pool is emptied that has nothing to give. That records
    /// the events which a capture put off, and some had nothing to wait for.
    Complete,
}

/// A run of entries that one or more calls made: up to a request, or to something else.
pub(super) struct Run {
    pub(super) from: usize,
    /// Behind the last entry of the run; the request's own, if there is one.
    pub(super) to: usize,
    pub(super) request: Option<TraceEntry>,
    /// The segment that serves the request.
    pub(super) place: Option<Place>,
    pub(super) pool: PoolId,
    /// The segment that goes back first, or else the first with a block that is found complete: of the
    /// pool that is emptied first, if that is how the run is read.
    pub(super) first: Option<Place>,
    pub(super) gives_back: bool,
    pub(super) completes: bool,
}

impl Player {
    /// The run of entries at the cursor.
    pub(super) fn run_ahead(&self, pools: &Pools) -> Run {
        let from = self.cursor();
        let ahead = &self.entries()[from..];
        let length = ahead.iter().position(|entry| !belongs_to_a_call(entry.action));
        let to = from + length.unwrap_or(ahead.len());
        let entries = &self.entries()[from..to];
        let end = self.entries().get(to).copied();
        let request = end.filter(|it| matches!(it.action, Action::Alloc | Action::Oom));
        let place = request.and_then(|request| self.place_of(&request, from, to));
        let first = entries.iter().find(|entry| gives_back(entry.action)).or(entries.first());
        Run {
            from,
            to,
            request,
            place,
            pool: place.map_or(PoolId::DEFAULT, |place| pools.pool(place)),
            first: first.and_then(|entry| self.engine.device().owner(entry.address)),
            gives_back: entries.iter().any(|entry| gives_back(entry.action)),
            completes: entries.iter().any(|entry| entry.action == Action::FreeCompleted),
        }
    }

    /// The segment that a request was served from: a new one, or one that is there.
    fn place_of(&self, request: &TraceEntry, from: usize, to: usize) -> Option<Place> {
        if request.action == Action::Oom {
            return Some(Place::Entry(to));
        }
        let device = self.engine.device();
        let run = self.entries()[from..to].iter().enumerate();
        // What lies at the address now may be given back before a new segment takes its place.
        let new = |&(_, it): &(usize, &TraceEntry)| match it.action {
            Action::SegmentAlloc => true,
            Action::SegmentMap => device.owner(it.address).is_none(),
            _ => false,
        };
        let new = run.rev().find(new).map(|(index, _)| Place::Entry(from + index));
        new.or_else(|| device.owner(request.address))
    }

    /// The way in which the plan reads a run, and how many there are.
    pub(super) fn way(&self, run: &Run, plan: &Plan) -> (Way, usize) {
        let ways = self.ways(run, &plan.pools);
        let chosen = plan.readings.get(&run.from).copied().unwrap_or(0).min(ways.len() - 1);
        (ways[chosen], ways.len())
    }

    /// The ways to read a run, the likeliest first.
    fn ways(&self, run: &Run, pools: &Pools) -> Vec<Way> {
        let empty_cache = Way::EmptyCache { capturing: false };
        let scope_is_capture = self.context.release.pool_scope_is_capture();
        let mut ways = match run.request {
            None => vec![empty_cache, Way::EmptyOnePool],
            // A request in a capture finds no free complete: someone emptied the cache before it.
            Some(_) if scope_is_capture && run.completes && !run.pool.is_default() => {
                vec![empty_cache, Way::EmptyOnePool]
            }
            Some(request) => {
                let inside =
                    |believes| Way::Request { believes_refusals: believes, capturing: false };
                if !run.gives_back && request.action == Action::Alloc {
                    return vec![inside(false)];
                }
                if self.context.limit_known {
                    vec![inside(false), empty_cache, Way::EmptyOnePool, inside(true)]
                } else if self.may_be_refused(run, &request) {
                    vec![inside(true), empty_cache, Way::EmptyOnePool]
                } else {
                    vec![empty_cache, Way::EmptyOnePool, inside(true)]
                }
            }
        };
        if run.request.is_some() && !run.gives_back && !run.completes {
            ways.retain(|way| matches!(way, Way::Request { .. }));
        } else if pools.only_default() {
            ways.retain(|&way| way != Way::EmptyOnePool);
        }
        // Where only what was begun as a capture is one, the entries must tell: what is a capture gives less back. There
        // is none without a pool of its own.
        if !scope_is_capture && !pools.only_default() {
            let captured = ways.iter().filter_map(|way| match *way {
                Way::Request { believes_refusals, .. } => {
                    Some(Way::Request { believes_refusals, capturing: true })
                }
                Way::EmptyCache { .. } => Some(Way::EmptyCache { capturing: true }),
                Way::EmptyOnePool | Way::Complete => None,
            });
            let captured: Vec<_> = captured.collect();
            ways.extend(captured);
        }
        if self.entries()[run.from].action == Action::FreeCompleted && !pools.only_default() {
            ways.push(Way::Complete);
        }
        ways
    }

    /// Whether the driver can have refused: one that gave more, before or later, did not refuse this
    /// for want of memory.
    fn may_be_refused(&self, run: &Run, request: &TraceEntry) -> bool {
        let obtained = self.entries()[run.from..run.to].iter().filter(|it| obtains(it.action));
        let asked = obtained.fold(0_u64, |sum, it| sum.saturating_add(it.size)).max(request.size);
        self.engine.device().granted().saturating_add(asked) > self.context.timeline.granted_peak
    }

    /// The segments that go back in a run, by their entries.
    pub(super) fn given_back(&self, run: &Run) -> Vec<(usize, Place)> {
        let entries = self.entries()[run.from..run.to].iter().enumerate();
        let entries = entries.filter(|(_, entry)| gives_back(entry.action));
        let device = self.engine.device();
        let place = |(index, entry): (usize, &TraceEntry)| {
            Some((run.from + index, device.owner(entry.address)?))
        };
        entries.filter_map(place).collect()
    }
}

/// Entries inside a request, or of `empty_cache`.
pub(in crate::recording) fn belongs_to_a_call(action: Action) -> bool {
    gives_back(action) || obtains(action) || action == Action::FreeCompleted
}

pub(in crate::recording) fn gives_back(action: Action) -> bool {
    matches!(action, Action::SegmentFree | Action::SegmentUnmap)
}

fn obtains(action: Action) -> bool {
    matches!(action, Action::SegmentAlloc | Action::SegmentMap)
}
