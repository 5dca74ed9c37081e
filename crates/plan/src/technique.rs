//! What saves memory, one thing at a time.
//!
//! In:  options, as someone chose them.
//! Out: the same options with a [`Technique`] applied, where it can be.

use crate::options::{Amp, Checkpoint, Options};
use crate::recipe::Size;

/// The setting that [`Technique::ExpandableSegments`] adds.
const EXPANDABLE: &str = "expandable_segments:True";

/// A way to need less memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Technique {
    /// Segments that grow in place: reserved bytes follow allocated ones. Costs nothing.
    ExpandableSegments,
    /// The batch in this many parts: their activations are never there together. The same arithmetic,
    /// in smaller pieces.
    Accumulate(usize),
    /// Products in `bf16`: activations of half the size, fewer digits.
    Amp,
    /// About √n segments are kept; the rest of the forward runs twice.
    CheckpointSqrt,
    /// Only the inputs of blocks are kept; nearly all of the forward runs twice.
    CheckpointEach,
    /// Saved values wait in host memory: two copies for each.
    Offload,
}

impl Technique {
    /// Every one, those that cost least first.
    pub const ALL: [Self; 8] = [
        Self::ExpandableSegments,
        Self::Accumulate(2),
        Self::Accumulate(4),
        Self::Accumulate(8),
        Self::Amp,
        Self::CheckpointSqrt,
        Self::CheckpointEach,
        Self::Offload,
    ];

    /// The flags that apply it.
    #[must_use]
    pub fn flags(self) -> String {
        match self {
            Self::ExpandableSegments => format!("--conf {EXPANDABLE}"),
            Self::Accumulate(parts) => format!("--accumulate {parts}"),
            Self::Amp => "--amp bf16".to_owned(),
            Self::CheckpointSqrt => "--checkpoint sqrt".to_owned(),
            Self::CheckpointEach => "--checkpoint every:1".to_owned(),
            Self::Offload => "--offload".to_owned(),
        }
    }

    /// The options with it; none if they have it already, or if it does not fit them.
    #[must_use]
    pub fn apply(self, options: &Options) -> Option<Options> {
        if !options.recipe().trains() && self != Self::ExpandableSegments {
            return None;
        }
        let mut with = options.clone();
        match self {
            Self::ExpandableSegments => {
                if options.conf.contains("expandable_segments") {
                    return None;
                }
                let separator = if options.conf.is_empty() { "" } else { "," };
                with.conf = format!("{}{separator}{EXPANDABLE}", options.conf);
            }
            Self::Accumulate(parts) => {
                let splits = options.size(Size::Batch).is_multiple_of(parts);
                if !splits || options.accumulate >= parts {
                    return None;
                }
                with.accumulate = parts;
            }
            Self::Amp => with.amp = Some(options.amp.unwrap_or(Amp::Bf16)),
            Self::CheckpointSqrt => {
                if options.checkpoint != Checkpoint::None {
                    return None;
                }
                with.checkpoint = Checkpoint::Sqrt;
            }
            Self::CheckpointEach => with.checkpoint = Checkpoint::Every(1),
            // What is captured reaches no host memory.
            Self::Offload if options.graph => return None,
            Self::Offload => with.offload = true,
        }
        (with != *options).then_some(with)
    }

    /// Whether it computes parts of the forward again.
    pub(crate) fn recomputes(self) -> bool {
        matches!(self, Self::CheckpointSqrt | Self::CheckpointEach)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::Recipe;

    #[test]
    fn each_is_applied_once_and_its_flags_say_so() {
        for technique in Technique::ALL {
            let options = Options::new(Recipe::EMBEDDED);
            let with = technique.apply(&options).unwrap();
            assert_eq!(with.flags(), technique.flags());
            assert_eq!(technique.apply(&with), None, "{technique:?} twice");
        }
        let odd = Options::new(Recipe::EMBEDDED).with(Size::Batch, 7).unwrap();
        assert_eq!(Technique::Accumulate(2).apply(&odd), None);
    }
}
