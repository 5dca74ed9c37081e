//! The largest and the smallest: of all elements, along an axis, and where they are.
//!
//! What is no number counts as larger and smaller than everything, and of equals the first is taken.

use tonnage_device::cuda::{Arguments, Extent};

use super::reduce::Axes;
use crate::autograd::{Backward, Grads, Needs, Saved, record};
use crate::dtype::{DType, Stored, dispatch};
use crate::error::{Call, Result};
use crate::exec::cuda::{self, Launch, Program, stored, wide};
use crate::exec::{Args, CHUNK, Input, Kernel, Operand, Operands, Output, Plan, slices};
use crate::shape::Shape;
use crate::tensor::Tensor;

/// Which extreme.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extreme {
    Max,
    Min,
}

impl Extreme {
    fn name(self) -> &'static str {
        match self {
            Self::Max => "MaxBackward",
            Self::Min => "MinBackward",
        }
    }

    /// Whether `new` takes the place of `old`, which came before it.
    #[inline]
    #[expect(clippy::eq_op, reason = "what is no number differs from itself")]
    fn beats<T: PartialOrd>(self, new: &T, old: &T) -> bool {
        let better = match self {
            Self::Max => new > old,
            Self::Min => new < old,
        };
        better || (new != new && old == old)
    }
}

/// The extremes of rows: values, their places in the rows, or both, as there are outputs.
pub(crate) struct ExtremeRows {
    extreme: Extreme,
    width: usize,
    values: bool,
    places: bool,
}

impl Kernel for ExtremeRows {
    fn host(&self, args: &mut Args<'_>) -> Result<(), String> {
        let x = args.input(0);
        let mut best = vec![0usize; x.numel().checked_div(self.width).unwrap_or(0)];
        match x.dtype() {
            DType::F64 => self.find::<f64>(x, &mut best),
            DType::F32 | DType::Bf16 | DType::F16 => self.find::<f32>(x, &mut best),
            DType::Complex64 => return Err("complex numbers have no order".to_owned()),
            _ => self.find::<i64>(x, &mut best),
        }
        if self.values {
            dispatch!(x.dtype(), T => self.pick::<T>(args.take(0), x, &best));
        }
        if self.places {
            let to = args.take::<i64>(usize::from(self.values)).slice();
            to.iter_mut().zip(&best).for_each(|(to, place)| *to = *place as i64);
        }
        Ok(())
    }

    fn cuda(&self, on: Operands<'_>) -> Plan {
        let x = &on.inputs[0];
        let count = on.outputs[0].layout.numel();
        if count == 0 {
            return Plan::nothing();
        }
        let rows = cuda::AnyRows::of(x, self.width);
        let values = self.values.then(|| &on.outputs[0]);
        let places = self.places.then(|| &on.outputs[usize::from(self.values)]);
        let mut arguments = Arguments::new();
        arguments.push(values.map_or(0, Operand::first));
        arguments.push(places.map_or(0, Operand::first));
        arguments.push(x.first());
        rows.kept.push(&mut arguments);
        rows.along.push(&mut arguments);
        arguments.push(count as u64);
        arguments.push(self.width as u64);
        let types: [(&str, &dyn std::fmt::Display); 8] = [
            ("IN", &stored(x.dtype)),
            ("C", &wide(x.dtype)),
            ("MAX", &u8::from(self.extreme == Extreme::Max)),
            ("HAS_VALUES", &u8::from(self.values)),
            ("HAS_PLACES", &u8::from(self.places)),
            ("KEPT", &rows.kept.count()),
            ("ALONG", &rows.along.count()),
            ("INDEX", &rows.index),
        ];
        let constants = [&types[..], &rows.group.constants()].concat();
        let program = Program::new("extreme_rows", TEXT, &constants);
        Launch::new(program, rows.group.extent(count), arguments).into()
    }
}

impl ExtremeRows {
    /// The place of each row's extreme.
    fn find<T: Stored + PartialOrd>(&self, x: Input<'_>, best: &mut [usize]) {
        slices(best, 1, self.width, &|row, best| {
            let mut scratch = Vec::new();
            let start = row * self.width;
            let mut found: Option<(usize, T)> = None;
            for piece in (0..self.width).step_by(CHUNK) {
                let range = start + piece..start + self.width.min(piece + CHUNK);
                for (place, it) in x.chunk::<T>(range, &mut scratch).iter().enumerate() {
                    if found.is_none_or(|(_, old)| self.extreme.beats(it, &old)) {
                        found = Some((piece + place, *it));
                    }
                }
            }
            best[0] = found.map_or(0, |(place, _)| place);
        });
    }

    fn pick<T: Stored>(&self, output: Output<'_, T>, x: Input<'_>, best: &[usize]) {
        let mut scratch = Vec::new();
        for (row, (to, place)) in output.slice().iter_mut().zip(best).enumerate() {
            let index = row * self.width + place;
            *to = x.chunk::<T>(index..index + 1, &mut scratch)[0];
        }
    }
}

/// Puts each gradient where its extreme was; the output's rows are zero before.
struct PutRows {
    width: usize,
}

impl Kernel for PutRows {
    fn host(&self, args: &mut Args<'_>) -> Result<(), String> {
        let places = args.input(1).to_slice::<i64>();
        let width = self.width;
        dispatch!(args.output_dtype(0), T => {
            let grad = args.input(0).to_slice::<T>();
            let mut output: Output<'_, T> = args.take(0);
            for (row, (grad, place)) in grad.iter().zip(&*places).enumerate() {
                let index = row * width + *place as usize;
                output.write(index..index + 1, &[*grad]);
            }
        });
        Ok(())
    }

    fn cuda(&self, on: Operands<'_>) -> Plan {
        /// Threads of a block.
        const THREADS: u32 = 256;
        let (output, grad, places) = (&on.outputs[0], &on.inputs[0], &on.inputs[1]);
        let rows = places.layout.numel();
        if rows == 0 {
            return Plan::nothing();
        }
        let [kept, along] = cuda::Axes::split(&output.layout, self.width);
        let [of_grad, of_places] =
            [grad, places].map(|it| cuda::Axes::of(it.layout.shape(), it.layout.strides()));
        let mut arguments = Arguments::new();
        [output, grad, places].iter().for_each(|it| arguments.push(it.first()));
        [&kept, &along, &of_grad, &of_places].iter().for_each(|it| it.push(&mut arguments));
        arguments.push(rows as u64);
        let constants: [(&str, &dyn std::fmt::Display); 9] = [
            ("PUTS", &1),
            ("OUT", &stored(output.dtype)),
            ("KEPT", &kept.count()),
            ("ALONG", &along.count()),
            ("GRADS", &of_grad.count()),
            ("PLACES", &of_places.count()),
            ("INDEX", &cuda::index_type(output.layout.numel())),
            ("THREADS", &THREADS),
            ("GROUP", &1),
        ];
        let program = Program::new("put_rows", TEXT, &constants);
        let extent = Extent::line(cuda::blocks(rows as u64, u64::from(THREADS)), THREADS);
        Launch::new(program, extent, arguments).into()
    }
}

const TEXT: &str = concat!(include_str!("../exec/cuda/rows.cuh"), include_str!("extreme.cu"));

/// Along an axis: the gradient goes to the one that was taken.
struct ExtremeDimBackward {
    call: Call,
    shape: Shape,
    axis: usize,
    places: Saved,
}

impl Backward for ExtremeDimBackward {
    fn backward(&self, grads: &[Option<Tensor>], _: &Needs<'_>) -> Result<Grads> {
        let Some(grad) = &grads[0] else { return Ok(Grads::from_iter([None])) };
        let (call, places) = (self.call, self.places.unpack()?);
        let to = Tensor::zeros(&self.shape, (grad.device(), grad.dtype()))?;
        let axis = self.axis as isize;
        let rows = Axes::new(call, &to, &[axis], false)?;
        call.launch(
            PutRows { width: rows.width },
            &[&rows.summed_last(call, &to)?],
            &[grad, &places],
        )?;
        Ok(Grads::from_iter([Some(to)]))
    }
}

/// Of all elements: the gradient is shared by all that are equal to the extreme.
struct ExtremeBackward {
    x: Saved,
    result: Saved,
}

impl Backward for ExtremeBackward {
    fn backward(&self, grads: &[Option<Tensor>], _: &Needs<'_>) -> Result<Grads> {
        let Some(grad) = &grads[0] else { return Ok(Grads::from_iter([None])) };
        let mask = self.x.unpack()?.eq(&self.result.unpack()?)?;
        let share = grad.div(&mask.sum()?)?;
        Ok(Grads::from_iter([Some(mask.mul(&share)?)]))
    }
}

#[track_caller]
fn checked(call: Call, x: &Tensor, axes: &[isize], keepdim: bool) -> Result<Axes> {
    if x.dtype() == DType::Complex64 {
        let error = call.dtype_error("complex numbers have no order");
        return Err(error.with_tensor("self", x));
    }
    let rows = Axes::new(call, x, axes, keepdim)?;
    if rows.width == 0 && rows.result.checked_numel() != Some(0) {
        let error = call.shape_error("nothing has no extreme");
        return Err(error.with_tensor("self", x));
    }
    Ok(rows)
}

/// Of all elements.
#[track_caller]
fn of_all(call: Call, extreme: Extreme, x: &Tensor) -> Result<Tensor> {
    let rows = checked(call, x, &[], false)?;
    let output = Tensor::uninit(call, Shape::default(), x.dtype(), x.device())?;
    let kernel = ExtremeRows { extreme, width: rows.width, values: true, places: false };
    call.launch(kernel, &[&output], &[x])?;
    record(call, extreme.name(), &[&output], &[x], || {
        let (x, result) = (Saved::input(call, x)?, Saved::output(call, &output)?);
        Ok(Box::new(ExtremeBackward { x, result }))
    })?;
    Ok(output)
}

/// Along an axis: values and places.
#[track_caller]
fn along(
    call: Call,
    extreme: Extreme,
    x: &Tensor,
    axis: isize,
    keepdim: bool,
) -> Result<(Tensor, Tensor)> {
    let rows = checked(call, x, &[axis], keepdim)?;
    let values = Tensor::uninit(call, rows.result.clone(), x.dtype(), x.device())?;
    let places = Tensor::uninit(call, rows.result.clone(), DType::I64, x.device())?;
    let kernel = ExtremeRows { extreme, width: rows.width, values: true, places: true };
    call.launch(kernel, &[&values, &places], &[&rows.summed_last(call, x)?])?;
    record(call, extreme.name(), &[&values], &[x], || {
        let (shape, axis) = (x.shape().clone(), rows.summed[0]);
        let places = Saved::output(call, &places)?;
        Ok(Box::new(ExtremeDimBackward { call, shape, axis, places }))
    })?;
    Ok((values, places))
}

/// Places only; without an axis, among all elements in order.
#[track_caller]
fn places(
    call: Call,
    extreme: Extreme,
    x: &Tensor,
    axis: Option<isize>,
    keepdim: bool,
) -> Result<Tensor> {
    let axis: Vec<isize> = axis.into_iter().collect();
    let rows = checked(call, x, &axis, keepdim)?;
    let output = Tensor::uninit(call, rows.result.clone(), DType::I64, x.device())?;
    let kernel = ExtremeRows { extreme, width: rows.width, values: false, places: true };
    call.launch(kernel, &[&output], &[&rows.summed_last(call, x)?])?;
    Ok(output)
}

impl Tensor {
    /// The largest of all elements. Its gradient is shared by those that are equal.
    ///
    /// # Errors
    ///
    /// If there are no elements, they are complex, or there is no memory.
    #[track_caller]
    pub fn max(&self) -> Result<Tensor> {
        of_all(Call::here("max"), Extreme::Max, self)
    }

    /// The smallest of all elements. Its gradient is shared by those that are equal.
    ///
    /// # Errors
    ///
    /// As for [`max`](Self::max).
    #[track_caller]
    pub fn min(&self) -> Result<Tensor> {
        of_all(Call::here("min"), Extreme::Min, self)
    }

    /// The largest along an axis, and where: the axis stays with size one if `keepdim`.
    ///
    /// ```
    /// # use tonnage_tensor::{Device, Tensor};
    /// # let device = Device::host("64 MiB")?;
    /// let x = Tensor::from_slice(&[1.0f32, 5.0, 3.0, 9.0, 7.0, 8.0], [2, 3], &device)?;
    /// let (values, places) = x.max_dim(1, false)?;
    /// assert_eq!(values.to_vec::<f32>()?, [5.0, 9.0]);
    /// assert_eq!(places.to_vec::<i64>()?, [1, 0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`max`](Self::max), and if there is no such axis.
    #[track_caller]
    pub fn max_dim(&self, axis: isize, keepdim: bool) -> Result<(Tensor, Tensor)> {
        along(Call::here("max"), Extreme::Max, self, axis, keepdim)
    }

    /// The smallest along an axis, and where: the axis stays with size one if `keepdim`.
    ///
    /// # Errors
    ///
    /// As for [`max_dim`](Self::max_dim).
    #[track_caller]
    pub fn min_dim(&self, axis: isize, keepdim: bool) -> Result<(Tensor, Tensor)> {
        along(Call::here("min"), Extreme::Min, self, axis, keepdim)
    }

    /// Where the largest is: along an axis, or among all elements in order.
    ///
    /// # Errors
    ///
    /// As for [`max_dim`](Self::max_dim).
    #[track_caller]
    pub fn argmax(&self, axis: impl Into<Option<isize>>, keepdim: bool) -> Result<Tensor> {
        places(Call::here("argmax"), Extreme::Max, self, axis.into(), keepdim)
    }

    /// Where the smallest is: along an axis, or among all elements in order.
    ///
    /// # Errors
    ///
    /// As for [`max_dim`](Self::max_dim).
    #[track_caller]
    pub fn argmin(&self, axis: impl Into<Option<isize>>, keepdim: bool) -> Result<Tensor> {
        places(Call::here("argmin"), Extreme::Min, self, axis.into(), keepdim)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Device;
    use crate::testing::{conformance, gradcheck};

    #[test]
    fn extremes_are_found_along_any_axis_and_of_any_type() -> Result<()> {
        let device = Device::host("64 MiB").unwrap();
        let numbers = [3i64, 1, 2, 9, 9, 4, 0, 5, 8, 7, 6, 5];
        let x = Tensor::from_slice(&numbers, [2, 2, 3], &device)?;
        for dtype in [DType::I64, DType::I32, DType::U8, DType::F32, DType::F64, DType::Bf16] {
            let x = x.to(dtype)?;
            let whole = |it: Tensor| it.to(DType::I64)?.to_vec::<i64>();
            assert_eq!((whole(x.max()?)?[0], whole(x.min()?)?[0]), (9, 0), "{dtype}");
            let (values, places) = x.max_dim(-1, false)?;
            assert_eq!(whole(values)?, [3, 9, 8, 7]);
            assert_eq!(places.to_vec::<i64>()?, [0, 0, 2, 0], "the first of equals");
            let (values, places) = x.min_dim(0, true)?;
            assert_eq!(values.shape()[..], [1, 2, 3]);
            assert_eq!(whole(values)?, [0, 1, 2, 7, 6, 4]);
            assert_eq!(places.to_vec::<i64>()?, [1, 0, 0, 1, 1, 0]);
            assert_eq!(x.argmax(None, false)?.item::<i64>()?, 3);
            assert_eq!(x.argmin(1, false)?.to_vec::<i64>()?, [0, 0, 0, 0, 0, 1]);
            assert_eq!(x.transpose(0, 2)?.argmax(None, false)?.item::<i64>()?, 2);
        }
        Ok(())
    }

    #[test]
    fn what_is_no_number_wins() -> Result<()> {
        let device = Device::host("64 MiB").unwrap();
        let x = Tensor::from_slice(&[1.0f32, f32::NAN, 9.0, f32::NAN], [4], &device)?;
        assert!(x.max()?.item::<f32>()?.is_nan() && x.min()?.item::<f32>()?.is_nan());
        assert_eq!(x.argmax(0, false)?.item::<i64>()?, 1);
        Ok(())
    }

    #[test]
    fn nothing_has_no_extreme() -> Result<()> {
        let device = Device::host("64 MiB").unwrap();
        let x = Tensor::zeros([0, 3], &device)?;
        assert!(x.max().is_err() && x.max_dim(0, false).is_err());
        assert_eq!(x.max_dim(1, false)?.0.numel(), 0);
        assert!(Tensor::zeros([1], (&device, DType::Complex64))?.max().is_err());
        Ok(())
    }

    #[test]
    fn gradients_are_right() {
        gradcheck(&[&[3, 4]], |x| x[0].max()).unwrap();
        gradcheck(&[&[3, 4]], |x| x[0].min()).unwrap();
        gradcheck(&[&[3, 4, 2]], |x| Ok(x[0].max_dim(1, false)?.0)).unwrap();
        gradcheck(&[&[3, 4]], |x| Ok(x[0].min_dim(0, true)?.0)).unwrap();
    }

    #[test]
    fn equals_share_the_gradient_of_all() -> Result<()> {
        let device = Device::host("64 MiB").unwrap();
        let x = Tensor::from_slice(&[2.0f32, 1.0, 2.0], [3], &device)?.requires_grad_(true)?;
        x.max()?.backward()?;
        assert_eq!(x.grad().unwrap().to_vec::<f32>()?, [0.5, 0.0, 0.5]);
        Ok(())
    }

    conformance!(extremes_of_every_type_and_layout, |device| {
        let mut results = Vec::new();
        for dtype in [
            DType::F32,
            DType::F64,
            DType::Bf16,
            DType::F16,
            DType::I64,
            DType::I32,
            DType::U8,
            DType::Bool,
        ] {
            let x = Tensor::rand([30, 6, 48], device)?.mul(9.0)?.to(dtype)?;
            for axis in [0, 1, 2] {
                let (values, places) = x.max_dim(axis, false)?;
                let (low, lows) = x.transpose(0, 2)?.min_dim(axis, true)?;
                results.extend([values, places, low, lows]);
            }
            results.extend([x.max()?, x.transpose(0, 1)?.min()?, x.argmax(None, false)?]);
        }
        let x = Tensor::rand([30, 6, 48], device)?.requires_grad_(true)?;
        for axis in [0, 1, 2] {
            x.max_dim(axis, true)?.0.sum()?.backward()?;
            x.min_dim(axis, false)?.0.square()?.sum()?.backward()?;
        }
        results.push(x.grad().unwrap());
        Ok(results)
    });

    conformance!(extremes, |device| {
        let x = Tensor::ones([20, 30], device)?.requires_grad_(true)?;
        let (values, places) = x.max_dim(0, false)?;
        values.min()?.backward()?;
        Ok(vec![values, places, x.argmin(1, true)?, x.grad().unwrap()])
    });
}
