//! The recipes: their names, and which sizes each has.

use std::fmt;
use std::str::FromStr;

use crate::error::Error;

/// A built-in program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Recipe {
    /// Linear layers with `relu` between them, and ten classes.
    Mlp,
    /// Residual blocks of two linear layers: the chain on which checkpointing is usually shown.
    DeepNet,
    /// GPT-2 over bytes, on this project's own documents.
    Gpt2,
    /// ResNet-50 on generated images.
    ResNet50,
    /// The uplink of a massive-MIMO cell: no training, but symbols sent and detected.
    Mimo,
}

/// A number that says how large a recipe is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Size {
    /// Layers or blocks.
    Layers,
    /// Numbers for each token or row; channels of the first stage.
    Width,
    /// Examples in a step.
    Batch,
    /// Tokens in an example.
    Seq,
    /// Pixels along each side of an image.
    Image,
    /// Antennas of a base station.
    Antennas,
    /// Users that send to it.
    Users,
    /// Subcarriers, each with a channel of its own.
    Subcarriers,
}

/// A size, its default, and the most that is accepted: beyond that, counts of bytes could overflow.
struct Known(Size, usize, usize);

impl Recipe {
    /// Every one.
    pub const ALL: [Self; 5] = [Self::Mlp, Self::DeepNet, Self::Gpt2, Self::ResNet50, Self::Mimo];

    /// Its name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Mlp => "mlp",
            Self::DeepNet => "deepnet",
            Self::Gpt2 => "gpt2",
            Self::ResNet50 => "resnet50",
            Self::Mimo => "mimo",
        }
    }

    /// Whether it has parameters, gradients and an optimizer.
    #[must_use]
    pub fn trains(self) -> bool {
        self != Self::Mimo
    }

    /// The sizes it has.
    pub fn sizes(self) -> impl Iterator<Item = Size> {
        self.known().iter().map(|known| known.0)
    }

    /// What a size is unless it is set; none if the recipe does not have it.
    #[must_use]
    pub fn default_of(self, size: Size) -> Option<usize> {
        self.known().iter().find(|known| known.0 == size).map(|known| known.1)
    }

    pub(crate) fn most_of(self, size: Size) -> Option<usize> {
        self.known().iter().find(|known| known.0 == size).map(|known| known.2)
    }

    fn known(self) -> &'static [Known] {
        const LAYERS: usize = 10_000;
        const WIDTH: usize = 1 << 17;
        const BATCH: usize = 1 << 22;
        match self {
            Self::Mlp => &[
                Known(Size::Layers, 4, LAYERS),
                Known(Size::Width, 1024, WIDTH),
                Known(Size::Batch, 256, BATCH),
            ],
            Self::DeepNet => &[
                Known(Size::Layers, 20, LAYERS),
                Known(Size::Width, 512, WIDTH),
                Known(Size::Batch, 128, BATCH),
            ],
            Self::Gpt2 => &[
                Known(Size::Layers, 4, LAYERS),
                Known(Size::Width, 128, WIDTH),
                Known(Size::Batch, 16, BATCH),
                Known(Size::Seq, 64, 1 << 17),
            ],
            Self::ResNet50 => &[
                Known(Size::Width, 64, 1 << 12),
                Known(Size::Batch, 4, BATCH),
                Known(Size::Image, 224, 1 << 13),
            ],
            Self::Mimo => &[
                Known(Size::Antennas, 64, 1 << 13),
                Known(Size::Users, 16, 1 << 13),
                Known(Size::Subcarriers, 1000, 1 << 17),
                Known(Size::Batch, 1, BATCH),
            ],
        }
    }
}

impl Size {
    /// Every one.
    pub const ALL: [Self; 8] = [
        Self::Layers,
        Self::Width,
        Self::Batch,
        Self::Seq,
        Self::Image,
        Self::Antennas,
        Self::Users,
        Self::Subcarriers,
    ];

    /// Its name, which is that of its flag.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Layers => "layers",
            Self::Width => "width",
            Self::Batch => "batch",
            Self::Seq => "seq",
            Self::Image => "image",
            Self::Antennas => "antennas",
            Self::Users => "users",
            Self::Subcarriers => "subcarriers",
        }
    }
}

impl fmt::Display for Recipe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Recipe {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        Self::ALL.into_iter().find(|it| it.name() == text).ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            Error::Options(format!("`{text}` is no recipe: take one of {names}"))
        })
    }
}
