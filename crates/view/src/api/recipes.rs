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
    sizes: Vec<SizeInfo>,
    /// The first of each list is the default.
    amp: Vec<String>,
    checkpoint: Vec<String>,
    optimizer: Vec<String>,
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
    let trained = Recipe::ALL.into_iter().filter(|it| it.trains());
    to_json(&trained.map(info).collect::<Vec<_>>()).map(json)
}

fn info(recipe: Recipe) -> RecipeInfo {
    let default = Options::new(recipe);
    let size = |size: Size| {
        let range = range(recipe, size)?;
        Some(SizeInfo { name: size.name(), range, value: default.size(size) })
    };
    let usual = default.optimizer.to_string();
    let others = ["sgd", "adam", "adamw"].map(str::to_owned).into_iter().filter(|it| *it != usual);
    let optimizer = std::iter::once(usual.clone()).chain(others).collect();
    RecipeInfo {
        name: recipe.name(),
        about: about(recipe),
        sizes: recipe.sizes().filter_map(size).collect(),
        amp: ["none", "bf16", "f16"].map(str::to_owned).to_vec(),
        checkpoint: ["none", "sqrt", "every:1", "every:2", "every:4"].map(str::to_owned).to_vec(),
        optimizer,
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
        Recipe::ResNet50 => "ResNet-50 on images of 224 by 224",
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
        _ => return None,
    };
    Some(Range { least, most, step })
}
