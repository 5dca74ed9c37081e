//! Engines that go through tiles of the result, and split what is left at the end over the idle blocks.
//!
//! In:  a layer, and how many groups of blocks (clusters) run at once.
//! Out: the bytes for partial results.
//!
//! With as many tiles as fit at once, or twice that, nothing is needed. The tiles of the last, incomplete round are split along
//! the sum if that pays: each part leaves a tile of 32-bit sums, and they are added in pairs, pairs of pairs and so on,
//! with a counter for every addition. All figures here were found by asking cuDNN 9.19 for plans, without a device
//! and on an H200; `data/README.md` says how well they fit.

use super::layer::{Kind, Layer, Pass, Settings};

/// Tiles, by the library's numbers of them: rows and columns of the result.
const TILES: [(i64, u64, u64); 14] = [
    (0, 128, 128),
    (1, 128, 64),
    (2, 128, 32),
    (3, 256, 128),
    (4, 256, 64),
    (5, 64, 64),
    (6, 128, 256),
    (7, 64, 128),
    (8, 64, 32),
    (9, 64, 256),
    (16, 256, 32),
    (18, 64, 192),
    (19, 128, 192),
    (20, 256, 96),
];

/// Multiprocessors that the library reckons with if it cannot ask.
const WITHOUT_DEVICE: u64 = 18;

/// An H200's multiprocessors.
const MEASURED: u64 = 132;

/// Clusters of that many blocks that an H200 runs at once. Clusters do not span the parts that a GPU is made of, so that
/// large ones leave multiprocessors idle.
const AT_ONCE: [(u64, u64); 11] = [
    (1, 132),
    (2, 66),
    (3, 39),
    (4, 30),
    (5, 22),
    (6, 17),
    (7, 15),
    (8, 15),
    (12, 7),
    (14, 7),
    (16, 7),
];

/// Alignment of the workspace's start, and what a split and a long queue of tiles need beside.
const SLACK: u64 = 127;
const SPLIT: u64 = 32;
const QUEUE: u64 = 4;

/// A counter, and an element of a partial result.
const WORD: u64 = 4;

/// Most parts of a tile.
const MOST_PARTS: u64 = 128;

/// Elements of the sum that a part has at least; that it has if nothing runs beside it.
const LEAST_SUM: u64 = 128;
const LEAST_SUM_ALONE: u64 = 1024;

/// From so many parts on the latter counts.
const MANY_PARTS: u64 = 9;

/// Most channels of groups that are computed at once, and least of a block of them.
const MOST_TOGETHER: u64 = 256;
const LEAST_BLOCK: u64 = 64;

/// What a layer is to such an engine.
pub(super) struct Work {
    /// Clusters' tiles of the result, and how often such a result is computed.
    tiles: u64,
    times: u64,
    /// Blocks of a cluster.
    blocks: u64,
    /// Bytes of a partial tile.
    bytes: u64,
    /// Steps of the sum, and elements of each.
    steps: u64,
    depth: u64,
    splits: bool,
    cost: Cost,
    /// Whether the rule held for layers like this.
    pub(super) certain: bool,
}

/// What adding parts costs, in steps of the sum.
#[derive(Clone, Copy)]
struct Cost {
    /// Each level of additions.
    level: f64,
    /// Having parts at all.
    once: f64,
    /// Having two of them, on top.
    two: f64,
}

impl Work {
    /// Nothing if the engine is set to something that was never seen.
    pub(super) fn of(layer: &Layer, settings: &Settings) -> Option<Self> {
        let (_, rows, columns) = *TILES.iter().find(|(number, ..)| *number == settings.tile)?;
        let depth = match settings.depth {
            0 => 32,
            1 => 64,
            _ => return None,
        };
        if layer.pass == Pass::BackwardData && layer.strided {
            return None;
        }
        let (channels, filters) = (layer.channels / layer.groups, layer.filters / layer.groups);
        let more = channels.max(filters);
        let (channels, filters, times, batch) = match layer.groups {
            1 => (channels, filters, 1, 1),
            // One after the other.
            groups if more > MOST_TOGETHER => (channels, filters, groups, 1),
            // All at once, in square blocks of channels, which several small groups share.
            groups => {
                let block = more.next_power_of_two().max(LEAST_BLOCK);
                (block, block, 1, groups / sharing(groups, more))
            }
        };
        let (down, across, steps) = match layer.pass {
            Pass::Forward => (
                (layer.images * layer.pixels_after).div_ceil(rows),
                filters.div_ceil(columns),
                layer.taps * channels.div_ceil(depth),
            ),
            Pass::BackwardData => (
                (layer.images * layer.pixels).div_ceil(rows),
                channels.div_ceil(columns),
                layer.taps * filters.div_ceil(depth),
            ),
            Pass::BackwardFilter => (
                filters.div_ceil(rows),
                layer.taps * channels.div_ceil(columns),
                (layer.images * layer.pixels_after).div_ceil(depth),
            ),
        };
        let bytes = rows * columns * WORD;
        let sliced = is_sliced(layer.pass, settings);
        Some(Self {
            tiles: down.div_ceil(settings.cluster.0) * across.div_ceil(settings.cluster.1) * batch,
            times,
            blocks: settings.cluster.0 * settings.cluster.1,
            bytes,
            steps,
            depth,
            splits: settings.workspace == 0,
            cost: cost(layer.kind, bytes, depth, sliced),
            certain: !sliced || layer.pass == Pass::BackwardFilter,
        })
    }

    /// Bytes for partial results on a device.
    pub(super) fn on(&self, multiprocessors: u64) -> u64 {
        let measured = AT_ONCE.iter().find(|(blocks, _)| *blocks == self.blocks);
        let at_once = measured.map_or(MEASURED / self.blocks, |(_, at_once)| *at_once);
        self.bytes(at_once * multiprocessors / MEASURED)
    }

    /// What is left of the library's answer without the bytes for partial results that it counts for want of a device.
    pub(super) fn others(&self, answered: u64) -> Option<u64> {
        let at_once = WITHOUT_DEVICE / self.blocks;
        let whole = Self { splits: false, ..*self };
        let counted = [self.bytes(at_once), whole.bytes(at_once)];
        counted.iter().find_map(|bytes| answered.checked_sub(*bytes))
    }

    fn bytes(&self, at_once: u64) -> u64 {
        let at_once = at_once.max(1);
        let (left, parts) = self.parts(at_once);
        let queue = if self.tiles > 2 * at_once { QUEUE } else { 0 };
        let bytes = if parts > 1 {
            let tiles = self.blocks * left;
            SLACK + SPLIT + queue + tiles * (additions(parts) * WORD + parts * self.bytes)
        } else if queue > 0 {
            SLACK + queue
        } else {
            0
        };
        if self.times > 1 { bytes.next_multiple_of(16) * self.times } else { bytes }
    }

    /// Tiles of the last round, and parts that each of them is split into.
    fn parts(&self, at_once: u64) -> (u64, u64) {
        let left = self.tiles % at_once;
        if left == 0 || !self.splits {
            return (left, 1);
        }
        let most = (at_once / left).min(self.steps * self.depth / LEAST_SUM).min(MOST_PARTS);
        if self.tiles < at_once {
            (left, self.parts_alone(most))
        } else {
            (left, self.parts_beside(most))
        }
    }

    /// With nothing else to do: the parts that are done soonest, additions included.
    fn parts_alone(&self, most: u64) -> u64 {
        let many = self.steps / (LEAST_SUM_ALONE / self.depth + 1);
        if most.min(many) >= MANY_PARTS {
            return self.steps.div_ceil(self.steps.div_ceil(most.min(many)));
        }
        let mut best = (self.steps as f64, 1);
        for parts in 2..=most {
            let steps = self.steps.div_ceil(parts) as f64;
            let time = steps + levels(parts) * self.cost.level + self.cost.two;
            if time < best.0 {
                best = (time, parts);
            }
        }
        best.1
    }

    /// Beside whole tiles: the shortest parts whose additions are done by the time the others are.
    fn parts_beside(&self, most: u64) -> u64 {
        let mut best = (self.steps, 1);
        for parts in 2..=most {
            let room = 1.0 - 1.0 / parts as f64 + 2.0 / levels(parts).exp2();
            let two = if parts == 2 { self.cost.two } else { 0.0 };
            let needed = levels(parts) * self.cost.level + self.cost.once + two;
            let steps = self.steps.div_ceil(parts);
            if self.steps as f64 * room >= needed && steps < best.0 {
                best = (steps, parts);
            }
        }
        best.1
    }
}

/// How many groups of so many channels share a block.
fn sharing(groups: u64, channels: u64) -> u64 {
    let mut sharing = 1;
    while groups.is_multiple_of(sharing * 2) && channels * sharing * 2 <= LEAST_BLOCK {
        sharing *= 2;
    }
    sharing
}

/// Two engines have kernels whose blocks halve the sum among themselves; their costs are less well known.
fn is_sliced(pass: Pass, settings: &Settings) -> bool {
    settings.tile == 1
        && matches!(
            (pass, settings.number, settings.depth),
            (Pass::BackwardData, 67, 0) | (Pass::BackwardFilter, 68, _)
        )
}

/// Fitted: smaller tiles add for longer, next to their own steps. The library takes steps of bfloat16 to be eight times faster.
fn cost(kind: Kind, bytes: u64, depth: u64, sliced: bool) -> Cost {
    let faster = if kind == Kind::Bfloat16 { 8.0 } else { 1.0 };
    if sliced {
        return Cost { level: 15.4 * faster, once: 6.6 * faster, two: 3.0 * faster };
    }
    let scale = faster * 64.0 / depth as f64;
    let level = (4.66 + 126_680.0 / bytes as f64) * scale;
    Cost { level, once: 3.373 * scale, two: 0.0 }
}

/// Levels of additions.
fn levels(parts: u64) -> f64 {
    f64::from(u64::BITS - (parts - 1).leading_zeros())
}

/// Additions in pairs, and of what is left alone at a level.
fn additions(mut parts: u64) -> u64 {
    let mut all = 0;
    while parts > 1 {
        parts = parts.div_ceil(2);
        all += parts;
    }
    all
}
