//! What of the reserved memory is of no use at a moment, byte by byte.
//!
//! In: the segments of the moment, the stream that grew them last, and the settings. Out: the parts of
//! no use, each with its block and the reason.
//! *Requested bytes of live blocks + all parts = reserved.* Of several reasons the first counts.

use tonnage_events::{BlockState, SnapshotBlock, SnapshotSegment, StreamId};

use crate::config::Config;

/// From this share of reserved memory on, waste of one kind is a verdict, and below it need is.
pub const WASTE_SHARE: f64 = 0.15;

/// Why a reserved byte is of no use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WasteKind {
    /// Freed, but another stream may still use it.
    Pending,
    /// Free in a private pool.
    PrivatePool,
    /// Free, but cached for another stream than the one that grew.
    Stream,
    /// Free in a segment that one live block keeps.
    PinnedSegment,
    /// Free otherwise: where it lies, it did not fit.
    Fragmentation,
    /// Handed out beyond the rounded size, since the rest was too small to split off.
    Unsplit,
    /// Rounded up.
    Rounding,
}

impl WasteKind {
    /// Every kind; of several that apply, the first counts.
    pub const ALL: [Self; 7] = [
        Self::Pending,
        Self::PrivatePool,
        Self::Stream,
        Self::PinnedSegment,
        Self::Fragmentation,
        Self::Unsplit,
        Self::Rounding,
    ];

    /// Its name in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::PrivatePool => "private_pool",
            Self::Stream => "stream",
            Self::PinnedSegment => "pinned_segment",
            Self::Fragmentation => "fragmentation",
            Self::Unsplit => "unsplit",
            Self::Rounding => "rounding",
        }
    }

    /// What it means, in a few words.
    #[must_use]
    pub fn meaning(self) -> &'static str {
        match self {
            Self::Pending => "freed, another stream may still use it",
            Self::PrivatePool => "free in a private pool",
            Self::Stream => "cached for another stream",
            Self::PinnedSegment => "free in a segment that one live block keeps",
            Self::Fragmentation => "free where it did not fit",
            Self::Unsplit => "handed out beyond the rounded size",
            Self::Rounding => "rounded up",
        }
    }
}

/// Bytes of no use, and the block they are in.
#[derive(Clone, Copy, Debug)]
pub struct WastePart<'a> {
    /// Why.
    pub kind: WasteKind,
    /// How many.
    pub bytes: u64,
    /// The segment of the block.
    pub segment: &'a SnapshotSegment,
    /// The block.
    pub block: &'a SnapshotBlock,
}

/// Every part of no use, by segment and block; no part is empty. `grew` is the stream of the request
/// that grew reserved memory last.
pub fn waste_parts<'a>(
    segments: &'a [SnapshotSegment],
    grew: StreamId,
    config: &'a Config,
) -> impl Iterator<Item = WastePart<'a>> {
    segments.iter().flat_map(move |segment| {
        let free = kind_of_free(segment, grew);
        segment.blocks.iter().flat_map(move |block| {
            let parts = match block.state {
                BlockState::ActivePendingFree => [(WasteKind::Pending, block.size), (free, 0)],
                BlockState::Inactive => [(free, block.size), (free, 0)],
                BlockState::ActiveAllocated => {
                    let rounded = config.rounded_size(block.requested_size);
                    let rounded = rounded.map_or(block.size, |rounded| rounded.min(block.size));
                    let rounding = rounded.saturating_sub(block.requested_size);
                    [(WasteKind::Unsplit, block.size - rounded), (WasteKind::Rounding, rounding)]
                }
            };
            parts.into_iter().filter(|&(_, bytes)| bytes > 0).map(move |(kind, bytes)| WastePart {
                kind,
                bytes,
                segment,
                block,
            })
        })
    })
}

/// Why the free blocks of a segment are of no use.
fn kind_of_free(segment: &SnapshotSegment, grew: StreamId) -> WasteKind {
    if !segment.pool.is_default() {
        return WasteKind::PrivatePool;
    }
    if segment.stream != grew {
        return WasteKind::Stream;
    }
    let mut in_use = segment.blocks.iter().filter(|block| block.state != BlockState::Inactive);
    match (in_use.next(), in_use.next()) {
        (Some(only), None) if only.state == BlockState::ActiveAllocated => WasteKind::PinnedSegment,
        _ => WasteKind::Fragmentation,
    }
}

/// Bytes of no use, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waste([u64; WasteKind::ALL.len()]);

impl Waste {
    /// Bytes of this kind.
    #[must_use]
    pub fn of(&self, kind: WasteKind) -> u64 {
        self.0[kind as usize]
    }

    /// Bytes of every kind.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.iter().fold(0, |sum, &bytes| sum.saturating_add(bytes))
    }

    /// Every kind with its bytes.
    pub fn iter(&self) -> impl Iterator<Item = (WasteKind, u64)> + '_ {
        WasteKind::ALL.into_iter().map(|kind| (kind, self.of(kind)))
    }
}

impl<'a> FromIterator<WastePart<'a>> for Waste {
    fn from_iter<T: IntoIterator<Item = WastePart<'a>>>(parts: T) -> Self {
        let mut waste = Self::default();
        for part in parts {
            let bytes = &mut waste.0[part.kind as usize];
            *bytes = bytes.saturating_add(part.bytes);
        }
        waste
    }
}

#[cfg(test)]
mod tests {
    use tonnage_events::{Address, DeviceId, PoolId, PoolKind};

    use super::*;

    const MIB: u64 = 1 << 20;

    fn segment(stream: u64, pool: PoolId, blocks: &[(u64, u64, BlockState)]) -> SnapshotSegment {
        let blocks = blocks.iter().map(|&(size, requested_size, state)| SnapshotBlock {
            address: Address(0),
            size,
            requested_size,
            state,
            stack: None,
        });
        let blocks: Vec<_> = blocks.collect();
        SnapshotSegment {
            device: DeviceId(0),
            address: Address(0),
            total_size: blocks.iter().map(|block| block.size).sum(),
            allocated_size: 0,
            active_size: 0,
            requested_size: 0,
            stream: StreamId(stream),
            kind: PoolKind::Large,
            pool,
            expandable: false,
            stack: None,
            blocks,
        }
    }

    #[test]
    fn sums_beyond_all_numbers_are_the_largest_number() {
        let half = segment(0, PoolId::DEFAULT, &[(u64::MAX / 2 + 1, 0, BlockState::Inactive)]);
        let segments = [half.clone(), half];
        let waste: Waste = waste_parts(&segments, StreamId(0), &Config::default()).collect();
        assert_eq!(waste.of(WasteKind::Fragmentation), u64::MAX);
        assert_eq!(waste.total(), u64::MAX);
    }

    #[test]
    fn every_byte_that_is_not_requested_has_one_reason() {
        use BlockState::{ActiveAllocated as Live, ActivePendingFree as Pending, Inactive as Free};
        let (default, private) = (PoolId::DEFAULT, PoolId(0, 1));
        let segments = [
            // Pending comes before everything, even in a private pool of another stream.
            segment(7, private, &[(MIB, 1, Pending), (2 * MIB, 0, Free)]),
            segment(7, default, &[(3 * MIB, 0, Free), (MIB, MIB, Live)]),
            segment(0, default, &[(4 * MIB, 0, Free), (2 * MIB, MIB - 100, Live)]),
            segment(0, default, &[(5 * MIB, 0, Free), (MIB, MIB, Live), (MIB, MIB, Live)]),
            // No live block keeps these.
            segment(0, default, &[(6 * MIB, 0, Free)]),
            segment(0, default, &[(7 * MIB, 0, Free), (MIB, 1, Pending)]),
        ];
        let config = Config::default();
        let waste: Waste = waste_parts(&segments, StreamId(0), &config).collect();
        let expected = [
            (WasteKind::Pending, 2 * MIB),
            (WasteKind::PrivatePool, 2 * MIB),
            (WasteKind::Stream, 3 * MIB),
            (WasteKind::PinnedSegment, 4 * MIB),
            (WasteKind::Fragmentation, 18 * MIB),
            (WasteKind::Unsplit, MIB),
            (WasteKind::Rounding, 100),
        ];
        assert_eq!(waste.iter().collect::<Vec<_>>(), expected);
        let reserved: u64 = segments.iter().map(|segment| segment.total_size).sum();
        assert_eq!(waste.total() + 4 * MIB - 100, reserved);
    }
}
