//! One of two, by truths: `where`, `masked_fill`; and what is built on it, `clamp`.

use super::binary::Rhs;
use crate::autograd::{Backward, Grads, Needs, Saved, record, record_in_place};
use crate::create::Scalar;
use crate::dtype::{DType, dispatch};
use crate::error::{Call, Result};
use crate::exec::cuda::{Elementwise, wide};
use crate::exec::{Args, Kernel, Operands, Plan, map1, map2, map3, update2};
use crate::shape::broadcast;
use crate::tensor::Tensor;

/// `output = mask ? a : b`. What is a number is no input.
pub(crate) struct Choose {
    a: Option<Scalar>,
    b: Option<Scalar>,
}

impl Kernel for Choose {
    fn host(&self, args: &mut Args<'_>) -> Result<(), String> {
        let mask = args.input(0);
        dispatch!(args.output_dtype(0), T => {
            match (self.a.map(Scalar::stored::<T>), self.b.map(Scalar::stored::<T>)) {
                (None, None) => {
                    let inputs = [mask, args.input(1), args.input(2)];
                    map3(args.take(0), inputs, |it: u8, a: T, b: T| if it != 0 { a } else { b });
                }
                (None, Some(b)) => {
                    let inputs = [mask, args.input(1)];
                    map2(args.take(0), inputs, |it: u8, a: T| if it != 0 { a } else { b });
                }
                (Some(a), None) => {
                    let inputs = [mask, args.input(1)];
                    map2(args.take(0), inputs, |it: u8, b: T| if it != 0 { a } else { b });
                }
                (Some(a), Some(b)) => {
                    map1(args.take(0), mask, |it: u8| if it != 0 { a } else { b });
                }
            }
        });
        Ok(())
    }

    fn cuda(&self, on: Operands<'_>) -> Plan {
        let dtype = on.outputs[0].dtype;
        let line = match (self.a, self.b) {
            (None, None) => "y0 = x0 ? x1 : x2;",
            (None, Some(_)) => "y0 = x0 ? x1 : n1;",
            (Some(_), None) => "y0 = x0 ? n0 : x1;",
            (Some(_), Some(_)) => "y0 = x0 ? n0 : n1;",
        };
        let kernel = Elementwise::new("choose", wide(dtype), line).inputs(&["bool"]);
        let sides = [self.a, self.b].map(|side| side.unwrap_or(Scalar::Integer(0)).rounded(dtype));
        kernel.scalar(0, sides[0]).scalar(1, sides[1]).plan(on)
    }
}

/// `output = value` where the mask is true.
struct FillMasked(Scalar);

impl Kernel for FillMasked {
    fn host(&self, args: &mut Args<'_>) -> Result<(), String> {
        let mask = args.input(0);
        dispatch!(args.output_dtype(0), T => {
            let value: T = self.0.stored();
            update2(args.take(0), mask, |a: T, it: u8| if it != 0 { value } else { a });
        });
        Ok(())
    }

    fn cuda(&self, on: Operands<'_>) -> Plan {
        let dtype = on.outputs[0].dtype;
        let kernel = Elementwise::new("fill_masked", wide(dtype), "y0 = x0 ? n0 : y0;");
        kernel.inputs(&["bool"]).scalar(0, self.0.rounded(dtype)).updates().plan(on)
    }
}

/// `output = x` between two bounds.
struct Clamp {
    low: Option<Scalar>,
    high: Option<Scalar>,
}

impl Kernel for Clamp {
    fn host(&self, args: &mut Args<'_>) -> Result<(), String> {
        use crate::dtype::Stored;
        let (x, low, high) = (args.input(0), self.low, self.high);
        // What is no number fails both comparisons and stays.
        match args.output_dtype(0) {
            DType::I64 | DType::I32 | DType::U8 => dispatch!(args.output_dtype(0), T => {
                let (low, high) = (low.map(Scalar::stored::<T>), high.map(Scalar::stored::<T>));
                map1::<T, T>(args.take(0), x, |it| {
                    let it = low.filter(|low| it.to_i64() < low.to_i64()).unwrap_or(it);
                    high.filter(|high| it.to_i64() > high.to_i64()).unwrap_or(it)
                });
            }),
            _ => dispatch!(args.output_dtype(0), T => {
                let (low, high) = (low.map(Scalar::stored::<T>), high.map(Scalar::stored::<T>));
                map1::<T, T>(args.take(0), x, |it| {
                    let it = low.filter(|low| it.to_f64() < low.to_f64()).unwrap_or(it);
                    high.filter(|high| it.to_f64() > high.to_f64()).unwrap_or(it)
                });
            }),
        }
        Ok(())
    }

    fn cuda(&self, on: Operands<'_>) -> Plan {
        let dtype = on.outputs[0].dtype;
        let line = match (self.low, self.high) {
            (None, None) => "y0 = x0;",
            (Some(_), None) => "y0 = x0 < n0 ? n0 : x0;",
            (None, Some(_)) => "y0 = x0 > n1 ? n1 : x0;",
            (Some(_), Some(_)) => "C it = x0 < n0 ? n0 : x0; y0 = it > n1 ? n1 : it;",
        };
        let bounds =
            [self.low, self.high].map(|it| it.unwrap_or(Scalar::Integer(0)).rounded(dtype));
        let kernel = Elementwise::new("clamp", wide(dtype), line).rounds();
        kernel.scalar(0, bounds[0]).scalar(1, bounds[1]).plan(on)
    }
}

/// Where the truths hold, or where they do not, the gradient goes through.
struct ChooseBackward {
    call: Call,
    mask: Saved,
    /// Which inputs of the graph are which side: `a`, `b`, in this order.
    sides: [bool; 2],
}

impl Backward for ChooseBackward {
    fn backward(&self, grads: &[Option<Tensor>], needs: &Needs<'_>) -> Result<Grads> {
        let count = self.sides.iter().filter(|it| **it).count();
        let mut results: Grads = (0..count).map(|_| None).collect();
        let Some(grad) = &grads[0] else { return Ok(results) };
        let (mask, zero) = (self.mask.unpack()?, Rhs::Scalar(Scalar::Integer(0)));
        // `other` comes before `self`, as in PyTorch.
        let place = usize::from(self.sides[0]);
        if self.sides[1] && needs.input(place) {
            results[place] = Some(chosen(self.call, &mask, zero, grad.into(), grad.dtype())?);
        }
        if self.sides[0] && needs.input(0) {
            results[0] = Some(chosen(self.call, &mask, grad.into(), zero, grad.dtype())?);
        }
        Ok(results)
    }
}

struct FillMaskedBackward {
    call: Call,
    mask: Saved,
}

impl Backward for FillMaskedBackward {
    fn backward(&self, grads: &[Option<Tensor>], _: &Needs<'_>) -> Result<Grads> {
        let Some(grad) = &grads[0] else { return Ok(Grads::from_iter([None])) };
        let zero = Rhs::Scalar(Scalar::Integer(0));
        let dtype = grad.dtype();
        let grad = chosen(self.call, &self.mask.unpack()?, zero, grad.into(), dtype)?;
        Ok(Grads::from_iter([Some(grad)]))
    }
}

/// The gradient goes through where nothing was cut off.
struct ClampBackward {
    call: Call,
    x: Saved,
    low: Option<Scalar>,
    high: Option<Scalar>,
}

impl Backward for ClampBackward {
    fn backward(&self, grads: &[Option<Tensor>], _: &Needs<'_>) -> Result<Grads> {
        let Some(grad) = &grads[0] else { return Ok(Grads::from_iter([None])) };
        let x = self.x.unpack()?;
        let kept = match (self.low, self.high) {
            (Some(low), Some(high)) => {
                let kept = x.ge(low)?;
                kept.and_in_place(self.call, &x.le(high)?)?;
                kept
            }
            (Some(low), None) => x.ge(low)?,
            (None, Some(high)) => x.le(high)?,
            (None, None) => return Ok(Grads::from_iter([Some(grad.clone())])),
        };
        let zero = Rhs::Scalar(Scalar::Integer(0));
        let grad = chosen(self.call, &kept, grad.into(), zero, grad.dtype())?;
        Ok(Grads::from_iter([Some(grad)]))
    }
}

/// `mask ? a : b`, outside the graph.
#[track_caller]
fn chosen(call: Call, mask: &Tensor, a: Rhs<'_>, b: Rhs<'_>, dtype: DType) -> Result<Tensor> {
    let mut shape = mask.shape().clone();
    for side in [a, b] {
        if let Rhs::Tensor(side) = side {
            if side.device() != mask.device() {
                return Err(call.devices_differ(mask, side));
            }
            shape = broadcast(&shape, side.shape()).ok_or_else(|| {
                call.shape_error("the shapes do not broadcast")
                    .with_tensor("mask", mask)
                    .with_tensor("side", side)
                    .help("from the last axis on, sizes must be equal, or one of them 1")
            })?;
        }
    }
    let output = Tensor::uninit(call, shape, dtype, mask.device())?;
    let scalar = |side: Rhs<'_>| match side {
        Rhs::Scalar(scalar) => Some(scalar),
        Rhs::Tensor(_) => None,
    };
    let mut inputs = vec![call.wide(mask, output.shape())?];
    for side in [a, b] {
        if let Rhs::Tensor(side) = side {
            inputs.push(call.wide(side, output.shape())?);
        }
    }
    let kernel = Choose { a: scalar(a), b: scalar(b) };
    call.launch(kernel, &[&output], &inputs.iter().collect::<Vec<_>>())?;
    Ok(output)
}

/// Refuses masks that are no truths.
fn check_mask(call: Call, mask: &Tensor) -> Result<()> {
    if mask.dtype() == DType::Bool {
        return Ok(());
    }
    let error = call.dtype_error("a mask consists of truths").with_tensor("mask", mask);
    Err(error.help("compare it, such as mask.ne(0)"))
}

impl Tensor {
    /// Of these truths, `a` where they hold and `b` elsewhere: PyTorch's `where`.
    ///
    /// ```
    /// # use tonnage_tensor::{Device, Tensor};
    /// # let device = Device::host("64 MiB")?;
    /// let x = Tensor::from_slice(&[-1.0f32, 2.0], [2], &device)?;
    /// assert_eq!(x.gt(0.0)?.where_cond(&x, 0.5)?.to_vec::<f32>()?, [0.5, 2.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If it does not consist of truths, the shapes do not broadcast, the devices differ, or there is
    /// no memory.
    #[track_caller]
    pub fn where_cond<'a>(&self, a: impl Into<Rhs<'a>>, b: impl Into<Rhs<'a>>) -> Result<Tensor> {
        let (call, a, b) = (Call::here("where_cond"), a.into(), b.into());
        check_mask(call, self)?;
        let dtype = match (a, b) {
            (Rhs::Tensor(a), Rhs::Tensor(b)) => a.dtype().promote(b.dtype()),
            (Rhs::Tensor(side), Rhs::Scalar(scalar)) | (Rhs::Scalar(scalar), Rhs::Tensor(side)) => {
                scalar.promote(side.dtype())
            }
            (Rhs::Scalar(a), Rhs::Scalar(b)) => b.promote(a.promote(DType::Bool)),
        };
        let output = chosen(call, self, a, b, dtype)?;
        let tensor = |side: Rhs<'a>| match side {
            Rhs::Tensor(side) => Some(side),
            Rhs::Scalar(_) => None,
        };
        let sides = [tensor(a), tensor(b)];
        let inputs: Vec<&Tensor> = sides.into_iter().flatten().collect();
        record(call, "WhereBackward", &[&output], &inputs, || {
            let sides = sides.map(|side| side.is_some());
            Ok(Box::new(ChooseBackward { call, mask: Saved::input(call, self)?, sides }))
        })?;
        Ok(output)
    }

    /// A copy with `value` where the mask, broadcast to its shape, is true.
    ///
    /// # Errors
    ///
    /// If the mask does not consist of truths or does not broadcast, or if there is no memory.
    #[track_caller]
    pub fn masked_fill(&self, mask: &Tensor, value: impl Into<Scalar>) -> Result<Tensor> {
        let (call, value) = (Call::here("masked_fill"), value.into());
        check_mask(call, mask)?;
        self.check_fits(call, value)?;
        call.broadcast(self, mask)?;
        let output = chosen(call, mask, value.into(), self.into(), self.dtype())?;
        record(call, "MaskedFillBackward", &[&output], &[self], || {
            Ok(Box::new(FillMaskedBackward { call, mask: Saved::input(call, mask)? }))
        })?;
        Ok(output)
    }

    /// The same in place.
    ///
    /// # Errors
    ///
    /// If the mask does not consist of truths or does not broadcast, or if the graph does not allow
    /// it.
    #[track_caller]
    pub fn masked_fill_(&self, mask: &Tensor, value: impl Into<Scalar>) -> Result<()> {
        let (call, value) = (Call::here("masked_fill_"), value.into());
        check_mask(call, mask)?;
        self.check_fits(call, value)?;
        self.check_in_place(call, &[self])?;
        if call.broadcast(self, mask)? != *self.shape() {
            let error = call.shape_error("the mask has more elements than what is changed");
            return Err(error.with_tensor("self", self).with_tensor("mask", mask));
        }
        let wide = call.wide(mask, self.shape())?.apart_from(call, self)?;
        call.launch(FillMasked(value), &[self], &[&wide])?;
        record_in_place(call, "MaskedFillBackward", self, &[self], || {
            Ok(Box::new(FillMaskedBackward { call, mask: Saved::input(call, mask)? }))
        })
    }

    fn check_fits(&self, call: Call, value: Scalar) -> Result<()> {
        if value.promote(self.dtype()) == self.dtype() || self.dtype() == DType::Bool {
            return Ok(());
        }
        let what = format!("{} cannot hold the value", self.dtype());
        Err(call.dtype_error(what).with_tensor("self", self).help("convert it with to first"))
    }

    /// Each number, but at least `low` and at most `high`.
    ///
    /// ```
    /// # use tonnage_tensor::{Device, Tensor};
    /// # let device = Device::host("64 MiB")?;
    /// let x = Tensor::from_slice(&[-2.0f32, 0.5, 3.0], [3], &device)?;
    /// assert_eq!(x.clamp(-1.0, 1.0)?.to_vec::<f32>()?, [-1.0, 0.5, 1.0]);
    /// assert_eq!(x.clamp_min(0.0)?.to_vec::<f32>()?, [0.0, 0.5, 3.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If the numbers are complex, or if there is no memory.
    #[track_caller]
    pub fn clamp(&self, low: impl Into<Scalar>, high: impl Into<Scalar>) -> Result<Tensor> {
        clamped(Call::here("clamp"), self, Some(low.into()), Some(high.into()))
    }

    /// Each number, but at least `low`.
    ///
    /// # Errors
    ///
    /// As for [`clamp`](Self::clamp).
    #[track_caller]
    pub fn clamp_min(&self, low: impl Into<Scalar>) -> Result<Tensor> {
        clamped(Call::here("clamp_min"), self, Some(low.into()), None)
    }

    /// Each number, but at most `high`.
    ///
    /// # Errors
    ///
    /// As for [`clamp`](Self::clamp).
    #[track_caller]
    pub fn clamp_max(&self, high: impl Into<Scalar>) -> Result<Tensor> {
        clamped(Call::here("clamp_max"), self, None, Some(high.into()))
    }
}

#[track_caller]
fn clamped(call: Call, x: &Tensor, low: Option<Scalar>, high: Option<Scalar>) -> Result<Tensor> {
    let bounds = [low, high].into_iter().flatten();
    let dtype = bounds.fold(x.dtype(), |dtype, bound| bound.promote(dtype));
    if dtype == DType::Complex64 {
        let error = call.dtype_error("complex numbers have no order");
        return Err(error.with_tensor("self", x));
    }
    let output = Tensor::uninit(call, x.shape().clone(), dtype, x.device())?;
    call.launch(Clamp { low, high }, &[&output], &[x])?;
    record(call, "ClampBackward", &[&output], &[x], || {
        Ok(Box::new(ClampBackward { call, x: Saved::input(call, x)?, low, high }))
    })?;
    Ok(output)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Device;
    use crate::testing::{conformance, gradcheck};

    #[test]
    fn sides_broadcast_and_meet_as_in_arithmetic() -> Result<()> {
        let device = Device::host("64 MiB").unwrap();
        let mask = Tensor::from_slice(&[true, false], [2, 1], &device)?;
        let row = Tensor::from_slice(&[1i64, 2, 3], [3], &device)?;
        let chosen = mask.where_cond(&row, 0.5)?;
        assert_eq!((chosen.dtype(), &chosen.shape()[..]), (DType::F32, &[2, 3][..]));
        assert_eq!(chosen.to_vec::<f32>()?, [1.0, 2.0, 3.0, 0.5, 0.5, 0.5]);
        assert_eq!(mask.where_cond(1, 2)?.to_vec::<i64>()?, [1, 2]);
        assert!(row.where_cond(1, 2).unwrap_err().to_string().contains("consists of truths"));
        let x = Tensor::ones([2, 3], &device)?;
        assert_eq!(x.masked_fill(&mask, 5.0)?.to_vec::<f32>()?, [5.0, 5.0, 5.0, 1.0, 1.0, 1.0]);
        x.t()?.masked_fill_(&mask.t()?, f64::NEG_INFINITY)?;
        let low = f32::NEG_INFINITY;
        assert_eq!(x.to_vec::<f32>()?, [low, low, low, 1.0, 1.0, 1.0]);
        assert!(row.masked_fill(&row.gt(1)?, 0.5).is_err());
        assert!(Tensor::ones([3], &device)?.masked_fill_(&mask, 1.0).is_err());
        Ok(())
    }

    #[test]
    fn bounds_hold_and_what_is_no_number_stays() -> Result<()> {
        let device = Device::host("64 MiB").unwrap();
        let x = Tensor::from_slice(&[f32::NAN, -3.0, 3.0], [3], &device)?;
        let y = x.clamp(-1.0, 2)?.to_vec::<f32>()?;
        assert!(y[0].is_nan());
        assert_eq!(y[1..], [-1.0, 2.0]);
        let integers = Tensor::from_slice(&[1i64 << 60, -5], [2], &device)?;
        assert_eq!(integers.clamp_min(0)?.to_vec::<i64>()?, [1 << 60, 0]);
        assert_eq!(integers.clamp(0.5, 2.5)?.to_vec::<f32>()?, [2.5, 0.5]);
        Ok(())
    }

    #[test]
    fn gradients_are_right() {
        gradcheck(&[&[2, 3], &[3]], |x| x[0].gt(0.2)?.where_cond(&x[0], &x[1])).unwrap();
        gradcheck(&[&[2, 3]], |x| x[0].gt(0.2)?.where_cond(1.0, &x[0])).unwrap();
        gradcheck(&[&[2, 3]], |x| x[0].masked_fill(&x[0].detach().gt(0.0)?, 7.0)).unwrap();
        gradcheck(&[&[2, 3]], |x| {
            let y = x[0].mul(2.0)?;
            y.masked_fill_(&x[0].detach().gt(0.0)?, 7.0)?;
            Ok(y)
        })
        .unwrap();
        gradcheck(&[&[4, 3]], |x| x[0].clamp(-0.5, 0.5)).unwrap();
        gradcheck(&[&[4, 3]], |x| x[0].clamp_max(0.5)).unwrap();
    }

    conformance!(choices, |device| {
        let x = Tensor::ones([30, 40], device)?.requires_grad_(true)?;
        let y = x.gt(0.5)?.where_cond(&x, 0.0)?.clamp(-1.0, 1.0)?;
        let z = y.masked_fill(&y.detach().lt(0.0)?, 1.0)?;
        z.sum()?.backward()?;
        Ok(vec![z, x.grad().unwrap()])
    });

    conformance!(choices_of_every_type, |device| {
        let mut results = Vec::new();
        let base = Tensor::randint(0, 9, [40, 31], device)?;
        let mask = base.gt(4)?;
        for dtype in DType::ALL {
            let x = base.to(dtype)?;
            results.extend([mask.where_cond(&x, &x.narrow(0, 0, 1)?)?, mask.where_cond(1, &x)?]);
            results.extend([mask.where_cond(&x, 2)?, mask.t()?.where_cond(1, 0)?]);
            results.push(x.masked_fill(&mask.narrow(0, 0, 1)?, 1)?);
            let changed = x.copy()?;
            changed.t()?.masked_fill_(&mask.t()?, 1)?;
            results.push(changed);
            if dtype != DType::Complex64 {
                results.extend([x.clamp(2, 5)?, x.clamp_min(3)?, x.t()?.clamp_max(4.5)?]);
            }
        }
        Ok(results)
    });
}
