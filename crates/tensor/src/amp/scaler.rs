//! The gradient scaler: gradients of 16-bit values are computed from a loss made larger, so that small
//! ones do not become zero, and made smaller again before the step.
//!
//! In:  losses, and an optimizer whose parameters have collected their gradients.
//! Out: scaled losses; steps, or none where a gradient is no finite number.
//!
//! The scale lives on the device as in PyTorch; only [`GradScaler::step`] waits, to know whether to
//! step.

use crate::autograd::no_grad_guard;
use crate::create::Scalar;
use crate::dtype::{DType, Float, Real, dispatch_float};
use crate::error::{Call, Result};
use crate::exec::cuda::{Elementwise, MultiTensor, wide};
use crate::exec::{Args, Kernel, Operands, Output, Plan, for_each_piece};
use crate::live::Role;
use crate::optim::Optimizer;
use crate::tensor::Tensor;
use std::sync::atomic::{AtomicBool, Ordering};

/// How the scale changes.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct ScalerOptions {
    /// The first scale.
    pub scale: f32,
    /// What it is multiplied with after enough good steps.
    pub growth: f32,
    /// What it is multiplied with after a bad one.
    pub backoff: f32,
    /// How many good steps in a row are enough.
    pub interval: u32,
}

impl Default for ScalerOptions {
    fn default() -> Self {
        Self { scale: 65_536.0, growth: 2.0, backoff: 0.5, interval: 2_000 }
    }
}

impl ScalerOptions {
    /// Another first scale.
    #[must_use]
    pub fn scale(mut self, scale: f32) -> Self {
        self.scale = scale;
        self
    }

    /// Another number of good steps.
    #[must_use]
    pub fn interval(mut self, steps: u32) -> Self {
        self.interval = steps;
        self
    }
}

/// Scales losses, and steps only if all gradients are finite.
///
/// ```
/// use tonnage_tensor::amp::{GradScaler, autocast};
/// use tonnage_tensor::nn::{Linear, Module};
/// use tonnage_tensor::optim::Sgd;
/// use tonnage_tensor::{DType, Device, Tensor};
///
/// let device = Device::host("64 MiB")?;
/// let model = Linear::new(4, 1, &device)?;
/// let mut optimizer = Sgd::new(model.parameters(), Sgd::options(0.1))?;
/// let mut scaler = GradScaler::default();
/// let x = Tensor::randn([8, 4], &device)?;
/// let y = autocast(DType::F16, || model.forward(&x))?;
/// let loss = y.to(DType::F32)?.square()?.mean()?;
/// scaler.scale(&loss)?.backward()?;
/// if !scaler.step(&mut optimizer)? {
///     println!("a gradient is not finite: no step, and a smaller scale from now on");
/// }
/// scaler.update()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Default)]
pub struct GradScaler {
    options: ScalerOptions,
    /// Made when the first loss says on which device.
    books: Option<Books>,
}

#[derive(Debug)]
struct Books {
    scale: Tensor,
    /// Good steps in a row.
    good: Tensor,
    /// Set when gradients are unscaled: 1 if one of them was not finite.
    found: Option<Tensor>,
}

impl GradScaler {
    /// With these options.
    #[must_use]
    pub fn new(options: ScalerOptions) -> Self {
        Self { options, books: None }
    }

    /// The loss times the scale: go back from this.
    ///
    /// # Errors
    ///
    /// If there is no memory.
    #[track_caller]
    pub fn scale(&mut self, loss: &Tensor) -> Result<Tensor> {
        let call = Call::here("scale");
        let books = match &self.books {
            Some(books) => books,
            None => {
                let number = |value, dtype| {
                    let tensor = Tensor::filled(call, ().into(), value, dtype, loss.device())?;
                    tensor.set_role(Role::Optimizer);
                    Ok::<_, crate::error::Error>(tensor)
                };
                let scale = number(Scalar::Float(self.options.scale.into()), DType::F32)?;
                let good = number(Scalar::Integer(0), DType::I32)?;
                self.books.insert(Books { scale, good, found: None })
            }
        };
        loss.mul(&books.scale)
    }

    /// Divides the gradients by the scale, for instance to clip them before [`step`](Self::step).
    /// Once before each step: a second call does nothing.
    ///
    /// # Errors
    ///
    /// If no loss was scaled before, or if there is no memory.
    #[track_caller]
    pub fn unscale(&mut self, optimizer: &(impl Optimizer + ?Sized)) -> Result<()> {
        let call = Call::here("unscale");
        let Some(books) = &mut self.books else {
            let error = call.error(crate::error::ErrorKind::Value, "no loss was scaled yet");
            return Err(error.help("go back from scaler.scale(&loss)"));
        };
        if books.found.is_some() {
            return Ok(());
        }
        let _off = no_grad_guard();
        let zero = Scalar::Integer(0);
        let found = Tensor::filled(call, ().into(), zero, DType::F32, books.scale.device())?;
        let gradients: Vec<Tensor> =
            optimizer.parameters().iter().filter_map(Tensor::grad).collect();
        for dtype in DType::ALL {
            let these: Vec<&Tensor> = gradients.iter().filter(|it| it.dtype() == dtype).collect();
            for chunk in these.chunks(64) {
                let outputs: Vec<&Tensor> =
                    [&found].into_iter().chain(chunk.iter().copied()).collect();
                call.launch(Unscale(chunk.len()), &outputs, &[&books.scale])?;
                chunk.iter().for_each(|it| it.storage().written_by(call));
            }
        }
        books.found = Some(found);
        Ok(())
    }

    /// Unscales the gradients, if that was not done yet, and steps if all are finite: whether it did.
    /// Waits for the gradients. On `dry`, where there are none to look at, it steps.
    ///
    /// # Errors
    ///
    /// Those of the optimizer, and if no loss was scaled before.
    #[track_caller]
    pub fn step(&mut self, optimizer: &mut (impl Optimizer + ?Sized)) -> Result<bool> {
        self.unscale(optimizer)?;
        let found = self.books.as_ref().and_then(|books| books.found.as_ref());
        let finite = match found {
            Some(found) => found.item::<f32>()? == 0.0,
            None => true,
        };
        if finite {
            optimizer.step()?;
        }
        Ok(finite)
    }

    /// After the step: a smaller scale if a gradient was not finite, a larger one after enough good
    /// steps.
    ///
    /// # Errors
    ///
    /// If the device fails.
    #[track_caller]
    pub fn update(&mut self) -> Result<()> {
        let call = Call::here("update");
        let Some(books) = &mut self.books else { return Ok(()) };
        let Some(found) = books.found.take() else { return Ok(()) };
        call.launch(Update(self.options), &[&books.scale, &books.good], &[&found])?;
        books.scale.storage().written_by(call);
        Ok(())
    }

    /// The scale. Waits for it.
    ///
    /// # Errors
    ///
    /// If queued work failed.
    #[track_caller]
    pub fn get_scale(&self) -> Result<f32> {
        match &self.books {
            Some(books) => books.scale.item(),
            None => Ok(self.options.scale),
        }
    }
}

/// Outputs: the flag, then gradients, divided by the scale that comes in.
struct Unscale(usize);

impl Kernel for Unscale {
    fn host(&self, args: &mut Args<'_>) -> Result<(), String> {
        let scale = f64::from(args.input(0).to_slice::<f32>()[0]);
        let found = args.take::<f32>(0);
        let dtype = args.output_dtype(1);
        let bad = dispatch_float!(dtype, T => {
            let outputs = (0..self.0).map(|place| [args.take::<T>(1 + place)]);
            unscale::<T>(outputs.collect(), scale)
        }, else return Err(format!("a gradient is {dtype}, not a float")));
        if bad {
            found.slice()[0] = 1.0;
        }
        Ok(())
    }

    fn cuda(&self, on: Operands<'_>) -> Plan {
        let [found, gradients @ ..] = on.outputs else { return Plan::nothing() };
        let Some(first) = gradients.first() else { return Plan::nothing() };
        let line = "is_bad |= !isfinite(y0); y0 = y0 * by;";
        let kernel = MultiTensor::new("unscale", wide(first.dtype), line).around(
            "const C by = (C)(1.0 / (double)*h1); bool is_bad = false;",
            "if (is_bad) *h0 = 1.0f;",
        );
        let tensors: Vec<_> = gradients.iter().map(|it| [it]).collect();
        kernel.launches(&tensors, 1, &[found, &on.inputs[0]]).into()
    }
}

fn unscale<T: Float>(gradients: Vec<[Output<'_, T>; 1]>, scale: f64) -> bool {
    let bad = AtomicBool::new(false);
    let by = <T::Wide as Real>::n(1.0 / scale);
    for_each_piece(gradients, &|_, _, [gradient]| {
        let finite = gradient.iter().all(|it| it.to_f64().is_finite());
        if !finite {
            bad.store(true, Ordering::Relaxed);
        }
        gradient.iter_mut().for_each(|it| *it = T::narrow(it.widen() * by));
    });
    bad.into_inner()
}

/// Outputs: scale and good steps in a row; input: whether this one was bad.
struct Update(ScalerOptions);

impl Kernel for Update {
    fn host(&self, args: &mut Args<'_>) -> Result<(), String> {
        let bad = args.input(0).to_slice::<f32>()[0] != 0.0;
        let scale = &mut args.take::<f32>(0).slice()[0];
        let good = &mut args.take::<i32>(1).slice()[0];
        if bad {
            *scale *= self.0.backoff;
            *good = 0;
            return Ok(());
        }
        *good = good.saturating_add(1);
        if i64::from(*good) >= i64::from(self.0.interval) {
            let grown = *scale * self.0.growth;
            // PyTorch too keeps the scale finite.
            if grown.is_finite() {
                *scale = grown;
            }
            *good = 0;
        }
        Ok(())
    }

    fn cuda(&self, on: Operands<'_>) -> Plan {
        // Products of two floats are exact here, and rounded once.
        let line = "
            if (x0 != 0) { y0 = y0 * s0; y1 = 0; }
            else {
              y1 = y1 < 2147483647.0 ? y1 + 1 : y1;
              if (y1 >= s2) { float grown = (float)(y0 * s1); if (isfinite(grown)) y0 = grown; y1 = 0; }
            }";
        let ScalerOptions { growth, backoff, interval, .. } = self.0;
        let numbers = [backoff.into(), growth.into(), interval.into()];
        Elementwise::new("update_scale", "double", line).numbers(&numbers).updates().plan(on)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Device;
    use crate::optim::Sgd;
    use crate::testing::conformance;

    #[test]
    fn an_overflow_skips_the_step_and_halves_the_scale() -> Result<()> {
        let device = Device::host("64 MiB").unwrap();
        let x = Tensor::ones([3], &device)?.requires_grad_(true)?;
        let mut sgd = Sgd::new(vec![x.clone()], Sgd::options(0.5))?;
        let mut scaler = GradScaler::new(ScalerOptions::default().scale(8.0).interval(2));
        assert!(scaler.step(&mut sgd).is_err(), "no loss yet");
        let mut step = |factor: f64| -> Result<(bool, f32)> {
            sgd.zero_grad(true)?;
            scaler.scale(&x.mul(factor)?.sum()?)?.backward()?;
            scaler.unscale(&sgd)?;
            let stepped = scaler.step(&mut sgd)?;
            scaler.update()?;
            Ok((stepped, scaler.get_scale()?))
        };
        assert_eq!(step(1.0)?, (true, 8.0));
        assert_eq!(x.to_vec::<f32>()?, [0.5; 3], "the gradient is 1, unscaled once");
        assert_eq!(step(f64::from(f32::MAX))?, (false, 4.0), "8 · MAX is no number");
        assert_eq!(x.to_vec::<f32>()?, [0.5; 3]);
        assert_eq!(step(1.0)?, (true, 4.0));
        assert_eq!(step(1.0)?, (true, 8.0), "two good steps");
        Ok(())
    }

    conformance!(scaling, |device| {
        let x = Tensor::ones([300], device)?.requires_grad_(true)?;
        let mut sgd = Sgd::new(vec![x.clone()], Sgd::options(0.5).momentum(0.9))?;
        let mut scaler = GradScaler::default();
        for _ in 0..2 {
            scaler.scale(&x.sum()?)?.backward()?;
            scaler.step(&mut sgd)?;
            scaler.update()?;
        }
        Ok(vec![x])
    });

    conformance!(gradients_that_do_not_lie_in_order_are_unscaled, |device| {
        let mut all = Vec::new();
        for dtype in [DType::F32, DType::F16] {
            let x = Tensor::zeros([30, 50], (device, dtype))?.requires_grad_(true)?;
            x.set_grad(Some(Tensor::randn([50, 30], (device, dtype))?.transpose(0, 1)?))?;
            all.push(x);
        }
        let mut sgd = Sgd::new(all.clone(), Sgd::options(0.5))?;
        let mut scaler = GradScaler::default();
        scaler.scale(&all[0].detach().sum()?)?;
        scaler.step(&mut sgd)?;
        Ok(all)
    });
}
