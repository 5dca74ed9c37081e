//! The same numbers elsewhere: copies, conversions, copies in place.

use crate::autograd::{Backward, Grads, Needs, record, record_in_place, records};
use crate::create::{Fill, Scalar};
use crate::dtype::{DType, dispatch};
use crate::error::{Call, Result};
use crate::exec::{Args, Kernel, Operands, Plan, map1};
use crate::tensor::Tensor;

/// Copies elements, converted to the output's type; truths are "not zero".
pub(crate) struct Copy;

impl Kernel for Copy {
    fn host(&self, args: &mut Args<'_>) -> Result<(), String> {
        let (from, to) = (args.input(0), args.output_dtype(0));
        if to == DType::Bool && from.dtype() != DType::Bool {
            dispatch!(from.dtype(), S => {
                map1::<S, u8>(args.take(0), from, |it| u8::from(it != S::default()));
            });
        } else {
            dispatch!(to, T => map1::<T, T>(args.take(0), from, |it| it));
        }
        Ok(())
    }

    fn cuda(&self, _: Operands<'_>) -> Plan {
        Plan::Unwritten
    }
}

/// The gradient goes through; the engine converts it back.
struct Through;

impl Backward for Through {
    fn backward(&self, grads: &[Option<Tensor>], _: &Needs<'_>) -> Result<Grads> {
        Ok(grads.iter().cloned().collect())
    }
}

/// The target's old value had no influence; the source's gradient goes through.
struct CopyInPlace;

impl Backward for CopyInPlace {
    fn backward(&self, grads: &[Option<Tensor>], needs: &Needs<'_>) -> Result<Grads> {
        let old = match &grads[0] {
            Some(grad) if needs.input(0) => Some(grad.zeros_like()?),
            _ => None,
        };
        Ok(Grads::from_iter([old, grads[0].clone()]))
    }
}

impl Tensor {
    /// A copy with storage of its own, in the graph: PyTorch's `clone`.
    ///
    /// # Errors
    ///
    /// If there is no memory for it.
    #[track_caller]
    pub fn copy(&self) -> Result<Self> {
        let call = Call::here("copy");
        let copy = self.copied(call)?;
        record(call, "CloneBackward", &[&copy], &[self], || Ok(Box::new(Through)))?;
        Ok(copy)
    }

    /// A copy outside the graph.
    #[track_caller]
    pub(crate) fn copied(&self, call: Call) -> Result<Self> {
        let copy = Self::uninit(call, self.shape().clone(), self.dtype(), self.device())?;
        call.launch(Copy, &[&copy], &[self])?;
        Ok(copy)
    }

    /// Itself if its elements lie in order, otherwise a copy that does.
    ///
    /// # Errors
    ///
    /// If there is no memory for it.
    #[track_caller]
    pub fn contiguous(&self) -> Result<Self> {
        if self.is_contiguous() { Ok(self.clone()) } else { self.copy() }
    }

    /// The same numbers as elements of another type; itself if they are that already.
    ///
    /// # Errors
    ///
    /// If there is no memory for it.
    #[track_caller]
    pub fn to(&self, dtype: DType) -> Result<Self> {
        let call = Call::here("to");
        if dtype == self.dtype() {
            return Ok(self.clone());
        }
        let converted = Self::uninit(call, self.shape().clone(), dtype, self.device())?;
        call.launch(Copy, &[&converted], &[self])?;
        record(call, "ToCopyBackward", &[&converted], &[self], || Ok(Box::new(Through)))?;
        Ok(converted)
    }

    /// Overwrites it with the numbers of `source`, broadcast and converted.
    ///
    /// # Errors
    ///
    /// If the source does not broadcast to its shape, or if the graph does not allow it.
    #[track_caller]
    pub fn copy_(&self, source: &Tensor) -> Result<()> {
        let call = Call::here("copy_");
        self.check_in_place(call, &[self, source])?;
        let Some(layout) = source.layout().expand(self.shape()) else {
            return Err(call
                .shape_error("the source does not broadcast to the target")
                .with_tensor("self", self)
                .with_tensor("source", source));
        };
        let from = source.alias(layout).apart_from(call, self)?;
        call.launch(Copy, &[self], &[&from])?;
        record_in_place(call, "CopyBackwards", self, &[self, source], || Ok(Box::new(CopyInPlace)))
    }

    /// Overwrites it with one number.
    ///
    /// # Errors
    ///
    /// If the graph does not allow it.
    #[track_caller]
    pub fn fill_(&self, value: impl Into<Scalar>) -> Result<()> {
        self.filled_in_place(Call::here("fill_"), value.into())
    }

    /// Overwrites it with zeros.
    ///
    /// # Errors
    ///
    /// If the graph does not allow it.
    #[track_caller]
    pub fn zero_(&self) -> Result<()> {
        self.filled_in_place(Call::here("zero_"), Scalar::Integer(0))
    }

    fn filled_in_place(&self, call: Call, value: Scalar) -> Result<()> {
        self.check_in_place(call, &[self])?;
        call.launch(Fill(value), &[self], &[])?;
        if records(&[self]) {
            let zero = || Ok(Box::new(Forget) as Box<dyn Backward>);
            return record_in_place(call, "FillBackward", self, &[self], zero);
        }
        self.storage().written_by(call);
        Ok(())
    }

    /// Itself, or a copy if it overlaps what is about to be written.
    #[track_caller]
    pub(crate) fn apart_from(&self, call: Call, written: &Tensor) -> Result<Self> {
        if self.overlaps(written) { self.copied(call) } else { Ok(self.clone()) }
    }
}

/// Nothing of the old value is left.
struct Forget;

impl Backward for Forget {
    fn backward(&self, grads: &[Option<Tensor>], _: &Needs<'_>) -> Result<Grads> {
        grads.iter().map(|grad| grad.as_ref().map(Tensor::zeros_like).transpose()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{conformance, gradcheck};
    use crate::{Complex64, Device};

    #[test]
    fn conversions_round_wrap_and_test_for_zero() -> Result<()> {
        let device = Device::host("64 MiB").unwrap();
        let x = Tensor::from_slice(&[0.0f32, -1.5, 300.0, f32::NAN], [4], &device)?;
        assert_eq!(x.to(DType::I32)?.to_vec::<i32>()?, [0, -1, 300, 0]);
        assert_eq!(x.to(DType::U8)?.to_vec::<u8>()?, [0, 255, 44, 0]);
        assert_eq!(x.to(DType::Bool)?.to_vec::<bool>()?, [false, true, true, true]);
        let complex = x.to(DType::Complex64)?.to_vec::<Complex64>()?;
        assert_eq!(complex[1], Complex64::new(-1.5, 0.0));
        let large = Tensor::from_slice(&[(1i64 << 60) + 1], [1], &device)?;
        assert_eq!(large.to(DType::I64)?.copy()?.to_vec::<i64>()?, [(1 << 60) + 1]);
        Ok(())
    }

    #[test]
    fn a_copy_in_place_broadcasts_and_may_overlap_its_source() -> Result<()> {
        let device = Device::host("64 MiB").unwrap();
        let x = Tensor::arange(0, 6, 1, &device)?.view([2, 3])?;
        x.copy_(&x.narrow(0, 1, 1)?)?;
        assert_eq!(x.to_vec::<i64>()?, [3, 4, 5, 3, 4, 5]);
        x.narrow(1, 0, 2)?.zero_()?;
        assert_eq!(x.to_vec::<i64>()?, [0, 0, 5, 0, 0, 5]);
        assert_eq!(x.version(), 2);
        Ok(())
    }

    #[test]
    fn gradients_go_through_copies() {
        gradcheck(&[&[2, 3]], |x| x[0].copy()?.t()?.contiguous()).unwrap();
        gradcheck(&[&[2, 3], &[3]], |x| {
            let y = x[0].mul(2.0)?;
            y.copy_(&x[1])?;
            y.mul(&x[0])
        })
        .unwrap();
        gradcheck(&[&[2, 3]], |x| {
            let y = x[0].mul(2.0)?;
            y.fill_(3.0)?;
            y.mul(&x[0])
        })
        .unwrap();
    }

    conformance!(copies, |device| {
        let x = Tensor::ones([3, 4], device)?.requires_grad_(true)?;
        let y = x.t()?.contiguous()?.to(DType::F64)?;
        y.sum()?.backward()?;
        Ok(vec![y, x.grad().unwrap()])
    });
}
