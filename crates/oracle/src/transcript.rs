//! What an allocator answered to a stream.

use std::collections::BTreeMap;

use tonnage_events::Action;

use crate::command::Pool;

/// Names of the figures that are compared after every command, in the driver's order.
pub const FIGURES: [&str; 19] = [
    "reserved",
    "allocated",
    "active",
    "requested",
    "inactive_split",
    "inactive_split_count",
    "segments",
    "allocations",
    "active_count",
    "reserved_small",
    "reserved_large",
    "retries",
    "ooms",
    "syncs",
    "device_allocs",
    "device_frees",
    "oversize_allocations",
    "oversize_segments",
    "oom_rejections",
];

/// The place of `active_count` in [`FIGURES`].
pub(crate) const ACTIVE_COUNT: usize = 8;

/// The place of `device_frees` in [`FIGURES`].
pub(crate) const DEVICE_FREES: usize = 15;

/// The figures after a command; none for what the allocator does not have.
pub type Figures = [Option<i64>; FIGURES.len()];

/// Longest settings string that the driver tells whole.
const LONGEST_LAST: usize = 400;

/// All answers to a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transcript {
    /// How it began: the settings in force, or why there are none.
    pub start: Result<Settings, Refusal>,
    /// One for each command; fewer if the process died.
    pub answers: Vec<Answer>,
    /// The state at the end; none if the process died.
    pub end: Option<End>,
    /// How the process died.
    pub died: Option<String>,
    /// The first command after which what PyTorch does is undefined, since it destroyed a pool with blocks in use. Only
    /// the engine tells.
    pub lost_pool_at: Option<usize>,
}

/// The answer to a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// What came of it.
    pub reply: Reply,
    /// The figures afterwards.
    pub figures: Figures,
    /// After settings were read: those in force.
    pub settings: Option<Settings>,
    /// If asked for: segments and blocks.
    pub segments: Option<Vec<Segment>>,
}

/// What came of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// It was done.
    Done,
    /// A block, there.
    At(u64),
    /// There was no memory.
    OutOfMemory,
    /// There was no block of this name.
    NoSuchBlock,
    /// The release has no such thing.
    Absent,
    /// It was refused.
    Refused(Refusal),
}

/// What was raised.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Python's name of the exception.
    pub kind: Kind,
    /// Its words, which are not compared.
    pub message: String,
}

/// An exception, by the name that Python has for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `ValueError`
    Value,
    /// `IndexError`
    Index,
    /// `RuntimeError`
    Runtime,
}

/// Settings by name. Fractions are given by their bits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings(pub BTreeMap<String, String>);

impl Settings {
    /// Notes a setting.
    pub fn put(&mut self, name: &str, value: impl ToString) {
        self.0.insert(name.to_owned(), value.to_string());
    }

    /// Notes the string that was read last, as the driver tells it: on one line, and not all of a long one.
    pub fn put_last(&mut self, settings: &str) {
        let line = settings.replace(['\t', '\n'], " ");
        self.put("last", line.chars().take(LONGEST_LAST).collect::<String>());
    }
}

/// The state of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Handed out.
    Allocated,
    /// Freed, perhaps in use by another stream.
    Pending,
    /// Free.
    Free,
}

/// A block of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Its bytes.
    pub size: u64,
    /// What it is.
    pub state: State,
    /// Bytes that were asked for; 0 for free blocks, of which PyTorch tells a stale number.
    pub requested: u64,
}

/// A segment, or a mapped run of an expandable one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Where it begins.
    pub address: u64,
    /// Its bytes.
    pub size: u64,
    /// Whether it is of a large pool.
    pub large: bool,
    /// Its stream.
    pub stream: u64,
    /// Its pool.
    pub pool: (u64, u64),
    /// Whether it grows.
    pub expandable: bool,
    /// Bytes handed out, active, and asked for.
    pub sums: [u64; 3],
    /// Its blocks.
    pub blocks: Vec<Block>,
}

/// The state at the end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct End {
    /// For each statistic: current, peak, allocated, freed.
    pub full: BTreeMap<String, [i64; 4]>,
    /// `max_split_size` as the statistics have it.
    pub max_split: i64,
    /// Segments and blocks.
    pub segments: Vec<Segment>,
    /// The history, if it was recorded, without entries of snapshots.
    pub history: Vec<Entry>,
}

/// An entry of the history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// What happened.
    pub action: Action,
    /// Where; bytes that the device had left for a failed request.
    pub address: u64,
    /// Bytes.
    pub size: u64,
    /// On which stream.
    pub stream: u64,
    /// In which pool.
    pub pool: Pool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_those_of_their_names() {
        assert_eq!(FIGURES[ACTIVE_COUNT], "active_count");
        assert_eq!(FIGURES[DEVICE_FREES], "device_frees");
    }
}
