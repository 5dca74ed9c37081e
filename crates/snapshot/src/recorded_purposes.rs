//! What the recorded program said that its blocks are for.
//!
//! In:  purposes of blocks, in the order in which they were said; or the text of the key `tonnage_purposes`.
//! Out: [`RecordedPurposes`]; or that text.
//!
//! PyTorch's allocator does not know what a block is for, and its files have no place for it. The text is one more key of the
//! whole, which Python and PyTorch's page read and do not ask for. It has a line for the version and the words, and one for
//! each time that a block is said to be for something: the device, how many entries of its history came before, the block's
//! address and the number of the word. Numbers are decimal.
//!
//! ```text
//! 1 temporary parameters
//! 0 2 139637976727552 0
//! 0 2 139637976727552 1
//! ```
//!
//! A text of another version is passed over, as an unknown key is.

use std::fmt::Write;
use std::sync::Arc;

use tonnage_events::{Address, DeviceId};

/// The version of the text.
const VERSION: &str = "1";

/// What the key holds.
pub(crate) const TEXT: &str = "a text";

/// The most words: chosen, there are seven.
const MOST_WORDS: usize = 256;

/// What blocks are for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordedPurposes {
    words: Vec<Arc<str>>,
    said: Vec<Row>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Row {
    device: DeviceId,
    after: u32,
    address: Address,
    word: u8,
}

/// What a block is for, from some moment on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordedPurpose<'a> {
    /// How many entries of the device's history came before.
    pub after: usize,
    /// Where the block begins.
    pub address: Address,
    /// The purpose, in a word: a stranger's file may have any.
    pub purpose: &'a str,
}

/// A line that is none.
#[derive(Debug)]
pub(crate) struct WrongLine {
    /// Counted from 1.
    pub(crate) number: usize,
    pub(crate) expected: &'static str,
    pub(crate) found: String,
}

/// Memory that it takes to read a text, at most.
pub(crate) fn memory_to_read(text: &str) -> u64 {
    let lines = text.bytes().filter(|&it| it == b'\n').count() + 1;
    // A list that grows has up to twice what it needs, and three times while it moves.
    (3 * lines * size_of::<Row>()) as u64
}

impl RecordedPurposes {
    /// Whether nothing was said.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.said.is_empty()
    }

    /// A block of a device is for this, from behind so many entries on.
    pub fn say(&mut self, device: DeviceId, after: usize, address: Address, purpose: &str) {
        let word = self.words.iter().position(|it| **it == *purpose).unwrap_or_else(|| {
            self.words.push(purpose.into());
            self.words.len() - 1
        });
        // More words than that are no purposes any more.
        let Ok(word) = u8::try_from(word) else { return };
        let after = u32::try_from(after).unwrap_or(u32::MAX);
        self.said.push(Row { device, after, address, word });
    }

    /// What was said of the blocks of a device, in the order of the file.
    pub fn of(&self, device: DeviceId) -> impl Iterator<Item = RecordedPurpose<'_>> {
        let rows = self.said.iter().filter(move |it| it.device == device);
        rows.filter_map(|it| {
            let purpose = self.words.get(usize::from(it.word))?;
            Some(RecordedPurpose { after: it.after as usize, address: it.address, purpose })
        })
    }

    pub(crate) fn memory(&self) -> u64 {
        (self.said.capacity() * size_of::<Row>()) as u64
    }

    /// The text of the key; empty for nothing.
    pub(crate) fn to_text(&self) -> String {
        let mut text = String::new();
        if self.is_empty() {
            return text;
        }
        text.push_str(VERSION);
        for word in &self.words {
            text.push(' ');
            // Words have no spaces; one that does is not known to any reader.
            text.extend(word.chars().map(|it| if it.is_whitespace() { '_' } else { it }));
        }
        for Row { device, after, address, word } in &self.said {
            // Writing to a string cannot fail.
            let _ = write!(text, "\n{} {after} {} {word}", device.0, address.0);
        }
        text
    }

    pub(crate) fn from_text(text: &str) -> Result<Self, WrongLine> {
        let mut lines = text.lines();
        let mut words = lines.next().unwrap_or_default().split(' ');
        if words.next() != Some(VERSION) {
            return Ok(Self::default());
        }
        let words: Vec<Arc<str>> = words.take(MOST_WORDS).map(Into::into).collect();
        let mut said = Vec::new();
        for (number, line) in (2..).zip(lines) {
            let row = row(line).filter(|row| usize::from(row.word) < words.len());
            said.push(row.ok_or_else(|| WrongLine {
                number,
                expected: "a device, a number of entries, an address and the number of a word",
                found: line.chars().take(60).collect(),
            })?);
        }
        Ok(Self { words, said })
    }
}

fn row(line: &str) -> Option<Row> {
    let mut parts = line.split(' ');
    let row = Row {
        device: DeviceId(parts.next()?.parse().ok()?),
        after: parts.next()?.parse().ok()?,
        address: Address(parts.next()?.parse().ok()?),
        word: parts.next()?.parse().ok()?,
    };
    parts.next().is_none().then_some(row)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_said_is_read_as_it_was_written() {
        let mut purposes = RecordedPurposes::default();
        assert_eq!(purposes.to_text(), "");
        purposes.say(DeviceId(1), 0, Address(512), "temporary");
        purposes.say(DeviceId(0), 7, Address(u64::MAX), "gradients");
        purposes.say(DeviceId(1), 9, Address(512), "gradients");
        let text = purposes.to_text();
        assert_eq!(text, "1 temporary gradients\n1 0 512 0\n0 7 18446744073709551615 1\n1 9 512 1");
        let read = RecordedPurposes::from_text(&text).unwrap();
        assert_eq!(read, purposes);
        let of_one: Vec<_> = read.of(DeviceId(1)).map(|it| (it.after, it.purpose)).collect();
        assert_eq!(of_one, [(0, "temporary"), (9, "gradients")]);
    }

    #[test]
    fn other_versions_are_passed_over_and_wrong_lines_are_named() {
        for text in ["", "2 a\nb", "nothing of ours"] {
            assert!(RecordedPurposes::from_text(text).unwrap().is_empty(), "{text}");
        }
        for line in ["0 0 0 1", "0 0 0", "0 0 0 0 0", "", "-1 0 0 0", "0 x 0 0", "0  0 0"] {
            let error =
                RecordedPurposes::from_text(&format!("1 a\n0 0 0 0\n{line}\n")).unwrap_err();
            assert_eq!((error.number, &*error.found), (3, line));
        }
    }
}
