//! Powers with a number as exponent.

use crate::amp::raise;
use crate::autograd::{Backward, Grads, Needs, Saved, record, record_in_place, records};
use crate::create::Scalar;
use crate::dtype::{DType, Float, Real, Stored, dispatch, dispatch_float};
use crate::error::{Call, Result};
use crate::exec::cuda::{Elementwise, wide};
use crate::exec::{Args, Kernel, Operands, Plan, for_each_chunk, map1, update1, vectorised};
use crate::tensor::Tensor;

/// `output = x^exponent`, or `output^exponent` without an input. Of integers with an exponent that is
/// none below zero.
pub(crate) struct Pow {
    exponent: Scalar,
    in_place: bool,
}

impl Kernel for Pow {
    fn host(&self, args: &mut Args<'_>) -> Result<(), String> {
        let x = (!self.in_place).then(|| args.input(0));
        let (dtype, exponent) = (args.output_dtype(0), self.exponent.to_f64());
        dispatch_float!(dtype, T => for_each_chunk::<T>(args.take(0), &|indices, chunk| {
            type W = <T as Float>::Wide;
            let mut scratch: Vec<W> = Vec::new();
            let x = match x {
                Some(x) => x.chunk(indices, &mut scratch),
                None => {
                    scratch.extend(chunk.iter().map(|it| it.widen()));
                    &scratch
                }
            };
            T::in_wide(chunk, |y| power(x, y, exponent));
        }), else {
            let Scalar::Integer(exponent) = self.exponent else {
                return Err("the power of an integer is a fraction".to_owned());
            };
            let exponent = u32::try_from(exponent).unwrap_or(u32::MAX);
            dispatch!(dtype, T => {
                let power = |it: T| T::from_i64(it.to_i64().wrapping_pow(exponent));
                match x {
                    Some(x) => map1::<T, T>(args.take(0), x, power),
                    None => update1::<T>(args.take(0), power),
                }
            });
        });
        Ok(())
    }

    fn cuda(&self, on: Operands<'_>) -> Plan {
        let dtype = on.outputs[0].dtype;
        macro_rules! line {
            ($x:literal) => {
                match self.exponent {
                    Scalar::Integer(_) if !dtype.is_float() => concat!("y0 = power(", $x, ", k0);"),
                    exponent => match exponent.to_f64() {
                        1.0 => concat!("y0 = ", $x, ";"),
                        2.0 => concat!("y0 = ", $x, " * ", $x, ";"),
                        3.0 => concat!("y0 = ", $x, " * ", $x, " * ", $x, ";"),
                        0.5 => concat!("y0 = sqrt(", $x, ");"),
                        -0.5 => concat!("y0 = C(1) / sqrt(", $x, ");"),
                        -1.0 => concat!("y0 = C(1) / ", $x, ";"),
                        -2.0 => concat!("y0 = C(1) / (", $x, " * ", $x, ");"),
                        _ => concat!("y0 = (C)pow((double)", $x, ", s0);"),
                    },
                }
            };
        }
        let line = if self.in_place { line!("y0") } else { line!("x0") };
        let kernel = Elementwise::new("pow", wide(dtype), line).numbers(&[self.exponent.to_f64()]);
        let kernel = match self.exponent {
            Scalar::Integer(exponent) if !dtype.is_float() => {
                let exponent = u32::try_from(exponent).unwrap_or(u32::MAX);
                kernel.helpers(WHOLE).integers(&[exponent.into()])
            }
            _ => kernel,
        };
        if self.in_place { kernel.updates().plan(on) } else { kernel.plan(on) }
    }
}

/// The exponents that programs use are products and roots; the others go over the standard library.
/// The power of an integer, of which the lowest bits stay.
const WHOLE: &str = "
DEVICE i64 power(i64 x, i64 exponent) {
  u64 y = 1, square = (u64)x;
  for (u32 left = (u32)exponent; left; left >>= 1, square *= square) if (left & 1) y *= square;
  return (i64)y;
}
";

fn power<R: Real>(x: &[R], y: &mut [R], exponent: f64) {
    #[inline(always)]
    fn map<R: Real>(x: &[R], y: &mut [R], f: impl Fn(R) -> R) {
        vectorised(
            #[inline(always)]
            || y.iter_mut().zip(x).for_each(|(y, x)| *y = f(*x)),
        );
    }
    let one = R::n(1.0);
    match exponent {
        1.0 => y.copy_from_slice(x),
        2.0 => map(x, y, |it| it * it),
        3.0 => map(x, y, |it| it * it * it),
        0.5 => map(x, y, R::sqrt),
        -0.5 => map(x, y, |it| one / it.sqrt()),
        -1.0 => map(x, y, |it| one / it),
        -2.0 => map(x, y, |it| one / (it * it)),
        _ => map(x, y, |it| R::n(it.to_f64().powf(exponent))),
    }
}

/// `exponent · x^(exponent - 1)`, in PyTorch's steps.
struct PowBackward {
    x: Saved,
    exponent: f64,
}

impl Backward for PowBackward {
    fn backward(&self, grads: &[Option<Tensor>], _: &Needs<'_>) -> Result<Grads> {
        let Some(grad) = &grads[0] else { return Ok(Grads::from_iter([None])) };
        let grad = if self.exponent == 0.0 {
            grad.zeros_like()?
        } else {
            grad.mul(&self.x.unpack()?.pow(self.exponent - 1.0)?.mul(self.exponent)?)?
        };
        Ok(Grads::from_iter([Some(grad)]))
    }
}

/// The type of the result.
fn checked(call: Call, x: &Tensor, exponent: Scalar) -> Result<DType> {
    let dtype = exponent.promote(x.dtype());
    let below = matches!(exponent, Scalar::Integer(..0)) && !dtype.is_float();
    if dtype == DType::Complex64 || below {
        let what = "powers are of real numbers, and of integers without a fraction in the result";
        return Err(call.dtype_error(what).with_tensor("self", x).help("convert with to"));
    }
    Ok(dtype)
}

#[track_caller]
fn pow(call: Call, x: &Tensor, exponent: Scalar) -> Result<Tensor> {
    let x = &raise(x)?;
    let dtype = checked(call, x, exponent)?;
    let output = Tensor::uninit(call, x.shape().clone(), dtype, x.device())?;
    call.launch(Pow { exponent, in_place: false }, &[&output], &[x])?;
    record(call, "PowBackward", &[&output], &[x], || {
        Ok(Box::new(PowBackward { x: Saved::input(call, x)?, exponent: exponent.to_f64() }))
    })?;
    Ok(output)
}

#[track_caller]
fn pow_in_place(call: Call, x: &Tensor, exponent: Scalar) -> Result<()> {
    x.check_in_place(call, &[x])?;
    let dtype = checked(call, x, exponent)?;
    if dtype != x.dtype() {
        let what = format!("the result is {dtype}, which {} cannot hold", x.dtype());
        return Err(call.dtype_error(what).with_tensor("self", x).help("convert it with to first"));
    }
    let was = if records(&[x]) { Some(x.copied(call)?) } else { None };
    call.launch(Pow { exponent, in_place: true }, &[x], &[])?;
    record_in_place(call, "PowBackward", x, &[x], || {
        let x = Saved::input(call, was.as_ref().unwrap_or(x))?;
        Ok(Box::new(PowBackward { x, exponent: exponent.to_f64() }))
    })
}

impl Tensor {
    /// Each number to the power of `exponent`.
    ///
    /// # Errors
    ///
    /// If it is complex, integers would become fractions, or there is no memory.
    #[track_caller]
    pub fn pow(&self, exponent: impl Into<Scalar>) -> Result<Tensor> {
        pow(Call::here("pow"), self, exponent.into())
    }

    /// The same in place.
    ///
    /// # Errors
    ///
    /// As for [`pow`](Self::pow), if the result does not fit the type, or if the graph does not allow
    /// it.
    #[track_caller]
    pub fn pow_(&self, exponent: impl Into<Scalar>) -> Result<()> {
        pow_in_place(Call::here("pow_"), self, exponent.into())
    }

    /// The square.
    ///
    /// # Errors
    ///
    /// As for [`pow`](Self::pow).
    #[track_caller]
    pub fn square(&self) -> Result<Tensor> {
        pow(Call::here("square"), self, Scalar::Integer(2))
    }

    /// The same in place.
    ///
    /// # Errors
    ///
    /// As for [`pow_`](Self::pow_).
    #[track_caller]
    pub fn square_(&self) -> Result<()> {
        pow_in_place(Call::here("square_"), self, Scalar::Integer(2))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Device;
    use crate::testing::{conformance, gradcheck};

    #[test]
    fn powers_are_those_of_the_standard_library() -> Result<()> {
        let device = Device::host("64 MiB").unwrap();
        let x = Tensor::rand([1000], (&device, DType::F64))?.add(0.1)?;
        let numbers = x.to_vec::<f64>()?;
        for exponent in [-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 1.7, 2.0, 3.0, 4.0] {
            let powers = x.pow(exponent)?.to_vec::<f64>()?;
            let close = |(it, power): (&f64, &f64)| (it.powf(exponent) / power - 1.0).abs() < 1e-14;
            assert!(numbers.iter().zip(&powers).all(close), "{exponent}");
        }
        let integers = Tensor::from_slice(&[-3i64, 2], [2], &device)?;
        assert_eq!(integers.pow(3)?.to_vec::<i64>()?, [-27, 8]);
        assert_eq!(integers.square()?.to_vec::<i64>()?, [9, 4]);
        assert!(integers.pow(-1).is_err() && integers.pow_(0.5).is_err());
        assert_eq!(integers.pow(2.0)?.dtype(), DType::F32);
        Ok(())
    }

    #[test]
    fn gradients_are_right() {
        for exponent in [0.0, 1.0, 2.0, 3.0, 5.0] {
            gradcheck(&[&[5]], |x| x[0].pow(exponent)).unwrap();
        }
        gradcheck(&[&[5]], |x| x[0].square()?.add(0.5)?.pow(-1.3)).unwrap();
        gradcheck(&[&[5]], |x| {
            let y = x[0].mul(2.0)?;
            y.pow_(3.0)?;
            Ok(y)
        })
        .unwrap();
    }

    conformance!(powers, |device| {
        let x = Tensor::ones([30, 40], device)?.requires_grad_(true)?;
        let y = x.pow(3)?.square()?;
        y.sum()?.backward()?;
        Ok(vec![y, x.grad().unwrap()])
    });

    conformance!(powers_of_every_type, |device| {
        let mut results = Vec::new();
        let base = Tensor::randint(1, 9, [21, 16], device)?;
        for dtype in [DType::F32, DType::F64, DType::Bf16, DType::F16, DType::I64, DType::I32] {
            let x = base.to(dtype)?;
            for exponent in [-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 1.7, 2.0, 3.0] {
                results.push(x.t()?.pow(exponent)?);
            }
            let changed = x.copy()?;
            changed.pow_(2)?;
            results.extend([changed, x.pow(0)?, x.pow(5)?]);
        }
        Ok(results)
    });
}
