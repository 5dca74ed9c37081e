//! Memory as kernels see it: slices.
//!
//! In:  operands: addresses, element types, layouts.
//! Out: [`Input`]s and [`Output`]s, which hand out ordinary slices.
//!
//! This is the one place of this crate where an address becomes a slice.

use std::any::TypeId;
use std::borrow::Cow;
use std::marker::PhantomData;
use std::ops::Range;
use std::ptr;
use std::slice;

use super::Operand;
use crate::dtype::{DType, Stored, dispatch};
use crate::number::{Bf16, Complex64, F16};
use crate::shape::Layout;

/// What a kernel works on.
pub(crate) struct Args<'a> {
    outputs: Vec<Option<&'a Operand>>,
    inputs: &'a [Operand],
    memory: PhantomData<&'a mut [u8]>,
}

impl<'a> Args<'a> {
    /// # Safety
    ///
    /// For as long as `'a`:
    ///
    /// 1. Every operand's span lies in mapped memory, aligned for its element type.
    /// 2. Nothing else touches the outputs' spans, and nothing writes the inputs'.
    /// 3. No output's span overlaps another output's or an input's.
    pub(crate) unsafe fn new(outputs: &'a [Operand], inputs: &'a [Operand]) -> Self {
        Self { outputs: outputs.iter().map(Some).collect(), inputs, memory: PhantomData }
    }

    /// The `place`-th input.
    pub(crate) fn input(&self, place: usize) -> Input<'a> {
        Input { operand: &self.inputs[place], memory: PhantomData }
    }

    /// How many inputs there are.
    pub(crate) fn inputs(&self) -> usize {
        self.inputs.len()
    }

    /// The element type of the `place`-th output.
    pub(crate) fn output_dtype(&self, place: usize) -> DType {
        self.outputs[place].expect("asked before it is taken").dtype
    }

    /// The `place`-th output. Each can be had once, so that no two slices overlap.
    ///
    /// # Panics
    ///
    /// If it was taken before, or is of another type: a bug in the kernel.
    pub(crate) fn take<T: Stored>(&mut self, place: usize) -> Output<'a, T> {
        let operand = self.outputs[place].take().expect("an output is taken once");
        assert_stored::<T>(operand.dtype);
        let span = operand.layout.span();
        let data: &'a mut [T] = if span.is_empty() {
            &mut []
        } else {
            let first = ptr::with_exposed_provenance_mut::<T>(operand.address as usize);
            // SAFETY:
            // - In bounds of the mapped memory, and aligned: promise 1.
            // - Exclusive: promises 2 and 3, and `take` gives each output once.
            // - Initialised: pages of the system are zero, and any bits are a valid `Stored`.
            unsafe { slice::from_raw_parts_mut(first.wrapping_add(span.start), span.len()) }
        };
        Output { data, layout: &operand.layout }
    }
}

fn is_stored<T: Stored>(dtype: DType) -> bool {
    dispatch!(dtype, S => TypeId::of::<S>() == TypeId::of::<T>())
}

fn assert_stored<T: Stored>(dtype: DType) {
    assert!(is_stored::<T>(dtype), "a kernel took {dtype} for {}", std::any::type_name::<T>());
}

/// Elements that a kernel reads.
#[derive(Clone, Copy)]
pub(crate) struct Input<'a> {
    operand: &'a Operand,
    memory: PhantomData<&'a [u8]>,
}

impl<'a> Input<'a> {
    pub(crate) fn dtype(&self) -> DType {
        self.operand.dtype
    }

    pub(crate) fn layout(&self) -> &'a Layout {
        &self.operand.layout
    }

    pub(crate) fn numel(&self) -> usize {
        self.operand.layout.numel()
    }

    /// Whether the numbers are the conjugates of [`data`](Self::data).
    pub(crate) fn conj(&self) -> bool {
        self.operand.conj
    }

    /// The memory from the first element to the last: the places of the layout, without its offset.
    ///
    /// # Panics
    ///
    /// If it is of another type: a bug in the kernel.
    pub(crate) fn data<T: Stored>(&self) -> &'a [T] {
        assert_stored::<T>(self.operand.dtype);
        let span = self.operand.layout.span();
        if span.is_empty() {
            return &[];
        }
        let first = ptr::with_exposed_provenance::<T>(self.operand.address as usize);
        // SAFETY: as in `Args::take`; not written meanwhile by promises 2 and 3 of `Args::new`,
        // without which there is no `Input`.
        unsafe { slice::from_raw_parts(first.wrapping_add(span.start), span.len()) }
    }

    /// All elements in order, if they lie so and are of this type.
    pub(crate) fn slice<T: Stored>(&self) -> Option<&'a [T]> {
        let as_it_lies = !self.conj() && self.layout().is_contiguous();
        (is_stored::<T>(self.dtype()) && as_it_lies).then(|| self.data())
    }

    /// All elements in order and of this type, converted where needed.
    pub(crate) fn to_slice<T: Stored>(self) -> Cow<'a, [T]> {
        match self.slice() {
            Some(slice) => Cow::Borrowed(slice),
            None => {
                let mut elements = vec![T::default(); self.numel()];
                self.read(0..elements.len(), &mut elements);
                Cow::Owned(elements)
            }
        }
    }

    /// Some elements in order and of this type: borrowed where they lie so, otherwise put into
    /// `scratch`.
    pub(crate) fn chunk<'s, T: Stored>(
        &self,
        indices: Range<usize>,
        scratch: &'s mut Vec<T>,
    ) -> &'s [T]
    where
        'a: 's,
    {
        match self.slice() {
            Some(slice) => &slice[indices],
            None => {
                scratch.resize(indices.len(), T::default());
                self.read(indices, scratch);
                scratch
            }
        }
    }

    /// Copies some elements, in order and converted.
    ///
    /// Conversions go over the widest type of the source's kind, piece by piece: one loop for each
    /// type in and one for each type out, not one for each pair.
    fn read<T: Stored>(&self, indices: Range<usize>, into: &mut [T]) {
        if self.conj() {
            let convert = |it: Complex64| T::from_complex(it.conj());
            return gather(self.layout(), self.data(), indices, into, convert);
        }
        if is_stored::<T>(self.dtype()) {
            return gather(self.layout(), self.data::<T>(), indices, into, |it| it);
        }
        match self.dtype() {
            DType::F32 => self.read_as(indices, into, f32::to_f64, T::from_f64),
            DType::F64 => self.read_as(indices, into, f64::to_f64, T::from_f64),
            DType::Bf16 => self.read_as(indices, into, Bf16::to_f64, T::from_f64),
            DType::F16 => self.read_as(indices, into, F16::to_f64, T::from_f64),
            DType::I64 => self.read_as(indices, into, i64::to_i64, T::from_i64),
            DType::I32 => self.read_as(indices, into, i32::to_i64, T::from_i64),
            DType::U8 | DType::Bool => self.read_as(indices, into, u8::to_i64, T::from_i64),
            DType::Complex64 => {
                self.read_as(indices, into, Complex64::to_complex, T::from_complex);
            }
        }
    }

    fn read_as<S: Stored, W: Stored, T: Stored>(
        &self,
        indices: Range<usize>,
        into: &mut [T],
        widen: impl Fn(S) -> W + Copy,
        narrow: impl Fn(W) -> T + Copy,
    ) {
        let mut wide = vec![W::default(); PIECE.min(indices.len())];
        for (place, into) in into.chunks_mut(PIECE).enumerate() {
            let start = indices.start + place * PIECE;
            let wide = &mut wide[..into.len()];
            self.read_wide(start..start + into.len(), wide, widen);
            convert(wide, into, narrow);
        }
    }

    #[inline(never)]
    fn read_wide<S: Stored, W>(
        &self,
        indices: Range<usize>,
        into: &mut [W],
        widen: impl Fn(S) -> W,
    ) {
        gather(self.layout(), self.data::<S>(), indices, into, widen);
    }
}

#[inline(never)]
fn convert<W: Copy, T>(from: &[W], into: &mut [T], convert: impl Fn(W) -> T) {
    into.iter_mut().zip(from).for_each(|(to, it)| *to = convert(*it));
}

/// The elements of an operand, in order and converted, from a copy of its memory: what lies from its first to its last.
///
/// # Panics
///
/// If the copy is of another length: a bug.
pub(super) fn numbers_in<T: Stored>(copy: &[u8], operand: &Operand) -> Vec<T> {
    let span = operand.layout.span();
    assert_eq!(copy.len(), span.len() * operand.dtype.size(), "a copy of the whole span");
    if span.is_empty() {
        return Vec::new();
    }
    dispatch!(operand.dtype, S => {
        let numbers: Vec<S> = copy.chunks_exact(size_of::<S>()).map(S::from_bytes).collect();
        let address = numbers.as_ptr().expose_provenance() - span.start * size_of::<S>();
        let here = [Operand { address: address as u64, ..operand.clone() }];
        // SAFETY: the span is `numbers`, which is aligned, outlives `args` and is not written.
        let args = unsafe { Args::new(&[], &here) };
        args.input(0).to_slice::<T>().into_owned()
    })
}

/// Elements converted at a time: they stay in the first cache.
const PIECE: usize = 1024;

fn gather<S: Copy, T>(
    layout: &Layout,
    data: &[S],
    indices: Range<usize>,
    into: &mut [T],
    convert: impl Fn(S) -> T,
) {
    let mut rest = into;
    let indices = gather_turned(layout, data, indices, &mut rest, &convert);
    layout.for_each_run(indices, |first, stride, length| {
        let (places, later) = std::mem::take(&mut rest).split_at_mut(length);
        rest = later;
        match stride {
            0 => {
                let value = data[first];
                places.iter_mut().for_each(|place| *place = convert(value));
            }
            1 => {
                let run = &data[first..first + length];
                places.iter_mut().zip(run).for_each(|(place, value)| *place = convert(*value));
            }
            _ => {
                let run = data[first..].iter().step_by(stride);
                places.iter_mut().zip(run).for_each(|(place, value)| *place = convert(*value));
            }
        }
    });
}

/// Whole rows of a transposed matrix, several at a time: what lies side by side in memory is read
/// once, instead of once for each row. Takes what it fills off `rest`, and leaves the other indices.
#[inline(always)]
fn gather_turned<S: Copy, T>(
    layout: &Layout,
    data: &[S],
    indices: Range<usize>,
    rest: &mut &mut [T],
    convert: &impl Fn(S) -> T,
) -> Range<usize> {
    let ([.., outer, inner], [.., 1, stride]) = (&layout.shape()[..], layout.strides()) else {
        return indices;
    };
    if indices.is_empty() || *stride < 2 {
        return indices;
    }
    let mut index = indices.start;
    while index.is_multiple_of(*inner) && indices.end - index >= 2 * inner {
        let rows = (outer - index / inner % outer).min((indices.end - index) / inner);
        let first = layout.place_of(index);
        let (block, later) = std::mem::take(rest).split_at_mut(rows * inner);
        *rest = later;
        for column in 0..*inner {
            let side = &data[first + column * stride..][..rows];
            let places = block[column..].iter_mut().step_by(*inner);
            places.zip(side).for_each(|(place, value)| *place = convert(*value));
        }
        index += rows * inner;
    }
    index..indices.end
}

/// Elements that a kernel writes.
pub(crate) struct Output<'a, T> {
    /// The memory from the first element to the last: the places of the layout, without its offset.
    pub(crate) data: &'a mut [T],
    pub(crate) layout: &'a Layout,
}

impl<'a, T: Stored> Output<'a, T> {
    pub(crate) fn numel(&self) -> usize {
        self.layout.numel()
    }

    /// All elements in order, if they lie so.
    pub(crate) fn into_slice(self) -> Result<&'a mut [T], Self> {
        if self.layout.is_contiguous() { Ok(self.data) } else { Err(self) }
    }

    /// All elements in order.
    ///
    /// # Panics
    ///
    /// If they do not lie so. Operations make their own outputs, so this is a bug in the operation.
    pub(crate) fn slice(self) -> &'a mut [T] {
        let slice = self.into_slice();
        slice.unwrap_or_else(|_| panic!("an output that its operation made is contiguous"))
    }

    /// Copies some elements out, in order.
    pub(crate) fn read(&self, indices: Range<usize>, into: &mut [T]) {
        gather(self.layout, self.data, indices, into, |it| it);
    }

    /// Copies some elements in, in order.
    pub(crate) fn write(&mut self, indices: Range<usize>, from: &[T]) {
        let mut from = from.iter();
        let data = &mut *self.data;
        self.layout.for_each_run(indices, |first, stride, length| {
            let places = data[first..].iter_mut().step_by(stride).take(length);
            places.zip(from.by_ref()).for_each(|(place, value)| *place = *value);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_part_of_a_transposed_batch_is_read_in_order() {
        let sizes = [3usize, 7, 5];
        let data: Vec<i64> = (0..200).collect();
        let base = Layout::contiguous(sizes.into()).unwrap();
        for axes in [[0, 2, 1], [2, 1, 0], [1, 0, 2], [2, 0, 1], [1, 2, 0]] {
            let layout = base.permute(&axes).unwrap();
            let expected: Vec<i64> =
                (0..layout.numel()).map(|index| layout.place_of(index) as i64).collect();
            for start in 0..layout.numel() {
                for end in start..=layout.numel() {
                    let mut into = vec![-1; end - start];
                    gather(&layout, &data, start..end, &mut into, |it| it);
                    assert_eq!(into, expected[start..end], "{axes:?} {start}..{end}");
                }
            }
        }
    }
}
