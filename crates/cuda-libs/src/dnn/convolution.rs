//! What is asked for: sizes, strides and types. Plain data, by which plans are kept.

use std::fmt;

use crate::blas::{Math, Number};
use crate::{Error, Result};

/// Which of the three is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pass {
    /// The output, from input and filter.
    Forward,
    /// The gradient of the input, from filter and the gradient of the output.
    InputGradient,
    /// The gradient of the filter, from input and the gradient of the output.
    FilterGradient,
}

/// Four sizes (images, channels, height, width; for a filter: channels out, channels in of a group, height, width) and how many
/// numbers lie between neighbours in each direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Layout4 {
    /// The sizes.
    pub sizes: [u64; 4],
    /// The strides.
    pub strides: [u64; 4],
}

impl Layout4 {
    /// Dense, image by image, channel by channel: PyTorch's default.
    #[must_use]
    pub const fn channels_first(sizes: [u64; 4]) -> Self {
        let [_, c, h, w] = sizes;
        Self { sizes, strides: [c * h * w, h * w, w, 1] }
    }

    /// Dense, image by image, with the channels of a pixel together: PyTorch's `channels_last`.
    #[must_use]
    pub const fn channels_last(sizes: [u64; 4]) -> Self {
        let [_, c, h, w] = sizes;
        Self { sizes, strides: [h * w * c, 1, w * c, c] }
    }
}

/// A convolution in two directions (a cross-correlation, as in PyTorch), or a gradient of it. Sums are in `f32`, or in `f64` for
/// numbers of that type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Convolution {
    /// Which of the three.
    pub pass: Pass,
    /// The input, or its gradient.
    pub input: Layout4,
    /// The filter, or its gradient.
    pub filter: Layout4,
    /// The output, or its gradient.
    pub output: Layout4,
    /// Zeros around an image: above and below, left and right.
    pub padding: [u64; 2],
    /// Steps of the filter.
    pub stride: [u64; 2],
    /// Distance of the filter's points.
    pub dilation: [u64; 2],
    /// The numbers of all three: no complex ones.
    pub number: Number,
    /// How `f32` is multiplied.
    pub math: Math,
    /// Whether the same bits must come out every time.
    pub deterministic: bool,
    /// Bytes of workspace.
    pub workspace: u64,
}

impl Convolution {
    /// Height and width that come out.
    fn output_size(&self, direction: usize) -> Option<u64> {
        let (input, filter) = (self.input.sizes[2 + direction], self.filter.sizes[2 + direction]);
        let padded = self.padding[direction].checked_mul(2)?.checked_add(input)?;
        let reach = filter.checked_sub(1)?.checked_mul(self.dilation[direction])?.checked_add(1)?;
        padded.checked_sub(reach)?.checked_div(self.stride[direction]).map(|steps| steps + 1)
    }

    /// Refuses what makes no sense, before the library sees it.
    pub(super) fn check(&self) -> Result<()> {
        let wrong = |what: &str| Err(Error::Misuse(format!("{what}, in {self}")));
        let all = [self.input, self.filter, self.output];
        if all.iter().any(|it| it.sizes.contains(&0)) || self.dilation.contains(&0) {
            return wrong("a convolution has at least one number in each direction");
        }
        let large = |it: &u64| i64::try_from(*it).is_err();
        if all.iter().any(|it| it.sizes.iter().chain(&it.strides).any(large)) {
            return wrong("a size is larger than memory");
        }
        let [images, channels, ..] = self.input.sizes;
        let [out, of_group, ..] = self.filter.sizes;
        if self.output.sizes[0] != images || self.output.sizes[1] != out {
            return wrong("the output has other images or channels than input and filter");
        }
        if !channels.is_multiple_of(of_group) || !out.is_multiple_of(channels / of_group) {
            return wrong("the filter's channels are no group of the input's");
        }
        for direction in 0..2 {
            if self.output_size(direction) != Some(self.output.sizes[2 + direction]) {
                return wrong(
                    "the output has another size than input, filter, padding and steps give",
                );
            }
        }
        if matches!(self.number, Number::Complex32 | Number::Complex64) {
            return wrong("there are no complex convolutions");
        }
        Ok(())
    }
}

impl fmt::Display for Convolution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pass, input, filter, output, .. } = self;
        write!(
            f,
            "{pass:?} of {:?} by {:?} to {:?} in {:?} (strides {:?}, {:?}, {:?}; padding {:?}, steps {:?}, dilation {:?})",
            input.sizes,
            filter.sizes,
            output.sizes,
            self.number,
            input.strides,
            filter.strides,
            output.strides,
            self.padding,
            self.stride,
            self.dilation,
        )?;
        if self.math == Math::Tf32 {
            write!(f, " by TF32")?;
        }
        if self.deterministic {
            write!(f, ", deterministic")?;
        }
        write!(f, ", within {} bytes of workspace", self.workspace)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_makes_no_sense_is_refused_with_its_shape() {
        let good = Convolution {
            pass: Pass::Forward,
            input: Layout4::channels_last([2, 8, 11, 9]),
            filter: Layout4::channels_last([16, 4, 3, 3]),
            output: Layout4::channels_last([2, 16, 6, 5]),
            padding: [1, 1],
            stride: [2, 2],
            dilation: [1, 1],
            number: Number::Bf16,
            math: Math::Full,
            deterministic: false,
            workspace: 0,
        };
        good.check().unwrap();
        assert_eq!(good.input.strides, [8 * 11 * 9, 1, 72, 8]);
        let refused = |change: &dyn Fn(&mut Convolution), part: &str| {
            let mut convolution = good;
            change(&mut convolution);
            let Err(Error::Misuse(text)) = convolution.check() else {
                panic!("not refused: {part}")
            };
            assert!(text.contains(part) && text.contains("Forward of [2, "), "{text}");
        };
        refused(&|it| it.filter.sizes[3] = 0, "at least one number");
        refused(&|it| it.dilation[0] = 0, "at least one number");
        refused(&|it| it.stride[1] = 0, "another size");
        refused(&|it| it.dilation[1] = 2, "another size");
        refused(&|it| it.padding = [u64::MAX, 1], "another size");
        refused(&|it| it.filter.sizes[1] = 3, "no group");
        refused(&|it| it.output.sizes[1] = 15, "other images or channels");
        refused(&|it| it.input.strides[0] = u64::MAX, "larger than memory");
        refused(&|it| it.number = Number::Complex32, "no complex");
    }
}
