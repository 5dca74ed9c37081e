//! Residual blocks of linear layers: the chain on which checkpointing is usually shown.

use crate::checkpoint::Placement;
use crate::create::TensorOptions;
use crate::entry::within;
use crate::error::Result;
use crate::nn::{Linear, Module, Relu, Sequential, Visitor};
use crate::tensor::Tensor;

/// Two linear layers with `relu`, and a way around them.
struct Block {
    net: Sequential,
}

impl Block {
    #[track_caller]
    fn new(width: usize, options: TensorOptions<'_>) -> Result<Self> {
        let layer = || Linear::new(width, width, options);
        Ok(Self { net: Sequential::new().then(layer()?).then(Relu).then(layer()?).then(Relu) })
    }
}

impl Module for Block {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        within(|| self.net.forward(x)?.add(x))
    }

    fn visit(&self, visitor: &mut Visitor<'_>) {
        visitor.module("net", &self.net);
    }
}

/// Residual blocks of linear layers, one after the other.
///
/// ```
/// use tonnage_tensor::checkpoint::Placement;
/// use tonnage_tensor::models::DeepNet;
/// use tonnage_tensor::nn::Module;
/// use tonnage_tensor::{Device, Tensor};
///
/// // Batch, then the peak with everything kept and with each block recomputed.
/// for batch in [128, 16_384] {
///     let peak = |placement| -> Result<u64, Box<dyn std::error::Error>> {
///         let device = Device::dry("80 GiB")?;
///         let model = DeepNet::new(512, 20, &device)?.checkpointed(placement);
///         let x = Tensor::zeros([batch, 512], &device)?;
///         model.forward(&x)?.sum()?.backward()?;
///         Ok(device.memory().max_allocated())
///     };
///     println!("{batch:6} {:12} {:12}", peak(Placement::Keep)?, peak(Placement::Each)?);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct DeepNet {
    blocks: Sequential,
}

impl DeepNet {
    /// So many blocks of this width.
    ///
    /// # Errors
    ///
    /// If there is no memory.
    #[track_caller]
    pub fn new<'a>(
        width: usize,
        blocks: usize,
        options: impl Into<TensorOptions<'a>>,
    ) -> Result<Self> {
        let options = options.into();
        let blocks = (0..blocks).map(|_| Block::new(width, options)).collect::<Result<_>>()?;
        Ok(Self { blocks })
    }

    /// Which blocks are recomputed in the backward.
    #[must_use]
    pub fn checkpointed(mut self, placement: Placement) -> Self {
        self.blocks = self.blocks.checkpointed(placement);
        self
    }
}

impl Module for DeepNet {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        within(|| self.blocks.forward(x))
    }

    fn visit(&self, visitor: &mut Visitor<'_>) {
        visitor.module("blocks", &self.blocks);
    }
}
