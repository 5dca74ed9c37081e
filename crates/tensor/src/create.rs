//! New tensors: filled, counted, random, from numbers.

use crate::device::Device;
use crate::dtype::{Category, DType, Element, Stored, dispatch};
use crate::error::{Call, ErrorKind, Result};
use crate::exec::cuda::{Elementwise, wide};
use crate::exec::{Args, Kernel, Operands, Plan, fill_with};
use crate::number::Complex64;
use crate::random::{Distribution, Draw, Random};
use crate::shape::Shape;
use crate::tensor::Tensor;

/// Where a new tensor lies and what its elements are: `&device`, or `(&device, DType::F64)`.
#[derive(Clone, Copy, Debug)]
pub struct TensorOptions<'a> {
    /// The device.
    pub device: &'a Device,
    /// The element type; if none, the function's own default, mostly `f32`.
    pub dtype: Option<DType>,
}

impl<'a> From<&'a Device> for TensorOptions<'a> {
    fn from(device: &'a Device) -> Self {
        Self { device, dtype: None }
    }
}

impl<'a> From<(&'a Device, DType)> for TensorOptions<'a> {
    fn from((device, dtype): (&'a Device, DType)) -> Self {
        Self { device, dtype: Some(dtype) }
    }
}

impl<'a> From<(DType, &'a Device)> for TensorOptions<'a> {
    fn from((dtype, device): (DType, &'a Device)) -> Self {
        Self { device, dtype: Some(dtype) }
    }
}

/// A number of any kind, as scalar arguments take it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scalar {
    /// A whole number.
    Integer(i64),
    /// A real number.
    Float(f64),
    /// A complex number.
    Complex(Complex64),
}

impl Scalar {
    /// Whether it is anything but zero.
    fn is_true(self) -> bool {
        match self {
            Self::Integer(value) => value != 0,
            Self::Float(value) => value != 0.0,
            Self::Complex(value) => value != Complex64::default(),
        }
    }

    /// Its real part.
    pub(crate) fn to_f64(self) -> f64 {
        match self {
            Self::Integer(value) => value as f64,
            Self::Float(value) => value,
            Self::Complex(value) => f64::from(value.re),
        }
    }

    /// What a tensor of type `dtype` becomes when it meets this number: a number changes the
    /// category, never the size.
    pub(crate) fn promote(self, dtype: DType) -> DType {
        match self {
            Self::Integer(_) if dtype == DType::Bool => DType::I64,
            Self::Integer(_) => dtype,
            Self::Float(_) => dtype.with_float(),
            Self::Complex(_) => DType::Complex64,
        }
    }

    /// As an element.
    pub(crate) fn stored<T: Stored>(self) -> T {
        match self {
            Self::Integer(value) => T::from_i64(value),
            Self::Float(value) => T::from_f64(value),
            Self::Complex(value) => T::from_complex(value),
        }
    }

    /// The number that an element of this type would hold.
    pub(crate) fn rounded(self, dtype: DType) -> Self {
        if dtype == DType::Bool {
            return Self::Integer(i64::from(self.is_true()));
        }
        dispatch!(dtype, T => {
            let stored: T = self.stored();
            match dtype.category() {
                Category::Bool | Category::Integer => Self::Integer(stored.to_i64()),
                Category::Float => Self::Float(stored.to_f64()),
                Category::Complex => Self::Complex(stored.to_complex()),
            }
        })
    }
}

macro_rules! scalar_from {
    ($($type:ty => $variant:ident),*) => {$(
        impl From<$type> for Scalar {
            fn from(value: $type) -> Self {
                Self::$variant(value.into())
            }
        }
    )*};
}

scalar_from!(i64 => Integer, i32 => Integer, u8 => Integer, bool => Integer, f64 => Float, f32 => Float, Complex64 => Complex);

/// Writes one number everywhere.
pub(crate) struct Fill(pub(crate) Scalar);

impl Kernel for Fill {
    fn host(&self, args: &mut Args<'_>) -> Result<(), String> {
        let dtype = args.output_dtype(0);
        dispatch!(dtype, T => {
            let value: T = self.0.rounded(dtype).stored();
            fill_with::<T>(args.take(0), |_| value);
        });
        Ok(())
    }

    fn cuda(&self, on: Operands<'_>) -> Plan {
        let dtype = on.outputs[0].dtype;
        let kernel = Elementwise::new("fill", wide(dtype), "y0 = n0;");
        kernel.scalar(0, self.0.rounded(dtype)).plan(on)
    }
}

/// Writes `start + i·step`.
struct Arange {
    start: Scalar,
    step: Scalar,
}

impl Kernel for Arange {
    fn host(&self, args: &mut Args<'_>) -> Result<(), String> {
        let dtype = args.output_dtype(0);
        dispatch!(dtype, T => match (self.start, self.step) {
            (Scalar::Integer(start), Scalar::Integer(step)) => {
                fill_with::<T>(args.take(0), |index| {
                    T::from_i64(start.wrapping_add(step.wrapping_mul(index as i64)))
                });
            }
            (start, step) => {
                let (start, step) = (start.to_f64(), step.to_f64());
                fill_with::<T>(args.take(0), |index| T::from_f64(start + step * index as f64));
            }
        });
        Ok(())
    }

    fn cuda(&self, on: Operands<'_>) -> Plan {
        match (self.start, self.step) {
            (Scalar::Integer(start), Scalar::Integer(step)) => {
                let kernel = Elementwise::new("count", "i64", "y0 = k0 + k1 * (i64)i;");
                kernel.integers(&[start, step]).plan(on)
            }
            (start, step) => {
                let kernel = Elementwise::new("count", "double", "y0 = s0 + s1 * (double)i;");
                kernel.numbers(&[start.to_f64(), step.to_f64()]).exact().plan(on)
            }
        }
    }
}

/// More elements than any memory holds, and fewer than break the arithmetic of layouts.
const MOST_COUNTED: f64 = (1u64 << 53) as f64;

impl Tensor {
    /// A tensor with any contents: memory only.
    ///
    /// # Errors
    ///
    /// If there is no memory for it.
    #[track_caller]
    pub fn empty<'a>(
        shape: impl Into<Shape>,
        options: impl Into<TensorOptions<'a>>,
    ) -> Result<Self> {
        let TensorOptions { device, dtype } = options.into();
        Self::uninit(Call::here("empty"), shape.into(), dtype.unwrap_or(DType::F32), device)
    }

    /// A tensor of one number everywhere.
    ///
    /// # Errors
    ///
    /// If there is no memory for it.
    #[track_caller]
    pub fn full<'a>(
        shape: impl Into<Shape>,
        value: impl Into<Scalar>,
        options: impl Into<TensorOptions<'a>>,
    ) -> Result<Self> {
        let (value, TensorOptions { device, dtype }) = (value.into(), options.into());
        let dtype = dtype.unwrap_or(match value {
            Scalar::Integer(_) => DType::I64,
            Scalar::Float(_) => DType::F32,
            Scalar::Complex(_) => DType::Complex64,
        });
        Self::filled(Call::here("full"), shape.into(), value, dtype, device)
    }

    #[track_caller]
    pub(crate) fn filled(
        call: Call,
        shape: Shape,
        value: Scalar,
        dtype: DType,
        device: &Device,
    ) -> Result<Self> {
        let tensor = Self::uninit(call, shape, dtype, device)?;
        call.launch(Fill(value), &[&tensor], &[])?;
        Ok(tensor)
    }

    /// A tensor of zeros.
    ///
    /// # Errors
    ///
    /// If there is no memory for it.
    #[track_caller]
    pub fn zeros<'a>(
        shape: impl Into<Shape>,
        options: impl Into<TensorOptions<'a>>,
    ) -> Result<Self> {
        let TensorOptions { device, dtype } = options.into();
        let dtype = dtype.unwrap_or(DType::F32);
        Self::filled(Call::here("zeros"), shape.into(), Scalar::Integer(0), dtype, device)
    }

    /// A tensor of ones.
    ///
    /// # Errors
    ///
    /// If there is no memory for it.
    #[track_caller]
    pub fn ones<'a>(
        shape: impl Into<Shape>,
        options: impl Into<TensorOptions<'a>>,
    ) -> Result<Self> {
        let TensorOptions { device, dtype } = options.into();
        let dtype = dtype.unwrap_or(DType::F32);
        Self::filled(Call::here("ones"), shape.into(), Scalar::Integer(1), dtype, device)
    }

    /// Zeros of the same shape, type and device.
    ///
    /// # Errors
    ///
    /// If there is no memory for it.
    #[track_caller]
    pub fn zeros_like(&self) -> Result<Self> {
        let (shape, zero) = (self.shape().clone(), Scalar::Integer(0));
        Self::filled(Call::here("zeros_like"), shape, zero, self.dtype(), self.device())
    }

    /// Ones of the same shape, type and device.
    ///
    /// # Errors
    ///
    /// If there is no memory for it.
    #[track_caller]
    pub fn ones_like(&self) -> Result<Self> {
        let (shape, one) = (self.shape().clone(), Scalar::Integer(1));
        Self::filled(Call::here("ones_like"), shape, one, self.dtype(), self.device())
    }

    /// The numbers from `start` up to but without `end`, `step` apart: integers become `i64`.
    ///
    /// # Errors
    ///
    /// If the step does not lead from start to end, or if there is no memory.
    #[track_caller]
    pub fn arange<'a>(
        start: impl Into<Scalar>,
        end: impl Into<Scalar>,
        step: impl Into<Scalar>,
        options: impl Into<TensorOptions<'a>>,
    ) -> Result<Self> {
        let call = Call::here("arange");
        let (start, end, step) = (start.into(), end.into(), step.into());
        let TensorOptions { device, dtype } = options.into();
        let whole = [start, end, step].iter().all(|it| matches!(it, Scalar::Integer(_)));
        let dtype = dtype.unwrap_or(if whole { DType::I64 } else { DType::F32 });
        if dtype == DType::Bool {
            return Err(call.dtype_error("truths cannot be counted").help("count in int64"));
        }
        let length = ((end.to_f64() - start.to_f64()) / step.to_f64()).ceil();
        if !(0.0..MOST_COUNTED).contains(&length) {
            return Err(call
                .error(ErrorKind::Value, "the step does not lead from start to end")
                .with("start", start.to_f64())
                .with("end", end.to_f64())
                .with("step", step.to_f64()));
        }
        let tensor = Self::uninit(call, Shape::from(length as usize), dtype, device)?;
        call.launch(Arange { start, step }, &[&tensor], &[])?;
        Ok(tensor)
    }

    /// Random numbers, evenly over 0 ≤ x < 1.
    ///
    /// # Errors
    ///
    /// If the type is no float, or if there is no memory.
    #[track_caller]
    pub fn rand<'a>(
        shape: impl Into<Shape>,
        options: impl Into<TensorOptions<'a>>,
    ) -> Result<Self> {
        Self::random(Call::here("rand"), shape.into(), options.into(), Distribution::Uniform)
    }

    /// Random numbers of mean 0 and variance 1.
    ///
    /// # Errors
    ///
    /// If the type is no float and not complex, or if there is no memory.
    #[track_caller]
    pub fn randn<'a>(
        shape: impl Into<Shape>,
        options: impl Into<TensorOptions<'a>>,
    ) -> Result<Self> {
        Self::random(Call::here("randn"), shape.into(), options.into(), Distribution::Normal)
    }

    #[track_caller]
    fn random(
        call: Call,
        shape: Shape,
        TensorOptions { device, dtype }: TensorOptions<'_>,
        distribution: Distribution,
    ) -> Result<Self> {
        let dtype = dtype.unwrap_or(DType::F32);
        let complex = dtype == DType::Complex64 && matches!(distribution, Distribution::Normal);
        if !dtype.is_float() && !complex {
            let error = call.dtype_error(format!("random fractions are floats, not {dtype}"));
            return Err(error.help("randint gives random integers"));
        }
        let tensor = Self::uninit(call, shape, dtype, device)?;
        let draw = Draw::new(call, device)?;
        call.launch(Random { draw: draw.state, distribution }, &[&tensor], &draw.inputs())?;
        Ok(tensor)
    }

    /// Random integers `low ≤ x < high`, as `i64` unless told otherwise.
    ///
    /// # Errors
    ///
    /// If there are no such integers, or if there is no memory.
    #[track_caller]
    pub fn randint<'a>(
        low: i64,
        high: i64,
        shape: impl Into<Shape>,
        options: impl Into<TensorOptions<'a>>,
    ) -> Result<Self> {
        let call = Call::here("randint");
        if low >= high {
            let what = format!("no integer lies from {low} up to but without {high}");
            return Err(call.error(ErrorKind::Value, what));
        }
        let TensorOptions { device, dtype } = options.into();
        let tensor = Self::uninit(call, shape.into(), dtype.unwrap_or(DType::I64), device)?;
        let draw = Draw::new(call, device)?;
        let distribution = Distribution::Integers { low, high };
        call.launch(Random { draw: draw.state, distribution }, &[&tensor], &draw.inputs())?;
        Ok(tensor)
    }

    /// A tensor of these numbers, rows one after the other.
    ///
    /// ```
    /// # use tonnage_tensor::{Device, Tensor};
    /// # let device = Device::host("64 MiB")?;
    /// let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0], [2, 3], &device)?;
    /// assert_eq!(x.t()?.to_vec::<f32>()?, [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If the shape has another number of elements, or if there is no memory.
    #[track_caller]
    pub fn from_slice<T: Element>(
        numbers: &[T],
        shape: impl Into<Shape>,
        device: &Device,
    ) -> Result<Self> {
        let (call, shape) = (Call::here("from_slice"), shape.into());
        call.check_filled(numbers.len(), &shape)?;
        let tensor = Self::uninit(call, shape, T::DTYPE, device)?;
        call.upload::<T::Stored>(numbers.iter().map(|it| it.store()).collect(), &tensor)?;
        Ok(tensor)
    }
}

impl Call {
    /// Refuses numbers that do not fill a shape.
    pub(crate) fn check_filled(self, count: usize, shape: &Shape) -> Result<()> {
        if shape.checked_numel() == Some(count) {
            return Ok(());
        }
        let what = format!("{count} numbers do not fill the shape");
        Err(self.shape_error(what).with("shape", shape))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::conformance;

    conformance!(filled_and_counted_of_every_type, |device| {
        let mut results = Vec::new();
        for dtype in DType::ALL {
            results.push(Tensor::full([33, 5], 3, (device, dtype))?);
            results.push(Tensor::full([7], 2.75, (device, dtype))?);
            results.push(Tensor::full([7], Complex64::new(1.5, -2.0), (device, dtype))?);
            if dtype != DType::Bool {
                results.push(Tensor::arange(-3, 40, 2, (device, dtype))?);
                results.push(Tensor::arange(0.5, 3.0, 0.1, (device, dtype))?);
            }
            let view = Tensor::zeros([9, 16], (device, dtype))?;
            view.t()?.narrow(0, 1, 5)?.fill_(1)?;
            results.push(view);
        }
        Ok(results)
    });
}
