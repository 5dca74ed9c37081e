//! Stage 4: calls and stacks of calls, each kept once, as numbers.
//!
//! In:  frames as texts and lines; lists of frames.
//! Out: their numbers, the same for equal ones; at the end, the [`Stacks`] of the file.
//!
//! PyTorch writes a new list for each entry although most of them are equal, so a list is looked
//! up by the numbers of its frames before anything is stored.

use std::collections::HashMap;
use std::sync::Arc;

use tonnage_events::{Frame, Stacks};

use crate::rows::{taken, taken_by_map};
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
    recent_calls: Recent,
    /// The calls of all stacks, one stack after the other, and where each ends.
    stacked: Vec<u32>,
    ends: Vec<usize>,
    /// Numbers of stacks by their calls.
    known_stacks: HashMap<Box<[u32]>, u32>,
    recent_stacks: Recent,
}

/// Numbers by a cheap hash, the latest of each: nearly everything is found here. What is not is
/// looked up under a hash that is keyed at random, so that a file cannot be made to collide.
struct Recent([u32; 1024]);

impl Default for Recent {
    fn default() -> Self {
        Self([u32::MAX; 1024])
    }
}

impl Recent {
    #[inline]
    fn place(&mut self, words: impl IntoIterator<Item = u32>) -> &mut u32 {
        // The multiplier is 2⁶⁴ over the golden ratio, which spreads neighbours apart.
        let hash = words.into_iter().fold(0_u64, |hash, word| {
            (hash.rotate_left(5) ^ u64::from(word)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
        });
        &mut self.0[(hash >> 40) as usize % 1024]
    }
}

impl CallStacks {
    /// The number of a call.
    #[inline]
    pub(crate) fn call(&mut self, call: Call) -> u32 {
        let recent = self.recent_calls.place([call.name.0, call.filename.0, call.line]);
        if self.calls.get(*recent as usize) == Some(&call) {
            return *recent;
        }
        let next = self.calls.len() as u32;
        let number = *self.known_calls.entry(call).or_insert_with(|| {
            self.calls.push(call);
            next
        });
        *recent = number;
        number
    }

    /// The number of a stack.
    #[inline]
    pub(crate) fn stack(&mut self, calls: &[u32]) -> u32 {
        let recent = *self.recent_stacks.place(calls.iter().copied());
        if self.calls_of(recent) == Some(calls) {
            return recent;
        }
        let number = match self.known_stacks.get(calls) {
            Some(&number) => number,
            None => {
                let number = self.ends.len() as u32;
                self.stacked.extend_from_slice(calls);
                self.ends.push(self.stacked.len());
                self.known_stacks.insert(calls.into(), number);
                number
            }
        };
        *self.recent_stacks.place(calls.iter().copied()) = number;
        number
    }

    /// The calls of a stack.
    #[inline]
    fn calls_of(&self, number: u32) -> Option<&[u32]> {
        let end = *self.ends.get(number as usize)?;
        let start = number.checked_sub(1).map_or(0, |before| self.ends[before as usize]);
        Some(&self.stacked[start..end])
    }

    /// Bytes held, about.
    pub(crate) fn memory(&self) -> u64 {
        let (calls, stacks) = (&self.known_calls, &self.known_stacks);
        let calls = taken_by_map(calls.len(), calls.capacity(), size_of::<(Call, u32)>());
        let stacks = taken_by_map(stacks.len(), stacks.capacity(), size_of::<(Box<[u32]>, u32)>());
        // The calls of a stack are there twice: in their own list, and in the map, behind the
        // words that whoever gives out memory needs for itself.
        let keys = self.stacked.len() * size_of::<u32>() + self.ends.len() * 16;
        let rows = taken(&self.calls) + taken(&self.stacked) + taken(&self.ends);
        (calls + stacks + keys + rows) as u64
    }

    /// Bytes that [`CallStacks::finish`] will take, about.
    pub(crate) fn memory_to_finish(&self) -> u64 {
        let stack = 4 * size_of::<Arc<[Frame]>>();
        (self.ends.len() * stack + self.stacked.len() * size_of::<Frame>()) as u64
    }

    /// The stacks under the same numbers.
    pub(crate) fn finish(mut self, texts: &mut SharedTexts<'_>) -> Stacks {
        // Only the calls and their order are still needed.
        (self.known_calls, self.known_stacks) = Default::default();
        let mut stacks = Stacks::default();
        for number in 0..self.ends.len() as u32 {
            let calls = self.calls_of(number).unwrap_or_default();
            let frames = calls.iter().map(|&call| {
                let Call { name, filename, line } = self.calls[call as usize];
                Frame { name: texts.get(name), filename: texts.get(filename), line }
            });
            let id = stacks.intern(frames.collect());
            debug_assert_eq!(id.number(), number, "equal stacks already share a number");
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
