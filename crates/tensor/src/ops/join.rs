//! Joining and splitting along an axis: cat, stack, split, chunk.
//!
//! Joining copies; splitting gives views. Each is the other's backward.

use crate::autograd::{Backward, Grads, Needs, record};
use crate::dtype::{DType, dispatch};
use crate::error::{Call, ErrorKind, Result};
use crate::exec::{Args, Input, Kernel, Operand, Operands, Plan, for_each_chunk};
use crate::shape::Shape;
use crate::tensor::Tensor;

/// Writes its inputs one after the other: of every row of the output, a part comes from each.
struct Join {
    axis: usize,
    /// The elements of a row up to the end of each input.
    ends: Vec<usize>,
}

impl Kernel for Join {
    fn host(&self, args: &mut Args<'_>) -> Result<(), String> {
        let ends = &self.ends;
        let width = ends.last().copied().unwrap_or(0);
        let inputs: Vec<Input<'_>> = (0..ends.len()).map(|place| args.input(place)).collect();
        dispatch!(args.output_dtype(0), T => {
            for_each_chunk::<T>(args.take(0), &|indices, chunk| {
                let (mut index, mut scratch) = (indices.start, Vec::new());
                while index < indices.end {
                    let (row, column) = (index / width, index % width);
                    let place = ends.partition_point(|end| *end <= column);
                    let first = if place == 0 { 0 } else { ends[place - 1] };
                    let length = (ends[place] - column).min(indices.end - index);
                    let from = row * (ends[place] - first) + column - first;
                    let part = inputs[place].chunk::<T>(from..from + length, &mut scratch);
                    chunk[index - indices.start..][..length].copy_from_slice(part);
                    index += length;
                }
            });
        });
        Ok(())
    }

    fn cuda(&self, on: Operands<'_>) -> Plan {
        let (whole, mut start) = (&on.outputs[0], 0);
        let mut launches = Vec::with_capacity(on.inputs.len());
        for input in on.inputs {
            let size = input.layout.shape()[self.axis];
            let layout = whole.layout.slice(self.axis, start, size, 1);
            let layout = layout.expect("the output is as long as all inputs");
            start += size;
            if layout.numel() == 0 {
                continue;
            }
            let part = Operand { layout, ..whole.clone() };
            match super::copy::Copy
                .cuda(Operands { outputs: &[part], inputs: std::slice::from_ref(input) })
            {
                Plan::Launches(copies) => launches.extend(copies),
                other => return other,
            }
        }
        Plan::Launches(launches)
    }
}

/// Each input's gradient is its part, as a view.
struct CatBackward {
    axis: usize,
    sizes: Vec<usize>,
}

impl Backward for CatBackward {
    fn backward(&self, grads: &[Option<Tensor>], needs: &Needs<'_>) -> Result<Grads> {
        let Some(grad) = &grads[0] else { return Ok(self.sizes.iter().map(|_| None).collect()) };
        let mut start = 0;
        let part = |(place, size): (usize, &usize)| {
            let begins = start;
            start += size;
            let view = || grad.narrow(self.axis as isize, begins, *size);
            needs.input(place).then(view).transpose()
        };
        self.sizes.iter().enumerate().map(part).collect()
    }
}

/// Parts are joined again; those without a gradient are zeros.
struct SplitBackward {
    call: Call,
    axis: usize,
    sizes: Vec<usize>,
    shape: Shape,
    dtype: DType,
}

impl Backward for SplitBackward {
    fn backward(&self, grads: &[Option<Tensor>], _: &Needs<'_>) -> Result<Grads> {
        let Some(device) = grads.iter().flatten().next().map(|grad| grad.device().clone()) else {
            return Ok(Grads::from_iter([None]));
        };
        let part = |(grad, size): (&Option<Tensor>, &usize)| match grad {
            Some(grad) => Ok(grad.clone()),
            None => {
                let mut shape = self.shape.to_vec();
                shape[self.axis] = *size;
                Tensor::zeros(shape, (&device, self.dtype))
            }
        };
        let parts = grads.iter().zip(&self.sizes).map(part).collect::<Result<Vec<_>>>()?;
        let parts: Vec<&Tensor> = parts.iter().collect();
        joined(self.call, &parts, self.axis).map(|whole| Grads::from_iter([Some(whole)]))
    }
}

/// Tensors one after the other, outside the graph. Shapes are checked.
#[track_caller]
fn joined(call: Call, tensors: &[&Tensor], axis: usize) -> Result<Tensor> {
    let Some(first) = tensors.first() else {
        return Err(call.error(ErrorKind::Value, "there is nothing to join"));
    };
    let dtype = tensors[1..].iter().fold(first.dtype(), |dtype, it| dtype.promote(it.dtype()));
    let mut shape = first.shape().to_vec();
    let inner: usize = shape[axis + 1..].iter().product();
    let mut end = 0usize;
    let mut ends = Vec::with_capacity(tensors.len());
    for tensor in tensors {
        // The sizes are of tensors that exist, but expanded ones may be of any size.
        let Some(next) = end.checked_add(tensor.shape()[axis]) else {
            return Err(call.shape_error("more elements than can be counted"));
        };
        end = next;
        ends.push(end.saturating_mul(inner));
    }
    shape[axis] = end;
    let output = Tensor::uninit(call, shape.into(), dtype, first.device())?;
    call.launch(Join { axis, ends }, &[&output], tensors)?;
    Ok(output)
}

impl Tensor {
    /// Tensors one after the other along an axis; other sizes are equal. Types are promoted.
    ///
    /// ```
    /// # use tonnage_tensor::{Device, Tensor};
    /// # let device = Device::host("64 MiB")?;
    /// let (a, b) = (Tensor::zeros([2, 3], &device)?, Tensor::ones([2, 1], &device)?);
    /// assert_eq!(Tensor::cat(&[&a, &b], 1)?.shape()[..], [2, 4]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If there are none, if shapes differ elsewhere, or if there is no memory.
    #[track_caller]
    pub fn cat(tensors: &[&Tensor], axis: isize) -> Result<Tensor> {
        joined_and_recorded(Call::here("cat"), tensors, axis)
    }

    /// Tensors of one shape, one after the other along a new axis.
    ///
    /// # Errors
    ///
    /// As for [`cat`](Self::cat).
    #[track_caller]
    pub fn stack(tensors: &[&Tensor], axis: isize) -> Result<Tensor> {
        let call = Call::here("stack");
        let wide =
            tensors.iter().map(|tensor| tensor.unsqueeze(axis)).collect::<Result<Vec<_>>>()?;
        if let Some(other) = tensors.iter().find(|it| it.shape() != tensors[0].shape()) {
            let error = call.shape_error("only tensors of one shape can be stacked");
            return Err(error.with_tensor("first", tensors[0]).with_tensor("other", other));
        }
        let wide: Vec<&Tensor> = wide.iter().collect();
        joined_and_recorded(call, &wide, axis)
    }

    /// Views of `size` indices each along an axis; the last may be smaller.
    ///
    /// # Errors
    ///
    /// If the size is zero, or if there is no such axis.
    #[track_caller]
    pub fn split(&self, size: usize, axis: isize) -> Result<Vec<Tensor>> {
        let call = Call::here("split");
        let length = self.shape()[self.axis(call, axis)?];
        if size == 0 {
            return Err(call.error(ErrorKind::Value, "parts of size zero never end"));
        }
        let part = |start: usize| size.min(length - start);
        let sizes: Vec<usize> = match length {
            0 => vec![0],
            _ => (0..length).step_by(size).map(part).collect(),
        };
        self.parts(call, &sizes, axis)
    }

    /// Views of these sizes along an axis, which add up to it.
    ///
    /// # Errors
    ///
    /// If they do not, or if there is no such axis.
    #[track_caller]
    pub fn split_sizes(&self, sizes: &[usize], axis: isize) -> Result<Vec<Tensor>> {
        self.parts(Call::here("split_sizes"), sizes, axis)
    }

    /// At most `count` views along an axis, all but the last of equal size.
    ///
    /// # Errors
    ///
    /// If the count is zero, or if there is no such axis.
    #[track_caller]
    pub fn chunk(&self, count: usize, axis: isize) -> Result<Vec<Tensor>> {
        let call = Call::here("chunk");
        let length = self.shape()[self.axis(call, axis)?];
        if count == 0 {
            return Err(call.error(ErrorKind::Value, "a tensor cannot be split into no parts"));
        }
        self.split(length.div_ceil(count).max(1), axis)
    }

    fn parts(&self, call: Call, sizes: &[usize], axis: isize) -> Result<Vec<Tensor>> {
        let axis = self.axis(call, axis)?;
        let sum = sizes.iter().try_fold(0usize, |sum, size| sum.checked_add(*size));
        if sum != Some(self.shape()[axis]) {
            return Err(call
                .shape_error(format!("the sizes do not add up to axis {axis}"))
                .with_tensor("self", self)
                .with("sizes", format_args!("{sizes:?}")));
        }
        let mut start = 0;
        let mut parts = Vec::with_capacity(sizes.len());
        for size in sizes {
            let Some(layout) = self.layout().slice(axis, start, *size, 1) else {
                return Err(call.shape_error("a part lies outside").with_tensor("self", self));
            };
            parts.push(self.alias(layout));
            start += size;
        }
        let outputs: Vec<&Tensor> = parts.iter().collect();
        record(call, "SplitBackward", &outputs, &[self], || {
            let (sizes, shape) = (sizes.to_vec(), self.shape().clone());
            Ok(Box::new(SplitBackward { call, axis, sizes, shape, dtype: self.dtype() }))
        })?;
        Ok(parts)
    }
}

#[track_caller]
fn joined_and_recorded(call: Call, tensors: &[&Tensor], axis: isize) -> Result<Tensor> {
    let Some(first) = tensors.first() else {
        let error = call.error(ErrorKind::Value, "there is nothing to join");
        return Err(error.help("pass at least one tensor"));
    };
    let axis = first.axis(call, axis)?;
    let fits = |it: &Tensor| {
        let same = |other: usize| other == axis || it.shape()[other] == first.shape()[other];
        it.dim() == first.dim() && (0..first.dim()).all(same)
    };
    if let Some(place) = tensors.iter().position(|it| !fits(it)) {
        return Err(call
            .shape_error(format!("shapes differ elsewhere than along axis {axis}"))
            .with_tensor("first", first)
            .with_tensor(&format!("tensor {place}"), tensors[place]));
    }
    let output = joined(call, tensors, axis)?;
    record(call, "CatBackward", &[&output], tensors, || {
        let sizes = tensors.iter().map(|it| it.shape()[axis]).collect();
        Ok(Box::new(CatBackward { axis, sizes }))
    })?;
    Ok(output)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Device;
    use crate::testing::{conformance, gradcheck};

    #[test]
    fn joining_and_splitting_undo_each_other_along_every_axis() -> Result<()> {
        let device = Device::host("256 MiB").unwrap();
        let x = Tensor::arange(0, 30 * 40 * 50, 1, &device)?.view([30, 40, 50])?;
        for (x, axis) in [(x.clone(), 0), (x.clone(), 1), (x.clone(), -1), (x.transpose(0, 2)?, 1)]
        {
            for sizes in [vec![7; 10], vec![13, 0, 1, 100]] {
                let length = x.shape()[x.axis(Call::here("test"), axis)?];
                let mut left = length;
                let sizes: Vec<usize> = sizes
                    .into_iter()
                    .map(|size: usize| {
                        let size = size.min(left);
                        left -= size;
                        size
                    })
                    .collect();
                if left > 0 {
                    continue;
                }
                let parts = x.split_sizes(&sizes, axis)?;
                assert!(parts.iter().all(|part| part.shares_storage_with(&x)));
                let whole = Tensor::cat(&parts.iter().collect::<Vec<_>>(), axis)?;
                assert_eq!(whole.to_vec::<i64>()?, x.to_vec::<i64>()?, "{sizes:?} {axis}");
            }
        }
        let sizes = |parts: Vec<Tensor>| parts.iter().map(|it| it.shape()[1]).collect::<Vec<_>>();
        assert_eq!(sizes(x.split(15, 1)?), [15, 15, 10]);
        assert_eq!(sizes(x.chunk(3, 1)?), [14, 14, 12]);
        assert_eq!(sizes(x.chunk(100, 1)?).len(), 40);
        Ok(())
    }

    #[test]
    fn stacking_makes_an_axis_and_types_are_promoted() -> Result<()> {
        let device = Device::host("64 MiB").unwrap();
        let a = Tensor::arange(0, 3, 1, &device)?;
        let b = Tensor::full([3], 0.5, &device)?;
        let rows = Tensor::stack(&[&a, &b], 0)?;
        assert_eq!(rows.to_vec::<f32>()?, [0.0, 1.0, 2.0, 0.5, 0.5, 0.5]);
        let columns = Tensor::stack(&[&a, &b], -1)?;
        assert_eq!(columns.to_vec::<f32>()?, [0.0, 0.5, 1.0, 0.5, 2.0, 0.5]);
        Ok(())
    }

    #[test]
    fn what_does_not_fit_is_named() {
        let device = Device::dry("1 GiB").unwrap();
        let a = Tensor::zeros([2, 3], &device).unwrap();
        let b = Tensor::zeros([3, 3], &device).unwrap();
        let error = Tensor::cat(&[&a, &b], 1).unwrap_err().to_string();
        assert!(error.contains("elsewhere than along axis 1"), "{error}");
        assert!(error.contains("| tensor 1: float32[3, 3]"), "{error}");
        assert!(Tensor::cat(&[&a, &b], 0).is_ok());
        assert!(Tensor::stack(&[&a, &b], 0).is_err() && Tensor::cat(&[], 0).is_err());
        assert!(a.split(0, 0).is_err() && a.chunk(0, 0).is_err());
        assert!(a.split_sizes(&[1, 2], 0).is_err() && a.split_sizes(&[usize::MAX, 3], 0).is_err());
    }

    #[test]
    fn gradients_are_right() {
        gradcheck(&[&[2, 3], &[2, 1]], |x| Tensor::cat(&[&x[0], &x[1], &x[0]], 1)).unwrap();
        gradcheck(&[&[2, 3], &[2, 3]], |x| Tensor::stack(&[&x[0], &x[1]], 1)).unwrap();
        gradcheck(&[&[2, 5]], |x| {
            let parts = x[0].split(2, 1)?;
            parts[0].mul(&parts[1])
        })
        .unwrap();
        gradcheck(&[&[6]], |x| {
            let parts = x[0].chunk(3, 0)?;
            parts[2].mul(&parts[0].sin()?)
        })
        .unwrap();
    }

    conformance!(joins, |device| {
        let x = Tensor::ones([20, 30], device)?.requires_grad_(true)?;
        let parts = x.split(8, 1)?;
        let y = Tensor::cat(&[&parts[0], &parts[3]], 1)?;
        let z = Tensor::stack(&[&y, &y], 0)?;
        z.sum()?.backward()?;
        Ok(vec![z, x.grad().unwrap()])
    });

    conformance!(joins_of_every_type_and_layout, |device| {
        let mut results = Vec::new();
        for dtype in DType::ALL {
            let x = Tensor::randint(0, 9, [4, 40, 36], (device, dtype))?;
            let whole = Tensor::randint(0, 9, [4, 40, 36], device)?;
            for axis in 0..3 {
                let part = x.narrow(axis, 1, 3)?;
                results.push(Tensor::cat(&[&x, &part, &x.narrow(axis, 0, 0)?], axis)?);
                results.push(Tensor::cat(&[&x.transpose(1, 2)?.transpose(2, 1)?, &whole], axis)?);
                results.push(Tensor::stack(&[&x.transpose(1, 2)?, &x.transpose(1, 2)?], axis)?);
            }
        }
        Ok(results)
    });
}
