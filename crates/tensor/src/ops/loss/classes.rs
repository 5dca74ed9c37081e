//! Negative log-likelihood: which class each element belongs to, and its loss.
//!
//! In:  logarithms of probabilities, and a class for each element.
//! Out: the loss, and the way back through it.

use tonnage_device::cuda::Arguments;

use super::{CrossEntropyOptions, Reduction};
use crate::autograd::{Backward, Grads, Needs, Saved, record};
use crate::dtype::{DType, Stored, dispatch_float};
use crate::error::{Call, Result};
use crate::exec::cuda::{self, Launch, Program, stored};
use crate::exec::{Args, Input, Kernel, Operand, Operands, Plan, rows};
use crate::shape::Shape;
use crate::tensor::Tensor;

/// Which class each element belongs to: scores are `[outer, classes, inner]`, targets `[outer, inner]`.
#[derive(Clone, Copy)]
pub(super) struct Classes {
    pub(super) classes: usize,
    pub(super) inner: usize,
    pub(super) ignore_index: i64,
    pub(super) reduction: Reduction,
}

impl Classes {
    /// The targets, each a class or none.
    pub(super) fn targets(&self, targets: Input<'_>) -> Result<Vec<Option<usize>>, String> {
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
    pub(super) fn place(&self, element: usize, class: usize) -> usize {
        let (outer, inner) = (element / self.inner, element % self.inner);
        (outer * self.classes + class) * self.inner + inner
    }

    /// What the gradient of an element's loss is multiplied by to become that of its score.
    pub(super) fn scales(&self, grad: Input<'_>, total: f64) -> impl Fn(usize) -> f64 + use<> {
        let (grad, reduction) = (grad.to_slice::<f64>().into_owned(), self.reduction);
        move |element| match reduction {
            Reduction::None => grad[element],
            Reduction::Sum => grad[0],
            Reduction::Mean => grad[0] / total,
        }
    }
}

pub(super) const TEXT: &str = concat!(
    include_str!("../../exec/cuda/rows.cuh"),
    include_str!("../exponentials.cuh"),
    include_str!("../loss.cu")
);

/// A constant of a program.
pub(super) type Constant<'a> = (&'a str, &'a dyn std::fmt::Display);

/// All threads of a block, which is the only one.
pub(super) fn one_block() -> cuda::Group {
    cuda::Group { pack: 1, group: 1024, threads: 1024, items: 0 }
}

impl Classes {
    pub(super) fn push(&self, arguments: &mut Arguments) {
        arguments.push(self.classes as u64);
        arguments.push(self.inner as u64);
        arguments.push(self.ignore_index);
    }

    pub(super) fn push_rows(&self, arguments: &mut Arguments) {
        arguments.push(self.classes as u64);
        arguments.push(self.ignore_index);
    }

    /// Who takes a row of scores on a GPU, whether rows may begin within a pack, and how many elements after the
    /// beginning of one the first of all lies.
    pub(super) fn packs(&self, operands: &[&Operand]) -> (cuda::Group, u8, u64) {
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

    pub(super) fn launch(
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
pub(super) fn no_class(value: i64, classes: usize) -> String {
    let (target, place) = ((value >> 32) as i32, value as u32);
    let beyond = match target {
        i32::MAX => " or more",
        i32::MIN => " or less",
        _ => "",
    };
    format!("target {target}{beyond} at element {place} is none of the {classes} classes")
}

pub(super) fn weights(args: &Args<'_>, place: Option<usize>) -> impl Fn(usize) -> f64 + use<> {
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
pub(super) fn classes_of(
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

pub(super) fn class_axis(x: &Tensor) -> Option<usize> {
    x.dim().checked_sub(1).map(|last| last.min(1))
}

#[track_caller]
pub(super) fn nll(
    call: Call,
    x: &Tensor,
    targets: &Tensor,
    o: &CrossEntropyOptions,
) -> Result<Tensor> {
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
