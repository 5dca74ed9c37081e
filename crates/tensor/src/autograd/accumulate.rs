//! The end of the way back: a leaf collects its gradient.
//!
//! PyTorch's rule, which decides about a tensor's worth of memory for each leaf: the first gradient
//! becomes the leaf's own if nobody else has it and it lies as the leaf does; otherwise it is copied.
//! Later ones are added in place.

use crate::error::{Call, Result};
use crate::live::Role;
use crate::tensor::Tensor;

pub(super) fn accumulate(call: Call, leaf: &Tensor, new: Tensor) -> Result<()> {
    if let Some(sum) = leaf.grad() {
        return sum.add_in_place(call, &new);
    }
    let own = if new.handles() == 1 && lies_as(&new, leaf) && !new.is_conj() {
        new.detach()
    } else {
        new.copied(call)?
    };
    own.set_role(Role::Gradients);
    leaf.put_grad(own);
    Ok(())
}

/// Whether a gradient lies in memory as its leaf does.
fn lies_as(gradient: &Tensor, leaf: &Tensor) -> bool {
    if leaf.layout().is_dense() {
        let relevant = |tensor: &Tensor| -> Vec<usize> {
            let sizes = tensor.shape().iter().zip(tensor.strides());
            sizes.filter(|(size, _)| **size != 1).map(|(_, stride)| *stride).collect()
        };
        relevant(gradient) == relevant(leaf)
    } else {
        gradient.is_contiguous()
    }
}
