//! Which lines hold the live bytes: one pass over the blocks, for those who ask while a job runs.
//!
//! In:  the blocks, and the stacks that the history keeps.
//! Out: a few lines, largest first. Unlike a snapshot it copies no block.

use rustc_hash::FxHashMap;
use tonnage_device::Device;
use tonnage_events::{Frame, StackId, blamed_frame};

use crate::engine::Engine;

/// A line, and what it holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveLine {
    /// Where the memory was asked for: the line that a report would blame.
    pub frame: Frame,
    /// Bytes that were asked for there, of the blocks handed out.
    pub bytes: u64,
    /// These blocks.
    pub blocks: u64,
}

impl<D: Device> Engine<D> {
    /// The lines that hold most of the live bytes, at most so many; none unless history is on.
    /// Blocks from before it began belong to no line.
    #[must_use]
    pub fn live_lines(&self, most: usize) -> Option<Vec<LiveLine>> {
        let stacks = self.history()?.stacks();
        let mut by_stack = FxHashMap::<StackId, (u64, u64)>::default();
        for (_, block) in self.blocks.iter() {
            if let (true, Some(stack)) = (block.allocated, block.stack) {
                let (bytes, blocks) = by_stack.entry(stack).or_default();
                *bytes = bytes.saturating_add(block.requested);
                *blocks += 1;
            }
        }
        // Several stacks may have led to the same line.
        let mut by_line = FxHashMap::<(&str, u32), LiveLine>::default();
        for (stack, (bytes, blocks)) in by_stack {
            let Some(frame) = blamed_frame(stacks.frames(stack)) else { continue };
            let line = by_line.entry((&frame.filename, frame.line)).or_insert_with(|| LiveLine {
                frame: frame.clone(),
                bytes: 0,
                blocks: 0,
            });
            line.bytes = line.bytes.saturating_add(bytes);
            line.blocks += blocks;
        }
        let mut lines: Vec<_> = by_line.into_values().collect();
        // Equal ones by place, so that the answer is the same each time.
        lines.sort_by(|a, b| {
            let place = |it: &LiveLine| (it.frame.filename.clone(), it.frame.line);
            b.bytes.cmp(&a.bytes).then_with(|| place(a).cmp(&place(b)))
        });
        lines.truncate(most);
        Some(lines)
    }
}

#[cfg(test)]
mod tests {
    use tonnage_device::Dry;
    use tonnage_events::StreamId;

    use super::*;
    use crate::{Config, RecordOptions};

    #[test]
    fn lines_are_told_by_what_they_hold_and_only_while_they_hold_it() {
        let mut engine = Engine::new(Dry::new(1 << 30), Config::default());
        let before = engine.allocate(5 << 20, StreamId::DEFAULT).unwrap();
        assert_eq!(engine.live_lines(8), None, "history is off");
        engine.record_history(Some(RecordOptions::default()));
        assert_eq!(engine.live_lines(8), Some(Vec::new()), "from before history began");
        let small: Vec<_> =
            (0..3).map(|_| engine.allocate(1_000, StreamId::DEFAULT).unwrap()).collect();
        let large = engine.allocate(3 << 20, StreamId::DEFAULT).unwrap();
        let lines = engine.live_lines(8).unwrap();
        let held: Vec<_> = lines.iter().map(|it| (it.bytes, it.blocks)).collect();
        assert_eq!(held, [(3 << 20, 1), (3_000, 3)]);
        assert!(lines[0].frame.filename.ends_with("live_lines.rs"));
        assert_eq!(engine.live_lines(1).unwrap(), lines[..1]);
        engine.free(&large).unwrap();
        assert_eq!(engine.live_lines(8).unwrap(), lines[1..]);
        for allocation in small.iter().chain([&before]) {
            engine.free(allocation).unwrap();
        }
        assert_eq!(engine.live_lines(8), Some(Vec::new()));
    }
}
