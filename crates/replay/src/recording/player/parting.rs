//! Where the engine and the recording part, and what that tells about pools.
//!
//! In: what the engine did last, beside the entry that it should have done. Out: a [`Parting`].

use tonnage_events::{Action, TraceEntry};

use super::Player;
use super::run::Run;
use crate::outcome::Difference;
use crate::recording::pools::{Fact, Place, Pools};

/// Where the engine and the recording part.
#[derive(Clone, Debug)]
pub(in crate::recording) struct Parting {
    /// At the furthest point that any reading reached.
    pub(in crate::recording) difference: Difference,
    /// What was recorded where the plainest reading stopped.
    pub(in crate::recording) recorded: Option<Action>,
    /// What the engine did there.
    pub(in crate::recording) got: Option<TraceEntry>,
    /// What that tells about pools, if nothing else is wrong: the likeliest first.
    pub(in crate::recording) facts: Vec<Fact>,
    /// Whether a request was read as nothing but a request.
    pub(super) plain: bool,
}

impl Parting {
    /// After the last entry.
    pub(in crate::recording) fn at_end(difference: Difference) -> Self {
        Self { difference, recorded: None, got: None, facts: Vec::new(), plain: true }
    }

    /// Both readings of the same entries stopped: the difference is the further one's, what was done
    /// there the plainer one's, and what they tell about pools comes together.
    pub(in crate::recording) fn or_further(self, other: Self) -> Self {
        let further = other.difference.event > self.difference.event;
        let plainer = other.plain && !self.plain;
        let (mut far, near) = if further { (other, self) } else { (self, other) };
        far.facts.extend(near.facts);
        if plainer == further {
            return far;
        }
        Self { recorded: near.recorded, got: near.got, plain: near.plain, ..far }
    }
}

impl Player {
    pub(super) fn parting(
        &self,
        event: usize,
        got: String,
        entry: Option<TraceEntry>,
    ) -> Box<Parting> {
        let recorded = self.entries().get(event);
        let expected = recorded.map_or_else(|| "the end".to_owned(), ToString::to_string);
        Box::new(Parting {
            difference: Difference { event, expected, got },
            recorded: recorded.map(|entry| entry.action),
            got: entry,
            facts: Vec::new(),
            plain: true,
        })
    }

    /// What a parting tells about pools; see [`Parting::facts`].
    pub(super) fn facts(
        &self,
        run: &Run,
        parting: &Parting,
        given_back: &[(usize, Place)],
        pools: &Pools,
    ) -> Vec<Fact> {
        let mut facts: Vec<Fact> = Vec::new();
        if parting.plain && !run.pool.is_default() && !self.used.contains(&run.pool) {
            // The pool was gone when the request came: what went back was of another, or this one is
            // of the default pool, which is never gone.
            if let (Some(&released), Some(place)) = (self.released.get(&run.pool), run.place) {
                facts.extend((released != place).then_some(Fact::Unlike(released, place)));
                facts.push(Fact::Default(place));
            }
            return facts;
        }
        facts.extend(self.fact_of_mismatch(run, given_back, pools));
        if let Some(place) = run.place
            && run.completes
            && !run.gives_back
            && !run.pool.is_default()
            && self.context.release.pool_scope_is_capture()
        {
            // Requests to private pools find no free complete.
            facts.push(Fact::Default(place));
        }
        facts
    }

    fn fact_of_mismatch(
        &self,
        run: &Run,
        given_back: &[(usize, Place)],
        pools: &Pools,
    ) -> Option<Fact> {
        let mismatch = self.engine.device().mismatch()?;
        let touched = mismatch.place?;
        match mismatch.got.action {
            Action::Alloc | Action::SegmentMap => {
                // What went back before the request could not serve it.
                let went_back = given_back.iter().any(|&(_, place)| place == touched);
                (!went_back).then_some(Fact::Apart(touched, run.place?))
            }
            Action::SegmentFree | Action::SegmentUnmap => {
                // Of those that went back in the same call, or should have now, one of the same pool.
                let pool = pools.pool(touched);
                let others = given_back.iter().rev().filter(|(at, _)| *at <= mismatch.event);
                let mut others = others.map(|&(_, place)| place).filter(|&it| it != touched);
                let instead = given_back.iter().find(|&&(at, _)| at == mismatch.event);
                match (others.find(|&other| pools.pool(other) == pool), instead) {
                    (Some(other), _) => Some(Fact::Unlike(touched, other)),
                    (None, _) if pool.is_default() => Some(Fact::Private(touched)),
                    (None, instead) => Some(Fact::Unlike(touched, instead?.1)),
                }
            }
            Action::FreeCompleted => {
                // Emptying one private pool waits for its own blocks alone.
                let first = run.first?;
                match pools.pool(first).is_default() {
                    true => Some(Fact::Private(first)),
                    false => Some(Fact::Unlike(first, touched)),
                }
            }
            _ => None,
        }
    }
}
