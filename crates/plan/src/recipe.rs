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
    /// GPT-2, on this project's own documents.
    Gpt2(Gpt2Size),
    /// ResNet-50 on generated images.
    ResNet50,
    /// The uplink of a massive-MIMO cell: no training, but symbols sent and detected.
    Mimo,
}

/// How large a GPT-2 is, unless its sizes are set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Gpt2Size {
    /// Small enough to train on any machine in seconds; its tokens are bytes.
    Tiny,
    /// As published: 124,439,808 parameters.
    Small,
    /// As published: 354,823,168 parameters.
    Medium,
    /// As published: 774,030,080 parameters.
    Large,
    /// As published: 1,557,611,200 parameters.
    Xl,
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
    /// Kinds of tokens.
    Vocab,
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

const LAYERS: usize = 10_000;

const WIDTH: usize = 1 << 17;

const BATCH: usize = 1 << 22;

const fn gpt2(layers: usize, width: usize, batch: usize, seq: usize, vocab: usize) -> [Known; 5] {
    [
        Known(Size::Layers, layers, LAYERS),
        Known(Size::Width, width, WIDTH),
        Known(Size::Batch, batch, BATCH),
        Known(Size::Seq, seq, 1 << 17),
        Known(Size::Vocab, vocab, 1 << 24),
    ]
}

impl Recipe {
    /// Every one.
    pub const ALL: [Self; 9] = [
        Self::Mlp,
        Self::DeepNet,
        Self::Gpt2(Gpt2Size::Tiny),
        Self::Gpt2(Gpt2Size::Small),
        Self::Gpt2(Gpt2Size::Medium),
        Self::Gpt2(Gpt2Size::Large),
        Self::Gpt2(Gpt2Size::Xl),
        Self::ResNet50,
        Self::Mimo,
    ];

    /// What runs unless another is named: small enough for any machine.
    pub const EMBEDDED: Self = Self::Gpt2(Gpt2Size::Tiny);

    /// Its name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Mlp => "mlp",
            Self::DeepNet => "deepnet",
            Self::Gpt2(Gpt2Size::Tiny) => "gpt2-tiny",
            Self::Gpt2(Gpt2Size::Small) => "gpt2",
            Self::Gpt2(Gpt2Size::Medium) => "gpt2-medium",
            Self::Gpt2(Gpt2Size::Large) => "gpt2-large",
            Self::Gpt2(Gpt2Size::Xl) => "gpt2-xl",
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
            Self::Gpt2(Gpt2Size::Tiny) => const { &gpt2(4, 128, 16, 64, 256) },
            Self::Gpt2(Gpt2Size::Small) => const { &gpt2(12, 768, 8, 1024, 50_257) },
            Self::Gpt2(Gpt2Size::Medium) => const { &gpt2(24, 1024, 8, 1024, 50_257) },
            Self::Gpt2(Gpt2Size::Large) => const { &gpt2(36, 1280, 8, 1024, 50_257) },
            Self::Gpt2(Gpt2Size::Xl) => const { &gpt2(48, 1600, 8, 1024, 50_257) },
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
    pub const ALL: [Self; 9] = [
        Self::Layers,
        Self::Width,
        Self::Batch,
        Self::Seq,
        Self::Vocab,
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
            Self::Vocab => "vocab",
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
