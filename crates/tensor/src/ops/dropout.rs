//! Dropout: some numbers become zero, the others larger, so that the mean stays.
//!
//! As PyTorch's fused kernel it allocates the mask first, one byte for each element, and keeps it for
//! the backward; numbers are not kept. Which elements stay depends on the generator's state and their
//! index alone, so that recomputation drops the same.

use crate::autograd::{Backward, Grads, Needs, Saved, record};
use crate::dtype::{DType, Float, Stored, dispatch_float};
use crate::error::{Call, ErrorKind, Result};
use crate::exec::cuda::{Elementwise, wide};
use crate::exec::{Args, Kernel, Operands, Plan, for_each_chunk, map2};
use crate::random::{Draw, GeneratorState, unit_f32};
use crate::tensor::Tensor;

/// Writes one where an element stays, zero where it goes.
struct Keep {
    draw: GeneratorState,
    share: f64,
}

impl Kernel for Keep {
    fn host(&self, args: &mut Args<'_>) -> Result<(), String> {
        let draw = self.draw.found(args);
        // Pieces begin at multiples of four: the numbers of one draw.
        for_each_chunk::<u8>(args.take(0), &|indices, chunk| {
            for (group, places) in chunk.chunks_mut(4).enumerate() {
                let bits = draw.four(indices.start / 4 + group);
                let stays = bits.map(|bits| u8::from(f64::from(unit_f32(bits)) < self.share));
                places.copy_from_slice(&stays[..places.len()]);
            }
        });
        Ok(())
    }

    fn cuda(&self, on: Operands<'_>) -> Plan {
        // Of the 24 bits of a number, those below this are below the share; the product is exact.
        let below = (self.share * f64::from(1u32 << 24)).ceil() as i64;
        crate::random::keep(self.draw, below, on)
    }
}

/// `output = x · mask · scale`: forward and backward alike.
struct Masked {
    scale: f64,
}

impl Kernel for Masked {
    fn host(&self, args: &mut Args<'_>) -> Result<(), String> {
        let inputs = [args.input(0), args.input(1)];
        dispatch_float!(args.output_dtype(0), T => {
            let scale = <T as Float>::Wide::from_f64(self.scale);
            map2::<T, u8, T>(args.take(0), inputs, |x, stays| {
                if stays == 0 { T::default() } else { T::narrow(x.widen() * scale) }
            });
        }, else return Err(format!("{} is no float", args.output_dtype(0))));
        Ok(())
    }

    fn cuda(&self, on: Operands<'_>) -> Plan {
        let compute = wide(on.outputs[0].dtype);
        let kernel = Elementwise::new("masked", compute, "y0 = x1 ? x0 * (C)s0 : C(0);");
        kernel.inputs(&[compute, "bool"]).numbers(&[self.scale]).plan(on)
    }
}

struct DropoutBackward {
    call: Call,
    mask: Saved,
    scale: f64,
}

impl Backward for DropoutBackward {
    fn backward(&self, grads: &[Option<Tensor>], _: &Needs<'_>) -> Result<Grads> {
        let Some(grad) = &grads[0] else { return Ok(Grads::from_iter([None])) };
        let mask = self.mask.unpack()?;
        masked(self.call, grad, &mask, self.scale).map(|it| Grads::from_iter([Some(it)]))
    }
}

#[track_caller]
fn masked(call: Call, x: &Tensor, mask: &Tensor, scale: f64) -> Result<Tensor> {
    let output = Tensor::uninit(call, x.shape().clone(), x.dtype(), x.device())?;
    call.launch(Masked { scale }, &[&output], &[x, mask])?;
    Ok(output)
}

impl Tensor {
    /// Each element becomes zero with probability `p`, and otherwise larger by `1 / (1 - p)`. While
    /// not training, itself.
    ///
    /// ```
    /// # use tonnage_tensor::{Device, Tensor};
    /// # let device = Device::host("64 MiB")?;
    /// let y = Tensor::ones([1000], &device)?.dropout(0.5, true)?.to_vec::<f32>()?;
    /// assert!(y.iter().all(|it| [0.0, 2.0].contains(it)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If `p` is no probability, if it is no float, or if there is no memory.
    #[track_caller]
    pub fn dropout(&self, p: f64, training: bool) -> Result<Tensor> {
        let call = Call::here("dropout");
        if !(0.0..=1.0).contains(&p) {
            let error = call.error(ErrorKind::Value, format!("{p} is no probability"));
            return Err(error.help("p lies from 0 to 1"));
        }
        if !self.dtype().is_float() {
            return Err(call
                .dtype_error("dropout is defined for floats")
                .with_tensor("self", self));
        }
        if p == 0.0 || !training || self.numel() == 0 {
            return Ok(self.clone());
        }
        if p == 1.0 {
            return self.mul(0.0);
        }
        let mask = Tensor::uninit(call, self.shape().clone(), DType::Bool, self.device())?;
        let draw = Draw::new(call, self.device())?;
        call.launch(Keep { draw: draw.state, share: 1.0 - p }, &[&mask], &draw.inputs())?;
        let scale = 1.0 / (1.0 - p);
        let output = masked(call, self, &mask, scale)?;
        record(call, "NativeDropoutBackward", &[&output], &[self], || {
            Ok(Box::new(DropoutBackward { call, mask: Saved::output(call, &mask)?, scale }))
        })?;
        Ok(output)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Device;
    use crate::testing::{conformance, gradcheck};

    #[test]
    fn the_share_that_stays_and_the_mean_are_right() -> Result<()> {
        let device = Device::host("256 MiB").unwrap();
        let x = Tensor::ones([1000, 100], &device)?;
        let y = x.dropout(0.2, true)?.to_vec::<f32>()?;
        let stays = y.iter().filter(|it| **it != 0.0).count();
        assert!((79_000..81_000).contains(&stays), "{stays}");
        assert!(y.iter().all(|it| *it == 0.0 || *it == 1.25));
        assert!(x.dropout(0.0, true)?.is(&x) && x.dropout(0.5, false)?.is(&x));
        assert_eq!(x.dropout(1.0, true)?.sum()?.item::<f32>()?, 0.0);
        assert!(x.dropout(1.5, true).is_err() && x.dropout(f64::NAN, true).is_err());
        Ok(())
    }

    #[test]
    fn the_same_state_drops_the_same_and_the_next_call_others() -> Result<()> {
        let device = Device::host("256 MiB").unwrap();
        let x = Tensor::ones([99, 101], &device)?;
        let state = device.generator().state();
        let first = x.dropout(0.5, true)?.to_vec::<f32>()?;
        let second = x.dropout(0.5, true)?.to_vec::<f32>()?;
        device.generator().set_state(state);
        assert_eq!(x.dropout(0.5, true)?.to_vec::<f32>()?, first);
        assert_ne!(first, second);
        Ok(())
    }

    #[test]
    fn what_is_kept_is_one_byte_for_each_element() -> Result<()> {
        let device = Device::dry("1 GiB").unwrap();
        let x = Tensor::ones([1024, 1024], &device)?.requires_grad_(true)?;
        let before = device.memory().allocated();
        let y = x.dropout(0.1, true)?;
        assert_eq!(device.memory().allocated() - before, 5 << 20);
        drop(y.sum()?);
        Ok(())
    }

    #[test]
    fn gradients_are_right() {
        gradcheck(&[&[5, 8]], |x| {
            x[0].device().generator().manual_seed(7);
            x[0].dropout(0.3, true)
        })
        .unwrap();
    }

    conformance!(dropped, |device| {
        let x = Tensor::ones([20, 30], device)?.requires_grad_(true)?;
        let y = x.dropout(0.1, true)?;
        y.sum()?.backward()?;
        Ok(vec![y, x.grad().unwrap()])
    });

    conformance!(dropped_of_every_type, |device| {
        let mut results = Vec::new();
        for dtype in [DType::F32, DType::F64, DType::Bf16, DType::F16] {
            let x = Tensor::randn([33, 67], (device, dtype))?;
            results.extend([x.dropout(0.3, true)?, x.t()?.dropout(0.9, true)?]);
        }
        Ok(results)
    });
}
