//! Kernels that compute each element by itself: one program for all, around a line of the operation's own.
//!
//! In:  what the line says, and the memory it is about, in any layout.
//! Out: a program in which elements that lie side by side are moved in packs of 16 bytes, and others are found by their
//!      index.
//!
//! The line knows `x0`, `x1`, … (the inputs), `i` (the element's index), `s0` … `s7` and `k0` … `k3` (numbers and integers
//! of the operation), `n0` and `n1` (its [scalars](Elementwise::scalar)), and sets `y0` (and `y1`, …); with
//! [`Elementwise::updates`], `y0` is the element as it was.

use std::borrow::Cow;

use smallvec::SmallVec;
use tonnage_device::cuda::{Arguments, Extent};

use super::instance::{Instance, Place, THREADS};
use super::places::Places;
use super::plan::{Launch, Operands, Plan, Program};
use crate::create::Scalar;
use crate::exec::Operand;

/// Numbers that a line may have.
pub(super) const NUMBERS: usize = 8;

/// Integers that a line may have.
pub(super) const INTEGERS: usize = 4;

/// The numbers and integers of a line.
#[derive(Clone, Copy, Default)]
pub(super) struct Scalars {
    pub(super) numbers: [f64; NUMBERS],
    pub(super) integers: [i64; INTEGERS],
}

impl Scalars {
    /// As a program has them: `double s[8]`, `i64 k[4]`.
    pub(super) fn bytes(&self) -> [u8; 8 * (NUMBERS + INTEGERS)] {
        let mut bytes = [0; 8 * (NUMBERS + INTEGERS)];
        let numbers = self.numbers.iter().map(|it| it.to_ne_bytes());
        let words = numbers.chain(self.integers.iter().map(|it| it.to_ne_bytes()));
        bytes.chunks_exact_mut(8).zip(words).for_each(|(to, word)| to.copy_from_slice(&word));
        bytes
    }
}

/// A kernel that computes each element by itself.
pub(crate) struct Elementwise {
    name: &'static str,
    line: Cow<'static, str>,
    helpers: &'static str,
    compute: &'static str,
    inputs: SmallVec<[&'static str; 4]>,
    scalars: Scalars,
    updates: bool,
    rounds: bool,
    is_exact: bool,
    complaint: Option<super::plan::Complaint>,
}

impl Elementwise {
    /// A kernel of this name, which computes in `compute`: `float`, `double`, `i64`, `complex` or `bool`.
    pub(crate) fn new(
        name: &'static str,
        compute: &'static str,
        line: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self {
            name,
            line: line.into(),
            helpers: "",
            compute,
            inputs: SmallVec::new(),
            scalars: Scalars::default(),
            updates: false,
            rounds: false,
            is_exact: false,
            complaint: None,
        }
    }

    /// Inputs that the line has as other types than it computes in, first ones first.
    pub(crate) fn inputs(mut self, types: &[&'static str]) -> Self {
        self.inputs = SmallVec::from_slice(types);
        self
    }

    /// `s0`, `s1`, …
    pub(crate) fn numbers(mut self, numbers: &[f64]) -> Self {
        self.scalars.numbers[..numbers.len()].copy_from_slice(numbers);
        self
    }

    /// `k0`, `k1`, …
    pub(crate) fn integers(mut self, integers: &[i64]) -> Self {
        self.scalars.integers[..integers.len()].copy_from_slice(integers);
        self
    }

    /// `n0` or `n1`, in the type that is computed in. They stand where `s0` … `s3`, `k0` and `k1` do.
    pub(crate) fn scalar(mut self, place: usize, scalar: Scalar) -> Self {
        self.scalars.numbers[2 * place] = scalar.to_f64();
        match scalar {
            Scalar::Integer(value) => self.scalars.integers[place] = value,
            Scalar::Float(value) => self.scalars.integers[place] = value as i64,
            Scalar::Complex(value) => self.scalars.numbers[2 * place + 1] = value.im.into(),
        }
        self
    }

    /// Functions that the line calls.
    pub(crate) fn helpers(mut self, helpers: &'static str) -> Self {
        self.helpers = helpers;
        self
    }

    /// The line finds its outputs as they were.
    pub(crate) fn updates(mut self) -> Self {
        self.updates = true;
        self
    }

    /// Inputs are rounded to the output's type before the line has them, as where the host converts first.
    pub(crate) fn rounds(mut self) -> Self {
        self.rounds = true;
        self
    }

    /// Bit by bit what the host computes.
    pub(crate) fn exact(mut self) -> Self {
        self.is_exact = true;
        self
    }

    /// The line may call `wrong(value)`; this is what is then said.
    pub(crate) fn complains(
        mut self,
        complaint: impl Fn(i64) -> String + Send + Sync + 'static,
    ) -> Self {
        self.complaint = Some(Box::new(complaint));
        self
    }

    /// The launch for this memory. Inputs have the shape of the outputs.
    pub(crate) fn plan(self, on: Operands<'_>) -> Plan {
        self.launch(on).map_or_else(Plan::nothing, Plan::from)
    }

    /// The same; none if there are no elements.
    pub(super) fn launch(self, on: Operands<'_>) -> Option<Launch> {
        let numel = on.outputs[0].layout.numel();
        if numel == 0 {
            return None;
        }
        let all: SmallVec<[&Operand; 6]> = on.outputs.iter().chain(on.inputs).collect();
        let places = Places::of(&all);
        let mut arguments = Arguments::new();
        arguments.push_bytes(&self.scalars.bytes());
        if places.axes() > 0 {
            arguments.push_bytes(&places.bytes());
        }
        arguments.push(numel as u64);
        all.iter().for_each(|it| arguments.push(it.first()));
        let threads = numel.div_ceil(places.pack) as u64;
        let blocks = threads.div_ceil(u64::from(THREADS)).min(i32::MAX as u64) as u32;
        let operands = all.iter().zip(&places.is_constant).map(|(it, &is_constant)| Place {
            dtype: it.dtype,
            conj: it.conj,
            is_constant,
        });
        let instance = Instance {
            name: self.name,
            line: self.line,
            helpers: self.helpers,
            compute: self.compute,
            inputs: self.inputs,
            operands: operands.collect(),
            outputs: on.outputs.len(),
            axes: places.axes(),
            pack: places.pack,
            is_short: numel <= i32::MAX as usize,
            updates: self.updates,
            rounds: self.rounds,
            fails: self.complaint.is_some(),
        };
        let program = Program {
            name: Cow::Borrowed(self.name),
            head: String::new(),
            text: Cow::Borrowed(instance.known_text()),
            is_exact: self.is_exact,
        };
        let launch = Launch::new(program, Extent::line(blocks, THREADS), arguments);
        Some(Launch { complaint: self.complaint, ..launch })
    }
}
