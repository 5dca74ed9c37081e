//! Elements by index: index_select, gather, and their opposites index_add and scatter_add;
//! one-hot.
//!
//! Where several indices lead to one place, sums are formed in the order of the indices, whatever the
//! number of threads.

use std::fmt::Display;
use std::ops::Add;

use tonnage_device::cuda::{Arguments, Extent};

use crate::autograd::{Backward, Grads, Needs, Saved, record, record_in_place};
use crate::create::Scalar;
use crate::dtype::{DType, Number, dispatch};
use crate::error::{Call, ErrorKind, Result};
use crate::exec::cuda::{Elementwise, Launch, Program, stored, wide};
use crate::exec::{Args, Input, Kernel, Operand, Operands, Output, Plan, for_each_chunk, rows};
use crate::shape::{Layout, Shape};
use crate::tensor::Tensor;

/// One axis of a tensor that is seen as `[outer, size, inner]`.
#[derive(Clone, Copy)]
pub(super) struct AxisSplit {
    pub(super) size: usize,
    pub(super) inner: usize,
}

impl AxisSplit {
    fn of(x: &Tensor, axis: usize) -> Self {
        Self { size: x.shape()[axis], inner: x.shape()[axis + 1..].iter().product() }
    }
}

/// The indices, each checked against the size of its axis.
fn indices_below(size: usize, indices: Input<'_>) -> Result<Vec<usize>, String> {
    let check = |(place, index): (usize, &i64)| match usize::try_from(*index) {
        Ok(index) if index < size => Ok(index),
        _ => Err(format!("index {index} at element {place} is not below {size}")),
    };
    indices.to_slice::<i64>().iter().enumerate().map(check).collect()
}

/// `output[o, k, i] = x[o, indices[k], i]`.
struct Select(AxisSplit);

impl Kernel for Select {
    fn host(&self, args: &mut Args<'_>) -> Result<(), String> {
        let (x, AxisSplit { size, inner }) = (args.input(0), self.0);
        let indices = indices_below(size, args.input(1))?;
        let count = indices.len();
        dispatch!(args.output_dtype(0), T => {
            let x = x.to_slice::<T>();
            for_each_chunk::<T>(args.take(0), &|places, chunk| {
                let mut place = places.start;
                while place < places.end {
                    let (row, column) = (place / inner, place % inner);
                    let length = (inner - column).min(places.end - place);
                    let from = (row / count * size + indices[row % count]) * inner + column;
                    chunk[place - places.start..][..length].copy_from_slice(&x[from..from + length]);
                    place += length;
                }
            });
        });
        Ok(())
    }

    fn cuda(&self, on: Operands<'_>) -> Plan {
        let (to, AxisSplit { size, inner }) = (&on.outputs[0], self.0);
        let ([x, indices], numel) = ([&on.inputs[0], &on.inputs[1]], to.layout.numel());
        if numel == 0 {
            return Plan::nothing();
        }
        let whole = |pack: usize| {
            let bytes = (pack * x.dtype.size()) as u64;
            x.layout.is_contiguous()
                && inner.is_multiple_of(pack)
                && [to, x].iter().all(|it| it.first().is_multiple_of(bytes))
        };
        let widest = 16 / x.dtype.size();
        let pack = [widest, widest / 2].into_iter().find(|it| *it > 0 && whole(*it)).unwrap_or(1);
        let program = program(
            "select",
            "SELECT",
            &[
                ("T", &stored(x.dtype)),
                ("I", &stored(indices.dtype)),
                ("PACK", &pack),
                ("CONJ", &u8::from(x.conj)),
                ("XAXES", &axes(x)),
                ("IAXES", &axes(indices)),
            ],
        );
        let mut arguments = Arguments::new().with(to.first()).with(x.first()).with(indices.first());
        let numbers = [numel, size, inner, indices.layout.numel()];
        numbers.iter().for_each(|it| arguments.push(*it as u64));
        arguments.push_bytes(&places(x));
        arguments.push_bytes(&places(indices));
        launch(program, numel.div_ceil(pack), arguments, size)
    }
}

/// `output[o, indices[k], i] += alpha · source[o, k, i]`, for all k but those whose index is `skip`.
pub(super) struct AddAt {
    pub(super) axis: AxisSplit,
    pub(super) alpha: Scalar,
    pub(super) skip: Option<usize>,
}

impl Kernel for AddAt {
    fn host(&self, args: &mut Args<'_>) -> Result<(), String> {
        let (source, AxisSplit { size, inner }) = (args.input(0), self.axis);
        let indices = indices_below(size, args.input(1))?;
        let of = Occurrences::new(size, &indices);
        let (count, skip) = (indices.len(), self.skip);
        dispatch!(args.output_dtype(0), T => {
            let alpha = T::math(self.alpha);
            rows::<T>(args.take(0), inner, &|row, places| {
                let (outer, index) = (row / size, row % size);
                let occurrences = of.index(index);
                if occurrences.is_empty() || skip == Some(index) {
                    return;
                }
                let mut sums: Vec<_> = places.iter().map(|it| it.up()).collect();
                let mut scratch = Vec::new();
                for k in occurrences {
                    let from = (outer * count + k) * inner;
                    let added = source.chunk::<T>(from..from + inner, &mut scratch);
                    sums.iter_mut().zip(added).for_each(|(sum, it)| *sum = sum.add(alpha * it.up()));
                }
                places.iter_mut().zip(sums).for_each(|(place, sum)| *place = T::down(sum));
            });
        });
        Ok(())
    }

    fn cuda(&self, on: Operands<'_>) -> Plan {
        let (to, AxisSplit { size, inner }) = (&on.outputs[0], self.axis);
        let [source, indices] = [&on.inputs[0], &on.inputs[1]];
        let (numel, count) = (to.layout.numel(), indices.layout.numel());
        if numel == 0 || count == 0 {
            return Plan::nothing();
        }
        let widest = 16 / to.dtype.size();
        let is_plain = source.dtype == to.dtype
            && !source.conj
            && source.layout.is_contiguous()
            && inner.is_multiple_of(widest)
            && [to, source].iter().all(|it| it.first().is_multiple_of(16));
        let (pack, packs) = if is_plain { (widest, 2) } else { (1, 8) };
        let compute = wide(to.dtype);
        let alpha = match compute {
            "complex" => "complex((float)given.re, (float)given.im)",
            "i64" => "given.whole",
            _ => "(C)given.re",
        };
        let by_row = size < count;
        let program = program(
            "add_at",
            "ADD_AT",
            &[
                ("T", &stored(to.dtype)),
                ("S", &stored(source.dtype)),
                ("C", &compute),
                ("I", &stored(indices.dtype)),
                ("READ(x)", &read(source)),
                ("ALPHA", &alpha),
                ("VEC", &pack),
                ("PACKS", &packs),
                ("BY_ROW", &u8::from(by_row)),
                ("XAXES", &axes(source)),
                ("IAXES", &axes(indices)),
            ],
        );
        let outers = numel / (size * inner);
        let mut arguments = Arguments::new().with(to.first());
        [source, indices].iter().for_each(|it| arguments.push(it.first()));
        [outers, size, inner, count].iter().for_each(|it| arguments.push(*it as u64));
        arguments.push(self.skip.map_or(-1, |it| it as i64));
        let is_half = matches!(to.dtype, DType::Bf16 | DType::F16);
        let alpha = self.alpha.rounded(if is_half { DType::F32 } else { to.dtype });
        let im = if let Scalar::Complex(alpha) = alpha { f64::from(alpha.im) } else { 0.0 };
        let whole = if let Scalar::Integer(alpha) = alpha { alpha } else { 0 };
        let words = [alpha.to_f64().to_ne_bytes(), im.to_ne_bytes(), whole.to_ne_bytes()];
        arguments.push_bytes(&words.concat());
        arguments.push_bytes(&places(source));
        arguments.push_bytes(&places(indices));
        let candidates = if by_row { size } else { count };
        let warps = outers * candidates * inner.div_ceil(32 * pack * packs);
        launch(program, 32 * warps, arguments, size)
    }
}

/// Threads of a block.
const THREADS: u32 = 256;

/// A program of `index.cu`.
fn program(name: &'static str, part: &'static str, constants: &[(&str, &dyn Display)]) -> Program {
    let mut program = Program::new(name, include_str!("index.cu"), constants);
    program.head += "#define ";
    program.head += part;
    program.head += "\n";
    program
}

/// A launch of that many threads, in which indices below `size` are right.
fn launch(program: Program, threads: usize, arguments: Arguments, size: usize) -> Plan {
    let blocks = threads.div_ceil(THREADS as usize).min(i32::MAX as usize) as u32;
    let launch = Launch::new(program, Extent::line(blocks, THREADS), arguments);
    launch.complains(move |value| wrong_index(value, size)).into()
}

/// What is said of a wrong index: 32 bits where it is, 32 bits what it is.
fn wrong_index(value: i64, size: usize) -> String {
    let (place, index) = ((value as u64) >> 32, value as i32);
    match index {
        i32::MAX => format!("an index at element {place} is not below {size}"),
        i32::MIN => format!("an index at element {place} is far below zero"),
        _ => format!("index {index} at element {place} is not below {size}"),
    }
}

/// The axes that a program must know of: none if elements lie in order.
fn axes(operand: &Operand) -> usize {
    if operand.layout.is_contiguous() { 0 } else { operand.layout.shape().len() }
}

/// The layout of a program.
fn places(operand: &Operand) -> Vec<u8> {
    match axes(operand) {
        0 => vec![0; 8],
        _ => words(operand.layout.shape().iter().chain(operand.layout.strides())),
    }
}

fn words<'a>(numbers: impl IntoIterator<Item = &'a usize>) -> Vec<u8> {
    numbers.into_iter().flat_map(|it| (*it as u64).to_ne_bytes()).collect()
}

/// The number of an element of what is added.
fn read(source: &Operand) -> &'static str {
    if source.conj { "conj(widen(x))" } else { "widen(x)" }
}

/// Where each index occurs, in order.
struct Occurrences {
    /// Of index i they lie at `starts[i]..starts[i + 1]`.
    starts: Vec<usize>,
    places: Vec<usize>,
}

impl Occurrences {
    fn new(size: usize, indices: &[usize]) -> Self {
        let mut starts = vec![0; size + 1];
        indices.iter().for_each(|index| starts[index + 1] += 1);
        (0..size).for_each(|index| starts[index + 1] += starts[index]);
        let mut next = starts.clone();
        let mut places = vec![0; indices.len()];
        for (place, index) in indices.iter().enumerate() {
            places[next[*index]] = place;
            next[*index] += 1;
        }
        Self { starts, places }
    }

    fn index(&self, index: usize) -> &[usize] {
        &self.places[self.starts[index]..self.starts[index + 1]]
    }
}

/// Where the elements that an index tensor names would lie if every index were zero: its shape, over
/// the target's memory.
fn bases(target: &Layout, indices: &Shape, axis: usize) -> Option<Layout> {
    let mut base = target.clone();
    for (other, size) in indices.iter().enumerate() {
        base = base.slice(other, 0, if other == axis { 1 } else { *size }, 1)?;
    }
    base.expand(indices)
}

/// `output[…, k, …] = x[…, indices[…, k, …], …]` along an axis.
struct Gather {
    axis: usize,
}

impl Kernel for Gather {
    fn host(&self, args: &mut Args<'_>) -> Result<(), String> {
        let (x, axis) = (args.input(0), self.axis);
        let indices = args.input(1);
        let stride = x.layout().strides()[axis];
        let bases = bases_of(x.layout(), indices, axis)?;
        let indices = indices_below(x.layout().shape()[axis], indices)?;
        dispatch!(args.output_dtype(0), T => {
            let data = x.data::<T>();
            for_each_chunk::<T>(args.take(0), &|range, chunk| {
                let mut each = chunk.iter_mut().zip(&indices[range.clone()]);
                bases.for_each_run(range, |first, step, length| {
                    for (place, (to, index)) in each.by_ref().take(length).enumerate() {
                        *to = data[first + place * step + index * stride];
                    }
                });
            });
        });
        Ok(())
    }

    fn cuda(&self, on: Operands<'_>) -> Plan {
        let (to, axis) = (&on.outputs[0], self.axis);
        let ([x, indices], numel) = ([&on.inputs[0], &on.inputs[1]], to.layout.numel());
        if numel == 0 {
            return Plan::nothing();
        }
        let program = program(
            "gather",
            "GATHER",
            &[
                ("T", &stored(x.dtype)),
                ("I", &stored(indices.dtype)),
                ("AXES", &indices.layout.shape().len()),
            ],
        );
        let (size, stride) = (x.layout.shape()[axis], x.layout.strides()[axis]);
        let mut from = x.layout.strides().to_vec();
        from[axis] = 0;
        let mut arguments = Arguments::new().with(to.first()).with(x.first()).with(indices.first());
        [numel, size, stride].iter().for_each(|it| arguments.push(*it as u64));
        let walk = [indices.layout.shape(), &from[..], indices.layout.strides()];
        arguments.push_bytes(&words(walk.into_iter().flatten()));
        launch(program, numel, arguments, size)
    }
}

fn bases_of(target: &Layout, indices: Input<'_>, axis: usize) -> Result<Layout, String> {
    let shape = indices.layout().shape();
    bases(target, shape, axis).ok_or_else(|| format!("indices {shape} reach outside"))
}

/// `output[…, indices[…, k, …], …] += source[…, k, …]` along an axis.
struct ScatterAdd {
    axis: usize,
}

impl Kernel for ScatterAdd {
    fn host(&self, args: &mut Args<'_>) -> Result<(), String> {
        let (source, indices) = (args.input(0), args.input(1));
        dispatch!(args.output_dtype(0), T => {
            self.run::<T>(args.take(0), source, indices)?;
        });
        Ok(())
    }

    fn cuda(&self, on: Operands<'_>) -> Plan {
        let (to, axis) = (&on.outputs[0], self.axis);
        let [source, indices] = [&on.inputs[0], &on.inputs[1]];
        let (shape, numel) = (indices.layout.shape(), indices.layout.numel());
        if numel == 0 || to.layout.numel() == 0 {
            return Plan::nothing();
        }
        let (length, lines) = (shape[axis], numel / shape[axis]);
        // Few long lines want a warp each; many, a thread.
        let by_warp = length >= 32 && lines < 1 << 14;
        let in_order =
            Layout::contiguous(shape.clone()).expect("a shape that memory was found for");
        let strides = [
            to.layout.strides(),
            source.layout.strides(),
            indices.layout.strides(),
            in_order.strides(),
        ];
        let others: Vec<usize> = (0..shape.len()).filter(|it| *it != axis).collect();
        // At least one, of one.
        let none = usize::from(others.is_empty());
        let program = program(
            "scatter_add",
            "SCATTER",
            &[
                ("T", &stored(to.dtype)),
                ("S", &stored(source.dtype)),
                ("C", &wide(to.dtype)),
                ("I", &stored(indices.dtype)),
                ("READ(x)", &read(source)),
                ("BY_WARP", &u8::from(by_warp)),
                ("AXES", &(others.len() + none)),
            ],
        );
        let mut arguments = Arguments::new().with(to.first());
        [source, indices].iter().for_each(|it| arguments.push(it.first()));
        let size = to.layout.shape()[axis];
        [lines, length, size].iter().for_each(|it| arguments.push(*it as u64));
        strides.iter().for_each(|it| arguments.push(it[axis] as u64));
        let mut walk: Vec<usize> = others.iter().map(|it| shape[*it]).collect();
        walk.resize(others.len() + none, 1);
        for strides in strides {
            walk.extend(others.iter().map(|it| strides[*it]));
            walk.resize(walk.len() + none, 0);
        }
        arguments.push_bytes(&words(&walk));
        launch(program, if by_warp { 32 * lines } else { lines }, arguments, size)
    }
}

impl ScatterAdd {
    fn run<T: Number>(
        &self,
        output: Output<'_, T>,
        source: Input<'_>,
        indices: Input<'_>,
    ) -> Result<(), String> {
        let (layout, axis) = (output.layout, self.axis);
        let stride = layout.strides()[axis];
        let bases = bases_of(layout, indices, axis)?;
        let sizes = [layout.shape()[0], indices.layout().shape()[0]];
        let indices = indices_below(layout.shape()[axis], indices)?;
        if indices.is_empty() {
            return Ok(());
        }
        let source = source.to_slice::<T>();
        let add = |range: std::ops::Range<usize>, start: usize, data: &mut [T]| {
            let mut each = indices[range.clone()].iter().zip(&source[range.clone()]);
            bases.for_each_run(range, |first, step, length| {
                for (place, (index, value)) in each.by_ref().take(length).enumerate() {
                    let to = &mut data[first + place * step + index * stride - start];
                    *to = T::down(to.up() + value.up());
                }
            });
        };
        // Along the first axis, or into a view, elements may meet anywhere: one after the other.
        if axis == 0 || !layout.is_contiguous() {
            add(0..indices.len(), 0, output.data);
            return Ok(());
        }
        let (width, added) = (output.numel() / sizes[0], indices.len() / sizes[1]);
        rows(output, width, &|row, places| {
            if row < sizes[1] {
                add(row * added..(row + 1) * added, row * width, places);
            }
        });
        Ok(())
    }
}

/// Writes one where the last index is the class, zero elsewhere.
struct OneHot {
    classes: usize,
}

impl Kernel for OneHot {
    fn host(&self, args: &mut Args<'_>) -> Result<(), String> {
        let indices = indices_below(self.classes, args.input(0))?;
        rows::<i64>(args.take(0), self.classes, &|row, places| {
            places.fill(0);
            places[indices[row]] = 1;
        });
        Ok(())
    }

    fn cuda(&self, on: Operands<'_>) -> Plan {
        let (indices, output) = (&on.inputs[0], &on.outputs[0]);
        let wide = indices.layout.unsqueeze(indices.layout.shape().len());
        let layout = wide.and_then(|it| it.expand(output.layout.shape()));
        let layout = layout.expect("the output has one axis more, of classes");
        let line = "
            i64 place = (i64)(i % (Index)k0);
            if ((x0 < 0 || x0 >= k0) && place == 0) {
              i64 low = x0 > 2147483647LL ? 2147483647LL : x0 < -2147483648LL ? -2147483648LL : x0;
              wrong((i64)((u64)(i / (Index)k0) << 32 | (u64)(u32)(int)low));
            }
            y0 = x0 == place;";
        let classes = self.classes;
        let kernel = Elementwise::new("one_hot", "i64", line).integers(&[classes as i64]);
        let kernel = kernel.complains(move |value| wrong_index(value, classes));
        let indices = Operand { layout, ..indices.clone() };
        kernel.plan(Operands { outputs: on.outputs, inputs: &[indices] })
    }
}

/// Indices must be integers; of two types here, as in PyTorch.
pub(super) fn check_indices(call: Call, indices: &Tensor) -> Result<()> {
    if matches!(indices.dtype(), DType::I64 | DType::I32) {
        return Ok(());
    }
    let error = call.dtype_error("indices are int64 or int32").with_tensor("indices", indices);
    Err(error.help("convert with to"))
}

/// A row of indices.
fn check_row(call: Call, x: &Tensor, indices: &Tensor) -> Result<()> {
    check_indices(call, indices)?;
    if indices.dim() == 1 {
        return Ok(());
    }
    let error = call.shape_error("indices have one axis").with_tensor("self", x);
    Err(error.with_tensor("indices", indices).help("gather takes an index for each element"))
}

#[track_caller]
pub(super) fn selected(call: Call, x: &Tensor, axis: usize, indices: &Tensor) -> Result<Tensor> {
    let mut shape = x.shape().to_vec();
    shape[axis] = indices.numel();
    let output = Tensor::uninit(call, shape.into(), x.dtype(), x.device())?;
    call.launch(Select(AxisSplit::of(x, axis)), &[&output], &[x, indices])?;
    Ok(output)
}

/// Adds rows in place, outside the graph. The target lies in order.
fn add_at(
    call: Call,
    target: &Tensor,
    axis: usize,
    indices: &Tensor,
    source: &Tensor,
    alpha: Scalar,
) -> Result<()> {
    let kernel = AddAt { axis: AxisSplit::of(target, axis), alpha, skip: None };
    call.launch(kernel, &[target], &[source, indices])
}

struct SelectBackward {
    call: Call,
    axis: usize,
    indices: Saved,
    shape: Shape,
}

impl Backward for SelectBackward {
    fn backward(&self, grads: &[Option<Tensor>], _: &Needs<'_>) -> Result<Grads> {
        let Some(grad) = &grads[0] else { return Ok(Grads::from_iter([None])) };
        let indices = self.indices.unpack()?;
        let whole = Tensor::zeros(&self.shape, (grad.device(), grad.dtype()))?;
        add_at(self.call, &whole, self.axis, &indices, grad, Scalar::Integer(1))?;
        Ok(Grads::from_iter([Some(whole)]))
    }
}

struct AddAtBackward {
    call: Call,
    axis: usize,
    indices: Saved,
    alpha: Scalar,
}

impl Backward for AddAtBackward {
    fn backward(&self, grads: &[Option<Tensor>], needs: &Needs<'_>) -> Result<Grads> {
        let Some(grad) = &grads[0] else { return Ok(Grads::from_iter([None, None])) };
        let mut source = None;
        if needs.input(1) {
            let rows = selected(self.call, grad, self.axis, &self.indices.unpack()?)?;
            let plain = self.alpha == Scalar::Integer(1) || self.alpha == Scalar::Float(1.0);
            source = Some(if plain { rows } else { rows.mul(self.alpha)? });
        }
        Ok(Grads::from_iter([needs.input(0).then(|| grad.clone()), source]))
    }
}

struct GatherBackward {
    call: Call,
    axis: usize,
    indices: Saved,
    shape: Shape,
}

impl Backward for GatherBackward {
    fn backward(&self, grads: &[Option<Tensor>], _: &Needs<'_>) -> Result<Grads> {
        let Some(grad) = &grads[0] else { return Ok(Grads::from_iter([None])) };
        let indices = self.indices.unpack()?;
        let whole = Tensor::zeros(&self.shape, (grad.device(), grad.dtype()))?;
        self.call.launch(ScatterAdd { axis: self.axis }, &[&whole], &[grad, &indices])?;
        Ok(Grads::from_iter([Some(whole)]))
    }
}

struct ScatterAddBackward {
    call: Call,
    axis: usize,
    indices: Saved,
}

impl Backward for ScatterAddBackward {
    fn backward(&self, grads: &[Option<Tensor>], needs: &Needs<'_>) -> Result<Grads> {
        let Some(grad) = &grads[0] else { return Ok(Grads::from_iter([None, None])) };
        let mut source = None;
        if needs.input(1) {
            source = Some(gathered(self.call, grad, self.axis, &self.indices.unpack()?)?);
        }
        Ok(Grads::from_iter([needs.input(0).then(|| grad.clone()), source]))
    }
}

#[track_caller]
fn gathered(call: Call, x: &Tensor, axis: usize, indices: &Tensor) -> Result<Tensor> {
    let output = Tensor::uninit(call, indices.shape().clone(), x.dtype(), x.device())?;
    let plain = if x.is_conj() { x.copied(call)? } else { x.clone() };
    call.launch(Gather { axis }, &[&output], &[&plain, indices])?;
    Ok(output)
}

/// An index for each element: as many axes, and no further than the target elsewhere.
fn check_indexed(call: Call, x: &Tensor, axis: usize, indices: &Tensor) -> Result<()> {
    check_indices(call, indices)?;
    if indices.dim() == x.dim() && bases(x.layout(), indices.shape(), axis).is_some() {
        return Ok(());
    }
    Err(call
        .shape_error(format!("indices reach beyond the tensor elsewhere than along axis {axis}"))
        .with_tensor("self", x)
        .with_tensor("indices", indices))
}

impl Tensor {
    /// The indices of an axis that `indices`, a row of integers, names, in its order.
    ///
    /// # Errors
    ///
    /// If shapes or types do not fit, or if there is no memory. An index that does not exist is
    /// reported at the next synchronisation.
    #[track_caller]
    pub fn index_select(&self, axis: isize, indices: &Tensor) -> Result<Tensor> {
        let call = Call::here("index_select");
        let axis = self.axis(call, axis)?;
        check_row(call, self, indices)?;
        let output = selected(call, self, axis, indices)?;
        record(call, "IndexSelectBackward", &[&output], &[self], || {
            let (indices, shape) = (Saved::input(call, indices)?, self.shape().clone());
            Ok(Box::new(SelectBackward { call, axis, indices, shape }))
        })?;
        Ok(output)
    }

    /// A copy to which `alpha · source` is added: its k-th index along the axis at index
    /// `indices[k]`.
    ///
    /// # Errors
    ///
    /// As for [`index_select`](Self::index_select).
    #[track_caller]
    pub fn index_add(
        &self,
        axis: isize,
        indices: &Tensor,
        source: &Tensor,
        alpha: impl Into<Scalar>,
    ) -> Result<Tensor> {
        let (call, alpha) = (Call::here("index_add"), alpha.into());
        let axis = self.axis(call, axis)?;
        check_added(call, self, axis, indices, source)?;
        let output = self.copied(call)?;
        add_at(call, &output, axis, indices, source, alpha)?;
        record(call, "IndexAddBackward", &[&output], &[self, source], || {
            let indices = Saved::input(call, indices)?;
            Ok(Box::new(AddAtBackward { call, axis, indices, alpha }))
        })?;
        Ok(output)
    }

    /// [`index_add`](Self::index_add) in place.
    ///
    /// # Errors
    ///
    /// As there, and if the graph does not allow it, or if its elements do not lie in order.
    #[track_caller]
    pub fn index_add_(
        &self,
        axis: isize,
        indices: &Tensor,
        source: &Tensor,
        alpha: impl Into<Scalar>,
    ) -> Result<()> {
        let (call, alpha) = (Call::here("index_add_"), alpha.into());
        let axis = self.axis(call, axis)?;
        check_added(call, self, axis, indices, source)?;
        self.check_in_place(call, &[self, source])?;
        if !self.is_contiguous() {
            let error = call.shape_error("the elements do not lie in order");
            return Err(error.with_tensor("self", self).help("use index_add and copy_"));
        }
        let source_apart = source.apart_from(call, self)?;
        let indices_apart = indices.apart_from(call, self)?;
        add_at(call, self, axis, &indices_apart, &source_apart, alpha)?;
        record_in_place(call, "IndexAddBackward", self, &[self, source], || {
            let indices = Saved::input(call, indices)?;
            Ok(Box::new(AddAtBackward { call, axis, indices, alpha }))
        })
    }

    /// For each element of `indices` the element of this tensor at the same place, but with that index
    /// along the axis.
    ///
    /// # Errors
    ///
    /// As for [`index_select`](Self::index_select).
    #[track_caller]
    pub fn gather(&self, axis: isize, indices: &Tensor) -> Result<Tensor> {
        let call = Call::here("gather");
        let axis = self.axis(call, axis)?;
        check_indexed(call, self, axis, indices)?;
        let output = gathered(call, self, axis, indices)?;
        record(call, "GatherBackward", &[&output], &[self], || {
            let (indices, shape) = (Saved::input(call, indices)?, self.shape().clone());
            Ok(Box::new(GatherBackward { call, axis, indices, shape }))
        })?;
        Ok(output)
    }

    /// A copy to which each element of `source` is added: at its own place, but with the index along
    /// the axis that `indices` has there. The opposite of [`gather`](Self::gather).
    ///
    /// # Errors
    ///
    /// As for [`index_select`](Self::index_select), and if source and indices differ in shape.
    #[track_caller]
    pub fn scatter_add(&self, axis: isize, indices: &Tensor, source: &Tensor) -> Result<Tensor> {
        let call = Call::here("scatter_add");
        let axis = self.axis(call, axis)?;
        check_indexed(call, self, axis, indices)?;
        if source.shape() != indices.shape() || source.dtype() != self.dtype() {
            return Err(call
                .shape_error("there is not one index for each element of the source")
                .with_tensor("self", self)
                .with_tensor("indices", indices)
                .with_tensor("source", source)
                .help("the source has the shape of the indices and the type of self"));
        }
        let output = self.copied(call)?;
        call.launch(ScatterAdd { axis }, &[&output], &[source, indices])?;
        record(call, "ScatterAddBackward", &[&output], &[self, source], || {
            let indices = Saved::input(call, indices)?;
            Ok(Box::new(ScatterAddBackward { call, axis, indices }))
        })?;
        Ok(output)
    }

    /// Integers as rows of zeros with a one at their place.
    ///
    /// # Errors
    ///
    /// If it has no integers, or if there is no memory. A number that is no class is reported at the
    /// next synchronisation.
    #[track_caller]
    pub fn one_hot(&self, classes: usize) -> Result<Tensor> {
        let call = Call::here("one_hot");
        check_indices(call, self)?;
        if classes == 0 {
            let error = call.error(ErrorKind::Value, "a number among no classes has no place");
            return Err(error.with_tensor("self", self));
        }
        let shape = Shape::from_iter(self.shape().iter().copied().chain([classes]));
        let output = Tensor::uninit(call, shape, DType::I64, self.device())?;
        call.launch(OneHot { classes }, &[&output], &[self])?;
        Ok(output)
    }
}

fn check_added(
    call: Call,
    x: &Tensor,
    axis: usize,
    indices: &Tensor,
    source: &Tensor,
) -> Result<()> {
    check_row(call, x, indices)?;
    let mut shape = x.shape().to_vec();
    shape[axis] = indices.numel();
    if source.shape()[..] == shape[..] && source.dtype() == x.dtype() && x.dtype() != DType::Bool {
        return Ok(());
    }
    Err(call
        .shape_error(format!("the source does not fit the indices along axis {axis}"))
        .with_tensor("self", x)
        .with_tensor("indices", indices)
        .with_tensor("source", source)
        .help(format!("the source is {} of {}", Shape::from(shape), x.dtype())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Device;
    use crate::testing::{conformance, gradcheck};

    fn device() -> Device {
        Device::host("256 MiB").unwrap()
    }

    #[test]
    fn rows_are_selected_and_added_along_every_axis() -> Result<()> {
        let device = device();
        let x = Tensor::arange(0, 24, 1, &device)?.view([2, 3, 4])?;
        let indices = Tensor::from_slice(&[2i32, 0, 2], [3], &device)?;
        let picked = x.index_select(1, &indices)?;
        assert_eq!(picked.to_vec::<i64>()?[..8], [8, 9, 10, 11, 0, 1, 2, 3]);
        let last = x.index_select(-1, &indices)?.to_vec::<i64>()?;
        assert_eq!(last[..6], [2, 0, 2, 6, 4, 6]);
        assert_eq!(
            x.transpose(0, 2)?.index_select(0, &indices)?.to_vec::<i64>()?[..6],
            [2, 14, 6, 18, 10, 22]
        );
        let sums = Tensor::zeros([2, 3, 4], (&device, DType::I64))?;
        sums.index_add_(1, &indices, &picked, 10)?;
        assert_eq!(sums.to_vec::<i64>()?[..4], [0, 10, 20, 30]);
        assert_eq!(sums.to_vec::<i64>()?[4..12], [0, 0, 0, 0, 160, 180, 200, 220]);
        Ok(())
    }

    #[test]
    fn gathering_and_scattering_follow_the_indices() -> Result<()> {
        let device = device();
        let x = Tensor::randn([7, 50, 9], &device)?;
        let data = x.to_vec::<f32>()?;
        let indices = Tensor::randint(0, 50, [5, 80, 9], &device)?;
        let index = indices.to_vec::<i64>()?;
        let gathered = x.gather(1, &indices)?.to_vec::<f32>()?;
        let mut sums = vec![0.0f32; data.len()];
        for (place, index) in index.iter().enumerate() {
            let (outer, column) = (place / (80 * 9), place % 9);
            let target = (outer * 50 + *index as usize) * 9 + column;
            assert_eq!(gathered[place], data[target]);
            sums[target] += gathered[place];
        }
        let source = Tensor::from_slice(&gathered, [5, 80, 9], &device)?;
        let zeros = x.zeros_like()?;
        assert_eq!(zeros.scatter_add(1, &indices, &source)?.to_vec::<f32>()?, sums);
        let flipped = zeros.transpose(0, 1)?.scatter_add(
            0,
            &indices.transpose(0, 1)?,
            &source.transpose(0, 1)?,
        )?;
        let far = |(a, b): (&f32, &f32)| (a - b).abs() > 1e-4;
        assert!(!flipped.transpose(0, 1)?.to_vec::<f32>()?.iter().zip(&sums).any(far));
        Ok(())
    }

    #[test]
    fn one_hot_rows_have_one_one() -> Result<()> {
        let device = device();
        let x = Tensor::from_slice(&[2i64, 0], [2], &device)?;
        assert_eq!(x.one_hot(3)?.to_vec::<i64>()?, [0, 0, 1, 1, 0, 0]);
        assert_eq!(x.view([1, 2])?.one_hot(3)?.shape()[..], [1, 2, 3]);
        let error = x.one_hot(2)?.to_vec::<i64>().unwrap_err().to_string();
        assert!(error.contains("index 2 at element 0 is not below 2"), "{error}");
        Ok(())
    }

    #[test]
    fn wrong_indices_are_refused_or_reported() -> Result<()> {
        let device = device();
        let x = Tensor::zeros([3, 4], &device)?;
        let wrong = Tensor::from_slice(&[0i64, -1], [2], &device)?;
        for rows in [true, false] {
            let y =
                if rows { x.index_select(0, &wrong)? } else { x.gather(1, &wrong.view([1, 2])?)? };
            let error = y.sum()?.item::<f32>().unwrap_err().to_string();
            assert!(error.contains("index -1 at element 1"), "{error}");
        }
        let good = Tensor::from_slice(&[0i64, 1], [2], &device)?;
        assert!(x.index_select(0, &x).is_err() && x.index_select(2, &good).is_err());
        assert!(x.gather(0, &good).is_err());
        assert!(x.gather(0, &Tensor::zeros([1, 5], (&device, DType::I64))?).is_err());
        assert!(x.index_add(0, &good, &x, 1).is_err());
        assert!(x.scatter_add(0, &good.view([1, 2])?, &x).is_err());
        Ok(())
    }

    #[test]
    fn gradients_are_right() {
        let indices = |x: &Tensor| Tensor::from_slice(&[2i64, 0, 2, 1], [4], x.device());
        gradcheck(&[&[2, 3, 2]], |x| x[0].index_select(1, &indices(&x[0])?)).unwrap();
        gradcheck(&[&[2, 3], &[2, 4]], |x| x[0].index_add(1, &indices(&x[0])?, &x[1], 0.5))
            .unwrap();
        gradcheck(&[&[2, 3], &[2, 4]], |x| {
            let y = x[0].mul(2.0)?;
            y.index_add_(1, &indices(&x[0])?, &x[1], 1)?;
            y.mul(&y)
        })
        .unwrap();
        let square = |x: &Tensor| indices(x)?.view([2, 2]);
        gradcheck(&[&[2, 3]], |x| x[0].gather(1, &square(&x[0])?)).unwrap();
        gradcheck(&[&[3, 3]], |x| x[0].gather(0, &square(&x[0])?)).unwrap();
        gradcheck(&[&[2, 3], &[2, 2]], |x| x[0].scatter_add(1, &square(&x[0])?, &x[1])).unwrap();
        gradcheck(&[&[3, 3], &[2, 2]], |x| x[0].scatter_add(0, &square(&x[0])?, &x[1])).unwrap();
    }

    conformance!(indexed, |device| {
        let x = Tensor::ones([20, 30], device)?.requires_grad_(true)?;
        let indices = Tensor::zeros([7], (device, DType::I64))?;
        let y = x.index_select(0, &indices)?;
        let z = x.index_add(0, &indices, &y, 2.0)?;
        let gathered = z.gather(1, &Tensor::zeros([20, 3], (device, DType::I64))?)?;
        gathered.sum()?.backward()?;
        Ok(vec![y, gathered, x.grad().unwrap()])
    });

    conformance!(indexed_of_every_type_and_layout, |device| {
        let mut results = Vec::new();
        for dtype in DType::ALL {
            let x = Tensor::randint(0, 9, [5, 60, 32], (device, dtype))?;
            let few = Tensor::randint(0, 32, [13], (device, DType::I32))?;
            let many = Tensor::randint(0, 5, [200], device)?;
            for (x, axis) in [(x.clone(), 2), (x.transpose(0, 2)?, 0), (x.narrow(2, 1, 31)?, 1)] {
                results.push(x.index_select(axis, &few.narrow(0, 1, 12)?.clamp_max(30)?)?);
                let wide = Tensor::randint(0, 30, [3, 50, 31], device)?;
                let picked = if x.shape()[0] == 32 { &wide } else { &wide.transpose(0, 2)? };
                let picked = picked.narrow(0, 0, 3)?.narrow(1, 0, 40)?.narrow(2, 0, 3)?;
                results.push(x.gather(axis, &picked)?);
                if dtype != DType::Bool {
                    let source = x.narrow(0, 0, 3)?.narrow(1, 0, 40)?.narrow(2, 0, 3)?;
                    results.push(x.scatter_add(axis, &picked, &source)?);
                }
            }
            if dtype == DType::Bool {
                continue;
            }
            let source = Tensor::randint(0, 3, [200, 60, 32], (device, dtype))?;
            results.push(x.index_add(0, &many, &source, 2)?);
            results.push(x.index_add(2, &few, &x.narrow(2, 3, 13)?, 1)?);
            let columns = source.narrow(0, 0, 5)?.narrow(2, 0, 13)?;
            results.push(x.transpose(1, 2)?.index_add(1, &few, &columns.transpose(1, 2)?, 1)?);
            let line = Tensor::randint(0, 60, [1000], device)?;
            let target = Tensor::zeros([60], (device, dtype))?;
            results.push(target.scatter_add(
                0,
                &line,
                &source.view([384_000])?.narrow(0, 0, 1000)?,
            )?);
        }
        let indices = Tensor::randint(0, 7, [9, 4], device)?;
        results.extend([indices.one_hot(7)?, indices.to(DType::I32)?.t()?.one_hot(9)?]);
        Ok(results)
    });
}
