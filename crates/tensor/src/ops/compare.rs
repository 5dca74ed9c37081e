//! Comparisons, element by element: truths, which no gradient goes through.

use super::binary::Rhs;
use crate::create::Scalar;
use crate::dtype::{Category, DType, Stored};
use crate::error::{Call, Result};
use crate::exec::cuda::{Elementwise, wide};
use crate::exec::{Args, Input, Kernel, Operands, Output, Plan, map1, map2, update2};
use crate::number::Complex64;
use crate::tensor::Tensor;

/// Which comparison. The others are these with sides exchanged or the answer turned around.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Comparison {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
}

impl Comparison {
    #[inline]
    fn holds<T: PartialOrd>(self, a: &T, b: &T) -> u8 {
        u8::from(match self {
            Self::Eq => a == b,
            Self::Ne => a != b,
            Self::Lt => a < b,
            Self::Le => a <= b,
            Self::Gt => a > b,
            Self::Ge => a >= b,
        })
    }
}

/// `output = a ∘ b`, or `a ∘ scalar` without a second input; both as elements of type `dtype`.
pub(crate) struct Compare {
    comparison: Comparison,
    scalar: Option<Scalar>,
    dtype: DType,
}

impl Kernel for Compare {
    fn host(&self, args: &mut Args<'_>) -> Result<(), String> {
        let output = args.take::<u8>(0);
        let a = args.input(0);
        let b = match self.scalar {
            Some(_) => None,
            None => Some(args.input(1)),
        };
        let which = self.comparison;
        match self.dtype {
            DType::F64 => self.run::<f64>(output, a, b),
            // A number is rounded as the elements are before it is compared.
            DType::F32 | DType::Bf16 | DType::F16 => self.run::<f32>(output, a, b),
            DType::Complex64 => {
                let differ = which == Comparison::Ne;
                let of = move |a: Complex64, b: Complex64| u8::from((a == b) != differ);
                match (b, self.scalar.map(Scalar::stored)) {
                    (Some(b), _) => map2(output, [a, b], of),
                    (None, Some(scalar)) => map1(output, a, |a| of(a, scalar)),
                    (None, None) => {}
                }
            }
            _ => self.run::<i64>(output, a, b),
        }
        Ok(())
    }

    fn cuda(&self, on: Operands<'_>) -> Plan {
        // What both sides are compared as.
        let common = match self.dtype {
            DType::F64 | DType::Complex64 => self.dtype,
            DType::F32 | DType::Bf16 | DType::F16 => DType::F32,
            _ => DType::I64,
        };
        macro_rules! line {
            ($b:literal) => {
                match self.comparison {
                    Comparison::Eq => concat!("y0 = C(x0 == ", $b, ");"),
                    Comparison::Ne => concat!("y0 = C(x0 != ", $b, ");"),
                    Comparison::Lt => concat!("y0 = C(x0 < ", $b, ");"),
                    Comparison::Le => concat!("y0 = C(x0 <= ", $b, ");"),
                    Comparison::Gt => concat!("y0 = C(x0 > ", $b, ");"),
                    Comparison::Ge => concat!("y0 = C(x0 >= ", $b, ");"),
                }
            };
        }
        let line = if self.scalar.is_some() { line!("n0") } else { line!("x1") };
        let kernel = Elementwise::new("compare", wide(common), line);
        match self.scalar {
            Some(scalar) => kernel.scalar(0, self.rounded(scalar).rounded(common)).plan(on),
            None => kernel.plan(on),
        }
    }
}

impl Compare {
    fn run<T: Stored + PartialOrd>(
        &self,
        output: Output<'_, u8>,
        a: Input<'_>,
        b: Option<Input<'_>>,
    ) {
        let which = self.comparison;
        match (b, self.scalar) {
            (Some(b), _) => map2::<T, T, u8>(output, [a, b], |a, b| which.holds(&a, &b)),
            (None, Some(scalar)) => {
                let b: T = self.rounded(scalar).stored();
                map1::<T, u8>(output, a, |a| which.holds(&a, &b));
            }
            (None, None) => {}
        }
    }

    /// A number as an element of the type.
    fn rounded(&self, scalar: Scalar) -> Scalar {
        let as_element = |element: f64| Scalar::Float(element);
        match self.dtype {
            DType::Bf16 => as_element(crate::Bf16::from_f64(scalar.to_f64()).to_f64()),
            DType::F16 => as_element(crate::F16::from_f64(scalar.to_f64()).to_f64()),
            _ => scalar,
        }
    }
}

/// `output = output and b`.
struct And;

impl Kernel for And {
    fn host(&self, args: &mut Args<'_>) -> Result<(), String> {
        let b = args.input(0);
        update2::<u8, u8>(args.take(0), b, |a, b| u8::from(a != 0 && b != 0));
        Ok(())
    }

    fn cuda(&self, on: Operands<'_>) -> Plan {
        Elementwise::new("and", "bool", "y0 = y0 && x0;").updates().plan(on)
    }
}

#[track_caller]
fn compare(call: Call, comparison: Comparison, a: &Tensor, b: Rhs<'_>) -> Result<Tensor> {
    let dtype = match b {
        Rhs::Tensor(b) => a.dtype().promote(b.dtype()),
        Rhs::Scalar(scalar) => scalar.promote(a.dtype()),
    };
    if dtype.category() == Category::Complex
        && !matches!(comparison, Comparison::Eq | Comparison::Ne)
    {
        let error = call.dtype_error("complex numbers have no order");
        return Err(error.with_tensor("self", a));
    }
    match b {
        Rhs::Scalar(scalar) => {
            let output = Tensor::uninit(call, a.shape().clone(), DType::Bool, a.device())?;
            let kernel = Compare { comparison, scalar: Some(scalar), dtype };
            call.launch(kernel, &[&output], &[a])?;
            Ok(output)
        }
        Rhs::Tensor(b) => {
            let shape = call.broadcast(a, b)?;
            let output = Tensor::uninit(call, shape, DType::Bool, a.device())?;
            let [a, b] = [call.wide(a, output.shape())?, call.wide(b, output.shape())?];
            let kernel = Compare { comparison, scalar: None, dtype };
            call.launch(kernel, &[&output], &[&a, &b])?;
            Ok(output)
        }
    }
}

/// Defines the public methods.
macro_rules! methods {
    ($($(#[$doc:meta])* $name:ident, $comparison:ident;)*) => {$(
        $(#[$doc])*
        ///
        /// # Errors
        ///
        /// If the shapes do not broadcast, the devices differ, complex numbers would be ordered, or
        /// there is no memory.
        #[track_caller]
        pub fn $name<'a>(&self, other: impl Into<Rhs<'a>>) -> Result<Tensor> {
            compare(Call::here(stringify!($name)), Comparison::$comparison, self, other.into())
        }
    )*};
}

impl Tensor {
    methods! {
        /// Where it equals another tensor or a number.
        eq, Eq;
        /// Where it differs from another tensor or a number.
        ne, Ne;
        /// Where it is less than another tensor or a number.
        lt, Lt;
        /// Where it is at most another tensor or a number.
        le, Le;
        /// Where it is greater than another tensor or a number.
        gt, Gt;
        /// Where it is at least another tensor or a number.
        ge, Ge;
    }

    /// Where an element is zero or false.
    ///
    /// # Errors
    ///
    /// If there is no memory.
    #[track_caller]
    pub fn logical_not(&self) -> Result<Tensor> {
        compare(Call::here("logical_not"), Comparison::Eq, self, Rhs::Scalar(Scalar::Integer(0)))
    }

    /// Truths that also hold in `other`, of the same shape; in place and outside the graph.
    pub(super) fn and_in_place(&self, call: Call, other: &Tensor) -> Result<()> {
        call.launch(And, &[self], &[other])?;
        self.storage().written_by(call);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Device;
    use crate::testing::conformance;

    #[test]
    fn comparisons_are_those_of_numbers() -> Result<()> {
        let device = Device::host("64 MiB").unwrap();
        let a = Tensor::from_slice(&[1.0f32, 2.0, f32::NAN], [3], &device)?;
        let b = Tensor::from_slice(&[2i64], [1], &device)?;
        let truths = |it: Result<Tensor>| it?.to_vec::<bool>();
        assert_eq!(truths(a.eq(&b))?, [false, true, false]);
        assert_eq!(truths(a.ne(&b))?, [true, false, true]);
        assert_eq!(truths(a.lt(&b))?, [true, false, false]);
        assert_eq!(truths(a.le(2))?, [true, true, false]);
        assert_eq!(truths(a.gt(1.5))?, [false, true, false]);
        assert_eq!(truths(a.ge(&b))?, [false, true, false]);
        assert_eq!(truths(b.lt(2.5))?, [true]);
        assert_eq!(truths(b.logical_not())?, [false]);
        let large = Tensor::from_slice(&[(1i64 << 60) + 1], [1], &device)?;
        assert_eq!(truths(large.gt(1i64 << 60))?, [true]);
        Ok(())
    }

    #[test]
    fn a_number_is_rounded_as_elements_are() -> Result<()> {
        let device = Device::host("64 MiB").unwrap();
        for dtype in [DType::F64, DType::F32, DType::F16, DType::Bf16] {
            let x = Tensor::full([1], 0.1, (&device, dtype))?;
            assert!(x.eq(0.1)?.item::<bool>()?, "{dtype}");
        }
        Ok(())
    }

    #[test]
    fn complex_numbers_have_no_order() -> Result<()> {
        let device = Device::host("64 MiB").unwrap();
        let x = Tensor::ones([2], (&device, DType::Complex64))?;
        assert_eq!(x.eq(&x)?.to_vec::<bool>()?, [true, true]);
        assert!(x.lt(&x).unwrap_err().to_string().contains("no order"));
        Ok(())
    }

    conformance!(comparisons, |device| {
        let x = Tensor::ones([30, 40], device)?.requires_grad_(true)?;
        Ok(vec![x.lt(2.0)?, x.t()?.eq(&x.t()?)?])
    });

    conformance!(comparisons_of_every_type, |device| {
        let mut results = Vec::new();
        let base = Tensor::randint(0, 5, [21, 16], device)?;
        let other = Tensor::randint(0, 5, [16], device)?;
        for dtype in DType::ALL {
            let (a, b) = (base.to(dtype)?, other.to(dtype)?);
            results.extend([a.eq(&b)?, a.ne(2)?, a.t()?.eq(1.5)?, a.logical_not()?]);
            if dtype != DType::Complex64 {
                results.extend([a.lt(&b)?, a.le(&other)?, a.gt(2.1)?, a.ge(&base.t()?.t()?)?]);
            }
        }
        let both = base.gt(1)?;
        both.and_in_place(Call::here("test"), &base.lt(4)?)?;
        results.push(both);
        Ok(results)
    });
}
