//! Which layers of a chain are recomputed.
//!
//! With segments of k out of n layers, n/k inputs are kept and k layers are alive at a time: the sum
//! is least at k = √n. The last segment is kept, as in PyTorch: its backward comes first, so that
//! recomputing it would save nothing.

use std::ops::Range;

/// Which layers of a chain are recomputed in the backward.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Placement {
    /// None: everything is kept.
    #[default]
    Keep,
    /// This many segments of equal length, the last with the rest: PyTorch's `checkpoint_sequential`.
    Segments(usize),
    /// Segments of this many layers.
    Every(usize),
    /// Each layer on its own, the last too: what a program does that calls `checkpoint` for each.
    Each,
    /// About √n segments of √n layers.
    SquareRoot,
}

/// A chain cut into pieces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segments {
    /// Checkpointed, one after the other.
    pub recomputed: Vec<Range<usize>>,
    /// The rest.
    pub kept: Range<usize>,
}

impl Placement {
    /// Cuts a chain of `layers`.
    #[must_use]
    pub fn segments(self, layers: usize) -> Segments {
        let cut = |length: usize, count: usize| {
            let recomputed = (0..count).map(|it| it * length..(it + 1) * length).collect();
            Segments { recomputed, kept: count * length..layers }
        };
        let parts = |count: usize| {
            let count = count.clamp(1, layers.max(1));
            cut(layers / count, count - 1)
        };
        match self {
            Self::Keep => cut(0, 0),
            Self::Segments(count) => parts(count),
            Self::Every(length) => {
                let length = length.max(1);
                cut(length, layers.div_ceil(length).saturating_sub(1))
            }
            Self::Each => cut(1, layers),
            Self::SquareRoot => parts(layers.isqrt()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_tile_the_chain_for_every_length() {
        for layers in 0..200 {
            for placement in [
                Placement::Keep,
                Placement::SquareRoot,
                Placement::Segments(0),
                Placement::Segments(5),
                Placement::Every(0),
                Placement::Every(3),
            ] {
                let Segments { recomputed, kept } = placement.segments(layers);
                let mut next = 0;
                for segment in recomputed.iter().chain([&kept]) {
                    assert_eq!(segment.start, next, "{placement:?} of {layers}");
                    assert!(segment.end > next || layers == 0, "{placement:?} of {layers}");
                    next = segment.end;
                }
                assert_eq!(next, layers, "{placement:?}");
            }
        }
        let Segments { recomputed, kept } = Placement::SquareRoot.segments(16);
        assert_eq!((recomputed, kept), (vec![0..4, 4..8, 8..12], 12..16));
        let Segments { recomputed, kept } = Placement::Each.segments(3);
        assert_eq!((recomputed, kept), (vec![0..1, 1..2, 2..3], 3..3));
    }
}
