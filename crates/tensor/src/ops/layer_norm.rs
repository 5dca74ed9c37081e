//! Norms over rows: each row to mean 0 and variance 1 (layer, group), or to mean square 1 (rms).
//!
//! A row is what is normalised together. The rows of a layer norm all have the same weight; those of a
//! group norm have that of their channels, so that after as many rows as there are groups it repeats.

use std::borrow::Cow;

use tonnage_device::cuda::{Arguments, Extent};

use super::reduce::lanes;
use crate::amp::raise;
use crate::autograd::{Backward, Grads, Needs, Saved, record};
use crate::dtype::{DType, Float, Real, Stored, dispatch_float};
use crate::error::{Call, ErrorKind, Result};
use crate::exec::cuda::{self, Launch, Program};
use crate::exec::{Args, Input, Kernel, Operand, Operands, Plan, slices};
use crate::shape::Shape;
use crate::tensor::Tensor;

/// Which elements are normalised together, and which weight they have.
#[derive(Clone, Copy, Debug)]
struct Rows {
    width: usize,
    /// After how many rows weights repeat: 1, or the number of groups.
    period: usize,
    /// How many neighbours have the same weight: 1, or the elements of a channel.
    area: usize,
    /// Whether the mean is taken off: in all but rms norms.
    centered: bool,
}

impl Rows {
    /// A weight for each element of `period` rows.
    fn spread<'a, R: Real>(&self, given: Option<Input<'a>>, absent: f64) -> Cow<'a, [R]> {
        let columns = self.period * self.width;
        match given.map(Input::to_slice::<R>) {
            None => vec![R::n(absent); columns].into(),
            Some(given) if self.area == 1 => given,
            Some(given) => {
                given.iter().flat_map(|it| std::iter::repeat_n(*it, self.area)).collect()
            }
        }
    }

    /// The part of spread weights that belongs to a row.
    fn of<'a, R>(&self, weights: &'a [R], row: usize) -> &'a [R] {
        &weights[row % self.period * self.width..][..self.width]
    }

    fn row<'s, R: Real>(&self, x: Input<'s>, row: usize, scratch: &'s mut Vec<R>) -> &'s [R] {
        x.chunk(row * self.width..(row + 1) * self.width, scratch)
    }
}

const TEXT: &str = concat!(include_str!("../exec/cuda/rows.cuh"), include_str!("layer_norm.cu"));

/// A constant of a program.
type Constant<'a> = (&'a str, &'a dyn std::fmt::Display);

fn constants<'a>(
    types: &'a [(&'static str, &'static str)],
    others: &[Constant<'a>],
) -> Vec<Constant<'a>> {
    let types = types.iter().map(|(name, value)| (*name, value as &dyn std::fmt::Display));
    types.chain(others.iter().copied()).collect()
}

/// Where an operand lies; 0 if there is none.
fn address(operand: Option<&Operand>) -> u64 {
    operand.map_or(0, Operand::first)
}

impl Rows {
    /// Whether all rows have the same weights, one for each column.
    fn is_plain(&self) -> bool {
        self.area == 1 && self.period == 1
    }

    /// Who takes a row on a GPU, and how many rows there are; none if there is nothing.
    fn groups(&self, operands: &[&Operand], weights: &[Operand]) -> Option<(cuda::Group, usize)> {
        let numel = operands[0].layout.numel();
        let rows = numel.checked_div(self.width).filter(|rows| *rows > 0)?;
        let runs = if self.is_plain() { [self.width; 2] } else { [self.width, self.area] };
        let mut pack = cuda::pack_of(&runs, operands);
        let is_aligned = |pack: usize| {
            weights
                .iter()
                .all(|it| it.first().is_multiple_of((pack * it.dtype.size()).min(16) as u64))
        };
        while self.is_plain() && pack > 1 && !is_aligned(pack) {
            pack /= 2;
        }
        Some((cuda::Group::with_pack(self.width, pack), rows))
    }

    /// As `Weights` of the programs.
    fn push(&self, arguments: &mut Arguments) {
        let words = [self.width, self.period, self.area];
        let bytes: Vec<u8> = words.iter().flat_map(|&it| (it as u64).to_ne_bytes()).collect();
        arguments.push_bytes(&bytes);
    }

    /// What the programs ask of types and weights.
    fn types(
        &self,
        x: &Operand,
        [weight, bias]: [Option<&Operand>; 2],
        kind: &'static str,
    ) -> Vec<(&'static str, &'static str)> {
        let truth = |it: bool| if it { "1" } else { "0" };
        let of = |it: Option<&Operand>| cuda::stored(it.map_or(x.dtype, |it| it.dtype));
        vec![
            (kind, "1"),
            ("IN", cuda::stored(x.dtype)),
            ("C", cuda::wide(x.dtype)),
            ("WEIGHT", of(weight)),
            ("BIAS", of(bias)),
            ("HAS_WEIGHT", truth(weight.is_some())),
            ("HAS_BIAS", truth(bias.is_some())),
            ("CENTERED", truth(self.centered)),
            ("PLAIN", truth(self.is_plain())),
        ]
    }
}

/// Σ f(x), four sums side by side, in 64 bits.
pub(super) fn total<R: Real>(numbers: &[R], f: impl Fn(usize, f64) -> f64) -> f64 {
    let mut sums = [0.0; 4];
    let fours = numbers.chunks_exact(4);
    let rest = numbers.len() - fours.remainder().len();
    for (group, four) in fours.enumerate() {
        for (lane, it) in four.iter().enumerate() {
            sums[lane] += f(4 * group + lane, it.to_f64());
        }
    }
    let tail = (rest..numbers.len()).map(|index| f(index, numbers[index].to_f64()));
    sums.iter().sum::<f64>() + tail.sum::<f64>()
}

/// Outputs: the normalised rows, the means if they are taken off, one over the deviations. Inputs: `x`,
/// the weight and the bias if there are any.
pub(crate) struct NormRows {
    rows: Rows,
    eps: f64,
    weight: bool,
    bias: bool,
}

impl Kernel for NormRows {
    fn host(&self, args: &mut Args<'_>) -> Result<(), String> {
        dispatch_float!(args.output_dtype(0), T => self.run::<T>(args), else return Err(no_float()));
        Ok(())
    }

    fn cuda(&self, on: Operands<'_>) -> Plan {
        let (x, weights) = (&on.inputs[0], &on.inputs[1..]);
        let Some((group, rows)) = self.rows.groups(&[&on.outputs[0], x], weights) else {
            return Plan::nothing();
        };
        let weight = self.weight.then(|| &weights[0]);
        let bias = self.bias.then(|| &weights[usize::from(self.weight)]);
        let means = self.rows.centered.then(|| &on.outputs[1]);
        let mut arguments = Arguments::new();
        arguments.push(on.outputs[0].first());
        arguments.push(address(means));
        arguments.push(on.outputs[1 + usize::from(self.rows.centered)].first());
        arguments.push(x.first());
        arguments.push(address(weight));
        arguments.push(address(bias));
        arguments.push(rows as u64);
        self.rows.push(&mut arguments);
        arguments.push(self.eps);
        let types = self.rows.types(x, [weight, bias], "FORWARD");
        let program = Program::new("norm_rows", TEXT, &constants(&types, &group.constants()));
        Launch::new(program, group.extent(rows), arguments).into()
    }
}

impl NormRows {
    fn run<T: Float>(&self, args: &mut Args<'_>) {
        let (x, rows) = (args.input(0), self.rows);
        let (width, count) = (rows.width as f64, x.numel().checked_div(rows.width).unwrap_or(0));
        let weight = rows.spread::<T::Wide>(self.weight.then(|| args.input(1)), 1.0);
        let place = 1 + usize::from(self.weight);
        let bias = rows.spread::<T::Wide>(self.bias.then(|| args.input(place)), 0.0);
        let mut figures = vec![[T::Wide::default(); 2]; count];
        slices(&mut figures, 1, rows.width, &|row, to| {
            let mut scratch = Vec::new();
            let x = rows.row::<T::Wide>(x, row, &mut scratch);
            let mean = if rows.centered { total(x, |_, it| it) / width } else { 0.0 };
            let square = total(x, |_, it| (it - mean) * (it - mean)) / width;
            to[0] = [mean, 1.0 / (square + self.eps).sqrt()].map(T::Wide::n);
        });
        slices(args.take::<T>(0).slice(), rows.width, rows.width, &|row, to| {
            let mut scratch = Vec::new();
            let x = rows.row::<T::Wide>(x, row, &mut scratch);
            let [mean, rstd] = figures[row];
            let (weight, bias) = (rows.of(&weight, row), rows.of(&bias, row));
            for ((to, x), (weight, bias)) in to.iter_mut().zip(x).zip(weight.iter().zip(bias)) {
                *to = T::narrow((*x - mean) * rstd * *weight + *bias);
            }
        });
        let mut write = |place: usize, which: usize| {
            let to = args.take::<T::Wide>(place).slice();
            to.iter_mut().zip(&figures).for_each(|(to, it)| *to = it[which]);
        };
        if rows.centered {
            write(1, 0);
        }
        write(1 + usize::from(rows.centered), 1);
    }
}

/// Output: the gradient of `x`. Inputs: the gradient of the result, `x`, one over the deviations, the
/// means if they were taken off, the weight if there is one.
pub(crate) struct NormRowsInputGrad {
    rows: Rows,
    weight: bool,
}

impl Kernel for NormRowsInputGrad {
    fn host(&self, args: &mut Args<'_>) -> Result<(), String> {
        dispatch_float!(args.output_dtype(0), T => self.run::<T>(args), else return Err(no_float()));
        Ok(())
    }

    fn cuda(&self, on: Operands<'_>) -> Plan {
        let (grad, x, rstd) = (&on.inputs[0], &on.inputs[1], &on.inputs[2]);
        let means = self.rows.centered.then(|| &on.inputs[3]);
        let weights = &on.inputs[3 + usize::from(self.rows.centered)..];
        let Some((group, rows)) = self.rows.groups(&[&on.outputs[0], grad, x], weights) else {
            return Plan::nothing();
        };
        let weight = self.weight.then(|| &weights[0]);
        let mut arguments = Arguments::new();
        [&on.outputs[0], grad, x, rstd].iter().for_each(|it| arguments.push(it.first()));
        arguments.push(address(means));
        arguments.push(address(weight));
        arguments.push(rows as u64);
        self.rows.push(&mut arguments);
        let types = self.rows.types(x, [weight, None], "BACKWARD");
        let grad = cuda::stored(grad.dtype);
        let types = constants(
            &types,
            &[&[("GRAD", &grad as &dyn std::fmt::Display)], &group.constants()[..]].concat(),
        );
        Launch::new(Program::new("norm_rows_grad", TEXT, &types), group.extent(rows), arguments)
            .into()
    }
}

/// One over the deviations, and the means.
fn figures<'a, R: Real>(rows: Rows, args: &Args<'a>) -> [Cow<'a, [R]>; 2] {
    let rstd = args.input(2).to_slice::<R>();
    let means = match rows.centered {
        true => args.input(3).to_slice::<R>(),
        false => vec![R::default(); rstd.len()].into(),
    };
    [rstd, means]
}

impl NormRowsInputGrad {
    fn run<T: Float>(&self, args: &mut Args<'_>) {
        let (grad, x, rows) = (args.input(0), args.input(1), self.rows);
        let [rstd, means] = figures::<T::Wide>(rows, args);
        let place = 3 + usize::from(rows.centered);
        let weight = rows.spread::<T::Wide>(self.weight.then(|| args.input(place)), 1.0);
        let width = rows.width as f64;
        slices(args.take::<T>(0).slice(), rows.width, rows.width, &|row, to| {
            let (mut for_grad, mut for_x) = (Vec::new(), Vec::new());
            let grad = rows.row::<T::Wide>(grad, row, &mut for_grad);
            let x = rows.row::<T::Wide>(x, row, &mut for_x);
            let (weight, mean, rstd) = (rows.of(&weight, row), means[row], rstd[row]);
            let weighted = |index: usize, grad: f64| grad * weight[index].to_f64();
            let normal = |index: usize| ((x[index] - mean) * rstd).to_f64();
            let along = total(grad, |index, grad| weighted(index, grad) * normal(index)) / width;
            let shift = if rows.centered { total(grad, weighted) / width } else { 0.0 };
            let (along, shift) = (T::Wide::n(along), T::Wide::n(shift));
            for ((to, x), (grad, weight)) in to.iter_mut().zip(x).zip(grad.iter().zip(weight)) {
                let normal = (*x - mean) * rstd;
                *to = T::narrow((*grad * *weight - shift - normal * along) * rstd);
            }
        });
    }
}

/// Outputs: the gradients of weight and bias, as many as are wanted. Inputs as of
/// [`NormRowsInputGrad`], without the weight.
pub(crate) struct NormRowsWeightGrad {
    rows: Rows,
    weight: bool,
    bias: bool,
}

impl Kernel for NormRowsWeightGrad {
    fn host(&self, args: &mut Args<'_>) -> Result<(), String> {
        dispatch_float!(args.output_dtype(0), T => self.run::<T>(args), else return Err(no_float()));
        Ok(())
    }

    fn cuda(&self, on: Operands<'_>) -> Plan {
        /// Threads of a block.
        const THREADS: usize = 512;
        /// Rows that a thread reads before it adds them.
        const AT_ONCE: usize = 4;
        let rows = self.rows;
        let (grad, x, rstd) = (&on.inputs[0], &on.inputs[1], &on.inputs[2]);
        let means = rows.centered.then(|| &on.inputs[3]);
        let weight = self.weight.then(|| &on.outputs[0]);
        let bias = self.bias.then(|| &on.outputs[usize::from(self.weight)]);
        let channels = on.outputs[0].layout.numel();
        if channels == 0 {
            return Plan::nothing();
        }
        let lines = x.layout.numel() / (channels * rows.area);
        let mut arguments = Arguments::new();
        arguments.push(address(weight));
        arguments.push(address(bias));
        [grad, x, rstd].iter().for_each(|it| arguments.push(it.first()));
        arguments.push(address(means));
        arguments.push(lines as u64);
        arguments.push(channels as u64);
        let of_grad = cuda::stored(grad.dtype);
        let plain = rows.is_plain();
        let (name, kind) = match plain {
            true => ("norm_columns_grad", "COLUMNS"),
            false => ("norm_channels_grad", "CHANNELS"),
        };
        let types = rows.types(x, [weight, bias], kind);
        let types = constants(&types, &[("GRAD", &of_grad), ("REDUCES", &1)]);
        let run = if plain { channels } else { rows.area };
        let pack = cuda::pack_of(&[run], &[grad, x]);
        let launch = |threads: usize, blocks: u32, more: &[Constant<'_>], arguments| {
            let own: [Constant<'_>; 3] =
                [("PACK", &pack), ("THREADS", &threads), ("GROUP", &threads)];
            let program = Program::new(name, TEXT, &[&types[..], &own, more].concat());
            Launch::new(program, Extent::line(blocks, threads as u32), arguments).into()
        };
        if plain {
            let lanes = lanes(channels, pack, x.dtype.size());
            let blocks = cuda::blocks(channels as u64, (lanes * pack) as u64);
            let more: [Constant<'_>; 2] = [("LANES", &lanes), ("ROWS_AT_ONCE", &AT_ONCE)];
            return launch(THREADS, blocks, &more, arguments);
        }
        arguments.push(rows.period as u64);
        arguments.push(rows.area as u64);
        launch(256, cuda::blocks(channels as u64, 1), &[], arguments)
    }
}

/// Columns for one thread: their sums fill a few cache lines.
const TOGETHER: usize = 128;

impl NormRowsWeightGrad {
    fn run<T: Float>(&self, args: &mut Args<'_>) {
        let (grad, x, rows) = (args.input(0), args.input(1), self.rows);
        let [rstd, means] = figures::<T::Wide>(rows, args);
        let columns = rows.period * rows.width;
        let lines = x.numel().checked_div(columns).unwrap_or(0);
        let mut sums = vec![[0.0; 2]; columns];
        slices(&mut sums, TOGETHER, TOGETHER * lines, &|group, sums| {
            let (mut for_grad, mut for_x) = (Vec::new(), Vec::new());
            for line in 0..lines {
                let start = line * columns + group * TOGETHER;
                let range = start..start + sums.len();
                let grad: &[T::Wide] = grad.chunk(range.clone(), &mut for_grad);
                let x: &[T::Wide] = x.chunk(range.clone(), &mut for_x);
                for ((sum, index), (grad, x)) in sums.iter_mut().zip(range).zip(grad.iter().zip(x))
                {
                    let row = index / rows.width;
                    sum[0] += (*grad * ((*x - means[row]) * rstd[row])).to_f64();
                    sum[1] += grad.to_f64();
                }
            }
        });
        let mut write = |place: usize, which: usize| {
            let of_weight = |sums: &[[f64; 2]]| sums.iter().map(|it| it[which]).sum();
            write_floats(args, place, sums.chunks(rows.area).map(of_weight));
        };
        if self.weight {
            write(0, 0);
        }
        if self.bias {
            write(usize::from(self.weight), 1);
        }
    }
}

/// Writes numbers to an output of its own type.
pub(super) fn write_floats(args: &mut Args<'_>, place: usize, numbers: impl Iterator<Item = f64>) {
    dispatch_float!(args.output_dtype(place), T => {
        let to = args.take::<T>(place).slice();
        to.iter_mut().zip(numbers).for_each(|(to, it)| *to = T::from_f64(it));
    }, else {});
}

fn no_float() -> String {
    "norms are of floats".to_owned()
}

struct NormRowsBackward {
    call: Call,
    rows: Rows,
    x: Saved,
    means: Option<Saved>,
    rstd: Saved,
    weight: Option<Saved>,
    /// Shape and type of the bias, if there is one.
    bias: Option<(Shape, DType)>,
}

impl Backward for NormRowsBackward {
    fn backward(&self, grads: &[Option<Tensor>], needs: &Needs<'_>) -> Result<Grads> {
        let (call, rows) = (self.call, self.rows);
        let (weight_at, bias_at) = (1, 1 + usize::from(self.weight.is_some()));
        let places = bias_at + usize::from(self.bias.is_some());
        let mut results: Grads = (0..places).map(|_| None).collect();
        let Some(grad) = &grads[0] else { return Ok(results) };
        let grad = grad.in_order(call)?;
        let x = self.x.unpack()?.in_order(call)?;
        let (rstd, weight) = (self.rstd.unpack()?, self.weight.as_ref().map(Saved::unpack));
        let weight = weight.transpose()?.map(|it| it.in_order(call)).transpose()?;
        let means = self.means.as_ref().map(Saved::unpack);
        let means = means.transpose()?;
        let inputs = [&grad, &x, &rstd].into_iter().chain(&means);
        let new =
            |shape: &Shape, dtype: DType| Tensor::uninit(call, shape.clone(), dtype, grad.device());
        if needs.input(0) {
            results[0] = Some(new(x.shape(), x.dtype())?);
        }
        if let Some(weight) = weight.as_ref().filter(|_| needs.input(weight_at)) {
            results[weight_at] = Some(new(weight.shape(), weight.dtype())?);
        }
        if let Some((shape, dtype)) = self.bias.as_ref().filter(|_| needs.input(bias_at)) {
            results[bias_at] = Some(new(shape, *dtype)?);
        }
        if let Some(to) = &results[0] {
            let kernel = NormRowsInputGrad { rows, weight: weight.is_some() };
            let inputs: Vec<&Tensor> = inputs.clone().chain(&weight).collect();
            call.launch(kernel, &[to], &inputs)?;
        }
        let of_weights: Vec<&Tensor> = results[1..].iter().flatten().collect();
        if !of_weights.is_empty() {
            let weight = self.weight.is_some() && needs.input(weight_at);
            let bias = self.bias.is_some() && needs.input(bias_at);
            let kernel = NormRowsWeightGrad { rows, weight, bias };
            call.launch(kernel, &of_weights, &inputs.collect::<Vec<_>>())?;
        }
        Ok(results)
    }
}

/// What sums of a type are kept in: 16-bit floats in 32.
pub(super) fn of_figures(dtype: DType) -> DType {
    if dtype == DType::F64 { DType::F64 } else { DType::F32 }
}

/// The norm of rows in the graph. `figures` is the shape of means and deviations.
#[track_caller]
fn norm_rows(
    call: Call,
    node: &'static str,
    x: &Tensor,
    [weight, bias]: [Option<&Tensor>; 2],
    (rows, figures): (Rows, Shape),
    eps: f64,
) -> Result<Tensor> {
    let from = x.in_order(call)?;
    let [ordered_weight, ordered_bias] =
        [weight, bias].map(|it| it.map(|it| it.in_order(call)).transpose());
    let (ordered_weight, ordered_bias) = (ordered_weight?, ordered_bias?);
    let output = Tensor::uninit(call, x.shape().clone(), x.dtype(), x.device())?;
    let figure = || Tensor::uninit(call, figures.clone(), of_figures(x.dtype()), x.device());
    let means = if rows.centered { Some(figure()?) } else { None };
    let rstd = figure()?;
    let kernel = NormRows { rows, eps, weight: weight.is_some(), bias: bias.is_some() };
    let outputs: Vec<&Tensor> = [&output].into_iter().chain(&means).chain([&rstd]).collect();
    let ordered: Vec<&Tensor> =
        [&from].into_iter().chain(&ordered_weight).chain(&ordered_bias).collect();
    call.launch(kernel, &outputs, &ordered)?;
    let inputs: Vec<&Tensor> = [x].into_iter().chain(weight).chain(bias).collect();
    record(call, node, &[&output], &inputs, || {
        Ok(Box::new(NormRowsBackward {
            call,
            rows,
            x: Saved::input(call, x)?,
            means: means.as_ref().map(|it| Saved::output(call, it)).transpose()?,
            rstd: Saved::output(call, &rstd)?,
            weight: weight.map(|it| Saved::input(call, it)).transpose()?,
            bias: bias.map(|it| (it.shape().clone(), it.dtype())),
        }))
    })?;
    Ok(output)
}

/// Refuses what norms cannot take: other types, weights of another shape.
pub(super) fn check_affine(
    call: Call,
    x: &Tensor,
    weights: [(&str, Option<&Tensor>); 2],
    shape: &[usize],
) -> Result<()> {
    if !x.dtype().is_float() {
        return Err(call.dtype_error("norms are of floats").with_tensor("self", x));
    }
    for (name, it) in weights.into_iter().filter_map(|(name, it)| Some((name, it?))) {
        let error = if it.device() != x.device() {
            return Err(call.devices_differ(x, it));
        } else if it.shape()[..] != *shape {
            call.shape_error(format!("the {name} does not have shape {shape:?}"))
        } else if ![x.dtype(), of_figures(x.dtype())].contains(&it.dtype()) {
            // Weights may stay in 32 bits when numbers have 16: mixed precision.
            call.dtype_error("the element types differ").help("convert with to")
        } else {
            continue;
        };
        return Err(error.with_tensor("self", x).with_tensor(name, it));
    }
    Ok(())
}

/// The rows of norms over the last axes, which have the shape `normalized`.
fn last_axes(
    call: Call,
    x: &Tensor,
    normalized: &Shape,
    weights: [Option<&Tensor>; 2],
    centered: bool,
) -> Result<(Rows, Shape)> {
    let axes = x.dim().checked_sub(normalized.len());
    let Some(axes) =
        axes.filter(|axes| !normalized.is_empty() && x.shape()[*axes..] == **normalized)
    else {
        let error = call.shape_error("these are not the last sizes of the tensor");
        return Err(error.with_tensor("self", x).with("normalized", normalized));
    };
    check_affine(call, x, [("weight", weights[0]), ("bias", weights[1])], normalized)?;
    let kept = x.shape()[..axes].iter().copied();
    let figures = Shape::from_iter(kept.chain(normalized.iter().map(|_| 1)));
    Ok((Rows { width: normalized.iter().product(), period: 1, area: 1, centered }, figures))
}

impl Tensor {
    /// Brings what lies along the last axes, which have the shape `normalized`, to mean 0 and variance
    /// 1; then multiplies with `weight` and adds `bias`.
    ///
    /// ```
    /// # use tonnage_tensor::{Device, Tensor};
    /// # let device = Device::host("64 MiB")?;
    /// let x = Tensor::from_slice(&[1.0f32, 3.0, 10.0, 10.2], [2, 2], &device)?;
    /// let y = x.layer_norm([2], None, None, 0.0)?.to_vec::<f32>()?;
    /// assert!((y[0] + 1.0).abs() < 1e-5 && (y[3] - 1.0).abs() < 1e-5);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If the shapes do not fit, the types differ or are no floats, or if there is no memory.
    #[track_caller]
    pub fn layer_norm(
        &self,
        normalized: impl Into<Shape>,
        weight: Option<&Tensor>,
        bias: Option<&Tensor>,
        eps: f64,
    ) -> Result<Tensor> {
        let call = Call::here("layer_norm");
        let x = &raise(self)?;
        let rows = last_axes(call, x, &normalized.into(), [weight, bias], true)?;
        norm_rows(call, "NativeLayerNormBackward", x, [weight, bias], rows, eps)
    }

    /// Brings what lies along the last axes, which have the shape `normalized`, to a mean square of 1;
    /// then multiplies with `weight`.
    ///
    /// # Errors
    ///
    /// As for [`layer_norm`](Self::layer_norm).
    #[track_caller]
    pub fn rms_norm(
        &self,
        normalized: impl Into<Shape>,
        weight: Option<&Tensor>,
        eps: f64,
    ) -> Result<Tensor> {
        let call = Call::here("rms_norm");
        let x = &raise(self)?;
        let rows = last_axes(call, x, &normalized.into(), [weight, None], false)?;
        norm_rows(call, "FusedRmsNormBackward", x, [weight, None], rows, eps)
    }

    /// Brings each group of channels (the second axis) of each image to mean 0 and variance 1; then
    /// multiplies with `weight` and adds `bias`, which have a number for each channel.
    ///
    /// # Errors
    ///
    /// If the channels cannot be split so, the shapes do not fit, the types differ or are no floats, or
    /// if there is no memory.
    #[track_caller]
    pub fn group_norm(
        &self,
        groups: usize,
        weight: Option<&Tensor>,
        bias: Option<&Tensor>,
        eps: f64,
    ) -> Result<Tensor> {
        let call = Call::here("group_norm");
        let &[images, channels, ref rest @ ..] = &self.shape()[..] else {
            let error = call.shape_error("the second axis has the channels; there is none");
            return Err(error.with_tensor("self", self));
        };
        if groups == 0 || !channels.is_multiple_of(groups) {
            let what = format!("{channels} channels are not {groups} equal groups");
            return Err(call.error(ErrorKind::Value, what).with_tensor("self", self));
        }
        let x = &raise(self)?;
        check_affine(call, x, [("weight", weight), ("bias", bias)], &[channels])?;
        let area: usize = rest.iter().product();
        let width = channels / groups * area;
        let rows = Rows { width, period: groups, area: area.max(1), centered: true };
        let rows = (rows, Shape::from([images, groups]));
        norm_rows(call, "NativeGroupNormBackward", x, [weight, bias], rows, eps)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Device;
    use crate::testing::{conformance, gradcheck};

    /// The same by means and products of tensors.
    fn composed(x: &Tensor, axes: &[isize], centered: bool, eps: f64) -> Result<Tensor> {
        let x = if centered { x.sub(&x.mean_dim(axes, true)?)? } else { x.clone() };
        x.div(&x.mul(&x)?.mean_dim(axes, true)?.add(eps)?.sqrt()?)
    }

    fn assert_close(a: &Tensor, b: &Tensor, tolerance: f64) -> Result<()> {
        assert_eq!(a.shape(), b.shape());
        let [a, b] = [a.to(DType::F64)?.to_vec::<f64>()?, b.to(DType::F64)?.to_vec::<f64>()?];
        let far = a.iter().zip(&b).position(|(a, b)| a.is_nan() || (a - b).abs() > tolerance);
        assert_eq!(far, None);
        Ok(())
    }

    #[test]
    fn norms_are_what_means_and_squares_make() -> Result<()> {
        let device = Device::host("256 MiB").unwrap();
        for (dtype, tolerance) in [(DType::F64, 1e-12), (DType::F32, 1e-5), (DType::Bf16, 0.05)] {
            let x = Tensor::randn([6, 4, 30, 50], &device)?.to(dtype)?;
            let [weight, bias] =
                [Tensor::randn([30, 50], &device)?, Tensor::randn([30, 50], &device)?];
            let (weight, bias) = (weight.to(dtype)?, bias.to(dtype)?);
            let y = x.layer_norm([30, 50], Some(&weight), Some(&bias), 1e-5)?;
            let exact = |it: &Tensor| it.to(DType::F64);
            let wide = composed(&exact(&x)?, &[2, 3], true, 1e-5)?;
            assert_close(&y, &wide.mul(&exact(&weight)?)?.add(&exact(&bias)?)?, tolerance)?;
            let y = x.rms_norm([30, 50], Some(&weight), 1e-5)?;
            let wide = composed(&exact(&x)?, &[2, 3], false, 1e-5)?;
            assert_close(&y, &wide.mul(&exact(&weight)?)?, tolerance)?;
            let (weight, bias) = (Tensor::randn([4], &device)?, Tensor::randn([4], &device)?);
            let (weight, bias) = (weight.to(dtype)?, bias.to(dtype)?);
            let y = x.group_norm(2, Some(&weight), Some(&bias), 1e-5)?;
            let wide = exact(&x)?.reshape([6, 2, 2 * 30 * 50])?;
            let wide = composed(&wide, &[2], true, 1e-5)?.reshape(x.shape())?;
            let [weight, bias] = [exact(&weight)?, exact(&bias)?].map(|it| it.view([4, 1, 1]));
            assert_close(&y, &wide.mul(&weight?)?.add(&bias?)?, tolerance)?;
        }
        Ok(())
    }

    #[test]
    fn gradients_are_right() {
        gradcheck(&[&[3, 2, 5], &[5], &[5]], |x| {
            x[0].layer_norm([5], Some(&x[1]), Some(&x[2]), 1e-5)
        })
        .unwrap();
        gradcheck(&[&[3, 2, 4]], |x| x[0].layer_norm([2, 4], None, None, 1e-5)).unwrap();
        gradcheck(&[&[3, 4], &[4]], |x| x[0].layer_norm([4], None, Some(&x[1]), 1e-5)).unwrap();
        gradcheck(&[&[3, 5], &[5]], |x| x[0].rms_norm([5], Some(&x[1]), 1e-5)).unwrap();
        gradcheck(&[&[3, 5]], |x| x[0].t()?.rms_norm([3], None, 1e-5)).unwrap();
        gradcheck(&[&[2, 6, 3, 2], &[6], &[6]], |x| {
            x[0].group_norm(3, Some(&x[1]), Some(&x[2]), 1e-5)
        })
        .unwrap();
        gradcheck(&[&[4, 6]], |x| x[0].group_norm(2, None, None, 1e-5)).unwrap();
    }

    #[test]
    fn shapes_that_do_not_fit_are_named() -> Result<()> {
        let device = Device::dry("1 GiB").unwrap();
        let x = Tensor::zeros([2, 4], &device)?;
        let text = x.layer_norm([3], None, None, 1e-5).unwrap_err().to_string();
        assert!(text.contains("normalized: [3]"), "{text}");
        let weight = Tensor::zeros([3], &device)?;
        let text = x.layer_norm([4], Some(&weight), None, 1e-5).unwrap_err().to_string();
        assert!(text.contains("the weight does not have shape [4]"), "{text}");
        assert!(x.group_norm(3, None, None, 1e-5).is_err());
        assert!(Tensor::zeros([0, 4], &device)?.layer_norm([4], None, None, 1e-5).is_ok());
        Ok(())
    }

    #[test]
    fn beside_the_result_two_figures_of_each_row_are_kept() -> Result<()> {
        let device = Device::dry("1 GiB").unwrap();
        let x = Tensor::zeros([1 << 18, 8], &device)?.requires_grad_(true)?;
        let before = device.memory().allocated();
        let _y = x.layer_norm([8], None, None, 1e-5)?;
        assert_eq!(device.memory().allocated() - before, (8 << 20) + 2 * (1 << 20));
        Ok(())
    }

    conformance!(norms_of_every_type_and_width, |device| {
        let mut results = Vec::new();
        let mut check =
            |x: Tensor,
             weights: [Tensor; 2],
             norm: &dyn Fn(&Tensor, [&Tensor; 2]) -> Result<Tensor>| {
                let x = x.requires_grad_(true)?;
                let [weight, bias] = weights;
                let (weight, bias) = (weight.requires_grad_(true)?, bias.requires_grad_(true)?);
                let y = norm(&x, [&weight, &bias])?;
                y.square()?.mul(&y)?.sum()?.backward()?;
                results.push(y);
                results.extend([&x, &weight, &bias].into_iter().filter_map(Tensor::grad));
                Ok::<_, crate::Error>(())
            };
        for (dtype, of_weights) in [
            (DType::F32, DType::F32),
            (DType::F64, DType::F64),
            (DType::Bf16, DType::Bf16),
            (DType::Bf16, DType::F32),
            (DType::F16, DType::F32),
        ] {
            let random = |shape: &[usize], dtype| Tensor::randn(shape, device)?.to(dtype);
            for width in [5, 48, 768, 2000, 5000, 20_000] {
                let weights = [random(&[width], of_weights)?, random(&[width], of_weights)?];
                check(random(&[7, width], dtype)?, weights, &|x, [weight, bias]| {
                    x.layer_norm([width], Some(weight), Some(bias), 1e-5)
                })?;
                let weights = [random(&[width], of_weights)?, random(&[width], of_weights)?];
                check(random(&[7, width], dtype)?, weights, &|x, [weight, _]| {
                    x.rms_norm([width], Some(weight), 1e-5)
                })?;
            }
            let weights = [random(&[96], of_weights)?, random(&[96], of_weights)?];
            check(random(&[3000, 96], dtype)?, weights, &|x, [weight, bias]| {
                x.layer_norm([96], Some(weight), Some(bias), 1e-5)
            })?;
            for shape in [&[3, 6, 8, 8][..], &[3, 6, 5, 5], &[4, 6], &[2, 6, 60, 64]] {
                let weights = [random(&[6], of_weights)?, random(&[6], of_weights)?];
                check(random(shape, dtype)?, weights, &|x, [weight, bias]| {
                    x.group_norm(3, Some(weight), Some(bias), 1e-5)
                })?;
            }
        }
        Ok(results)
    });

    conformance!(norms, |device| {
        // Rows of equal numbers would magnify what is rounded.
        let x = Tensor::randn([4, 6, 10], device)?.requires_grad_(true)?;
        let weight = Tensor::ones([10], device)?.requires_grad_(true)?;
        let bias = Tensor::ones([10], device)?.requires_grad_(true)?;
        let y = x.layer_norm([10], Some(&weight), Some(&bias), 1e-5)?;
        let y = y.rms_norm([10], Some(&weight), 1e-5)?.group_norm(2, None, None, 1e-5)?;
        y.sum()?.backward()?;
        Ok(vec![y, x.grad().unwrap(), weight.grad().unwrap(), bias.grad().unwrap()])
    });
}
