//! Shapes and layouts: which element lies where. Plain numbers, no memory.
//!
//! In:  sizes, and the changes that views make to them.
//! Out: a [`Layout`]: size, stride and offset of each axis, in elements; or `None` where the change
//!      is impossible. Who knows the call turns that into an error.
//!
//! Strides are never negative, as in PyTorch. Every product is checked: sizes come from anywhere.

use std::fmt;
use std::ops::{Deref, Range};

use smallvec::SmallVec;

/// Axes that fit without an allocation of their own.
const INLINE: usize = 6;

type Dims = SmallVec<[usize; INLINE]>;

/// The sizes of a tensor's axes. Made from arrays, slices and vectors; `()` is a single number's.
#[derive(Clone, PartialEq, Eq, Hash, Default)]
pub struct Shape(Dims);

impl Shape {
    /// The number of elements, if it fits.
    #[must_use]
    pub fn checked_numel(&self) -> Option<usize> {
        numel(&self.0)
    }

    pub(crate) fn from_iter(sizes: impl IntoIterator<Item = usize>) -> Self {
        Self(sizes.into_iter().collect())
    }
}

/// A product in which a zero wins over an overflow elsewhere.
fn numel(sizes: &[usize]) -> Option<usize> {
    if sizes.contains(&0) {
        return Some(0);
    }
    sizes.iter().try_fold(1usize, |all, size| all.checked_mul(*size))
}

impl Deref for Shape {
    type Target = [usize];
    fn deref(&self) -> &[usize] {
        &self.0
    }
}

impl From<()> for Shape {
    fn from((): ()) -> Self {
        Self::default()
    }
}

impl From<usize> for Shape {
    fn from(size: usize) -> Self {
        Self::from_iter([size])
    }
}

impl<const N: usize> From<[usize; N]> for Shape {
    fn from(sizes: [usize; N]) -> Self {
        Self::from_iter(sizes)
    }
}

impl From<&[usize]> for Shape {
    fn from(sizes: &[usize]) -> Self {
        Self(sizes.into())
    }
}

impl From<Vec<usize>> for Shape {
    fn from(sizes: Vec<usize>) -> Self {
        Self(sizes.into())
    }
}

impl From<&Shape> for Shape {
    fn from(shape: &Shape) -> Self {
        shape.clone()
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The shape that both broadcast to: axes are aligned at the last, and a size of one stretches.
pub(crate) fn broadcast(a: &[usize], b: &[usize]) -> Option<Shape> {
    let axes = a.len().max(b.len());
    let size = |sizes: &[usize], axis: usize| {
        (axis + sizes.len()).checked_sub(axes).map_or(1, |axis| sizes[axis])
    };
    let mut shape = Dims::with_capacity(axes);
    for axis in 0..axes {
        shape.push(match (size(a, axis), size(b, axis)) {
            (one, other) if one == other => one,
            (1, other) => other,
            (one, 1) => one,
            _ => return None,
        });
    }
    Some(Shape(shape))
}

/// Where the elements of a tensor lie in its storage.
///
/// *Element (i₀, i₁, …) lies at offset + Σ iₐ·strideₐ.*
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Layout {
    shape: Shape,
    strides: Dims,
    offset: usize,
}

impl Layout {
    /// Rows one after the other. None if the elements cannot be counted.
    pub(crate) fn contiguous(shape: Shape) -> Option<Self> {
        shape.checked_numel()?;
        let mut strides: Dims = SmallVec::from_elem(1, shape.len());
        let mut stride = 1usize;
        for axis in (0..shape.len()).rev() {
            strides[axis] = stride;
            // A size of zero leaves strides as if it were one.
            stride = stride.checked_mul(shape[axis].max(1))?;
        }
        Some(Self { shape, strides, offset: 0 })
    }

    pub(crate) fn shape(&self) -> &Shape {
        &self.shape
    }

    pub(crate) fn strides(&self) -> &[usize] {
        &self.strides
    }

    pub(crate) fn offset(&self) -> usize {
        self.offset
    }

    /// It fitted when the layout was made.
    pub(crate) fn numel(&self) -> usize {
        self.shape.iter().product()
    }

    /// Elements from the first to behind the last: what the layout touches of its storage.
    pub(crate) fn span(&self) -> Range<usize> {
        if self.numel() == 0 {
            return self.offset..self.offset;
        }
        let last: usize =
            self.shape.iter().zip(&self.strides).map(|(size, stride)| (size - 1) * stride).sum();
        self.offset..self.offset + last + 1
    }

    /// Whether the elements lie one after the other in the order of their indices.
    pub(crate) fn is_contiguous(&self) -> bool {
        let mut expected = 1;
        for (size, stride) in self.shape.iter().zip(&self.strides).rev() {
            if *size == 0 {
                return true;
            }
            if *size != 1 {
                if *stride != expected {
                    return false;
                }
                expected *= size;
            }
        }
        true
    }

    /// Whether the elements fill their span, each place once, in some order of the axes.
    pub(crate) fn is_dense(&self) -> bool {
        self.sorted_by_stride().is_contiguous()
    }

    /// Whether two indices lead to the same place, as after expanding. Says yes where it cannot tell
    /// cheaply; only layouts that users build by hand come that far.
    pub(crate) fn overlaps_itself(&self) -> bool {
        let sorted = self.sorted_by_stride();
        let mut reach = 0;
        for (size, stride) in sorted.shape.iter().zip(&sorted.strides).rev() {
            if *size > 1 {
                if *stride <= reach {
                    return true;
                }
                reach += (size - 1) * stride;
            }
        }
        false
    }

    /// Axes from the largest stride to the smallest.
    fn sorted_by_stride(&self) -> Self {
        let mut axes: SmallVec<[usize; INLINE]> = (0..self.shape.len()).collect();
        axes.sort_by(|a, b| self.strides[*b].cmp(&self.strides[*a]));
        self.pick(&axes)
    }

    fn pick(&self, axes: &[usize]) -> Self {
        Self {
            shape: Shape::from_iter(axes.iter().map(|axis| self.shape[*axis])),
            strides: axes.iter().map(|axis| self.strides[*axis]).collect(),
            offset: self.offset,
        }
    }

    /// The same elements with axes in this order. None unless each axis is named once.
    pub(crate) fn permute(&self, axes: &[usize]) -> Option<Self> {
        let mut seen: SmallVec<[bool; INLINE]> = SmallVec::from_elem(false, self.shape.len());
        for axis in axes {
            if std::mem::replace(seen.get_mut(*axis)?, true) {
                return None;
            }
        }
        seen.iter().all(|seen| *seen).then(|| self.pick(axes))
    }

    /// `length` indices of an axis from `start` on, every `step`-th.
    pub(crate) fn slice(
        &self,
        axis: usize,
        start: usize,
        length: usize,
        step: usize,
    ) -> Option<Self> {
        let size = *self.shape.get(axis)?;
        let covered = match length {
            0 => 0,
            _ => (length - 1).checked_mul(step)?.checked_add(1)?,
        };
        if step == 0 || start.checked_add(covered)? > size {
            return None;
        }
        let mut view = self.clone();
        if length > 0 {
            view.offset += start * self.strides[axis];
        }
        view.shape.0[axis] = length;
        view.strides[axis] = self.strides[axis].checked_mul(step)?;
        Some(view)
    }

    /// The same elements of a storage that begins `by` places later.
    pub(crate) fn moved_back(&self, by: usize) -> Option<Self> {
        Some(Self { offset: self.offset.checked_sub(by)?, ..self.clone() })
    }

    /// One more axis of size one.
    pub(crate) fn unsqueeze(&self, axis: usize) -> Option<Self> {
        if axis > self.shape.len() {
            return None;
        }
        let stride = match self.shape.get(axis) {
            Some(size) => size.checked_mul(self.strides[axis])?,
            None => 1,
        };
        let mut view = self.clone();
        view.shape.0.insert(axis, 1);
        view.strides.insert(axis, stride);
        Some(view)
    }

    /// Without an axis, which has size one.
    pub(crate) fn squeeze(&self, axis: usize) -> Option<Self> {
        if self.shape.get(axis) != Some(&1) {
            return None;
        }
        let mut view = self.clone();
        view.shape.0.remove(axis);
        view.strides.remove(axis);
        Some(view)
    }

    /// The same elements, repeated along axes of size one and along new axes in front.
    pub(crate) fn expand(&self, shape: &Shape) -> Option<Self> {
        shape.checked_numel()?;
        let new = shape.len().checked_sub(self.shape.len())?;
        let mut strides = Dims::with_capacity(shape.len());
        for (axis, size) in shape.iter().enumerate() {
            strides.push(match axis.checked_sub(new) {
                Some(old) if self.shape[old] == *size => self.strides[old],
                Some(old) if self.shape[old] != 1 => return None,
                _ => 0,
            });
        }
        Some(Self { shape: shape.clone(), strides, offset: self.offset })
    }

    /// The same elements in the same order under another shape, if strides can say so.
    pub(crate) fn view(&self, shape: &Shape) -> Option<Self> {
        let numel = self.numel();
        if shape.checked_numel()? != numel {
            return None;
        }
        if numel == 0 || self.is_contiguous() {
            let layout = Self::contiguous(shape.clone())?;
            return Some(Self { offset: self.offset, ..layout });
        }
        // Old axes from the last on, in runs that lie evenly spaced; new axes must cut such runs.
        let mut strides: Dims = SmallVec::from_elem(0, shape.len());
        let mut new = shape.len();
        let mut run_stride = *self.strides.last()?;
        let (mut run, mut cut) = (1, 1);
        for old in (0..self.shape.len()).rev() {
            run *= self.shape[old];
            let ends = match old.checked_sub(1) {
                None => true,
                Some(next) => self.shape[next] != 1 && self.strides[next] != run * run_stride,
            };
            if !ends {
                continue;
            }
            while new > 0 && (cut < run || shape[new - 1] == 1) {
                new -= 1;
                strides[new] = cut * run_stride;
                cut *= shape[new];
            }
            if cut != run {
                return None;
            }
            if let Some(next) = old.checked_sub(1) {
                (run_stride, run, cut) = (self.strides[next], 1, 1);
            }
        }
        (new == 0).then(|| Self { shape: shape.clone(), strides, offset: self.offset })
    }

    /// The place of the element with this index in order, counted from the offset.
    pub(crate) fn place_of(&self, mut index: usize) -> usize {
        let mut place = 0;
        for (size, stride) in self.shape.iter().zip(&self.strides).rev() {
            place += index % size * stride;
            index /= size;
        }
        place
    }

    /// The places of the elements `from..to`, counted from the offset, in runs of even spacing:
    /// `visit(first place, stride, length)`.
    pub(crate) fn for_each_run(
        &self,
        indices: Range<usize>,
        mut visit: impl FnMut(usize, usize, usize),
    ) {
        let (Some(&inner), Some(&stride)) = (self.shape.last(), self.strides.last()) else {
            if !indices.is_empty() {
                visit(0, 1, 1);
            }
            return;
        };
        let mut index = indices.start;
        while index < indices.end {
            let length = (inner - index % inner).min(indices.end - index);
            visit(self.place_of(index), stride, length);
            index += length;
        }
    }
}

/// An axis as callers write it: negative ones count from the end.
pub(crate) fn axis_of(axis: isize, axes: usize) -> Option<usize> {
    let axes = isize::try_from(axes).ok()?;
    let axis = if axis < 0 { axis + axes } else { axis };
    (0..axes).contains(&axis).then_some(axis as usize)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn layout<const N: usize>(sizes: [usize; N]) -> Layout {
        Layout::contiguous(sizes.into()).unwrap()
    }

    /// Every place in the order of indices.
    fn places(layout: &Layout) -> Vec<usize> {
        let mut places = Vec::new();
        layout.for_each_run(0..layout.numel(), |first, stride, length| {
            places.extend((0..length).map(|step| layout.offset() + first + step * stride));
        });
        places
    }

    #[test]
    fn views_point_at_the_right_elements() {
        let base = layout([2, 3]);
        assert_eq!(places(&base.permute(&[1, 0]).unwrap()), [0, 3, 1, 4, 2, 5]);
        assert_eq!(places(&base.slice(1, 1, 2, 1).unwrap()), [1, 2, 4, 5]);
        assert_eq!(places(&base.slice(1, 0, 2, 2).unwrap()), [0, 2, 3, 5]);
        assert_eq!(places(&base.unsqueeze(1).unwrap()), [0, 1, 2, 3, 4, 5]);
        let row = base.slice(0, 1, 1, 1).unwrap();
        assert_eq!(places(&row.expand(&[2, 3].into()).unwrap()), [3, 4, 5, 3, 4, 5]);
        assert_eq!(places(&row.squeeze(0).unwrap()), [3, 4, 5]);
        assert_eq!(places(&Layout::contiguous(().into()).unwrap()), [0]);
    }

    #[test]
    fn impossible_changes_are_refused() {
        let base = layout([2, 3]);
        assert_eq!(base.permute(&[0, 0]), None);
        assert_eq!(base.permute(&[0]), None);
        assert_eq!(base.permute(&[0, 2]), None);
        assert_eq!(base.slice(1, 2, 2, 1), None);
        assert_eq!(base.slice(1, 1, usize::MAX, 1), None);
        assert_eq!(base.slice(1, 0, 2, 0), None);
        assert_eq!(base.squeeze(0), None);
        assert_eq!(base.unsqueeze(3), None);
        assert_eq!(base.expand(&[2, 4].into()), None);
        assert_eq!(base.expand(&[3].into()), None);
        assert_eq!(base.view(&[4].into()), None);
        assert_eq!(base.permute(&[1, 0]).unwrap().view(&[6].into()), None);
        assert_eq!(Layout::contiguous([usize::MAX, 2].into()), None);
        assert_eq!(Layout::contiguous([usize::MAX, 2, 0].into()).map(|it| it.numel()), None);
    }

    #[test]
    fn overlap_and_density_are_seen() {
        let base = layout([4, 5]);
        assert!(base.permute(&[1, 0]).unwrap().is_dense());
        assert!(!base.slice(1, 0, 2, 1).unwrap().is_dense());
        assert!(!base.slice(1, 0, 2, 1).unwrap().overlaps_itself());
        assert!(layout([1, 5]).expand(&[4, 5].into()).unwrap().overlaps_itself());
    }

    #[test]
    fn shapes_broadcast_from_the_last_axis_on() {
        assert_eq!(broadcast(&[2, 1, 3], &[4, 1]), Some([2, 4, 3].into()));
        assert_eq!(broadcast(&[], &[2]), Some([2].into()));
        assert_eq!(broadcast(&[0], &[1]), Some([0].into()));
        assert_eq!(broadcast(&[2], &[3]), None);
    }

    proptest! {
        /// A view under another shape has the same places in the same order, whatever the strides.
        #[test]
        fn a_view_keeps_order(
            sizes in prop::collection::vec(1usize..4, 1..5),
            order in Just(()).prop_perturb(|(), mut rng| rng.random::<u64>()),
            cut in 1usize..9,
        ) {
            let mut axes: Vec<usize> = (0..sizes.len()).collect();
            let count = axes.len();
            axes.rotate_left(order as usize % count);
            let base = Layout::contiguous(sizes.into()).unwrap().permute(&axes).unwrap();
            let numel = base.numel();
            if numel.is_multiple_of(cut)
                && let Some(view) = base.view(&[cut, numel / cut].into())
            {
                prop_assert_eq!(places(&view), places(&base));
            }
            let again = base.view(base.shape()).unwrap();
            prop_assert_eq!(places(&again), places(&base));
        }
    }
}
