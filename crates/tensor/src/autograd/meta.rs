//! A tensor's place in the graph: leaf or result, and the gradient it has collected.

use std::sync::{Arc, Weak};

use super::copy_slices;
use super::mode::is_grad_enabled;
use super::node::{Edge, Node};
use crate::error::{Call, ErrorKind, Result};
use crate::live::Role;
use crate::tensor::Tensor;

/// What autograd knows of a tensor.
///
/// *A result has `grad_fn`. A leaf that collects gradients has `requires_grad` and, while a graph
/// needs it, an accumulator. Others have neither.*
#[derive(Default)]
pub(crate) struct Meta {
    requires_grad: bool,
    grad_fn: Option<(Arc<Node>, usize)>,
    /// The leaf's end of the graph; graphs keep it alive, the leaf does not.
    accumulator: Weak<Node>,
    grad: Option<Tensor>,
}

impl Tensor {
    /// Whether gradients flow to it.
    #[must_use]
    pub fn requires_grad(&self) -> bool {
        let meta = self.meta();
        meta.requires_grad || meta.grad_fn.is_some()
    }

    /// Whether it is not the result of a recorded operation.
    #[must_use]
    pub fn is_leaf(&self) -> bool {
        self.meta().grad_fn.is_none()
    }

    /// Makes it a leaf that collects gradients, or not.
    ///
    /// # Errors
    ///
    /// If it is the result of a recorded operation, or of a type without gradients.
    #[track_caller]
    pub fn requires_grad_(self, on: bool) -> Result<Self> {
        let call = Call::here("requires_grad_");
        if !self.is_leaf() {
            return Err(call
                .error(
                    ErrorKind::Autograd,
                    "only leaves can be told whether they collect gradients",
                )
                .with_tensor("self", &self)
                .help("detach it first"));
        }
        if on && !self.dtype().is_differentiable() {
            let what =
                format!("only floats and complex numbers have gradients, not {}", self.dtype());
            return Err(call.dtype_error(what));
        }
        if on && self.role() == Role::Temporary {
            self.set_role(Role::Parameters);
        }
        self.meta().requires_grad = on;
        Ok(self)
    }

    /// The gradient it has collected.
    #[must_use]
    pub fn grad(&self) -> Option<Tensor> {
        self.meta().grad.clone()
    }

    /// Replaces the gradient; `None` frees it, as `zero_grad(set_to_none=True)` does.
    ///
    /// # Errors
    ///
    /// If its shape, type or device is another.
    #[track_caller]
    pub fn set_grad(&self, grad: Option<Tensor>) -> Result<()> {
        if let Some(grad) = &grad {
            let fits = grad.shape() == self.shape()
                && grad.dtype() == self.dtype()
                && grad.device() == self.device();
            if !fits {
                let error =
                    Call::here("set_grad").shape_error("the gradient does not fit its tensor");
                return Err(error.with_tensor("self", self).with_tensor("grad", grad));
            }
            grad.set_role(Role::Gradients);
        }
        // Dropped after the lock.
        let _before = std::mem::replace(&mut self.meta().grad, grad);
        Ok(())
    }

    /// Takes the gradient out.
    #[must_use]
    pub fn take_grad(&self) -> Option<Tensor> {
        self.meta().grad.take()
    }

    /// Puts a gradient where there is none.
    ///
    /// # Errors
    ///
    /// If there is one: with the gradient that was to be put there.
    pub(super) fn put_first_grad(&self, grad: Tensor) -> Result<(), Tensor> {
        let mut meta = self.meta();
        if meta.grad.is_some() {
            return Err(grad);
        }
        meta.grad = Some(grad);
        Ok(())
    }

    /// The name of the operation that made it, such as `SinBackward`.
    #[must_use]
    pub fn grad_fn(&self) -> Option<&'static str> {
        self.meta().grad_fn.as_ref().map(|(node, _)| node.name)
    }

    pub(super) fn set_grad_fn(&self, node: Arc<Node>, output: usize) {
        self.storage().produced_by(&node);
        let _before = self.meta().grad_fn.replace((node, output));
    }

    /// Where its gradient goes, if it has one.
    pub(crate) fn gradient_edge(&self, call: Call) -> Option<Edge> {
        let mut meta = self.meta();
        if let Some((node, output)) = &meta.grad_fn {
            return Some(Edge::new(Arc::clone(node), *output, self));
        }
        if !meta.requires_grad {
            return None;
        }
        let node = match meta.accumulator.upgrade() {
            Some(node) => node,
            None => {
                let node = Node::accumulate(call, self);
                meta.accumulator = Arc::downgrade(&node);
                node
            }
        };
        drop(meta);
        Some(Edge::new(node, 0, self))
    }

    /// Refuses a view of something that the graph has seen change in place since: its place in the
    /// graph is that of the old numbers, its numbers are the new ones.
    pub(crate) fn check_view(&self, call: Call) -> Result<()> {
        if self.view_of().is_none_or(|then| then == self.storage().graph_version()) {
            return Ok(());
        }
        let what = "a view is older than a change in place of what it shows";
        let error = call.error(ErrorKind::Autograd, what).with_tensor("view", self);
        let error = match self.storage().last_write() {
            Some(write) => error.with("changed by", write),
            None => error,
        };
        Err(error.help("take the view again after the change"))
    }

    /// Refuses what PyTorch refuses: changing a leaf, or a view of one, in place while operations are
    /// recorded.
    pub(crate) fn check_in_place(&self, call: Call, inputs: &[&Tensor]) -> Result<()> {
        if !is_grad_enabled() {
            return Ok(());
        }
        let base = self.base();
        if !inputs.iter().copied().chain(&base).any(Tensor::requires_grad) {
            return Ok(());
        }
        if self.is_leaf() && self.requires_grad() {
            return Err(call
                .error(ErrorKind::Autograd, "a leaf that collects gradients is changed in place")
                .with_tensor("self", self)
                .help("wrap the update in no_grad, or work on a copy"));
        }
        match base {
            Some(base) => copy_slices::check(call, self, &base),
            None => self.check_view(call),
        }
    }
}
