//! Functions of one element: a table of forward and derivative, one kernel for all.

use crate::amp::raise;
use crate::autograd::{Backward, Grads, Needs, Saved, record, record_in_place};
use crate::dtype::{DType, Float, Real, dispatch, dispatch_float};
use crate::error::{Call, Result};
use crate::exec::{Args, Kernel, map1, map2, update1};
use crate::tensor::Tensor;

/// What a derivative is computed from. PyTorch keeps the same, which decides what stays alive.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Needed {
    Input,
    Output,
}

/// Defines the functions: for each a name, its graph name, what the derivative is computed from, the
/// function of `x`, and the derivative of `v`, which is the input or the output.
macro_rules! functions {
    ($(
        $(#[$doc:meta])*
        $variant:ident, $name:ident $(/ $in_place:ident)?, $node:literal, $needed:ident,
        |$x:ident| $forward:expr, |$v:ident| $derivative:expr;
    )*) => {
        /// Which function.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Function {
            $($variant,)*
        }

        impl Function {
            fn node(self) -> &'static str {
                match self { $(Self::$variant => $node,)* }
            }

            fn needed(self) -> Needed {
                match self { $(Self::$variant => Needed::$needed,)* }
            }

            #[inline(always)]
            fn forward<R: Real>(self, x: R) -> R {
                match self { $(Self::$variant => { let $x = x; $forward })* }
            }

            #[inline(always)]
            fn derivative<R: Real>(self, v: R) -> R {
                match self { $(Self::$variant => { let $v = v; $derivative })* }
            }
        }

        /// Runs `$code` once for each function, each time as a constant, so that loops have no branches.
        macro_rules! each_function {
            ($function:expr, $f:ident => $code:expr) => {
                match $function {
                    $(Function::$variant => { const $f: Function = Function::$variant; $code })*
                }
            };
        }

        impl Tensor {
            $(
                $(#[$doc])*
                ///
                /// # Errors
                ///
                /// If there is no memory for the result. Integers become floats.
                #[track_caller]
                pub fn $name(&self) -> Result<Tensor> {
                    unary(Call::here(stringify!($name)), Function::$variant, self)
                }

                $(
                    /// The same in place.
                    ///
                    /// # Errors
                    ///
                    /// If it is no float, or if the graph does not allow it.
                    #[track_caller]
                    pub fn $in_place(&self) -> Result<()> {
                        unary_in_place(Call::here(stringify!($in_place)), Function::$variant, self)
                    }
                )?
            )*
        }
    };
}

functions! {
    /// The sine.
    Sin, sin / sin_, "SinBackward", Input, |x| x.sin(), |x| x.cos();
    /// The cosine.
    Cos, cos / cos_, "CosBackward", Input, |x| x.cos(), |x| -x.sin();
    /// The exponential.
    Exp, exp / exp_, "ExpBackward", Output, |x| x.exp(), |y| y;
    /// The natural logarithm.
    Log, log / log_, "LogBackward", Input, |x| x.ln(), |x| R::n(1.0) / x;
    /// The square root.
    Sqrt, sqrt / sqrt_, "SqrtBackward", Output,
        |x| x.sqrt(), |y| R::n(0.5) / y;
    /// The hyperbolic tangent.
    Tanh, tanh / tanh_, "TanhBackward", Output,
        |x| x.tanh(), |y| R::n(1.0) - y * y;
    /// `1 / (1 + exp(-x))`.
    Sigmoid, sigmoid / sigmoid_, "SigmoidBackward", Output,
        |x| R::n(1.0) / (R::n(1.0) + (-x).exp()), |y| y * (R::n(1.0) - y);
    /// The larger of the number and zero.
    Relu, relu / relu_, "ReluBackward", Output,
        |x| if x <= R::n(0.0) { R::n(0.0) } else { x },
        |y| if y <= R::n(0.0) { R::n(0.0) } else { R::n(1.0) };
    /// `x · sigmoid(x)`.
    Silu, silu / silu_, "SiluBackward", Input,
        |x| x / (R::n(1.0) + (-x).exp()),
        |x| {
            let s = R::n(1.0) / (R::n(1.0) + (-x).exp());
            s * (R::n(1.0) + x * (R::n(1.0) - s))
        };
    /// The square.
    Square, square / square_, "PowBackward", Input,
        |x| x * x, |x| R::n(2.0) * x;
    /// The number without its sign.
    Abs, abs / abs_, "AbsBackward", Input, |x| x.abs(), |x| {
        if x > R::n(0.0) { R::n(1.0) } else if x < R::n(0.0) { R::n(-1.0) } else { R::n(0.0) }
    };
}

impl Function {
    /// Whether autocast computes it in `f32`.
    fn needs_digits(self) -> bool {
        matches!(self, Self::Exp | Self::Log)
    }
}

/// `output = f(x)`.
pub(crate) struct Unary(pub(crate) Function);

impl Kernel for Unary {
    fn host(&self, args: &mut Args<'_>) -> Result<(), String> {
        let x = args.input(0);
        dispatch_float!(args.output_dtype(0), T => each_function!(self.0, F => {
            map1::<T, T>(args.take(0), x, |x| T::narrow(F.forward(x.widen())));
        }), else return Err(no_float(args)));
        Ok(())
    }
}

/// `output = f(output)`.
struct UnaryInPlace(Function);

impl Kernel for UnaryInPlace {
    fn host(&self, args: &mut Args<'_>) -> Result<(), String> {
        dispatch_float!(args.output_dtype(0), T => each_function!(self.0, F => {
            update1::<T>(args.take(0), |x| T::narrow(F.forward(x.widen())));
        }), else return Err(no_float(args)));
        Ok(())
    }
}

/// `output = grad · f'(v)`.
pub(crate) struct UnaryGrad(pub(crate) Function);

impl Kernel for UnaryGrad {
    fn host(&self, args: &mut Args<'_>) -> Result<(), String> {
        let inputs = [args.input(0), args.input(1)];
        dispatch_float!(args.output_dtype(0), T => each_function!(self.0, F => {
            map2::<T, T, T>(args.take(0), inputs, |grad, v| {
                T::narrow(grad.widen() * F.derivative(v.widen()))
            });
        }), else return Err(no_float(args)));
        Ok(())
    }
}

fn no_float(args: &Args<'_>) -> String {
    format!("{} is no float", args.output_dtype(0))
}

struct UnaryBackward {
    call: Call,
    function: Function,
    saved: Saved,
}

impl Backward for UnaryBackward {
    fn backward(&self, grads: &[Option<Tensor>], _: &Needs<'_>) -> Result<Grads> {
        let Some(grad) = &grads[0] else { return Ok(Grads::from_iter([None])) };
        let value = self.saved.unpack()?;
        let shape = grad.shape().clone();
        let output = Tensor::uninit(self.call, shape, grad.dtype(), grad.device())?;
        self.call.launch(UnaryGrad(self.function), &[&output], &[grad, &value])?;
        Ok(Grads::from_iter([Some(output)]))
    }
}

#[track_caller]
fn unary(call: Call, function: Function, x: &Tensor) -> Result<Tensor> {
    let x = &if function.needs_digits() { raise(x)? } else { x.clone() };
    let dtype = float_of(call, x)?;
    let y = Tensor::uninit(call, x.shape().clone(), dtype, x.device())?;
    call.launch(Unary(function), &[&y], &[x])?;
    record(call, function.node(), &[&y], &[x], || {
        let saved = match function.needed() {
            Needed::Input => Saved::input(call, x)?,
            Needed::Output => Saved::output(call, &y)?,
        };
        Ok(Box::new(UnaryBackward { call, function, saved }))
    })?;
    Ok(y)
}

#[track_caller]
fn unary_in_place(call: Call, function: Function, x: &Tensor) -> Result<()> {
    x.check_in_place(call, &[x])?;
    if !x.dtype().is_float() {
        return Err(call.dtype_error("the result is a float").with_tensor("self", x));
    }
    let input = match function.needed() {
        Needed::Input if crate::autograd::records(&[x]) => Some(x.copied(call)?),
        _ => None,
    };
    call.launch(UnaryInPlace(function), &[x], &[])?;
    record_in_place(call, function.node(), x, &[x], || {
        let saved = match &input {
            Some(input) => Saved::input(call, input)?,
            None => Saved::output(call, x)?,
        };
        Ok(Box::new(UnaryBackward { call, function, saved }))
    })
}

fn float_of(call: Call, x: &Tensor) -> Result<DType> {
    if x.dtype() == DType::Complex64 {
        let error = call.dtype_error("not defined for complex numbers");
        return Err(error.with_tensor("self", x));
    }
    Ok(x.dtype().with_float())
}

/// `output = -x`, of any type.
struct Neg;

impl Kernel for Neg {
    fn host(&self, args: &mut Args<'_>) -> Result<(), String> {
        use crate::dtype::Number;
        let x = args.input(0);
        dispatch!(args.output_dtype(0), T => {
            let zero = T::default();
            map1::<T, T>(args.take(0), x, |x| T::down(zero.up() - x.up()));
        });
        Ok(())
    }
}

struct NegBackward;

impl Backward for NegBackward {
    fn backward(&self, grads: &[Option<Tensor>], _: &Needs<'_>) -> Result<Grads> {
        grads.iter().map(|grad| grad.as_ref().map(Tensor::neg).transpose()).collect()
    }
}

impl Tensor {
    /// The number with the other sign.
    ///
    /// # Errors
    ///
    /// If there is no memory for the result.
    #[track_caller]
    pub fn neg(&self) -> Result<Tensor> {
        let call = Call::here("neg");
        if self.dtype() == DType::Bool {
            return Err(call.dtype_error("truths have no sign").with_tensor("self", self));
        }
        let output = Tensor::uninit(call, self.shape().clone(), self.dtype(), self.device())?;
        call.launch(Neg, &[&output], &[self])?;
        record(call, "NegBackward", &[&output], &[self], || Ok(Box::new(NegBackward)))?;
        Ok(output)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Device;
    use crate::testing::{conformance, gradcheck};

    type Method = fn(&Tensor) -> Result<Tensor>;

    const ALL: [Method; 11] = [
        Tensor::sin,
        Tensor::cos,
        Tensor::exp,
        Tensor::tanh,
        Tensor::sigmoid,
        Tensor::relu,
        Tensor::silu,
        Tensor::square,
        Tensor::abs,
        Tensor::neg,
        |x| x.square()?.add(0.5)?.log()?.square()?.add(0.1)?.sqrt(),
    ];

    #[test]
    fn gradients_are_right() {
        for (place, f) in ALL.iter().enumerate() {
            gradcheck(&[&[2, 5]], |x| f(&x[0])).unwrap_or_else(|error| panic!("{place}: {error}"));
        }
    }

    #[test]
    fn gradients_in_place_are_right() {
        type InPlace = fn(&Tensor) -> Result<()>;
        let all: [InPlace; 6] = [
            Tensor::sin_,
            Tensor::exp_,
            Tensor::tanh_,
            Tensor::sigmoid_,
            Tensor::relu_,
            Tensor::silu_,
        ];
        for f in all {
            gradcheck(&[&[2, 5]], |x| {
                let y = x[0].mul(1.5)?;
                f(&y)?;
                Ok(y)
            })
            .unwrap();
        }
    }

    #[test]
    fn values_are_those_of_the_standard_library_for_any_layout_and_type() -> Result<()> {
        let device = Device::host("256 MiB").unwrap();
        let x = Tensor::randn([300, 70], &device)?;
        let expected: Vec<f32> = x.t()?.to_vec::<f32>()?.iter().map(|x| x.sin()).collect();
        assert_eq!(x.t()?.sin()?.to_vec::<f32>()?, expected);
        let integers = Tensor::arange(0, 3, 1, &device)?;
        assert_eq!(integers.square()?.to_vec::<f32>()?, [0.0, 1.0, 4.0]);
        let half = x.to(DType::Bf16)?;
        let rounded = half.to(DType::F32)?.exp()?.to(DType::Bf16)?;
        assert_eq!(half.exp()?.to_vec::<crate::Bf16>()?, rounded.to_vec::<crate::Bf16>()?);
        assert!(Tensor::from_slice(&[f32::NAN], [1], &device)?.relu()?.item::<f32>()?.is_nan());
        Ok(())
    }

    conformance!(functions, |device| {
        let x = Tensor::rand([30, 40], device)?.requires_grad_(true)?;
        let y = x.sin()?.relu()?.exp()?.add(1.0)?;
        y.tanh_()?;
        y.sum()?.backward()?;
        Ok(vec![y, x.grad().unwrap()])
    });
}
