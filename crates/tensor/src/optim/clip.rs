//! Clipping: gradients are scaled so that their norm is bounded, without waiting for the norm.

use super::groups::no_float;
use crate::dtype::{DType, Float, Real, dispatch_float};
use crate::error::{Call, ErrorKind, Result};
use crate::exec::{Args, CHUNK, Input, Kernel, Operands, Plan, for_each_piece};
use crate::tensor::Tensor;

/// PyTorch's guard against a norm of zero.
const EPS: f64 = 1e-6;

/// `output[0] = √Σ x²` over all inputs.
struct TotalNorm(usize);

impl Kernel for TotalNorm {
    fn host(&self, args: &mut Args<'_>) -> Result<(), String> {
        let squares: f64 = (0..self.0).map(|place| sum_of_squares(args.input(place))).sum();
        args.take::<f32>(0).slice()[0] = squares.sqrt() as f32;
        Ok(())
    }

    fn cuda(&self, _: Operands<'_>) -> Plan {
        Plan::Unwritten
    }
}

fn sum_of_squares(input: Input<'_>) -> f64 {
    let mut scratch = Vec::new();
    let starts = (0..input.numel()).step_by(CHUNK);
    let pieces = starts.map(|start| {
        let piece = start..input.numel().min(start + CHUNK);
        input.chunk::<f32>(piece, &mut scratch).iter().map(|it| f64::from(*it).powi(2)).sum::<f64>()
    });
    pieces.sum()
}

/// `outputs *= min(1, max / (input + eps))`.
struct ClipBy {
    outputs: usize,
    max: f64,
}

impl Kernel for ClipBy {
    fn host(&self, args: &mut Args<'_>) -> Result<(), String> {
        let norm = f64::from(args.input(0).to_slice::<f32>()[0]);
        let factor = self.max / (norm + EPS);
        // A norm that is no number makes every gradient one, as in PyTorch.
        if factor >= 1.0 {
            return Ok(());
        }
        dispatch_float!(args.output_dtype(0), T => {
            let outputs = (0..self.outputs).map(|place| [args.take::<T>(place)]);
            let by = <<T as Float>::Wide as Real>::n(factor);
            for_each_piece(outputs.collect(), &|_, _, [gradient]| {
                gradient.iter_mut().for_each(|it| *it = T::narrow(it.widen() * by));
            });
        }, else return Err(no_float(args.output_dtype(0))));
        Ok(())
    }

    fn cuda(&self, _: Operands<'_>) -> Plan {
        Plan::Unwritten
    }
}

/// Scales all gradients so that their norm, as one vector, is at most `max`. The norm before is
/// returned; nobody waits for it.
///
/// # Errors
///
/// If `max` is negative or no number, if gradients lie on several devices, or if there is no memory.
#[track_caller]
pub fn clip_grad_norm_(parameters: &[Tensor], max: f64) -> Result<Option<Tensor>> {
    let call = Call::here("clip_grad_norm_");
    if max.is_nan() || max < 0.0 {
        return Err(call.error(ErrorKind::Value, "no norm is this small").with("max", max));
    }
    let gradients: Vec<Tensor> = parameters.iter().filter_map(Tensor::grad).collect();
    let Some(first) = gradients.first() else { return Ok(None) };
    let _off = crate::autograd::no_grad_guard();
    let norm = Tensor::uninit(call, ().into(), DType::F32, first.device())?;
    let inputs: Vec<&Tensor> = gradients.iter().collect();
    call.launch(TotalNorm(inputs.len()), &[&norm], &inputs)?;
    for dtype in DType::ALL {
        let these: Vec<&Tensor> = gradients.iter().filter(|it| it.dtype() == dtype).collect();
        for chunk in these.chunks(64) {
            call.launch(ClipBy { outputs: chunk.len(), max }, chunk, &[&norm])?;
            chunk.iter().for_each(|it| it.storage().written_by(call));
        }
    }
    Ok(Some(norm))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Device;
    use crate::testing::conformance;

    #[test]
    fn gradients_are_scaled_together_and_only_if_they_are_too_long() -> Result<()> {
        let device = Device::host("64 MiB").unwrap();
        let x = Tensor::zeros([1], &device)?.requires_grad_(true)?;
        let y = Tensor::zeros([1], (&device, DType::Bf16))?.requires_grad_(true)?;
        x.set_grad(Some(Tensor::full([1], 3.0, &device)?))?;
        y.set_grad(Some(Tensor::full([1], 4.0, (&device, DType::Bf16))?))?;
        let all = [x.clone(), y.clone(), Tensor::zeros([1], &device)?];
        let grads =
            || -> Result<[f64; 2]> { Ok([x.grad().unwrap().item()?, y.grad().unwrap().item()?]) };
        assert_eq!(clip_grad_norm_(&all, 10.0)?.unwrap().item::<f32>()?, 5.0);
        assert_eq!(grads()?, [3.0, 4.0]);
        assert_eq!(clip_grad_norm_(&all, 2.5)?.unwrap().item::<f32>()?, 5.0);
        let [x, y] = grads()?;
        assert!((x - 1.5).abs() < 1e-5 && (y - 2.0).abs() < 0.01, "{x} {y}");
        assert!(clip_grad_norm_(&all, -1.0).is_err());
        assert!(clip_grad_norm_(&[], 1.0)?.is_none());
        Ok(())
    }

    conformance!(clipping, |device| {
        let x = Tensor::ones([100, 100], device)?.requires_grad_(true)?;
        x.sum()?.backward()?;
        Ok(vec![clip_grad_norm_(&[x], 1.0)?.unwrap()])
    });
}
