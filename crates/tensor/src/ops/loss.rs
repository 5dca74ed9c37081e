//! Losses: negative log-likelihood, cross-entropy, mean square.
//!
//! | function | what it keeps beside the logits | for whom |
//! | --- | --- | --- |
//! | [`Tensor::cross_entropy`] | the logarithms of all probabilities | bytes as in PyTorch |
//! | [`Tensor::cross_entropy_lean`] | one number for each row | large vocabularies |
//!
//! With the profile [`MemoryProfile::Tonnage`], which GPUs have, the first is computed as the second where it can be.

use tonnage_device::cuda::{Arguments, Extent};

use super::reduce::SumRows;
use super::softmax::{log_sum, softmax_along};
use crate::amp::{raise, raised};
use crate::autograd::{Backward, Grads, Needs, Saved, record};
use crate::dtype::{DType, Float, Real, Stored, dispatch_float};
use crate::error::{Call, Result};
use crate::exec::cuda::{self, Elementwise, Launch, Program, stored, wide};
use crate::exec::{Args, Input, Kernel, Operand, Operands, Plan, for_each_chunk, map2, rows};
use crate::live::Role;
use crate::shape::Shape;
use crate::tensor::Tensor;
use crate::workspace::MemoryProfile;

/// What becomes of the losses of single elements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reduction {
    /// They stay as they are.
    None,
    /// Their mean; weighted, if there are weights.
    #[default]
    Mean,
    /// Their sum.
    Sum,
}

/// How cross-entropy and negative log-likelihood count.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CrossEntropyOptions {
    /// A weight for each class.
    pub weight: Option<Tensor>,
    /// A target that counts for nothing.
    pub ignore_index: i64,
    /// What becomes of the losses of single elements.
    pub reduction: Reduction,
}

impl Default for CrossEntropyOptions {
    fn default() -> Self {
        Self { weight: None, ignore_index: -100, reduction: Reduction::Mean }
    }
}

impl CrossEntropyOptions {
    /// With a weight for each class.
    #[must_use]
    pub fn weight(mut self, weight: Tensor) -> Self {
        self.weight = Some(weight);
        self
    }

    /// With another target that counts for nothing.
    #[must_use]
    pub fn ignore_index(mut self, target: i64) -> Self {
        self.ignore_index = target;
        self
    }

    /// With another reduction.
    #[must_use]
    pub fn reduction(mut self, reduction: Reduction) -> Self {
        self.reduction = reduction;
        self
    }
}

/// Which class each element belongs to: scores are `[outer, classes, inner]`, targets `[outer, inner]`.
#[derive(Clone, Copy)]
struct Classes {
    classes: usize,
    inner: usize,
    ignore_index: i64,
    reduction: Reduction,
}

impl Classes {
    /// The targets, each a class or none.
    fn targets(&self, targets: Input<'_>) -> Result<Vec<Option<usize>>, String> {
        let class = |(place, target): (usize, &i64)| match usize::try_from(*target) {
            _ if *target == self.ignore_index => Ok(None),
            Ok(class) if class < self.classes => Ok(Some(class)),
            _ => Err(format!(
                "target {target} at element {place} is none of the {} classes",
                self.classes
            )),
        };
        targets.to_slice::<i64>().iter().enumerate().map(class).collect()
    }

    /// Where the score of an element's class lies.
    fn place(&self, element: usize, class: usize) -> usize {
        let (outer, inner) = (element / self.inner, element % self.inner);
        (outer * self.classes + class) * self.inner + inner
    }

    /// What the gradient of an element's loss is multiplied by to become that of its score.
    fn scales(&self, grad: Input<'_>, total: f64) -> impl Fn(usize) -> f64 + use<> {
        let (grad, reduction) = (grad.to_slice::<f64>().into_owned(), self.reduction);
        move |element| match reduction {
            Reduction::None => grad[element],
            Reduction::Sum => grad[0],
            Reduction::Mean => grad[0] / total,
        }
    }
}

const TEXT: &str = concat!(
    include_str!("../exec/cuda/rows.cuh"),
    include_str!("exponentials.cuh"),
    include_str!("loss.cu")
);

/// A constant of a program.
type Constant<'a> = (&'a str, &'a dyn std::fmt::Display);

/// All threads of a block, which is the only one.
fn one_block() -> cuda::Group {
    cuda::Group { pack: 1, group: 1024, threads: 1024, items: 0 }
}

impl Classes {
    fn push(&self, arguments: &mut Arguments) {
        arguments.push(self.classes as u64);
        arguments.push(self.inner as u64);
        arguments.push(self.ignore_index);
    }

    fn push_rows(&self, arguments: &mut Arguments) {
        arguments.push(self.classes as u64);
        arguments.push(self.ignore_index);
    }

    /// Who takes a row of scores on a GPU, whether rows may begin within a pack, and how many elements after the
    /// beginning of one the first of all lies.
    fn packs(&self, operands: &[&Operand]) -> (cuda::Group, u8, u64) {
        let size = operands[0].dtype.size();
        let pack = 16 / size;
        let start = |it: &&Operand| it.first() / size as u64 % pack as u64;
        let first = start(&operands[0]);
        let begins_alike = operands.iter().all(|it| start(it) == first);
        let pack = if begins_alike { pack } else { 1 };
        let has_head = first != 0 || !self.classes.is_multiple_of(pack);
        let group = cuda::Group::once(self.classes, pack);
        let group = match group.group {
            // A row for each thread is for sums of few numbers.
            1 => cuda::Group { group: 32, ..group },
            1024 => cuda::Group { group: 512, threads: 512, ..group },
            _ => group,
        };
        (group, u8::from(has_head && pack > 1), if pack > 1 { first } else { 0 })
    }

    fn launch(
        &self,
        name: &'static str,
        own: &[Constant<'_>],
        targets: &Operand,
        group: cuda::Group,
        rows: usize,
        arguments: Arguments,
    ) -> Launch {
        let reduction = match self.reduction {
            Reduction::None => 0,
            Reduction::Mean => 1,
            Reduction::Sum => 2,
        };
        let complains = matches!(name, "nll" | "lean_cross_entropy");
        let target = stored(targets.dtype);
        let mut constants: Vec<Constant<'_>> = own.to_vec();
        constants.push(("TARGET", &target));
        constants.push(("REDUCTION", &reduction));
        if complains {
            constants.push(("COMPLAINS", &1));
        }
        if !own.iter().any(|(name, _)| *name == "C") {
            constants.push(("C", &"double"));
        }
        // Rows are not kept in registers.
        let [pack, of_row, threads, _] = group.constants();
        constants.extend([pack, of_row, threads]);
        let launch =
            Launch::new(Program::new(name, TEXT, &constants), group.extent(rows), arguments);
        let classes = self.classes;
        if complains { launch.complains(move |it| no_class(it, classes)) } else { launch }
    }
}

/// The sentence about a target that a GPU met: its number and its place, each as far as 32 bits go.
fn no_class(value: i64, classes: usize) -> String {
    let (target, place) = ((value >> 32) as i32, value as u32);
    let beyond = match target {
        i32::MAX => " or more",
        i32::MIN => " or less",
        _ => "",
    };
    format!("target {target}{beyond} at element {place} is none of the {classes} classes")
}

fn weights(args: &Args<'_>, place: Option<usize>) -> impl Fn(usize) -> f64 + use<> {
    let weights = place.map(|place| args.input(place).to_slice::<f64>().into_owned());
    move |class| weights.as_ref().map_or(1.0, |weights| weights[class])
}

/// `loss = -Σ weight·x[target]`, total = Σ weight. Inputs: scores, targets, perhaps weights.
struct Nll {
    of: Classes,
    weighted: bool,
}

impl Kernel for Nll {
    fn host(&self, args: &mut Args<'_>) -> Result<(), String> {
        let (x, of) = (args.input(0), self.of);
        let targets = of.targets(args.input(1))?;
        let weight = weights(args, self.weighted.then_some(2));
        let mut total = 0.0;
        let mut losses = Vec::with_capacity(targets.len());
        dispatch_float!(args.output_dtype(0), T => {
            let mut scratch = Vec::new();
            for (element, target) in targets.iter().enumerate() {
                let Some(class) = *target else {
                    losses.push(0.0);
                    continue;
                };
                let place = of.place(element, class);
                let score = x.chunk::<T>(place..place + 1, &mut scratch)[0].to_f64();
                losses.push(-weight(class) * score);
                total += weight(class);
            }
            let sum: f64 = losses.iter().sum();
            let output = args.take::<T>(0).slice();
            match of.reduction {
                Reduction::None => {
                    output.iter_mut().zip(&losses).for_each(|(to, it)| *to = T::from_f64(*it));
                }
                Reduction::Mean => output[0] = T::from_f64(sum / total),
                Reduction::Sum => output[0] = T::from_f64(sum),
            }
            args.take::<T>(1).slice()[0] = T::from_f64(total);
        }, else return Err(format!("{} is no float", args.output_dtype(0))));
        Ok(())
    }

    fn cuda(&self, on: Operands<'_>) -> Plan {
        let (x, targets, weight) = (&on.inputs[0], &on.inputs[1], on.inputs.get(2));
        let mut arguments = Arguments::new();
        [&on.outputs[0], &on.outputs[1], x, targets]
            .iter()
            .for_each(|it| arguments.push(it.first()));
        arguments.push(weight.map_or(0, Operand::first));
        arguments.push(targets.layout.numel() as u64);
        self.of.push(&mut arguments);
        let to = stored(on.outputs[0].dtype);
        let constants: [Constant<'_>; 5] = [
            ("NLL", &1),
            ("IN", &stored(x.dtype)),
            ("OUT", &to),
            ("WEIGHT", &stored(weight.map_or(x.dtype, |it| it.dtype))),
            ("HAS_WEIGHT", &u8::from(self.weighted)),
        ];
        self.of.launch("nll", &constants, targets, one_block(), 1, arguments).into()
    }
}

/// The gradient of [`Nll`]: zero but at targets. Inputs: gradient, targets, total, perhaps weights.
struct NllGrad {
    of: Classes,
    weighted: bool,
}

impl Kernel for NllGrad {
    fn host(&self, args: &mut Args<'_>) -> Result<(), String> {
        let of = self.of;
        let targets = of.targets(args.input(1))?;
        let total = args.input(2).to_slice::<f64>()[0];
        let scale = of.scales(args.input(0), total);
        let weight = weights(args, self.weighted.then_some(3));
        let inner = of.inner;
        dispatch_float!(args.output_dtype(0), T => {
            rows::<T>(args.take(0), of.classes * inner, &|outer, places| {
                places.fill(T::default());
                for column in 0..inner {
                    let element = outer * inner + column;
                    if let Some(class) = targets[element] {
                        let gradient = -weight(class) * scale(element);
                        places[class * inner + column] = T::from_f64(gradient);
                    }
                }
            });
        }, else return Err(format!("{} is no float", args.output_dtype(0))));
        Ok(())
    }

    fn cuda(&self, on: Operands<'_>) -> Plan {
        let (output, weight) = (&on.outputs[0], on.inputs.get(3));
        let (grad, targets, total) = (&on.inputs[0], &on.inputs[1], &on.inputs[2]);
        let numel = output.layout.numel();
        if numel == 0 {
            return Plan::nothing();
        }
        let mut arguments = Arguments::new();
        [output, grad, targets, total].iter().for_each(|it| arguments.push(it.first()));
        arguments.push(weight.map_or(0, Operand::first));
        arguments.push(numel as u64);
        self.of.push(&mut arguments);
        let is_inner = self.of.inner > 1;
        let pack =
            cuda::pack_of(&[if is_inner { self.of.inner } else { self.of.classes }], &[output]);
        let constants: [Constant<'_>; 8] = [
            ("NLL_GRAD", &1),
            ("OUT", &stored(output.dtype)),
            ("GRAD", &stored(grad.dtype)),
            ("TOTAL", &stored(total.dtype)),
            ("WEIGHT", &stored(weight.map_or(output.dtype, |it| it.dtype))),
            ("HAS_WEIGHT", &u8::from(self.weighted)),
            ("INNER", &u8::from(is_inner)),
            ("INDEX", &cuda::index_type(numel)),
        ];
        let group = cuda::Group { pack, group: 1, threads: 256, items: 0 };
        let rows = numel / pack;
        self.of.launch("nll_grad", &constants, targets, group, rows, arguments).into()
    }
}

struct NllBackward {
    call: Call,
    of: Classes,
    /// PyTorch keeps the scores, though only their shape is used.
    x: Saved,
    targets: Saved,
    weight: Option<Saved>,
    total: Saved,
}

impl Backward for NllBackward {
    fn backward(&self, grads: &[Option<Tensor>], _: &Needs<'_>) -> Result<Grads> {
        let Some(grad) = &grads[0] else { return Ok(Grads::from_iter([None])) };
        let (grad, x) = (&grad.in_order(self.call)?, self.x.unpack()?);
        let (targets, total) = (self.targets.unpack()?.in_order(self.call)?, self.total.unpack()?);
        let weight = self.weight.as_ref().map(Saved::unpack).transpose()?;
        let weight = weight.map(|it| it.in_order(self.call)).transpose()?;
        let output = Tensor::uninit(self.call, x.shape().clone(), x.dtype(), x.device())?;
        let kernel = NllGrad { of: self.of, weighted: weight.is_some() };
        let inputs: Vec<&Tensor> = [grad, &targets, &total].into_iter().chain(&weight).collect();
        self.call.launch(kernel, &[&output], &inputs)?;
        Ok(Grads::from_iter([Some(output)]))
    }
}

/// Checks scores against targets. Classes are the second axis, or the only one.
fn classes_of(
    call: Call,
    x: &Tensor,
    targets: &Tensor,
    o: &CrossEntropyOptions,
) -> Result<Classes> {
    let wrong = |what: &str| {
        let error = call.shape_error(what).with_tensor("self", x).with_tensor("targets", targets);
        let error = match &o.weight {
            Some(weight) => error.with_tensor("weight", weight),
            None => error,
        };
        error.help("scores are [batch, classes, …], targets [batch, …], weights [classes]")
    };
    if !x.dtype().is_float() || !matches!(targets.dtype(), DType::I64 | DType::I32 | DType::U8) {
        let error = call.dtype_error("scores are floats and targets integers");
        return Err(error.with_tensor("self", x).with_tensor("targets", targets));
    }
    let Some(axis) = class_axis(x) else { return Err(wrong("a single number has no classes")) };
    let sizes = x.shape();
    let (before, behind) = (&sizes[..axis], &sizes[axis + 1..]);
    if !before.iter().chain(behind).eq(targets.shape().iter()) {
        return Err(wrong("there is not one target for each element"));
    }
    if o.weight.as_ref().is_some_and(|it| it.shape()[..] != sizes[axis..=axis]) {
        return Err(wrong("there is not one weight for each class"));
    }
    let inner = behind.iter().product();
    Ok(Classes {
        classes: sizes[axis],
        inner,
        ignore_index: o.ignore_index,
        reduction: o.reduction,
    })
}

fn class_axis(x: &Tensor) -> Option<usize> {
    x.dim().checked_sub(1).map(|last| last.min(1))
}

#[track_caller]
fn nll(call: Call, x: &Tensor, targets: &Tensor, o: &CrossEntropyOptions) -> Result<Tensor> {
    let of = classes_of(call, x, targets, o)?;
    let shape = if of.reduction == Reduction::None { targets.shape().clone() } else { ().into() };
    let output = Tensor::uninit(call, shape, x.dtype(), x.device())?;
    let total = Tensor::uninit(call, Shape::default(), x.dtype(), x.device())?;
    // Kernels read rows in order.
    let weight = o.weight.as_ref().map(|it| it.in_order(call)).transpose()?;
    let ordered = [x.in_order(call)?, targets.in_order(call)?];
    let inputs: Vec<&Tensor> = ordered.iter().chain(&weight).collect();
    call.launch(Nll { of, weighted: o.weight.is_some() }, &[&output, &total], &inputs)?;
    record(call, "NllLossBackward", &[&output], &[x], || {
        let weight = o.weight.as_ref().map(|it| Saved::input(call, it)).transpose()?;
        let (x, targets) = (Saved::input(call, x)?, Saved::input(call, targets)?);
        let total = Saved::output(call, &total)?;
        Ok(Box::new(NllBackward { call, of, x, targets, weight, total }))
    })?;
    Ok(output)
}

/// Cross-entropy in one go over rows of scores: loss, and for each row the logarithm of the sum of
/// exponentials.
struct LeanCrossEntropy {
    of: Classes,
}

impl Kernel for LeanCrossEntropy {
    fn host(&self, args: &mut Args<'_>) -> Result<(), String> {
        let (x, of) = (args.input(0), self.of);
        let targets = of.targets(args.input(1))?;
        let width = of.classes;
        dispatch_float!(x.dtype(), T => {
            type W = <T as Float>::Wide;
            let log_sums = args.take::<W>(1).slice();
            log_sums.fill(W::default());
            let mut losses = vec![0.0; targets.len()];
            let row = |row: usize, log_sum_of: &mut W, loss: &mut f64| {
                let mut scratch = Vec::new();
                let x = x.chunk::<W>(row * width..(row + 1) * width, &mut scratch);
                let (largest, log_sum) = log_sum(x);
                *log_sum_of = largest + log_sum;
                if let Some(class) = targets[row] {
                    *loss = (*log_sum_of - x[class]).to_f64();
                }
            };
            over_rows(log_sums, &mut losses, width, &row);
            let counted = targets.iter().flatten().count() as f64;
            let sum: f64 = losses.iter().sum();
            let output = args.take::<W>(0).slice();
            match of.reduction {
                Reduction::None => {
                    output.iter_mut().zip(&losses).for_each(|(to, it)| *to = W::n(*it));
                }
                Reduction::Mean => output[0] = W::n(sum / counted),
                Reduction::Sum => output[0] = W::n(sum),
            }
        }, else return Err(format!("{} is no float", x.dtype())));
        Ok(())
    }

    fn cuda(&self, on: Operands<'_>) -> Plan {
        let ([output, log_sums], [x, targets]) =
            ([&on.outputs[0], &on.outputs[1]], [&on.inputs[0], &on.inputs[1]]);
        let rows = targets.layout.numel();
        let (from, compute) = (stored(x.dtype), wide(x.dtype));
        let mut launches = Vec::new();
        if rows > 0 {
            let (group, head, start) = self.of.packs(&[x]);
            let mut arguments = Arguments::new();
            [output, log_sums, x, targets].iter().for_each(|it| arguments.push(it.first()));
            arguments.push(rows as u64);
            self.of.push_rows(&mut arguments);
            let constants: [Constant<'_>; 5] =
                [("LEAN", &1), ("IN", &from), ("C", &compute), ("HEAD", &head), ("START", &start)];
            let name = "lean_cross_entropy";
            launches.push(self.of.launch(name, &constants, targets, group, rows, arguments));
        }
        if self.of.reduction != Reduction::None {
            let mut arguments = Arguments::new();
            [output, log_sums, x, targets].iter().for_each(|it| arguments.push(it.first()));
            arguments.push(rows as u64);
            self.of.push_rows(&mut arguments);
            let constants: [Constant<'_>; 3] = [("LEAN_SUM", &1), ("IN", &from), ("C", &compute)];
            let name = "lean_cross_entropy_sum";
            launches.push(self.of.launch(name, &constants, targets, one_block(), 1, arguments));
        }
        Plan::Launches(launches)
    }
}

/// Calls `work` with each row and its two results, on all cores where rows are long enough.
fn over_rows<A: Stored, B: Stored>(
    a: &mut [A],
    b: &mut [B],
    width: usize,
    work: &(dyn Fn(usize, &mut A, &mut B) + Sync),
) {
    use rayon::prelude::*;
    let each = (a.par_iter_mut(), b.par_iter_mut()).into_par_iter().enumerate();
    let together = (crate::exec::CHUNK / width.max(1)).max(1);
    each.with_min_len(together).for_each(|(row, (a, b))| work(row, a, b));
}

/// The gradient of [`LeanCrossEntropy`]: probabilities, less one at the target. Inputs: gradient, targets, logarithms of
/// sums, scores; without scores, the output has them before.
struct LeanCrossEntropyGrad {
    of: Classes,
}

impl Kernel for LeanCrossEntropyGrad {
    fn host(&self, args: &mut Args<'_>) -> Result<(), String> {
        let of = self.of;
        let x = (args.inputs() > 3).then(|| args.input(3));
        let targets = of.targets(args.input(1))?;
        let scale = of.scales(args.input(0), targets.iter().flatten().count() as f64);
        let width = of.classes;
        dispatch_float!(args.output_dtype(0), T => {
            type W = <T as Float>::Wide;
            let log_sums = args.input(2).to_slice::<W>();
            rows::<T>(args.take(0), width, &|row, places| {
                let Some(class) = targets[row] else { return places.fill(T::default()) };
                let (scale, log_sum) = (W::from_f64(scale(row)), log_sums[row]);
                let of_score = |class_score: bool, x: W| {
                    let probability = (x - log_sum).exp();
                    T::narrow(scale * if class_score { probability - W::n(1.0) } else { probability })
                };
                let mut scratch = Vec::new();
                match x {
                    Some(x) => {
                        let x = x.chunk::<W>(row * width..(row + 1) * width, &mut scratch);
                        let each = places.iter_mut().zip(x).enumerate();
                        each.for_each(|(at, (place, x))| *place = of_score(at == class, *x));
                    }
                    None => {
                        let each = places.iter_mut().enumerate();
                        each.for_each(|(at, place)| *place = of_score(at == class, place.widen()));
                    }
                }
            });
        }, else return Err(format!("{} is no float", args.output_dtype(0))));
        Ok(())
    }

    fn cuda(&self, on: Operands<'_>) -> Plan {
        let (output, targets) = (&on.outputs[0], &on.inputs[1]);
        let (grad, log_sums) = (&on.inputs[0], &on.inputs[2]);
        let x = on.inputs.get(3).unwrap_or(output);
        let rows = targets.layout.numel();
        if output.layout.numel() == 0 {
            return Plan::nothing();
        }
        let (group, head, start) = self.of.packs(&[output, x]);
        let mut arguments = Arguments::new();
        [output, grad, x, targets, log_sums].iter().for_each(|it| arguments.push(it.first()));
        arguments.push(rows as u64);
        self.of.push_rows(&mut arguments);
        let constants: [Constant<'_>; 6] = [
            ("LEAN_GRAD", &1),
            ("IN", &stored(x.dtype)),
            ("C", &wide(x.dtype)),
            ("GRAD", &stored(grad.dtype)),
            ("HEAD", &head),
            ("START", &start),
        ];
        let name = "lean_cross_entropy_grad";
        let launch = self.of.launch(name, &constants, targets, group, rows, arguments);
        // Blocks take many rows, since each counts the targets.
        let blocks = launch.extent.grid[0].min(cuda::FULL);
        Launch { extent: Extent::line(blocks, group.threads), ..launch }.into()
    }
}

struct LeanCrossEntropyBackward {
    call: Call,
    of: Classes,
    x: Saved,
    targets: Saved,
    log_sums: Saved,
}

impl Backward for LeanCrossEntropyBackward {
    fn backward(&self, grads: &[Option<Tensor>], needs: &Needs<'_>) -> Result<Grads> {
        let Some(grad) = &grads[0] else { return Ok(Grads::from_iter([None])) };
        let (call, kernel) = (self.call, LeanCrossEntropyGrad { of: self.of });
        let grad = &grad.in_order(call)?;
        let x = self.x.unpack()?;
        let targets = self.targets.unpack()?.in_order(call)?;
        let log_sums = self.log_sums.unpack()?;
        let is_tonnage = x.device().memory_profile() == MemoryProfile::Tonnage;
        // All of the block, or more than the gradient would stay.
        let bytes = (x.numel() * x.dtype().size()) as u64;
        let fills = x.is_contiguous()
            && x.storage().block().is_some_and(|block| block.requested() == bytes);
        if is_tonnage && needs.is_last() && fills && self.x.is_alone(&x) {
            // Nobody reads the scores again: their gradient takes their place.
            let output = x.detach();
            call.launch(kernel, &[&output], &[grad, &targets, &log_sums])?;
            output.storage().written_by(call);
            output.set_role(Role::Temporary);
            return Ok(Grads::from_iter([Some(output)]));
        }
        let x = x.in_order(call)?;
        let output = Tensor::uninit(call, x.shape().clone(), x.dtype(), x.device())?;
        call.launch(kernel, &[&output], &[grad, &targets, &log_sums, &x])?;
        Ok(Grads::from_iter([Some(output)]))
    }
}

/// `output = (a - b)²`.
struct SquareError;

impl Kernel for SquareError {
    fn host(&self, args: &mut Args<'_>) -> Result<(), String> {
        let inputs = [args.input(0), args.input(1)];
        dispatch_float!(args.output_dtype(0), T => {
            map2::<T, T, T>(args.take(0), inputs, |a, b| {
                let error = a.widen() - b.widen();
                T::narrow(error * error)
            });
        }, else return Err(format!("{} is no float", args.output_dtype(0))));
        Ok(())
    }

    fn cuda(&self, on: Operands<'_>) -> Plan {
        let compute = wide(on.outputs[0].dtype);
        Elementwise::new("square_error", compute, "C error = x0 - x1; y0 = error * error;").plan(on)
    }
}

/// `output = scale · grad · (a - b)`. Inputs: a, b, gradient, broadcast.
struct SquareErrorGrad {
    scale: f64,
}

impl Kernel for SquareErrorGrad {
    fn host(&self, args: &mut Args<'_>) -> Result<(), String> {
        let (inputs, grad) = ([args.input(0), args.input(1)], args.input(2));
        dispatch_float!(args.output_dtype(0), T => {
            type W = <T as Float>::Wide;
            let scale = W::from_f64(self.scale);
            for_each_chunk::<T>(args.take(0), &|indices, chunk| {
                let mut scratch = [Vec::new(), Vec::new(), Vec::new()];
                let [for_a, for_b, for_grad] = &mut scratch;
                let a = inputs[0].chunk::<W>(indices.clone(), for_a);
                let b = inputs[1].chunk::<W>(indices.clone(), for_b);
                let grad = grad.chunk::<W>(indices, for_grad);
                for (place, ((a, b), grad)) in chunk.iter_mut().zip(a.iter().zip(b).zip(grad)) {
                    *place = T::narrow(scale * (*a - *b) * *grad);
                }
            });
        }, else return Err(format!("{} is no float", args.output_dtype(0))));
        Ok(())
    }

    fn cuda(&self, on: Operands<'_>) -> Plan {
        let compute = wide(on.outputs[0].dtype);
        let line = "y0 = C(s0) * (x0 - x1) * x2;";
        Elementwise::new("square_error_grad", compute, line).numbers(&[self.scale]).plan(on)
    }
}

struct MseBackward {
    call: Call,
    x: Saved,
    target: Saved,
    reduction: Reduction,
}

impl Backward for MseBackward {
    fn backward(&self, grads: &[Option<Tensor>], needs: &Needs<'_>) -> Result<Grads> {
        let Some(grad) = &grads[0] else { return Ok(Grads::from_iter([None, None])) };
        let (x, target) = (self.x.unpack()?, self.target.unpack()?);
        let wide = grad.expand(x.shape())?;
        let scale = match self.reduction {
            Reduction::Mean => 2.0 / x.numel() as f64,
            Reduction::None | Reduction::Sum => 2.0,
        };
        let of = |a: &Tensor, b: &Tensor| -> Result<Tensor> {
            let output = Tensor::uninit(self.call, a.shape().clone(), a.dtype(), a.device())?;
            self.call.launch(SquareErrorGrad { scale }, &[&output], &[a, b, &wide])?;
            Ok(output)
        };
        let grad_x = needs.input(0).then(|| of(&x, &target)).transpose()?;
        let grad_target = needs.input(1).then(|| of(&target, &x)).transpose()?;
        Ok(Grads::from_iter([grad_x, grad_target]))
    }
}

/// A single number in memory for many: PyTorch makes the losses of all elements, then resizes to one
/// number, which keeps the memory.
#[track_caller]
fn first_element(call: Call, x: &Tensor) -> Result<Tensor> {
    if x.numel() == 0 {
        return Tensor::uninit(call, Shape::default(), x.dtype(), x.device());
    }
    let one = (0..x.dim()).try_fold(x.layout().clone(), |layout, axis| layout.slice(axis, 0, 1, 1));
    match one.and_then(|layout| layout.view(&Shape::default())) {
        Some(layout) => Ok(x.alias(layout).detach()),
        None => Err(call.shape_error("there is no first element").with_tensor("self", x)),
    }
}

/// Whether rows of scores are all there is.
fn has_lean_form(scores: &Tensor, options: &CrossEntropyOptions) -> bool {
    scores.dim() == 2 && options.weight.is_none()
}

#[track_caller]
fn lean(
    call: Call,
    scores: &Tensor,
    targets: &Tensor,
    options: &CrossEntropyOptions,
) -> Result<Tensor> {
    let of = classes_of(call, scores, targets, options)?;
    let wide = if scores.dtype() == DType::F64 { DType::F64 } else { DType::F32 };
    let each = targets.shape().clone();
    let shape = if of.reduction == Reduction::None { each.clone() } else { ().into() };
    let output = Tensor::uninit(call, shape, wide, scores.device())?;
    let log_sums = Tensor::uninit(call, each, wide, scores.device())?;
    let (x, ordered) = (scores.in_order(call)?, targets.in_order(call)?);
    call.launch(LeanCrossEntropy { of }, &[&output, &log_sums], &[&x, &ordered])?;
    drop((x, ordered));
    record(call, "CrossEntropyBackward", &[&output], &[scores], || {
        let (x, targets) = (Saved::input(call, scores)?, Saved::input(call, targets)?);
        let log_sums = Saved::output(call, &log_sums)?;
        Ok(Box::new(LeanCrossEntropyBackward { call, of, x, targets, log_sums }))
    })?;
    Ok(output)
}

impl Tensor {
    /// The negative log-likelihood of targets under logarithms of probabilities, of which classes are
    /// the second axis (or the only one).
    ///
    /// # Errors
    ///
    /// If shapes or element types do not fit, or if there is no memory. A target that is no class is
    /// reported at the next synchronisation.
    #[track_caller]
    pub fn nll_loss(&self, targets: &Tensor, options: &CrossEntropyOptions) -> Result<Tensor> {
        nll(Call::here("nll_loss"), &raise(self)?, targets, options)
    }

    /// The mean cross-entropy between scores and target classes: `log_softmax`, then
    /// [`nll_loss`](Self::nll_loss), with what PyTorch keeps of each. Classes are the second axis (or
    /// the only one). With [`MemoryProfile::Tonnage`], rows of scores go the way of
    /// [`cross_entropy_lean`](Self::cross_entropy_lean).
    ///
    /// ```
    /// # use tonnage_tensor::{Device, Tensor};
    /// # let device = Device::host("64 MiB")?;
    /// let scores = Tensor::zeros([3, 10], &device)?;
    /// let targets = Tensor::from_slice(&[1i64, 0, 7], [3], &device)?;
    /// let loss = scores.cross_entropy(&targets)?.item::<f32>()?;
    /// assert!((loss - 10f32.ln()).abs() < 1e-6);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`nll_loss`](Self::nll_loss).
    #[track_caller]
    pub fn cross_entropy(&self, targets: &Tensor) -> Result<Tensor> {
        self.cross_entropy_with(targets, &CrossEntropyOptions::default())
    }

    /// [`cross_entropy`](Self::cross_entropy) with options.
    ///
    /// # Errors
    ///
    /// As for [`nll_loss`](Self::nll_loss).
    #[track_caller]
    pub fn cross_entropy_with(
        &self,
        targets: &Tensor,
        options: &CrossEntropyOptions,
    ) -> Result<Tensor> {
        let call = Call::here("cross_entropy");
        // The lean form's loss is never of 16 bits.
        let is_narrow = matches!(raised(self.dtype()), DType::Bf16 | DType::F16);
        let is_tonnage = self.device().memory_profile() == MemoryProfile::Tonnage;
        if is_tonnage && !is_narrow && has_lean_form(self, options) {
            return lean(call, self, targets, options);
        }
        classes_of(call, self, targets, options)?;
        let log = softmax_along(call, self, class_axis(self).unwrap_or(0), true)?;
        nll(call, &log, targets, options)
    }

    /// The same number as [`cross_entropy`](Self::cross_entropy) for scores `[batch, classes]`, but
    /// nothing of their size is allocated before the backward: kept are the scores and one number
    /// for each row, and the backward makes one tensor, not two. For GPT-2's 50,257 classes that is a
    /// third of the memory. Scores of 16 bits are read as they are, with or without autocast; their loss
    /// has 32.
    ///
    /// # Errors
    ///
    /// If there are weights or more axes, and as for [`nll_loss`](Self::nll_loss).
    #[track_caller]
    pub fn cross_entropy_lean(
        &self,
        targets: &Tensor,
        options: &CrossEntropyOptions,
    ) -> Result<Tensor> {
        let call = Call::here("cross_entropy_lean");
        if !has_lean_form(self, options) {
            return Err(call
                .shape_error("the lean form takes rows of scores, without weights")
                .with_tensor("self", self)
                .help("reshape to [batch, classes], or use cross_entropy_with"));
        }
        lean(call, self, targets, options)
    }

    /// The mean of squared differences to `target`, of the same shape; or their sum, or each of them.
    ///
    /// # Errors
    ///
    /// If shapes or element types differ, or if there is no memory.
    #[track_caller]
    pub fn mse_loss(&self, target: &Tensor, reduction: Reduction) -> Result<Tensor> {
        let call = Call::here("mse_loss");
        let (x, target) = (&raise(self)?, &raise(target)?);
        x.mse_loss_in(call, target, reduction)
    }

    /// The same, whatever autocast says.
    #[track_caller]
    fn mse_loss_in(&self, call: Call, target: &Tensor, reduction: Reduction) -> Result<Tensor> {
        if self.shape() != target.shape() {
            let error = call.shape_error("there is not one target for each element");
            return Err(error.with_tensor("self", self).with_tensor("target", target));
        }
        if !self.dtype().is_float() || self.dtype() != target.dtype() {
            let error = call.dtype_error("both must be floats of one type");
            return Err(error.with_tensor("self", self).with_tensor("target", target));
        }
        let new = || Tensor::uninit(call, self.shape().clone(), self.dtype(), self.device());
        let mut output = new()?;
        if reduction == Reduction::None {
            call.launch(SquareError, &[&output], &[self, target])?;
        } else {
            let each = new()?;
            call.launch(SquareError, &[&each], &[self, target])?;
            output = first_element(call, &output)?;
            let (width, mean) = (self.numel(), reduction == Reduction::Mean);
            call.launch(SumRows::all(width, mean), &[&output], &[&each])?;
        }
        record(call, "MseLossBackward", &[&output], &[self, target], || {
            let (x, target) = (Saved::input(call, self)?, Saved::input(call, target)?);
            Ok(Box::new(MseBackward { call, x, target, reduction }))
        })?;
        Ok(output)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Device;
    use crate::autograd::BackwardOptions;
    use crate::testing::{conformance, gradcheck};

    fn device() -> Device {
        Device::host("256 MiB").unwrap()
    }

    fn options() -> CrossEntropyOptions {
        CrossEntropyOptions::default()
    }

    const REDUCTIONS: [Reduction; 3] = [Reduction::None, Reduction::Mean, Reduction::Sum];

    #[test]
    fn cross_entropy_is_the_definition_with_weights_and_ignored_targets() -> Result<()> {
        let device = device();
        let x = Tensor::randn([6, 4], (&device, DType::F64))?;
        let targets = [1i64, 3, -100, 0, 0, 2];
        let class_weights = [0.5, 2.0, 1.0, 0.25];
        let scores = x.to_vec::<f64>()?;
        let loss_of = |row: usize, class: usize| {
            let scores = &scores[row * 4..][..4];
            scores.iter().map(|it| it.exp()).sum::<f64>().ln() - scores[class]
        };
        let classes = || {
            let each = targets.iter().enumerate();
            each.filter_map(|(row, it)| usize::try_from(*it).ok().map(|class| (row, class)))
        };
        let sum: f64 =
            classes().map(|(row, class)| class_weights[class] * loss_of(row, class)).sum();
        let total: f64 = classes().map(|(_, class)| class_weights[class]).sum();
        let plain: f64 = classes().map(|(row, class)| loss_of(row, class)).sum();
        let targets = Tensor::from_slice(&targets, [6], &device)?;
        let weight = Tensor::from_slice(&class_weights, [4], &device)?;
        let weighted = x.cross_entropy_with(&targets, &options().weight(weight))?;
        assert!((weighted.item::<f64>()? - sum / total).abs() < 1e-12);
        assert!((x.cross_entropy(&targets)?.item::<f64>()? - plain / 5.0).abs() < 1e-12);
        for reduction in REDUCTIONS {
            let options = options().reduction(reduction);
            let [a, b] = [
                x.cross_entropy_with(&targets, &options)?.to_vec::<f64>()?,
                x.cross_entropy_lean(&targets, &options)?.to_vec::<f64>()?,
            ];
            assert!(a.iter().zip(&b).all(|(a, b)| (a - b).abs() < 1e-12), "{reduction:?}");
        }
        Ok(())
    }

    #[test]
    fn classes_may_lie_in_the_middle_or_alone() -> Result<()> {
        let device = device();
        let x = Tensor::randn([2, 5, 3, 4], (&device, DType::F64))?;
        let targets = Tensor::randint(0, 5, [2, 3, 4], &device)?;
        let flat = x.permute(&[0, 2, 3, 1])?.reshape([24, 5])?;
        let expected = flat.cross_entropy(&targets.reshape([24])?)?.item::<f64>()?;
        assert!((x.cross_entropy(&targets)?.item::<f64>()? - expected).abs() < 1e-12);
        let one = Tensor::randn([5], &device)?;
        let target = Tensor::from_slice(&[2i64], (), &device)?;
        let loss = one.cross_entropy(&target)?.item::<f32>()?;
        assert!((loss + one.log_softmax(0)?.to_vec::<f32>()?[2]).abs() < 1e-6);
        Ok(())
    }

    #[test]
    fn a_target_that_is_no_class_is_named_at_the_next_synchronisation() -> Result<()> {
        let device = device();
        let x = Tensor::zeros([2, 3], &device)?;
        for wrong in [3i64, -1] {
            let targets = Tensor::from_slice(&[0, wrong], [2], &device)?;
            for lean in [false, true] {
                let loss = if lean {
                    x.cross_entropy_lean(&targets, &options())?
                } else {
                    x.cross_entropy(&targets)?
                };
                let error = loss.item::<f32>().unwrap_err().to_string();
                assert!(error.contains(&format!("target {wrong} at element 1")), "{error}");
            }
        }
        let targets = Tensor::zeros([3], (&device, DType::I64))?;
        let error = x.cross_entropy(&targets).unwrap_err().to_string();
        assert!(error.contains("one target for each element"), "{error}");
        assert!(x.cross_entropy(&x).is_err());
        Ok(())
    }

    #[test]
    fn gradients_are_right() {
        for reduction in REDUCTIONS {
            let options = options().reduction(reduction).ignore_index(1);
            gradcheck(&[&[4, 5]], |x| {
                let targets = Tensor::from_slice(&[0i64, 1, 4, 2], [4], x[0].device())?;
                x[0].cross_entropy_with(&targets, &options)
            })
            .unwrap();
            gradcheck(&[&[4, 5]], |x| {
                let targets = Tensor::from_slice(&[0i64, 1, 4, 2], [4], x[0].device())?;
                x[0].cross_entropy_lean(&targets, &options)
            })
            .unwrap();
            gradcheck(&[&[3, 4], &[3, 4]], |x| x[0].mse_loss(&x[1], reduction)).unwrap();
        }
        gradcheck(&[&[2, 3, 2]], |x| {
            let device = x[0].device();
            let targets = Tensor::from_slice(&[0i64, 1, 2, 2], [2, 2], device)?;
            let weight = Tensor::from_slice(&[0.5, 2.0, 1.5], [3], device)?;
            x[0].cross_entropy_with(&targets, &options().weight(weight))
        })
        .unwrap();
    }

    #[test]
    fn squared_errors_are_the_definition() -> Result<()> {
        let device = device();
        let a = Tensor::from_slice(&[1.0f32, 2.0, 3.0], [3], &device)?;
        let b = Tensor::from_slice(&[1.0f32, 4.0, 2.0], [3], &device)?;
        let loss = |reduction| a.mse_loss(&b, reduction)?.to_vec::<f32>();
        assert_eq!(loss(Reduction::None)?, [0.0, 4.0, 1.0]);
        assert_eq!(loss(Reduction::Sum)?, [5.0]);
        assert_eq!(loss(Reduction::Mean)?, [5.0 / 3.0]);
        let empty = Tensor::zeros([0, 3], &device)?;
        assert!(empty.mse_loss(&empty, Reduction::Mean)?.item::<f32>()?.is_nan());
        assert!(a.mse_loss(&b.view([3, 1])?, Reduction::Mean).is_err());
        Ok(())
    }

    conformance!(losses_of_every_type_and_reduction, |device| {
        let mut results = Vec::new();
        for dtype in [DType::F32, DType::F64, DType::Bf16, DType::F16] {
            let random = |shape: &[usize]| Tensor::randn(shape, device)?.to(dtype);
            for reduction in REDUCTIONS {
                let options = options().reduction(reduction).ignore_index(3);
                for classes in [5, 64, 1001, 9001, 50_304] {
                    let x = random(&[9, classes])?.requires_grad_(true)?;
                    let targets = Tensor::randint(0, 5, [9], device)?;
                    let lean = x.cross_entropy_lean(&targets, &options)?;
                    lean.sum()?.backward()?;
                    let full = x.cross_entropy_with(&targets.to(DType::I32)?, &options)?;
                    results.extend([lean, x.grad().unwrap()]);
                    full.sum()?.backward()?;
                    results.extend([full, x.grad().unwrap()]);
                    // Scores that nobody else has.
                    let lean = x.mul(0.5)?.cross_entropy_lean(&targets, &options)?;
                    lean.sum()?.backward()?;
                    results.extend([lean, x.grad().unwrap()]);
                }
                let weight = random(&[4])?.square()?;
                let options = options.weight(weight);
                let x = random(&[2, 4, 3, 8])?.requires_grad_(true)?;
                let targets = Tensor::randint(0, 4, [2, 3, 8], device)?;
                let full = x.cross_entropy_with(&targets, &options)?;
                full.sum()?.backward()?;
                results.extend([full, x.grad().unwrap()]);
                let [a, b] = [random(&[30, 7])?, random(&[7, 30])?];
                let a = a.requires_grad_(true)?;
                let square = a.mse_loss(&b.t()?, reduction)?;
                square.sum()?.backward()?;
                results.extend([square, a.grad().unwrap()]);
            }
        }
        Ok(results)
    });

    #[test]
    fn a_gpu_names_a_target_and_its_place() {
        let packed = |target: i64, place: i64| no_class((target << 32) | place, 7);
        assert_eq!(packed(9, 4), "target 9 at element 4 is none of the 7 classes");
        assert_eq!(packed(-1, 70_000), "target -1 at element 70000 is none of the 7 classes");
        assert!(packed(i64::from(i32::MAX), 0).contains("2147483647 or more"));
    }

    #[test]
    fn the_gradient_takes_the_place_of_scores_that_nobody_else_has() -> Result<()> {
        let device = device();
        let bytes = 64 * 1000 * 4;
        for (profile, is_kept, peak) in [
            (MemoryProfile::Bare, false, 2 * bytes),
            (MemoryProfile::Tonnage, false, bytes),
            (MemoryProfile::Tonnage, true, 2 * bytes),
        ] {
            device.set_memory_profile(profile);
            let x = Tensor::randn([64, 1000], (&device, DType::F32))?.requires_grad_(true)?;
            let targets = Tensor::randint(0, 1000, [64], &device)?;
            let expected = {
                let x = x.detach().requires_grad_(true)?;
                x.cross_entropy_lean(&targets, &options())?.backward()?;
                x.grad().unwrap().to_vec::<f32>()?
            };
            let scores = x.add(0.0)?;
            let loss = scores.cross_entropy_lean(&targets, &options())?;
            let kept = is_kept.then_some(scores);
            device.synchronize()?;
            device.memory().reset_peak_stats();
            let before = device.memory().allocated() - bytes;
            loss.backward()?;
            // The scores and their gradient, which becomes that of `x` as it is.
            let most = device.memory().max_allocated() - before;
            assert!((peak..peak + 4096).contains(&most), "{profile} {is_kept}: {most}");
            assert_eq!(x.grad().unwrap().to_vec::<f32>()?, expected);
            if let Some(kept) = kept {
                assert_eq!(kept.to_vec::<f32>()?, x.to_vec::<f32>()?);
            }
        }
        Ok(())
    }

    #[test]
    fn scores_that_are_read_again_stay() -> Result<()> {
        let device = device();
        device.set_memory_profile(MemoryProfile::Tonnage);
        let x = Tensor::randn([8, 100], (&device, DType::F32))?.requires_grad_(true)?;
        let targets = Tensor::randint(0, 100, [8], &device)?;
        let loss = x.add(0.0)?.cross_entropy(&targets)?;
        loss.backward_with(None, BackwardOptions::default().retain_graph(true))?;
        let once = x.grad().unwrap().to_vec::<f32>()?;
        loss.backward()?;
        let twice = x.grad().unwrap().to_vec::<f32>()?;
        assert!(once.iter().zip(&twice).all(|(once, twice)| 2.0 * once == *twice));
        // A view of them; and another operation that saved them.
        let scores = x.add(0.0)?;
        let (view, loss) = (scores.narrow(0, 0, 2)?.detach(), scores.cross_entropy(&targets)?);
        let both = loss.add(&scores.square()?.sum()?)?;
        drop(scores);
        both.backward()?;
        assert_eq!(view.to_vec::<f32>()?, x.to_vec::<f32>()?[..200]);
        Ok(())
    }

    #[test]
    fn the_loss_has_one_type_with_every_profile() -> Result<()> {
        let device = device();
        for dtype in [DType::F32, DType::F64, DType::Bf16, DType::F16] {
            let x = Tensor::zeros([4, 5], (&device, dtype))?;
            let targets = Tensor::zeros([4], (&device, DType::I64))?;
            for profile in MemoryProfile::ALL {
                device.set_memory_profile(profile);
                assert_eq!(x.cross_entropy(&targets)?.dtype(), dtype, "{profile}");
                let wide = crate::amp::autocast(DType::Bf16, || x.cross_entropy(&targets))?.dtype();
                let expected = if dtype == DType::F64 { DType::F64 } else { DType::F32 };
                assert_eq!(wide, expected, "{profile} {dtype}");
            }
        }
        Ok(())
    }

    conformance!(losses, |device| {
        let x = Tensor::ones([20, 30], device)?.requires_grad_(true)?;
        let targets = Tensor::zeros([20], (device, DType::I64))?;
        let loss = x.cross_entropy(&targets)?;
        let lean = x.cross_entropy_lean(&targets, &CrossEntropyOptions::default())?;
        let square = x.mse_loss(&x.detach(), Reduction::Mean)?;
        loss.add(&lean)?.add(&square)?.backward()?;
        Ok(vec![loss, lean, square, x.grad().unwrap()])
    });
}
