//! Call stacks, each kept once.
//!
//! A history of a million entries has a few thousand distinct stacks, so entries carry a
//! [`StackId`] and the stacks live here.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::Arc;

/// Names one stack of a [`Stacks`], by its number from 0.
///
/// Kept one higher, so that an entry without a stack takes no more room: there are millions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StackId(NonZeroU32);

impl StackId {
    /// The stack with this number; none for the last number of all, which is not given.
    #[must_use]
    pub fn new(number: u32) -> Option<Self> {
        NonZeroU32::new(number.wrapping_add(1)).map(Self)
    }

    /// Its number.
    #[must_use]
    pub fn number(self) -> u32 {
        self.0.get() - 1
    }
}

/// One call in a stack.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Frame {
    /// The function.
    pub name: Arc<str>,
    /// The file it stands in.
    pub filename: Arc<str>,
    /// The line, from 1; 0 if not known.
    pub line: u32,
}

/// Distinct stacks, innermost call first.
#[derive(Clone, Debug, Default)]
pub struct Stacks {
    stacks: Vec<Arc<[Frame]>>,
    known: HashMap<Arc<[Frame]>, StackId>,
}

impl Stacks {
    /// The id of this stack, the same for equal ones.
    ///
    /// # Panics
    ///
    /// At the 2³²nd distinct stack: they would not fit in memory.
    pub fn intern(&mut self, frames: Vec<Frame>) -> StackId {
        let frames: Arc<[Frame]> = frames.into();
        if let Some(&id) = self.known.get(&frames) {
            return id;
        }
        let number = u32::try_from(self.stacks.len()).ok();
        let id = number.and_then(StackId::new).expect("fewer than 2³² stacks");
        self.stacks.push(Arc::clone(&frames));
        self.known.insert(frames, id);
        id
    }

    /// The frames of a stack; none for an id from elsewhere.
    #[must_use]
    pub fn frames(&self, id: StackId) -> &[Frame] {
        self.stacks.get(id.number() as usize).map_or(&[], |frames| frames)
    }

    /// How many distinct stacks there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.stacks.len()
    }

    /// Whether no stack was recorded.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.stacks.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_stacks_share_an_id_and_others_do_not() {
        let frame = |line| Frame { name: "f".into(), filename: "a.py".into(), line };
        let mut stacks = Stacks::default();
        let first = stacks.intern(vec![frame(1), frame(2)]);
        assert_eq!(stacks.intern(vec![frame(1), frame(2)]), first);
        assert_ne!(stacks.intern(vec![frame(2), frame(1)]), first);
        assert_eq!(stacks.len(), 2);
        assert_eq!(stacks.frames(first)[1].line, 2);
        assert!(stacks.frames(StackId::new(9).unwrap()).is_empty());
    }
}
