//! What a failed request has to do with: need or waste, from the state at that moment.
//!
//! In:  the segments, the stream of the request, the settings, the stacks.
//! Out: an [`OomVerdict`] of a few lines. No replay, one pass over the blocks. The kinds are those of
//!      `tonnage report`, which also knows what came before: whoever has the history and time to look at it
//!      adds that verdict as an [`OomNote`](crate::OomNote).

use std::fmt;

use rustc_hash::FxHashMap;
use tonnage_events::{
    BlockState, Bytes, SnapshotSegment, StackId, Stacks, StreamId, call_site, plain,
};

use crate::config::Config;

/// From this share of reserved memory on, waste is the verdict and not need.
const WASTE_SHARE: f64 = 0.15;

/// What holds the memory at a failed request. *Requested + all kinds = reserved.*
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OomVerdict {
    /// Bytes asked for and live.
    pub requested: u64,
    /// Bytes of no use, by kind: `pending`, `private_pool`, `stream`, `pinned_segment`, `fragmentation`,
    /// `unsplit`, `rounding`; largest first, none of them 0.
    pub waste: Vec<(&'static str, u64)>,
    /// The lines that hold most of the live bytes, largest first; none unless stacks are recorded.
    pub lines: Vec<(String, u64)>,
}

impl OomVerdict {
    pub(crate) fn of(
        segments: &[SnapshotSegment],
        stream: StreamId,
        config: &Config,
        stacks: Option<&Stacks>,
    ) -> Self {
        let mut requested = 0;
        let mut waste = [
            ("pending", 0),
            ("private_pool", 0),
            ("stream", 0),
            ("pinned_segment", 0),
            ("fragmentation", 0),
            ("unsplit", 0),
            ("rounding", 0),
        ];
        let mut holders = FxHashMap::<StackId, u64>::default();
        for segment in segments {
            let mut used = segment.blocks.iter().filter(|it| it.state != BlockState::Inactive);
            let only = (used.next(), used.next());
            let free = match only {
                _ if !segment.pool.is_default() => 1,
                _ if segment.stream != stream => 2,
                (Some(block), None) if block.state == BlockState::ActiveAllocated => 3,
                _ => 4,
            };
            for block in &segment.blocks {
                match block.state {
                    BlockState::ActivePendingFree => waste[0].1 += block.size,
                    BlockState::Inactive => waste[free].1 += block.size,
                    BlockState::ActiveAllocated => {
                        let rounded = config.rounded_size(block.requested_size);
                        let rounded = rounded.map_or(block.size, |it| it.min(block.size));
                        waste[5].1 += block.size - rounded;
                        waste[6].1 += rounded.saturating_sub(block.requested_size);
                        requested += block.requested_size;
                        if let Some(stack) = block.stack {
                            *holders.entry(stack).or_default() += block.requested_size;
                        }
                    }
                }
            }
        }
        let mut waste: Vec<_> = waste.into_iter().filter(|&(_, bytes)| bytes > 0).collect();
        waste.sort_by_key(|&(_, bytes)| u64::MAX - bytes);
        let mut lines = FxHashMap::<String, u64>::default();
        for (stack, bytes) in holders {
            let frames = stacks.map_or(&[][..], |stacks| stacks.frames(stack));
            let Some(frame) = call_site(frames).or(frames.first()) else { continue };
            *lines.entry(format!("{}:{}", frame.filename, frame.line)).or_default() += bytes;
        }
        let mut lines: Vec<_> = lines.into_iter().collect();
        lines.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        lines.truncate(3);
        Self { requested, waste, lines }
    }

    /// The kind of waste that is considerable, if one is.
    #[must_use]
    pub fn cause(&self) -> Option<(&'static str, u64)> {
        let reserved = self.requested + self.waste.iter().map(|&(_, bytes)| bytes).sum::<u64>();
        let largest = self.waste.first().copied();
        largest.filter(|&(_, bytes)| bytes as f64 >= reserved as f64 * WASTE_SHARE)
    }
}

/// At most five lines.
impl fmt::Display for OomVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.cause() {
            Some((kind, bytes)) => {
                let means = match kind {
                    "pending" => "are freed, but another stream may still use them",
                    "private_pool" => "are free inside private pools",
                    "stream" => "are cached for other streams",
                    "pinned_segment" => "are free in segments that one live block keeps",
                    "fragmentation" => "are free in pieces that did not fit",
                    "unsplit" => "were handed out beyond what was asked for",
                    _ => "are sizes rounded up",
                };
                write!(f, "Verdict: {kind}: {} {means}.", Bytes(bytes))?;
            }
            None => write!(
                f,
                "Verdict: need: {} were asked for and are live; little of the rest is avoidable.",
                Bytes(self.requested)
            )?,
        }
        self.holders(f)
    }
}

impl OomVerdict {
    /// Who holds the live bytes, and of what kinds the rest is: at most four lines, each after a line feed.
    pub(crate) fn holders(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (line, bytes) in &self.lines {
            write!(f, "\n  {:>11} live from {}", Bytes(*bytes).to_string(), plain(line))?;
        }
        if !self.waste.is_empty() {
            let kinds = self.waste.iter().map(|&(kind, bytes)| format!("{kind} {}", Bytes(bytes)));
            write!(f, "\n  of no use: {}", kinds.collect::<Vec<_>>().join(", "))?;
        }
        Ok(())
    }
}
