//! From readings to the one that fits.
//!
//! In: a player at its beginning. Out: the player at the end of the recording, or as far as any reading
//! went. Where the engine does something else than was recorded, the same entries are read in another
//! way; where no way is left, something is learnt about pools. Either way the player goes back to a
//! state that was kept before and plays on from there. Where equal blocks of unknown age make the difference, their order
//! is learnt, and the player begins anew.
//!
//! States are copied seldom, once in as many entries as there are blocks and pages, so that copies cost no more
//! than entries. All playing together is bounded by a [`Budget`].

use super::budget::Budget;
use super::order::Order;
use super::player::{Parting, Plan, Played, Player, Stop};
use super::pools::{Fact, Place, Pools};

/// How many earlier states are kept.
const MOST_KEPT: usize = 32;

/// Fewest entries between two of them.
const KEPT_APART: usize = 128;

/// How many free blocks, segments and pages cost as much as a live block where a state is copied.
const KEPT_AS_ONE: usize = 8;

/// How many entries that are only looked at cost as much as one that is played.
const LOOKED_AT_AS_ONE: usize = 16;

/// A replay's end.
pub(super) struct Attempt {
    /// Where the engine and the recording part; none if they agree.
    pub(super) parting: Option<Parting>,
    pub(super) player: Player,
    /// Segments that were concluded to belong to a private pool.
    pub(super) pools_concluded: usize,
    /// Ties between what was there at the start that told its order.
    pub(super) ties_learnt: usize,
    /// Whether pools that the file does not name were tried.
    pub(super) pools_tried: bool,
    /// Whether there was more to try than the budget allows.
    pub(super) gave_up: bool,
}

impl Attempt {
    pub(super) fn goes_further_than(&self, other: &Self) -> bool {
        self.reach() > other.reach()
    }

    /// The entry that it came to.
    fn reach(&self) -> usize {
        self.parting.as_ref().map_or(usize::MAX, |parting| parting.difference.event)
    }
}

/// Where a search begins, and what must be true at its end.
pub(super) trait Task {
    /// A player before the first entry.
    fn begin(&self, pools: &Pools, order: &Order) -> Player;

    /// What is not as recorded after the last entry.
    fn compare_end(&self, player: &Player) -> Option<Parting>;

    /// Whether it takes a private pool to explain a parting where none is known.
    fn tells_of_private_pools(&self, parting: &Parting) -> bool;

    /// How many entries there are.
    fn len(&self) -> usize;
}

/// Plays the recording in one way after the other until one fits to the end.
pub(super) fn search(task: &impl Task, pools: Pools, budget: &Budget) -> Attempt {
    search_from(task, Plan { pools, ..Plan::default() }, budget)
}

fn search_from(task: &impl Task, plan: Plan, budget: &Budget) -> Attempt {
    let player = task.begin(&plan.pools, &plan.order);
    let (kept, open, beliefs) = (Vec::new(), Vec::new(), Vec::new());
    let mut search = Search { task, budget, plan, player, kept, open, beliefs, work: 0 };
    search.spend(search.size());
    let most = budget.part();
    // Invented pools can make any difference go further; where none are known, only to the end counts.
    let invents = search.plan.pools.only_default();
    let mut best: Option<Attempt> = None;
    let mut failed: Option<(usize, Parting)> = None;
    loop {
        let stop = search.play();
        let Some(stop) = stop else {
            let few = search.plan.pools.with_few();
            let found = search.attempt(None, false);
            // A pool for each segment fits where one for all does; the fewest are the likeliest.
            let order = &search.plan.order;
            let fewer = few.map(|pools| {
                search_from(task, Plan { pools, order: order.clone(), ..Plan::default() }, budget)
            });
            return fewer.filter(|fewer| fewer.parting.is_none()).unwrap_or(found);
        };
        let (run_end, mut parting) = (stop.played.run_end, (*stop.parting).clone());
        if search.plan.pools.only_default() && !task.tells_of_private_pools(&parting) {
            parting.facts.clear();
        }
        let parting = match failed.take() {
            Some((end, before)) if end == run_end => before.or_further(parting),
            _ => parting,
        };
        let gave_up = search.work >= most || budget.is_over();
        if !gave_up && search.learn_order(&stop) {
            continue;
        }
        if !gave_up && search.read_otherwise(&stop) {
            failed = Some((run_end, parting));
            continue;
        }
        let facts = parting.facts.clone();
        let mut furthest = match best.take() {
            Some(best) if invents || parting.difference.event <= best.reach() => best,
            _ => {
                search.spend(search.size());
                search.attempt(Some(parting), gave_up)
            }
        };
        furthest.gave_up |= gave_up;
        furthest.pools_tried |= !search.beliefs.is_empty();
        if gave_up || !search.learn(&facts) {
            return furthest;
        }
        best = Some(furthest);
    }
}

/// Facts that were believed although something else may be true.
struct Belief {
    /// How many facts were assumed before: a count, since there may be as many beliefs as entries.
    before: usize,
    believed: Fact,
    /// What else to believe, the likeliest last.
    otherwise: Vec<Vec<Fact>>,
}

struct Search<'a, T> {
    task: &'a T,
    budget: &'a Budget,
    plan: Plan,
    player: Player,
    /// Earlier states, in order.
    kept: Vec<Player>,
    /// Calls of the run that is being played which can be read in several ways.
    open: Vec<Played>,
    beliefs: Vec<Belief>,
    /// Work so far, in entries.
    work: usize,
}

impl<T: Task> Search<'_, T> {
    /// Plays on to the end, or to where it stops.
    fn play(&mut self) -> Option<Stop> {
        while !self.player.at_end() {
            self.keep_state();
            let (before, made) = (self.player.cursor(), self.made());
            let played = self.player.step(&self.plan);
            // All of a run is looked at, even if only its first call is played.
            let run_end = match &played {
                Ok(played) => played.run_end,
                Err(stop) => stop.played.run_end,
            };
            let looked_at = run_end.max(self.player.cursor()).saturating_sub(before).max(1);
            self.spend(looked_at.saturating_add(self.made().saturating_sub(made)));
            match played {
                Err(stop) => return Some(stop),
                Ok(played) => {
                    self.open.retain(|open| open.run_end == played.run_end);
                    self.open.push(played);
                }
            }
        }
        let parting = Box::new(self.task.compare_end(&self.player)?);
        let end = self.task.len();
        Some(Stop { parting, played: Played { call: end, run_end: end + 1, readings: 1 } })
    }

    fn spend(&mut self, work: usize) {
        self.work += work;
        self.budget.spend(work);
    }

    /// Pages and events that the device has made.
    fn made(&self) -> usize {
        self.player.engine.device().made()
    }

    /// What it costs to copy the player, in entries: live blocks, and with less weight what is only kept: free blocks,
    /// segments and pages.
    fn size(&self) -> usize {
        let stats = self.player.engine.stats();
        let [live, split, segments] = [&stats.active, &stats.inactive_split, &stats.segment]
            .map(|it| usize::try_from(it.all.current).unwrap_or(0));
        let kept = split + segments + self.player.engine.device().pages();
        (live + kept / KEPT_AS_ONE).max(1)
    }

    fn keep_state(&mut self) {
        if !self.player.may_return_here() {
            return;
        }
        let at = self.player.cursor();
        let last = self.kept.last().map_or(0, Player::cursor);
        if at - last < self.size().max(KEPT_APART) {
            return;
        }
        if self.kept.len() == MOST_KEPT {
            // Older ones lie ever farther apart.
            let mut index = 0;
            self.kept.retain(|_| {
                index += 1;
                index % 2 == 0 || index > MOST_KEPT / 2
            });
        }
        self.kept.push(self.player.clone());
    }

    /// Goes back to read the call where it stopped in the next way; or an earlier call of the same run.
    fn read_otherwise(&mut self, stop: &Stop) -> bool {
        self.open.retain(|open| open.run_end == stop.played.run_end);
        self.open.push(stop.played);
        while let Some(open) = self.open.pop() {
            let next = self.plan.readings.get(&open.call).copied().unwrap_or(0) + 1;
            if next < open.readings {
                self.plan.readings.retain(|&call, _| call < open.call);
                self.plan.readings.insert(open.call, next);
                self.go_back_to(open.call);
                return true;
            }
        }
        false
    }

    /// If equal blocks make the difference of which nobody knows what came first, the recording tells it: begins anew
    /// with that.
    fn learn_order(&mut self, stop: &Stop) -> bool {
        let call = stop.played.call;
        if !self.player.may_be_tied() {
            return false;
        }
        let Some(mismatch) = self.player.mismatch() else { return false };
        let mut before = self.state_before(call);
        let from = before.cursor();
        // Entries behind the call are only looked at.
        let behind = self.task.len().saturating_sub(call) / LOOKED_AT_AS_ONE;
        self.spend(self.size() + call.saturating_sub(from) + behind);
        while before.cursor() < call {
            if before.step(&self.plan).is_err() {
                return false;
            }
        }
        let tied = before.tied(&mismatch, &self.plan);
        if !tied.is_some_and(|tied| self.plan.order.learn(&tied, before.names())) {
            return false;
        }
        self.plan.readings.retain(|&earlier, _| earlier < call);
        self.kept.clear();
        self.go_back_to(0);
        true
    }

    /// Believes one of the facts, the likeliest first, and goes back to where that matters first. If none
    /// of them can be, something that was believed before is not true.
    fn learn(&mut self, facts: &[Fact]) -> bool {
        let mut otherwise: Vec<_> = facts.iter().rev().map(|&fact| vec![fact]).collect();
        if let Some(meant) = facts.first().and_then(|&fact| self.plan.pools.otherwise(fact)) {
            let likeliest = otherwise.len() - 1;
            otherwise.insert(likeliest, meant.to_vec());
        }
        if let Some(&believed) = facts.first() {
            let before = self.plan.pools.assumed();
            self.beliefs.push(Belief { before, believed, otherwise });
            if self.believe_otherwise(self.beliefs.len() - 1) {
                return true;
            }
            self.beliefs.pop();
        }
        let about = |belief: &Belief| facts.iter().any(|fact| fact.shares_place(belief.believed));
        let of_these = (0..self.beliefs.len()).rev().filter(|&it| about(&self.beliefs[it]));
        let all = (0..self.beliefs.len()).rev();
        let order: Vec<_> = of_these.chain(all).collect();
        order
            .into_iter()
            .any(|belief| belief < self.beliefs.len() && self.believe_otherwise(belief))
    }

    /// Gives up a belief and those that came after it for the next that it may have been instead.
    fn believe_otherwise(&mut self, index: usize) -> bool {
        while let Some(facts) = self.beliefs[index].otherwise.pop() {
            self.spend(self.plan.pools.size() / LOOKED_AT_AS_ONE);
            let before = self.plan.pools.reconsidered(self.beliefs[index].before);
            let Some((pools, first)) = before.with(&facts, &self.plan.pools) else { continue };
            self.beliefs.truncate(index + 1);
            self.plan.pools = pools;
            self.go_back_before(first);
            return true;
        }
        false
    }

    /// Goes back to where the pool of a segment matters first.
    fn go_back_before(&mut self, place: Place) {
        let entry = match place {
            Place::Start(_) => 0,
            // What was tried for the entries before it in the same run is open again.
            Place::Entry(entry) => self.player.run_start(entry),
        };
        self.plan.readings.retain(|&call, _| call < entry);
        if matches!(place, Place::Start(_)) {
            self.kept.clear();
        }
        self.go_back_to(entry);
    }

    /// The last state before this entry.
    fn go_back_to(&mut self, entry: usize) {
        self.kept.retain(|player| player.cursor() <= entry);
        self.open.clear();
        self.player = self.state_before(entry);
        self.spend(self.size());
    }

    /// A copy of the last state that was kept before this entry.
    fn state_before(&self, entry: usize) -> Player {
        match self.kept.iter().rev().find(|player| player.cursor() <= entry) {
            Some(player) => player.clone(),
            None => self.task.begin(&self.plan.pools, &self.plan.order),
        }
    }

    fn attempt(&self, parting: Option<Parting>, gave_up: bool) -> Attempt {
        let pools_concluded = self.plan.pools.concluded();
        let (player, pools_tried) = (self.player.clone(), !self.beliefs.is_empty());
        let ties_learnt = self.plan.order.learnt();
        Attempt { parting, player, pools_concluded, ties_learnt, pools_tried, gave_up }
    }
}
