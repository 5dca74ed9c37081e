//! Streams for blocks that were freed while another stream could use them.
//!
//! A history does not name that stream, only when the block was found unused. A stream completes its
//! work in order, so blocks that were found unused in the order of their frees may share one: the
//! allocator then asks about the oldest of each stream and no more. With a stream for each block it
//! would ask about all of them at every request.

use tonnage_events::StreamId;

use super::{Call, Step};

/// Streams from this number on are no one's: CUDA's handles are addresses in the lower half.
const FIRST: u64 = 1 << 63;

/// Programs have few streams. Beyond this many, a block may be found unused later than it was.
const MOST_STREAMS: usize = 64;

/// Puts the use of another stream before every free that did not complete at once. The first `start`
/// steps come before the history: what they free was pending where it begins.
pub(super) fn with_streams(steps: Vec<Step>, start: usize) -> Vec<Step> {
    let mut streams = Streams::default();
    let mut with_uses = Vec::with_capacity(steps.len());
    for (at, step) in steps.into_iter().enumerate() {
        if let Call::Free { block, complete } = step.call
            && (at < start || complete != Some(step.entry + 1))
        {
            let stream = streams.of(complete.unwrap_or(usize::MAX));
            with_uses.push(Step { call: Call::RecordStream { block, stream }, ..step });
        }
        with_uses.push(step);
    }
    with_uses
}

/// Where the youngest event of each stream completes.
#[derive(Default)]
struct Streams(Vec<usize>);

impl Streams {
    /// A stream for the next event, which completes there.
    fn of(&mut self, complete: usize) -> StreamId {
        let free = self.0.iter().position(|&youngest| youngest <= complete);
        let number = free.unwrap_or_else(|| {
            if self.0.len() < MOST_STREAMS {
                self.0.push(0);
            }
            self.0.len() - 1
        });
        self.0[number] = self.0[number].max(complete);
        StreamId(FIRST + number as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_in_order_share_a_stream_and_others_do_not() {
        let mut streams = Streams::default();
        let of = [3, 5, 4, 5, 4, 1].map(|complete| streams.of(complete).0 - FIRST);
        assert_eq!(of, [0, 0, 1, 0, 1, 2]);
    }

    #[test]
    fn there_are_never_too_many() {
        let mut streams = Streams::default();
        let last = (0..1_000).rev().map(|complete| streams.of(complete).0).last();
        assert_eq!(last, Some(FIRST + MOST_STREAMS as u64 - 1));
    }
}
