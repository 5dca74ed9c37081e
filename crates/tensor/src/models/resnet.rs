//! ResNet: images in, scores of classes out.

use crate::checkpoint::Placement;
use crate::create::TensorOptions;
use crate::entry::within;
use crate::error::Result;
use crate::nn::init::kaiming_normal_;
use crate::nn::{
    AdaptiveAvgPool2d, BatchNorm2d, Conv2d, Conv2dOptions, Linear, MaxPool2d, Module, Sequential,
    Visitor,
};
use crate::ops::{ConvOptions, PoolOptions};
use crate::tensor::Tensor;

/// The sizes of a [`ResNet`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ResNetConfig {
    /// Blocks of each of the four stages.
    pub blocks: [usize; 4],
    /// Whether blocks are three convolutions with a narrow one between, or two.
    pub bottleneck: bool,
    /// Channels of the first stage; each later one has twice as many.
    pub width: usize,
    /// How many classes there are.
    pub classes: usize,
    /// Whether the first layer keeps small images as large as they are.
    pub small_images: bool,
}

impl ResNetConfig {
    const fn sized(blocks: [usize; 4], bottleneck: bool) -> Self {
        Self { blocks, bottleneck, width: 64, classes: 1000, small_images: false }
    }

    /// 11.7 million parameters.
    #[must_use]
    pub const fn resnet18() -> Self {
        Self::sized([2, 2, 2, 2], false)
    }

    /// 21.8 million parameters.
    #[must_use]
    pub const fn resnet34() -> Self {
        Self::sized([3, 4, 6, 3], false)
    }

    /// 25.6 million parameters.
    #[must_use]
    pub const fn resnet50() -> Self {
        Self::sized([3, 4, 6, 3], true)
    }

    /// 44.5 million parameters.
    #[must_use]
    pub const fn resnet101() -> Self {
        Self::sized([3, 4, 23, 3], true)
    }

    /// 60.2 million parameters.
    #[must_use]
    pub const fn resnet152() -> Self {
        Self::sized([3, 8, 36, 3], true)
    }

    /// With so many blocks in each stage.
    #[must_use]
    pub const fn blocks(mut self, blocks: [usize; 4]) -> Self {
        self.blocks = blocks;
        self
    }

    /// With so many channels in the first stage.
    #[must_use]
    pub const fn width(mut self, channels: usize) -> Self {
        self.width = channels;
        self
    }

    /// With so many classes.
    #[must_use]
    pub const fn classes(mut self, classes: usize) -> Self {
        self.classes = classes;
        self
    }

    /// For images of a few dozen pixels: the first convolution has a window of three and is not
    /// followed by a pool.
    #[must_use]
    pub const fn small_images(mut self) -> Self {
        self.small_images = true;
        self
    }

    /// How many times the channels of a block's convolutions it puts out.
    const fn expansion(&self) -> usize {
        if self.bottleneck { 4 } else { 1 }
    }
}

/// A convolution without bias that keeps the size, up to its stride, with torchvision's first values.
#[track_caller]
fn conv(
    [input, output]: [usize; 2],
    kernel: usize,
    stride: usize,
    options: TensorOptions<'_>,
) -> Result<Conv2d> {
    let window = ConvOptions::default().stride(stride).padding(kernel / 2);
    let layer = Conv2dOptions::from(window).bias(false);
    let conv = Conv2d::with(input, output, kernel, layer, options)?;
    kaiming_normal_(&conv.weight, output * kernel * kernel)?;
    Ok(conv)
}

/// A convolution and its norm.
#[derive(Clone, Debug)]
struct Normed {
    conv: Conv2d,
    norm: BatchNorm2d,
}

impl Normed {
    #[track_caller]
    fn new(
        channels: [usize; 2],
        kernel: usize,
        stride: usize,
        options: TensorOptions<'_>,
    ) -> Result<Self> {
        let conv = conv(channels, kernel, stride, options)?;
        Ok(Self { conv, norm: BatchNorm2d::new(channels[1], options)? })
    }

    #[track_caller]
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.norm.forward(&self.conv.forward(x)?)
    }

    fn visit(&self, visitor: &mut Visitor<'_>, names: [&str; 2]) {
        visitor.module(names[0], &self.conv);
        visitor.module(names[1], &self.norm);
    }
}

/// Two or three convolutions with norms, and a way around them.
struct Block {
    convs: Vec<Normed>,
    /// Brings what goes around to the size of what comes out, where they differ.
    downsample: Option<Normed>,
}

impl Block {
    /// From `input` channels by way of `inner` ones.
    #[track_caller]
    fn new(
        config: &ResNetConfig,
        [input, inner]: [usize; 2],
        stride: usize,
        options: TensorOptions<'_>,
    ) -> Result<Self> {
        let output = inner * config.expansion();
        let downsample = match stride != 1 || input != output {
            true => Some(Normed::new([input, output], 1, stride, options)?),
            false => None,
        };
        let normed = |channels, kernel, stride| Normed::new(channels, kernel, stride, options);
        let convs = match config.bottleneck {
            true => vec![
                normed([input, inner], 1, 1)?,
                normed([inner, inner], 3, stride)?,
                normed([inner, output], 1, 1)?,
            ],
            false => vec![normed([input, inner], 3, stride)?, normed([inner, inner], 3, 1)?],
        };
        Ok(Self { convs, downsample })
    }
}

impl Module for Block {
    /// Activations and the sum are computed in place: norms do not need their results again.
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        within(|| {
            let mut y = x.clone();
            for (place, conv) in self.convs.iter().enumerate() {
                if place > 0 {
                    y.relu_()?;
                }
                y = conv.forward(&y)?;
            }
            match &self.downsample {
                Some(downsample) => y.add_(&downsample.forward(x)?)?,
                None => y.add_(x)?,
            }
            y.relu_()?;
            Ok(y)
        })
    }

    fn visit(&self, visitor: &mut Visitor<'_>) {
        for (place, conv) in self.convs.iter().enumerate() {
            let place = place + 1;
            conv.visit(visitor, [&format!("conv{place}"), &format!("bn{place}")]);
        }
        if let Some(downsample) = &self.downsample {
            downsample.visit(visitor, ["downsample.0", "downsample.1"]);
        }
    }
}

/// ResNet, with torchvision's layers, names and first values.
///
/// ```
/// use tonnage_tensor::models::{ResNet, ResNetConfig};
/// use tonnage_tensor::nn::Module;
/// use tonnage_tensor::{Device, Tensor};
///
/// let device = Device::dry("80 GiB")?;
/// let model = ResNet::new(ResNetConfig::resnet50(), &device)?;
/// assert_eq!(model.num_parameters(), 25_557_032);
/// let scores = model.forward(&Tensor::zeros([32, 3, 224, 224], &device)?)?;
/// assert_eq!(scores.shape()[..], [32, 1000]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct ResNet {
    first: Normed,
    pool: Option<MaxPool2d>,
    stages: [Sequential; 4],
    fc: Linear,
}

impl ResNet {
    /// A new one.
    ///
    /// # Errors
    ///
    /// If there is no memory.
    #[track_caller]
    pub fn new<'a>(config: ResNetConfig, options: impl Into<TensorOptions<'a>>) -> Result<Self> {
        let options = options.into();
        let (kernel, stride) = if config.small_images { (3, 1) } else { (7, 2) };
        let first = Normed::new([3, config.width], kernel, stride, options)?;
        let pool = PoolOptions::new(3).stride(2).padding(1);
        let pool = (!config.small_images).then(|| MaxPool2d::new(pool));
        let mut stages: [Sequential; 4] = Default::default();
        let mut channels = config.width;
        for (place, stage) in stages.iter_mut().enumerate() {
            let inner = config.width << place;
            for block in 0..config.blocks[place] {
                let stride = if place > 0 && block == 0 { 2 } else { 1 };
                let block = Block::new(&config, [channels, inner], stride, options)?;
                *stage = std::mem::take(stage).then(block);
                channels = inner * config.expansion();
            }
        }
        let fc = Linear::new(channels, config.classes, options)?;
        Ok(Self { first, pool, stages, fc })
    }

    /// Which blocks of each stage are recomputed in the backward. Their norms then see each batch
    /// twice, as in PyTorch.
    #[must_use]
    pub fn checkpointed(mut self, placement: Placement) -> Self {
        self.stages = self.stages.map(|stage| stage.checkpointed(placement));
        self
    }
}

impl Module for ResNet {
    #[track_caller]
    fn forward(&self, images: &Tensor) -> Result<Tensor> {
        within(|| {
            let mut x = self.first.forward(images)?;
            x.relu_()?;
            if let Some(pool) = &self.pool {
                x = pool.forward(&x)?;
            }
            for stage in &self.stages {
                x = stage.forward(&x)?;
            }
            let x = AdaptiveAvgPool2d::new(1).forward(&x)?.flatten(1, -1)?;
            self.fc.forward(&x)
        })
    }

    fn visit(&self, visitor: &mut Visitor<'_>) {
        self.first.visit(visitor, ["conv1", "bn1"]);
        for (place, stage) in self.stages.iter().enumerate() {
            visitor.module(&format!("layer{}", place + 1), stage);
        }
        visitor.module("fc", &self.fc);
    }
}
