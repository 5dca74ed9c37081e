//! What a program says while its history is recorded: what blocks are for, and what it is doing.
//!
//! In:  purposes of blocks and ends of scopes, as the program says them; the entries that the history drops.
//! Out: [`SaidPurpose`]s by the entries before them, [`SaidScope`]s by their time.
//!
//! Kept as long as the history has the entries that they lie between. What was said before that of blocks that may still be
//! live is kept too, one purpose for each address.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;
use tonnage_events::{Action, Address, TraceEntry};

/// What a block is for, from some moment on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SaidPurpose {
    /// How many of the entries kept came before; 0 also for what was said before the first of them.
    pub after: usize,
    /// Where the block begins.
    pub address: Address,
    /// The purpose, in a word.
    pub purpose: &'static str,
}

/// The beginning or the end of something that the program does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SaidScope {
    /// What it is.
    pub name: &'static str,
    /// Whether it begins.
    pub begins: bool,
    /// When, by the history's clock: entries before have an earlier time, and those behind a later one.
    pub time_us: u64,
}

/// What was said.
#[derive(Clone, Debug, Default)]
pub(crate) struct Said {
    /// By the number of entries before, counted from the first that was ever kept.
    purposes: VecDeque<(u64, Address, &'static str)>,
    /// Of blocks about which entries that were dropped have the last word.
    older: FxHashMap<Address, &'static str>,
    scopes: VecDeque<SaidScope>,
}

impl Said {
    /// A block is for this, from behind so many entries on.
    pub(crate) fn purpose(&mut self, entries: u64, address: Address, purpose: &'static str) {
        self.purposes.push_back((entries, address, purpose));
    }

    pub(crate) fn scope(&mut self, scope: SaidScope) {
        self.scopes.push_back(scope);
    }

    /// The first entry kept is dropped, so that so many are gone.
    pub(crate) fn forget(&mut self, entry: &TraceEntry, gone: u64) {
        if matches!(entry.action, Action::FreeRequested | Action::FreeCompleted) {
            self.older.remove(&entry.address);
        }
        while let Some(&(_, address, purpose)) = self.purposes.front().filter(|said| said.0 <= gone)
        {
            self.older.insert(address, purpose);
            self.purposes.pop_front();
        }
        while self.scopes.front().is_some_and(|scope| scope.time_us < entry.time_us) {
            self.scopes.pop_front();
        }
    }

    /// The purposes, where so many entries were dropped. Those from before the entries come first, by address.
    pub(crate) fn purposes(&self, dropped: u64) -> Vec<SaidPurpose> {
        let older = self.older.iter().map(|(&address, &purpose)| (dropped, address, purpose));
        let mut all: Vec<_> = older.collect();
        all.sort_unstable_by_key(|it| it.1);
        all.extend(&self.purposes);
        let said = |(entries, address, purpose): (u64, Address, _)| SaidPurpose {
            after: usize::try_from(entries.saturating_sub(dropped)).unwrap_or(usize::MAX),
            address,
            purpose,
        };
        all.into_iter().map(said).collect()
    }

    pub(crate) fn scopes(&self) -> impl Iterator<Item = SaidScope> {
        self.scopes.iter().copied()
    }
}

#[cfg(test)]
mod tests {
    use tonnage_events::StreamId;

    use super::*;

    fn entry(action: Action, address: u64, time_us: u64) -> TraceEntry {
        let (address, stream) = (Address(address), StreamId::DEFAULT);
        TraceEntry { action, address, size: 512, stream, time_us, stack: None }
    }

    #[test]
    fn purposes_of_blocks_that_may_live_outlive_the_entries_around_them() {
        let mut said = Said::default();
        said.purpose(1, Address(512), "parameters");
        said.purpose(2, Address(1024), "temporary");
        said.purpose(5, Address(1024), "gradients");
        let told = |said: &Said, dropped| -> Vec<_> {
            said.purposes(dropped).iter().map(|it| (it.after, it.address.0, it.purpose)).collect()
        };
        let all = [(1, 512, "parameters"), (2, 1024, "temporary"), (5, 1024, "gradients")];
        assert_eq!(told(&said, 0), all);
        said.forget(&entry(Action::Alloc, 512, 1), 1);
        said.forget(&entry(Action::Alloc, 1024, 2), 2);
        assert_eq!(
            told(&said, 2),
            [(0, 512, "parameters"), (0, 1024, "temporary"), (3, 1024, "gradients")]
        );
        said.forget(&entry(Action::FreeRequested, 1024, 3), 3);
        assert_eq!(told(&said, 3), [(0, 512, "parameters"), (2, 1024, "gradients")]);
    }

    #[test]
    fn scopes_go_with_the_entries_in_them() {
        let mut said = Said::default();
        for (begins, time_us) in [(true, 1), (false, 5)] {
            said.scope(SaidScope { name: "forward", begins, time_us });
        }
        said.forget(&entry(Action::Alloc, 512, 3), 1);
        assert_eq!(said.scopes().map(|it| it.begins).collect::<Vec<_>>(), [false]);
    }
}
