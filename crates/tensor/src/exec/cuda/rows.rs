//! Rows and columns that are reduced: who takes which elements.
//!
//! In:  how operands lie, and how wide rows are.
//! Out: constants of programs: how many threads take a row, how many elements one of them moves at once, and the axes
//!      by which elements are found.

use tonnage_device::cuda::{Arguments, Extent};

use super::super::Operand;
use crate::shape::Layout;

/// Bytes that a thread moves at once, at most.
const PACK: usize = 16;

/// Threads of a warp.
const WARP: usize = 32;

/// Threads of a block whose warps take a row each.
const WARPS_THREADS: u32 = 128;

/// Packs of a row that a thread keeps in registers, at most, if a warp or a block takes the row.
const ITEMS_OF_WARP: usize = 8;
const ITEMS_OF_BLOCK: usize = 4;

/// Blocks that fill every GPU, for programs that do work of their own in each block.
pub(crate) const FULL: u32 = 528;

/// The most elements that can be moved at once: operands begin at multiples of so many, and so do all runs of
/// neighbours.
pub(crate) fn pack_of(runs: &[usize], operands: &[&Operand]) -> usize {
    let largest = operands.iter().map(|it| it.dtype.size()).max().unwrap_or(1);
    let fits = |pack: usize| {
        runs.iter().all(|run| run.is_multiple_of(pack))
            && operands.iter().all(|it| it.first().is_multiple_of((pack * it.dtype.size()) as u64))
    };
    let mut pack = PACK / largest.min(PACK);
    while pack > 1 && !fits(pack) {
        pack /= 2;
    }
    pack
}

/// The least number of blocks that is enough, as far as a grid goes: programs go on where it ends.
pub(crate) fn blocks(work: u64, of_block: u64) -> u32 {
    work.div_ceil(of_block.max(1)).min(i32::MAX as u64) as u32
}

/// Who takes a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    /// Elements moved at once.
    pub(crate) pack: usize,
    /// Threads that take a row: one, a warp, or all of a block.
    pub(crate) group: u32,
    /// Threads of a block.
    pub(crate) threads: u32,
    /// Packs that each keeps in registers; 0 if rows are too long, and are read again.
    pub(crate) items: usize,
}

impl Group {
    /// For rows of `width` neighbours, one row after the other.
    pub(crate) fn of(width: usize, operands: &[&Operand]) -> Self {
        Self::with_pack(width, pack_of(&[width], operands))
    }

    pub(crate) fn with_pack(width: usize, pack: usize) -> Self {
        let packs = (width / pack).max(1);
        if packs <= WARP * ITEMS_OF_WARP {
            let items = packs.div_ceil(WARP);
            return Self { pack, group: WARP as u32, threads: WARPS_THREADS, items };
        }
        let threads = packs.div_ceil(ITEMS_OF_BLOCK).next_power_of_two();
        if threads <= 1024 {
            let threads = threads.max(128);
            let items = packs.div_ceil(threads);
            return Self { pack, group: threads as u32, threads: threads as u32, items };
        }
        Self { pack, group: 512, threads: 512, items: 0 }
    }

    /// The same without registers: for sums that read each element once.
    pub(crate) fn once(width: usize, pack: usize) -> Self {
        let packs = width / pack;
        if packs <= 8 {
            return Self { pack, group: 1, threads: WARPS_THREADS, items: 0 };
        }
        if packs <= WARP * ITEMS_OF_WARP {
            return Self { pack, group: WARP as u32, threads: WARPS_THREADS, items: 0 };
        }
        let threads = (packs / 8).next_power_of_two().clamp(128, 1024) as u32;
        Self { pack, group: threads, threads, items: 0 }
    }

    /// As programs over rows have them.
    pub(crate) fn constants(&self) -> [(&'static str, &dyn std::fmt::Display); 4] {
        [
            ("PACK", &self.pack),
            ("GROUP", &self.group),
            ("THREADS", &self.threads),
            ("ITEMS", &self.items),
        ]
    }

    /// Blocks for so many rows.
    pub(crate) fn extent(&self, rows: usize) -> Extent {
        Extent::line(blocks(rows as u64, u64::from(self.threads / self.group)), self.threads)
    }
}

/// Axes of an operand, with those that can be walked as one made one, and without those of size one. There is at
/// least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Axes {
    sizes: Vec<usize>,
    strides: Vec<usize>,
}

impl Axes {
    pub(crate) fn of(sizes: &[usize], strides: &[usize]) -> Self {
        let mut axes = Self { sizes: Vec::new(), strides: Vec::new() };
        for (&size, &stride) in sizes.iter().zip(strides).filter(|(size, _)| **size != 1) {
            match (axes.sizes.last_mut(), axes.strides.last_mut()) {
                (Some(outer), Some(step)) if *step == stride * size => {
                    *outer *= size;
                    *step = stride;
                }
                _ => {
                    axes.sizes.push(size);
                    axes.strides.push(stride);
                }
            }
        }
        if axes.sizes.is_empty() {
            axes.sizes.push(1);
            axes.strides.push(1);
        }
        axes
    }

    /// The axes before rows of `width` elements, and those of the rows.
    pub(crate) fn split(layout: &Layout, width: usize) -> [Self; 2] {
        let shape = layout.shape();
        let (mut at, mut inner) = (shape.len(), 1);
        while at > 0 && inner != width {
            at -= 1;
            inner *= shape[at];
        }
        let strides = layout.strides();
        [Self::of(&shape[..at], &strides[..at]), Self::of(&shape[at..], &strides[at..])]
    }

    pub(crate) fn count(&self) -> usize {
        self.sizes.len()
    }

    /// Size and stride of the last.
    pub(crate) fn last(&self) -> (usize, usize) {
        (self.sizes[self.count() - 1], self.strides[self.count() - 1])
    }

    /// The strides of all but the last.
    pub(crate) fn outer_strides(&self) -> &[usize] {
        &self.strides[..self.count() - 1]
    }

    pub(crate) fn strides(&self) -> &[usize] {
        &self.strides
    }

    /// As `Axes` of the programs.
    pub(crate) fn push(&self, arguments: &mut Arguments) {
        let words = self.sizes.iter().chain(&self.strides);
        let bytes: Vec<u8> = words.flat_map(|&it| (it as u64).to_ne_bytes()).collect();
        arguments.push_bytes(&bytes);
    }
}

/// The type of indices below so many.
pub(crate) fn index_type(numel: usize) -> &'static str {
    if numel <= i32::MAX as usize { "u32" } else { "u64" }
}

/// Rows of an operand in any layout, each reduced by a group.
pub(crate) struct AnyRows {
    pub(crate) group: Group,
    pub(crate) kept: Axes,
    pub(crate) along: Axes,
    pub(crate) index: &'static str,
}

impl AnyRows {
    pub(crate) fn of(x: &Operand, width: usize) -> Self {
        let [kept, along] = Axes::split(&x.layout, width);
        let (size, stride) = along.last();
        let pack = if stride == 1 {
            // A single row has no step to the next.
            let steps = kept.strides().iter().filter(|_| x.layout.numel() != width);
            let steps = steps.chain(along.outer_strides()).copied();
            pack_of(&steps.chain([size]).collect::<Vec<_>>(), &[x])
        } else {
            1
        };
        let group = Group::once(width, pack);
        Self { group, kept, along, index: index_type(x.layout.numel()) }
    }
}
