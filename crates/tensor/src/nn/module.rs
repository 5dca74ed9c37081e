//! What a module is: something with a forward, and tensors with names.
//!
//! In:  a module that shows its tensors to a [`Visitor`].
//! Out: its parameters and buffers with the names that PyTorch gives them; how many numbers they are.

use crate::error::Result;
use crate::tensor::Tensor;

/// A layer, or a model made of layers.
pub trait Module: Send + Sync {
    /// The result for an input.
    ///
    /// # Errors
    ///
    /// If shapes or types do not fit, or if there is no memory.
    #[track_caller]
    fn forward(&self, input: &Tensor) -> Result<Tensor>;

    /// Shows every tensor, in the order in which they were made.
    fn visit(&self, visitor: &mut Visitor<'_>);

    /// Whether it trains or evaluates from now on: dropout and batch norm differ.
    fn set_training(&self, _training: bool) {}

    /// The parameters with their names, such as `0.weight`.
    fn named_parameters(&self) -> Vec<(String, Tensor)> {
        collect(|visitor| self.visit(visitor), Kind::Parameter)
    }

    /// The buffers with their names: state that is no parameter, such as running means.
    fn named_buffers(&self) -> Vec<(String, Tensor)> {
        collect(|visitor| self.visit(visitor), Kind::Buffer)
    }

    /// The parameters, for an optimizer.
    fn parameters(&self) -> Vec<Tensor> {
        self.named_parameters().into_iter().map(|(_, parameter)| parameter).collect()
    }

    /// Drops the gradients of all parameters.
    fn zero_grad(&self) {
        for parameter in self.parameters() {
            drop(parameter.take_grad());
        }
    }

    /// How many numbers the parameters are.
    fn num_parameters(&self) -> usize {
        self.parameters().iter().map(Tensor::numel).sum()
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Parameter,
    Buffer,
}

/// Sees a module's tensors one after the other.
pub struct Visitor<'a> {
    prefix: String,
    see: &'a mut dyn FnMut(Kind, String, &Tensor),
}

impl Visitor<'_> {
    /// A tensor that is trained.
    pub fn parameter(&mut self, name: &str, tensor: &Tensor) {
        (self.see)(Kind::Parameter, format!("{}{name}", self.prefix), tensor);
    }

    /// A tensor that is not.
    pub fn buffer(&mut self, name: &str, tensor: &Tensor) {
        (self.see)(Kind::Buffer, format!("{}{name}", self.prefix), tensor);
    }

    /// A module inside: its names begin with `name.`.
    pub fn module(&mut self, name: &str, module: &(impl Module + ?Sized)) {
        let length = self.prefix.len();
        self.prefix.push_str(name);
        self.prefix.push('.');
        module.visit(self);
        self.prefix.truncate(length);
    }
}

impl std::fmt::Debug for Visitor<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Visitor").field("prefix", &self.prefix).finish_non_exhaustive()
    }
}

/// Each tensor once, also if several modules share it: PyTorch's rule, and what an optimizer needs.
fn collect(visit: impl FnOnce(&mut Visitor<'_>), wanted: Kind) -> Vec<(String, Tensor)> {
    let mut found: Vec<(String, Tensor)> = Vec::new();
    let mut seen = std::collections::HashSet::new();
    let mut see = |kind, name, tensor: &Tensor| {
        if kind == wanted && seen.insert(tensor.key()) {
            found.push((name, tensor.clone()));
        }
    };
    visit(&mut Visitor { prefix: String::new(), see: &mut see });
    found
}

impl<M: Module + ?Sized> Module for std::sync::Arc<M> {
    #[track_caller]
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        (**self).forward(input)
    }

    fn visit(&self, visitor: &mut Visitor<'_>) {
        (**self).visit(visitor);
    }

    fn set_training(&self, training: bool) {
        (**self).set_training(training);
    }
}
