//! The mean of squared differences.

use super::{Reduction, first_element};
use crate::amp::raise;
use crate::autograd::{Backward, Grads, Needs, Saved, record};
use crate::dtype::{Float, Stored, dispatch_float};
use crate::error::{Call, Result};
use crate::exec::cuda::{Elementwise, wide};
use crate::exec::{Args, Kernel, Operands, Plan, for_each_chunk, map2};
use crate::ops::reduce::SumRows;
use crate::tensor::Tensor;

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

impl Tensor {
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
