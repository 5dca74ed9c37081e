//! The textbook's formulas, next to what is exact.
//!
//! In:  what a run took.
//! Out: for each purpose of bytes what the formula says, and how far it is off.
//!
//! With P parameters, L layers, width W, batch B (a part of it, where gradients are accumulated), S
//! tokens: parameters and gradients are 4P, Adam's state is 8P, momentum 4P. What a layer keeps is in
//! the table; √n checkpoints keep √n inputs and √n layers.
//!
//! | recipe | activations | why |
//! | --- | --- | --- |
//! | `mlp` | 4·B·W·L | each layer's result |
//! | `deepnet` | 12·B·W·L | two results of a block's layers, and its sum |
//! | `gpt2` | 68·B·S·W·L | the usual count of a transformer's layer, 34 bytes in 16 bits, attention not stored |
//! | `resnet50` | 8·B·11.1 M | each convolution's result and its norm's, at 224 pixels and 64 channels |
//!
//! `mimo` keeps nothing: its total is that of the channels, 8·B·N·A·U for N subcarriers, A antennas, U users.

use tonnage_tensor::Role;

use crate::options::{Checkpoint, OptimizerKind};
use crate::outcome::Outcome;
use crate::recipe::{Recipe, Size};

/// A formula's answer.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Formula {
    /// What the bytes are for, or `total`.
    pub name: &'static str,
    /// The formula.
    pub formula: String,
    /// What it says.
    pub bytes: u64,
    /// What is exact: the most bytes that were for this at any time; of `total`, the allocated peak.
    pub exact: u64,
}

impl Formula {
    /// How far it is off, as a share of what is exact; none if that is nothing.
    #[must_use]
    pub fn error(&self) -> Option<f64> {
        let exact = self.exact as f64;
        (self.exact > 0).then(|| (self.bytes as f64 - exact) / exact)
    }
}

/// Outputs of ResNet-50's convolutions for an image of 224 pixels.
const RESNET50_RESULTS: f64 = 11.1e6;

impl Outcome {
    /// The textbook's formulas for this run.
    #[must_use]
    pub fn formulas(&self) -> Vec<Formula> {
        let parameters = self.parameters;
        let total = |formula: &str, bytes| {
            let exact = self.allocated_peak;
            Formula { name: "total", formula: formula.to_owned(), bytes, exact }
        };
        if !self.options.recipe().trains() {
            let sizes = [Size::Batch, Size::Subcarriers, Size::Antennas, Size::Users];
            let channels = sizes.iter().map(|it| self.options.size(*it) as u64).product::<u64>();
            return vec![total("8·B·N·A·U", 8 * channels)];
        }
        let row = |role: Role, formula: &str, bytes: u64| Formula {
            name: role.name(),
            formula: formula.to_owned(),
            bytes,
            exact: self.most_of(role),
        };
        let (state, each) = match self.options.optimizer {
            OptimizerKind::Sgd => ("4P", 4),
            OptimizerKind::Adam | OptimizerKind::AdamW => ("8P", 8),
        };
        let (activations, bytes) = self.activations();
        let mut formulas = vec![
            row(Role::Parameters, "4P", 4 * parameters),
            row(Role::Gradients, "4P", 4 * parameters),
            row(Role::Optimizer, state, each * parameters),
            row(Role::Activations, &activations, bytes),
        ];
        if self.options.amp.is_some() {
            formulas.push(row(Role::Cache, "2P", 2 * parameters));
        }
        let bytes = formulas.iter().map(|it| it.bytes).sum();
        formulas.push(total("sum", bytes));
        formulas
    }

    /// The formula of the activations, and what it says.
    fn activations(&self) -> (String, u64) {
        let options = &self.options;
        if options.offload {
            return ("0".to_owned(), 0);
        }
        let size = |size| options.size(size) as f64;
        let batch = size(Size::Batch) / options.accumulate as f64;
        let (width, layers) = (size(Size::Width), size(Size::Layers));
        let (formula, all, blocks, input) = match options.recipe() {
            Recipe::Mimo => ("0", 0.0, 1.0, 0.0),
            Recipe::Mlp => ("4·B·W·L", 4.0 * batch * width * layers, layers, 4.0 * batch * width),
            Recipe::DeepNet => {
                ("12·B·W·L", 12.0 * batch * width * layers, layers, 4.0 * batch * width)
            }
            Recipe::Gpt2(_) => {
                let tokens = batch * size(Size::Seq) * width;
                ("68·B·S·W·L", 68.0 * tokens * layers, layers, 4.0 * tokens)
            }
            Recipe::ResNet50 => {
                let scale = (size(Size::Image) / 224.0).powi(2) * width / 64.0;
                let all = 8.0 * batch * RESNET50_RESULTS * scale;
                ("8·B·11.1 M", all, 16.0, all / 16.0 / 8.0)
            }
        };
        let halved = options.amp.is_some();
        let all = if halved { all / 2.0 } else { all };
        let formula = if halved { format!("{formula}/2") } else { formula.to_owned() };
        match options.checkpoint {
            Checkpoint::None => (formula, all as u64),
            Checkpoint::Sqrt => (format!("{formula}·2/√n"), (all * 2.0 / blocks.sqrt()) as u64),
            Checkpoint::Every(length) => {
                let length = (length as f64).min(blocks);
                let kept = input * (blocks / length) + all * length / blocks;
                (format!("inputs·n/{length} + {formula}·{length}/n"), kept as u64)
            }
        }
    }
}
