//! Loops over elements, split over this machine's cores.
//!
//! In:  outputs, inputs of any layout and element type, a function of single elements.
//! Out: the function applied everywhere. Inputs are broadcast by their layouts (a stride of zero) and
//!      converted in pieces that stay in the cache, so a kernel needs one loop for all cases.
//!
//! The pieces do not depend on the number of cores, so results do not either.

use std::ops::Range;

use rayon::prelude::*;

use super::args::{Input, Output};
use crate::dtype::Stored;

/// Elements of a piece: large enough that handing it to another thread (about a microsecond) does
/// not show, small enough that the pieces of three operands stay in a core's cache.
pub(crate) const CHUNK: usize = 8192;

/// Calls `work` with each piece of the output and the indices of its elements. What the piece holds
/// is what lay there before.
///
/// `work` is called once for thousands of elements, so it is a reference to a trait object: splitting
/// over threads is then compiled once for each element type, not once for each kernel.
pub(crate) fn for_each_chunk<T: Stored>(
    output: Output<'_, T>,
    work: &(dyn Fn(Range<usize>, &mut [T]) + Sync),
) {
    let indices = |place: usize, length: usize| place * CHUNK..place * CHUNK + length;
    match output.into_slice() {
        Ok(slice) if slice.len() <= CHUNK => work(0..slice.len(), slice),
        Ok(slice) => slice
            .par_chunks_mut(CHUNK)
            .enumerate()
            .for_each(|(place, chunk)| work(indices(place, chunk.len()), chunk)),
        // Rarely: an operation in place on a view.
        Err(mut output) => {
            let numel = output.numel();
            let mut piece = vec![T::default(); CHUNK.min(numel)];
            for start in (0..numel).step_by(CHUNK) {
                let range = start..numel.min(start + CHUNK);
                let piece = &mut piece[..range.len()];
                output.read(range.clone(), piece);
                work(range.clone(), piece);
                output.write(range, piece);
            }
        }
    }
}

/// Runs a loop compiled for the widest vectors that this machine has. What it calls must be inlined
/// into it; it pays where there is arithmetic, not where memory is the limit.
#[inline(always)]
pub(crate) fn vectorised(work: impl FnOnce()) {
    pulp::Arch::new().dispatch(work);
}

/// `output[i] = f(i)`.
pub(crate) fn fill_with<T: Stored>(output: Output<'_, T>, f: impl Fn(usize) -> T + Sync) {
    for_each_chunk(output, &|indices, chunk| {
        indices.zip(chunk).for_each(|(index, place)| *place = f(index));
    });
}

/// `output = f(a)`, element by element.
pub(crate) fn map1<A: Stored, T: Stored>(
    output: Output<'_, T>,
    a: Input<'_>,
    f: impl Fn(A) -> T + Sync,
) {
    for_each_chunk(output, &|indices, chunk| {
        let mut scratch = Vec::new();
        let a = a.chunk(indices, &mut scratch);
        chunk.iter_mut().zip(a).for_each(|(place, a)| *place = f(*a));
    });
}

/// `output = f(a, b)`, element by element.
pub(crate) fn map2<A: Stored, B: Stored, T: Stored>(
    output: Output<'_, T>,
    [a, b]: [Input<'_>; 2],
    f: impl Fn(A, B) -> T + Sync,
) {
    for_each_chunk(output, &|indices, chunk| {
        let (mut for_a, mut for_b) = (Vec::new(), Vec::new());
        let a = a.chunk(indices.clone(), &mut for_a);
        let b = b.chunk(indices, &mut for_b);
        chunk.iter_mut().zip(a.iter().zip(b)).for_each(|(place, (a, b))| *place = f(*a, *b));
    });
}

/// `output = f(a, b, c)`, element by element.
pub(crate) fn map3<A: Stored, B: Stored, C: Stored, T: Stored>(
    output: Output<'_, T>,
    [a, b, c]: [Input<'_>; 3],
    f: impl Fn(A, B, C) -> T + Sync,
) {
    for_each_chunk(output, &|indices, chunk| {
        let (mut for_a, mut for_b, mut for_c) = (Vec::new(), Vec::new(), Vec::new());
        let a = a.chunk(indices.clone(), &mut for_a);
        let b = b.chunk(indices.clone(), &mut for_b);
        let c = c.chunk(indices, &mut for_c);
        let inputs = a.iter().zip(b.iter().zip(c));
        chunk.iter_mut().zip(inputs).for_each(|(place, (a, (b, c)))| *place = f(*a, *b, *c));
    });
}

/// `output = f(output)`, element by element.
pub(crate) fn update1<T: Stored>(output: Output<'_, T>, f: impl Fn(T) -> T + Sync) {
    for_each_chunk(output, &|_, chunk| chunk.iter_mut().for_each(|place| *place = f(*place)));
}

/// `output = f(output, b)`, element by element.
pub(crate) fn update2<B: Stored, T: Stored>(
    output: Output<'_, T>,
    b: Input<'_>,
    f: impl Fn(T, B) -> T + Sync,
) {
    for_each_chunk(output, &|indices, chunk| {
        let mut scratch = Vec::new();
        let b = b.chunk(indices, &mut scratch);
        chunk.iter_mut().zip(b).for_each(|(place, b)| *place = f(*place, *b));
    });
}

/// What is done with a piece: of which group, which indices, what lies there.
type PieceWork<'a, T, const N: usize> = dyn Fn(usize, Range<usize>, [&mut [T]; N]) + Sync + 'a;

/// Calls `work` with pieces of several groups of outputs, each piece the same indices of all `N` of a
/// group: which group, which indices, what lies there. One pass over all of them: optimizers.
///
/// # Panics
///
/// If outputs of a group differ in length: a bug in the operation.
pub(crate) fn for_each_piece<T: Stored, const N: usize>(
    groups: Vec<[Output<'_, T>; N]>,
    work: &PieceWork<'_, T, N>,
) {
    let mut pieces = Vec::new();
    for (group, outputs) in groups.into_iter().enumerate() {
        if outputs.iter().any(|it| !it.layout.is_contiguous()) {
            out_of_order(group, outputs, work);
            continue;
        }
        let mut rest = outputs.map(Output::slice);
        let numel = rest.first().map_or(0, |slice| slice.len());
        for start in (0..numel).step_by(CHUNK) {
            let length = CHUNK.min(numel - start);
            let places = rest.each_mut().map(|slice| {
                let (piece, later) = std::mem::take(slice).split_at_mut(length);
                *slice = later;
                piece
            });
            pieces.push((group, start..start + length, places));
        }
    }
    pieces.into_par_iter().for_each(|(group, indices, places)| work(group, indices, places));
}

/// The pieces of one group whose elements do not lie in order, such as a transposed gradient: copied out, and back.
fn out_of_order<T: Stored, const N: usize>(
    group: usize,
    mut outputs: [Output<'_, T>; N],
    work: &PieceWork<'_, T, N>,
) {
    let numel = outputs.first().map_or(0, Output::numel);
    for start in (0..numel).step_by(CHUNK) {
        let indices = start..numel.min(start + CHUNK);
        let mut pieces = outputs.each_ref().map(|output| {
            let mut piece = vec![T::default(); indices.len()];
            output.read(indices.clone(), &mut piece);
            piece
        });
        work(group, indices.clone(), pieces.each_mut().map(Vec::as_mut_slice));
        for (output, piece) in outputs.iter_mut().zip(&pieces) {
            output.write(indices.clone(), piece);
        }
    }
}

/// Calls `work` with each row of `width` elements and its number: softmax, norms, losses.
pub(crate) fn rows<T: Stored>(
    output: Output<'_, T>,
    width: usize,
    work: &(dyn Fn(usize, &mut [T]) + Sync),
) {
    slices(output.slice(), width, width, work);
}

/// The same for memory of a kernel's own: scratch, or results that are narrowed later. `cost` is what a
/// row takes, counted in elements looked at: cheap rows go to a thread together, dear ones one by one.
pub(crate) fn slices<T: Send>(
    slice: &mut [T],
    width: usize,
    cost: usize,
    work: &(dyn Fn(usize, &mut [T]) + Sync),
) {
    if slice.is_empty() || width == 0 {
        return;
    }
    if (slice.len() / width).saturating_mul(cost) <= CHUNK {
        slice.chunks_mut(width).enumerate().for_each(|(row, chunk)| work(row, chunk));
        return;
    }
    let together = (CHUNK / cost.max(1)).max(1);
    slice.par_chunks_mut(width * together).enumerate().for_each(|(group, chunk)| {
        for (place, row) in chunk.chunks_mut(width).enumerate() {
            work(group * together + place, row);
        }
    });
}
