//! Lines of the user's program, as `file:line`.
//!
//! In: a stack. Out: its innermost frame outside installed packages, the standard library and compiled
//! code, each made once.

use rustc_hash::FxHashMap;
use tonnage_events::{StackId, Stacks, call_site};

use crate::call_site::show_line;

pub(super) struct Lines<'a> {
    stacks: &'a Stacks,
    known: FxHashMap<StackId, Option<String>>,
}

impl<'a> Lines<'a> {
    pub(super) fn new(stacks: &'a Stacks) -> Self {
        Self { stacks, known: FxHashMap::default() }
    }

    pub(super) fn of(&mut self, stack: Option<StackId>) -> Option<String> {
        let stack = stack?;
        let line = || call_site(self.stacks.frames(stack)).map(show_line);
        self.known.entry(stack).or_insert_with(line).clone()
    }

    pub(super) fn stacks(&self) -> &'a Stacks {
        self.stacks
    }
}
