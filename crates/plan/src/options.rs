//! How a recipe is run: sizes, techniques, settings.
//!
//! In:  a recipe, and what differs from its defaults.
//! Out: [`Options`] whose values fit together, and the flags that make them.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use tonnage_engine::{Config, Policy, Release};
use tonnage_tensor::checkpoint::Placement;
use tonnage_tensor::{DType, MemoryProfile};

use crate::error::{Error, Result};
use crate::mimo::MimoOptions;
use crate::recipe::{Gpt2Size, Recipe, Size};

/// What a recipe is run with. Two runs with equal options do the same, to the byte and to the bit.
///
/// ```
/// use tonnage_plan::{Checkpoint, Options, Recipe, Size};
///
/// let mut options = Options::new(Recipe::EMBEDDED).with(Size::Layers, 12)?.with(Size::Width, 768)?;
/// options.checkpoint = Checkpoint::Sqrt;
/// assert_eq!(options.flags(), "--layers 12 --width 768 --checkpoint sqrt");
/// assert!(options.with(Size::Image, 224).is_err()); // GPT-2 sees no images
/// # Ok::<(), tonnage_plan::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Options {
    recipe: Recipe,
    /// In the order of [`Size::ALL`]; 0 for those that the recipe does not have.
    sizes: [usize; Size::ALL.len()],
    /// How many steps.
    pub steps: usize,
    /// What changes the parameters.
    pub optimizer: OptimizerKind,
    /// The 16-bit type of products, if they are not in 32 bits.
    pub amp: Option<Amp>,
    /// Whether products in 32 bits on a GPU may be rounded to TF32.
    pub tf32: bool,
    /// Which blocks are recomputed in the backward.
    pub checkpoint: Checkpoint,
    /// Into how many parts a batch is split, whose gradients are added up.
    pub accumulate: usize,
    /// Whether what the forward saves goes to host memory.
    pub offload: bool,
    /// Whether the step is captured into a graph once and then replayed.
    pub graph: bool,
    /// Bytes of the device, if it is not as large as it needs to be.
    pub limit: Option<u64>,
    /// The allocator's settings, as in `PYTORCH_CUDA_ALLOC_CONF`.
    pub conf: String,
    /// The allocator's placement rules; without, those that the environment names in `TONNAGE_CONF`, or PyTorch's.
    pub policy: Option<Policy>,
    /// Whose scratch memory is counted beside that of tensors.
    pub memory_profile: MemoryProfile,
    /// Where random numbers begin.
    pub seed: u64,
    /// Of `mimo`: power of one user at one antenna over that of the noise, in decibels.
    pub snr_db: f64,
    /// Where to write a snapshot of the end, or of the request that failed, with its history.
    pub save: Option<PathBuf>,
}

/// What changes parameters by their gradients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OptimizerKind {
    /// Gradient descent with momentum.
    Sgd,
    /// Adam.
    Adam,
    /// Adam whose weight decay is apart from the gradient.
    AdamW,
}

/// The 16-bit type of products.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Amp {
    /// Eight bits of exponent.
    Bf16,
    /// Five bits of exponent; losses are scaled.
    F16,
}

/// Which blocks of the chain are recomputed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Checkpoint {
    /// None: everything is kept.
    #[default]
    None,
    /// Segments of this many blocks.
    Every(usize),
    /// About √n segments of √n blocks.
    Sqrt,
}

impl Options {
    /// The defaults of a recipe.
    #[must_use]
    pub fn new(recipe: Recipe) -> Self {
        let (steps, optimizer) = match recipe {
            Recipe::Gpt2(Gpt2Size::Tiny) => (60, OptimizerKind::AdamW),
            Recipe::Gpt2(_) => (5, OptimizerKind::AdamW),
            Recipe::Mlp => (50, OptimizerKind::Adam),
            Recipe::DeepNet => (50, OptimizerKind::Adam),
            Recipe::ResNet50 => (5, OptimizerKind::Sgd),
            Recipe::Mimo => (MimoOptions::default().steps, OptimizerKind::Sgd),
        };
        Self {
            recipe,
            sizes: Size::ALL.map(|size| recipe.default_of(size).unwrap_or(0)),
            steps,
            optimizer,
            amp: None,
            tf32: false,
            checkpoint: Checkpoint::None,
            accumulate: 1,
            offload: false,
            graph: false,
            limit: None,
            conf: String::new(),
            policy: None,
            memory_profile: MemoryProfile::Bare,
            seed: 0,
            snr_db: MimoOptions::default().snr_db,
            save: None,
        }
    }

    /// The recipe.
    #[must_use]
    pub fn recipe(&self) -> Recipe {
        self.recipe
    }

    /// A size; 0 if the recipe does not have it.
    #[must_use]
    pub fn size(&self, size: Size) -> usize {
        self.sizes[size as usize]
    }

    /// The same with another size.
    ///
    /// # Errors
    ///
    /// If the recipe does not have it, or if it is too small or too large.
    pub fn with(mut self, size: Size, value: usize) -> Result<Self> {
        let (recipe, name) = (self.recipe, size.name());
        let Some(most) = recipe.most_of(size) else {
            let flags: Vec<_> = recipe.sizes().map(|it| format!("--{}", it.name())).collect();
            let flags = flags.join(", ");
            return Err(Error::Options(format!("{recipe} has no --{name}: its sizes are {flags}")));
        };
        let least = match (recipe, size) {
            (Recipe::Mlp, Size::Width) => 16,
            (Recipe::ResNet50, Size::Image) => 32,
            // The documents are read by bytes.
            (Recipe::Gpt2(_), Size::Vocab) => 256,
            _ => 1,
        };
        if !(least..=most).contains(&value) {
            return Err(Error::Options(format!(
                "--{name} {value}: {recipe} takes {least} to {most}"
            )));
        }
        let has_heads = matches!(recipe, Recipe::Gpt2(_));
        if has_heads && size == Size::Width && !value.is_multiple_of(8) {
            return Err(Error::Options(format!(
                "--width {value}: heads of {recipe} are equal parts of the width: take a multiple of 8, best of 64"
            )));
        }
        self.sizes[size as usize] = value;
        Ok(self)
    }

    /// Says what does not fit together.
    ///
    /// # Errors
    ///
    /// The first such thing.
    pub fn check(&self) -> Result<()> {
        let batch = self.size(Size::Batch);
        let problem = if self.steps == 0 || self.steps > 1_000_000 {
            format!("--steps {}: take 1 to 1000000", self.steps)
        } else if self.accumulate == 0 || !batch.is_multiple_of(self.accumulate) {
            format!(
                "--accumulate {}: a batch of {batch} does not split into that many equal parts",
                self.accumulate
            )
        } else if self.checkpoint == Checkpoint::Every(0) {
            "--checkpoint every:0: segments have at least one block".to_owned()
        } else if !self.recipe.trains() && self.has_technique() {
            format!(
                "{} does not train: --amp, --checkpoint, --accumulate and --offload have nothing to save there",
                self.recipe
            )
        } else if let Some(problem) = self.cannot_be_captured() {
            problem
        } else if self.limit == Some(0) {
            "--limit 0: nothing fits into no memory".to_owned()
        } else {
            self.config()?;
            return self.mimo().check().map_err(Error::Options);
        };
        Err(Error::Options(problem))
    }

    /// Why a graph of the step is not to be had, if one is wanted.
    fn cannot_be_captured(&self) -> Option<String> {
        let why = match self {
            Self { graph: false, .. } => return None,
            _ if !self.recipe.trains() => format!("{} does not train", self.recipe),
            Self { steps: 1, .. } => {
                "the first step runs as it is, so that all that stays is there: take at least 2 steps"
                    .to_owned()
            }
            Self { amp: Some(Amp::F16), .. } => {
                "with --amp f16 the program looks at gradients in the middle of a step: take --amp bf16"
                    .to_owned()
            }
            Self { offload: true, .. } => {
                "with --offload host memory is used anew in each step: leave one of them out".to_owned()
            }
            _ => return None,
        };
        Some(format!("--graph: {why}"))
    }

    fn has_technique(&self) -> bool {
        let checkpoints = self.checkpoint != Checkpoint::None;
        self.amp.is_some() || checkpoints || self.accumulate != 1 || self.offload
    }

    /// What `mimo` simulates.
    pub(crate) fn mimo(&self) -> MimoOptions {
        let size = |size: Size| match self.size(size) {
            0 => Recipe::Mimo.default_of(size).unwrap_or(1),
            value => value,
        };
        MimoOptions {
            antennas: size(Size::Antennas),
            users: size(Size::Users),
            subcarriers: size(Size::Subcarriers),
            batch: size(Size::Batch),
            steps: self.steps,
            snr_db: self.snr_db,
            seed: self.seed,
        }
    }

    /// The allocator's settings, read.
    pub(crate) fn config(&self) -> Result<Config> {
        Ok(Config::parse(&self.conf, Release::default())?)
    }

    /// The flags that differ from the recipe's defaults, as one would type them.
    #[must_use]
    pub fn flags(&self) -> String {
        let default = Self::new(self.recipe);
        let mut flags: Vec<String> = Vec::new();
        for size in self.recipe.sizes().filter(|it| self.size(*it) != default.size(*it)) {
            flags.push(format!("--{} {}", size.name(), self.size(size)));
        }
        if self.steps != default.steps {
            flags.push(format!("--steps {}", self.steps));
        }
        if self.optimizer != default.optimizer {
            flags.push(format!("--optimizer {}", self.optimizer));
        }
        if let Some(amp) = self.amp {
            flags.push(format!("--amp {amp}"));
        }
        if self.tf32 {
            flags.push("--tf32".to_owned());
        }
        if self.checkpoint != Checkpoint::None {
            flags.push(format!("--checkpoint {}", self.checkpoint));
        }
        if self.accumulate != 1 {
            flags.push(format!("--accumulate {}", self.accumulate));
        }
        if self.offload {
            flags.push("--offload".to_owned());
        }
        if self.graph {
            flags.push("--graph".to_owned());
        }
        if let Some(limit) = self.limit {
            flags.push(format!("--limit {}", spelled(limit)));
        }
        if !self.conf.is_empty() {
            flags.push(format!("--conf {}", quoted(&self.conf)));
        }
        if let Some(policy) = self.policy {
            flags.push(format!("--policy {policy}"));
        }
        if self.memory_profile != default.memory_profile {
            flags.push(format!("--memory-profile {}", self.memory_profile));
        }
        if self.snr_db != default.snr_db {
            flags.push(format!("--snr {}", self.snr_db));
        }
        if self.seed != default.seed {
            flags.push(format!("--seed {}", self.seed));
        }
        flags.join(" ")
    }
}

/// A number of bytes as one would type it: in the largest unit that leaves no rest.
#[must_use]
pub fn spelled(bytes: u64) -> String {
    let units = [(1u64 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    match units.iter().find(|(size, _)| bytes > 0 && bytes.is_multiple_of(*size)) {
        Some((size, unit)) => format!("{}{unit}", bytes / size),
        None => bytes.to_string(),
    }
}

/// As a shell takes it for one word.
fn quoted(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-:,.[]".contains(c);
    if text.chars().all(plain) && !text.contains(['[', ']']) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

impl Amp {
    pub(crate) fn dtype(self) -> DType {
        match self {
            Self::Bf16 => DType::Bf16,
            Self::F16 => DType::F16,
        }
    }
}

impl Checkpoint {
    pub(crate) fn placement(self) -> Placement {
        match self {
            Self::None => Placement::Keep,
            Self::Every(blocks) => Placement::Every(blocks),
            Self::Sqrt => Placement::SquareRoot,
        }
    }
}

impl fmt::Display for OptimizerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Sgd => "sgd",
            Self::Adam => "adam",
            Self::AdamW => "adamw",
        })
    }
}

impl FromStr for OptimizerKind {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "sgd" => Ok(Self::Sgd),
            "adam" => Ok(Self::Adam),
            "adamw" => Ok(Self::AdamW),
            _ => Err(Error::Options(format!("`{text}` is no optimizer: take sgd, adam or adamw"))),
        }
    }
}

impl fmt::Display for Amp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
        })
    }
}

impl FromStr for Amp {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "bf16" => Ok(Self::Bf16),
            "f16" => Ok(Self::F16),
            _ => Err(Error::Options(format!("`{text}` is no 16-bit type: take bf16 or f16"))),
        }
    }
}

impl fmt::Display for Checkpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.pad("none"),
            Self::Every(blocks) => write!(f, "every:{blocks}"),
            Self::Sqrt => f.pad("sqrt"),
        }
    }
}

impl FromStr for Checkpoint {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let every = text.strip_prefix("every:").and_then(|blocks| blocks.parse().ok());
        match (text, every) {
            ("none", _) => Ok(Self::None),
            ("sqrt", _) => Ok(Self::Sqrt),
            (_, Some(blocks)) if blocks > 0 => Ok(Self::Every(blocks)),
            _ => Err(Error::Options(format!(
                "`{text}` is no way to checkpoint: take none, sqrt, or every:K for segments of K blocks"
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_name_what_differs_from_the_defaults() {
        for recipe in Recipe::ALL {
            assert_eq!(Options::new(recipe).flags(), "", "{recipe}");
            Options::new(recipe).check().unwrap();
            assert_eq!(recipe.name().parse::<Recipe>().unwrap(), recipe);
        }
        let mut options = Options::new(Recipe::Mlp);
        options.conf = "expandable_segments:True,roundup_power2_divisions:[256:1]".to_owned();
        options.offload = true;
        options.policy = "pages,slack:0.05".parse().ok();
        let expected = "--offload --conf 'expandable_segments:True,roundup_power2_divisions:[256:1]' \
                        --policy pages,slack:0.05";
        assert_eq!(options.flags(), expected);
    }

    #[test]
    fn what_does_not_fit_is_refused_with_what_does() {
        let message = |options: Result<Options>| match options.and_then(|it| it.check()) {
            Err(error) => error.to_string(),
            Ok(()) => "accepted".to_owned(),
        };
        let gpt2 = || Options::new(Recipe::EMBEDDED);
        let resnet50 = Options::new(Recipe::ResNet50);
        for (options, expected) in [
            (
                resnet50.with(Size::Layers, 3),
                "resnet50 has no --layers: its sizes are --width, --batch, --image",
            ),
            (gpt2().with(Size::Width, 100), "multiple of 8"),
            (gpt2().with(Size::Batch, 0), "--batch 0: gpt2-tiny takes 1 to"),
            (Ok(Options { accumulate: 3, ..gpt2() }), "a batch of 16 does not split"),
            (Ok(Options { conf: "nonsense:1".to_owned(), ..gpt2() }), "nonsense"),
            (Ok(Options { steps: 0, ..gpt2() }), "--steps 0"),
            (Ok(Options { graph: true, steps: 1, ..gpt2() }), "at least 2 steps"),
            (Ok(Options { graph: true, amp: Some(Amp::F16), ..gpt2() }), "take --amp bf16"),
            (Ok(Options { graph: true, offload: true, ..gpt2() }), "leave one of them out"),
            (Ok(Options { graph: true, ..Options::new(Recipe::Mimo) }), "mimo does not train"),
        ] {
            let message = message(options);
            assert!(message.contains(expected), "{message}");
        }
        for text in ["every:0", "every:", "every:-1", "always"] {
            assert!(text.parse::<Checkpoint>().is_err(), "{text}");
        }
        assert_eq!("every:3".parse::<Checkpoint>().unwrap(), Checkpoint::Every(3));
    }
}
