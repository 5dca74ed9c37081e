//! The memory of what happened: a ring of trace entries, with the stacks that caused them.
//!
//! Off by default, and then it costs nothing. On, it keeps the last entries as PyTorch's
//! `_record_memory_history` does, under the same names.

use std::collections::VecDeque;
use std::num::NonZeroUsize;
use std::panic::Location;
use std::time::{SystemTime, UNIX_EPOCH};

use rustc_hash::FxHashMap;
use tonnage_events::{
    Action, Address, Event, Frame, PoolId, StackId, Stacks, TraceEntry, source_name,
};

use crate::native_stacks::NativeStacks;
use crate::said::{Said, SaidPurpose, SaidScope};

/// How often the clock is asked for another time before a scope does without: a microsecond is over after some fifty.
const MOST_LOOKS: usize = 10_000;

/// What to record.
#[derive(Clone, Debug)]
pub struct RecordOptions {
    /// Entries to keep; older ones are overwritten.
    pub max_entries: NonZeroUsize,
    /// Which changes carry the stack that caused them.
    pub context: Context,
    /// What a stack is.
    pub stacks: StackDepth,
    /// Actions that are not kept.
    pub skip_actions: Vec<Action>,
    /// Whether to begin with an empty history if one is being recorded already.
    pub clear_history: bool,
    /// The clock of the entries, in microseconds since 1970.
    pub clock: fn() -> u64,
}

impl Default for RecordOptions {
    /// Everything, with call sites.
    fn default() -> Self {
        Self {
            max_entries: NonZeroUsize::MAX,
            context: Context::All,
            stacks: StackDepth::CallSite,
            skip_actions: Vec::new(),
            clear_history: false,
            clock: system_time_us,
        }
    }
}

/// Microseconds since 1970, by the system's clock.
#[must_use]
pub fn system_time_us() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

/// Which changes carry the stack that caused them: PyTorch's `context`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Context {
    /// None.
    Never,
    /// Live blocks only: the snapshot knows where they come from, the history does not.
    State,
    /// Allocations; frees show where the memory was allocated.
    Alloc,
    /// Allocations and frees.
    All,
}

/// What a stack is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StackDepth {
    /// The line that called the allocator: nearly free.
    CallSite,
    /// The whole native stack: about a microsecond for ten frames, and more the first time it is seen.
    Backtrace,
    /// Whatever the caller says before the call, by numbers of its own ([`Engine::set_stack`](crate::Engine::set_stack)):
    /// it keeps the stacks, and tells what they are.
    Foreign,
}

/// Who called, known without cost.
pub(crate) type Caller = &'static Location<'static>;

/// The last trace entries.
#[derive(Clone, Debug)]
pub struct History {
    options: RecordOptions,
    entries: VecDeque<TraceEntry>,
    /// The pools of entries that are not about the default one, by their number since the first that was ever kept.
    pools: VecDeque<(u64, PoolId)>,
    /// What the program said.
    said: Said,
    /// Entries that no longer fit.
    dropped: u64,
    stacks: Stacks,
    /// Stacks of single call sites: looked up by place, not by text.
    call_sites: FxHashMap<usize, StackId>,
    native: NativeStacks,
    /// The stack of the call that is under way, where callers bring theirs.
    foreign: Option<StackId>,
}

impl History {
    pub(crate) fn new(options: RecordOptions) -> Self {
        Self {
            options,
            entries: VecDeque::new(),
            pools: VecDeque::new(),
            said: Said::default(),
            dropped: 0,
            stacks: Stacks::default(),
            call_sites: FxHashMap::default(),
            native: NativeStacks::default(),
            foreign: None,
        }
    }

    /// Goes on under other options: the oldest entries that these have no room for are gone.
    pub(crate) fn go_on(&mut self, options: RecordOptions) {
        while self.entries.len() > options.max_entries.get() {
            self.forget_first();
        }
        self.options = options;
    }

    /// Drops the oldest entry, and what was known of it.
    fn forget_first(&mut self) {
        let Some(entry) = self.entries.pop_front() else { return };
        self.dropped += 1;
        self.said.forget(&entry, self.dropped);
        while self.pools.front().is_some_and(|&(number, _)| number < self.dropped) {
            self.pools.pop_front();
        }
    }

    /// The pools of the entries kept that are not about the default pool, by the number of the entry among them.
    pub fn pools(&self) -> impl Iterator<Item = (usize, PoolId)> {
        self.pools.iter().map(|&(number, pool)| ((number - self.dropped) as usize, pool))
    }

    /// What the program said that blocks are for, by the number of entries kept before that.
    #[must_use]
    pub fn purposes(&self) -> Vec<SaidPurpose> {
        self.said.purposes(self.dropped)
    }

    /// What the program said that it does, oldest first.
    pub fn scopes(&self) -> impl Iterator<Item = SaidScope> {
        self.said.scopes()
    }

    /// The program says what a block in use is for. A history that leaves actions out keeps nothing of that: it does not
    /// tell from when to when blocks live.
    pub(crate) fn say_purpose(&mut self, address: Address, purpose: &'static str) {
        if self.options.skip_actions.is_empty() {
            self.said.purpose(self.dropped + self.entries.len() as u64, address, purpose);
        }
    }

    /// The program says that it begins or ends something. The scope has a time of its own: entries on both sides have
    /// others, as long as the clock goes.
    pub(crate) fn say_scope(&mut self, name: &'static str, begins: bool) {
        let clock = self.options.clock;
        let later_than = |time: u64| {
            let mut times = std::iter::repeat_with(clock).take(MOST_LOOKS);
            times.find(|&now| now > time).unwrap_or(time)
        };
        let last = self.entries.back().map_or(0, |entry| entry.time_us);
        let time_us = later_than(last);
        self.said.scope(SaidScope { name, begins, time_us });
        later_than(time_us);
    }

    /// The entries kept, oldest first.
    pub fn entries(&self) -> impl ExactSizeIterator<Item = &TraceEntry> {
        self.entries.iter()
    }

    /// Entries that were overwritten.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// The stacks that entries and snapshots name.
    #[must_use]
    pub fn stacks(&self) -> &Stacks {
        &self.stacks
    }

    /// The stack for a change of this level, if it is wanted.
    pub(crate) fn stack(&mut self, wanted_from: Context, caller: Caller) -> Option<StackId> {
        if self.options.context < wanted_from {
            return None;
        }
        match self.options.stacks {
            StackDepth::CallSite => Some(self.call_site(caller)),
            StackDepth::Backtrace => Some(self.native.here(&mut self.stacks, || frame_of(caller))),
            StackDepth::Foreign => self.foreign,
        }
    }

    /// Which changes carry stacks.
    #[must_use]
    pub fn context(&self) -> Context {
        self.options.context
    }

    pub(crate) fn stack_depth(&self) -> StackDepth {
        self.options.stacks
    }

    pub(crate) fn set_foreign_stack(&mut self, stack: Option<StackId>) {
        self.foreign = stack;
    }

    /// The caller's own stack for a change of this level, if it is wanted.
    pub(crate) fn foreign_stack(&self, wanted_from: Context) -> Option<StackId> {
        self.foreign.filter(|_| self.options.context >= wanted_from)
    }

    fn call_site(&mut self, caller: Caller) -> StackId {
        let place = std::ptr::from_ref(caller).addr();
        *self.call_sites.entry(place).or_insert_with(|| self.stacks.intern(vec![frame_of(caller)]))
    }

    #[cold]
    pub(crate) fn push(&mut self, event: &Event, stack: Option<StackId>) {
        let Some(mut entry) = TraceEntry::of(event) else { return };
        if self.options.skip_actions.contains(&entry.action) {
            return;
        }
        entry.time_us = (self.options.clock)();
        entry.stack = stack.filter(|_| self.options.context >= Context::Alloc);
        if self.entries.len() == self.options.max_entries.get() {
            self.forget_first();
        }
        let pool = event.pool();
        if !pool.is_default() {
            self.pools.push_back((self.dropped + self.entries.len() as u64, pool));
        }
        self.entries.push_back(entry);
    }
}

fn frame_of(caller: Caller) -> Frame {
    Frame { name: "".into(), filename: source_name(caller.file()).into(), line: caller.line() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn stack_here(history: &mut History, from: Context) -> Option<StackId> {
        history.stack(from, Location::caller())
    }

    fn history(max_entries: usize, context: Context) -> History {
        let max_entries = NonZeroUsize::new(max_entries).expect("not zero");
        History::new(RecordOptions { max_entries, context, clock: || 7, ..Default::default() })
    }

    #[test]
    fn the_ring_keeps_the_last_entries_and_counts_the_rest() {
        let mut history = history(2, Context::Never);
        for active in 1..=5 {
            history.push(&Event::Snapshot { active, pool: PoolId::DEFAULT }, None);
        }
        let sizes: Vec<_> = history.entries().map(|entry| entry.size).collect();
        assert_eq!((sizes, history.dropped()), (vec![4, 5], 3));
        assert_eq!(history.entries().next().map(|entry| entry.time_us), Some(7));
    }

    #[test]
    fn a_call_site_is_one_stack_with_one_frame() {
        let mut history = history(1, Context::All);
        let ids: Vec<_> = (0..2).map(|_| stack_here(&mut history, Context::All)).collect();
        assert_eq!(ids[0], ids[1]);
        assert_ne!(stack_here(&mut history, Context::All), ids[0]);
        let frames = history.stacks().frames(ids[0].unwrap());
        assert_eq!(frames.len(), 1);
        assert!(frames[0].filename.ends_with("history.rs"));
    }

    #[test]
    fn contexts_below_the_wanted_level_have_no_stack() {
        for context in [Context::Never, Context::State, Context::Alloc, Context::All] {
            let mut history = history(1, context);
            let wanted = stack_here(&mut history, Context::Alloc);
            assert_eq!(wanted.is_some(), context >= Context::Alloc);
            // At level `state` blocks know their stack and entries do not.
            let kept = stack_here(&mut history, Context::State);
            history.push(&Event::Snapshot { active: 0, pool: PoolId::DEFAULT }, kept);
            assert_eq!(
                history.entries().next().unwrap().stack.is_some(),
                context >= Context::Alloc
            );
        }
    }

    #[test]
    fn a_backtrace_names_the_functions_on_the_way() {
        let options = RecordOptions { stacks: StackDepth::Backtrace, ..Default::default() };
        let mut history = History::new(options);
        let id = stack_here(&mut history, Context::All).unwrap();
        assert!(history.stacks().frames(id).iter().all(|frame| !frame.filename.is_empty()));
        assert!(!history.stacks().frames(id).is_empty());
    }

    #[test]
    fn skipped_actions_are_not_kept() {
        let mut history = history(9, Context::Never);
        history.options.skip_actions = vec![Action::Snapshot];
        history.push(&Event::Snapshot { active: 1, pool: PoolId::DEFAULT }, None);
        history.push(&Event::Retry, None);
        assert_eq!(history.entries().len(), 0);
    }
}
