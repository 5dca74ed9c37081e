//! Batch norm: each channel to mean 0 and variance 1 over all images, with a memory of what they were.

use tonnage_device::cuda::{Arguments, Extent};

use super::layer_norm::{check_affine, of_figures, total, write_floats};
use crate::autograd::{Backward, Grads, Needs, Saved, record};
use crate::dtype::{Float, Real, Stored, dispatch_float};
use crate::error::{Call, ErrorKind, Result};
use crate::exec::cuda::{self, Launch, Program, stored, wide};
use crate::exec::{Args, Input, Kernel, Operand, Operands, Plan, slices};
use crate::shape::Shape;
use crate::tensor::Tensor;

/// How a batch norm computes.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct BatchNormOptions {
    /// Whether the batch's own statistics are used, and the running ones brought up to date; yes.
    /// Otherwise the running ones are used.
    pub training: bool,
    /// The batch's share of the new running statistics; 0.1.
    pub momentum: f64,
    /// What is added to the variance; 1e-5.
    pub eps: f64,
}

impl Default for BatchNormOptions {
    fn default() -> Self {
        Self { training: true, momentum: 0.1, eps: 1e-5 }
    }
}

impl BatchNormOptions {
    /// Whether the batch's own statistics are used.
    #[must_use]
    pub fn training(mut self, on: bool) -> Self {
        self.training = on;
        self
    }

    /// The batch's share of the new running statistics.
    #[must_use]
    pub fn momentum(mut self, momentum: f64) -> Self {
        self.momentum = momentum;
        self
    }

    /// What is added to the variance.
    #[must_use]
    pub fn eps(mut self, eps: f64) -> Self {
        self.eps = eps;
        self
    }
}

/// `[image, channel, …]`, as kernels see it.
#[derive(Clone, Copy, Debug)]
struct Channels {
    images: usize,
    channels: usize,
    area: usize,
}

impl Channels {
    /// Elements of a channel, over all images.
    fn count(&self) -> usize {
        self.images * self.area
    }

    /// Σ f over a channel of all images.
    fn total<R: Real>(&self, x: Input<'_>, channel: usize, f: impl Fn(usize, f64) -> f64) -> f64 {
        let mut scratch = Vec::new();
        (0..self.images)
            .map(|image| {
                let start = (image * self.channels + channel) * self.area;
                let x: &[R] = x.chunk(start..start + self.area, &mut scratch);
                total(x, |index, it| f(start + index, it))
            })
            .sum()
    }
}

const TEXT: &str = concat!(include_str!("../exec/cuda/rows.cuh"), include_str!("batch_norm.cu"));

/// How far apart the numbers of channels lie.
fn step(operand: &Operand) -> u64 {
    operand.layout.strides().first().map_or(0, |it| *it as u64)
}

fn truth(it: bool) -> &'static str {
    if it { "1" } else { "0" }
}

impl Channels {
    /// Whether a block had better read a channel twice than leave it to another launch: what it read is still near.
    fn is_small(&self, x: &Operand) -> bool {
        self.count() * x.dtype.size() <= 128 << 10
    }

    /// As `Channels` of the programs.
    fn push(&self, arguments: &mut Arguments) {
        let words = [self.images, self.channels, self.area];
        let bytes: Vec<u8> = words.iter().flat_map(|&it| (it as u64).to_ne_bytes()).collect();
        arguments.push_bytes(&bytes);
    }

    fn program(
        &self,
        name: &'static str,
        (pack, threads): (usize, u32),
        x: &Operand,
        weight: Option<&Operand>,
        constants: &[(&str, &str)],
    ) -> Program {
        let of_weight = stored(weight.map_or(x.dtype, |it| it.dtype));
        let index = cuda::index_type(x.layout.numel());
        let (stored, wide) = (stored(x.dtype), wide(x.dtype));
        let has_weight = truth(weight.is_some());
        let mut all: Vec<(&str, &dyn std::fmt::Display)> = vec![
            ("IN", &stored),
            ("C", &wide),
            ("WEIGHT", &of_weight),
            ("HAS_WEIGHT", &has_weight),
            ("INDEX", &index),
            ("PACK", &pack),
            ("THREADS", &threads),
            ("GROUP", &threads),
        ];
        all.extend(constants.iter().map(|(name, it)| (*name, it as &dyn std::fmt::Display)));
        Program::new(name, TEXT, &all)
    }

    /// A launch with a block for each channel.
    fn by_channel(
        &self,
        name: &'static str,
        pack: usize,
        x: &Operand,
        weight: Option<&Operand>,
        constants: &[(&str, &str)],
        arguments: Arguments,
    ) -> Launch {
        let threads = (self.count() / pack / 4).next_power_of_two().clamp(128, 1024) as u32;
        let program = self.program(name, (pack, threads), x, weight, constants);
        let blocks = cuda::blocks(self.channels as u64, 1);
        Launch::new(program, Extent::line(blocks, threads), arguments)
    }

    /// A launch with a thread for each pack.
    fn by_pack(
        &self,
        name: &'static str,
        pack: usize,
        x: &Operand,
        weight: Option<&Operand>,
        constants: &[(&str, &str)],
        arguments: Arguments,
    ) -> Launch {
        const THREADS: u32 = 256;
        let program = self.program(name, (pack, THREADS), x, weight, constants);
        let blocks = cuda::blocks((x.layout.numel() / pack) as u64, u64::from(THREADS));
        Launch::new(program, Extent::line(blocks, THREADS), arguments)
    }
}

/// Outputs: the normalised channels; when training, their means and one over their deviations, and the
/// running statistics if there are any. Inputs: `x`; otherwise the running statistics; weight and
/// bias if there are any.
pub(crate) struct BatchNorm {
    channels: Channels,
    options: BatchNormOptions,
    running: bool,
    weight: bool,
    bias: bool,
}

impl Kernel for BatchNorm {
    fn host(&self, args: &mut Args<'_>) -> Result<(), String> {
        dispatch_float!(args.output_dtype(0), T => self.run::<T>(args), else return Err(no_float()));
        Ok(())
    }

    fn cuda(&self, on: Operands<'_>) -> Plan {
        let (g, training) = (self.channels, self.options.training);
        let (output, x) = (&on.outputs[0], &on.inputs[0]);
        if output.layout.numel() == 0 {
            return Plan::nothing();
        }
        let affine = &on.inputs[if training { 1 } else { 3 }..];
        let weight = self.weight.then(|| &affine[0]);
        let bias = self.bias.then(|| &affine[usize::from(self.weight)]);
        let pack = cuda::pack_of(&[g.area], &[output, x]);
        let constants = |is_fused: bool, has_figures: bool| {
            vec![
                ("FORWARD", "1"),
                ("BIAS", stored(bias.map_or(x.dtype, |it| it.dtype))),
                ("HAS_BIAS", truth(bias.is_some())),
                ("RUNNING", truth(self.running)),
                ("EVALUATES", truth(!training)),
                ("FUSED", truth(is_fused)),
                ("FIGURES", truth(has_figures)),
            ]
        };
        let affine = |arguments: &mut Arguments| {
            arguments.push(x.first());
            arguments.push(weight.map_or(0, Operand::first));
            arguments.push(bias.map_or(0, Operand::first));
            arguments.push(weight.map_or(0, step));
            arguments.push(bias.map_or(0, step));
            g.push(arguments);
        };
        let is_fused = training && g.is_small(x);
        let mut launches = Vec::new();
        if training {
            let running = on.outputs.get(3).zip(on.outputs.get(4)).filter(|_| self.running);
            let mut arguments = Arguments::new();
            on.outputs[..3].iter().for_each(|it| arguments.push(it.first()));
            arguments.push(running.map_or(0, |it| it.0.first()));
            arguments.push(running.map_or(0, |it| it.1.first()));
            arguments.push(running.map_or(0, |it| step(it.0)));
            arguments.push(running.map_or(0, |it| step(it.1)));
            affine(&mut arguments);
            arguments.push(self.options.momentum);
            arguments.push(self.options.eps);
            let name = "batch_norm_figures";
            let constants = constants(is_fused, true);
            launches.push(g.by_channel(name, pack, x, weight, &constants, arguments));
        }
        if !is_fused {
            let figures = if training { &on.outputs[1..3] } else { &on.inputs[1..3] };
            let mut arguments = Arguments::new();
            arguments.push(output.first());
            figures.iter().for_each(|it| arguments.push(it.first()));
            figures.iter().for_each(|it| arguments.push(step(it)));
            affine(&mut arguments);
            arguments.push(self.options.eps);
            let constants = constants(false, false);
            launches.push(g.by_pack("batch_norm", pack, x, weight, &constants, arguments));
        }
        Plan::Launches(launches)
    }
}

impl BatchNorm {
    fn run<T: Float>(&self, args: &mut Args<'_>) {
        let (g, eps) = (self.channels, self.options.eps);
        let x = args.input(0);
        let mut place = 1;
        let figures: Vec<[f64; 2]> = if self.options.training {
            batch_figures::<T::Wide>(g, x)
        } else {
            place = 3;
            let [mean, variance] = [1, 2].map(|at| args.input(at).to_slice::<T::Wide>());
            mean.iter().zip(&*variance).map(|(a, b)| [a.to_f64(), b.to_f64()]).collect()
        };
        let mut next = |present: bool| {
            let input = present.then(|| args.input(place).to_slice::<T::Wide>());
            place += usize::from(present);
            input
        };
        let (weight, bias) = (next(self.weight), next(self.bias));
        slices(args.take::<T>(0).slice(), g.area, g.area, &|row, to| {
            let channel = row % g.channels;
            let [mean, variance] = figures[channel];
            let of = |given: &Option<std::borrow::Cow<'_, [T::Wide]>>, absent: f64| {
                given.as_ref().map_or(absent, |given| given[channel].to_f64())
            };
            let scale = of(&weight, 1.0) / (variance + eps).sqrt();
            let (mean, scale, bias) =
                (T::Wide::n(mean), T::Wide::n(scale), T::Wide::n(of(&bias, 0.0)));
            let mut scratch = Vec::new();
            let x: &[T::Wide] = x.chunk(row * g.area..(row + 1) * g.area, &mut scratch);
            for (to, x) in to.iter_mut().zip(x) {
                *to = T::narrow((*x - mean) * scale + bias);
            }
        });
        if self.options.training {
            self.keep::<T::Wide>(args, &figures);
        }
    }

    /// Writes the figures that the way back needs, and brings the running ones up to date.
    fn keep<R: Real>(&self, args: &mut Args<'_>, figures: &[[f64; 2]]) {
        let (share, count) = (self.options.momentum, self.channels.count() as f64);
        let mean = args.take::<R>(1).slice();
        mean.iter_mut().zip(figures).for_each(|(to, it)| *to = R::n(it[0]));
        let deviation = args.take::<R>(2).slice();
        for (to, it) in deviation.iter_mut().zip(figures) {
            *to = R::n(1.0 / (it[1] + self.options.eps).sqrt());
        }
        if !self.running {
            return;
        }
        // The variance of the whole is a little more than that of a sample.
        for (place, which, factor) in [(3, 0, 1.0), (4, 1, count / (count - 1.0))] {
            let mut running = args.take::<R>(place);
            let mut before = vec![R::default(); figures.len()];
            running.read(0..figures.len(), &mut before);
            for (to, it) in before.iter_mut().zip(figures) {
                *to = R::n((1.0 - share) * to.to_f64() + share * factor * it[which]);
            }
            running.write(0..figures.len(), &before);
        }
    }
}

/// Mean and variance of each channel.
fn batch_figures<R: Real>(g: Channels, x: Input<'_>) -> Vec<[f64; 2]> {
    let mut figures = vec![[0.0; 2]; g.channels];
    let count = g.count() as f64;
    slices(&mut figures, 1, g.count(), &|channel, to| {
        let mean = g.total::<R>(x, channel, |_, it| it) / count;
        let square = g.total::<R>(x, channel, |_, it| (it - mean) * (it - mean));
        to[0] = [mean, square / count];
    });
    figures
}

/// Outputs: the gradients of `x`, and of weight and bias if there is a weight. Inputs: the gradient of
/// the result, `x`, the means, one over the deviations (the running variances if not training), the
/// weight.
pub(crate) struct BatchNormGrad {
    channels: Channels,
    /// What is added to running variances; none when training.
    eps: Option<f64>,
    weight: bool,
}

impl Kernel for BatchNormGrad {
    fn host(&self, args: &mut Args<'_>) -> Result<(), String> {
        dispatch_float!(args.output_dtype(0), T => self.run::<T>(args), else return Err(no_float()));
        Ok(())
    }

    fn cuda(&self, on: Operands<'_>) -> Plan {
        let g = self.channels;
        let (grad, x, weight) = (&on.inputs[0], &on.inputs[1], on.inputs.get(4));
        if g.channels == 0 {
            return Plan::nothing();
        }
        let pack = cuda::pack_of(&[g.area], &[&on.outputs[0], grad, x]);
        // Between two launches, sums are kept in the gradients of weight and bias, if those have all digits.
        let keeps = weight.is_some_and(|it| stored(it.dtype) == wide(x.dtype));
        let is_fused = g.is_small(x) || !keeps;
        let constants = |has_figures: bool| {
            vec![
                ("GRAD", stored(grad.dtype)),
                ("EVALUATES", truth(self.eps.is_some())),
                ("FUSED", truth(is_fused)),
                ("FIGURES", truth(has_figures)),
            ]
        };
        let arguments = || {
            let mut arguments = Arguments::new();
            arguments.push(on.outputs[0].first());
            arguments.push(on.outputs.get(1).map_or(0, Operand::first));
            arguments.push(on.outputs.get(2).map_or(0, Operand::first));
            on.inputs[..4].iter().for_each(|it| arguments.push(it.first()));
            on.inputs[2..4].iter().for_each(|it| arguments.push(step(it)));
            arguments.push(weight.map_or(0, Operand::first));
            arguments.push(weight.map_or(0, step));
            g.push(&mut arguments);
            arguments.push(self.eps.unwrap_or(0.0));
            arguments
        };
        let name = "batch_norm_grad_figures";
        let mut launches = vec![g.by_channel(name, pack, x, weight, &constants(true), arguments())];
        if !is_fused {
            let name = "batch_norm_grad";
            launches.push(g.by_pack(name, pack, x, weight, &constants(false), arguments()));
        }
        Plan::Launches(launches)
    }
}

impl BatchNormGrad {
    fn run<T: Float>(&self, args: &mut Args<'_>) {
        let g = self.channels;
        let (grad, x) = (args.input(0), args.input(1));
        let means = args.input(2).to_slice::<T::Wide>();
        let deviations = args.input(3).to_slice::<T::Wide>();
        let weight = self.weight.then(|| args.input(4).to_slice::<T::Wide>());
        let inverse = |channel: usize| match self.eps {
            Some(eps) => 1.0 / (deviations[channel].to_f64() + eps).sqrt(),
            None => deviations[channel].to_f64(),
        };
        // Σ gradient and Σ gradient · normalised.
        let mut sums = vec![[0.0; 2]; g.channels];
        slices(&mut sums, 1, 2 * g.count(), &|channel, to| {
            let (mean, mut scratch) = (means[channel].to_f64(), Vec::new());
            let plain = g.total::<T::Wide>(grad, channel, |_, it| it);
            let mut along = 0.0;
            let mut for_x = Vec::new();
            for image in 0..g.images {
                let start = (image * g.channels + channel) * g.area;
                let range = start..start + g.area;
                let grad: &[T::Wide] = grad.chunk(range.clone(), &mut scratch);
                let x: &[T::Wide] = x.chunk(range, &mut for_x);
                along += total(grad, |index, grad| grad * (x[index].to_f64() - mean));
            }
            to[0] = [plain, along * inverse(channel)];
        });
        let count = g.count() as f64;
        slices(args.take::<T>(0).slice(), g.area, g.area, &|row, to| {
            let channel = row % g.channels;
            let ([plain, along], inverse) = (sums[channel], inverse(channel));
            let weight = weight.as_ref().map_or(1.0, |weight| weight[channel].to_f64());
            // A fixed mean and variance have no gradient.
            let (shift, along) =
                if self.eps.is_none() { (plain / count, along / count) } else { (0.0, 0.0) };
            let [mean, inverse, scale, shift, along] =
                [means[channel].to_f64(), inverse, weight * inverse, shift, along].map(T::Wide::n);
            let (mut for_grad, mut for_x) = (Vec::new(), Vec::new());
            let range = row * g.area..(row + 1) * g.area;
            let grad: &[T::Wide] = grad.chunk(range.clone(), &mut for_grad);
            let x: &[T::Wide] = x.chunk(range, &mut for_x);
            for (to, (grad, x)) in to.iter_mut().zip(grad.iter().zip(x)) {
                *to = T::narrow((*grad - shift - (*x - mean) * inverse * along) * scale);
            }
        });
        if self.weight {
            for (place, which) in [(1, 1), (2, 0)] {
                write_floats(args, place, sums.iter().map(|it| it[which]));
            }
        }
    }
}

fn no_float() -> String {
    "norms are of floats".to_owned()
}

struct BatchNormBackward {
    call: Call,
    channels: Channels,
    eps: Option<f64>,
    x: Saved,
    weight: Option<Saved>,
    figures: [Saved; 2],
    has_bias: bool,
}

impl Backward for BatchNormBackward {
    fn backward(&self, grads: &[Option<Tensor>], _: &Needs<'_>) -> Result<Grads> {
        let has_weight = self.weight.is_some();
        let count = 1 + usize::from(has_weight) + usize::from(self.has_bias);
        let mut results: Grads = (0..count).map(|_| None).collect();
        let Some(grad) = &grads[0] else { return Ok(results) };
        let call = self.call;
        let grad = grad.in_order(call)?;
        let x = self.x.unpack()?.in_order(call)?;
        let [mean, deviation] = [self.figures[0].unpack()?, self.figures[1].unpack()?];
        let weight = self.weight.as_ref().map(Saved::unpack).transpose()?;
        let like = |it: &Tensor| Tensor::uninit(call, it.shape().clone(), it.dtype(), it.device());
        let kernel = BatchNormGrad { channels: self.channels, eps: self.eps, weight: has_weight };
        let to = like(&x)?;
        match &weight {
            Some(weight) => {
                let (of_weight, of_bias) = (like(weight)?, like(weight)?);
                let inputs = [&grad, &x, &mean, &deviation, weight];
                call.launch(kernel, &[&to, &of_weight, &of_bias], &inputs)?;
                results[1] = Some(of_weight);
                if self.has_bias {
                    results[2] = Some(of_bias);
                }
            }
            None => {
                call.launch(kernel, &[&to], &[&grad, &x, &mean, &deviation])?;
                if self.has_bias {
                    let others: Vec<isize> =
                        (0..grad.dim() as isize).filter(|axis| *axis != 1).collect();
                    results[1] = Some(grad.sum_dim(&others, false)?);
                }
            }
        }
        results[0] = Some(to);
        Ok(results)
    }
}

impl Tensor {
    /// Brings each channel (the second axis) to mean 0 and variance 1 over all images; then multiplies
    /// with `weight` and adds `bias`. `running` are the running mean and variance, which training
    /// changes in place.
    ///
    /// ```
    /// # use tonnage_tensor::{BatchNormOptions, Device, Tensor};
    /// # let device = Device::host("64 MiB")?;
    /// let x = Tensor::randn([8, 3, 16, 16], &device)?;
    /// let (mean, variance) = (Tensor::zeros([3], &device)?, Tensor::ones([3], &device)?);
    /// let options = BatchNormOptions::default();
    /// let y = x.batch_norm(None, None, Some([&mean, &variance]), options)?;
    /// let same = x.batch_norm(None, None, Some([&mean, &variance]), options.training(false))?;
    /// # assert_eq!(y.shape(), same.shape());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If the shapes do not fit, the types differ or are no floats, a channel to train on has a single
    /// element, there are no running statistics to use, or if there is no memory.
    #[track_caller]
    pub fn batch_norm(
        &self,
        weight: Option<&Tensor>,
        bias: Option<&Tensor>,
        running: Option<[&Tensor; 2]>,
        options: BatchNormOptions,
    ) -> Result<Tensor> {
        let call = Call::here("batch_norm");
        let channels = checked(call, self, [weight, bias], running, options)?;
        let x = self.in_order(call)?;
        let output = Tensor::uninit(call, self.shape().clone(), self.dtype(), self.device())?;
        let kernel = BatchNorm {
            channels,
            options,
            running: running.is_some(),
            weight: weight.is_some(),
            bias: bias.is_some(),
        };
        let affine = || weight.into_iter().chain(bias);
        let statistics = || running.into_iter().flatten();
        let figures = if options.training {
            let shape = Shape::from(channels.channels);
            let figure =
                || Tensor::uninit(call, shape.clone(), of_figures(self.dtype()), self.device());
            let figures = [figure()?, figure()?];
            let outputs = [&output].into_iter().chain(&figures).chain(statistics());
            let inputs: Vec<_> = [&x].into_iter().chain(affine()).collect();
            call.launch(kernel, &outputs.collect::<Vec<_>>(), &inputs)?;
            statistics().for_each(|it| it.storage().written_by(call));
            Some(figures)
        } else {
            let inputs: Vec<_> = [&x].into_iter().chain(statistics()).chain(affine()).collect();
            call.launch(kernel, &[&output], &inputs)?;
            None
        };
        let inputs: Vec<_> = [self].into_iter().chain(affine()).collect();
        record(call, "BatchNormBackward", &[&output], &inputs, || {
            let figures = match (&figures, running) {
                (Some([mean, deviation]), _) => {
                    [Saved::output(call, mean)?, Saved::output(call, deviation)?]
                }
                (None, Some([mean, variance])) => {
                    [Saved::input(call, mean)?, Saved::input(call, variance)?]
                }
                (None, None) => return Err(call.shape_error("there are no running statistics")),
            };
            Ok(Box::new(BatchNormBackward {
                call,
                channels,
                eps: (!options.training).then_some(options.eps),
                x: Saved::input(call, self)?,
                weight: weight.map(|it| Saved::input(call, it)).transpose()?,
                figures,
                has_bias: bias.is_some(),
            }))
        })?;
        Ok(output)
    }
}

/// The shape rule.
fn checked(
    call: Call,
    x: &Tensor,
    [weight, bias]: [Option<&Tensor>; 2],
    running: Option<[&Tensor; 2]>,
    options: BatchNormOptions,
) -> Result<Channels> {
    let &[images, channels, ref rest @ ..] = &x.shape()[..] else {
        let error = call.shape_error("the second axis has the channels; there is none");
        return Err(error.with_tensor("self", x));
    };
    check_affine(call, x, [("weight", weight), ("bias", bias)], &[channels])?;
    for (name, it) in ["running mean", "running variance"].iter().zip(running.into_iter().flatten())
    {
        let error = if it.device() != x.device() {
            return Err(call.devices_differ(x, it));
        } else if it.shape()[..] != [channels] {
            call.shape_error(format!("the {name} does not have one number for each channel"))
        } else if it.dtype() != of_figures(x.dtype()) {
            call.dtype_error(format!("the {name} is kept in {}", of_figures(x.dtype())))
        } else {
            continue;
        };
        return Err(error.with_tensor("self", x).with_tensor(name, it));
    }
    let g = Channels { images, channels, area: rest.iter().product() };
    if options.training && g.count() <= 1 {
        let what = "training needs more than one element in each channel";
        return Err(call.error(ErrorKind::Value, what).with_tensor("self", x));
    }
    if !options.training && running.is_none() {
        let what = "without training the running statistics are used, and there are none";
        return Err(call.error(ErrorKind::Value, what).help("pass them, or train"));
    }
    Ok(g)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{conformance, gradcheck};
    use crate::{DType, Device};

    #[test]
    fn channels_are_normalised_and_remembered() -> Result<()> {
        let device = Device::host("256 MiB").unwrap();
        for dtype in [DType::F64, DType::F32] {
            let x = Tensor::randn([5, 3, 4, 6], (&device, dtype))?.mul(3.0)?.add(2.0)?;
            let [mean, variance] = [
                Tensor::full([3], 0.5f64, (&device, dtype))?,
                Tensor::full([3], 2.0f64, (&device, dtype))?,
            ];
            let options = BatchNormOptions::default().momentum(0.2).eps(1e-3);
            let running = Some([&mean, &variance]);
            let y = x.batch_norm(None, None, running, options)?.to(DType::F64)?;
            let wide = x.to(DType::F64)?;
            let axes = [0, 2, 3];
            let batch_mean = wide.mean_dim(&axes, true)?;
            let centered = wide.sub(&batch_mean)?;
            let batch_variance = centered.mul(&centered)?.mean_dim(&axes, true)?;
            let close = |a: &Tensor, b: &Tensor| -> Result<()> {
                let [a, b] = [a.to(DType::F64)?.to_vec::<f64>()?, b.to_vec::<f64>()?];
                let far = a.iter().zip(&b).find(|(a, b)| a.is_nan() || (**a - **b).abs() > 1e-5);
                assert_eq!(far, None);
                Ok(())
            };
            close(&y, &centered.div(&batch_variance.add(1e-3)?.sqrt()?)?)?;
            close(&mean, &batch_mean.view([3])?.mul(0.2)?.add(0.8 * 0.5)?)?;
            let whole = batch_variance.view([3])?.mul(120.0 / 119.0)?;
            close(&variance, &whole.mul(0.2)?.add(0.8 * 2.0)?)?;
            assert_eq!(mean.version(), 1);
            let still = x.batch_norm(None, None, running, options.training(false))?;
            let [mean, variance] =
                [mean.to(DType::F64)?.view([3, 1, 1])?, variance.to(DType::F64)?.view([3, 1, 1])?];
            close(&still, &wide.sub(&mean)?.div(&variance.add(1e-3)?.sqrt()?)?)?;
        }
        Ok(())
    }

    #[test]
    fn gradients_are_right() {
        let options = BatchNormOptions::default();
        gradcheck(&[&[4, 2, 3], &[2], &[2]], |x| {
            x[0].batch_norm(Some(&x[1]), Some(&x[2]), None, options)
        })
        .unwrap();
        gradcheck(&[&[5, 3]], |x| x[0].batch_norm(None, None, None, options)).unwrap();
        gradcheck(&[&[4, 2, 3], &[2], &[2]], |x| {
            let mean = Tensor::full([2], 0.3, (x[0].device(), DType::F64))?;
            let variance = Tensor::full([2], 1.7, (x[0].device(), DType::F64))?;
            let running = Some([&mean, &variance]);
            x[0].batch_norm(Some(&x[1]), Some(&x[2]), running, options.training(false))
        })
        .unwrap();
    }

    #[test]
    fn what_does_not_fit_is_refused() -> Result<()> {
        let device = Device::dry("1 GiB").unwrap();
        let options = BatchNormOptions::default();
        let one = Tensor::zeros([1, 3], &device)?;
        assert!(one.batch_norm(None, None, None, options).is_err());
        let x = Tensor::zeros([2, 3], &device)?;
        let text = x.batch_norm(None, None, None, options.training(false)).unwrap_err().to_string();
        assert!(text.contains("there are none"), "{text}");
        let weight = Tensor::zeros([2], &device)?;
        assert!(x.batch_norm(Some(&weight), None, None, options).is_err());
        let text =
            x.batch_norm(None, None, Some([&weight, &weight]), options).unwrap_err().to_string();
        assert!(text.contains("running mean"), "{text}");
        Ok(())
    }

    #[test]
    fn weights_may_have_more_bits_than_numbers() -> Result<()> {
        let device = Device::host("64 MiB").unwrap();
        let x = Tensor::randn([4, 2, 3], &device)?.to(DType::Bf16)?.requires_grad_(true)?;
        let weight = Tensor::ones([2], &device)?.requires_grad_(true)?;
        let bias = Tensor::zeros([2], &device)?.requires_grad_(true)?;
        let y = x.batch_norm(Some(&weight), Some(&bias), None, BatchNormOptions::default())?;
        let y = y.layer_norm([3], None, None, 1e-5)?.group_norm(1, Some(&weight), None, 1e-5)?;
        y.sum()?.backward()?;
        let grads = [&x, &weight, &bias].map(|it| it.grad().map(|grad| grad.dtype()));
        assert_eq!(
            (y.dtype(), grads),
            (DType::Bf16, [DType::Bf16, DType::F32, DType::F32].map(Some))
        );
        device.synchronize()
    }

    conformance!(batch_norms_of_every_type_and_size, |device| {
        let mut results = Vec::new();
        for (dtype, of_weights) in [
            (DType::F32, DType::F32),
            (DType::F64, DType::F64),
            (DType::Bf16, DType::F32),
            (DType::Bf16, DType::Bf16),
            (DType::F16, DType::F32),
        ] {
            let random = |shape: &[usize], dtype| Tensor::randn(shape, device)?.to(dtype);
            let figures = of_figures(dtype);
            for shape in [&[6, 5, 7, 7][..], &[4, 3, 8, 8], &[9, 4], &[3, 2, 200, 160]] {
                for (training, has_weight) in
                    [(true, true), (true, false), (false, true), (false, false)]
                {
                    let x = random(shape, dtype)?.add(3.0)?.requires_grad_(true)?;
                    let of = |dtype| random(&[shape[1]], dtype)?.requires_grad_(true);
                    let (weight, bias) = (of(of_weights)?, of(of_weights)?);
                    let mean = Tensor::rand([shape[1]], (device, figures))?;
                    let variance = Tensor::ones([shape[1]], (device, figures))?;
                    let options = BatchNormOptions::default().training(training);
                    let weights = has_weight.then_some((&weight, &bias)).unzip();
                    let y =
                        x.batch_norm(weights.0, weights.1, Some([&mean, &variance]), options)?;
                    y.square()?.mul(&y)?.sum()?.backward()?;
                    results.extend([y, mean, variance]);
                    results.extend([&x, &weight, &bias].into_iter().filter_map(Tensor::grad));
                }
            }
        }
        Ok(results)
    });

    conformance!(batch_norms, |device| {
        let x = Tensor::ones([4, 6, 5, 5], device)?.requires_grad_(true)?;
        let [weight, bias] = [Tensor::ones([6], device)?, Tensor::ones([6], device)?];
        let (weight, bias) = (weight.requires_grad_(true)?, bias.requires_grad_(true)?);
        let (mean, variance) = (Tensor::zeros([6], device)?, Tensor::ones([6], device)?);
        let running = Some([&mean, &variance]);
        let options = BatchNormOptions::default();
        let y = x.batch_norm(Some(&weight), Some(&bias), running, options)?;
        let z = y.batch_norm(Some(&weight), Some(&bias), running, options.training(false))?;
        z.sum()?.backward()?;
        Ok(vec![z, x.grad().unwrap(), weight.grad().unwrap(), bias.grad().unwrap()])
    });
}
