//! Variance and deviation over axes.

use tonnage_device::cuda::Arguments;

use super::layer_norm::total;
use super::reduce::Axes;
use crate::autograd::{Backward, Grads, Needs, Saved, record};
use crate::create::Scalar;
use crate::dtype::{Float, Stored, dispatch_float};
use crate::error::{Call, ErrorKind, Result};
use crate::exec::cuda::{self, Launch, Program, stored};
use crate::exec::{Args, CHUNK, Kernel, Operands, Plan, slices};
use crate::shape::Shape;
use crate::tensor::Tensor;

/// The variances of rows, or their roots.
pub(crate) struct VarRows {
    width: usize,
    correction: f64,
    root: bool,
}

impl Kernel for VarRows {
    fn host(&self, args: &mut Args<'_>) -> Result<(), String> {
        let (x, width) = (args.input(0), self.width);
        dispatch_float!(args.output_dtype(0), T => slices(args.take::<T>(0).slice(), 1, width, &|row, to| {
            type W = <T as Float>::Wide;
            let mut scratch = Vec::new();
            let mut sum = |f: &dyn Fn(f64) -> f64| -> f64 {
                let pieces = (0..width).step_by(CHUNK).map(|piece| {
                    let start = row * width;
                    let range = start + piece..start + width.min(piece + CHUNK);
                    total::<W>(x.chunk(range, &mut scratch), |_, it| f(it))
                });
                pieces.sum()
            };
            let mean = sum(&|it| it) / width as f64;
            let square = sum(&|it| (it - mean) * (it - mean));
            let variance = square / (width as f64 - self.correction).max(0.0);
            to[0] = T::from_f64(if self.root { variance.sqrt() } else { variance });
        }), else return Err("variances are of floats".to_owned()));
        Ok(())
    }

    fn cuda(&self, on: Operands<'_>) -> Plan {
        let (output, x) = (&on.outputs[0], &on.inputs[0]);
        let count = output.layout.numel();
        if count == 0 {
            return Plan::nothing();
        }
        let rows = cuda::AnyRows::of(x, self.width);
        let mut arguments = Arguments::new();
        arguments.push(output.first());
        arguments.push(x.first());
        rows.kept.push(&mut arguments);
        rows.along.push(&mut arguments);
        arguments.push(count as u64);
        arguments.push(self.width as u64);
        arguments.push((self.width as f64 - self.correction).max(0.0));
        let types: [(&str, &dyn std::fmt::Display); 6] = [
            ("IN", &stored(x.dtype)),
            ("OUT", &stored(output.dtype)),
            ("ROOT", &u8::from(self.root)),
            ("KEPT", &rows.kept.count()),
            ("ALONG", &rows.along.count()),
            ("INDEX", &rows.index),
        ];
        let constants = [&types[..], &rows.group.constants()].concat();
        let program = Program::new("var_rows", TEXT, &constants);
        Launch::new(program, rows.group.extent(count), arguments).into()
    }
}

const TEXT: &str = concat!(include_str!("../exec/cuda/rows.cuh"), include_str!("variance.cu"));

struct VarBackward {
    x: Saved,
    /// The result, of deviations.
    deviation: Option<Saved>,
    axes: Vec<isize>,
    kept: Shape,
    /// What the sum of squares is divided by.
    divisor: f64,
}

impl Backward for VarBackward {
    fn backward(&self, grads: &[Option<Tensor>], _: &Needs<'_>) -> Result<Grads> {
        let Some(grad) = &grads[0] else { return Ok(Grads::from_iter([None])) };
        let mut grad = grad.clone();
        if let Some(deviation) = &self.deviation {
            // The root of nothing has no slope; PyTorch takes zero.
            let deviation = deviation.unpack()?;
            grad = grad.div(&deviation.mul(2.0)?)?;
            grad.masked_fill_(&deviation.eq(Scalar::Integer(0))?, 0.0)?;
        }
        let grad = grad.reshape(&self.kept)?;
        let x = self.x.unpack()?;
        let scaled = grad.mul(2.0 / self.divisor)?;
        let centered = x.sub(&x.mean_dim(&self.axes, true)?)?;
        Ok(Grads::from_iter([Some(scaled.mul(&centered)?)]))
    }
}

#[track_caller]
fn variance(
    call: Call,
    x: &Tensor,
    axes: &[isize],
    correction: f64,
    keepdim: bool,
    root: bool,
) -> Result<Tensor> {
    if !x.dtype().is_float() {
        let error = call.dtype_error("variances are of floats").with_tensor("self", x);
        return Err(error.help("convert with to"));
    }
    if correction.is_nan() {
        return Err(call.error(ErrorKind::Value, "the correction is no number"));
    }
    let rows = Axes::new(call, x, axes, keepdim)?;
    let output = Tensor::uninit(call, rows.result.clone(), x.dtype(), x.device())?;
    let kernel = VarRows { width: rows.width, correction, root };
    call.launch(kernel, &[&output], &[&rows.summed_last(call, x)?])?;
    let name = if root { "StdBackward" } else { "VarBackward" };
    record(call, name, &[&output], &[x], || {
        Ok(Box::new(VarBackward {
            x: Saved::input(call, x)?,
            deviation: root.then(|| Saved::output(call, &output)).transpose()?,
            axes: rows.summed.iter().map(|axis| *axis as isize).collect(),
            kept: rows.kept.clone(),
            divisor: rows.width as f64 - correction,
        }))
    })?;
    Ok(output)
}

impl Tensor {
    /// The variance of all elements: the sum of squares from the mean, divided by one less than their
    /// number.
    ///
    /// # Errors
    ///
    /// If they are no floats, or if there is no memory.
    #[track_caller]
    pub fn var(&self) -> Result<Tensor> {
        variance(Call::here("var"), self, &[], 1.0, false, false)
    }

    /// The variances over these axes (none means all), which stay with size one if `keepdim`. The sum of
    /// squares is divided by the number of elements less `correction`.
    ///
    /// # Errors
    ///
    /// If they are no floats, there is no such axis, or no memory.
    #[track_caller]
    pub fn var_dim(&self, axes: &[isize], correction: f64, keepdim: bool) -> Result<Tensor> {
        variance(Call::here("var"), self, axes, correction, keepdim, false)
    }

    /// The deviation of all elements: the root of the [variance](Self::var).
    ///
    /// # Errors
    ///
    /// As for [`var`](Self::var).
    #[track_caller]
    pub fn std(&self) -> Result<Tensor> {
        variance(Call::here("std"), self, &[], 1.0, false, true)
    }

    /// The deviations over these axes: the roots of the [variances](Self::var_dim).
    ///
    /// # Errors
    ///
    /// As for [`var_dim`](Self::var_dim).
    #[track_caller]
    pub fn std_dim(&self, axes: &[isize], correction: f64, keepdim: bool) -> Result<Tensor> {
        variance(Call::here("std"), self, axes, correction, keepdim, true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{conformance, gradcheck};
    use crate::{DType, Device};

    #[test]
    fn variances_are_mean_squares_from_the_mean() -> Result<()> {
        let device = Device::host("64 MiB").unwrap();
        let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0, 6.0, 8.0], [2, 3], &device)?;
        assert_eq!(x.var_dim(&[1], 1.0, false)?.to_vec::<f32>()?, [1.0, 4.0]);
        assert_eq!(x.std_dim(&[1], 1.0, true)?.to_vec::<f32>()?, [1.0, 2.0]);
        assert_eq!(x.var_dim(&[0], 0.0, false)?.to_vec::<f32>()?, [2.25, 4.0, 6.25]);
        assert_eq!(x.var()?.item::<f32>()?, 6.8);
        assert!(x.select(0, 0)?.narrow(0, 0, 1)?.var()?.item::<f32>()?.is_nan());
        // Digits survive a mean that is far larger than the deviation.
        let far = Tensor::randn([100_000], &device)?.add(1000.0)?;
        assert!((far.std()?.item::<f32>()? - 1.0).abs() < 0.02);
        Ok(())
    }

    #[test]
    fn gradients_are_right() {
        gradcheck(&[&[3, 4]], |x| x[0].var()).unwrap();
        gradcheck(&[&[3, 4, 2]], |x| x[0].var_dim(&[0, 2], 0.0, false)).unwrap();
        gradcheck(&[&[3, 4]], |x| x[0].std_dim(&[1], 1.0, true)).unwrap();
        gradcheck(&[&[3, 4]], |x| x[0].std()).unwrap();
    }

    conformance!(variances_of_every_type_and_layout, |device| {
        let mut results = Vec::new();
        for dtype in [DType::F32, DType::F64, DType::Bf16, DType::F16] {
            let x = Tensor::randn([30, 6, 48], device)?.to(dtype)?;
            for axes in [&[][..], &[0], &[2], &[0, 2], &[1, 2]] {
                results.push(x.var_dim(axes, 1.0, false)?);
                results.push(x.transpose(0, 2)?.std_dim(axes, 0.0, true)?);
            }
            results.push(x.narrow(2, 1, 1)?.var_dim(&[2], 1.0, false)?);
        }
        Ok(results)
    });

    conformance!(variances, |device| {
        let x = Tensor::rand([20, 30], device)?.requires_grad_(true)?;
        let y = x.var_dim(&[0], 1.0, false)?.std()?;
        y.backward()?;
        Ok(vec![y, x.grad().unwrap()])
    });
}
