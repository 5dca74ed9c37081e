//! The requests of a recording alone: what the program asked for, whatever the allocator made of it.
//!
//! In: the entries of a history. Out: the calls that a program would make to ask for the same again,
//! on any device and under any settings. Pools and calls of `empty_cache` are not in a history and not
//! here.

use rustc_hash::FxHashMap;
use tonnage_events::{Action, StreamId, TraceEntry};

use super::script::Script;
use super::timeline::Timeline;

/// A call to the allocator. Blocks are numbered by the order of their allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// Allocate bytes on a stream: the next block.
    Allocate {
        /// How many.
        bytes: u64,
        /// On which stream.
        stream: StreamId,
    },
    /// Another stream uses a block too.
    RecordStream {
        /// The block.
        block: usize,
        /// The stream; one of its own for each block, since the history does not name it.
        stream: StreamId,
    },
    /// Free a block.
    Free {
        /// The block.
        block: usize,
    },
}

/// The calls that ask for what the entries show, in order. Frees of blocks that no entry allocated are
/// left out.
#[must_use]
pub fn calls_of(entries: &[TraceEntry]) -> Vec<Call> {
    let timeline = Timeline::of(entries, 0);
    let mut live = FxHashMap::default();
    let mut calls = Vec::new();
    let mut allocated = 0;
    for (index, entry) in entries.iter().enumerate() {
        match entry.action {
            Action::Alloc => {
                live.insert(entry.address, allocated);
                allocated += 1;
                calls.push(Call::Allocate { bytes: entry.size, stream: entry.stream });
            }
            Action::FreeRequested => {
                let Some(block) = live.remove(&entry.address) else { continue };
                let completion = timeline.completion(index);
                if completion != Some(index + 1) {
                    let stream = Script::foreign_stream(completion, index);
                    calls.push(Call::RecordStream { block, stream });
                }
                calls.push(Call::Free { block });
            }
            _ => {}
        }
    }
    calls
}

#[cfg(test)]
mod tests {
    use tonnage_events::Address;

    use super::*;

    fn entry(action: Action, address: u64) -> TraceEntry {
        let (stream, time_us, stack) = (StreamId(0), 0, None);
        TraceEntry { action, address: Address(address), size: 7, stream, time_us, stack }
    }

    #[test]
    fn a_free_that_completes_late_was_used_on_another_stream() {
        let entries = [
            entry(Action::SegmentAlloc, 1),
            entry(Action::Alloc, 1),
            entry(Action::Alloc, 2),
            entry(Action::FreeRequested, 2),
            entry(Action::FreeCompleted, 2),
            entry(Action::FreeRequested, 1),
            entry(Action::Snapshot, 0),
            entry(Action::FreeCompleted, 1),
            entry(Action::FreeRequested, 9),
        ];
        let allocate = Call::Allocate { bytes: 7, stream: StreamId(0) };
        let calls = calls_of(&entries);
        assert_eq!(calls[..3], [allocate, allocate, Call::Free { block: 1 }]);
        assert!(
            matches!(calls[3], Call::RecordStream { block: 0, stream } if stream != StreamId(0))
        );
        assert_eq!(calls[4..], [Call::Free { block: 0 }]);
    }
}
