//! Pools over images: the largest or the mean of what a window sees.

use tonnage_device::cuda::{Arguments, Extent};

use super::window::{Pair, Window, images, window_options, windows};
use crate::autograd::{Backward, Grads, Needs, Saved, record};
use crate::dtype::{DType, Float, Real, dispatch_float};
use crate::error::{Call, ErrorKind, Result};
use crate::exec::cuda::{self, Launch, Program, stored, wide};
use crate::exec::{Args, Input, Kernel, Operands, Plan, slices};
use crate::shape::Shape;
use crate::tensor::Tensor;

/// How the window of a pool moves. A number alone is the size of a window that moves by its own size.
///
/// ```
/// # use tonnage_tensor::{Device, PoolOptions, Tensor};
/// # let device = Device::dry("1 GiB")?;
/// let x = Tensor::randn([8, 64, 112, 112], &device)?;
/// let y = x.max_pool2d(PoolOptions::new(3).stride(2).padding(1))?;
/// assert_eq!(y.shape()[..], [8, 64, 56, 56]);
/// assert_eq!(y.avg_pool2d(2)?.shape()[..], [8, 64, 28, 28]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolOptions {
    /// The window's size.
    pub kernel: Pair,
    /// How far it moves; its own size.
    pub stride: Pair,
    /// How far it reaches beyond each side; not at all. At most half the window.
    pub padding: Pair,
    /// How far apart the elements lie that it sees; 1. For [`max_pool2d`](Tensor::max_pool2d) only.
    pub dilation: Pair,
    /// Whether a last window may reach beyond the padding; no.
    pub ceil_mode: bool,
    /// Whether means count the zeros of the padding; yes.
    pub count_include_pad: bool,
}

window_options!(PoolOptions);

impl PoolOptions {
    /// A window that moves by its own size.
    #[must_use]
    pub fn new(kernel: impl Into<Pair>) -> Self {
        let kernel = kernel.into();
        let (padding, dilation) = (0.into(), 1.into());
        let (ceil_mode, count_include_pad) = (false, true);
        Self { kernel, stride: kernel, padding, dilation, ceil_mode, count_include_pad }
    }

    /// Lets a last window reach beyond the padding.
    #[must_use]
    pub fn ceil_mode(mut self, on: bool) -> Self {
        self.ceil_mode = on;
        self
    }

    /// Whether means count the zeros of the padding.
    #[must_use]
    pub fn count_include_pad(mut self, on: bool) -> Self {
        self.count_include_pad = on;
        self
    }
}

impl From<usize> for PoolOptions {
    fn from(kernel: usize) -> Self {
        Self::new(kernel)
    }
}

impl From<[usize; 2]> for PoolOptions {
    fn from(kernel: [usize; 2]) -> Self {
        Self::new(kernel)
    }
}

/// The largest element that each window sees, and which of its channel it is.
pub(crate) struct MaxPool2d {
    rows: Window,
    columns: Window,
}

impl MaxPool2d {
    /// The place of the largest; the first of equals, and the last of those that are no numbers.
    #[inline]
    #[expect(clippy::eq_op, reason = "what is no number differs from itself")]
    fn largest<R: Real>(&self, channel: &[R], row: usize, column: usize) -> usize {
        let mut best: Option<usize> = None;
        for line in self.rows.taps(row).filter_map(|tap| self.rows.sees(row, tap)) {
            for at in self.columns.taps(column).filter_map(|tap| self.columns.sees(column, tap)) {
                let place = line * self.columns.size + at;
                let value = channel[place];
                if best.is_none_or(|best| value > channel[best] || value != value) {
                    best = Some(place);
                }
            }
        }
        best.unwrap_or(0)
    }
}

impl Kernel for MaxPool2d {
    fn host(&self, args: &mut Args<'_>) -> Result<(), String> {
        let (x, plane) = (args.input(0), self.rows.size * self.columns.size);
        let places = self.rows.places * self.columns.places;
        dispatch_float!(x.dtype(), T => {
            let seen = self.rows.kernel * self.columns.kernel;
            let indices = args.take::<i64>(1).slice();
            slices(indices, places, places * seen, &|channel, to| {
                let mut scratch = Vec::new();
                let channel: &[<T as Float>::Wide] =
                    x.chunk(channel * plane..(channel + 1) * plane, &mut scratch);
                for (row, to) in to.chunks_mut(self.columns.places).enumerate() {
                    for (column, to) in to.iter_mut().enumerate() {
                        *to = self.largest(channel, row, column) as i64;
                    }
                }
            });
            let (indices, values) = (&*indices, args.take::<T>(0).slice());
            slices(values, places, places, &|channel, to| {
                let mut scratch = Vec::new();
                let from: &[T] = x.chunk(channel * plane..(channel + 1) * plane, &mut scratch);
                let indices = &indices[channel * places..];
                to.iter_mut().zip(indices).for_each(|(to, index)| *to = from[*index as usize]);
            });
        }, else return Err(no_float()));
        Ok(())
    }

    fn cuda(&self, on: Operands<'_>) -> Plan {
        let constants = [("MAX_POOL", "1"), ("IN", stored(on.inputs[0].dtype))];
        launch("max_pool", on, [self.rows, self.columns], &constants)
    }
}

/// Gradients added where the largest elements were.
pub(crate) struct MaxPool2dGrad {
    rows: Window,
    columns: Window,
}

impl Kernel for MaxPool2dGrad {
    fn host(&self, args: &mut Args<'_>) -> Result<(), String> {
        let (grad, indices) = (args.input(0), args.input(1));
        let plane = self.rows.size * self.columns.size;
        let places = self.rows.places * self.columns.places;
        dispatch_float!(args.output_dtype(0), T => {
            slices(args.take::<T>(0).slice(), plane, plane, &|channel, to| {
                let (mut for_grad, mut for_indices) = (Vec::new(), Vec::new());
                let range = channel * places..(channel + 1) * places;
                let grad: &[<T as Float>::Wide] = grad.chunk(range.clone(), &mut for_grad);
                let indices: &[i64] = indices.chunk(range, &mut for_indices);
                let mut sums = vec![<T as Float>::Wide::default(); to.len()];
                for (index, grad) in indices.iter().zip(grad) {
                    let sum = &mut sums[*index as usize];
                    *sum += *grad;
                }
                to.iter_mut().zip(sums).for_each(|(to, sum)| *to = T::narrow(sum));
            });
        }, else return Err(no_float()));
        Ok(())
    }

    fn cuda(&self, on: Operands<'_>) -> Plan {
        let constants = [("MAX_POOL_GRAD", "1"), ("GRAD", stored(on.inputs[0].dtype))];
        launch("max_pool_grad", on, [self.rows, self.columns], &constants)
    }
}

const TEXT: &str = concat!(include_str!("../exec/cuda/rows.cuh"), include_str!("pool.cu"));

/// A launch with a thread for each element of the output.
fn launch(
    name: &'static str,
    on: Operands<'_>,
    windows: [Window; 2],
    own: &[(&'static str, &'static str)],
) -> Plan {
    /// Threads of a block.
    const THREADS: u32 = 256;
    let output = &on.outputs[0];
    let numel = output.layout.numel();
    if numel == 0 {
        return Plan::nothing();
    }
    let mut arguments = Arguments::new();
    on.outputs.iter().chain(on.inputs).for_each(|it| arguments.push(it.first()));
    let words =
        windows.map(|it| [it.size, it.kernel, it.stride, it.padding, it.dilation, it.places]);
    for words in words {
        let bytes: Vec<u8> = words.iter().flat_map(|&it| (it as u64).to_ne_bytes()).collect();
        arguments.push_bytes(&bytes);
    }
    // Products of two of them are short, too.
    let is_short = words.iter().flatten().all(|it| *it < 1 << 15);
    let signed = if is_short { "int" } else { "i64" };
    arguments.push(numel as u64);
    let (to, compute) = (stored(output.dtype), wide(output.dtype));
    let index = cuda::index_type(numel);
    let mut constants: Vec<(&str, &dyn std::fmt::Display)> = vec![
        ("OUT", &to),
        ("C", &compute),
        ("INDEX", &index),
        ("SIGNED", &signed),
        ("THREADS", &THREADS),
        ("GROUP", &1),
    ];
    constants.extend(own.iter().map(|(name, it)| (*name, it as &dyn std::fmt::Display)));
    let blocks = cuda::blocks(numel as u64, u64::from(THREADS));
    let program = Program::new(name, TEXT, &constants);
    Launch::new(program, Extent::line(blocks, THREADS), arguments).into()
}

/// Windows whose means are taken.
#[derive(Clone, Copy)]
enum Means {
    /// That slide; whether the padding counts.
    Sliding { rows: Window, columns: Window, padding: bool },
    /// That divide the image as evenly as they can: sizes in and out.
    Dividing { size: [usize; 2], places: [usize; 2] },
}

impl Means {
    fn size(&self) -> [usize; 2] {
        match self {
            Self::Sliding { rows, columns, .. } => [rows.size, columns.size],
            Self::Dividing { size, .. } => *size,
        }
    }

    fn places(&self) -> [usize; 2] {
        match self {
            Self::Sliding { rows, columns, .. } => [rows.places, columns.places],
            Self::Dividing { places, .. } => *places,
        }
    }

    /// As programs for GPUs have them: windows along both axes, whether they slide, and whether the padding counts.
    fn windows(&self) -> ([Window; 2], [(&'static str, &'static str); 2]) {
        let truth = |it: bool| if it { "1" } else { "0" };
        let (windows, slides, counts) = match *self {
            Self::Sliding { rows, columns, padding } => ([rows, columns], true, padding),
            Self::Dividing { size, places } => {
                let along = |axis: usize| Window {
                    size: size[axis],
                    kernel: 1,
                    stride: 1,
                    padding: 0,
                    dilation: 1,
                    places: places[axis],
                };
                ([along(0), along(1)], false, false)
            }
        };
        (windows, [("SLIDES", truth(slides)), ("COUNTS_PADDING", truth(counts))])
    }

    /// What the window at a place sees of each axis, and by what its sum is divided.
    fn window(&self, place: [usize; 2]) -> ([std::ops::Range<usize>; 2], usize) {
        match self {
            Self::Sliding { rows, columns, padding } => {
                let along = |window: &Window, place: usize| {
                    // As with the padding an array of its own: what lies behind it does not count.
                    let start = place * window.stride;
                    let end = (start + window.kernel).min(window.size + 2 * window.padding);
                    let seen = |at: usize| at.saturating_sub(window.padding).min(window.size);
                    (seen(start)..seen(end), end - start)
                };
                let (rows, height) = along(rows, place[0]);
                let (columns, width) = along(columns, place[1]);
                let seen = rows.len() * columns.len();
                ([rows, columns], if *padding { height * width } else { seen })
            }
            Self::Dividing { size, places } => {
                let along = |axis: usize| {
                    let (size, places) = (size[axis], places[axis]);
                    place[axis] * size / places..((place[axis] + 1) * size).div_ceil(places)
                };
                let ranges = [along(0), along(1)];
                let count = ranges[0].len() * ranges[1].len();
                (ranges, count)
            }
        }
    }

    /// Calls `visit` for each window of a channel: its number, the rows and columns it sees, and one
    /// over what its sum is divided by.
    fn for_each(&self, mut visit: impl FnMut(usize, [std::ops::Range<usize>; 2], f64)) {
        let [rows, columns] = self.places();
        for place in 0..rows * columns {
            let (seen, count) = self.window([place / columns, place % columns]);
            visit(place, seen, count as f64);
        }
    }
}

/// The mean of what each window sees.
pub(crate) struct AvgPool2d(Means);

impl Kernel for AvgPool2d {
    fn host(&self, args: &mut Args<'_>) -> Result<(), String> {
        let x = args.input(0);
        let ([height, width], [rows, columns]) = (self.0.size(), self.0.places());
        dispatch_float!(x.dtype(), T => {
            let output = args.take::<T>(0).slice();
            slices(output, rows * columns, height * width, &|channel, to| {
                type W = <T as Float>::Wide;
                let mut scratch = Vec::new();
                let from: &[W] = of_channel(x, channel, height * width, &mut scratch);
                self.0.for_each(|place, [rows, columns], count| {
                    let mut sum = W::default();
                    for row in rows {
                        let line = &from[row * width..][columns.clone()];
                        sum = line.iter().fold(sum, |sum, it| sum + *it);
                    }
                    to[place] = T::narrow(sum / W::n(count));
                });
            });
        }, else return Err(no_float()));
        Ok(())
    }

    fn cuda(&self, on: Operands<'_>) -> Plan {
        let (windows, [slides, counts]) = self.0.windows();
        let own = [("AVG_POOL", "1"), ("IN", stored(on.inputs[0].dtype))];
        launch("avg_pool", on, windows, &[own, [slides, counts]].concat())
    }
}

/// Gradients shared by what each window saw.
pub(crate) struct AvgPool2dGrad(Means);

impl Kernel for AvgPool2dGrad {
    fn host(&self, args: &mut Args<'_>) -> Result<(), String> {
        let grad = args.input(0);
        let ([height, width], [rows, columns]) = (self.0.size(), self.0.places());
        dispatch_float!(args.output_dtype(0), T => {
            let output = args.take::<T>(0).slice();
            slices(output, height * width, height * width, &|channel, to| {
                type W = <T as Float>::Wide;
                let mut scratch = Vec::new();
                let grad: &[W] = of_channel(grad, channel, rows * columns, &mut scratch);
                let mut sums = vec![W::default(); to.len()];
                self.0.for_each(|place, [rows, columns], count| {
                    let share = grad[place] / W::n(count);
                    for row in rows {
                        let line = &mut sums[row * width..][columns.clone()];
                        line.iter_mut().for_each(|it| *it += share);
                    }
                });
                to.iter_mut().zip(sums).for_each(|(to, sum)| *to = T::narrow(sum));
            });
        }, else return Err(no_float()));
        Ok(())
    }

    fn cuda(&self, on: Operands<'_>) -> Plan {
        let (windows, [slides, counts]) = self.0.windows();
        let own = [("AVG_POOL_GRAD", "1"), ("GRAD", stored(on.inputs[0].dtype))];
        launch("avg_pool_grad", on, windows, &[own, [slides, counts]].concat())
    }
}

/// The elements of one channel of one image.
fn of_channel<'s, R: Real>(
    x: Input<'s>,
    channel: usize,
    size: usize,
    scratch: &'s mut Vec<R>,
) -> &'s [R] {
    x.chunk(channel * size..(channel + 1) * size, scratch)
}

fn no_float() -> String {
    "pools are of floats".to_owned()
}

struct MaxPoolBackward {
    call: Call,
    windows: [Window; 2],
    x: Saved,
    indices: Saved,
}

impl Backward for MaxPoolBackward {
    fn backward(&self, grads: &[Option<Tensor>], _: &Needs<'_>) -> Result<Grads> {
        let Some(grad) = &grads[0] else { return Ok(Grads::from_iter([None])) };
        let (x, indices) = (self.x.unpack()?, self.indices.unpack()?);
        let grad = grad.in_order(self.call)?;
        let to = Tensor::uninit(self.call, x.shape().clone(), x.dtype(), x.device())?;
        let [rows, columns] = self.windows;
        let kernel = MaxPool2dGrad { rows, columns };
        self.call.launch(kernel, &[&to], &[&grad, &indices])?;
        Ok(Grads::from_iter([Some(to)]))
    }
}

struct AvgPoolBackward {
    call: Call,
    means: Means,
    x: Saved,
}

impl Backward for AvgPoolBackward {
    fn backward(&self, grads: &[Option<Tensor>], _: &Needs<'_>) -> Result<Grads> {
        let Some(grad) = &grads[0] else { return Ok(Grads::from_iter([None])) };
        let x = self.x.unpack()?;
        let grad = grad.in_order(self.call)?;
        let to = Tensor::uninit(self.call, x.shape().clone(), x.dtype(), x.device())?;
        self.call.launch(AvgPool2dGrad(self.means), &[&to], &[&grad])?;
        Ok(Grads::from_iter([Some(to)]))
    }
}

/// What both kinds of pool ask of their input and options.
fn checked(call: Call, x: &Tensor, options: PoolOptions) -> Result<[Window; 2]> {
    if !x.dtype().is_float() {
        return Err(call.dtype_error("pools are of floats").with_tensor("self", x));
    }
    let [_, _, height, width] = images(call, x)?;
    if height == 0 || width == 0 {
        let what = "an image without elements has nothing to pool";
        return Err(call.shape_error(what).with_tensor("self", x));
    }
    let (kernel, padding) = (options.kernel.0, options.padding.0);
    let [rows, columns] = windows(
        call,
        x,
        [kernel, options.stride.0, padding, options.dilation.0],
        options.ceil_mode,
    )?;
    if padding[0] > kernel[0] / 2 || padding[1] > kernel[1] / 2 {
        return Err(call
            .error(ErrorKind::Value, "the padding is more than half the window")
            .with_tensor("self", x)
            .with("kernel", format_args!("{kernel:?}"))
            .with("padding", format_args!("{padding:?}")));
    }
    Ok([rows, columns])
}

fn mean_pool(call: Call, x: &Tensor, means: Means, node: &'static str) -> Result<Tensor> {
    let [batch, channels, ..] = images(call, x)?;
    let from = x.in_order(call)?;
    let [rows, columns] = means.places();
    let shape = Shape::from([batch, channels, rows, columns]);
    let output = Tensor::uninit(call, shape, x.dtype(), x.device())?;
    call.launch(AvgPool2d(means), &[&output], &[&from])?;
    record(call, node, &[&output], &[x], || {
        Ok(Box::new(AvgPoolBackward { call, means, x: Saved::input(call, x)? }))
    })?;
    Ok(output)
}

impl Tensor {
    /// The largest element that a window sees, at each of its places; of images `[image, channel,
    /// height, width]`.
    ///
    /// # Errors
    ///
    /// If it has no four axes or is no float, the window does not fit, or there is no memory.
    #[track_caller]
    pub fn max_pool2d(&self, options: impl Into<PoolOptions>) -> Result<Tensor> {
        let call = Call::here("max_pool2d");
        let [rows, columns] = checked(call, self, options.into())?;
        let [batch, channels, ..] = images(call, self)?;
        let x = self.in_order(call)?;
        let shape = Shape::from([batch, channels, rows.places, columns.places]);
        let output = Tensor::uninit(call, shape.clone(), self.dtype(), self.device())?;
        let indices = Tensor::uninit(call, shape, DType::I64, self.device())?;
        call.launch(MaxPool2d { rows, columns }, &[&output, &indices], &[&x])?;
        record(call, "MaxPool2DWithIndicesBackward", &[&output], &[self], || {
            let (x, indices) = (Saved::input(call, self)?, Saved::output(call, &indices)?);
            Ok(Box::new(MaxPoolBackward { call, windows: [rows, columns], x, indices }))
        })?;
        Ok(output)
    }

    /// The mean of what a window sees, at each of its places; of images `[image, channel, height,
    /// width]`.
    ///
    /// # Errors
    ///
    /// As for [`max_pool2d`](Self::max_pool2d).
    #[track_caller]
    pub fn avg_pool2d(&self, options: impl Into<PoolOptions>) -> Result<Tensor> {
        let call = Call::here("avg_pool2d");
        let options = PoolOptions { dilation: 1.into(), ..options.into() };
        let [rows, columns] = checked(call, self, options)?;
        let means = Means::Sliding { rows, columns, padding: options.count_include_pad };
        mean_pool(call, self, means, "AvgPool2DBackward")
    }

    /// The means of as many windows as the result has places, which divide the image as evenly as
    /// they can.
    ///
    /// # Errors
    ///
    /// If it has no four axes or is no float, an axis is empty, or there is no memory.
    #[track_caller]
    pub fn adaptive_avg_pool2d(&self, places: impl Into<Pair>) -> Result<Tensor> {
        let (call, places) = (Call::here("adaptive_avg_pool2d"), places.into().0);
        let [_, _, height, width] = images(call, self)?;
        if !self.dtype().is_float() {
            return Err(call.dtype_error("pools are of floats").with_tensor("self", self));
        }
        if height == 0 || width == 0 || places.contains(&0) {
            let error = call.shape_error("an image without elements has no mean");
            return Err(error.with_tensor("self", self).with("places", format_args!("{places:?}")));
        }
        if places == [1, 1] {
            // One window is a mean, which keeps nothing for the way back; PyTorch does the same.
            return self.mean_dim(&[-1, -2], true);
        }
        let means = Means::Dividing { size: [height, width], places };
        mean_pool(call, self, means, "AdaptiveAvgPool2DBackward")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Device;
    use crate::testing::{conformance, gradcheck};

    fn ramp(device: &Device) -> Result<Tensor> {
        Tensor::arange(0.0, 16.0, 1.0, device)?.view([1, 1, 4, 4])
    }

    #[test]
    fn the_largest_and_the_means_are_right() -> Result<()> {
        let device = Device::host("64 MiB").unwrap();
        let x = ramp(&device)?;
        assert_eq!(x.max_pool2d(2)?.to_vec::<f32>()?, [5.0, 7.0, 13.0, 15.0]);
        assert_eq!(x.avg_pool2d(2)?.to_vec::<f32>()?, [2.5, 4.5, 10.5, 12.5]);
        assert_eq!(x.adaptive_avg_pool2d(2)?.to_vec::<f32>()?, [2.5, 4.5, 10.5, 12.5]);
        assert_eq!(x.adaptive_avg_pool2d(1)?.to_vec::<f32>()?, [7.5]);
        let padded = PoolOptions::new(3).stride(2).padding(1);
        assert_eq!(x.max_pool2d(padded)?.to_vec::<f32>()?, [5.0, 7.0, 13.0, 15.0]);
        let corner = [0.0, 1.0, 4.0, 5.0].iter().sum::<f32>();
        assert_eq!(x.avg_pool2d(padded)?.to_vec::<f32>()?[0], corner / 9.0);
        let seen = padded.count_include_pad(false);
        assert_eq!(x.avg_pool2d(seen)?.to_vec::<f32>()?[0], corner / 4.0);
        // A last window behind the padding: of three rows and columns, one is left.
        let ceil = PoolOptions::new(3).ceil_mode(true);
        assert_eq!(x.avg_pool2d(ceil)?.to_vec::<f32>()?, [5.0, 7.0, 13.0, 15.0]);
        // 4 in 3: windows of two that overlap.
        let three = x.adaptive_avg_pool2d([3, 4])?.to_vec::<f32>()?;
        assert_eq!(three[..5], [2.0, 3.0, 4.0, 5.0, 6.0]);
        Ok(())
    }

    #[test]
    fn what_is_no_number_is_the_largest() -> Result<()> {
        let device = Device::host("64 MiB").unwrap();
        let x =
            Tensor::from_slice(&[f32::NAN, 1.0, f32::NEG_INFINITY, 2.0], [1, 1, 2, 2], &device)?;
        assert!(x.max_pool2d(2)?.item::<f32>()?.is_nan());
        let low = Tensor::full([1, 1, 2, 2], f32::NEG_INFINITY, &device)?;
        assert_eq!(low.max_pool2d(2)?.item::<f32>()?, f32::NEG_INFINITY);
        Ok(())
    }

    #[test]
    fn gradients_are_right() {
        let options = PoolOptions::new([3, 2]).stride([2, 1]).padding(1);
        let check = |f: fn(&Tensor, PoolOptions) -> Result<Tensor>| {
            gradcheck(&[&[2, 2, 5, 4]], |x| f(&x[0], options)).unwrap();
        };
        check(|x, options| x.max_pool2d(options));
        check(|x, options| x.max_pool2d(options.dilation(2).ceil_mode(true)));
        check(|x, options| x.avg_pool2d(options));
        check(|x, options| x.avg_pool2d(options.count_include_pad(false).ceil_mode(true)));
        check(|x, _| x.adaptive_avg_pool2d([3, 3]));
        check(|x, _| x.adaptive_avg_pool2d(1));
    }

    #[test]
    fn windows_that_do_not_fit_are_refused() -> Result<()> {
        let device = Device::dry("1 GiB").unwrap();
        let x = Tensor::zeros([1, 1, 4, 4], &device)?;
        assert!(x.max_pool2d(5).is_err() && x.avg_pool2d(0).is_err());
        let text = x.max_pool2d(PoolOptions::new(2).padding(2)).unwrap_err().to_string();
        assert!(text.contains("more than half the window"), "{text}");
        assert!(x.adaptive_avg_pool2d(0).is_err());
        assert!(Tensor::zeros([4, 4], &device)?.max_pool2d(2).is_err());
        Ok(())
    }

    conformance!(pools_of_every_type_and_window, |device| {
        let mut results = Vec::new();
        let odd = PoolOptions::new([3, 2]).stride([2, 1]).padding(1);
        type Pool = fn(&Tensor, PoolOptions) -> Result<Tensor>;
        let pools: [Pool; 6] = [
            |x, options| x.max_pool2d(options),
            |x, options| x.max_pool2d(options.dilation(2).ceil_mode(true)),
            |x, options| x.avg_pool2d(options),
            |x, options| x.avg_pool2d(options.count_include_pad(false).ceil_mode(true)),
            |x, _| x.adaptive_avg_pool2d([3, 5]),
            |x, _| x.adaptive_avg_pool2d([20, 7]),
        ];
        for dtype in [DType::F32, DType::F64, DType::Bf16, DType::F16] {
            for pool in pools {
                let x = Tensor::randn([2, 3, 11, 9], device)?.to(dtype)?.requires_grad_(true)?;
                let y = pool(&x, odd)?;
                y.square()?.sum()?.backward()?;
                results.extend([y, x.grad().unwrap()]);
            }
        }
        Ok(results)
    });

    conformance!(pools, |device| {
        let x = Tensor::ones([2, 3, 8, 8], device)?.requires_grad_(true)?;
        let y = x.max_pool2d(PoolOptions::new(3).stride(2).padding(1))?.avg_pool2d(2)?;
        let z = y.adaptive_avg_pool2d(1)?;
        z.sum()?.backward()?;
        Ok(vec![y, z, x.grad().unwrap()])
    });
}
