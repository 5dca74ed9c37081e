//! Softmax and its logarithm along an axis.
//!
//! PyTorch keeps the result for the backward, not the input; so does this.

use tonnage_device::cuda::{Arguments, Extent};

use crate::amp::raised;
use crate::autograd::{Backward, Grads, Needs, Saved, record};
use crate::dtype::{DType, Float, Real, dispatch_float};
use crate::error::{Call, Result};
use crate::exec::cuda::{self, Launch, Program};
use crate::exec::{Args, Kernel, Operands, Plan, rows};
use crate::tensor::Tensor;

/// Where the axis lies: the tensor is `[…, width, inner]`, rows one after the other.
#[derive(Clone, Copy)]
struct Axis {
    width: usize,
    inner: usize,
}

impl Axis {
    fn of(x: &Tensor, axis: usize) -> Self {
        Self { width: x.shape()[axis], inner: x.shape()[axis + 1..].iter().product() }
    }

    fn slab(self) -> usize {
        self.width * self.inner
    }

    /// Calls `work` with each vector along the axis, as slices, for one index of the axes before.
    fn for_each_vector<R: Real>(
        self,
        inputs: &[&[R]],
        output: &mut [R],
        work: impl Fn(&[&[R]], &mut [R]),
    ) {
        if self.inner == 1 {
            return work(inputs, output);
        }
        let mut vectors = vec![vec![R::default(); TOGETHER * self.width]; inputs.len()];
        let mut results = vec![R::default(); TOGETHER * self.width];
        for first in (0..self.inner).step_by(TOGETHER) {
            let count = TOGETHER.min(self.inner - first);
            let place = |index: usize, column: usize| index * self.inner + first + column;
            for (vectors, input) in vectors.iter_mut().zip(inputs) {
                for (index, column) in pairs(self.width, count) {
                    vectors[column * self.width + index] = input[place(index, column)];
                }
            }
            for column in 0..count {
                let along = column * self.width..(column + 1) * self.width;
                let read: Vec<&[R]> = vectors.iter().map(|it| &it[along.clone()]).collect();
                work(&read, &mut results[along]);
            }
            for (index, column) in pairs(self.width, count) {
                output[place(index, column)] = results[column * self.width + index];
            }
        }
    }
}

/// Vectors that lie side by side and are taken together, so that memory is read by cache lines.
const TOGETHER: usize = 16;

fn pairs(rows: usize, columns: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..rows).flat_map(move |row| (0..columns).map(move |column| (row, column)))
}

/// `output = softmax(x)` or its logarithm.
struct Softmax {
    axis: Axis,
    log: bool,
}

impl Kernel for Softmax {
    fn host(&self, args: &mut Args<'_>) -> Result<(), String> {
        let (x, axis, log) = (args.input(0), self.axis, self.log);
        dispatch_float!(args.output_dtype(0), T => {
            type W = <T as Float>::Wide;
            rows::<T>(args.take(0), axis.slab(), &|slab, places| {
                let (mut scratch, mut result) = (Vec::new(), vec![W::default(); places.len()]);
                let x = x.chunk::<W>(slab * axis.slab()..(slab + 1) * axis.slab(), &mut scratch);
                axis.for_each_vector(&[x], &mut result, |x, y| softmax(x[0], y, log));
                places.iter_mut().zip(&result).for_each(|(place, it)| *place = T::narrow(*it));
            });
        }, else return Err(format!("{} is no float", args.output_dtype(0))));
        Ok(())
    }

    fn cuda(&self, on: Operands<'_>) -> Plan {
        let names = ["softmax", "softmax_columns"];
        launch(names, self.axis, on, &[("LOG", &u8::from(self.log))])
    }
}

const TEXT: &str = concat!(
    include_str!("../exec/cuda/rows.cuh"),
    include_str!("exponentials.cuh"),
    include_str!("softmax.cu")
);

/// The program for vectors that are rows, or the one for vectors that lie side by side.
fn launch(
    [rows, columns]: [&'static str; 2],
    axis: Axis,
    on: Operands<'_>,
    of_kernel: &[(&str, &dyn std::fmt::Display)],
) -> Plan {
    /// Threads of a block, of which each takes a vector.
    const THREADS: u32 = 128;
    let output = &on.outputs[0];
    let numel = output.layout.numel();
    if numel == 0 {
        return Plan::nothing();
    }
    let vectors = numel / axis.width;
    let mut arguments = Arguments::new();
    on.outputs.iter().chain(on.inputs).for_each(|it| arguments.push(it.first()));
    arguments.push(vectors as u64);
    let last = on.inputs.len() - 1;
    let (from, to) = (cuda::stored(on.inputs[last].dtype), cuda::stored(output.dtype));
    let compute = cuda::wide(output.dtype);
    let types: [(&str, &dyn std::fmt::Display); 3] = [("IN", &from), ("OUT", &to), ("C", &compute)];
    let types = [&types, of_kernel].concat();
    let Ok(width) = u32::try_from(if axis.inner == 1 { axis.width } else { usize::MAX }) else {
        arguments.push(axis.width as u64);
        arguments.push(axis.inner as u64);
        let constants: [(&str, &dyn std::fmt::Display); 4] =
            [("COLUMNS", &1), ("THREADS", &THREADS), ("GROUP", &1), ("PACK", &1)];
        let program = Program::new(columns, TEXT, &[&types[..], &constants].concat());
        let blocks = cuda::blocks(vectors as u64, u64::from(THREADS));
        return Launch::new(program, Extent::line(blocks, THREADS), arguments).into();
    };
    arguments.push(width);
    let group = cuda::Group::of(axis.width, &on.all());
    let program = Program::new(rows, TEXT, &[&types[..], &group.constants()].concat());
    Launch::new(program, group.extent(vectors), arguments).into()
}

fn largest_of<R: Real>(x: &[R]) -> R {
    x.iter().fold(R::n(f64::NEG_INFINITY), |a, b| if *b > a { *b } else { a })
}

/// The largest number and the logarithm of the sum of exponentials relative to it.
pub(super) fn log_sum<R: Real>(x: &[R]) -> (R, R) {
    let largest = largest_of(x);
    let sum: f64 = x.iter().map(|it| (*it - largest).exp().to_f64()).sum();
    (largest, R::from_f64(sum.ln()))
}

fn softmax<R: Real>(x: &[R], y: &mut [R], log: bool) {
    if log {
        let (largest, log_sum) = log_sum(x);
        y.iter_mut().zip(x).for_each(|(y, x)| *y = *x - largest - log_sum);
        return;
    }
    let largest = largest_of(x);
    y.iter_mut().zip(x).for_each(|(y, x)| *y = (*x - largest).exp());
    let sum: f64 = y.iter().map(|it| it.to_f64()).sum();
    let scale = R::from_f64(1.0 / sum);
    y.iter_mut().for_each(|y| *y = *y * scale);
}

/// `output = y · (grad - Σ grad·y)`, or for the logarithm `grad - exp(y) · Σ grad`.
struct SoftmaxGrad {
    axis: Axis,
    log: bool,
}

impl Kernel for SoftmaxGrad {
    fn host(&self, args: &mut Args<'_>) -> Result<(), String> {
        let (grad, y, axis, log) = (args.input(0), args.input(1), self.axis, self.log);
        dispatch_float!(args.output_dtype(0), T => {
            type W = <T as Float>::Wide;
            rows::<T>(args.take(0), axis.slab(), &|slab, places| {
                let (mut for_grad, mut for_y) = (Vec::new(), Vec::new());
                let mut result = vec![W::default(); places.len()];
                let range = slab * axis.slab()..(slab + 1) * axis.slab();
                let grad = grad.chunk::<W>(range.clone(), &mut for_grad);
                let y = y.chunk::<W>(range, &mut for_y);
                axis.for_each_vector(&[grad, y], &mut result, |from, to| {
                    softmax_grad(from[0], from[1], to, log);
                });
                places.iter_mut().zip(&result).for_each(|(place, it)| *place = T::narrow(*it));
            });
        }, else return Err(format!("{} is no float", args.output_dtype(0))));
        Ok(())
    }

    fn cuda(&self, on: Operands<'_>) -> Plan {
        let names = ["softmax_grad", "softmax_columns_grad"];
        let grad = cuda::stored(on.inputs[0].dtype);
        launch(names, self.axis, on, &[("LOG", &u8::from(self.log)), ("GRAD", &grad)])
    }
}

fn softmax_grad<R: Real>(grad: &[R], y: &[R], to: &mut [R], log: bool) {
    let each = || to_pairs(grad, y);
    if log {
        let sum = R::from_f64(grad.iter().map(|it| it.to_f64()).sum());
        to.iter_mut().zip(each()).for_each(|(to, (grad, y))| *to = grad - y.exp() * sum);
    } else {
        let sum = R::from_f64(each().map(|(grad, y)| (grad * y).to_f64()).sum());
        to.iter_mut().zip(each()).for_each(|(to, (grad, y))| *to = y * (grad - sum));
    }
}

fn to_pairs<'a, R: Copy>(a: &'a [R], b: &'a [R]) -> impl Iterator<Item = (R, R)> + 'a {
    a.iter().copied().zip(b.iter().copied())
}

struct SoftmaxBackward {
    call: Call,
    y: Saved,
    axis: usize,
    log: bool,
    /// Of the input, and so of its gradient.
    dtype: DType,
}

impl Backward for SoftmaxBackward {
    fn backward(&self, grads: &[Option<Tensor>], _: &Needs<'_>) -> Result<Grads> {
        let Some(grad) = &grads[0] else { return Ok(Grads::from_iter([None])) };
        let y = self.y.unpack()?;
        let output = Tensor::uninit(self.call, y.shape().clone(), self.dtype, y.device())?;
        let kernel = SoftmaxGrad { axis: Axis::of(&y, self.axis), log: self.log };
        let grad = grad.contiguous()?;
        self.call.launch(kernel, &[&output], &[&grad, &y])?;
        Ok(Grads::from_iter([Some(output)]))
    }
}

/// In the graph. Under autocast the result of 16-bit numbers has 32, with no copy of them, and their
/// gradient 16, as in PyTorch.
#[track_caller]
pub(super) fn softmax_along(call: Call, x: &Tensor, axis: usize, log: bool) -> Result<Tensor> {
    if !x.dtype().is_float() {
        let error = call.dtype_error("softmax is defined for floats");
        return Err(error.with_tensor("self", x).help("convert with to first"));
    }
    let y = Tensor::uninit(call, x.shape().clone(), raised(x.dtype()), x.device())?;
    // PyTorch's kernel reads rows in order.
    let ordered = if x.is_contiguous() { x.detach() } else { x.copied(call)? };
    call.launch(Softmax { axis: Axis::of(x, axis), log }, &[&y], &[&ordered])?;
    drop(ordered);
    let name = if log { "LogSoftmaxBackward" } else { "SoftmaxBackward" };
    record(call, name, &[&y], &[x], || {
        let (y, dtype) = (Saved::output(call, &y)?, x.dtype());
        Ok(Box::new(SoftmaxBackward { call, y, axis, log, dtype }))
    })?;
    Ok(y)
}

impl Tensor {
    /// Exponentials along an axis, divided by their sum.
    ///
    /// # Errors
    ///
    /// If there is no such axis, if it is no float, or if there is no memory.
    #[track_caller]
    pub fn softmax(&self, axis: isize) -> Result<Tensor> {
        let call = Call::here("softmax");
        softmax_along(call, self, self.axis(call, axis)?, false)
    }

    /// The logarithm of [`softmax`](Self::softmax), with more digits than computing it from there.
    ///
    /// # Errors
    ///
    /// As for [`softmax`](Self::softmax).
    #[track_caller]
    pub fn log_softmax(&self, axis: isize) -> Result<Tensor> {
        let call = Call::here("log_softmax");
        softmax_along(call, self, self.axis(call, axis)?, true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Device;
    use crate::testing::{conformance, gradcheck};

    #[test]
    fn values_are_the_definition_along_any_axis_of_any_layout() -> Result<()> {
        let device = Device::host("256 MiB").unwrap();
        let x = Tensor::randn([40, 9, 70], (&device, DType::F64))?;
        for (x, axis) in [(x.clone(), 0), (x.clone(), 1), (x.clone(), 2), (x.transpose(0, 2)?, -1)]
        {
            let exp = x.exp()?;
            let expected = exp.div(&exp.sum_dim(&[axis], true)?)?;
            let far = |a: &Tensor, b: &Tensor| -> Result<f64> {
                let far = a.sub(b)?.abs()?.to_vec::<f64>()?;
                Ok(far.into_iter().fold(0.0, f64::max))
            };
            assert!(far(&x.softmax(axis)?, &expected)? < 1e-14, "axis {axis}");
            assert!(far(&x.log_softmax(axis)?, &expected.log()?)? < 1e-13, "axis {axis}");
        }
        Ok(())
    }

    #[test]
    fn large_numbers_do_not_overflow() -> Result<()> {
        let device = Device::host("64 MiB").unwrap();
        let x = Tensor::from_slice(&[1e4f32, 1e4, -1e4], [3], &device)?;
        assert_eq!(x.softmax(0)?.to_vec::<f32>()?, [0.5, 0.5, 0.0]);
        assert_eq!(x.log_softmax(0)?.to_vec::<f32>()?[1], -std::f32::consts::LN_2);
        assert!(Tensor::arange(0, 3, 1, &device)?.softmax(0).is_err());
        assert_eq!(Tensor::ones([3, 0], &device)?.softmax(1)?.shape()[..], [3, 0]);
        Ok(())
    }

    #[test]
    fn sixteen_bit_floats_are_rounded_once() -> Result<()> {
        let device = Device::host("64 MiB").unwrap();
        let x = Tensor::randn([5, 50], &device)?.to(DType::Bf16)?;
        let wide = x.to(DType::F32)?.softmax(1)?.to(DType::Bf16)?;
        assert_eq!(x.softmax(1)?.to_vec::<crate::Bf16>()?, wide.to_vec::<crate::Bf16>()?);
        Ok(())
    }

    #[test]
    fn gradients_are_right() {
        for axis in [0, 1, 2] {
            gradcheck(&[&[2, 3, 4]], |x| x[0].softmax(axis)).unwrap();
            gradcheck(&[&[2, 3, 4]], |x| x[0].log_softmax(axis)).unwrap();
        }
    }

    conformance!(softmaxes, |device| {
        let x = Tensor::randn([20, 30], device)?.requires_grad_(true)?;
        let y = x.softmax(0)?.log_softmax(1)?;
        y.sum()?.backward()?;
        Ok(vec![y, x.grad().unwrap()])
    });

    conformance!(softmaxes_of_every_type_and_width, |device| {
        let mut results = Vec::new();
        for dtype in [DType::F32, DType::F64, DType::Bf16, DType::F16] {
            for width in [1, 7, 100, 768, 3000, 20_000, 33_001] {
                let x = Tensor::randn([5, width], device)?.to(dtype)?.requires_grad_(true)?;
                let y = x.softmax(1)?;
                let z = x.log_softmax(1)?;
                y.square()?.sum()?.add(&z.square()?.sum()?)?.backward()?;
                results.extend([y, z, x.grad().unwrap()]);
            }
            let x = Tensor::randn([4, 9, 5], device)?.to(dtype)?.requires_grad_(true)?;
            let (y, z) = (x.softmax(1)?, x.transpose(0, 2)?.log_softmax(0)?);
            y.square()?.sum()?.add(&z.square()?.sum()?)?.backward()?;
            results.extend([y, z, x.grad().unwrap()]);
        }
        Ok(results)
    });
}
