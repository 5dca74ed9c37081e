//! What a failed request has to do with: need or waste, from the state at that moment.
//!
//! In:  the segments, the stream of the request, the settings, the stacks.
//! Out: an [`OomVerdict`] of a few lines. No replay, two passes over the blocks. The kinds are those of
//!      `tonnage report`, which also knows what came before: whoever has the history and time to look at it
//!      adds that verdict as an [`OomNote`](crate::OomNote).
//!
//! What other settings would have made of the job is not known here. So it is called need only if what is live and the request
//! are more than can be had: then no setting serves it. Else waste of the moment is named, or nothing.

use std::fmt;

use rustc_hash::FxHashMap;
use tonnage_events::{
    BlockState, Bytes, SnapshotSegment, StackId, Stacks, StreamId, blamed_frame, plain,
};

use crate::config::Config;
use crate::waste::{WASTE_SHARE, Waste, WasteKind, waste_parts};

/// What holds the memory at a failed request. *Requested + all kinds = reserved.*
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OomVerdict {
    /// Bytes asked for and live.
    pub requested: u64,
    /// By how much these and the failed request are more than can be had; 0 if they would fit.
    pub lacking: u64,
    /// Bytes of no use, by kind; largest first, none of them 0.
    pub waste: Vec<(WasteKind, u64)>,
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
        let mut requested = 0_u64;
        let mut holders = FxHashMap::<StackId, u64>::default();
        let blocks = segments.iter().flat_map(|segment| &segment.blocks);
        for block in blocks.filter(|block| block.state == BlockState::ActiveAllocated) {
            requested = requested.saturating_add(block.requested_size);
            if let Some(stack) = block.stack {
                let held = holders.entry(stack).or_default();
                *held = held.saturating_add(block.requested_size);
            }
        }
        let waste: Waste = waste_parts(segments, stream, config).collect();
        let mut waste: Vec<_> = waste.iter().filter(|&(_, bytes)| bytes > 0).collect();
        waste.sort_by_key(|&(_, bytes)| u64::MAX - bytes);
        let mut lines = FxHashMap::<String, u64>::default();
        for (stack, bytes) in holders {
            let frames = stacks.map_or(&[][..], |stacks| stacks.frames(stack));
            let Some(frame) = blamed_frame(frames) else { continue };
            let held = lines.entry(format!("{}:{}", frame.filename, frame.line)).or_default();
            *held = held.saturating_add(bytes);
        }
        let mut lines: Vec<_> = lines.into_iter().collect();
        lines.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        lines.truncate(3);
        Self { requested, lacking: 0, waste, lines }
    }

    /// The same for a request of so many bytes, of `room` in all that can be reserved.
    pub(crate) fn of_request(self, bytes: u64, room: u64) -> Self {
        Self { lacking: self.requested.saturating_add(bytes).saturating_sub(room), ..self }
    }

    /// Bytes that are free for the request's own stream, wherever they lie.
    pub(crate) fn free_in_pieces(&self) -> u64 {
        let own = [WasteKind::Fragmentation, WasteKind::PinnedSegment];
        let pieces = self.waste.iter().filter(|(kind, _)| own.contains(kind));
        pieces.fold(0, |sum, &(_, bytes)| sum.saturating_add(bytes))
    }

    /// The kind of waste that is considerable, if one is.
    #[must_use]
    pub fn cause(&self) -> Option<(WasteKind, u64)> {
        let waste = self.waste.iter().map(|&(_, bytes)| bytes);
        let reserved = waste.fold(self.requested, u64::saturating_add);
        let largest = self.waste.first().copied();
        largest.filter(|&(_, bytes)| bytes as f64 >= reserved as f64 * WASTE_SHARE)
    }
}

/// At most five lines.
impl fmt::Display for OomVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.cause() {
            _ if self.lacking > 0 => write!(
                f,
                "Verdict: need: {} were asked for and are live; with this request that is {} more than can be had, whatever the \
                 settings.",
                Bytes(self.requested),
                Bytes(self.lacking)
            )?,
            Some((kind, bytes)) => {
                let means = match kind {
                    WasteKind::Pending => "are freed, but another stream may still use them",
                    WasteKind::PrivatePool => "are free inside private pools",
                    WasteKind::Stream => "are cached for other streams",
                    WasteKind::PinnedSegment => "are free in segments that one live block keeps",
                    WasteKind::Fragmentation => "are free in pieces that did not fit",
                    WasteKind::Unsplit => "were handed out beyond what was asked for",
                    WasteKind::Rounding => "are sizes rounded up",
                };
                let kind = kind.name();
                write!(f, "Verdict: {kind}: {} {means}.", Bytes(bytes))?;
            }
            None => write!(
                f,
                "Verdict: unknown: {} were asked for and are live, and would have room together with this request; other settings \
                 were not tried.",
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
            let kinds =
                self.waste.iter().map(|&(kind, bytes)| format!("{} {}", kind.name(), Bytes(bytes)));
            write!(f, "\n  of no use: {}", kinds.collect::<Vec<_>>().join(", "))?;
        }
        Ok(())
    }
}
