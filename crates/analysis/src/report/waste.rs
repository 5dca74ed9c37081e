//! Reserved memory of no use where reserved first peaks: how much, why, and whose.
//!
//! In:  the state of that moment.
//! Out: [`WasteReport`]: bytes by kind, and for each kind the lines and blocks to blame.
//!
//! To blame is, for memory that is free, the line that obtained its segment from the device; for a pinned
//! segment the line of the one block that keeps it; for all else the line that asked for the block.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;
use serde::{Serialize, Serializer};
use tonnage_engine::Config;
use tonnage_events::{BlockState, SnapshotSegment, StackId, StreamId};
use tonnage_replay::what_if::{Waste, WasteKind, waste_parts};

use super::lines::Lines;
use crate::total_bytes::TotalBytes;

/// How many lines and blocks are named for each kind.
const NAMED: usize = 3;

/// What of the reserved memory is of no use, and whose it is.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(transparent)]
pub struct WasteReport {
    /// The kinds, largest first; those without bytes too.
    #[serde(serialize_with = "by_kind")]
    pub kinds: Vec<WasteOfKind>,
}

/// Memory that is of no use for one reason.
#[derive(Clone, Debug)]
pub struct WasteOfKind {
    /// The reason.
    pub kind: WasteKind,
    /// How many bytes.
    pub bytes: u64,
    /// The lines to blame, largest first.
    pub lines: Vec<BlamedLine>,
    /// The largest blocks to blame.
    pub blocks: Vec<BlamedBlock>,
}

/// The lines and blocks to blame for one kind of waste.
#[derive(Clone, Debug, Serialize)]
pub struct Blame {
    /// The kind.
    pub kind: &'static str,
    /// Its bytes.
    pub bytes: u64,
    /// Lines, largest first.
    pub lines: Vec<BlamedLine>,
    /// The largest blocks.
    pub blocks: Vec<BlamedBlock>,
}

/// A line to blame.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BlamedLine {
    /// The line; none without stacks.
    pub line: Option<String>,
    /// Bytes that are its.
    pub bytes: u64,
    /// In how many blocks.
    pub blocks: usize,
}

/// A block to blame: one of no use itself, or the one that keeps a segment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BlamedBlock {
    /// Where it begins.
    pub address: u64,
    /// Its bytes.
    pub size: u64,
    /// Bytes of no use on its account.
    pub wasted: u64,
    /// Its stream.
    pub stream: u64,
    /// Who asked for it.
    pub line: Option<String>,
}

fn by_kind<S: Serializer>(kinds: &[WasteOfKind], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(WasteKind::ALL.map(|kind| {
        let bytes = kinds.iter().find(|it| it.kind == kind).map_or(0, |it| it.bytes);
        (kind.name(), bytes)
    }))
}

impl WasteReport {
    pub(super) fn of(
        segments: &[SnapshotSegment],
        grew: StreamId,
        config: &Config,
        lines: &mut Lines<'_>,
    ) -> Self {
        let sums: Waste = waste_parts(segments, grew, config).collect();
        let mut by_stack = FxHashMap::<(WasteKind, Option<StackId>), (u64, usize)>::default();
        let mut largest = FxHashMap::<WasteKind, Vec<(BlamedBlock, Option<StackId>)>>::default();
        for part in waste_parts(segments, grew, config) {
            let keeper = (part.kind == WasteKind::PinnedSegment)
                .then(|| part.segment.blocks.iter().find(|it| it.state != BlockState::Inactive))
                .flatten();
            let blamed = keeper.unwrap_or(part.block);
            let stack = match (keeper, part.block.state) {
                (None, BlockState::Inactive) => part.segment.stack,
                _ => blamed.stack,
            };
            let sum = by_stack.entry((part.kind, stack)).or_default();
            *sum = (sum.0.saturating_add(part.bytes), sum.1 + 1);
            let block = BlamedBlock {
                address: blamed.address.0,
                size: blamed.size,
                wasted: part.bytes,
                stream: part.segment.stream.0,
                line: None,
            };
            let known = largest.entry(part.kind).or_default();
            match known.iter_mut().find(|(it, _)| keeper.is_some() && it.address == block.address) {
                Some((same, _)) => same.wasted = same.wasted.saturating_add(part.bytes),
                None => known.push((block, stack)),
            }
            if known.len() > 64 {
                known.sort_by_key(|(it, _)| (u64::MAX - it.wasted, it.address));
                known.truncate(NAMED);
            }
        }
        let mut by_line = FxHashMap::<WasteKind, BTreeMap<Option<String>, (u64, usize)>>::default();
        for ((kind, stack), (bytes, blocks)) in by_stack {
            let sum = by_line.entry(kind).or_default().entry(lines.of(stack)).or_default();
            *sum = (sum.0.saturating_add(bytes), sum.1 + blocks);
        }
        let mut kinds: Vec<_> = sums
            .iter()
            .map(|(kind, bytes)| {
                let mut named: Vec<_> = by_line
                    .remove(&kind)
                    .into_iter()
                    .flatten()
                    .map(|(line, (bytes, blocks))| BlamedLine { line, bytes, blocks })
                    .collect();
                named.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.line.cmp(&b.line)));
                named.truncate(NAMED);
                let mut blocks = largest.remove(&kind).unwrap_or_default();
                blocks.sort_by_key(|(it, _)| (u64::MAX - it.wasted, it.address));
                blocks.truncate(NAMED);
                let blocks = blocks
                    .into_iter()
                    .map(|(it, stack)| BlamedBlock { line: lines.of(stack), ..it })
                    .collect();
                WasteOfKind { kind, bytes, lines: named, blocks }
            })
            .collect();
        kinds.sort_by_key(|it| u64::MAX - it.bytes);
        Self { kinds }
    }

    /// The lines and blocks to blame for each kind that has bytes.
    pub(super) fn blame(&self) -> Vec<Blame> {
        let wasted = self.kinds.iter().filter(|it| it.bytes > 0);
        let blame = wasted.map(|it| Blame {
            kind: it.kind.name(),
            bytes: it.bytes,
            lines: it.lines.clone(),
            blocks: it.blocks.clone(),
        });
        blame.collect()
    }

    /// Bytes of one kind.
    #[must_use]
    pub fn bytes(&self, kind: WasteKind) -> u64 {
        self.kinds.iter().find(|it| it.kind == kind).map_or(0, |it| it.bytes)
    }

    /// Bytes of every kind.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.kinds.iter().map(|it| it.bytes).total_bytes()
    }
}
