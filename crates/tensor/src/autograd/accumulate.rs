//! The end of the way back: a leaf collects its gradient.
//!
//! The rule decides about a tensor's worth of memory for each leaf: the first gradient becomes the
//! leaf's own if nobody else has it or its memory, and if it lies as the leaf does; otherwise it is
//! copied. Later ones are added in place.
//!
//! PyTorch asks only whether someone else has the tensor, not whether someone has its memory: two
//! leaves whose gradients are views of one tensor then share a buffer, to which each adds the other's
//! next gradient. Where gradients share memory this needs a copy that PyTorch does not make.

use crate::error::{Call, Result};
use crate::live::Role;
use crate::tensor::Tensor;

/// Adds `new` to what the leaf has collected. Several threads may do so at once: every gradient counts.
pub(super) fn accumulate(call: Call, leaf: &Tensor, mut new: Tensor) -> Result<()> {
    loop {
        if let Some(sum) = leaf.grad() {
            return sum.add_in_place(call, &new);
        }
        let nobody_else_has_it = new.handles() == 1 && new.owns_storage();
        let own = if nobody_else_has_it && lies_as(&new, leaf) && !new.is_conj() {
            new.detach()
        } else {
            new.copied(call)?
        };
        own.set_role(Role::Gradients);
        match leaf.put_first_grad(own) {
            Ok(()) => return Ok(()),
            // Another thread's was first: this one is added to it.
            Err(late) => new = late,
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Device;

    #[test]
    fn who_looks_on_neither_keeps_memory_nor_changes_what_is_copied() -> Result<()> {
        let device = Device::dry("1 GiB").unwrap();
        let leaf = Tensor::ones([1000], &device)?.requires_grad_(true)?;
        let gradient = Tensor::ones([1000], &device)?;
        let seen = device.registry().storages();
        let allocations = || device.memory().stats().allocation.all.allocated;
        let before = allocations();
        accumulate(Call::here("test"), &leaf, gradient)?;
        assert_eq!(allocations(), before, "the leaf took it over");
        drop(leaf);
        assert_eq!(device.memory().allocated(), 0);
        assert_eq!(seen.len(), 2);
        Ok(())
    }
}
