//! Modules one after the other, kept or recomputed.

use std::sync::Arc;

use super::module::{Module, Visitor};
use crate::checkpoint::{Placement, checkpoint};
use crate::error::Result;
use crate::tensor::Tensor;

/// Modules one after the other, named by their places.
#[derive(Clone, Default)]
pub struct Sequential {
    modules: Vec<Arc<dyn Module>>,
    placement: Placement,
}

impl Sequential {
    /// None yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// One more at the end.
    #[must_use]
    pub fn then(mut self, module: impl Module + 'static) -> Self {
        self.modules.push(Arc::new(module));
        self
    }

    /// Which of them are checkpointed.
    ///
    /// ```
    /// # use tonnage_tensor::checkpoint::Placement;
    /// # use tonnage_tensor::nn::{Linear, Module, Relu, Sequential};
    /// # use tonnage_tensor::{Device, Tensor};
    /// # let device = Device::dry("1 GiB")?;
    /// let layer = || Ok::<_, tonnage_tensor::Error>(Linear::new(64, 64, &device)?);
    /// let model: Sequential = (0..16).map(|_| layer()).collect::<Result<_, _>>()?;
    /// let model = model.checkpointed(Placement::SquareRoot);
    /// model.forward(&Tensor::zeros([8, 64], &device)?)?.sum()?.backward()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn checkpointed(mut self, placement: Placement) -> Self {
        self.placement = placement;
        self
    }

    /// The modules, in order.
    #[must_use]
    pub fn modules(&self) -> &[Arc<dyn Module>] {
        &self.modules
    }
}

#[track_caller]
fn run(modules: &[Arc<dyn Module>], input: &Tensor) -> Result<Tensor> {
    let mut x = input.clone();
    for module in modules {
        x = module.forward(&x)?;
    }
    Ok(x)
}

impl Module for Sequential {
    #[track_caller]
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let mut x = input.clone();
        let segments = self.placement.segments(self.modules.len());
        for segment in segments.recomputed {
            let modules = self.modules[segment].to_vec();
            x = checkpoint(&[&x], move |x| run(&modules, &x[0]))?;
        }
        run(&self.modules[segments.kept], &x)
    }

    fn visit(&self, visitor: &mut Visitor<'_>) {
        for (place, module) in self.modules.iter().enumerate() {
            visitor.module(&place.to_string(), module);
        }
    }
}

impl<M: Module + 'static> FromIterator<M> for Sequential {
    fn from_iter<I: IntoIterator<Item = M>>(modules: I) -> Self {
        modules.into_iter().fold(Self::new(), Self::then)
    }
}

impl std::fmt::Debug for Sequential {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let modules = format_args!("{} modules", self.modules.len());
        f.debug_tuple("Sequential").field(&modules).field(&self.placement).finish()
    }
}
