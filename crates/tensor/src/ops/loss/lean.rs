//! Cross-entropy that keeps one number for each row.
//!
//! In:  rows of scores, and a class for each.
//! Out: the loss; its gradient takes the place of scores that nobody else has.

use tonnage_device::cuda::{Arguments, Extent};

use super::classes::{Classes, Constant, classes_of, one_block};
use super::{CrossEntropyOptions, Reduction};
use crate::autograd::{Backward, Grads, Needs, Saved, record};
use crate::dtype::{DType, Float, Real, Stored, dispatch_float};
use crate::error::{Call, Result};
use crate::exec::cuda::{self, Launch, stored, wide};
use crate::exec::{Args, Kernel, Operands, Plan, rows};
use crate::live::Role;
use crate::ops::softmax::log_sum;
use crate::tensor::Tensor;
use crate::workspace::MemoryProfile;

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

#[track_caller]
pub(super) fn lean(
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
