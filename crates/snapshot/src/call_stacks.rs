//! Stage 4: calls and stacks of calls, each kept once, as numbers.
//!
//! In:  frames as texts and lines; lists of frames.
//! Out: their numbers, the same for equal ones; at the end, the [`Stacks`] of the file.
//!
//! PyTorch writes a new list for each entry although most of them are equal, so a list is looked
//! up by the numbers of its frames before anything is stored.

use std::collections::HashMap;
use std::sync::Arc;

use tonnage_events::{Frame, StackId, Stacks};

use crate::strings::Strings;
use crate::value::StrId;

/// A call: function, file, line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Call {
    pub(crate) name: StrId,
    pub(crate) filename: StrId,
    pub(crate) line: u32,
}

/// Distinct calls and distinct stacks of them.
#[derive(Default)]
pub(crate) struct CallStacks {
    calls: Vec<Call>,
    known_calls: HashMap<Call, u32>,
    /// The calls of all stacks, one stack after the other, and where each ends.
    stacked: Vec<u32>,
    ends: Vec<usize>,
    /// Numbers of stacks by their calls.
    known_stacks: HashMap<Box<[u32]>, u32>,
}

impl CallStacks {
    /// The number of a call.
    pub(crate) fn call(&mut self, call: Call) -> u32 {
        let next = self.calls.len() as u32;
        *self.known_calls.entry(call).or_insert_with(|| {
            self.calls.push(call);
            next
        })
    }

    /// The number of a stack.
    pub(crate) fn stack(&mut self, calls: &[u32]) -> u32 {
        if let Some(&number) = self.known_stacks.get(calls) {
            return number;
        }
        let number = self.ends.len() as u32;
        self.stacked.extend_from_slice(calls);
        self.ends.push(self.stacked.len());
        self.known_stacks.insert(calls.into(), number);
        number
    }

    /// Bytes held, about.
    pub(crate) fn memory(&self) -> u64 {
        let call = size_of::<Call>() + 2 * size_of::<(Call, u32)>();
        let stack = size_of::<usize>() + 2 * size_of::<(Box<[u32]>, u32)>();
        let stacked = 2 * size_of::<u32>();
        (self.calls.len() * call + self.ends.len() * stack + self.stacked.len() * stacked) as u64
    }

    /// Bytes that [`CallStacks::finish`] will take, about.
    pub(crate) fn memory_to_finish(&self) -> u64 {
        let stack = 4 * size_of::<Arc<[Frame]>>();
        (self.ends.len() * stack + self.stacked.len() * size_of::<Frame>()) as u64
    }

    /// The stacks under the same numbers.
    pub(crate) fn finish(self, texts: &mut SharedTexts<'_>) -> Stacks {
        // Only the calls and their order are still needed.
        drop((self.known_calls, self.known_stacks));
        let mut stacks = Stacks::default();
        let mut start = 0;
        for (number, &end) in self.ends.iter().enumerate() {
            let frames = self.stacked[start..end].iter().map(|&call| {
                let Call { name, filename, line } = self.calls[call as usize];
                Frame { name: texts.get(name), filename: texts.get(filename), line }
            });
            let id = stacks.intern(frames.collect());
            debug_assert_eq!(id, StackId(number as u32), "equal stacks already share a number");
            start = end;
        }
        stacks
    }
}

/// Texts that leave the reader, each made once however often it is used.
pub(crate) struct SharedTexts<'a> {
    strings: &'a Strings,
    made: HashMap<StrId, Arc<str>>,
}

impl<'a> SharedTexts<'a> {
    pub(crate) fn new(strings: &'a Strings) -> Self {
        Self { strings, made: HashMap::new() }
    }

    /// The text.
    pub(crate) fn get(&mut self, id: StrId) -> Arc<str> {
        let made = self.made.entry(id).or_insert_with(|| self.strings.text(id).into());
        Arc::clone(made)
    }
}
