//! Sums and means over axes.

use rayon::prelude::*;
use tonnage_device::cuda::{Arguments, Extent};

use crate::autograd::{Backward, Grads, Needs, record};
use crate::dtype::{Category, DType, Stored, dispatch_float};
use crate::error::{Call, Result};
use crate::exec::cuda::{self, Launch, Program};
use crate::exec::{Args, CHUNK, Input, Kernel, Operand, Operands, Output, Plan, rows};
use crate::number::Complex64;
use crate::shape::Shape;
use crate::tensor::Tensor;

/// What a sum is collected in: more digits than the numbers have, so that the order of a long sum
/// does not show.
trait Sum: Copy + Default + Send + Sync {
    fn plus(self, other: Self) -> Self;
}

impl Sum for f64 {
    #[inline]
    fn plus(self, other: Self) -> Self {
        self + other
    }
}

impl Sum for i64 {
    #[inline]
    fn plus(self, other: Self) -> Self {
        self.wrapping_add(other)
    }
}

impl Sum for (f64, f64) {
    #[inline]
    fn plus(self, other: Self) -> Self {
        (self.0 + other.0, self.1 + other.1)
    }
}

/// `output[k] = scale · Σ input[k, r]`: the input's last axes are summed, in the order of the layout.
pub(crate) struct SumRows {
    /// The number of elements in each sum.
    width: usize,
    /// 1, or one over the width for means.
    scale: f64,
}

impl Kernel for SumRows {
    fn host(&self, args: &mut Args<'_>) -> Result<(), String> {
        let (x, scale) = (args.input(0), self.scale);
        match x.dtype().category() {
            Category::Complex => {
                let load = |it: Complex64| (f64::from(it.re), f64::from(it.im));
                self.run(args.take::<Complex64>(0), x, load, move |(re, im)| {
                    Complex64::new((re * scale) as f32, (im * scale) as f32)
                });
            }
            Category::Float => dispatch_float!(x.dtype(), T => {
                if args.output_dtype(0) == x.dtype() {
                    let store = move |it: f64| T::from_f64(it * scale);
                    self.run(args.take::<T>(0), x, T::to_f64, store);
                } else {
                    // Under autocast.
                    self.run(args.take::<f32>(0), x, T::to_f64, move |it| (it * scale) as f32);
                }
            }, else return Err(format!("{} is no float", x.dtype()))),
            _ => match x.dtype() {
                DType::I64 => self.run(args.take(0), x, |it: i64| it, |it| it),
                DType::I32 => self.run(args.take(0), x, i32::to_i64, |it| it),
                _ => self.run(args.take(0), x, u8::to_i64, |it| it),
            },
        }
        Ok(())
    }

    fn cuda(&self, on: Operands<'_>) -> Plan {
        let (output, x) = (&on.outputs[0], &on.inputs[0]);
        let (kept, width) = (output.layout.numel(), self.width);
        if kept == 0 {
            return Plan::nothing();
        }
        let rows = cuda::AnyRows::of(x, width);
        let (sum, part) = match (x.dtype.category(), x.dtype) {
            (Category::Complex, _) => ("twice", "twice"),
            (Category::Float, DType::F32 | DType::F64) => ("double", "double"),
            (Category::Float, _) => ("double", "float"),
            _ => ("i64", "i64"),
        };
        let (from, to) = (cuda::stored(x.dtype), cuda::stored(output.dtype));
        let conj = u8::from(x.conj);
        let mut arguments = Arguments::new();
        arguments.push(output.first());
        arguments.push(x.first());
        rows.kept.push(&mut arguments);
        rows.along.push(&mut arguments);
        arguments.push(kept as u64);
        arguments.push(width as u64);
        arguments.push(self.scale);
        let types: [(&str, &dyn std::fmt::Display); 8] = [
            ("IN", &from),
            ("OUT", &to),
            ("SUM", &sum),
            ("PART", &part),
            ("CONJ", &conj),
            ("KEPT", &rows.kept.count()),
            ("ALONG", &rows.along.count()),
            ("INDEX", &rows.index),
        ];
        let (launch, shape) = match Columns::of(x, &rows, kept) {
            Some(columns) => columns.launch(kept, &types),
            None => {
                let constants = [&types[..], &rows.group.constants()].concat();
                (Program::new("sum_rows", SUM, &constants), rows.group.extent(kept))
            }
        };
        Launch::new(launch, shape, arguments).into()
    }
}

const SUM: &str = concat!(include_str!("../exec/cuda/rows.cuh"), include_str!("sum.cu"));

/// How a GPU sums columns that lie side by side.
struct Columns {
    /// Columns that a thread takes.
    pack: usize,
    /// Threads side by side.
    lanes: usize,
}

impl Columns {
    /// Threads of a block.
    const THREADS: usize = 512;

    /// None if it is better to take the sums one by one.
    fn of(x: &Operand, rows: &cuda::AnyRows, kept: usize) -> Option<Self> {
        let (columns, stride) = rows.kept.last();
        if stride != 1 || columns < 8 || rows.along.last().1 == 1 {
            return None;
        }
        let steps = rows.kept.outer_strides().iter().chain(rows.along.strides());
        let runs: Vec<usize> = steps.copied().chain([columns]).collect();
        let pack = cuda::pack_of(&runs, &[x]).min(8);
        Some(Self { pack, lanes: lanes(kept, pack, x.dtype.size()) })
    }

    fn launch(
        &self,
        columns: usize,
        types: &[(&str, &dyn std::fmt::Display)],
    ) -> (Program, Extent) {
        let (pack, lanes) = (self.pack, self.lanes);
        let at_once = if pack >= 8 { 4 } else { 8 };
        let constants: [(&str, &dyn std::fmt::Display); 6] = [
            ("COLUMNS", &1),
            ("PACK", &pack),
            ("LANES", &lanes),
            ("ROWS_AT_ONCE", &at_once),
            ("THREADS", &Self::THREADS),
            ("GROUP", &Self::THREADS),
        ];
        let constants = [types, &constants].concat();
        let blocks = cuda::blocks(columns as u64, (lanes * pack) as u64);
        (Program::new("sum_columns", SUM, &constants), Extent::line(blocks, Self::THREADS as u32))
    }
}

/// How many threads lie side by side, each with a pack of columns: few, so that there are many blocks, but as many as
/// read 32 bytes, which memory gives at once.
pub(super) fn lanes(columns: usize, pack: usize, size: usize) -> usize {
    /// Blocks that are enough.
    const ENOUGH: usize = 264;
    let mut lanes = 32;
    while lanes * pack * size > 32 && columns.div_ceil(lanes * pack) < ENOUGH {
        lanes /= 2;
    }
    lanes
}

impl SumRows {
    /// The sum of all of `width` elements, or their mean.
    pub(crate) fn all(width: usize, mean: bool) -> Self {
        Self { width, scale: if mean { 1.0 / width as f64 } else { 1.0 } }
    }

    fn run<S: Stored, A: Sum, T: Stored>(
        &self,
        output: Output<'_, T>,
        x: Input<'_>,
        load: impl Fn(S) -> A + Sync,
        store: impl Fn(A) -> T + Sync,
    ) {
        let width = self.width;
        if let Some(data) = columns(x, output.numel(), width) {
            return sum_columns::<S, A, T>(output.slice(), data, width, load, store);
        }
        rows(output, 1, &|row, place| {
            place[0] = store(sum_range(x, row * width, width, &load));
        });
    }
}

/// The input's memory, if it is a matrix whose columns are summed: its rows lie one after the other.
fn columns<'a, S: Stored>(x: Input<'a>, kept: usize, width: usize) -> Option<&'a [S]> {
    let strides = x.layout().strides();
    let tidy = strides.len() == 2 && kept > 1 && width > 1 && strides == [1, kept] && !x.conj();
    tidy.then(|| x.data())
}

/// Columns side by side, so that memory is read in order.
fn sum_columns<S: Stored, A: Sum, T: Stored>(
    output: &mut [T],
    data: &[S],
    width: usize,
    load: impl Fn(S) -> A + Sync,
    store: impl Fn(A) -> T + Sync,
) {
    /// Columns for one thread: their sums fill a few cache lines.
    const TOGETHER: usize = 256;
    let kept = output.len();
    let work = |(group, places): (usize, &mut [T])| {
        let mut sums = vec![A::default(); places.len()];
        for row in 0..width {
            let from = &data[row * kept + group * TOGETHER..][..places.len()];
            sums.iter_mut().zip(from).for_each(|(sum, it)| *sum = sum.plus(load(*it)));
        }
        places.iter_mut().zip(sums).for_each(|(place, sum)| *place = store(sum));
    };
    if data.len() <= CHUNK {
        output.chunks_mut(TOGETHER).enumerate().for_each(work);
    } else {
        output.par_chunks_mut(TOGETHER).enumerate().for_each(work);
    }
}

/// One sum: pieces of fixed size, whatever the number of threads, then the pieces.
fn sum_range<S: Stored, A: Sum>(
    x: Input<'_>,
    start: usize,
    length: usize,
    load: &(impl Fn(S) -> A + Sync),
) -> A {
    let piece = |place: usize| {
        let from = start + place * CHUNK;
        let mut scratch = Vec::new();
        let chunk = x.chunk::<S>(from..(from + CHUNK).min(start + length), &mut scratch);
        // Four sums side by side: an addition need not wait for the one before.
        let mut sums = [A::default(); 4];
        let mut fours = chunk.chunks_exact(4);
        for four in &mut fours {
            sums.iter_mut().zip(four).for_each(|(sum, it)| *sum = sum.plus(load(*it)));
        }
        let rest = fours.remainder().iter().fold(A::default(), |sum, it| sum.plus(load(*it)));
        sums.into_iter().fold(rest, A::plus)
    };
    let pieces = length.div_ceil(CHUNK);
    if pieces <= 1 {
        return if length == 0 { A::default() } else { piece(0) };
    }
    let sums: Vec<A> = (0..pieces).into_par_iter().map(piece).collect();
    sums.into_iter().fold(A::default(), A::plus)
}

/// The gradient of each element is that of its sum.
struct SumBackward {
    shape: Shape,
    /// With the summed axes as ones.
    kept: Shape,
    /// What means divide by.
    divisor: Option<f64>,
}

impl Backward for SumBackward {
    fn backward(&self, grads: &[Option<Tensor>], _: &Needs<'_>) -> Result<Grads> {
        let Some(grad) = &grads[0] else { return Ok(Grads::from_iter([None])) };
        let wide = grad.reshape(&self.kept)?.expand(&self.shape)?;
        let grad = match self.divisor {
            Some(divisor) => wide.div(divisor)?,
            None => wide,
        };
        Ok(Grads::from_iter([Some(grad)]))
    }
}

/// Which axes, and what becomes of them.
pub(super) struct Axes {
    /// The summed axes.
    pub(super) summed: Vec<usize>,
    /// The shape with them as ones.
    pub(super) kept: Shape,
    /// The shape of the result.
    pub(super) result: Shape,
    /// The number of elements in each sum.
    pub(super) width: usize,
}

impl Axes {
    /// `axes` of `x`; none means all.
    pub(super) fn new(call: Call, x: &Tensor, axes: &[isize], keepdim: bool) -> Result<Self> {
        let mut summed = vec![axes.is_empty(); x.dim()];
        for axis in axes {
            let axis_index = x.axis(call, *axis)?;
            if std::mem::replace(&mut summed[axis_index], true) {
                let error = call.shape_error(format!("axis {axis} is named twice"));
                return Err(error.with_tensor("self", x));
            }
        }
        let sizes = || x.shape().iter().copied().zip(&summed);
        let kept = Shape::from_iter(sizes().map(|(size, summed)| if *summed { 1 } else { size }));
        let rest = Shape::from_iter(sizes().filter(|(_, summed)| !**summed).map(|(size, _)| size));
        let width = sizes().filter(|(_, summed)| **summed).map(|(size, _)| size).product();
        let result = if keepdim { kept.clone() } else { rest };
        let summed = (0..x.dim()).filter(|axis| summed[*axis]).collect();
        Ok(Self { summed, kept, result, width })
    }

    /// The input with the summed axes last, outside the graph.
    pub(super) fn summed_last(&self, call: Call, x: &Tensor) -> Result<Tensor> {
        let rest = (0..x.dim()).filter(|axis| !self.summed.contains(axis));
        let order: Vec<usize> = rest.chain(self.summed.iter().copied()).collect();
        let Some(layout) = x.layout().permute(&order) else {
            return Err(call.shape_error("axes are named once"));
        };
        // As a matrix where strides allow it, which the kernel knows how to read in order.
        let rows = x.numel().checked_div(self.width).unwrap_or(0);
        let matrix = layout.view(&[rows, self.width].into());
        Ok(x.alias(matrix.unwrap_or(layout)))
    }
}

#[track_caller]
fn reduce(call: Call, x: &Tensor, axes: &Axes, mean: bool) -> Result<Tensor> {
    if mean && !x.dtype().is_differentiable() {
        let error = call.dtype_error("the mean of integers is no integer");
        return Err(error.with_tensor("self", x).help("convert to a float with to first"));
    }
    let dtype = if mean { x.dtype() } else { crate::amp::sums(x.dtype()) };
    let output = Tensor::uninit(call, axes.result.clone(), dtype, x.device())?;
    let scale = if mean { 1.0 / axes.width as f64 } else { 1.0 };
    let input = axes.summed_last(call, x)?;
    call.launch(SumRows { width: axes.width, scale }, &[&output], &[&input])?;
    let name = if mean { "MeanBackward" } else { "SumBackward" };
    record(call, name, &[&output], &[x], || {
        let divisor = mean.then_some(axes.width as f64);
        let (shape, kept) = (x.shape().clone(), axes.kept.clone());
        Ok(Box::new(SumBackward { shape, kept, divisor }))
    })?;
    Ok(output)
}

impl Tensor {
    /// The sum of all elements. Integers are summed in 64 bits.
    ///
    /// # Errors
    ///
    /// If there is no memory for the result.
    #[track_caller]
    pub fn sum(&self) -> Result<Tensor> {
        let call = Call::here("sum");
        reduce(call, self, &Axes::new(call, self, &[], false)?, false)
    }

    /// The sums over these axes (none means all), which stay with size one if `keepdim`.
    ///
    /// # Errors
    ///
    /// If there is no such axis, or no memory.
    #[track_caller]
    pub fn sum_dim(&self, axes: &[isize], keepdim: bool) -> Result<Tensor> {
        let call = Call::here("sum");
        reduce(call, self, &Axes::new(call, self, axes, keepdim)?, false)
    }

    /// The mean of all elements.
    ///
    /// # Errors
    ///
    /// If they are integers, or if there is no memory.
    #[track_caller]
    pub fn mean(&self) -> Result<Tensor> {
        let call = Call::here("mean");
        reduce(call, self, &Axes::new(call, self, &[], false)?, true)
    }

    /// The means over these axes (none means all), which stay with size one if `keepdim`.
    ///
    /// # Errors
    ///
    /// If they are integers, there is no such axis, or no memory.
    #[track_caller]
    pub fn mean_dim(&self, axes: &[isize], keepdim: bool) -> Result<Tensor> {
        let call = Call::here("mean");
        reduce(call, self, &Axes::new(call, self, axes, keepdim)?, true)
    }

    /// Sums what broadcasting to its shape has repeated: back to `shape`.
    pub(crate) fn summed_to(&self, call: Call, shape: &Shape) -> Result<Tensor> {
        let new = self.dim().saturating_sub(shape.len());
        let repeated = |axis: &usize| {
            axis.checked_sub(new).is_none_or(|old| shape[old] == 1 && self.shape()[*axis] != 1)
        };
        let axes: Vec<isize> = (0..self.dim()).filter(repeated).map(|axis| axis as isize).collect();
        if axes.is_empty() {
            return self.reshape(shape);
        }
        let sums = reduce(call, self, &Axes::new(call, self, &axes, true)?, false)?;
        if sums.shape() == shape { Ok(sums) } else { sums.view(shape) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Device;
    use crate::testing::{conformance, gradcheck};

    #[test]
    fn sums_over_any_axes_of_any_layout_are_right() -> Result<()> {
        let device = Device::host("256 MiB").unwrap();
        let x = Tensor::arange(0, 24, 1, &device)?.view([2, 3, 4])?;
        assert_eq!(x.sum()?.item::<i64>()?, 276);
        assert_eq!(x.sum_dim(&[0], false)?.to_vec::<i64>()?[..3], [12, 14, 16]);
        assert_eq!(x.sum_dim(&[-1], false)?.to_vec::<i64>()?, [6, 22, 38, 54, 70, 86]);
        assert_eq!(x.sum_dim(&[0, 2], true)?.to_vec::<i64>()?, [60, 92, 124]);
        assert_eq!(
            x.transpose(0, 2)?.sum_dim(&[0], false)?.to_vec::<i64>()?,
            [6, 54, 22, 70, 38, 86]
        );
        assert_eq!(x.sum_dim(&[1], true)?.shape()[..], [2, 1, 4]);
        assert_eq!(Tensor::zeros([0, 3], &device)?.sum()?.item::<f32>()?, 0.0);
        assert_eq!(
            Tensor::zeros([0, 3], &device)?.sum_dim(&[0], false)?.to_vec::<f32>()?,
            [0.0; 3]
        );
        assert!(x.mean().is_err() && x.sum_dim(&[0, 0], false).is_err());
        Ok(())
    }

    #[test]
    fn long_sums_keep_their_digits() -> Result<()> {
        let device = Device::host("1 GiB").unwrap();
        let x = Tensor::full([1_000, 3_000], 0.1f32, &device)?;
        let expected = 0.1f32 as f64 * 3e6;
        assert_eq!(f64::from(x.sum()?.item::<f32>()?), f64::from(expected as f32));
        assert_eq!(
            x.sum_dim(&[0], false)?.to_vec::<f32>()?,
            vec![(0.1f32 as f64 * 1e3) as f32; 3_000]
        );
        assert_eq!(x.mean_dim(&[1], false)?.to_vec::<f32>()?, vec![0.1f32; 1_000]);
        Ok(())
    }

    #[test]
    fn gradients_are_right() {
        gradcheck(&[&[2, 3]], |x| x[0].sum()).unwrap();
        gradcheck(&[&[2, 3, 4]], |x| x[0].sum_dim(&[0, 2], false)).unwrap();
        gradcheck(&[&[2, 3]], |x| x[0].mean()).unwrap();
        gradcheck(&[&[2, 3, 4]], |x| x[0].mean_dim(&[1], true)).unwrap();
    }

    conformance!(reductions, |device| {
        let x = Tensor::ones([20, 30], device)?.requires_grad_(true)?;
        let y = x.sum_dim(&[0], false)?.mean()?;
        y.backward()?;
        Ok(vec![y, x.grad().unwrap()])
    });

    conformance!(reductions_of_every_type_and_layout, |device| {
        let mut results = Vec::new();
        for dtype in [
            DType::F32,
            DType::F64,
            DType::Bf16,
            DType::F16,
            DType::Complex64,
            DType::I32,
            DType::U8,
        ] {
            let x = Tensor::rand([30, 6, 48], device)?.mul(9.0)?.to(dtype)?;
            let t = x.transpose(0, 2)?;
            for axes in [&[][..], &[0], &[1], &[2], &[0, 1], &[0, 2], &[1, 2]] {
                results.push(x.sum_dim(axes, false)?);
                results.push(t.sum_dim(axes, true)?);
            }
            // Nothing begins at a multiple of 16 bytes.
            results.push(x.narrow(2, 1, 45)?.sum_dim(&[2], false)?);
            results.push(x.narrow(2, 1, 45)?.sum_dim(&[0], false)?);
            results.push(Tensor::zeros([0, 9], (device, dtype))?.sum_dim(&[0], false)?);
        }
        for dtype in [DType::F32, DType::Bf16] {
            let x = Tensor::rand([3000, 768], device)?.to(dtype)?;
            results.extend([x.sum_dim(&[0], false)?, x.mean_dim(&[1], false)?, x.mean()?]);
            results.push(x.view([3, 1000 * 768])?.sum_dim(&[1], false)?);
        }
        Ok(results)
    });

    #[test]
    fn sums_have_sixty_four_bits() {
        assert_eq!(DType::U8.of_sums(), DType::I64);
    }
}
