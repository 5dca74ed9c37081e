//! Views: other shapes over the same storage.

use std::ops::Range;

use crate::autograd::{Backward, Grads, Needs, record};
use crate::error::{Call, Result};
use crate::shape::{Layout, Shape, axis_of};
use crate::tensor::Tensor;

/// The way back through a view.
enum Unview {
    /// To the shape it had.
    Reshape(Shape),
    /// Axes in the order they had.
    Permute(Vec<usize>),
    /// Into zeros of the shape it had.
    Slice { shape: Shape, axis: usize, start: usize, step: usize },
    /// As it is; the engine sums what was repeated.
    Expand,
}

impl Backward for Unview {
    fn backward(&self, grads: &[Option<Tensor>], _: &Needs<'_>) -> Result<Grads> {
        let Some(grad) = &grads[0] else { return Ok(Grads::from_iter([None])) };
        let back = match self {
            Self::Reshape(shape) => grad.reshape(shape)?,
            Self::Permute(axes) => {
                let axes: Vec<isize> = axes.iter().map(|axis| *axis as isize).collect();
                grad.permute(&axes)?
            }
            Self::Slice { shape, axis, start, step } => {
                let whole = Tensor::zeros(shape, (grad.device(), grad.dtype()))?;
                let length = grad.shape()[*axis];
                whole.sliced(Call::here("slice"), *axis, *start, length, *step)?.copy_(grad)?;
                whole
            }
            Self::Expand => grad.clone(),
        };
        Ok(Grads::from_iter([Some(back)]))
    }
}

impl Tensor {
    fn viewed(&self, call: Call, name: &'static str, layout: Layout, back: Unview) -> Result<Self> {
        let view = self.alias(layout);
        record(call, name, &[&view], &[self], || Ok(Box::new(back)))?;
        Ok(view)
    }

    /// An axis of this tensor; negative ones count from the end.
    pub(crate) fn axis(&self, call: Call, axis: isize) -> Result<usize> {
        axis_of(axis, self.dim()).ok_or_else(|| {
            call.shape_error(format!("there is no axis {axis}")).with_tensor("self", self)
        })
    }

    /// The same elements in the same order under another shape, sharing the storage.
    ///
    /// # Errors
    ///
    /// If the shape has another number of elements, or if strides cannot express it: then
    /// [`reshape`](Self::reshape) copies.
    #[track_caller]
    pub fn view(&self, shape: impl Into<Shape>) -> Result<Self> {
        let (call, shape) = (Call::here("view"), shape.into());
        self.check_numel(call, &shape)?;
        let Some(layout) = self.layout().view(&shape) else {
            return Err(call
                .shape_error("the strides do not allow this shape without a copy")
                .with_tensor("self", self)
                .with("shape", shape)
                .help("reshape copies where it must"));
        };
        self.viewed(call, "ViewBackward", layout, Unview::Reshape(self.shape().clone()))
    }

    /// The same elements in the same order under another shape: a view where possible, otherwise a
    /// copy.
    ///
    /// # Errors
    ///
    /// If the shape has another number of elements, or if there is no memory for a copy.
    #[track_caller]
    pub fn reshape(&self, shape: impl Into<Shape>) -> Result<Self> {
        let (call, shape) = (Call::here("reshape"), shape.into());
        self.check_numel(call, &shape)?;
        match self.layout().view(&shape) {
            Some(layout) => {
                self.viewed(call, "ViewBackward", layout, Unview::Reshape(self.shape().clone()))
            }
            None => self.copy()?.into_shape(call, shape),
        }
    }

    /// A result of an operation under another shape. What it was is gone, so it does not count as a
    /// view, and can be changed in place.
    pub(crate) fn into_shape(self, call: Call, shape: Shape) -> Result<Self> {
        if self.shape() == &shape {
            return Ok(self);
        }
        let Some(layout) = self.layout().view(&shape) else {
            return Err(call.shape_error("the result lies in order").with_tensor("self", &self));
        };
        let output = self.alias(layout).detach();
        let back = Unview::Reshape(self.shape().clone());
        record(call, "UnsafeViewBackward", &[&output], &[&self], || Ok(Box::new(back)))?;
        Ok(output)
    }

    fn check_numel(&self, call: Call, shape: &Shape) -> Result<()> {
        if shape.checked_numel() == Some(self.numel()) {
            return Ok(());
        }
        let what = format!("the shape does not have {} elements", self.numel());
        Err(call.shape_error(what).with_tensor("self", self).with("shape", shape))
    }

    /// Two axes exchanged.
    ///
    /// # Errors
    ///
    /// If there is no such axis.
    #[track_caller]
    pub fn transpose(&self, a: isize, b: isize) -> Result<Self> {
        let call = Call::here("transpose");
        let mut axes: Vec<usize> = (0..self.dim()).collect();
        axes.swap(self.axis(call, a)?, self.axis(call, b)?);
        self.permuted(call, "TransposeBackward", axes)
    }

    /// The transpose of a matrix; of fewer axes, itself.
    ///
    /// # Errors
    ///
    /// If it has more than two axes.
    #[track_caller]
    pub fn t(&self) -> Result<Self> {
        let call = Call::here("t");
        if self.dim() > 2 {
            let error = call.shape_error("only matrices have a transpose of their own accord");
            return Err(error.with_tensor("self", self).help("transpose exchanges any two axes"));
        }
        self.permuted(call, "TBackward", (0..self.dim()).rev().collect())
    }

    /// The axes in another order.
    ///
    /// # Errors
    ///
    /// Unless each axis is named once.
    #[track_caller]
    pub fn permute(&self, axes: &[isize]) -> Result<Self> {
        let call = Call::here("permute");
        let axes = axes.iter().map(|axis| self.axis(call, *axis)).collect::<Result<Vec<_>>>()?;
        self.permuted(call, "PermuteBackward", axes)
    }

    fn permuted(&self, call: Call, name: &'static str, axes: Vec<usize>) -> Result<Self> {
        let Some(layout) = self.layout().permute(&axes) else {
            let error = call.shape_error(format!("{axes:?} does not name each axis once"));
            return Err(error.with_tensor("self", self));
        };
        let mut inverse = vec![0; axes.len()];
        axes.iter().enumerate().for_each(|(to, from)| inverse[*from] = to);
        self.viewed(call, name, layout, Unview::Permute(inverse))
    }

    /// `length` indices of an axis, from `start` on.
    ///
    /// # Errors
    ///
    /// If the axis has not so many.
    #[track_caller]
    pub fn narrow(&self, axis: isize, start: usize, length: usize) -> Result<Self> {
        let call = Call::here("narrow");
        self.sliced(call, self.axis(call, axis)?, start, length, 1)
    }

    /// Every `step`-th index of a range of an axis; the range may end behind the axis.
    ///
    /// # Errors
    ///
    /// If the step is zero.
    #[track_caller]
    pub fn slice(&self, axis: isize, range: Range<usize>, step: usize) -> Result<Self> {
        let call = Call::here("slice");
        let axis = self.axis(call, axis)?;
        let size = self.shape()[axis];
        let (start, end) = (range.start.min(size), range.end.min(size));
        let length = end.saturating_sub(start).checked_div(step.max(1)).unwrap_or(0)
            + usize::from(end > start && (end - start) % step.max(1) != 0);
        self.sliced(call, axis, start, length, step)
    }

    fn sliced(
        &self,
        call: Call,
        axis: usize,
        start: usize,
        length: usize,
        step: usize,
    ) -> Result<Self> {
        let Some(layout) = self.layout().slice(axis, start, length, step) else {
            let what =
                format!("axis {axis} has no {length} indices from {start} on in steps of {step}");
            return Err(call.shape_error(what).with_tensor("self", self));
        };
        let back = Unview::Slice { shape: self.shape().clone(), axis, start, step };
        self.viewed(call, "SliceBackward", layout, back)
    }

    /// One index of an axis; the axis goes.
    ///
    /// # Errors
    ///
    /// If there is no such axis or index.
    #[track_caller]
    pub fn select(&self, axis: isize, index: usize) -> Result<Self> {
        self.narrow(axis, index, 1)?.squeeze(axis)
    }

    /// The same elements, repeated along axes of size one and along new axes in front.
    ///
    /// # Errors
    ///
    /// If an axis of another size would have to change.
    #[track_caller]
    pub fn expand(&self, shape: impl Into<Shape>) -> Result<Self> {
        self.expanded(Call::here("expand"), &shape.into())
    }

    pub(crate) fn expanded(&self, call: Call, shape: &Shape) -> Result<Self> {
        if self.shape() == shape {
            return Ok(self.clone());
        }
        let Some(layout) = self.layout().expand(shape) else {
            let error = call.shape_error("only axes of size one can be repeated");
            return Err(error.with_tensor("self", self).with("shape", shape));
        };
        self.viewed(call, "ExpandBackward", layout, Unview::Expand)
    }

    /// One more axis of size one, before `axis`.
    ///
    /// # Errors
    ///
    /// If there is no such place.
    #[track_caller]
    pub fn unsqueeze(&self, axis: isize) -> Result<Self> {
        let call = Call::here("unsqueeze");
        let place = axis_of(axis, self.dim() + 1);
        let Some(layout) = place.and_then(|axis| self.layout().unsqueeze(axis)) else {
            let error = call.shape_error(format!("there is no place {axis} for an axis"));
            return Err(error.with_tensor("self", self));
        };
        self.viewed(call, "UnsqueezeBackward", layout, Unview::Reshape(self.shape().clone()))
    }

    /// Without an axis, if it has size one; otherwise itself.
    ///
    /// # Errors
    ///
    /// If there is no such axis.
    #[track_caller]
    pub fn squeeze(&self, axis: isize) -> Result<Self> {
        let call = Call::here("squeeze");
        match self.layout().squeeze(self.axis(call, axis)?) {
            Some(layout) => {
                self.viewed(call, "SqueezeBackward", layout, Unview::Reshape(self.shape().clone()))
            }
            None => Ok(self.clone()),
        }
    }

    /// The axes from `first` to `last` as one.
    ///
    /// # Errors
    ///
    /// If there are no such axes, or no memory for a copy.
    #[track_caller]
    pub fn flatten(&self, first: isize, last: isize) -> Result<Self> {
        let call = Call::here("flatten");
        if self.dim() == 0 {
            return self.reshape([1]);
        }
        let (first, last) = (self.axis(call, first)?, self.axis(call, last)?);
        if first > last {
            let error = call.shape_error(format!("axis {first} lies behind axis {last}"));
            return Err(error.with_tensor("self", self));
        }
        let sizes = self.shape();
        let one = sizes[first..=last].iter().product();
        let shape = sizes[..first].iter().copied().chain([one]);
        self.reshape(Shape::from_iter(shape.chain(sizes[last + 1..].iter().copied())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Device;
    use crate::testing::{conformance, gradcheck};

    #[test]
    fn views_share_storage_and_copies_do_not() -> Result<()> {
        let device = Device::host("64 MiB").unwrap();
        let x = Tensor::arange(0, 12, 1, &device)?.view([3, 4])?;
        for view in [x.t()?, x.narrow(0, 1, 2)?, x.expand([2, 3, 4])?, x.unsqueeze(1)?] {
            assert!(view.shares_storage_with(&x), "{view:?}");
        }
        assert!(!x.t()?.reshape([12])?.shares_storage_with(&x));
        assert_eq!(x.slice(1, 1..9, 2)?.to_vec::<i64>()?, [1, 3, 5, 7, 9, 11]);
        assert_eq!(x.select(0, 2)?.to_vec::<i64>()?, [8, 9, 10, 11]);
        assert_eq!(x.select(-1, 0)?.to_vec::<i64>()?, [0, 4, 8]);
        assert_eq!(x.flatten(0, -1)?.shape()[..], [12]);
        assert_eq!(device.memory().stats().memory_allocated(), 512);
        Ok(())
    }

    #[test]
    fn wrong_views_say_what_met_what() {
        let device = Device::dry("1 GiB").unwrap();
        let x = Tensor::zeros([2, 3], &device).unwrap();
        let error = x.view([4]).unwrap_err().to_string();
        assert!(error.starts_with("view: the shape does not have 6 elements\n  --> "), "{error}");
        assert!(error.contains("| self:  float32[2, 3]\n   | shape: [4]"), "{error}");
        assert!(x.t().unwrap().view([6]).unwrap_err().to_string().contains("reshape copies"));
        assert!(x.transpose(0, 2).is_err() && x.permute(&[0, 0]).is_err());
        assert!(x.narrow(0, 1, 2).is_err() && x.slice(0, 0..2, 0).is_err());
        assert!(x.expand([2, 4]).is_err() && x.squeeze(2).is_err());
        assert_eq!(x.slice(0, 5..9, 1).unwrap().shape()[..], [0, 3]);
    }

    #[test]
    fn gradients_go_back_through_views() {
        let check = |f: fn(&Tensor) -> Result<Tensor>| gradcheck(&[&[2, 3]], |x| f(&x[0])).unwrap();
        check(|x| x.view([3, 2]));
        check(|x| x.t()?.reshape([6]));
        check(|x| x.permute(&[1, 0]));
        check(|x| x.narrow(1, 1, 2));
        check(|x| x.slice(1, 0..3, 2));
        check(|x| x.select(0, 1));
        check(|x| x.unsqueeze(1)?.expand([2, 4, 3]));
        check(|x| x.unsqueeze(-1)?.squeeze(-1));
    }

    conformance!(views, |device| {
        let x = Tensor::ones([4, 6], device)?.requires_grad_(true)?;
        let y = x.t()?.narrow(0, 1, 3)?.reshape([12])?;
        y.sum()?.backward()?;
        Ok(vec![y, x.grad().unwrap()])
    });
}
