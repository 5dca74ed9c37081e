//! Changes in place through a view: what the view is a part of learns of them.
//!
//! In:  an operation that changed a view, and the tensor that the view is a part of (its base).
//! Out: the base's new place in the graph, and the view's behind it.
//!
//! The base becomes the result of an operation whose inputs are the old base and the operation's other
//! inputs. On the way back, the part of the gradient under the view goes through the operation; the
//! rest goes through as it is. Other views of the same base are older than the change and say so when
//! they are used.

use super::node::{Backward, Grads, Needs, Node, edges};
use crate::error::{Call, ErrorKind, Result};
use crate::shape::Layout;
use crate::tensor::Tensor;

/// The way back through an operation on a part of its first input.
struct CopySlices {
    call: Call,
    /// Where the part lies in a gradient of the whole.
    part: Layout,
    operation: Box<dyn Backward>,
}

impl Backward for CopySlices {
    fn backward(&self, grads: &[Option<Tensor>], needs: &Needs<'_>) -> Result<Grads> {
        let Some(grad) = &grads[0] else { return self.operation.backward(grads, needs) };
        let whole = grad.copied(self.call)?;
        let part = whole.alias(self.part.clone());
        let mut results = self.operation.backward(&[Some(part.copied(self.call)?)], needs)?;
        if needs.input(0) {
            match results[0].take() {
                Some(grad) => part.copy_(&grad)?,
                None => part.zero_()?,
            }
            drop(part);
            results[0] = Some(whole);
        }
        Ok(results)
    }
}

/// The way back through the view that the part now is.
struct PartOf {
    part: Layout,
    whole: crate::shape::Shape,
}

impl Backward for PartOf {
    fn backward(&self, grads: &[Option<Tensor>], _: &Needs<'_>) -> Result<Grads> {
        let Some(grad) = &grads[0] else { return Ok(Grads::from_iter([None])) };
        let whole = Tensor::zeros(&self.whole, (grad.device(), grad.dtype()))?;
        whole.alias(self.part.clone()).copy_(grad)?;
        Ok(Grads::from_iter([Some(whole)]))
    }
}

/// Where a view lies in a fresh tensor of its base's shape. None if the base does not lie in order.
fn part_of(view: &Tensor, base: &Tensor) -> Option<Layout> {
    let part = view.layout().moved_back(base.storage_offset())?;
    let inside = part.span().end <= base.numel();
    (base.is_contiguous() && inside && view.dtype() == base.dtype()).then_some(part)
}

/// Refuses changes through a view that the graph cannot follow.
pub(super) fn check(call: Call, view: &Tensor, base: &Tensor) -> Result<()> {
    view.check_view(call)?;
    if base.is_leaf() && base.requires_grad() {
        return Err(call
            .error(
                ErrorKind::Autograd,
                "a view of a leaf that collects gradients is changed in place",
            )
            .with_tensor("view", view)
            .with_tensor("leaf", base)
            .help("wrap the update in no_grad, or work on a copy"));
    }
    if base.requires_grad() && !view.requires_grad() {
        return Err(call
            .error(ErrorKind::Autograd, "a view that the graph does not know is changed in place")
            .with_tensor("view", view)
            .help("take the view where operations are recorded, or change it inside no_grad"));
    }
    if part_of(view, base).is_none() {
        return Err(call
            .error(ErrorKind::Autograd, "what the view is a part of does not lie in order")
            .with_tensor("view", view)
            .with_tensor("base", base)
            .help("change it through contiguous, or work on a copy"));
    }
    Ok(())
}

/// Notes that `view`, the first of `inputs`, was changed by an operation.
pub(super) fn record(
    call: Call,
    name: &'static str,
    (view, base): (&Tensor, &Tensor),
    inputs: &[&Tensor],
    make: impl FnOnce() -> Result<Box<dyn Backward>>,
) -> Result<()> {
    debug_assert!(inputs.first().is_some_and(|it| it.is(view)), "{name}");
    let wholes: Vec<&Tensor> = [base].into_iter().chain(inputs[1..].iter().copied()).collect();
    let Some(from) = edges(call, &wholes)? else { return Ok(()) };
    let Some(part) = part_of(view, base) else { return check(call, view, base) };
    let backward = CopySlices { call, part: part.clone(), operation: make()? };
    let node = Node::operation(name, call, from, 1, Box::new(backward));
    base.storage().recorded();
    base.set_grad_fn(node, 0);
    view.renew_view();
    let Some(from) = edges(call, &[base])? else { return Ok(()) };
    let whole = base.shape().clone();
    let node =
        Node::operation("AsStridedBackward", call, from, 1, Box::new(PartOf { part, whole }));
    view.set_grad_fn(node, 0);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Device;
    use crate::autograd::no_grad;
    use crate::testing::{conformance, gradcheck};

    #[test]
    fn gradients_go_through_what_was_changed_and_around_it() {
        gradcheck(&[&[3, 4]], |x| {
            let y = x[0].mul(2.0)?;
            y.narrow(0, 1, 2)?.mul_(3.0)?;
            y.t()?.exp_()?;
            Ok(y)
        })
        .unwrap();
        gradcheck(&[&[3, 4], &[4], &[3]], |x| {
            let y = x[0].mul(2.0)?;
            y.select(0, 1)?.copy_(&x[1])?;
            y.select(1, 2)?.mul_(&x[2])?;
            y.slice(1, 0..4, 2)?.narrow(0, 0, 2)?.zero_()?;
            y.mul(&x[0])
        })
        .unwrap();
    }

    #[test]
    fn a_buffer_collects_results_in_its_parts() {
        gradcheck(&[&[2, 3], &[2, 3]], |x| {
            let buffer = Tensor::zeros([4, 3], (x[0].device(), x[0].dtype()))?;
            buffer.narrow(0, 0, 2)?.copy_(&x[0])?;
            buffer.narrow(0, 2, 2)?.copy_(&x[1].sin()?)?;
            buffer.mul(&buffer)
        })
        .unwrap();
    }

    #[test]
    fn the_view_itself_goes_on_behind_the_change() {
        gradcheck(&[&[4], &[2]], |x| {
            let y = x[0].mul(2.0)?;
            let view = y.narrow(0, 1, 2)?;
            view.mul_(&x[1])?;
            view.tanh_()?;
            view.sin()?.sum()?.add(&y)
        })
        .unwrap();
        // Nobody can see what it was a part of.
        gradcheck(&[&[4], &[2]], |x| {
            let view = x[0].mul(2.0)?.narrow(0, 1, 2)?;
            view.mul_(&x[1])?;
            Ok(view)
        })
        .unwrap();
    }

    #[test]
    fn what_pytorch_refuses_is_refused() -> Result<()> {
        let device = Device::host("64 MiB").unwrap();
        let x = Tensor::ones([4], &device)?.requires_grad_(true)?;
        let text = x.narrow(0, 0, 2)?.add_(1.0).unwrap_err().to_string();
        assert!(text.contains("a view of a leaf"), "{text}");
        no_grad(|| x.narrow(0, 0, 2)?.add_(1.0))?;
        assert_eq!(x.to_vec::<f32>()?, [2.0, 2.0, 1.0, 1.0]);
        let y = x.mul(2.0)?;
        let unknown = no_grad(|| y.narrow(0, 0, 2))?;
        assert!(unknown.add_(1.0).is_err());
        let (old, new) = (y.narrow(0, 0, 2)?, y.narrow(0, 2, 2)?);
        new.add_(1.0)?;
        assert!(old.add_(1.0).unwrap_err().to_string().contains("take the view again"));
        let z = y.sin()?;
        y.narrow(0, 0, 1)?.zero_()?;
        let text = z.sum()?.backward().unwrap_err().to_string();
        assert!(text.contains("changed by: zero_"), "{text}");
        Ok(())
    }

    conformance!(changes_through_views, |device| {
        let x = Tensor::ones([30, 40], device)?.requires_grad_(true)?;
        let y = x.mul(2.0)?;
        y.narrow(1, 10, 20)?.relu_()?;
        y.sum()?.backward()?;
        Ok(vec![x.grad().unwrap()])
    });
}
