//! Streams, pools and call sites by number, as columns have them.
//!
//! In:  what an allocation or segment says. Out: its number, and the list that the numbers are places of.
//!
//! Lists and names are bounded: no program has as many or such, but a stranger's file can.

use std::hash::Hash;

use rustc_hash::FxHashMap;
use serde::Serialize;
use tonnage_analysis::call_site;
use tonnage_events::{Frame, StackId, Stacks};

/// Longest part of a file's or function's name that is sent.
const LONGEST_NAME: usize = 300;

/// Most that a column of two bytes tells apart.
const MOST: usize = 1 << 12;

/// Things by the order in which they first come. Those beyond [`MOST`] share the last number.
pub(super) struct Numbered<T> {
    known: FxHashMap<T, u16>,
    pub(super) names: Vec<String>,
}

impl<T: Copy + Eq + Hash> Numbered<T> {
    pub(super) fn new() -> Self {
        Self { known: FxHashMap::default(), names: Vec::new() }
    }

    pub(super) fn number(&mut self, it: T, name: impl FnOnce(T) -> String) -> u16 {
        if let Some(&number) = self.known.get(&it) {
            return number;
        }
        if self.names.len() > MOST {
            // MOST, which two bytes hold.
            return MOST as u16;
        }
        let number = self.names.len() as u16;
        self.names.push(if self.names.len() == MOST { "others".to_owned() } else { name(it) });
        self.known.insert(it, number);
        number
    }
}

/// A line of the user's program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Site {
    pub(crate) file: String,
    pub(crate) line: u32,
    pub(crate) function: String,
}

impl Site {
    pub(crate) fn of(frame: &Frame) -> Self {
        Self { file: cut(&frame.filename), line: frame.line, function: cut(&frame.name) }
    }
}

/// A frame of any stack.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct AnyFrame {
    #[serde(flatten)]
    pub(crate) site: Site,
    /// Whether it is a library's: no line of it is a call site.
    pub(crate) library: bool,
}

impl AnyFrame {
    pub(crate) fn of(frame: &Frame) -> Self {
        let library = call_site(std::slice::from_ref(frame)).is_none();
        Self { site: Site::of(frame), library }
    }
}

fn cut(name: &str) -> String {
    name.char_indices().nth(LONGEST_NAME).map_or(name, |(end, _)| &name[..end]).to_owned()
}

/// The call sites of stacks. Number 0 is for what was not recorded.
pub(super) struct Sites<'a> {
    stacks: &'a Stacks,
    /// The site of each stack that was asked for.
    of_stack: Vec<Option<u32>>,
    known: FxHashMap<(&'a str, u32, &'a str), u32>,
    pub(super) sites: Vec<Option<Site>>,
}

impl<'a> Sites<'a> {
    pub(super) fn new(stacks: &'a Stacks) -> Self {
        let of_stack = vec![None; stacks.len()];
        Self { stacks, of_stack, known: FxHashMap::default(), sites: vec![None] }
    }

    pub(super) fn number(&mut self, stack: Option<StackId>) -> u32 {
        let Some(stack) = stack else { return 0 };
        let Some(place) = self.of_stack.get(stack.number() as usize).copied() else { return 0 };
        place.unwrap_or_else(|| {
            let number = call_site(self.stacks.frames(stack)).map_or(0, |frame| self.frame(frame));
            self.of_stack[stack.number() as usize] = Some(number);
            number
        })
    }

    fn frame(&mut self, frame: &'a Frame) -> u32 {
        let key = (&*frame.filename, frame.line, &*frame.name);
        *self.known.entry(key).or_insert_with(|| {
            self.sites.push(Some(Site::of(frame)));
            // One for each stack at most, and stacks have four-byte numbers.
            (self.sites.len() - 1) as u32
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stacks_with_the_same_call_site_share_a_number() {
        let frame = |file: &str, line| Frame { name: "f".into(), filename: file.into(), line };
        let mut stacks = Stacks::default();
        let torch = frame("/v/site-packages/torch/a.py", 1);
        let one = stacks.intern(vec![frame("train.py", 3), frame("main.py", 1)]);
        let other = stacks.intern(vec![torch.clone(), frame("train.py", 3)]);
        let without = stacks.intern(vec![torch]);
        let mut sites = Sites::new(&stacks);
        assert_eq!(sites.number(Some(one)), 1);
        assert_eq!(sites.number(Some(other)), 1);
        assert_eq!(sites.number(Some(without)), 0);
        assert_eq!(sites.number(None), 0);
        assert_eq!(sites.number(StackId::new(99)), 0);
        assert_eq!(sites.sites.len(), 2);
    }

    #[test]
    fn names_and_numbers_of_a_strangers_file_are_bounded() {
        let mut numbered = Numbered::new();
        for stream in 0..100_000_u64 {
            assert!(usize::from(numbered.number(stream, |it| it.to_string())) <= MOST);
        }
        assert_eq!(numbered.names.len(), MOST + 1);
        assert_eq!(numbered.names.last().map(String::as_str), Some("others"));
        let absurd = Frame { name: "é".repeat(1 << 20).into(), filename: "a.py".into(), line: 1 };
        assert!(Site::of(&absurd).function.len() < 1000);
    }
}
