//! The recipes as programs: a model, its batches, its loss.
//!
//! In:  options, a device.
//! Out: a [`Program`], which [`train`](crate::train()) runs. Nothing here asks which device it is, but for
//!      the numbers of a batch: on a device that does not compute, they are not made.

use tonnage_tensor::checkpoint::Placement;
use tonnage_tensor::models::{DeepNet, Gpt2, Gpt2Config, ResNet, ResNetConfig};
use tonnage_tensor::nn::{Linear, Module, Relu, Sequential};
use tonnage_tensor::{Device, Element, Reduction, Result, Shape, Tensor};

use crate::options::Options;
use crate::random::Random;
use crate::recipe::{Gpt2Size, Recipe, Size};

/// What every `gpt2` reads: this project's documents, as they once were.
const DOCUMENTS: &[u8] = include_bytes!("../data/documents.txt");

/// Classes of `mlp`'s examples.
const CLASSES: usize = 10;

/// Kinds of pictures that `resnet50` tells apart; its other classes stay empty.
const KINDS: usize = 4;

/// Below this many pixels a side, ResNet's first layer keeps the size of the image.
const SMALL_IMAGE: usize = 64;

/// Examples, and what is to be learnt from them.
pub(crate) type Batch = [Tensor; 2];

/// Something to train.
pub(crate) trait Program {
    fn model(&self) -> &dyn Module;

    /// So many examples, drawn by these random numbers.
    fn batch(&self, device: &Device, rows: usize, random: Random) -> Result<Batch>;

    /// The mean loss of a batch.
    fn loss(&self, batch: &Batch) -> Result<Tensor>;
}

/// The program that options describe; none if they do not describe training.
pub(crate) fn build(options: &Options, device: &Device) -> Result<Option<Box<dyn Program>>> {
    let size = |size| options.size(size);
    let (width, placement) = (size(Size::Width), options.checkpoint.placement());
    Ok(Some(match options.recipe() {
        Recipe::Mimo => return Ok(None),
        Recipe::Mlp => Box::new(Mlp::new(width, size(Size::Layers), placement, device)?),
        Recipe::DeepNet => {
            let model = DeepNet::new(width, size(Size::Layers), device)?;
            Box::new(Deep { model: model.checkpointed(placement), width })
        }
        Recipe::Gpt2(preset) => {
            let seq = size(Size::Seq);
            let config = Gpt2Config::bytes(size(Size::Layers), width, heads(width));
            let config = config.vocabulary(size(Size::Vocab)).dropout(0.0);
            let config = match preset {
                Gpt2Size::Tiny => config.context(seq),
                // Published ones have places for 1,024 tokens, however few they are given.
                _ => config.context(seq.max(config.context)),
            };
            Box::new(Text { model: Gpt2::new(config, device)?.checkpointed(placement), seq })
        }
        Recipe::ResNet50 => {
            let image = size(Size::Image);
            let config = ResNetConfig::resnet50().width(width);
            let config = if image < SMALL_IMAGE { config.small_images() } else { config };
            Box::new(Images { model: ResNet::new(config, device)?.checkpointed(placement), image })
        }
    }))
}

/// Heads of 64 as in GPT-2, or the largest power of two that divides the width.
fn heads(width: usize) -> usize {
    width >> width.trailing_zeros().min(6)
}

/// Numbers on a device: those that `make` makes, if the device computes with them.
fn tensor<T: Element>(
    device: &Device,
    shape: impl Into<Shape>,
    make: impl FnOnce() -> Vec<T>,
) -> Result<Tensor> {
    if device.computes() {
        Tensor::from_slice(&make(), shape, device)
    } else {
        Tensor::empty(shape, (device, T::DTYPE))
    }
}

struct Mlp {
    model: Sequential,
    width: usize,
}

impl Mlp {
    fn new(width: usize, layers: usize, placement: Placement, device: &Device) -> Result<Self> {
        let layer = || Ok(Sequential::new().then(Linear::new(width, width, device)?).then(Relu));
        let hidden: Sequential = (0..layers).map(|_| layer()).collect::<Result<_>>()?;
        let last = Linear::new(width, CLASSES, device)?;
        let model = Sequential::new().then(hidden.checkpointed(placement)).then(last);
        Ok(Self { model, width })
    }
}

impl Program for Mlp {
    fn model(&self) -> &dyn Module {
        &self.model
    }

    /// Noise in which the number of the class is larger.
    fn batch(&self, device: &Device, rows: usize, mut random: Random) -> Result<Batch> {
        let mut classes = Vec::new();
        let x = tensor(device, [rows, self.width], || {
            let mut numbers = Vec::with_capacity(rows * self.width);
            for _ in 0..rows {
                let class = random.below(CLASSES);
                classes.push(class as i64);
                numbers.extend(
                    (0..self.width).map(|at| random.number() + if at == class { 3.0 } else { 0.0 }),
                );
            }
            numbers
        })?;
        Ok([x, tensor(device, [rows], || classes)?])
    }

    fn loss(&self, [x, classes]: &Batch) -> Result<Tensor> {
        self.model.forward(x)?.cross_entropy(classes)
    }
}

struct Deep {
    model: DeepNet,
    width: usize,
}

impl Program for Deep {
    fn model(&self) -> &dyn Module {
        &self.model
    }

    /// Noise, and its magnitude: blocks only ever add, and what they have to add is there.
    fn batch(&self, device: &Device, rows: usize, mut random: Random) -> Result<Batch> {
        let mut magnitudes = Vec::new();
        let x = tensor(device, [rows, self.width], || {
            let numbers: Vec<f32> = (0..rows * self.width).map(|_| random.number()).collect();
            magnitudes = numbers.iter().map(|it| it.abs()).collect();
            numbers
        })?;
        Ok([x, tensor(device, [rows, self.width], || magnitudes)?])
    }

    fn loss(&self, [x, magnitudes]: &Batch) -> Result<Tensor> {
        self.model.forward(x)?.mse_loss(magnitudes, Reduction::Mean)
    }
}

struct Text {
    model: Gpt2,
    seq: usize,
}

impl Program for Text {
    fn model(&self) -> &dyn Module {
        &self.model
    }

    /// Pieces of the documents, and for each byte the one that follows.
    fn batch(&self, device: &Device, rows: usize, mut random: Random) -> Result<Batch> {
        let places: Vec<usize> = (0..rows).map(|_| random.below(DOCUMENTS.len())).collect();
        let tokens = |shift: usize| {
            tensor(device, [rows, self.seq], || {
                let token = |at: usize| i64::from(DOCUMENTS[at % DOCUMENTS.len()]);
                let row = |place: &usize| *place + shift..*place + shift + self.seq;
                places.iter().flat_map(row).map(token).collect()
            })
        };
        Ok([tokens(0)?, tokens(1)?])
    }

    fn loss(&self, [tokens, next]: &Batch) -> Result<Tensor> {
        self.model.loss(tokens, next)
    }
}

struct Images {
    model: ResNet,
    image: usize,
}

impl Program for Images {
    fn model(&self) -> &dyn Module {
        &self.model
    }

    /// Pictures of four kinds with noise: stripes lying and standing, squares, a disc.
    fn batch(&self, device: &Device, rows: usize, mut random: Random) -> Result<Batch> {
        let (side, mut kinds) = (self.image, Vec::new());
        let pixels = tensor(device, [rows, 3, side, side], || {
            let mut pixels = Vec::with_capacity(rows * 3 * side * side);
            for _ in 0..rows {
                let kind = random.below(KINDS);
                kinds.push(kind as i64);
                for at in 0..3 * side * side {
                    let clean = pixel(kind, side, at / side % side, at % side);
                    pixels.push(clean + 0.5 * random.number());
                }
            }
            pixels
        })?;
        Ok([pixels, tensor(device, [rows], || kinds)?])
    }

    fn loss(&self, [pixels, kinds]: &Batch) -> Result<Tensor> {
        self.model.forward(pixels)?.cross_entropy(kinds)
    }
}

fn pixel(kind: usize, side: usize, row: usize, column: usize) -> f32 {
    let (cell, middle) = (side / 8, side / 2);
    let on = match kind {
        0 => (row / cell).is_multiple_of(2),
        1 => (column / cell).is_multiple_of(2),
        2 => (row / cell + column / cell).is_multiple_of(2),
        _ => row.abs_diff(middle).pow(2) + column.abs_diff(middle).pow(2) < middle * middle / 2,
    };
    if on { 1.0 } else { -1.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_are_equal_parts_of_every_width() {
        for width in (8..4096usize).step_by(8) {
            assert!(width.is_multiple_of(heads(width)), "{width}");
        }
        assert_eq!([768, 1600, 128, 40].map(heads), [12, 25, 2, 5]);
    }
}
