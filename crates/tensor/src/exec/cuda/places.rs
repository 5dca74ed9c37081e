//! How operands of one shape lie: side by side, or along which axes.
//!
//! In:  the operands of a kernel that computes each element by itself.
//! Out: the axes on which places depend, as few as possible, and how many elements a thread may move at once.

use smallvec::SmallVec;

use crate::exec::Operand;

/// Bytes that a thread moves at once.
const PACK: usize = 16;

/// How operands of one shape lie.
pub(super) struct Places {
    /// The axes on which places depend, with those that can be walked as one made one. None if all operands lie one
    /// after the other, or are the same everywhere.
    sizes: SmallVec<[u64; 6]>,
    /// Of each axis, by operand.
    strides: SmallVec<[u64; 24]>,
    /// Operands that have one place; with axes, one along the last of them.
    pub(super) is_constant: SmallVec<[bool; 6]>,
    /// Elements that a thread moves at once.
    pub(super) pack: usize,
}

impl Places {
    /// Of these, none of which is empty.
    pub(super) fn of(operands: &[&Operand]) -> Self {
        let numel = operands[0].layout.numel();
        let shape = operands[0].layout.shape();
        let has_one_place = |it: &Operand| {
            let strides = it.layout.strides().iter().zip(shape.iter());
            numel > 1 && strides.into_iter().all(|(stride, size)| *stride == 0 || *size == 1)
        };
        let is_constant: SmallVec<[bool; 6]> =
            operands.iter().map(|it| has_one_place(it)).collect();
        let mut together = operands.iter().zip(&is_constant);
        if together.all(|(it, is_constant)| *is_constant || it.layout.is_contiguous()) {
            let (sizes, strides) = (SmallVec::new(), SmallVec::new());
            let mut places = Self { sizes, strides, is_constant, pack: 1 };
            places.pack = places.largest_pack(operands);
            return places;
        }
        let mut places = Self::axes_of(operands);
        let last = places.strides.len() - operands.len();
        places.is_constant = places.strides[last..].iter().map(|stride| *stride == 0).collect();
        if places.strides[last..].iter().all(|stride| *stride <= 1) {
            places.pack = places.largest_pack(operands);
        }
        places
    }

    fn axes_of(operands: &[&Operand]) -> Self {
        let count = operands.len();
        let mut sizes: SmallVec<[u64; 6]> = SmallVec::new();
        let mut strides: SmallVec<[u64; 24]> = SmallVec::new();
        for (axis, &size) in operands[0].layout.shape().iter().enumerate() {
            if size == 1 {
                continue;
            }
            let size = size as u64;
            let here = operands.iter().map(|it| it.layout.strides()[axis] as u64);
            let last = strides.len().saturating_sub(count);
            let goes_on = !sizes.is_empty()
                && strides[last..].iter().zip(here.clone()).all(|(outer, it)| *outer == it * size);
            if goes_on {
                strides.truncate(last);
                sizes.last_mut().into_iter().for_each(|it| *it *= size);
            } else {
                sizes.push(size);
            }
            strides.extend(here);
        }
        Self { sizes, strides, is_constant: SmallVec::new(), pack: 1 }
    }

    /// The most elements that lie side by side in all operands, wherever a thread begins.
    fn largest_pack(&self, operands: &[&Operand]) -> usize {
        let largest = operands.iter().map(|it| it.dtype.size()).max().unwrap_or(PACK);
        let mut pack = PACK / largest.min(PACK);
        let fits = |pack: usize| {
            let whole = |stride: &u64| stride.is_multiple_of(pack as u64);
            let moved = operands.iter().enumerate().filter(|(it, _)| !self.is_constant[*it]);
            let outer = self.sizes.len().saturating_sub(1);
            self.sizes.last().is_none_or(whole)
                && moved.into_iter().all(|(place, it)| {
                    let strides = self.strides.iter().skip(place).step_by(operands.len());
                    it.first().is_multiple_of((pack * it.dtype.size()) as u64)
                        && strides.take(outer).all(whole)
                })
        };
        while pack > 1 && !fits(pack) {
            pack /= 2;
        }
        pack
    }

    /// The number of axes.
    pub(super) fn axes(&self) -> usize {
        self.sizes.len()
    }

    /// As the program has them: `u64 sizes[axes]`, `u64 strides[axes][operands]`.
    pub(super) fn bytes(&self) -> SmallVec<[u8; 256]> {
        let words = self.sizes.iter().chain(&self.strides);
        words.flat_map(|it| it.to_ne_bytes()).collect()
    }
}
