//! Windows that slide over images: how many places they have, and which elements they see.
//!
//! In:  sizes, and stride, padding and dilation as callers write them.
//! Out: the size of what convolutions and pools make; ranges of indices. Plain numbers, no tensors.

use std::ops::Range;

use crate::error::{Call, ErrorKind, Result};
use crate::tensor::Tensor;

/// A number for both axes of an image, or one for each: `3`, or `[3, 5]` for height and width.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair(pub(crate) [usize; 2]);

impl From<usize> for Pair {
    fn from(both: usize) -> Self {
        Self([both; 2])
    }
}

impl From<[usize; 2]> for Pair {
    fn from(each: [usize; 2]) -> Self {
        Self(each)
    }
}

/// What options of windows have in common.
macro_rules! window_options {
    ($options:ty) => {
        impl $options {
            /// Moves by this much.
            #[must_use]
            pub fn stride(mut self, stride: impl Into<Pair>) -> Self {
                self.stride = stride.into();
                self
            }

            /// Reaches this far beyond each side.
            #[must_use]
            pub fn padding(mut self, padding: impl Into<Pair>) -> Self {
                self.padding = padding.into();
                self
            }

            /// Sees elements this far apart.
            #[must_use]
            pub fn dilation(mut self, dilation: impl Into<Pair>) -> Self {
                self.dilation = dilation.into();
                self
            }
        }
    };
}

pub(super) use window_options;

/// A window along one axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Window {
    /// The axis's size.
    pub(super) size: usize,
    pub(super) kernel: usize,
    pub(super) stride: usize,
    pub(super) padding: usize,
    pub(super) dilation: usize,
    /// How many places it has.
    pub(super) places: usize,
}

impl Window {
    /// None if it has no place, or if a number is zero or beyond counting. With `ceil`, a last place
    /// may reach behind the padding, as long as it begins before it.
    pub(super) fn new(
        size: usize,
        [kernel, stride, padding, dilation]: [usize; 4],
        ceil: bool,
    ) -> Option<Self> {
        if kernel == 0 || stride == 0 || dilation == 0 {
            return None;
        }
        let reach = (kernel - 1).checked_mul(dilation)?.checked_add(1)?;
        let padded = padding.checked_mul(2)?.checked_add(size)?;
        // Indices are taken as signed numbers.
        isize::try_from(padded.checked_add(reach)?.checked_add(stride)?).ok()?;
        let room = padded.checked_sub(reach)?;
        let mut places = (if ceil { room.div_ceil(stride) } else { room / stride }) + 1;
        if ceil && (places - 1) * stride >= size + padding {
            places -= 1;
        }
        Some(Self { size, kernel, stride, padding, dilation, places })
    }

    /// The element that the `tap`-th of the kernel sees at a place; none in the padding.
    #[inline]
    pub(super) fn sees(&self, place: usize, tap: usize) -> Option<usize> {
        (place * self.stride + tap * self.dilation)
            .checked_sub(self.padding)
            .filter(|index| *index < self.size)
    }

    /// The taps that see elements at a place.
    pub(super) fn taps(&self, place: usize) -> Range<usize> {
        let start = place * self.stride;
        let first = self.padding.saturating_sub(start).div_ceil(self.dilation);
        let end = (self.size + self.padding).saturating_sub(start).div_ceil(self.dilation);
        first.min(self.kernel)..end.min(self.kernel)
    }

    /// Of some places, those at which the `tap`-th of the kernel sees an element.
    pub(super) fn inside(&self, tap: usize, places: Range<usize>) -> Range<usize> {
        let shift = tap * self.dilation;
        let first = self.padding.saturating_sub(shift).div_ceil(self.stride);
        let end = (self.size + self.padding).saturating_sub(shift).div_ceil(self.stride);
        let first = first.clamp(places.start, places.end);
        first..end.clamp(first, places.end)
    }
}

/// Images as kernels see them: `[image, channel, height, width]`.
pub(super) fn images(call: Call, x: &Tensor) -> Result<[usize; 4]> {
    match x.shape()[..] {
        [images, channels, height, width] => Ok([images, channels, height, width]),
        _ => Err(call
            .shape_error("images have four axes: image, channel, height, width")
            .with_tensor("self", x)
            .help("unsqueeze(0) makes a batch of one image")),
    }
}

/// The window along both axes, or an error that says what does not fit.
pub(super) fn windows(
    call: Call,
    x: &Tensor,
    [kernel, stride, padding, dilation]: [[usize; 2]; 4],
    ceil: bool,
) -> Result<[Window; 2]> {
    let [_, _, height, width] = images(call, x)?;
    let one = |axis: usize, size: usize| {
        Window::new(size, [kernel[axis], stride[axis], padding[axis], dilation[axis]], ceil)
    };
    match (one(0, height), one(1, width)) {
        (Some(rows), Some(columns)) => Ok([rows, columns]),
        _ => {
            let zero = [kernel, stride, dilation].iter().flatten().any(|it| *it == 0);
            let error = if zero {
                call.error(ErrorKind::Value, "kernel, stride and dilation are at least one")
            } else {
                call.shape_error("the kernel is larger than the padded image")
            };
            Err(error
                .with_tensor("self", x)
                .with("kernel", format_args!("{kernel:?}"))
                .with("stride", format_args!("{stride:?}"))
                .with("padding", format_args!("{padding:?}"))
                .with("dilation", format_args!("{dilation:?}")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_those_of_single_elements() {
        for size in 1..8 {
            for kernel in 1..4 {
                for stride in 1..4 {
                    for padding in 0..3 {
                        for dilation in 1..3 {
                            let numbers = [kernel, stride, padding, dilation];
                            for ceil in [false, true] {
                                if let Some(window) = Window::new(size, numbers, ceil) {
                                    check(window);
                                }
                            }
                        }
                    }
                }
            }
        }
    }

    fn check(window: Window) {
        for place in 0..window.places {
            let taps: Vec<_> =
                (0..window.kernel).filter(|tap| window.sees(place, *tap).is_some()).collect();
            let range = window.taps(place);
            assert!(range.clone().eq(taps) || range.is_empty(), "{window:?} at {place}: {range:?}");
        }
        for tap in 0..window.kernel {
            let all = 0..window.places;
            let places: Vec<_> =
                all.clone().filter(|place| window.sees(*place, tap).is_some()).collect();
            assert!(window.inside(tap, all).eq(places), "{window:?}, tap {tap}");
        }
    }

    #[test]
    fn sizes_are_pytorch_s() {
        let places =
            |size, numbers, ceil| Window::new(size, numbers, ceil).map(|window| window.places);
        assert_eq!(places(224, [7, 2, 3, 1], false), Some(112));
        assert_eq!(places(112, [3, 2, 1, 1], false), Some(56));
        assert_eq!(places(5, [2, 2, 0, 1], false), Some(2));
        assert_eq!(places(5, [2, 2, 0, 1], true), Some(3));
        assert_eq!(places(4, [2, 3, 1, 1], true), Some(2), "no place begins in the padding");
        assert_eq!(places(2, [3, 1, 0, 1], false), None);
        assert_eq!(places(7, [3, 1, 0, usize::MAX], false), None);
        assert_eq!(places(7, [0, 1, 0, 1], false), None);
    }
}
