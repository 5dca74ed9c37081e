//! Kernels over lists of tensors that compute each element by itself, as one launch: optimizers, clipping.
//!
//! In:  a line as for [`Elementwise`](super::Elementwise), and for each tensor of the list what is written and what is read.
//! Out: one launch for all tensors of one kind that lie in order; others, such as a transposed gradient, have one each,
//!      which walks along their axes.
//!
//! Besides `y0`, …, `x0`, … and `s0`, … the line has what [`MultiTensor::setup`] makes of `h0`, …: where the tensors lie that
//! all share.

use std::borrow::Cow;
use std::fmt::Write as _;

use tonnage_device::cuda::{Arguments, Extent};

use super::elementwise::{NUMBERS, Scalars};
use super::instance::{THREADS, scalars_text};
use super::places::Places;
use super::plan::{Launch, Plan, Program, stored};
use crate::exec::Operand;

/// Tensors that one launch takes: what fits into the 4 KiB that the parameters of a kernel have.
const MOST: usize = 64;

/// Elements of a block: enough that finding its tensor costs nothing.
const ELEMENTS: usize = 8192;

/// Bytes that a thread moves at once.
const PACK: usize = 16;

/// A kernel over lists of tensors.
#[derive(Clone, Copy)]
pub(crate) struct MultiTensor {
    name: &'static str,
    compute: &'static str,
    line: &'static str,
    setup: &'static str,
    finish: &'static str,
    scalars: Scalars,
    /// Where `s0`, … lie in memory, if not with the launch.
    numbers_at: Option<u64>,
}

impl MultiTensor {
    /// A kernel of this name, which computes in `compute`.
    pub(crate) fn new(name: &'static str, compute: &'static str, line: &'static str) -> Self {
        let scalars = Scalars::default();
        Self { name, compute, line, setup: "", finish: "", scalars, numbers_at: None }
    }

    /// `s0`, `s1`, …
    pub(crate) fn numbers(mut self, numbers: &[f64]) -> Self {
        self.scalars.numbers[..numbers.len()].copy_from_slice(numbers);
        self
    }

    /// The same, in the device's memory, if anywhere: for numbers that change while the launch stays.
    pub(crate) fn numbers_at(mut self, place: Option<u64>) -> Self {
        self.numbers_at = place;
        self
    }

    /// What a thread does before its elements, and after them.
    pub(crate) fn around(mut self, setup: &'static str, finish: &'static str) -> Self {
        (self.setup, self.finish) = (setup, finish);
        self
    }

    /// The launches for lists of tensors: of each, `outputs` operands that are changed, then those that are read.
    pub(crate) fn launches<const N: usize>(
        self,
        tensors: &[[&Operand; N]],
        outputs: usize,
        shared: &[&Operand],
    ) -> Vec<Launch> {
        let Some(first) = tensors.first() else { return Vec::new() };
        let is_like_first = |these: &[&Operand; N]| {
            these
                .iter()
                .zip(first)
                .all(|(it, first)| it.dtype == first.dtype && !it.conj && it.layout.is_contiguous())
        };
        let (listed, alone): (Vec<_>, Vec<_>) =
            tensors.iter().copied().partition(|it| is_like_first(it));
        let lists = listed.chunks(MOST).filter_map(|list| self.list(list, outputs, shared, None));
        let alone = alone.iter().filter(|these| these[0].layout.numel() > 0);
        let alone = alone.filter_map(|these| {
            let places = Places::of(these);
            self.list(std::slice::from_ref(these), outputs, shared, Some(&places))
        });
        lists.chain(alone).collect()
    }

    /// One launch over a list; none if there are no elements. One tensor alone may lie in places of its own.
    fn list<const N: usize>(
        &self,
        list: &[[&Operand; N]],
        outputs: usize,
        shared: &[&Operand],
        places: Option<&Places>,
    ) -> Option<Launch> {
        let largest = list[0].iter().map(|it| it.dtype.size()).max().unwrap_or(PACK);
        let widest = PACK / largest;
        let is_aligned =
            |it: &&Operand| it.first().is_multiple_of((widest * it.dtype.size()) as u64);
        let is_packed = places.is_none() && list.iter().flatten().all(is_aligned);
        let pack = if is_packed { widest } else { 1 };
        let mut bytes = Vec::with_capacity(MOST * (8 * (N + 1) + 4));
        list.iter().flatten().for_each(|it| bytes.extend(it.first().to_ne_bytes()));
        bytes.resize(MOST * 8 * N, 0);
        let numels = list.iter().map(|these| these[0].layout.numel());
        numels.clone().for_each(|it| bytes.extend((it as u64).to_ne_bytes()));
        bytes.resize(MOST * 8 * (N + 1), 0);
        let mut blocks = 0u32;
        for numel in numels {
            bytes.extend(blocks.to_ne_bytes());
            blocks = blocks.saturating_add(u32::try_from(numel.div_ceil(ELEMENTS)).ok()?);
        }
        bytes.resize(MOST * (8 * (N + 1) + 4), 0);
        if blocks == 0 {
            return None;
        }
        let mut arguments = Arguments::new();
        arguments.push_bytes(&self.scalars.bytes());
        arguments.push(self.numbers_at.unwrap_or(0));
        arguments.push_bytes(&bytes);
        arguments.push(list.len() as u32);
        if let Some(places) = places.filter(|it| it.axes() > 0) {
            arguments.push_bytes(&places.bytes());
        }
        shared.iter().for_each(|it| arguments.push(it.first()));
        let program = Program {
            name: Cow::Borrowed(self.name),
            head: String::new(),
            text: Cow::Owned(self.text(&list[0], outputs, shared, (pack, places))),
            is_exact: false,
        };
        Some(Launch::new(program, Extent::line(blocks, THREADS), arguments))
    }

    fn text(
        &self,
        these: &[&Operand],
        outputs: usize,
        shared: &[&Operand],
        (pack, places): (usize, Option<&Places>),
    ) -> String {
        let count = these.len();
        let axes = places.map_or(0, Places::axes);
        let inputs = count - outputs;
        let kinds: Vec<&str> = these.iter().map(|it| stored(it.dtype)).collect();
        let mut text = scalars_text(self.compute);
        let mut add = |line: std::fmt::Arguments<'_>| {
            text.write_fmt(line).expect("a string takes every line");
            text.push('\n');
        };
        add(format_args!(
            "struct List {{ u64 at[{MOST}][{count}]; u64 sizes[{MOST}]; u32 blocks[{MOST}]; }};"
        ));
        if axes > 0 {
            add(format_args!(
                "struct Places {{ u64 sizes[{axes}]; u64 strides[{axes}][{count}]; }};"
            ));
        }
        let walked = if axes > 0 { ", const __grid_constant__ Places places" } else { "" };
        let heads: String =
            (0..shared.len()).map(|it| format!(", {} *h{it}", stored(shared[it].dtype))).collect();
        // One program for numbers of both kinds, so that a graph finds it loaded. They are a plain parameter: of a copy of one
        // that is constant for the grid, the compiler (13.0) does not see the first number change.
        add(format_args!(
            "extern \"C\" __global__ void __launch_bounds__({THREADS}) tonnage_{}(Scalars scalars, const double *numbers, const __grid_constant__ List list, u32 count{walked}{heads}) {{",
            self.name
        ));
        add(format_args!(
            "if (numbers) {{\n#pragma unroll\nfor (int k = 0; k < {NUMBERS}; ++k) scalars.s[k] = numbers[k]; }}"
        ));
        // The last tensor that begins at this block or before.
        add(format_args!("u32 which = 0, behind = count;"));
        add(format_args!(
            "while (behind - which > 1) {{ u32 middle = (which + behind) / 2; if (list.blocks[middle] <= blockIdx.x) which = middle; else behind = middle; }}"
        ));
        add(format_args!(
            "u64 n = list.sizes[which], start = (u64)(blockIdx.x - list.blocks[which]) * {ELEMENTS};"
        ));
        add(format_args!("u64 end = start + {ELEMENTS} < n ? start + {ELEMENTS} : n;"));
        for (it, kind) in kinds.iter().enumerate() {
            add(format_args!("{kind} *at{it} = ({kind} *)list.at[which][{it}];"));
        }
        add(format_args!("{}", self.setup));
        let one = |at: &dyn Fn(usize) -> String| {
            let mut line = String::new();
            for it in 0..outputs {
                line += &format!("C y{it} = Wide<C>::of(widen({})); ", at(it));
            }
            for it in 0..inputs {
                let conj = if these[outputs + it].conj { "conj" } else { "" };
                line +=
                    &format!("const C x{it} = Wide<C>::of({conj}(widen({}))); ", at(outputs + it));
            }
            line += self.line;
            for (it, kind) in kinds[..outputs].iter().enumerate() {
                line += &format!(" {} = Narrow<{kind}>::of(y{it});", at(it));
            }
            line
        };
        let each = one(&|it| match places {
            Some(_) if axes > 0 => format!("at{it}[a{it}]"),
            Some(places) if places.is_constant[it] => format!("at{it}[0]"),
            _ => format!("at{it}[i]"),
        });
        if axes > 0 {
            let begin: String = (0..count).map(|it| format!("u64 a{it} = 0; ")).collect();
            let go: String = (0..count)
                .map(|it| format!("a{it} += index * places.strides[axis][{it}]; "))
                .collect();
            add(format_args!("for (u64 i = start + threadIdx.x; i < end; i += {THREADS}) {{"));
            add(format_args!("u64 rest = i; {begin}\n#pragma unroll"));
            add(format_args!(
                "for (int axis = {axes} - 1; axis >= 0; --axis) {{ u64 index = rest % places.sizes[axis]; rest /= places.sizes[axis]; {go}}}"
            ));
            add(format_args!("{each} }}"));
        } else if pack == 1 {
            add(format_args!(
                "for (u64 i = start + threadIdx.x; i < end; i += {THREADS}) {{ {each} }}"
            ));
        } else {
            add(format_args!(
                "for (u64 first = start + threadIdx.x * {pack}; first < end; first += {THREADS} * {pack}) {{"
            ));
            add(format_args!("if (first + {pack} <= end) {{"));
            for (it, kind) in kinds.iter().enumerate() {
                add(format_args!(
                    "pack<{kind}, {pack}> p{it} = load_pack<{pack}>((const {kind} *)at{it} + first);"
                ));
            }
            let packed = one(&|it| format!("p{it}.at[j]"));
            add(format_args!("#pragma unroll\nfor (int j = 0; j < {pack}; ++j) {{ {packed} }}"));
            for it in 0..outputs {
                add(format_args!("store_pack<{pack}>(at{it} + first, p{it});"));
            }
            add(format_args!("}} else for (u64 i = first; i < end; ++i) {{ {each} }}"));
            add(format_args!("}}"));
        }
        add(format_args!("{}", self.finish));
        add(format_args!("}}"));
        text
    }
}

impl From<Vec<Launch>> for Plan {
    fn from(launches: Vec<Launch>) -> Self {
        Self::Launches(launches)
    }
}
