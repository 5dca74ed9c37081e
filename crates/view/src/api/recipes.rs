//! `GET api/recipes`: what can be predicted, and how far its sliders go.
//!
//! A prediction makes every request of a few steps, so it takes longer the more layers there are and as long whatever
//! the other sizes: the bounds keep one below a tenth of a second. The command line takes more.

use axum::response::Response;
use serde::Serialize;
use tonnage_plan::{Gpt2Size, Options, Recipe, Size};

use super::{json, to_json};
use crate::error::ApiError;

#[derive(Serialize)]
struct RecipeInfo {
    name: &'static str,
    about: &'static str,
    /// Whether it has gradients and an optimizer; techniques are for those that do.
    trains: bool,
    sizes: Vec<SizeInfo>,
    /// The first of each list is the default.
    amp: Vec<String>,
    checkpoint: Vec<String>,
    optimizer: Vec<String>,
    accumulate: Vec<String>,
}

#[derive(Serialize)]
struct SizeInfo {
    name: &'static str,
    #[serde(flatten)]
    range: Range,
    value: usize,
}

/// Where a slider goes, and by which steps.
#[derive(Clone, Copy, Serialize)]
pub(super) struct Range {
    pub(super) least: usize,
    pub(super) most: usize,
    step: usize,
}

pub(super) async fn recipes() -> Result<Response, ApiError> {
    to_json(&Recipe::ALL.map(info)).map(json)
}

fn info(recipe: Recipe) -> RecipeInfo {
    let default = Options::new(recipe);
    let size = |size: Size| {
        let range = range(recipe, size)?;
        Some(SizeInfo { name: size.name(), range, value: default.size(size) })
    };
    let usual = default.optimizer.to_string();
    let others = ["sgd", "adam", "adamw"].map(str::to_owned).into_iter().filter(|it| *it != usual);
    let optimizer = std::iter::once(usual.clone()).chain(others);
    let optimizer = optimizer.filter(|_| recipe.trains()).collect();
    let of = |choices: &[&str]| -> Vec<String> {
        let choices = choices.iter().map(|&it| it.to_owned());
        choices.filter(|_| recipe.trains()).collect()
    };
    RecipeInfo {
        trains: recipe.trains(),
        name: recipe.name(),
        about: about(recipe),
        sizes: recipe.sizes().filter_map(size).collect(),
        amp: of(&["none", "bf16", "f16"]),
        checkpoint: of(&["none", "sqrt", "every:1", "every:2", "every:4"]),
        optimizer,
        accumulate: of(&["1", "2", "4", "8", "16"]),
    }
}

fn about(recipe: Recipe) -> &'static str {
    match recipe {
        Recipe::Mlp => "linear layers with relu between them",
        Recipe::DeepNet => {
            "residual blocks of two linear layers: the chain on which checkpointing is usually shown"
        }
        Recipe::Gpt2(Gpt2Size::Tiny) => "a small GPT-2 over bytes",
        Recipe::Gpt2(Gpt2Size::Small) => "GPT-2, 124 million parameters",
        Recipe::Gpt2(Gpt2Size::Medium) => "GPT-2 Medium, 355 million parameters",
        Recipe::Gpt2(Gpt2Size::Large) => "GPT-2 Large, 774 million parameters",
        Recipe::Gpt2(Gpt2Size::Xl) => "GPT-2 XL, 1.6 billion parameters",
        Recipe::ResNet50 => "ResNet-50 on square images",
        Recipe::Mimo => "the uplink of a massive-MIMO cell: symbols sent and detected, no training",
        _ => "",
    }
}

/// How far a size goes here; none if there is no slider for it.
pub(super) fn range(recipe: Recipe, size: Size) -> Option<Range> {
    let (least, most, step) = match (recipe, size) {
        (Recipe::Mlp, Size::Layers) => (1, 64, 1),
        (Recipe::Mlp, Size::Width) => (64, 8192, 64),
        (Recipe::Mlp, Size::Batch) => (16, 8192, 16),
        (Recipe::DeepNet, Size::Layers) => (1, 64, 1),
        (Recipe::DeepNet, Size::Width) => (64, 8192, 64),
        (Recipe::DeepNet, Size::Batch) => (16, 16384, 16),
        (Recipe::Gpt2(_), Size::Layers) => (1, 48, 1),
        (Recipe::Gpt2(_), Size::Width) => (64, 1600, 64),
        (Recipe::Gpt2(_), Size::Batch) => (1, 64, 1),
        (Recipe::Gpt2(_), Size::Seq) => (64, 2048, 64),
        (Recipe::ResNet50, Size::Width) => (16, 128, 16),
        (Recipe::ResNet50, Size::Batch) => (1, 256, 1),
        (Recipe::ResNet50, Size::Image) => (32, 512, 32),
        (Recipe::Mimo, Size::Antennas) => (8, 512, 8),
        (Recipe::Mimo, Size::Users) => (1, 128, 1),
        (Recipe::Mimo, Size::Subcarriers) => (100, 10_000, 100),
        (Recipe::Mimo, Size::Batch) => (1, 64, 1),
        _ => return None,
    };
    Some(Range { least, most, step })
}
