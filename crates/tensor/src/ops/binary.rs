//! Addition, subtraction, multiplication and division: with broadcasting, with numbers, in place.

use crate::autograd::{Backward, Grads, Needs, Saved, record, record_in_place, records};
use crate::create::Scalar;
use crate::dtype::{DType, Number, dispatch};
use crate::error::{Call, Result};
use crate::exec::cuda::{Elementwise, wide};
use crate::exec::{Args, Kernel, Operands, Plan, map1, map2, update1, update2};
use crate::number::Complex64;
use crate::shape::{Shape, broadcast};
use crate::tensor::Tensor;

/// The right side of an operation: a tensor or a number.
#[derive(Clone, Copy, Debug)]
pub enum Rhs<'a> {
    /// A tensor.
    Tensor(&'a Tensor),
    /// A number.
    Scalar(Scalar),
}

impl<'a> From<&'a Tensor> for Rhs<'a> {
    fn from(tensor: &'a Tensor) -> Self {
        Self::Tensor(tensor)
    }
}

macro_rules! rhs_from {
    ($($type:ty),*) => {$(
        impl From<$type> for Rhs<'_> {
            fn from(value: $type) -> Self {
                Self::Scalar(value.into())
            }
        }
    )*};
}

rhs_from!(f64, f32, i64, i32, Complex64, Scalar);

/// What is not scaled.
const ONE: Scalar = Scalar::Integer(1);

/// Which of the four.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Function {
    Add,
    Sub,
    Mul,
    Div,
}

impl Function {
    #[inline(always)]
    fn apply<T: Number>(self, a: T::Math, b: T::Math) -> T {
        T::down(match self {
            Self::Add => a + b,
            Self::Sub => a - b,
            Self::Mul => a * b,
            Self::Div => a / b,
        })
    }

    fn name(self) -> &'static str {
        match self {
            Self::Add => "AddBackward",
            Self::Sub => "SubBackward",
            Self::Mul => "MulBackward",
            Self::Div => "DivBackward",
        }
    }

    /// The name of its program.
    fn called(self) -> &'static str {
        match self {
            Self::Add => "add",
            Self::Sub => "sub",
            Self::Mul => "mul",
            Self::Div => "div",
        }
    }

    /// What two types become: quotients are never integers.
    fn dtype(self, dtype: DType) -> DType {
        if self == Self::Div { dtype.with_float() } else { dtype }
    }
}

/// Runs `$code` once for each function, each time as a constant, so that loops have no branches.
macro_rules! each_function {
    ($function:expr, $f:ident => $code:expr) => {
        match $function {
            Function::Add => {
                const $f: Function = Function::Add;
                $code
            }
            Function::Sub => {
                const $f: Function = Function::Sub;
                $code
            }
            Function::Mul => {
                const $f: Function = Function::Mul;
                $code
            }
            Function::Div => {
                const $f: Function = Function::Div;
                $code
            }
        }
    };
}

/// The line of a program: `y0` becomes a function of two sides.
macro_rules! line {
    ($function:expr, $a:literal, $b:literal) => {
        match $function {
            Function::Add => concat!("y0 = ", $a, " + ", $b, ";"),
            Function::Sub => concat!("y0 = ", $a, " - ", $b, ";"),
            Function::Mul => concat!("y0 = ", $a, " * ", $b, ";"),
            Function::Div => concat!("y0 = ", $a, " / ", $b, ";"),
        }
    };
}

/// A number as [`Number::math`] has it.
fn in_math(scalar: Scalar, dtype: DType) -> Scalar {
    let is_half = matches!(dtype, DType::Bf16 | DType::F16);
    scalar.rounded(if is_half { DType::F32 } else { dtype })
}

/// `output = a ∘ b`, or `a ∘ scalar` without a second input. Inputs are converted to the output's type.
pub(crate) struct Binary {
    pub(crate) function: Function,
    pub(crate) scalar: Option<Scalar>,
    /// With the conjugate of the right side, for gradients.
    pub(crate) conj: bool,
}

impl Kernel for Binary {
    fn host(&self, args: &mut Args<'_>) -> Result<(), String> {
        let (dtype, conj) = (args.output_dtype(0), self.conj);
        if dtype == DType::Bool {
            let both = self.function == Function::Mul;
            map2::<u8, u8, u8>(args.take(0), [args.input(0), args.input(1)], move |a, b| {
                u8::from(if both { a & b != 0 } else { a | b != 0 })
            });
            return Ok(());
        }
        dispatch!(dtype, T => each_function!(self.function, F => match self.scalar {
            Some(scalar) => {
                let b = T::math(scalar);
                let b = if conj { T::conj(b) } else { b };
                map1::<T, T>(args.take(0), args.input(0), |a| F.apply(a.up(), b));
            }
            None => {
                let inputs = [args.input(0), args.input(1)];
                map2::<T, T, T>(args.take(0), inputs, |a, b| {
                    let b = if conj { T::conj(b.up()) } else { b.up() };
                    F.apply(a.up(), b)
                });
            }
        }));
        Ok(())
    }

    fn cuda(&self, on: Operands<'_>) -> Plan {
        let dtype = on.outputs[0].dtype;
        let (function, compute) = (self.function, wide(dtype));
        let conj = self.conj && dtype == DType::Complex64;
        if dtype == DType::Bool {
            let both = function == Function::Mul;
            let line = if both { "y0 = x0 && x1;" } else { "y0 = x0 || x1;" };
            return Elementwise::new(function.called(), "bool", line).plan(on);
        }
        let kernel = |line| Elementwise::new(function.called(), compute, line).rounds();
        match self.scalar {
            Some(scalar) if conj => {
                kernel(line!(function, "x0", "conj(n0)")).scalar(0, in_math(scalar, dtype))
            }
            Some(scalar) => kernel(line!(function, "x0", "n0")).scalar(0, in_math(scalar, dtype)),
            None if conj => kernel(line!(function, "x0", "conj(x1)")),
            None => kernel(line!(function, "x0", "x1")),
        }
        .plan(on)
    }
}

/// `output = output ∘ alpha·b`, or `output ∘ alpha` without an input.
struct BinaryInPlace {
    function: Function,
    alpha: Scalar,
    alone: bool,
}

impl Kernel for BinaryInPlace {
    fn host(&self, args: &mut Args<'_>) -> Result<(), String> {
        dispatch!(args.output_dtype(0), T => each_function!(self.function, F => {
            let alpha = T::math(self.alpha);
            if self.alone {
                update1::<T>(args.take(0), |a| F.apply(a.up(), alpha));
            } else {
                let b = args.input(0);
                update2::<T, T>(args.take(0), b, |a, b| F.apply(a.up(), alpha * b.up()));
            }
        }));
        Ok(())
    }

    fn cuda(&self, on: Operands<'_>) -> Plan {
        let (dtype, function) = (on.outputs[0].dtype, self.function);
        let line = match self.alone {
            true => line!(function, "y0", "n0"),
            false if self.alpha == ONE => line!(function, "y0", "x0"),
            false => line!(function, "y0", "(n0 * x0)"),
        };
        let kernel = Elementwise::new(function.called(), wide(dtype), line);
        kernel.scalar(0, in_math(self.alpha, dtype)).rounds().updates().plan(on)
    }
}

/// The way back. What is saved is what the other side's gradient needs.
struct BinaryBackward {
    function: Function,
    a: Option<Saved>,
    b: Option<Saved>,
    scalar: Option<Scalar>,
}

impl BinaryBackward {
    /// Saves what [`backward`](Backward::backward) reads: the value of `a` for the gradient of `b`, and
    /// the other way round. `needs_a`: whether `a` wants a gradient, of which the value may be a copy.
    fn save(call: Call, function: Function, a: &Tensor, b: Rhs<'_>, needs_a: bool) -> Result<Self> {
        let (mut saved_a, mut saved_b, mut scalar) = (None, None, None);
        match b {
            Rhs::Scalar(value) => scalar = Some(value),
            Rhs::Tensor(b) => {
                let product = matches!(function, Function::Mul | Function::Div);
                if product && b.requires_grad() {
                    saved_a = Some(Saved::input(call, a)?);
                }
                if product && (needs_a || function == Function::Div) {
                    saved_b = Some(Saved::input(call, b)?);
                }
            }
        }
        Ok(Self { function, a: saved_a, b: saved_b, scalar })
    }

    fn grad_b(&self, grad: &Tensor) -> Result<Tensor> {
        let unpacked = |saved: &Option<Saved>| saved.as_ref().map(Saved::unpack).transpose();
        match (self.function, unpacked(&self.a)?, unpacked(&self.b)?) {
            (Function::Sub, ..) => grad.neg(),
            (Function::Mul, Some(a), _) => grad.by_conj(Function::Mul, &a),
            (Function::Div, Some(a), Some(b)) => {
                let negative = grad.neg()?;
                negative.by_conj(Function::Mul, &a.div(&b)?.div(&b)?)
            }
            _ => Ok(grad.clone()),
        }
    }

    fn grad_a(&self, grad: &Tensor) -> Result<Tensor> {
        let b = self.b.as_ref().map(Saved::unpack).transpose()?;
        if matches!(self.function, Function::Add | Function::Sub) {
            return Ok(grad.clone());
        }
        match (b, self.scalar) {
            (Some(b), _) => grad.by_conj(self.function, &b),
            (None, Some(scalar)) => grad.by_conj(self.function, scalar),
            (None, None) => Ok(grad.clone()),
        }
    }
}

impl Backward for BinaryBackward {
    fn backward(&self, grads: &[Option<Tensor>], needs: &Needs<'_>) -> Result<Grads> {
        let Some(grad) = &grads[0] else { return Ok(Grads::from_iter([None, None])) };
        if self.scalar.is_some() {
            return Ok(Grads::from_iter([Some(self.grad_a(grad)?)]));
        }
        // `other` comes before `self`, as in PyTorch.
        let b = if needs.input(1) { Some(self.grad_b(grad)?) } else { None };
        let a = if needs.input(0) { Some(self.grad_a(grad)?) } else { None };
        Ok(Grads::from_iter([a, b]))
    }
}

#[track_caller]
fn binary(call: Call, function: Function, a: &Tensor, b: Rhs<'_>, conj: bool) -> Result<Tensor> {
    match b {
        Rhs::Scalar(scalar) => {
            let dtype = function.dtype(scalar.promote(a.dtype()));
            let output = Tensor::uninit(call, a.shape().clone(), dtype, a.device())?;
            call.launch(Binary { function, scalar: Some(scalar), conj }, &[&output], &[a])?;
            record(call, function.name(), &[&output], &[a], || {
                Ok(Box::new(BinaryBackward::save(call, function, a, b, a.requires_grad())?))
            })?;
            Ok(output)
        }
        Rhs::Tensor(other) => {
            let shape = call.broadcast(a, other)?;
            let dtype = function.dtype(a.dtype().promote(other.dtype()));
            if dtype == DType::Bool && !matches!(function, Function::Add | Function::Mul) {
                let error = call.dtype_error("truths can be added (or) and multiplied (and) only");
                return Err(error.with_tensor("self", a).with_tensor("other", other));
            }
            let output = Tensor::uninit(call, shape, dtype, a.device())?;
            let [wide_a, wide_b] =
                [call.wide(a, output.shape())?, call.wide(other, output.shape())?];
            call.launch(Binary { function, scalar: None, conj }, &[&output], &[&wide_a, &wide_b])?;
            record(call, function.name(), &[&output], &[a, other], || {
                Ok(Box::new(BinaryBackward::save(call, function, a, b, a.requires_grad())?))
            })?;
            Ok(output)
        }
    }
}

#[track_caller]
fn binary_in_place(
    call: Call,
    function: Function,
    a: &Tensor,
    b: Rhs<'_>,
    alpha: Scalar,
) -> Result<()> {
    let (met, inputs): (_, &[&Tensor]) = match b {
        Rhs::Scalar(scalar) => (scalar.promote(a.dtype()), &[a]),
        Rhs::Tensor(other) => (a.dtype().promote(other.dtype()), &[a, other]),
    };
    a.check_in_place(call, inputs)?;
    if function.dtype(met).category() > a.dtype().category() || a.dtype() == DType::Bool {
        let what =
            format!("the result is {}, which {} cannot hold", function.dtype(met), a.dtype());
        return Err(call.dtype_error(what).with_tensor("self", a).help("convert it with to first"));
    }
    // The gradient of `b` needs what `a` was.
    let old = match b {
        Rhs::Tensor(other)
            if matches!(function, Function::Mul | Function::Div) && records(&[other]) =>
        {
            Some(a.copied(call)?)
        }
        _ => None,
    };
    let backward = if records(inputs) {
        let was = old.as_ref().unwrap_or(a);
        Some(BinaryBackward::save(call, function, was, b, a.requires_grad())?)
    } else {
        None
    };
    match b {
        Rhs::Scalar(scalar) => {
            let kernel = BinaryInPlace { function, alpha: scalar, alone: true };
            call.launch(kernel, &[a], &[])?;
        }
        Rhs::Tensor(other) => {
            if call.broadcast(a, other)? != *a.shape() {
                return Err(call
                    .shape_error("the result does not have the shape of what is changed")
                    .with_tensor("self", a)
                    .with_tensor("other", other));
            }
            let Some(layout) = other.layout().expand(a.shape()) else {
                return Err(call.shape_error("other does not broadcast to self"));
            };
            let other = other.alias(layout).apart_from(call, a)?;
            call.launch(BinaryInPlace { function, alpha, alone: false }, &[a], &[&other])?;
        }
    }
    match backward {
        Some(backward) => {
            record_in_place(call, function.name(), a, inputs, || Ok(Box::new(backward)))
        }
        None => {
            a.storage().written_by(call);
            Ok(())
        }
    }
}

impl Call {
    /// The shape that both broadcast to.
    pub(crate) fn broadcast(self, a: &Tensor, b: &Tensor) -> Result<Shape> {
        if a.device() != b.device() {
            return Err(self.devices_differ(a, b));
        }
        broadcast(a.shape(), b.shape()).ok_or_else(|| {
            self.shape_error("the shapes do not broadcast")
                .with_tensor("self", a)
                .with_tensor("other", b)
                .help("from the last axis on, sizes must be equal, or one of them 1")
        })
    }

    /// A tensor as a shape that it broadcasts to shows it, outside the graph.
    pub(crate) fn wide(self, tensor: &Tensor, shape: &Shape) -> Result<Tensor> {
        match tensor.layout().expand(shape) {
            _ if tensor.shape() == shape => Ok(tensor.clone()),
            Some(layout) => Ok(tensor.alias(layout)),
            None => {
                let error = self.shape_error("the shapes do not broadcast");
                Err(error.with_tensor("self", tensor).with("shape", shape))
            }
        }
    }
}

/// Defines the public methods of one function.
macro_rules! methods {
    ($($(#[$doc:meta])* $name:ident, $in_place:ident, $function:ident;)*) => {$(
        $(#[$doc])*
        ///
        /// # Errors
        ///
        /// If the shapes do not broadcast, the devices differ, or there is no memory.
        #[track_caller]
        pub fn $name<'a>(&self, other: impl Into<Rhs<'a>>) -> Result<Tensor> {
            binary(Call::here(stringify!($name)), Function::$function, self, other.into(), false)
        }

        /// The same in place.
        ///
        /// # Errors
        ///
        /// If the result has another shape or does not fit the type, or if the graph does not allow
        /// it: see [`Tensor::requires_grad_`].
        #[track_caller]
        pub fn $in_place<'a>(&self, other: impl Into<Rhs<'a>>) -> Result<()> {
            let call = Call::here(stringify!($in_place));
            binary_in_place(call, Function::$function, self, other.into(), ONE)
        }
    )*};
}

impl Tensor {
    methods! {
        /// The sum with another tensor or a number.
        add, add_, Add;
        /// The difference to another tensor or a number.
        sub, sub_, Sub;
        /// The product with another tensor or a number, element by element.
        mul, mul_, Mul;
        /// The quotient by another tensor or a number, element by element. Integers become floats.
        div, div_, Div;
    }

    /// Adds `alpha · other` in place, outside the graph: what optimizers do.
    ///
    /// # Errors
    ///
    /// As for [`add_`](Self::add_), and if the graph would have to record it.
    #[track_caller]
    pub fn add_scaled_(&self, other: &Tensor, alpha: impl Into<Scalar>) -> Result<()> {
        let call = Call::here("add_scaled_");
        if records(&[self, other]) {
            return Err(call
                .error(crate::error::ErrorKind::Autograd, "this form is not recorded")
                .with_tensor("self", self)
                .help("wrap it in no_grad, or use mul and add_"));
        }
        binary_in_place(call, Function::Add, self, other.into(), alpha.into())
    }

    /// With the conjugate of the right side: what gradients of products are.
    #[track_caller]
    fn by_conj<'a>(&self, function: Function, other: impl Into<Rhs<'a>>) -> Result<Tensor> {
        binary(Call::here("backward"), function, self, other.into(), true)
    }

    /// Adds in place, outside the graph, on behalf of another call.
    pub(crate) fn add_in_place(&self, call: Call, other: &Tensor) -> Result<()> {
        binary_in_place(call, Function::Add, self, other.into(), ONE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{conformance, gradcheck};
    use crate::{Bf16, Device};

    fn device() -> Device {
        Device::host("256 MiB").unwrap()
    }

    #[test]
    fn types_and_shapes_meet_as_in_pytorch() -> Result<()> {
        let device = device();
        let row = Tensor::from_slice(&[1.0f32, 2.0, 3.0], [3], &device)?;
        let column = Tensor::from_slice(&[10i64, 20], [2, 1], &device)?;
        let sum = row.add(&column)?;
        assert_eq!((sum.dtype(), &sum.shape()[..]), (DType::F32, &[2, 3][..]));
        assert_eq!(sum.to_vec::<f32>()?, [11.0, 12.0, 13.0, 21.0, 22.0, 23.0]);
        assert_eq!(column.div(4)?.to_vec::<f32>()?, [2.5, 5.0]);
        assert_eq!(column.mul(2.5)?.dtype(), DType::F32);
        let half = row.to(DType::Bf16)?.mul(0.5)?;
        assert_eq!((half.dtype(), half.to_vec::<Bf16>()?[2].to_f32()), (DType::Bf16, 1.5));
        let truths = Tensor::from_slice(&[true, false], [2], &device)?;
        assert_eq!(truths.add(&truths)?.to_vec::<bool>()?, [true, false]);
        assert_eq!(truths.add(1)?.to_vec::<i64>()?, [2, 1]);
        assert!(truths.sub(&truths).is_err());
        Ok(())
    }

    #[test]
    fn wrong_shapes_say_what_met_what_and_where() {
        let device = Device::dry("1 GiB").unwrap();
        let a = Tensor::zeros([2, 3], &device).unwrap();
        let b = Tensor::zeros([4], (&device, DType::F64)).unwrap();
        let error = a.add(&b).unwrap_err();
        let text = error.to_string();
        assert!(text.starts_with("add: the shapes do not broadcast\n  --> crates"), "{text}");
        assert!(text.contains("| self:  float32[2, 3]\n   | other: float64[4]\n"), "{text}");
        assert_eq!(error.site().file(), file!());
        assert!(a.add_(&Tensor::zeros([5, 2, 3], &device).unwrap()).is_err());
        assert!(Tensor::zeros([2], (&device, DType::I64)).unwrap().add_(0.5).is_err());
    }

    #[test]
    fn gradients_are_right() {
        type Method = fn(&Tensor, &Tensor) -> Result<Tensor>;
        let all: [Method; 4] = [|a, b| a.add(b), |a, b| a.sub(b), |a, b| a.mul(b), |a, b| a.div(b)];
        for f in all {
            gradcheck(&[&[2, 3], &[2, 3]], |x| f(&x[0], &x[1])).unwrap();
            gradcheck(&[&[2, 1, 3], &[4, 1]], |x| f(&x[0], &x[1])).unwrap();
            gradcheck(&[&[3]], |x| f(&x[0], &x[0])).unwrap();
        }
        gradcheck(&[&[3]], |x| x[0].add(2.0)?.mul(3.0)?.sub(1.0)?.div(0.7)).unwrap();
    }

    #[test]
    fn gradients_in_place_are_right() {
        type InPlace = fn(&Tensor, &Tensor) -> Result<()>;
        let all: [InPlace; 4] =
            [|a, b| a.add_(b), |a, b| a.sub_(b), |a, b| a.mul_(b), |a, b| a.div_(b)];
        for f in all {
            gradcheck(&[&[2, 3], &[3]], |x| {
                let y = x[0].mul(2.0)?;
                f(&y, &x[1])?;
                Ok(y)
            })
            .unwrap();
        }
        gradcheck(&[&[3]], |x| {
            let y = x[0].mul(2.0)?;
            y.add_(1.0)?;
            y.mul_(3.0)?;
            Ok(y)
        })
        .unwrap();
    }

    #[test]
    fn an_overwritten_value_is_named_with_both_calls() -> Result<()> {
        let device = device();
        let x = Tensor::ones([2], &device)?.requires_grad_(true)?;
        let y = x.mul(2.0)?;
        let z = y.mul(&y)?;
        y.add_(1.0)?;
        let error = z.sum()?.backward().unwrap_err();
        let text = error.to_string();
        assert_eq!(error.operation(), "mul");
        assert!(text.contains("saved by:   mul at crates"), "{text}");
        assert!(text.contains("changed by: add_ at crates"), "{text}");
        Ok(())
    }

    #[test]
    fn leaves_are_protected_and_no_grad_lifts_it() -> Result<()> {
        let device = device();
        let x = Tensor::ones([2], &device)?.requires_grad_(true)?;
        assert!(x.add_(1.0).unwrap_err().to_string().contains("no_grad"));
        crate::autograd::no_grad(|| x.add_(1.0))?;
        assert_eq!(x.to_vec::<f32>()?, [2.0, 2.0]);
        Ok(())
    }

    #[test]
    fn a_view_that_missed_a_change_is_not_differentiated() -> Result<()> {
        let device = device();
        let x = Tensor::ones([4], &device)?.requires_grad_(true)?;
        let y = x.mul(2.0)?;
        let view = y.view([2, 2])?;
        y.mul_(3.0)?;
        assert!(view.sum().unwrap_err().to_string().contains("take the view again"));
        y.view([2, 2])?.sum()?.backward()?;
        assert_eq!(x.grad().unwrap().to_vec::<f32>()?, [6.0; 4]);
        Ok(())
    }

    conformance!(arithmetic, |device| {
        let a = Tensor::ones([30, 40], device)?.requires_grad_(true)?;
        let b = Tensor::ones([40], device)?.requires_grad_(true)?;
        let c = a.mul(&b)?.add(&a)?.div(&b)?.sub(1.0)?;
        c.sum()?.backward()?;
        Ok(vec![c, a.grad().unwrap(), b.grad().unwrap()])
    });

    conformance!(arithmetic_of_every_type_and_layout, |device| {
        use crate::dtype::DType::{Bf16, Bool, Complex64, F16, F32, F64, I32, I64, U8};
        let mut results = Vec::new();
        let base = Tensor::randint(1, 9, [6, 50, 32], device)?;
        let other = Tensor::randint(1, 9, [6, 50, 32], device)?;
        for (one, two) in [
            (F32, F32),
            (F64, F32),
            (Bf16, Bf16),
            (F16, I64),
            (Bf16, F16),
            (I64, I32),
            (I32, U8),
            (U8, Bool),
            (Bool, Bool),
            (Complex64, F32),
            (Complex64, Complex64),
        ] {
            let (a, b) = (base.to(one)?, other.to(two)?);
            let row = b.narrow(0, 0, 1)?.narrow(1, 3, 1)?;
            let column = b.narrow(2, 5, 1)?;
            let odd = (a.narrow(2, 1, 31)?, b.narrow(2, 0, 31)?);
            results.extend([a.add(&b)?, a.mul(&row)?, a.add(&column)?, odd.0.mul(&odd.1)?]);
            results.push(a.transpose(0, 2)?.add(&b.transpose(0, 2)?)?);
            if one == Bool {
                continue;
            }
            results.extend([a.sub(&b)?, a.div(&b)?, a.add(3)?, a.mul(0.3)?, a.div(7.0)?]);
            let changed = a.copy()?;
            if two.category() <= one.category() {
                changed.add_(&b)?;
                changed.narrow(1, 1, 20)?.mul_(&row)?;
            }
            changed.sub_(2)?;
            changed
                .add_scaled_(&a, if one.is_float() { 0.7.into() } else { Scalar::Integer(3) })?;
            results.push(changed);
        }
        let z = base.to(Complex64)?.mul(crate::Complex64::new(0.5, 2.0))?;
        results.push(z.conj()?.mul(&z)?);
        results.push(z.by_conj(Function::Mul, &z.add(1)?)?);
        results.push(z.by_conj(Function::Div, crate::Complex64::new(0.5, 2.0))?);
        Ok(results)
    });
}
