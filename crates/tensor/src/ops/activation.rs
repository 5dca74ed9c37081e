//! Activation functions of more than a line: GELU, by the error function and by the hyperbolic tangent.
//! Shorter ones are rows in `unary.rs`.

use crate::autograd::{Backward, Grads, Needs, Saved, record};
use crate::dtype::{Float, Real, dispatch_float};
use crate::error::{Call, Result};
use crate::exec::{Args, Kernel, map1, map2};
use crate::tensor::Tensor;

/// The normal distribution's share below x: exact, or as the tanh of a polynomial.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Erf,
    Tanh,
}

/// √(2/π).
const SLOPE: f64 = std::f64::consts::FRAC_2_SQRT_PI * std::f64::consts::FRAC_1_SQRT_2;
/// The cubic term that Hendrycks and Gimpel fitted.
const CUBIC: f64 = 0.044_715;

/// The error function, which the standard library does not have.
trait Erf: Real {
    fn erf(self) -> Self;
}

impl Erf for f32 {
    #[inline]
    fn erf(self) -> Self {
        libm::erff(self)
    }
}

impl Erf for f64 {
    #[inline]
    fn erf(self) -> Self {
        libm::erf(self)
    }
}

fn gelu<R: Erf>(form: Form, x: R) -> R {
    let half = R::n(0.5);
    match form {
        Form::Erf => half * x * (R::n(1.0) + (x * R::n(std::f64::consts::FRAC_1_SQRT_2)).erf()),
        Form::Tanh => half * x * (R::n(1.0) + inner(x).tanh()),
    }
}

fn inner<R: Real>(x: R) -> R {
    R::n(SLOPE) * (x + R::n(CUBIC) * x * x * x)
}

fn derivative<R: Erf>(form: Form, x: R) -> R {
    let (half, one) = (R::n(0.5), R::n(1.0));
    match form {
        Form::Erf => {
            let below = half * (one + (x * R::n(std::f64::consts::FRAC_1_SQRT_2)).erf());
            // The density: exp(-x²/2) / √(2π).
            below + x * (-half * x * x).exp() * R::n(0.5 * SLOPE)
        }
        Form::Tanh => {
            let tanh = inner(x).tanh();
            let slope = R::n(SLOPE) * (one + R::n(3.0 * CUBIC) * x * x);
            half * (one + tanh) + half * x * (one - tanh * tanh) * slope
        }
    }
}

/// `output = gelu(x)`.
struct Gelu(Form);

impl Kernel for Gelu {
    fn host(&self, args: &mut Args<'_>) -> Result<(), String> {
        let (x, form) = (args.input(0), self.0);
        dispatch_float!(args.output_dtype(0), T => {
            map1::<T, T>(args.take(0), x, |x| T::narrow(gelu(form, x.widen())));
        }, else return Err(format!("{} is no float", args.output_dtype(0))));
        Ok(())
    }
}

/// `output = grad · gelu'(x)`.
struct GeluGrad(Form);

impl Kernel for GeluGrad {
    fn host(&self, args: &mut Args<'_>) -> Result<(), String> {
        let (inputs, form) = ([args.input(0), args.input(1)], self.0);
        dispatch_float!(args.output_dtype(0), T => {
            map2::<T, T, T>(args.take(0), inputs, |grad, x| {
                T::narrow(grad.widen() * derivative(form, x.widen()))
            });
        }, else return Err(format!("{} is no float", args.output_dtype(0))));
        Ok(())
    }
}

struct GeluBackward {
    call: Call,
    form: Form,
    x: Saved,
}

impl Backward for GeluBackward {
    fn backward(&self, grads: &[Option<Tensor>], _: &Needs<'_>) -> Result<Grads> {
        let Some(grad) = &grads[0] else { return Ok(Grads::from_iter([None])) };
        let x = self.x.unpack()?;
        let output = Tensor::uninit(self.call, x.shape().clone(), x.dtype(), x.device())?;
        self.call.launch(GeluGrad(self.form), &[&output], &[grad, &x])?;
        Ok(Grads::from_iter([Some(output)]))
    }
}

#[track_caller]
fn apply(call: Call, form: Form, x: &Tensor) -> Result<Tensor> {
    if !x.dtype().is_float() {
        return Err(call.dtype_error("gelu is defined for floats").with_tensor("self", x));
    }
    let y = Tensor::uninit(call, x.shape().clone(), x.dtype(), x.device())?;
    call.launch(Gelu(form), &[&y], &[x])?;
    record(call, "GeluBackward", &[&y], &[x], || {
        Ok(Box::new(GeluBackward { call, form, x: Saved::input(call, x)? }))
    })?;
    Ok(y)
}

impl Tensor {
    /// `x · Φ(x)`, with the share Φ of the normal distribution that lies below x.
    ///
    /// # Errors
    ///
    /// If it is no float, or if there is no memory.
    #[track_caller]
    pub fn gelu(&self) -> Result<Tensor> {
        apply(Call::here("gelu"), Form::Erf, self)
    }

    /// [`gelu`](Self::gelu) with Φ approximated by a hyperbolic tangent: PyTorch's
    /// `approximate="tanh"`, the form of GPT-2.
    ///
    /// # Errors
    ///
    /// As for [`gelu`](Self::gelu).
    #[track_caller]
    pub fn gelu_tanh(&self) -> Result<Tensor> {
        apply(Call::here("gelu_tanh"), Form::Tanh, self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{conformance, gradcheck};
    use crate::{DType, Device};

    #[test]
    fn both_forms_have_the_known_values() -> Result<()> {
        let device = Device::host("64 MiB").unwrap();
        let x = Tensor::from_slice(&[-3.0, -1.0, 0.0, 0.5, 1.0, 3.0], [6], &device)?;
        // Φ(1) = 0.841344746…, Φ(3) = 0.998650101…, Φ(0.5) = 0.691462461…
        let exact =
            [-0.004_049_694, -0.158_655_254, 0.0, 0.345_731_231, 0.841_344_746, 2.995_950_306];
        let (erf, tanh) = (x.gelu()?.to_vec::<f64>()?, x.gelu_tanh()?.to_vec::<f64>()?);
        for ((erf, tanh), exact) in erf.iter().zip(&tanh).zip(exact) {
            assert!((erf - exact).abs() < 1e-9, "{erf} {exact}");
            assert!((tanh - exact).abs() < 5e-4, "{tanh} {exact}");
        }
        assert!(x.to(DType::I64)?.gelu().is_err());
        Ok(())
    }

    #[test]
    fn gradients_are_right() {
        gradcheck(&[&[4, 5]], |x| x[0].gelu()).unwrap();
        gradcheck(&[&[4, 5]], |x| x[0].gelu_tanh()).unwrap();
    }

    conformance!(gelus, |device| {
        let x = Tensor::ones([20, 30], device)?.requires_grad_(true)?;
        let y = x.gelu()?.gelu_tanh()?;
        y.sum()?.backward()?;
        Ok(vec![y, x.grad().unwrap()])
    });
}
