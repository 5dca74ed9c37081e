//! Scaled-dot-product attention that never stores the matrix of all scores.
//!
//! Forward: tiles of queries meet tiles of keys one after the other. Of each row of scores only the
//! largest so far and the sum of exponentials relative to it are kept, and what was added up is scaled
//! when a larger one comes. Backward: scores are computed again, tile by tile, from the logarithm of each
//! row's sum (`logsumexp`), which is all that is kept beside inputs and output.
//!
//! What is allocated is what PyTorch 2.11 was seen to allocate on an H200, which has two kernels: one for
//! 32-bit floats ("memory-efficient") and one for 16-bit floats (cuDNN's). There, 64-bit floats go without a
//! kernel of their own and store all scores; here they are served as 32-bit ones are.

mod plans;

use rayon::prelude::*;

use crate::amp::lower;
use crate::autograd::{Backward, Grads, Needs, Saved, record, records};
use crate::dtype::{DType, Float, Real, Stored, dispatch_float};
use crate::error::{Call, Result};
use crate::exec::{
    Args, Input, Kernel, Matrix, Operands, Output, Plan, Product, for_each_chunk, product,
};
use crate::shape::Shape;
use crate::tensor::Tensor;
use crate::work::product_operations;

/// How to attend.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct AttentionOptions {
    /// Whether query i sees only the keys up to i.
    pub causal: bool,
    /// What scores are multiplied by; if none, one over the root of the width.
    pub scale: Option<f64>,
}

impl AttentionOptions {
    /// Query i sees only the keys up to i.
    #[must_use]
    pub fn causal(mut self, on: bool) -> Self {
        self.causal = on;
        self
    }

    /// With another factor for the scores.
    #[must_use]
    pub fn scale(mut self, scale: f64) -> Self {
        self.scale = Some(scale);
        self
    }
}

/// Rows of a tile: the scores of a tile, and its parts of queries, keys and values, stay in a core's cache.
const TILE: usize = 64;

/// The sizes: queries `[batch, heads, rows, width]`, keys `[…, keys, width]`, values `[…, keys, depth]`.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    batch: usize,
    heads: usize,
    rows: usize,
    keys: usize,
    width: usize,
    depth: usize,
    causal: bool,
    scale: f64,
}

/// Some rows or keys of one head.
#[derive(Clone, Copy)]
struct Span {
    start: usize,
    length: usize,
}

impl Sizes {
    /// Of so many products over the width and over the depth; of causal ones, half is not computed.
    fn operations(&self, widths: usize, depths: usize) -> f64 {
        let terms = widths * self.width + depths * self.depth;
        let all = product_operations([self.batch, self.heads, self.rows, self.keys, terms]);
        if self.causal { all / 2.0 } else { all }
    }

    fn spans(length: usize) -> impl Iterator<Item = Span> {
        let span = move |start| Span { start, length: TILE.min(length - start) };
        (0..length).step_by(TILE).map(span)
    }

    /// Whether any of these rows sees any of these keys.
    fn meet(&self, rows: Span, keys: Span) -> bool {
        !self.causal || keys.start < rows.start + rows.length
    }

    /// How many of these keys a row sees.
    fn seen(&self, row: usize, keys: Span) -> usize {
        if self.causal {
            (row + 1).saturating_sub(keys.start).min(keys.length)
        } else {
            keys.length
        }
    }
}

/// Tiles of an input, in order and of one type.
struct Tiles<'a, R> {
    input: Input<'a>,
    length: usize,
    width: usize,
    scratch: Vec<R>,
}

impl<'a, R: Stored> Tiles<'a, R> {
    fn new(input: Input<'a>) -> Self {
        let [_, _, length, width] = input.layout().shape()[..] else {
            return Self { input, length: 0, width: 0, scratch: Vec::new() };
        };
        Self { input, length, width, scratch: Vec::new() }
    }

    /// A part of a head, rows one after the other.
    fn get(&mut self, head: usize, span: Span) -> &[R] {
        let start = (head * self.length + span.start) * self.width;
        self.input.chunk(start..start + span.length * self.width, &mut self.scratch)
    }
}

fn by_rows<R>(data: &[R], width: usize) -> Matrix<'_, R> {
    Matrix { data, strides: (width, 1), conj: false }
}

fn flipped<R>(data: &[R], width: usize) -> Matrix<'_, R> {
    Matrix { data, strides: (1, width), conj: false }
}

/// What tiles are computed in.
trait Wide: Real + Product {}

impl Wide for f32 {}

impl Wide for f64 {}

/// Writes numbers in the order of indices into an output of any layout.
fn store<T: Float>(output: Output<'_, T>, wide: &[T::Wide]) {
    for_each_chunk(output, &|indices, chunk| {
        let from = &wide[indices];
        chunk.iter_mut().zip(from).for_each(|(to, it)| *to = T::narrow(*it));
    });
}

/// Output and logsumexp from queries, keys and values. The logsumexp may be longer than there are rows,
/// or empty if nobody wants it.
struct Attend(Sizes);

impl Kernel for Attend {
    fn host(&self, args: &mut Args<'_>) -> Result<(), String> {
        let (inputs, sizes) = ([args.input(0), args.input(1), args.input(2)], self.0);
        dispatch_float!(args.output_dtype(0), T => {
            type W = <T as Float>::Wide;
            let (output, log_sums) = attend_all::<W>(&sizes, inputs);
            store::<T>(args.take(0), &output);
            let to = args.take::<W>(1).slice();
            let padded = to.len().checked_div(sizes.batch * sizes.heads).unwrap_or(0);
            if padded > 0 && sizes.rows > 0 {
                let each = to.chunks_mut(padded).zip(log_sums.chunks(sizes.rows));
                each.for_each(|(to, from)| to[..from.len()].copy_from_slice(from));
            }
        }, else return Err(format!("{} is no float", args.output_dtype(0))));
        Ok(())
    }

    fn operations(&self, _: &[&Tensor]) -> f64 {
        self.0.operations(1, 1)
    }

    fn cuda(&self, on: Operands<'_>) -> Plan {
        plans::forward(&self.0, on)
    }
}

/// Tiles of all heads on all cores.
fn attend_all<R: Wide>(sizes: &Sizes, inputs: [Input<'_>; 3]) -> (Vec<R>, Vec<R>) {
    let heads = sizes.batch * sizes.heads;
    let mut output = vec![R::default(); heads * sizes.rows * sizes.depth];
    let mut log_sums = vec![R::default(); heads * sizes.rows];
    if output.is_empty() {
        return (output, log_sums);
    }
    let of_heads = output.chunks_mut(sizes.rows * sizes.depth).zip(log_sums.chunks_mut(sizes.rows));
    let mut tiles: Vec<_> = of_heads
        .enumerate()
        .flat_map(|(head, (output, log_sums))| {
            let each = output.chunks_mut(TILE * sizes.depth).zip(log_sums.chunks_mut(TILE));
            Sizes::spans(sizes.rows).zip(each).map(move |(span, to)| (head, span, to))
        })
        .collect();
    tiles.par_iter_mut().for_each(|(head, span, (output, log_sums))| {
        attend(sizes, &mut inputs.map(Tiles::new), *head, *span, output, log_sums);
    });
    (output, log_sums)
}

/// One tile of queries of one head against all its keys: the output, which is zero before, and each
/// row's logsumexp.
fn attend<R: Wide>(
    sizes: &Sizes,
    [queries, keys, values]: &mut [Tiles<'_, R>; 3],
    head: usize,
    rows: Span,
    output: &mut [R],
    log_sums: &mut [R],
) {
    let (width, depth) = (sizes.width, sizes.depth);
    let queries = scaled(queries.get(head, rows), sizes.scale);
    let mut largest = vec![R::n(f64::NEG_INFINITY); rows.length];
    let mut sums = vec![R::n(0.0); rows.length];
    let mut scores = vec![R::default(); rows.length * TILE];
    for span in Sizes::spans(sizes.keys).take_while(|span| sizes.meet(rows, *span)) {
        let scores = &mut scores[..rows.length * span.length];
        let shape = (rows.length, span.length, width);
        let (a, b) = (by_rows(&queries, width), flipped(keys.get(head, span), width));
        product(shape, scores, false, a, b, true);
        for (row, scores) in scores.chunks_mut(span.length).enumerate() {
            let (seen, unseen) = scores.split_at_mut(sizes.seen(rows.start + row, span));
            let before = largest[row];
            let now = seen.iter().fold(before, |a, b| if *b > a { *b } else { a });
            if now == R::n(f64::NEG_INFINITY) {
                scores.fill(R::n(0.0));
                continue;
            }
            unseen.fill(R::n(0.0));
            let mut sum = R::n(0.0);
            for score in seen {
                *score = (*score - now).exp();
                sum = sum + *score;
            }
            let shrink = (before - now).exp();
            sums[row] = sums[row] * shrink + sum;
            largest[row] = now;
            if shrink != R::n(1.0) {
                let row = &mut output[row * depth..][..depth];
                row.iter_mut().for_each(|it| *it = *it * shrink);
            }
        }
        let shape = (rows.length, depth, span.length);
        let (a, b) = (by_rows(scores, span.length), by_rows(values.get(head, span), depth));
        product(shape, output, true, a, b, true);
    }
    for (row, sum) in sums.iter().enumerate() {
        log_sums[row] = largest[row] + sum.ln();
        let row = &mut output[row * depth..][..depth];
        row.iter_mut().for_each(|it| *it = *it / *sum);
    }
}

fn scaled<R: Real>(tile: &[R], scale: f64) -> Vec<R> {
    let scale = R::n(scale);
    tile.iter().map(|it| *it * scale).collect()
}

/// What the backward reads: queries, keys, values, output, its gradient, logsumexp.
struct Read<'a, R> {
    queries: Tiles<'a, R>,
    keys: Tiles<'a, R>,
    values: Tiles<'a, R>,
    output: Tiles<'a, R>,
    grad: Tiles<'a, R>,
}

impl<'a, R: Stored> Read<'a, R> {
    fn new(inputs: [Input<'a>; 5]) -> Self {
        let [queries, keys, values, output, grad] = inputs.map(Tiles::new);
        Self { queries, keys, values, output, grad }
    }
}

/// For one tile of rows and one of keys: the probabilities, and the gradients of the products of queries
/// and keys.
struct Tile<R> {
    probabilities: Vec<R>,
    scores: Vec<R>,
}

impl<R: Wide> Tile<R> {
    /// Computes both. `dots` holds for each row the product of the output and its gradient.
    fn new(
        sizes: &Sizes,
        read: &mut Read<'_, R>,
        head: usize,
        (rows, keys): (Span, Span),
        (log_sums, dots): (&[R], &[R]),
    ) -> Self {
        let mut probabilities = vec![R::default(); rows.length * keys.length];
        let queries = scaled(read.queries.get(head, rows), sizes.scale);
        let (a, b) = (by_rows(&queries, sizes.width), read.keys.get(head, keys));
        let b = flipped(b, sizes.width);
        product((rows.length, keys.length, sizes.width), &mut probabilities, false, a, b, true);
        let mut scores = vec![R::default(); rows.length * keys.length];
        let a = by_rows(read.grad.get(head, rows), sizes.depth);
        let b = flipped(read.values.get(head, keys), sizes.depth);
        product((rows.length, keys.length, sizes.depth), &mut scores, false, a, b, true);
        let each = probabilities.chunks_mut(keys.length).zip(scores.chunks_mut(keys.length));
        for (row, (probabilities, scores)) in each.enumerate() {
            let seen = sizes.seen(rows.start + row, keys);
            for (probability, score) in probabilities.iter_mut().zip(&mut *scores).take(seen) {
                *probability = (*probability - log_sums[row]).exp();
                *score = *probability * (*score - dots[row]) * R::n(sizes.scale);
            }
            probabilities[seen..].fill(R::n(0.0));
            scores[seen..].fill(R::n(0.0));
        }
        Self { probabilities, scores }
    }
}

/// The products of output and gradient, one for each row of a tile.
fn dots<R: Wide>(sizes: &Sizes, read: &mut Read<'_, R>, head: usize, rows: Span) -> Vec<R> {
    let depth = sizes.depth.max(1);
    let (output, grad) = (read.output.get(head, rows), read.grad.get(head, rows));
    let dot = |(a, b): (&[R], &[R])| a.iter().zip(b).fold(R::n(0.0), |sum, (a, b)| sum + *a * *b);
    output.chunks(depth).zip(grad.chunks(depth)).map(dot).collect()
}

/// Gradients of queries, keys and values. Inputs: queries, keys, values, output, gradient, logsumexp. The last output is
/// room for a number for each row, which a GPU needs.
struct AttendGrad(Sizes);

impl Kernel for AttendGrad {
    fn host(&self, args: &mut Args<'_>) -> Result<(), String> {
        let (inputs, sizes) = ([0, 1, 2, 3, 4].map(|place| args.input(place)), self.0);
        dispatch_float!(args.output_dtype(0), T => {
            let log_sums = args.input(5).to_slice::<<T as Float>::Wide>();
            let grads = attend_grad_all(&sizes, inputs, &log_sums);
            for (place, grad) in grads.iter().enumerate() {
                store::<T>(args.take(place), grad);
            }
        }, else return Err(format!("{} is no float", args.output_dtype(0))));
        Ok(())
    }

    /// Scores once more; then the gradients of queries, of keys, of values and of weights.
    fn operations(&self, _: &[&Tensor]) -> f64 {
        self.0.operations(3, 2)
    }

    fn cuda(&self, on: Operands<'_>) -> Plan {
        plans::backward(&self.0, on)
    }
}

/// All heads, each on a core.
fn attend_grad_all<R: Wide>(sizes: &Sizes, inputs: [Input<'_>; 5], log_sums: &[R]) -> [Vec<R>; 3] {
    let heads = sizes.batch * sizes.heads;
    let lengths = [sizes.rows * sizes.width, sizes.keys * sizes.width, sizes.keys * sizes.depth];
    let mut grads = lengths.map(|length| vec![R::default(); heads * length]);
    if heads == 0 || lengths.contains(&0) {
        return grads;
    }
    let [queries, keys, values] = &mut grads;
    let mut of_heads: Vec<[&mut [R]; 3]> = queries
        .chunks_mut(lengths[0])
        .zip(keys.chunks_mut(lengths[1]).zip(values.chunks_mut(lengths[2])))
        .map(|(queries, (keys, values))| [queries, keys, values])
        .collect();
    let padded = log_sums.len() / heads;
    of_heads.par_iter_mut().enumerate().for_each(|(head, to)| {
        let log_sums = &log_sums[head * padded..][..sizes.rows];
        attend_grad(sizes, &mut Read::new(inputs), head, log_sums, to);
    });
    grads
}

/// One head. The gradients are zero before.
fn attend_grad<R: Wide>(
    sizes: &Sizes,
    read: &mut Read<'_, R>,
    head: usize,
    log_sums: &[R],
    [to_queries, to_keys, to_values]: &mut [&mut [R]; 3],
) {
    let (width, depth) = (sizes.width, sizes.depth);
    let part = |span: Span, width: usize| span.start * width..(span.start + span.length) * width;
    for rows in Sizes::spans(sizes.rows) {
        let dots = dots(sizes, read, head, rows);
        let log_sums = &log_sums[part(rows, 1)];
        for keys in Sizes::spans(sizes.keys).take_while(|keys| sizes.meet(rows, *keys)) {
            let Tile { probabilities, scores } =
                Tile::new(sizes, read, head, (rows, keys), (log_sums, &dots));
            let to = &mut to_values[part(keys, depth)];
            let shape = (keys.length, depth, rows.length);
            let grad = by_rows(read.grad.get(head, rows), depth);
            product(shape, to, true, flipped(&probabilities, keys.length), grad, true);
            let to = &mut to_keys[part(keys, width)];
            let shape = (keys.length, width, rows.length);
            let queries = by_rows(read.queries.get(head, rows), width);
            product(shape, to, true, flipped(&scores, keys.length), queries, true);
            let to = &mut to_queries[part(rows, width)];
            let shape = (rows.length, width, keys.length);
            let from = by_rows(read.keys.get(head, keys), width);
            product(shape, to, true, by_rows(&scores, keys.length), from, true);
        }
    }
}

struct AttentionBackward {
    call: Call,
    sizes: Sizes,
    inputs: [Saved; 3],
    output: Saved,
    log_sums: Saved,
    /// State of dropout, which cuDNN's kernel keeps in any case.
    state: Vec<Saved>,
}

impl Backward for AttentionBackward {
    fn backward(&self, grads: &[Option<Tensor>], needs: &Needs<'_>) -> Result<Grads> {
        let Some(grad) = &grads[0] else { return Ok((0..3).map(|_| None).collect()) };
        let (call, sizes) = (self.call, self.sizes);
        let [queries, keys, values] = &self.inputs;
        let inputs = [queries.unpack()?, keys.unpack()?, values.unpack()?];
        let (output, log_sums) = (self.output.unpack()?, self.log_sums.unpack()?);
        let narrow = inputs[0].dtype().size() == 2;
        let new = |like: &Tensor| {
            if narrow { lying_as(call, like) } else { rows_before_heads(call, like.shape(), like) }
        };
        let [queries, keys, values] = &inputs;
        let outputs = [new(queries)?, new(keys)?, new(values)?];
        let scratch = Scratch::new(call, &sizes, queries, narrow)?;
        call.launch(
            AttendGrad(sizes),
            &[&outputs[0], &outputs[1], &outputs[2], &scratch.dots],
            &[queries, keys, values, &output, grad, &log_sums],
        )?;
        drop(scratch);
        for state in &self.state {
            state.unpack()?;
        }
        let wanted = |(place, it)| needs.input(place).then_some(it);
        Ok(outputs.into_iter().enumerate().map(wanted).collect())
    }
}

/// What PyTorch's kernels allocate for the backward beside its results.
struct Scratch {
    /// Room for the product of output and gradient of each row, in what rows are computed in.
    dots: Tensor,
    _workspace: Option<Tensor>,
}

impl Scratch {
    fn new(call: Call, sizes: &Sizes, like: &Tensor, narrow: bool) -> Result<Self> {
        let rows = sizes.batch * sizes.heads * sizes.rows;
        let bytes = |count: usize| Tensor::uninit(call, count.into(), DType::U8, like.device());
        if narrow {
            // The queries' gradient and a sum for each row in 32 bits.
            let dots = bytes(rows * (4 * sizes.width + 4) + 256)?;
            return Ok(Self { dots, _workspace: None });
        }
        let size = like.dtype().size();
        // Output times gradient, summed over each row, put in order.
        let products = bytes(rows * sizes.depth * size)?;
        let sums = bytes(rows * size)?;
        let ordered = bytes(rows * size)?;
        drop((sums, products));
        // The queries' gradient in tiles of 64 rows, with a lock for each.
        let columns = if sizes.width <= 64 { 64 } else { 128 };
        let tiles = sizes.rows.div_ceil(64) * sizes.width.div_ceil(columns);
        let workspace = bytes(sizes.batch * sizes.heads * tiles * (64 * columns * 4 + 16))?;
        Ok(Self { dots: ordered, _workspace: Some(workspace) })
    }
}

/// A new tensor of this shape `[batch, heads, rows, width]` whose rows lie before its heads, so that
/// merging heads needs no copy.
#[track_caller]
fn rows_before_heads(call: Call, shape: &Shape, like: &Tensor) -> Result<Tensor> {
    let [batch, heads, rows, width] = shape[..] else {
        return Err(call.shape_error("there are four axes").with("shape", shape));
    };
    let new = [batch, rows, heads, width].into();
    permuted(call, new, &[0, 2, 1, 3], like)
}

/// A new tensor with the axes of `like` in the order in which they lie there.
#[track_caller]
fn lying_as(call: Call, like: &Tensor) -> Result<Tensor> {
    let mut axes: Vec<usize> = (0..like.dim()).collect();
    axes.sort_by(|a, b| like.strides()[*b].cmp(&like.strides()[*a]));
    let shape = Shape::from_iter(axes.iter().map(|axis| like.shape()[*axis]));
    let mut inverse = vec![0; axes.len()];
    axes.iter().enumerate().for_each(|(to, from)| inverse[*from] = to);
    permuted(call, shape, &inverse, like)
}

#[track_caller]
fn permuted(call: Call, shape: Shape, axes: &[usize], like: &Tensor) -> Result<Tensor> {
    let new = Tensor::uninit(call, shape, like.dtype(), like.device())?;
    match new.layout().permute(axes) {
        Some(layout) => Ok(new.alias(layout).detach()),
        None => Err(call.shape_error("each axis is named once").with_tensor("self", like)),
    }
}

impl Sizes {
    fn new(
        call: Call,
        [queries, keys, values]: [&Tensor; 3],
        options: AttentionOptions,
    ) -> Result<Self> {
        let wrong = |error: crate::error::Error| {
            let error = error.with_tensor("queries", queries);
            error.with_tensor("keys", keys).with_tensor("values", values)
        };
        let all = [queries, keys, values];
        let same = |it: &&Tensor| it.dtype() == queries.dtype() && it.device() == queries.device();
        if !queries.dtype().is_float() || !all.iter().all(same) {
            return Err(wrong(call.dtype_error("all three are floats of one type on one device")));
        }
        let sizes = all.map(|it| it.shape().to_vec());
        let fits = sizes.iter().all(|it| it.len() == 4 && it[..2] == sizes[0][..2])
            && sizes[0][3] == sizes[1][3]
            && sizes[1][2] == sizes[2][2];
        if !fits {
            let help = "queries are [batch, heads, rows, width], keys [batch, heads, keys, width], \
                        values [batch, heads, keys, depth]";
            return Err(wrong(call.shape_error("the shapes do not fit")).help(help));
        }
        let width = sizes[0][3];
        Ok(Self {
            batch: sizes[0][0],
            heads: sizes[0][1],
            rows: sizes[0][2],
            keys: sizes[1][2],
            width,
            depth: sizes[2][3],
            causal: options.causal,
            scale: options.scale.unwrap_or(1.0 / (width as f64).sqrt()),
        })
    }
}

impl Tensor {
    /// Attention: for each row of `self`, the queries, the mean of `values`, weighted by the softmax
    /// of its products with `keys`. All are `[batch, heads, …, width]`. The matrix of weights is
    /// never in memory, neither here nor in the backward.
    ///
    /// ```
    /// # use tonnage_tensor::{AttentionOptions, Device, Tensor};
    /// # let device = Device::host("256 MiB")?;
    /// let [q, k, v] = [(); 3].map(|()| Tensor::randn([2, 8, 128, 64], &device));
    /// let options = AttentionOptions::default().causal(true);
    /// let y = q?.scaled_dot_product_attention(&k?, &v?, options)?;
    /// assert_eq!(y.shape()[..], [2, 8, 128, 64]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If shapes or types do not fit, or if there is no memory.
    #[track_caller]
    pub fn scaled_dot_product_attention(
        &self,
        keys: &Tensor,
        values: &Tensor,
        options: AttentionOptions,
    ) -> Result<Tensor> {
        let call = Call::here("scaled_dot_product_attention");
        let (queries, keys, values) = (lower(self)?, lower(keys)?, lower(values)?);
        queries.attention_in(call, &keys, &values, options)
    }

    /// The same, whatever autocast says.
    #[track_caller]
    fn attention_in(
        &self,
        call: Call,
        keys: &Tensor,
        values: &Tensor,
        options: AttentionOptions,
    ) -> Result<Tensor> {
        let inputs = [self, keys, values];
        let sizes = Sizes::new(call, inputs, options)?;
        let (narrow, recorded) = (self.dtype().size() == 2, records(&inputs));
        let new = |shape: Shape, dtype| Tensor::uninit(call, shape, dtype, self.device());
        let mut state = Vec::new();
        if narrow {
            state.extend([new(().into(), DType::I64)?, new(().into(), DType::I64)?]);
        }
        let shape = Shape::from([sizes.batch, sizes.heads, sizes.rows, sizes.depth]);
        let output = if narrow && sizes.depth == sizes.width {
            lying_as(call, self)?
        } else {
            rows_before_heads(call, &shape, self)?
        };
        let padded = match (recorded, narrow) {
            (false, _) => 0,
            (true, true) => sizes.rows,
            // The 32-bit kernel writes whole groups of 32 rows.
            (true, false) => sizes.rows.next_multiple_of(32),
        };
        let wide = if self.dtype() == DType::F64 { DType::F64 } else { DType::F32 };
        let log_sums = new([sizes.batch, sizes.heads, padded].into(), wide)?;
        let workspace = narrow.then(|| new(256.into(), DType::U8)).transpose()?;
        call.launch(Attend(sizes), &[&output, &log_sums], &inputs)?;
        drop(workspace);
        record(call, "ScaledDotProductAttentionBackward", &[&output], &inputs, || {
            let state = state.iter().map(|it| Saved::output(call, it)).collect::<Result<_>>()?;
            Ok(Box::new(AttentionBackward {
                call,
                sizes,
                inputs: [
                    Saved::input(call, self)?,
                    Saved::input(call, keys)?,
                    Saved::input(call, values)?,
                ],
                output: Saved::output(call, &output)?,
                log_sums: Saved::output(call, &log_sums)?,
                state,
            }))
        })?;
        Ok(output)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Device;
    use crate::testing::{conformance, gradcheck, requests};
    use tonnage_engine::RecordOptions;
    use tonnage_events::Action;

    fn device() -> Device {
        Device::host("256 MiB").unwrap()
    }

    /// The definition, with all scores in memory.
    fn by_definition(inputs: [&Tensor; 3], options: AttentionOptions) -> Result<Tensor> {
        let [queries, keys, values] = inputs;
        let scale = options.scale.unwrap_or(1.0 / (queries.shape()[3] as f64).sqrt());
        let mut scores = queries.matmul(&keys.transpose(-1, -2)?)?.mul(scale)?;
        if options.causal {
            let hidden = scores.ones_like()?.triu(1)?.mul(-1e30)?;
            scores = scores.add(&hidden)?;
        }
        scores.softmax(-1)?.matmul(values)
    }

    fn far(a: &Tensor, b: &Tensor) -> Result<f64> {
        let far = a.to(DType::F64)?.sub(&b.to(DType::F64)?)?.abs()?.to_vec::<f64>()?;
        Ok(far.into_iter().fold(0.0, f64::max))
    }

    #[test]
    fn values_and_gradients_are_the_definition_s_across_tiles() -> Result<()> {
        let device = device();
        for (rows, keys, depth) in [(1, 1, 8), (63, 64, 8), (65, 130, 8), (200, 150, 5)] {
            for causal in [false, true] {
                let new = |shape| Tensor::randn(shape, (&device, DType::F64))?.requires_grad_(true);
                let all = [new([2, 3, rows, 8])?, new([2, 3, keys, 8])?, new([2, 3, keys, depth])?];
                let options = AttentionOptions::default().causal(causal).scale(0.7);
                let weights = Tensor::randn([2, 3, rows, depth], (&device, DType::F64))?;
                let run = |y: Tensor| -> Result<(Tensor, Vec<Tensor>)> {
                    y.mul(&weights)?.sum()?.backward()?;
                    Ok((y, all.iter().map(|it| it.take_grad().unwrap()).collect()))
                };
                let (y, grads) =
                    run(all[0].scaled_dot_product_attention(&all[1], &all[2], options)?)?;
                let (expected, expected_grads) = run(by_definition(all.each_ref(), options)?)?;
                assert!(far(&y, &expected)? < 1e-13, "{rows} {keys} {causal}");
                for (grad, expected) in grads.iter().zip(&expected_grads) {
                    assert!(far(grad, expected)? < 1e-12, "{rows} {keys} {causal}");
                }
            }
        }
        Ok(())
    }

    #[test]
    fn heads_cut_out_of_one_tensor_work_as_they_lie() -> Result<()> {
        let device = device();
        for dtype in [DType::F32, DType::Bf16] {
            let x = Tensor::randn([2, 70, 3 * 32], &device)?.to(dtype)?;
            let heads = x.split(32, 2)?;
            let heads: Vec<Tensor> = heads
                .iter()
                .map(|it| it.reshape([2, 70, 4, 8])?.transpose(1, 2))
                .collect::<Result<_>>()?;
            let options = AttentionOptions::default().causal(true);
            let y = heads[0].scaled_dot_product_attention(&heads[1], &heads[2], options)?;
            assert!(y.transpose(1, 2)?.is_contiguous(), "heads merge without a copy");
            let wide = heads.iter().map(|it| it.to(DType::F32)).collect::<Result<Vec<_>>>()?;
            let expected = by_definition([&wide[0], &wide[1], &wide[2]], options)?;
            let tolerance = if dtype == DType::F32 { 1e-6 } else { 1e-2 };
            assert!(far(&y, &expected)? < tolerance, "{dtype}");
        }
        Ok(())
    }

    #[test]
    fn large_scores_do_not_overflow() -> Result<()> {
        let device = device();
        let q = Tensor::randn([1, 1, 100, 4], &device)?.mul(1e4)?;
        let v = Tensor::randn([1, 1, 100, 4], &device)?;
        let y = q.scaled_dot_product_attention(&q, &v, AttentionOptions::default())?;
        assert!(y.to_vec::<f32>()?.iter().all(|it| it.is_finite()));
        Ok(())
    }

    #[test]
    fn gradients_are_right() {
        for causal in [false, true] {
            let options = AttentionOptions::default().causal(causal);
            gradcheck(&[&[1, 2, 5, 3], &[1, 2, 4, 3], &[1, 2, 4, 2]], |x| {
                x[0].scaled_dot_product_attention(&x[1], &x[2], options)
            })
            .unwrap();
        }
    }

    #[test]
    fn wrong_shapes_say_which() {
        let device = Device::dry("1 GiB").unwrap();
        let new = |sizes: [usize; 4]| Tensor::zeros(sizes, &device).unwrap();
        let (q, k) = (new([2, 4, 10, 8]), new([2, 4, 12, 8]));
        let options = AttentionOptions::default();
        assert!(q.scaled_dot_product_attention(&k, &k, options).is_ok());
        let error = q.scaled_dot_product_attention(&k, &q, options).unwrap_err().to_string();
        assert!(error.contains("values:  float32[2, 4, 10, 8]"), "{error}");
        let half = k.to(DType::F16).unwrap();
        assert!(q.scaled_dot_product_attention(&half, &half, options).is_err());
    }

    /// PyTorch 2.11 on an H200: what is requested (+) and freed (-), forward and backward.
    #[test]
    fn what_is_asked_for_is_what_pytorch_asks_for() -> Result<()> {
        for (dtype, width, forward, backward) in [
            (
                DType::F32,
                64,
                "+204800 +4096",
                "+204800 +409600 +409600 +204800 +3200 +3200 -3200 -204800 +262400 -3200 -262400 \
                 -4096",
            ),
            (
                DType::F32,
                256,
                "+819200 +4096",
                "+819200 +1638400 +1638400 +819200 +3200 +3200 -3200 -819200 +1049088 -3200 \
                 -1049088 -4096",
            ),
            (
                DType::Bf16,
                64,
                "+8 +8 +102400 +3200 +256 -256",
                "+102400 +204800 +204800 +208256 -208256 -3200 -8 -8",
            ),
        ] {
            let device = Device::dry("8 GiB").unwrap();
            let new =
                |rows| Tensor::zeros([2, 4, rows, width], (&device, dtype))?.requires_grad_(true);
            let (q, k, v) = (new(100)?, new(200)?, new(200)?);
            let text = |from: usize| -> Vec<String> {
                let requests = requests(&device);
                let asked = requests.iter().filter(|(it, ..)| *it != Action::FreeCompleted);
                asked
                    .skip(from)
                    .map(|(action, size, _)| {
                        format!("{}{size}", if *action == Action::Alloc { '+' } else { '-' })
                    })
                    .collect()
            };
            device.memory().record_history(Some(RecordOptions::default()));
            let y = q.scaled_dot_product_attention(&k, &v, AttentionOptions::default())?;
            assert_eq!(text(0).join(" "), forward, "{dtype} {width}");
            let ones = y.ones_like()?;
            let before = text(0).len();
            y.backward_with(Some(&ones), crate::autograd::BackwardOptions::default())?;
            let asked = text(before).join(" ");
            assert!(asked.starts_with(backward), "{dtype} {width}\n{asked}\n{backward}");
        }
        Ok(())
    }

    conformance!(attention, |device| {
        let mut results = Vec::new();
        for dtype in [DType::F32, DType::Bf16] {
            let q = Tensor::randn([2, 3, 40, 8], (device, dtype))?.requires_grad_(true)?;
            let y = q.scaled_dot_product_attention(&q, &q, AttentionOptions::default())?;
            y.sum()?.backward()?;
            results.extend([y, q.grad().unwrap()]);
        }
        Ok(results)
    });

    /// Output and gradients for heads of these sizes: `[batch, heads, rows, keys, width, depth]`.
    fn attended(
        device: &Device,
        dtype: DType,
        [batch, heads, rows, keys, width, depth]: [usize; 6],
        options: AttentionOptions,
    ) -> Result<Vec<Tensor>> {
        let new = |rows, width| Tensor::randn([batch, heads, rows, width], (device, dtype));
        let (q, k, v) = (new(rows, width)?, new(keys, width)?, new(keys, depth)?);
        let all = [q, k, v].map(|it| it.requires_grad_(true));
        let [q, k, v] = all;
        let (q, k, v) = (q?, k?, v?);
        let y = q.scaled_dot_product_attention(&k, &v, options)?;
        let weights = new(rows, depth)?;
        y.backward_with(Some(&weights), crate::autograd::BackwardOptions::default())?;
        let grads = [q, k, v].into_iter().filter_map(|it| it.grad());
        Ok(std::iter::once(y.detach()).chain(grads).collect())
    }

    conformance!(attention_of_every_type_and_size, |device| {
        let mut results = Vec::new();
        for dtype in [DType::F32, DType::F64, DType::Bf16, DType::F16] {
            for sizes in [
                [1, 2, 1, 1, 64, 64],
                [2, 2, 200, 200, 64, 64],
                [1, 2, 130, 70, 128, 128],
                [1, 1, 70, 150, 40, 64],
                [1, 2, 65, 33, 24, 100],
                [1, 1, 100, 100, 7, 5],
                [1, 1, 80, 90, 160, 144],
            ] {
                for causal in [false, true] {
                    let options = AttentionOptions::default().causal(causal);
                    results.extend(attended(device, dtype, sizes, options)?);
                }
            }
            let options = AttentionOptions::default().scale(-0.3);
            results.extend(attended(device, dtype, [1, 1, 20, 30, 16, 16], options)?);
            let options = AttentionOptions::default();
            results.extend(attended(device, dtype, [1, 1, 20, 0, 16, 16], options)?);
        }
        Ok(results)
    });

    conformance!(attention_of_heads_as_they_lie, |device| {
        let mut results = Vec::new();
        for dtype in [DType::F32, DType::Bf16, DType::F16] {
            let x = Tensor::randn([2, 150, 3 * 2 * 64], (device, dtype))?.requires_grad_(true)?;
            let heads = x.split(2 * 64, 2)?;
            let cut = |it: &Tensor| it.reshape([2, 150, 2, 64])?.transpose(1, 2);
            let (q, k, v) = (cut(&heads[0])?, cut(&heads[1])?, cut(&heads[2])?);
            let options = AttentionOptions::default().causal(true);
            let y = q.scaled_dot_product_attention(&k, &v, options)?;
            let y = y.transpose(1, 2)?.reshape([2, 150, 2 * 64])?;
            y.mul(&Tensor::randn([2, 150, 2 * 64], (device, dtype))?)?.sum()?.backward()?;
            results.extend([y.detach(), x.grad().unwrap()]);
        }
        Ok(results)
    });

    /// A GPU adds up in 32 bits, in a room that PyTorch's kernels would ask for as well.
    #[test]
    fn there_is_room_for_a_number_for_each_row() -> Result<()> {
        let device = Device::dry("1 GiB").unwrap();
        for (dtype, width) in [(DType::F32, 1), (DType::F64, 64), (DType::Bf16, 1), (DType::F16, 3)]
        {
            let q = Tensor::zeros([2, 3, 70, width], (&device, dtype))?;
            let call = Call::here("attention");
            let sizes = Sizes::new(call, [&q, &q, &q], AttentionOptions::default())?;
            let scratch = Scratch::new(call, &sizes, &q, dtype.size() == 2)?;
            assert!(scratch.dots.numel() >= 2 * 3 * 70 * dtype.size().max(4), "{dtype}");
        }
        Ok(())
    }
}
