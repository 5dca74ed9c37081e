//! The same numbers elsewhere: copies, conversions, copies in place.

use tonnage_device::cuda::{Arguments, Extent};

use crate::autograd::{Backward, Grads, Needs, record, record_in_place, records};
use crate::create::{Fill, Scalar};
use crate::dtype::{DType, dispatch};
use crate::error::{Call, Result};
use crate::exec::cuda::{Elementwise, Launch, Program, stored, wide};
use crate::exec::{Args, Kernel, Operand, Operands, Plan, map1};
use crate::shape::{Layout, Shape};
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

    fn cuda(&self, on: Operands<'_>) -> Plan {
        let (to, from) = (&on.outputs[0], &on.inputs[0]);
        let as_it_is = to.dtype == from.dtype && !from.conj;
        if as_it_is && to.layout.is_contiguous() && from.layout.is_contiguous() {
            return bytes(to, from);
        }
        if let Some(launch) = transposed(to, from, as_it_is) {
            return launch.into();
        }
        Elementwise::new("copy", wide(from.dtype), "y0 = x0;").plan(on)
    }
}

/// A copy of memory as it lies: of whatever type, in words as large as possible.
fn bytes(to: &Operand, from: &Operand) -> Plan {
    let bytes = to.layout.numel() * to.dtype.size();
    let is_whole = |size: usize| {
        [bytes as u64, to.first(), from.first()].iter().all(|it| it.is_multiple_of(size as u64))
    };
    let word = [DType::I64, DType::I32].into_iter().find(|it| is_whole(it.size()));
    let dtype = word.unwrap_or(DType::U8);
    let as_words = |operand: &Operand| {
        let layout = Layout::contiguous(Shape::from(bytes / dtype.size()))?;
        Some(Operand { dtype, layout, conj: false, address: operand.first() })
    };
    let (Some(to), Some(from)) = (as_words(to), as_words(from)) else { return Plan::nothing() };
    let kernel = Elementwise::new("copy", wide(dtype), "y0 = x0;");
    kernel.plan(Operands { outputs: &[to], inputs: &[from] })
}

/// Rows and columns of a tile: see `copy.cu`.
const TILE: usize = 32;

/// The threads of a tile.
const TILE_THREADS: u32 = 256;

/// A copy by tiles, if the source lies side by side along another axis than the target, and both axes are long.
fn transposed(to: &Operand, from: &Operand, as_it_is: bool) -> Option<Launch> {
    let shape = to.layout.shape();
    let (to_strides, from_strides) = (to.layout.strides(), from.layout.strides());
    let along = |strides: &[usize]| (0..shape.len()).find(|it| shape[*it] > 1 && strides[*it] == 1);
    let (column_axis, row_axis) = (along(to_strides)?, along(from_strides)?);
    let [columns, rows] = [shape[column_axis], shape[row_axis]];
    let others: Vec<usize> = (0..shape.len())
        .filter(|it| *it != column_axis && *it != row_axis && shape[*it] > 1)
        .collect();
    let batches: usize = others.iter().map(|it| shape[*it]).product();
    let tiles = columns.div_ceil(TILE).checked_mul(rows.div_ceil(TILE))?;
    let fits = columns.min(rows) >= TILE / 2
        && tiles <= i32::MAX as usize
        && columns.max(rows) <= i32::MAX as usize
        && batches <= usize::from(u16::MAX);
    if column_axis == row_axis || from.conj || !fits || to.layout.numel() == 0 {
        return None;
    }
    let (target, source, convert) = match as_it_is {
        true => {
            let word = match to.dtype.size() {
                1 => "u8",
                2 => "u16",
                4 => "u32",
                _ => "u64",
            };
            (word, word, "(x)".to_owned())
        }
        false => {
            let target = stored(to.dtype);
            (target, stored(from.dtype), format!("Narrow<{target}>::of(widen(x))"))
        }
    };
    // At least one, of one.
    let axes = others.len().max(1);
    let program = Program::new(
        "transpose",
        include_str!("copy.cu"),
        &[("T", &target), ("S", &source), ("CONVERT(x)", &convert), ("AXES", &axes)],
    );
    let column = |values: &dyn Fn(usize) -> usize, none: u64| {
        let words = others.iter().map(|it| values(*it) as u64);
        words.chain(others.is_empty().then_some(none)).collect::<Vec<u64>>()
    };
    let words = [
        column(&|it| shape[it], 1),
        column(&|it| from_strides[it], 0),
        column(&|it| to_strides[it], 0),
    ];
    let bytes: Vec<u8> = words.iter().flatten().flat_map(|it| it.to_ne_bytes()).collect();
    let mut arguments = Arguments::new().with(to.first()).with(from.first());
    arguments.push(columns as u32);
    arguments.push(rows as u32);
    arguments.push(to_strides[row_axis] as u64);
    arguments.push(from_strides[column_axis] as u64);
    arguments.push_bytes(&bytes);
    let grid = [tiles as u32, batches as u32, 1];
    let extent = Extent { grid, block: [TILE_THREADS, 1, 1], shared: 0 };
    Some(Launch::new(program, extent, arguments))
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

    conformance!(copies_of_every_type_and_layout, |device| {
        let mut results = Vec::new();
        let base = Tensor::randint(0, 200, [3, 70, 50], device)?;
        let signed = base.sub(100)?.div(3.0)?;
        for from in DType::ALL {
            let x = if from.is_float() { signed.to(from)? } else { base.to(from)? };
            results.extend([x.copy()?, x.narrow(1, 1, 7)?.copy()?, x.transpose(1, 2)?.copy()?]);
            results.push(x.permute(&[2, 0, 1])?.copy()?);
            results.push(x.view([3, 7, 10, 50])?.transpose(1, 2)?.copy()?);
            for to in DType::ALL {
                results.extend([x.to(to)?, x.transpose(0, 2)?.to(to)?]);
                let target = Tensor::zeros([3, 70, 50], (device, to))?;
                target.narrow(2, 0, 40)?.copy_(&x.narrow(2, 10, 40)?)?;
                target.narrow(2, 1, 3)?.copy_(&x.narrow(1, 0, 1)?.narrow(2, 0, 1)?)?;
                results.push(target);
            }
        }
        let z = signed.to(DType::Complex64)?.mul(Complex64::new(0.5, 2.0))?;
        results.extend([z.conj()?.copy()?, z.conj()?.transpose(1, 2)?.copy()?]);
        results.extend([z.copy()?.to(DType::Bool)?, z.view([10500])?.narrow(0, 3, 9)?.copy()?]);
        Ok(results)
    });
}
