//! Functions of one element: a table of forward and derivative, one kernel for all.

use crate::amp::raise;
use crate::autograd::{Backward, Grads, Needs, Saved, record, record_in_place};
use crate::dtype::{DType, Float, Real, dispatch, dispatch_float};
use crate::error::{Call, Result};
use crate::exec::cuda::{Elementwise, wide};
use crate::exec::{Args, Kernel, Operands, Plan, for_each_chunk, map1, vectorised};
use crate::tensor::Tensor;

/// What a derivative is computed from. PyTorch keeps the same, which decides what stays alive.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Needed {
    Input,
    Output,
    Nothing,
}

/// Defines the functions: for each a name, its graph name, what the derivative is computed from, and the
/// function of `x`.
///
/// Those with a kernel for the way back have the derivative of `v`, which is the input or the output.
/// The others go back in steps, each of which is an operation: as PyTorch does, since steps have
/// temporary results, and these decide about peaks.
macro_rules! functions {
    (
        kernels: {$(
            $(#[$doc:meta])*
            $variant:ident, $name:ident / $in_place:ident, $node:literal, $needed:ident,
            |$x:ident| $forward:expr, |$v:ident| $derivative:expr,
            cuda: $cuda:literal, $cuda_derivative:literal;
        )*}
        steps: {$(
            $(#[$s_doc:meta])*
            $s_variant:ident, $s_name:ident / $s_in_place:ident, $s_node:literal, $s_needed:ident,
            |$s_x:ident| $s_forward:expr, |$s_grad:ident, $s_v:ident| $s_steps:expr,
            cuda: $s_cuda:literal;
        )*}
    ) => {
        /// Which function.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Function {
            $($variant,)*
            $($s_variant,)*
        }

        impl Function {
            fn node(self) -> &'static str {
                match self {
                    $(Self::$variant => $node,)*
                    $(Self::$s_variant => $s_node,)*
                }
            }

            fn needed(self) -> Needed {
                match self {
                    $(Self::$variant => Needed::$needed,)*
                    $(Self::$s_variant => Needed::$s_needed,)*
                }
            }

            /// `y = f(x)`.
            fn forward<R: Real>(self, x: &[R], y: &mut [R]) {
                match self {
                    $(Self::$variant => map(x, y, #[inline(always)] |$x| $forward),)*
                    $(Self::$s_variant => map(x, y, #[inline(always)] |$s_x| $s_forward),)*
                }
            }

            /// `to = grad · f'(v)`, if there is a kernel for it.
            fn backward<R: Real>(self, grad: &[R], v: &[R], to: &mut [R]) -> Result<(), String> {
                match self {
                    $(Self::$variant => {
                        map_grad(grad, v, to, #[inline(always)] |$v| $derivative);
                        Ok(())
                    })*
                    _ => Err(format!("{self:?} goes back in steps")),
                }
            }

            /// `f(x)` and `f'(v)` in CUDA C++, of the type `C`; no derivative for those that go back in steps.
            const fn cuda(self) -> (&'static str, &'static str) {
                match self {
                    $(Self::$variant => ($cuda, $cuda_derivative),)*
                    $(Self::$s_variant => ($s_cuda, ""),)*
                }
            }

            /// Its name.
            const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => stringify!($name),)*
                    $(Self::$s_variant => stringify!($s_name),)*
                }
            }

            /// The gradient in steps, if there is no kernel for it.
            fn steps(self, grad: &Tensor, v: &Tensor) -> Option<Result<Tensor>> {
                match self {
                    $(Self::$s_variant => {
                        let steps = |$s_grad: &Tensor, $s_v: &Tensor| -> Result<Tensor> { $s_steps };
                        Some(steps(grad, v))
                    })*
                    _ => None,
                }
            }
        }

        impl Tensor {
            $(methods!($(#[$doc])* $variant, $name, $in_place);)*
            $(methods!($(#[$s_doc])* $s_variant, $s_name, $s_in_place);)*
        }
    };
}

/// The public methods of one function.
macro_rules! methods {
    ($(#[$doc:meta])* $variant:ident, $name:ident, $in_place:ident) => {
        $(#[$doc])*
        ///
        /// # Errors
        ///
        /// If there is no memory for the result. Integers become floats.
        #[track_caller]
        pub fn $name(&self) -> Result<Tensor> {
            unary(Call::here(stringify!($name)), Function::$variant, self)
        }

        /// The same in place.
        ///
        /// # Errors
        ///
        /// If it is no float, or if the graph does not allow it.
        #[track_caller]
        pub fn $in_place(&self) -> Result<()> {
            unary_in_place(Call::here(stringify!($in_place)), Function::$variant, self)
        }
    };
}

/// One loop for each function, in vectors where it has no calls.
#[inline(always)]
fn map<R: Real>(x: &[R], y: &mut [R], f: impl Fn(R) -> R) {
    vectorised(
        #[inline(always)]
        || y.iter_mut().zip(x).for_each(|(y, x)| *y = f(*x)),
    );
}

#[inline(always)]
fn map_grad<R: Real>(grad: &[R], v: &[R], to: &mut [R], f: impl Fn(R) -> R) {
    vectorised(
        #[inline(always)]
        || {
            let inputs = grad.iter().zip(v);
            to.iter_mut().zip(inputs).for_each(|(to, (grad, v))| *to = *grad * f(*v));
        },
    );
}

/// √(2/π) and the factor of the cube, in the approximation of [`Tensor::gelu_tanh`].
const GELU_TANH: [f64; 2] = [0.797_884_560_802_865_4, 0.044_715];

functions! {
    kernels: {
        /// The hyperbolic tangent.
        Tanh, tanh / tanh_, "TanhBackward", Output,
            |x| x.tanh(), |y| R::n(1.0) - y * y,
            cuda: "tanh(x)", "C(1) - v * v";
        /// `1 / (1 + exp(-x))`.
        Sigmoid, sigmoid / sigmoid_, "SigmoidBackward", Output,
            |x| R::n(1.0) / (R::n(1.0) + (-x).exp()), |y| y * (R::n(1.0) - y),
            cuda: "C(1) / (C(1) + exp(-x))", "v * (C(1) - v)";
        /// The larger of the number and zero.
        Relu, relu / relu_, "ReluBackward", Output,
            |x| if x <= R::n(0.0) { R::n(0.0) } else { x },
            |y| if y <= R::n(0.0) { R::n(0.0) } else { R::n(1.0) },
            cuda: "x <= C(0) ? C(0) : x", "v <= C(0) ? C(0) : C(1)";
        /// `x · sigmoid(x)`.
        Silu, silu / silu_, "SiluBackward", Input,
            |x| x / (R::n(1.0) + (-x).exp()),
            |x| {
                let s = R::n(1.0) / (R::n(1.0) + (-x).exp());
                s * (R::n(1.0) + x * (R::n(1.0) - s))
            },
            cuda: "x / (C(1) + exp(-x))", "silu_slope(v)";
        /// `x · Φ(x)`, with the normal distribution's share of numbers below `x`.
        Gelu, gelu / gelu_, "GeluBackward", Input,
            |x| R::n(0.5) * x * (R::n(1.0) + (x * R::n(std::f64::consts::FRAC_1_SQRT_2)).erf()),
            |x| {
                let share = R::n(0.5)
                    * (R::n(1.0) + (x * R::n(std::f64::consts::FRAC_1_SQRT_2)).erf());
                let density = (R::n(-0.5) * x * x).exp() * R::n(0.398_942_280_401_432_7);
                share + x * density
            },
            cuda: "C(0.5) * x * (C(1) + erf(x * C(0.70710678118654752)))", "gelu_slope(v)";
        /// The same, with Φ approximated by a hyperbolic tangent, as GPT-2 does.
        GeluTanh, gelu_tanh / gelu_tanh_, "GeluBackward", Input,
            |x| {
                let [root, cube] = GELU_TANH.map(R::n);
                R::n(0.5) * x * (R::n(1.0) + (root * (x + cube * x * x * x)).tanh())
            },
            |x| {
                let [root, cube] = GELU_TANH.map(R::n);
                let t = (root * (x + cube * x * x * x)).tanh();
                let slope = root * (R::n(1.0) + R::n(3.0) * cube * x * x);
                R::n(0.5) * (R::n(1.0) + t + x * (R::n(1.0) - t * t) * slope)
            },
            cuda: "gelu_tanh(x)", "gelu_tanh_slope(v)";
    }
    steps: {
        /// The sine.
        Sin, sin / sin_, "SinBackward", Input, |x| x.sin(), |grad, x| grad.mul(&x.cos()?),
            cuda: "sin(x)";
        /// The cosine.
        Cos, cos / cos_, "CosBackward", Input, |x| x.cos(), |grad, x| grad.mul(&x.sin()?.neg()?),
            cuda: "cos(x)";
        /// The exponential.
        Exp, exp / exp_, "ExpBackward", Output, |x| x.exp(), |grad, y| grad.mul(y),
            cuda: "exp(x)";
        /// The natural logarithm.
        Log, log / log_, "LogBackward", Input, |x| x.ln(), |grad, x| grad.div(x),
            cuda: "log(x)";
        /// The square root.
        Sqrt, sqrt / sqrt_, "SqrtBackward", Output, |x| x.sqrt(), |grad, y| grad.div(&y.mul(2.0)?),
            cuda: "sqrt(x)";
        /// One over the square root.
        Rsqrt, rsqrt / rsqrt_, "RsqrtBackward", Output,
            |x| R::n(1.0) / x.sqrt(), |grad, y| grad.mul(-0.5)?.mul(&y.pow(3.0)?),
            cuda: "C(1) / sqrt(x)";
        /// One over the number.
        Reciprocal, reciprocal / reciprocal_, "ReciprocalBackward", Output,
            |x| R::n(1.0) / x, |grad, y| grad.neg()?.mul(&y.mul(y)?),
            cuda: "C(1) / x";
        /// The number without its sign.
        Abs, abs / abs_, "AbsBackward", Input, |x| x.abs(), |grad, x| grad.mul(&x.sign()?),
            cuda: "fabs(x)";
        /// One, zero or minus one: what the number has of a sign.
        Sign, sign / sign_, "SignBackward", Nothing,
            |x| {
                if x > R::n(0.0) {
                    R::n(1.0)
                } else if x < R::n(0.0) {
                    R::n(-1.0)
                } else {
                    R::n(0.0)
                }
            },
            |grad, _x| grad.zeros_like(),
            cuda: "x > C(0) ? C(1) : x < C(0) ? C(-1) : C(0)";
    }
}

impl Function {
    /// Whether autocast computes it in `f32`.
    fn needs_digits(self) -> bool {
        matches!(self, Self::Exp | Self::Log | Self::Rsqrt)
    }
}

/// `output = f(x)`.
pub(crate) struct Unary(pub(crate) Function);

impl Kernel for Unary {
    fn host(&self, args: &mut Args<'_>) -> Result<(), String> {
        let (x, function) = (args.input(0), self.0);
        dispatch_float!(args.output_dtype(0), T => {
            for_each_chunk::<T>(args.take(0), &|indices, chunk| {
                let mut scratch = Vec::new();
                let x: &[<T as Float>::Wide] = x.chunk(indices, &mut scratch);
                T::in_wide(chunk, |y| function.forward(x, y));
            });
        }, else return Err(no_float(args)));
        Ok(())
    }

    fn cuda(&self, on: Operands<'_>) -> Plan {
        elementwise(self.0.name(), on, format!("C x = x0; y0 = {};", self.0.cuda().0)).plan(on)
    }
}

/// `output = f(output)`.
struct UnaryInPlace(Function);

impl Kernel for UnaryInPlace {
    fn host(&self, args: &mut Args<'_>) -> Result<(), String> {
        let function = self.0;
        dispatch_float!(args.output_dtype(0), T => {
            for_each_chunk::<T>(args.take(0), &|_, chunk| {
                let x: Vec<_> = chunk.iter().map(|it| it.widen()).collect();
                T::in_wide(chunk, |y| function.forward(&x, y));
            });
        }, else return Err(no_float(args)));
        Ok(())
    }

    fn cuda(&self, on: Operands<'_>) -> Plan {
        let line = format!("C x = y0; y0 = {};", self.0.cuda().0);
        elementwise(self.0.name(), on, line).updates().plan(on)
    }
}

/// `output = grad · f'(v)`.
pub(crate) struct UnaryGrad(pub(crate) Function);

impl Kernel for UnaryGrad {
    fn host(&self, args: &mut Args<'_>) -> Result<(), String> {
        let (grad, v, function) = (args.input(0), args.input(1), self.0);
        // Asked once, of no elements: what follows cannot fail.
        function.backward::<f32>(&[], &[], &mut [])?;
        dispatch_float!(args.output_dtype(0), T => {
            for_each_chunk::<T>(args.take(0), &|indices, chunk| {
                let (mut for_grad, mut for_v) = (Vec::new(), Vec::new());
                let grad: &[<T as Float>::Wide] = grad.chunk(indices.clone(), &mut for_grad);
                let v: &[<T as Float>::Wide] = v.chunk(indices, &mut for_v);
                T::in_wide(chunk, |to| drop(function.backward(grad, v, to)));
            });
        }, else return Err(no_float(args)));
        Ok(())
    }

    fn cuda(&self, on: Operands<'_>) -> Plan {
        let line = format!("C v = x1; y0 = x0 * ({});", self.0.cuda().1);
        elementwise(self.0.name(), on, line).plan(on)
    }
}

/// Functions of several steps.
const HELPERS: &str = "
DEVICE C gelu_tanh(C x) { return C(0.5) * x * (C(1) + tanh(C(0.7978845608028654) * (x + C(0.044715) * x * x * x))); }
DEVICE C gelu_tanh_slope(C x) {
  C t = tanh(C(0.7978845608028654) * (x + C(0.044715) * x * x * x));
  C slope = C(0.7978845608028654) * (C(1) + C(3) * C(0.044715) * x * x);
  return C(0.5) * (C(1) + t + x * (C(1) - t * t) * slope);
}
DEVICE C gelu_slope(C x) {
  C share = C(0.5) * (C(1) + erf(x * C(0.70710678118654752)));
  return share + x * exp(C(-0.5) * x * x) * C(0.3989422804014327);
}
DEVICE C silu_slope(C x) { C s = C(1) / (C(1) + exp(-x)); return s * (C(1) + x * (C(1) - s)); }
";

fn elementwise(name: &'static str, on: Operands<'_>, line: String) -> Elementwise {
    Elementwise::new(name, wide(on.outputs[0].dtype), line).helpers(HELPERS)
}

fn no_float(args: &Args<'_>) -> String {
    format!("{} is no float", args.output_dtype(0))
}

struct UnaryBackward {
    call: Call,
    function: Function,
    /// None where nothing is needed.
    saved: Option<Saved>,
}

impl Backward for UnaryBackward {
    fn backward(&self, grads: &[Option<Tensor>], _: &Needs<'_>) -> Result<Grads> {
        let Some(grad) = &grads[0] else { return Ok(Grads::from_iter([None])) };
        let value = match &self.saved {
            Some(saved) => saved.unpack()?,
            None => grad.clone(),
        };
        if let Some(result) = self.function.steps(grad, &value) {
            return Ok(Grads::from_iter([Some(result?)]));
        }
        let shape = grad.shape().clone();
        let output = Tensor::uninit(self.call, shape, grad.dtype(), grad.device())?;
        self.call.launch(UnaryGrad(self.function), &[&output], &[grad, &value])?;
        Ok(Grads::from_iter([Some(output)]))
    }
}

#[track_caller]
fn unary(call: Call, function: Function, x: &Tensor) -> Result<Tensor> {
    if function == Function::Abs && x.dtype() == DType::Complex64 {
        return super::complex::abs(call, x);
    }
    let x = &if function.needs_digits() { raise(x)? } else { x.clone() };
    let dtype = float_of(call, x)?;
    let y = Tensor::uninit(call, x.shape().clone(), dtype, x.device())?;
    call.launch(Unary(function), &[&y], &[x])?;
    record(call, function.node(), &[&y], &[x], || {
        let saved = match function.needed() {
            Needed::Input => Some(Saved::input(call, x)?),
            Needed::Output => Some(Saved::output(call, &y)?),
            Needed::Nothing => None,
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
        let saved = match (&input, function.needed()) {
            (Some(input), _) => Some(Saved::input(call, input)?),
            (None, Needed::Nothing) => None,
            (None, _) => Some(Saved::output(call, x)?),
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

    fn cuda(&self, on: Operands<'_>) -> Plan {
        Elementwise::new("neg", wide(on.outputs[0].dtype), "y0 = -x0;").plan(on)
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

    const ALL: [Method; 15] = [
        Tensor::sin,
        Tensor::cos,
        Tensor::exp,
        Tensor::tanh,
        Tensor::sigmoid,
        Tensor::relu,
        Tensor::silu,
        Tensor::gelu,
        Tensor::gelu_tanh,
        Tensor::square,
        Tensor::abs,
        Tensor::neg,
        |x| x.square()?.add(0.5)?.log()?.square()?.add(0.1)?.sqrt(),
        |x| x.square()?.add(0.5)?.rsqrt()?.reciprocal(),
        |x| x.mul(&x.sign()?),
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
        let all: [InPlace; 8] = [
            Tensor::sin_,
            Tensor::exp_,
            Tensor::tanh_,
            Tensor::sigmoid_,
            Tensor::relu_,
            Tensor::silu_,
            Tensor::gelu_,
            Tensor::square_,
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
        assert_eq!(integers.sqrt()?.to_vec::<f32>()?, [0.0, 1.0, std::f32::consts::SQRT_2]);
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
        let y = y.gelu()?.cos()?.abs()?.sqrt()?;
        y.sum()?.backward()?;
        Ok(vec![y, x.grad().unwrap()])
    });
}
