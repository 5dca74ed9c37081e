//! Convolution over images: every place of a window as a column, and one matrix product for all.
//!
//! The matrix of columns would be as many times the image as the kernel has elements, so it is made
//! and used in pieces: scratch memory is about a megabyte for each thread, whatever the image.

use std::ops::Range;

use super::window::{Pair, Window, images, window_options, windows};
use tonnage_cuda_libs::blas::{Math, Number};
use tonnage_cuda_libs::dnn::{self, Convolution, Layout4, Pass};
use tonnage_device::cuda::{Arguments, Extent};
use tonnage_events::Address;
use tonnage_memory::Block;

use crate::amp::lower;
use crate::autograd::{Backward, Grads, Needs, Saved, record};
use crate::dtype::{DType, Float, Real, dispatch_float};
use crate::error::{Call, ErrorKind, Result};
use crate::exec::cuda::{Elementwise, Launch, LibraryConvolution, Program, stored, wide};
use crate::exec::{Args, Input, Kernel, Matrix, Operand, Operands, Plan, Product, product, slices};
use crate::shape::Shape;
use crate::tensor::Tensor;
use crate::work::product_operations;

/// How the window of a convolution moves.
///
/// ```
/// # use tonnage_tensor::{ConvOptions, Device, Tensor};
/// # let device = Device::dry("1 GiB")?;
/// let x = Tensor::randn([8, 3, 224, 224], &device)?;
/// let weight = Tensor::randn([64, 3, 7, 7], &device)?;
/// let y = x.conv2d(&weight, None, ConvOptions::default().stride(2).padding(3))?;
/// assert_eq!(y.shape()[..], [8, 64, 112, 112]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConvOptions {
    /// How far it moves; 1.
    pub stride: Pair,
    /// How many zeros there are on each side; none.
    pub padding: Pair,
    /// How far apart the elements lie that it sees; 1.
    pub dilation: Pair,
    /// Into how many parts the channels are split, each seen by its own part of the weight; 1.
    pub groups: usize,
}

impl Default for ConvOptions {
    fn default() -> Self {
        let (stride, padding, dilation) = (1.into(), 0.into(), 1.into());
        Self { stride, padding, dilation, groups: 1 }
    }
}

window_options!(ConvOptions);

impl ConvOptions {
    /// Splits the channels into this many parts.
    #[must_use]
    pub fn groups(mut self, groups: usize) -> Self {
        self.groups = groups;
        self
    }
}

/// The library's name of a type that it is asked to convolve.
fn number(dtype: DType) -> Option<Number> {
    match dtype {
        DType::F32 => Some(Number::F32),
        DType::Bf16 => Some(Number::Bf16),
        DType::F16 => Some(Number::F16),
        _ => None,
    }
}

/// All sizes of a convolution.
#[derive(Clone, Copy, Debug)]
struct Geometry {
    images: usize,
    groups: usize,
    /// Channels of a group, in and out.
    channels: usize,
    outputs: usize,
    rows: Window,
    columns: Window,
}

/// Elements of a piece of the matrix of columns: half a megabyte of `f32`, which second caches hold.
const PIECE: usize = 1 << 17;

/// Columns of a piece, if there are so many: fewer make matrix products slow.
const COLUMNS: usize = 64;

impl Geometry {
    /// Elements of one channel of an image, in and out.
    fn plane(&self) -> usize {
        self.rows.size * self.columns.size
    }

    fn places(&self) -> usize {
        self.rows.places * self.columns.places
    }

    /// What one place sees: the height of the matrix of columns.
    fn seen(&self) -> usize {
        self.channels * self.rows.kernel * self.columns.kernel
    }

    /// Elements of an image, in and out.
    fn image(&self) -> usize {
        self.groups * self.channels * self.plane()
    }

    fn result(&self) -> usize {
        self.groups * self.outputs * self.places()
    }

    fn weight(&self) -> usize {
        self.groups * self.outputs * self.seen()
    }

    /// Bytes of workspace, of the convolution and of each of its gradients; none where the library is not asked.
    fn workspace(&self, dtype: DType) -> Option<u64> {
        let sizes = [self.images * self.image(), self.weight(), self.images * self.result()];
        let is_asked = number(dtype).is_some() && !sizes.contains(&0);
        is_asked.then(|| dnn::workspace((sizes.iter().sum::<usize>() * dtype.size()) as u64))
    }

    /// Of the convolution, and of each of its gradients.
    fn operations(&self) -> f64 {
        product_operations([self.images, self.groups, self.outputs, self.places(), self.seen()])
    }

    /// Whether each place sees the one element under it: then the image is the matrix of columns.
    fn is_plain(&self) -> bool {
        [self.rows, self.columns]
            .iter()
            .all(|it| it.kernel == 1 && it.stride == 1 && it.padding == 0)
    }

    /// The places, in pieces.
    fn pieces(&self) -> impl Iterator<Item = Range<usize>> {
        let places = self.places();
        let width = match self.is_plain() {
            true => places,
            false => (PIECE / self.seen().max(1)).max(COLUMNS),
        };
        (0..places).step_by(width.max(1)).map(move |start| start..(start + width).min(places))
    }

    /// Whether there are images for all threads; otherwise the threads share each product.
    fn alone(&self) -> bool {
        self.images >= rayon::current_num_threads()
    }

    /// Calls `visit` for the runs of one row of the matrix of columns: places from the first on, and the
    /// elements of the channel that they see, a stride apart; none in the padding.
    fn runs(
        &self,
        row: usize,
        places: Range<usize>,
        mut visit: impl FnMut(Range<usize>, Option<usize>),
    ) {
        let (down, across) =
            (row / self.columns.kernel % self.rows.kernel, row % self.columns.kernel);
        let width = self.columns.places;
        let mut place = places.start;
        while place < places.end {
            let (y, x) = (place / width, place % width);
            let along = x..width.min(x + places.end - place);
            let begin = place - places.start;
            let offset = |x_of: usize| begin + x_of - x;
            match self.rows.sees(y, down) {
                None => visit(offset(along.start)..offset(along.end), None),
                Some(line) => {
                    let inside = self.columns.inside(across, along.clone());
                    visit(offset(along.start)..offset(inside.start), None);
                    if let Some(first) = self.columns.sees(inside.start, across) {
                        let first = line * self.columns.size + first;
                        visit(offset(inside.start)..offset(inside.end), Some(first));
                    }
                    visit(offset(inside.end)..offset(along.end), None);
                }
            }
            place += along.len();
        }
    }

    /// One row of the matrix of columns.
    fn gather<R: Real>(&self, row: usize, places: Range<usize>, channel: &[R], into: &mut [R]) {
        self.runs(row, places, |at, from| match from {
            None => into[at].fill(R::default()),
            Some(_) if at.is_empty() => {}
            Some(from) if self.columns.stride == 1 => {
                let length = at.len();
                into[at].copy_from_slice(&channel[from..from + length]);
            }
            Some(from) => {
                let seen = channel[from..].iter().step_by(self.columns.stride);
                into[at].iter_mut().zip(seen).for_each(|(to, it)| *to = *it);
            }
        });
    }

    /// The other way: adds a row of the matrix to the elements that it sees.
    fn scatter<R: Real>(&self, row: usize, places: Range<usize>, from: &[R], channel: &mut [R]) {
        self.runs(row, places, |at, to| {
            if let Some(to) = to.filter(|_| !at.is_empty()) {
                let seen = channel[to..].iter_mut().step_by(self.columns.stride);
                seen.zip(&from[at]).for_each(|(to, it)| *to = *to + *it);
            }
        });
    }

    /// The channel of the image that a row of the matrix sees.
    fn channel(&self, group: usize, row: usize) -> Range<usize> {
        let channel = group * self.channels + row / (self.rows.kernel * self.columns.kernel).max(1);
        channel * self.plane()..(channel + 1) * self.plane()
    }

    /// The matrix of columns of some places: of the image itself, or put into `scratch`.
    fn matrix<'a, R: Real>(
        &self,
        image: &'a [R],
        group: usize,
        places: Range<usize>,
        scratch: &'a mut Vec<R>,
        alone: bool,
    ) -> Matrix<'a, R> {
        let width = places.len();
        if self.is_plain() {
            let data = image.get(group * self.channels * self.plane()..).unwrap_or_default();
            return Matrix { data, strides: (width, 1), conj: false };
        }
        scratch.resize(self.seen() * width, R::default());
        let fill = |row: usize, into: &mut [R]| {
            self.gather(row, places.clone(), &image[self.channel(group, row)], into);
        };
        if alone {
            scratch.chunks_mut(width).enumerate().for_each(|(row, into)| fill(row, into));
        } else {
            slices(scratch, width, width, &fill);
        }
        Matrix { data: scratch, strides: (width, 1), conj: false }
    }

    /// A group's part of the weight: a matrix of `outputs` rows.
    fn weight_of<'a, R>(&self, weight: &'a [R], group: usize) -> &'a [R] {
        let size = self.outputs * self.seen();
        &weight[group * size..(group + 1) * size]
    }

    /// Some places of a group's part of the result: a matrix of `outputs` rows.
    fn result_of<'a, R>(
        &self,
        result: &'a [R],
        group: usize,
        places: &Range<usize>,
    ) -> Matrix<'a, R> {
        let data = result.get(group * self.outputs * self.places() + places.start..);
        Matrix { data: data.unwrap_or_default(), strides: (self.places(), 1), conj: false }
    }
}

/// Convolutions that the library does not have: of `f64`, and of shapes that it has no engine for.
const BY_DEFINITION: &str = include_str!("conv.cu");

/// Threads of a block of [`BY_DEFINITION`].
const THREADS: u32 = 256;

impl Geometry {
    /// How a GPU computes one of the three from the others: input, filter, output.
    fn cuda(
        &self,
        pass: Pass,
        [x, weight, y]: [&Operand; 3],
        bias: Option<&Operand>,
        workspace: Option<Address>,
    ) -> Plan {
        let made = match pass {
            Pass::Forward => y,
            Pass::InputGradient => x,
            Pass::FilterGradient => weight,
        };
        if made.layout.numel() == 0 {
            return Plan::nothing();
        }
        let then = bias.map_or_else(Vec::new, |bias| add_bias(y, bias));
        let by_definition = self.by_definition(pass, [x, weight, y], made);
        let (number, bytes) = (number(made.dtype), self.workspace(made.dtype));
        let (Some(number), Some(bytes), Some(workspace)) = (number, bytes, workspace) else {
            let launches = std::iter::once(by_definition).chain(then);
            return Plan::Launches(launches.collect());
        };
        let four = |sizes: [usize; 4]| Layout4::channels_first(sizes.map(|it| it as u64));
        let two = |of: fn(&Window) -> usize| [of(&self.rows) as u64, of(&self.columns) as u64];
        let convolution = Convolution {
            pass,
            input: four([
                self.images,
                self.groups * self.channels,
                self.rows.size,
                self.columns.size,
            ]),
            filter: four([
                self.groups * self.outputs,
                self.channels,
                self.rows.kernel,
                self.columns.kernel,
            ]),
            output: four([
                self.images,
                self.groups * self.outputs,
                self.rows.places,
                self.columns.places,
            ]),
            padding: two(|it| it.padding),
            stride: two(|it| it.stride),
            dilation: two(|it| it.dilation),
            number,
            math: Math::Full,
            deterministic: true,
            workspace: bytes,
        };
        let at = |it: &Operand| Address(it.first());
        let operands = dnn::Operands { input: at(x), filter: at(weight), output: at(y), workspace };
        Plan::Convolution(Box::new(LibraryConvolution {
            convolution,
            operands,
            by_definition,
            then,
        }))
    }

    /// One number for each thread.
    fn by_definition(&self, pass: Pass, [x, weight, y]: [&Operand; 3], made: &Operand) -> Launch {
        let name = match pass {
            Pass::Forward => "convolution",
            Pass::InputGradient => "convolution_input_gradient",
            Pass::FilterGradient => "convolution_filter_gradient",
        };
        let program = Program::new(
            name,
            BY_DEFINITION,
            &[("T", &stored(made.dtype)), ("C", &wide(made.dtype))],
        );
        let mut arguments = Arguments::new();
        [x, weight, y].iter().for_each(|it| arguments.push(it.first()));
        let mut sizes = Vec::new();
        let windows = [self.rows, self.columns]
            .map(|it| [it.size, it.kernel, it.stride, it.padding, it.dilation, it.places]);
        let all = [self.images, self.groups, self.channels, self.outputs];
        for size in all.iter().chain(windows.as_flattened()) {
            sizes.extend((*size as i64).to_ne_bytes());
        }
        arguments.push_bytes(&sizes);
        let blocks = (made.layout.numel() as u64).div_ceil(u64::from(THREADS));
        let blocks = blocks.min(i32::MAX as u64) as u32;
        Launch::new(program, Extent::line(blocks, THREADS), arguments)
    }
}

/// Adds a number to each channel.
fn add_bias(y: &Operand, bias: &Operand) -> Vec<Launch> {
    let stride = bias.layout.strides()[0];
    let layout = bias
        .layout
        .unsqueeze(0)
        .and_then(|it| it.unsqueeze(2))
        .and_then(|it| it.unsqueeze(3))
        .and_then(|it| it.expand(y.layout.shape()));
    let Some(layout) = layout else { return Vec::new() };
    debug_assert_eq!(layout.strides()[1], stride, "a number for each channel");
    let bias = [Operand { layout, ..bias.clone() }];
    let on = Operands { outputs: std::slice::from_ref(y), inputs: &bias };
    Elementwise::new("add_bias", wide(y.dtype), "y0 = y0 + x0;").updates().plan(on).into_launches()
}

/// `output = x ∗ weight`, plus a bias for each channel if there is a third input.
pub(crate) struct Conv2d {
    geometry: Geometry,
    bias: bool,
    workspace: Option<Address>,
}

impl Kernel for Conv2d {
    fn host(&self, args: &mut Args<'_>) -> Result<(), String> {
        dispatch_float!(args.output_dtype(0), T => self.run::<T>(args), else return Err(no_float()));
        Ok(())
    }

    fn operations(&self, _: &[&Tensor]) -> f64 {
        self.geometry.operations()
    }

    fn cuda(&self, on: Operands<'_>) -> Plan {
        let (y, x, weight) = (&on.outputs[0], &on.inputs[0], &on.inputs[1]);
        let bias = self.bias.then(|| &on.inputs[2]);
        self.geometry.cuda(Pass::Forward, [x, weight, y], bias, self.workspace)
    }
}

impl Conv2d {
    fn run<T: Float<Wide: Product>>(&self, args: &mut Args<'_>) {
        let g = self.geometry;
        let (x, weight) = (args.input(0), args.input(1).to_slice::<T::Wide>());
        let bias = self.bias.then(|| args.input(2).to_slice::<T::Wide>());
        each_image(g, args.take::<T>(0).slice(), g.result(), &|image, to, alone| {
            let (mut for_x, mut columns, mut part) = (Vec::new(), Vec::new(), Vec::new());
            let x = of_image(x, image, g.image(), &mut for_x);
            for (group, places) in (0..g.groups).flat_map(|it| g.pieces().map(move |at| (it, at))) {
                part.resize(g.outputs * places.len(), T::Wide::default());
                let size = (g.outputs, places.len(), g.seen());
                let weight = g.weight_of(&weight, group);
                let weight = Matrix { data: weight, strides: (g.seen(), 1), conj: false };
                let columns = g.matrix(x, group, places.clone(), &mut columns, alone);
                product(size, &mut part, false, weight, columns, alone);
                for (output, part) in part.chunks(places.len().max(1)).enumerate() {
                    let channel = group * g.outputs + output;
                    let add = bias.as_ref().map_or(T::Wide::default(), |bias| bias[channel]);
                    let to = &mut to[channel * g.places()..][places.clone()];
                    to.iter_mut().zip(part).for_each(|(to, it)| *to = T::narrow(*it + add));
                }
            }
        });
    }
}

/// `output` = the gradient of `x`, from that of the result and the weight.
pub(crate) struct Conv2dInputGrad {
    geometry: Geometry,
    workspace: Option<Address>,
}

impl Kernel for Conv2dInputGrad {
    fn host(&self, args: &mut Args<'_>) -> Result<(), String> {
        dispatch_float!(args.output_dtype(0), T => self.run::<T>(args), else return Err(no_float()));
        Ok(())
    }

    fn operations(&self, _: &[&Tensor]) -> f64 {
        self.geometry.operations()
    }

    fn cuda(&self, on: Operands<'_>) -> Plan {
        let (x, grad, weight) = (&on.outputs[0], &on.inputs[0], &on.inputs[1]);
        self.geometry.cuda(Pass::InputGradient, [x, weight, grad], None, self.workspace)
    }
}

impl Conv2dInputGrad {
    fn run<T: Float<Wide: Product>>(&self, args: &mut Args<'_>) {
        let g = self.geometry;
        let (grad, weight) = (args.input(0), args.input(1).to_slice::<T::Wide>());
        each_image(g, args.take::<T>(0).slice(), g.image(), &|image, to, alone| {
            let (mut for_grad, mut columns) = (Vec::new(), Vec::new());
            let grad = of_image(grad, image, g.result(), &mut for_grad);
            let mut sums = vec![T::Wide::default(); to.len()];
            for (group, places) in (0..g.groups).flat_map(|it| g.pieces().map(move |at| (it, at))) {
                let weight = g.weight_of(&weight, group);
                let weight = Matrix { data: weight, strides: (1, g.seen()), conj: false };
                let grad = g.result_of(grad, group, &places);
                columns.resize(g.seen() * places.len(), T::Wide::default());
                let size = (g.seen(), places.len(), g.outputs);
                product(size, &mut columns, false, weight, grad, alone);
                for (row, from) in columns.chunks(places.len().max(1)).enumerate() {
                    g.scatter(row, places.clone(), from, &mut sums[g.channel(group, row)]);
                }
            }
            to.iter_mut().zip(sums).for_each(|(to, it)| *to = T::narrow(it));
        });
    }
}

/// `output` = the gradient of the weight, from that of the result and `x`.
pub(crate) struct Conv2dWeightGrad {
    geometry: Geometry,
    workspace: Option<Address>,
}

impl Kernel for Conv2dWeightGrad {
    fn host(&self, args: &mut Args<'_>) -> Result<(), String> {
        dispatch_float!(args.output_dtype(0), T => self.run::<T>(args), else return Err(no_float()));
        Ok(())
    }

    fn operations(&self, _: &[&Tensor]) -> f64 {
        self.geometry.operations()
    }

    fn cuda(&self, on: Operands<'_>) -> Plan {
        let (weight, grad, x) = (&on.outputs[0], &on.inputs[0], &on.inputs[1]);
        self.geometry.cuda(Pass::FilterGradient, [x, weight, grad], None, self.workspace)
    }
}

impl Conv2dWeightGrad {
    /// One image after the other, each on all cores, so that there is one sum and no copies of it.
    fn run<T: Float<Wide: Product>>(&self, args: &mut Args<'_>) {
        let g = self.geometry;
        let (grad, x) = (args.input(0), args.input(1));
        let mut sums = vec![T::Wide::default(); g.weight()];
        let (mut for_grad, mut for_x, mut columns) = (Vec::new(), Vec::new(), Vec::new());
        for image in 0..g.images {
            let grad = of_image(grad, image, g.result(), &mut for_grad);
            let x = of_image(x, image, g.image(), &mut for_x);
            for (group, places) in (0..g.groups).flat_map(|it| g.pieces().map(move |at| (it, at))) {
                let size = (g.outputs, g.seen(), places.len());
                let grad = g.result_of(grad, group, &places);
                let columns = g.matrix(x, group, places, &mut columns, false);
                let flipped = Matrix { strides: (1, columns.strides.0), ..columns };
                let part = g.outputs * g.seen();
                let sums = &mut sums[group * part..(group + 1) * part];
                product(size, sums, true, grad, flipped, false);
            }
        }
        let to = args.take::<T>(0).slice();
        to.iter_mut().zip(sums).for_each(|(to, it)| *to = T::narrow(it));
    }
}

/// What computes one image: its number, where to put it, and whether on this thread alone.
type ForImage<'a, T> = &'a (dyn Fn(usize, &mut [T], bool) + Sync);

/// Calls `work` for each image of the output: on a thread each if there are enough of them, otherwise
/// one after the other, each on all threads.
fn each_image<T: Float>(g: Geometry, output: &mut [T], width: usize, work: ForImage<'_, T>) {
    if g.alone() {
        let cost = width.saturating_mul(g.seen());
        slices(output, width, cost, &|image, to| work(image, to, true));
    } else {
        let images = output.chunks_mut(width.max(1)).enumerate();
        images.for_each(|(image, to)| work(image, to, false));
    }
}

/// The elements of one image.
fn of_image<'s, R: Real>(
    x: Input<'s>,
    image: usize,
    size: usize,
    scratch: &'s mut Vec<R>,
) -> &'s [R] {
    x.chunk(image * size..(image + 1) * size, scratch)
}

fn no_float() -> String {
    "convolutions are of floats".to_owned()
}

struct ConvBackward {
    call: Call,
    geometry: Geometry,
    x: Saved,
    weight: Saved,
    has_bias: bool,
}

impl Backward for ConvBackward {
    fn backward(&self, grads: &[Option<Tensor>], needs: &Needs<'_>) -> Result<Grads> {
        let mut results: Grads = (0..2 + usize::from(self.has_bias)).map(|_| None).collect();
        let Some(grad) = &grads[0] else { return Ok(results) };
        let (call, geometry) = (self.call, self.geometry);
        let (x, weight) = (self.x.unpack()?, self.weight.unpack()?);
        let grad = grad.in_order(call)?;
        let like = |it: &Tensor| Tensor::uninit(call, it.shape().clone(), it.dtype(), it.device());
        let scratch = |to: &Tensor| {
            let bytes = geometry.workspace(to.dtype());
            to.device().workspaces().for_convolution(call, to.device(), bytes)
        };
        if needs.input(0) {
            let to = like(&x)?;
            let weight = weight.in_order(call)?;
            let scratch = scratch(&to)?;
            let workspace = scratch.as_ref().map(Block::address);
            call.launch(Conv2dInputGrad { geometry, workspace }, &[&to], &[&grad, &weight])?;
            results[0] = Some(to);
        }
        if needs.input(1) {
            let to = like(&weight)?;
            let x = x.in_order(call)?;
            let scratch = scratch(&to)?;
            let workspace = scratch.as_ref().map(Block::address);
            call.launch(Conv2dWeightGrad { geometry, workspace }, &[&to], &[&grad, &x])?;
            results[1] = Some(to);
        }
        if self.has_bias && needs.input(2) {
            results[2] = Some(grad.sum_dim(&[0, 2, 3], false)?);
        }
        Ok(results)
    }
}

impl Tensor {
    /// Itself if its elements lie in order, otherwise a copy that does; outside the graph.
    #[track_caller]
    pub(crate) fn in_order(&self, call: Call) -> Result<Tensor> {
        if self.is_contiguous() { Ok(self.clone()) } else { self.copied(call) }
    }

    /// The convolution of images `[image, channel, height, width]` with a weight `[channel out,
    /// channel in of a group, height, width]`, and a bias for each channel out.
    ///
    /// # Errors
    ///
    /// If the shapes do not fit, the element types differ or are no floats, or if there is no memory.
    #[track_caller]
    pub fn conv2d(
        &self,
        weight: &Tensor,
        bias: Option<&Tensor>,
        options: ConvOptions,
    ) -> Result<Tensor> {
        let call = Call::here("conv2d");
        let (x, weight, bias) = (lower(self)?, lower(weight)?, bias.map(lower).transpose()?);
        x.conv2d_in(call, &weight, bias.as_ref(), options)
    }

    /// The same, whatever autocast says.
    #[track_caller]
    fn conv2d_in(
        &self,
        call: Call,
        weight: &Tensor,
        bias: Option<&Tensor>,
        options: ConvOptions,
    ) -> Result<Tensor> {
        let geometry = geometry(call, self, weight, bias, options)?;
        let (x, filters) = (self.in_order(call)?, weight.in_order(call)?);
        let shape = Shape::from([
            geometry.images,
            geometry.groups * geometry.outputs,
            geometry.rows.places,
            geometry.columns.places,
        ]);
        let output = Tensor::uninit(call, shape, self.dtype(), self.device())?;
        let bytes = geometry.workspace(self.dtype());
        let scratch = self.device().workspaces().for_convolution(call, self.device(), bytes)?;
        let workspace = scratch.as_ref().map(Block::address);
        let kernel = Conv2d { geometry, bias: bias.is_some(), workspace };
        let inputs = |x, weight| -> Vec<&Tensor> { [x, weight].into_iter().chain(bias).collect() };
        call.launch(kernel, &[&output], &inputs(&x, &filters))?;
        record(call, "ConvolutionBackward", &[&output], &inputs(self, weight), || {
            let (x, weight) = (Saved::input(call, self)?, Saved::input(call, weight)?);
            Ok(Box::new(ConvBackward { call, geometry, x, weight, has_bias: bias.is_some() }))
        })?;
        Ok(output)
    }
}

/// The shape rule.
fn geometry(
    call: Call,
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    options: ConvOptions,
) -> Result<Geometry> {
    let with = |error: crate::error::Error| {
        let error = error.with_tensor("self", x).with_tensor("weight", weight);
        bias.map_or(error.clone(), |bias| error.with_tensor("bias", bias))
    };
    for other in [Some(weight), bias].into_iter().flatten() {
        call.check_products(x, other)?;
    }
    if !x.dtype().is_float() {
        return Err(with(call.dtype_error("convolutions are of floats")));
    }
    let [images, channels, ..] = images(call, x)?;
    let &[outputs, seen, height, width] = &weight.shape()[..] else {
        let what = "the weight has four axes: channel out, channel in of a group, height, width";
        return Err(with(call.shape_error(what)));
    };
    let groups = options.groups;
    if groups == 0 || !outputs.is_multiple_of(groups) {
        let what = format!("{outputs} channels out are not {groups} equal groups");
        return Err(with(call.error(ErrorKind::Value, what)));
    }
    if seen.checked_mul(groups) != Some(channels) {
        let what = format!("the weight wants {seen} channels in each of {groups} groups");
        let help = format!("the images have {channels} channels");
        return Err(with(call.shape_error(what)).help(help));
    }
    if let Some(bias) = bias.filter(|bias| bias.shape()[..] != [outputs]) {
        let what = format!("the bias does not have one number for each of {outputs} channels");
        return Err(with(call.shape_error(what)).with("bias shape", bias.shape()));
    }
    let numbers = [[height, width], options.stride.0, options.padding.0, options.dilation.0];
    let [rows, columns] = windows(call, x, numbers, false)?;
    Ok(Geometry { images, groups, channels: seen, outputs: outputs / groups, rows, columns })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{conformance, gradcheck};
    use crate::{DType, Device};

    /// The definition, with one loop for each letter.
    fn by_definition(x: &Tensor, weight: &Tensor, options: ConvOptions) -> Result<Vec<f64>> {
        let g = geometry(Call::here("test"), x, weight, None, options)?;
        let (x, weight) = (x.to_vec::<f64>()?, weight.to_vec::<f64>()?);
        let mut y = Vec::new();
        for image in 0..g.images {
            for output in 0..g.groups * g.outputs {
                for (row, column) in
                    (0..g.rows.places).flat_map(|r| (0..g.columns.places).map(move |c| (r, c)))
                {
                    let mut sum = 0.0;
                    for tap in 0..g.seen() {
                        let (i, j) =
                            (tap / g.columns.kernel % g.rows.kernel, tap % g.columns.kernel);
                        let channel = output / g.outputs * g.channels
                            + tap / (g.rows.kernel * g.columns.kernel);
                        if let (Some(h), Some(w)) = (g.rows.sees(row, i), g.columns.sees(column, j))
                        {
                            let at = image * g.image() + channel * g.plane();
                            let value = x[at + h * g.columns.size + w];
                            sum += value * weight[output * g.seen() + tap];
                        }
                    }
                    y.push(sum);
                }
            }
        }
        Ok(y)
    }

    fn cases() -> Vec<(ConvOptions, [usize; 4], [usize; 4])> {
        let plain = ConvOptions::default();
        vec![
            (plain, [2, 3, 6, 5], [4, 3, 1, 1]),
            (plain, [1, 2, 5, 6], [3, 2, 3, 2]),
            (plain.padding(1), [3, 2, 4, 4], [2, 2, 3, 3]),
            (plain.stride(2).padding([1, 2]), [2, 2, 7, 6], [2, 2, 3, 3]),
            (plain.dilation(2).padding(2), [1, 2, 6, 6], [2, 2, 3, 3]),
            (plain.groups(2), [2, 4, 4, 4], [6, 2, 2, 2]),
            (plain.groups(4).padding(1).stride([1, 3]), [1, 4, 4, 7], [4, 1, 3, 3]),
            (plain.stride(2), [2, 2, 5, 5], [2, 2, 1, 1]),
        ]
    }

    #[test]
    fn it_is_the_definition() -> Result<()> {
        let device = Device::host("256 MiB").unwrap();
        for (options, x, weight) in cases() {
            let x = Tensor::randn(x, (&device, DType::F64))?;
            let weight = Tensor::randn(weight, (&device, DType::F64))?;
            let y = x.conv2d(&weight, None, options)?.to_vec::<f64>()?;
            let expected = by_definition(&x, &weight, options)?;
            assert_eq!(y.len(), expected.len());
            let close = y.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-12);
            assert!(close, "{options:?}");
        }
        Ok(())
    }

    #[test]
    fn pieces_and_types_do_not_show() -> Result<()> {
        let device = Device::host("256 MiB").unwrap();
        // 32 · 9 rows of columns: 455 places fit into a piece, and there are 900.
        let x = Tensor::randn([3, 32, 30, 30], (&device, DType::F64))?;
        let weight = Tensor::randn([5, 32, 3, 3], (&device, DType::F64))?;
        let options = ConvOptions::default().padding(1);
        let expected = by_definition(&x, &weight, options)?;
        for (dtype, tolerance) in
            [(DType::F64, 1e-11), (DType::F32, 1e-4), (DType::F16, 0.1), (DType::Bf16, 0.8)]
        {
            let y = x.to(dtype)?.conv2d(&weight.to(dtype)?, None, options)?.to(DType::F64)?;
            let y = y.to_vec::<f64>()?;
            let close = y.iter().zip(&expected).all(|(a, b)| (a - b).abs() < tolerance);
            assert!(close, "{dtype}");
        }
        let turned = x.transpose(2, 3)?.contiguous()?.transpose(2, 3)?;
        let [a, b] = [&x, &turned].map(|x| x.conv2d(&weight, None, options));
        assert_eq!(a?.to_vec::<f64>()?, b?.to_vec::<f64>()?);
        Ok(())
    }

    #[test]
    fn gradients_are_right() {
        for (options, x, weight) in cases() {
            gradcheck(&[&x, &weight, &[weight[0]]], |it| {
                it[0].conv2d(&it[1], Some(&it[2]), options)
            })
            .unwrap_or_else(|error| panic!("{options:?}: {error}"));
        }
    }

    #[test]
    fn wrong_shapes_say_what_met_what() -> Result<()> {
        let device = Device::dry("1 GiB").unwrap();
        let x = Tensor::zeros([1, 3, 8, 8], &device)?;
        let weight = Tensor::zeros([4, 2, 3, 3], &device)?;
        let plain = ConvOptions::default();
        let text = |result: Result<Tensor>| result.unwrap_err().to_string();
        let wrong = text(x.conv2d(&weight, None, plain));
        assert!(wrong.contains("wants 2 channels") && wrong.contains("[4, 2, 3, 3]"), "{wrong}");
        let weight = Tensor::zeros([4, 3, 9, 3], &device)?;
        assert!(text(x.conv2d(&weight, None, plain)).contains("larger than the padded image"));
        let weight = Tensor::zeros([4, 3, 3, 3], &device)?;
        assert!(text(x.conv2d(&weight, None, plain.stride(0))).contains("at least one"));
        assert!(text(x.conv2d(&weight, None, plain.groups(3))).contains("not 3 equal groups"));
        let bias = Tensor::zeros([5], &device)?;
        assert!(text(x.conv2d(&weight, Some(&bias), plain)).contains("bias"));
        assert!(text(x.select(0, 0)?.conv2d(&weight, None, plain)).contains("four axes"));
        assert_eq!(Tensor::zeros([0, 3, 8, 8], &device)?.conv2d(&weight, None, plain)?.numel(), 0);
        Ok(())
    }

    conformance!(convolutions, |device| {
        let x = Tensor::ones([2, 3, 10, 12], device)?;
        let options = ConvOptions::default().padding(1).stride(2);
        let weight = Tensor::ones([4, 3, 3, 3], device)?.requires_grad_(true)?;
        let bias = Tensor::ones([4], device)?.requires_grad_(true)?;
        let y = x.conv2d(&weight, Some(&bias), options)?.relu()?;
        let z = y.conv2d(&Tensor::ones([2, 4, 1, 1], device)?, None, ConvOptions::default())?;
        z.sum()?.backward()?;
        Ok(vec![z, weight.grad().unwrap(), bias.grad().unwrap()])
    });
}
