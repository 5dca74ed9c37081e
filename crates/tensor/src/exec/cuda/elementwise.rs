//! Kernels that compute each element by itself: one program for all, around a line of the operation's own.
//!
//! In:  what the line says, and the memory it is about, in any layout.
//! Out: a program in which elements that lie side by side are moved in packs of 16 bytes, and others are found by their
//!      index.
//!
//! The line knows `x0`, `x1`, … (the inputs), `i` (the element's index), `s0` … `s3` and `k0` … `k3` (numbers and integers
//! of the operation), and sets `y0` (and `y1`); with [`Elementwise::updates`], `y0` is the element as it was.

use std::borrow::Cow;
use std::fmt::Write as _;

use tonnage_device::cuda::{Arguments, Extent};

use super::plan::{Launch, Operands, Plan, Program, stored, wide};
use crate::exec::Operand;

/// Threads of a block.
const THREADS: u32 = 256;

/// Bytes that a thread moves at once.
const PACK: usize = 16;

/// Numbers and integers that a line may have.
const SCALARS: usize = 4;

/// A kernel that computes each element by itself.
pub(crate) struct Elementwise {
    name: &'static str,
    line: Cow<'static, str>,
    helpers: &'static str,
    compute: &'static str,
    inputs: Vec<&'static str>,
    numbers: [f64; SCALARS],
    integers: [i64; SCALARS],
    updates: bool,
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
            inputs: Vec::new(),
            numbers: [0.0; SCALARS],
            integers: [0; SCALARS],
            updates: false,
            is_exact: false,
            complaint: None,
        }
    }

    /// Inputs that the line has as other types than it computes in, first ones first.
    pub(crate) fn inputs(mut self, types: &[&'static str]) -> Self {
        self.inputs = types.to_vec();
        self
    }

    /// `s0`, `s1`, …
    pub(crate) fn numbers(mut self, numbers: &[f64]) -> Self {
        self.numbers[..numbers.len()].copy_from_slice(numbers);
        self
    }

    /// `k0`, `k1`, …
    pub(crate) fn integers(mut self, integers: &[i64]) -> Self {
        self.integers[..integers.len()].copy_from_slice(integers);
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
        let numel = on.outputs[0].layout.numel();
        if numel == 0 {
            return Plan::nothing();
        }
        let all: Vec<&Operand> = on.outputs.iter().chain(on.inputs).collect();
        let places = Places::of(&all);
        let program = Program {
            name: Cow::Borrowed(self.name),
            head: String::new(),
            text: Cow::Owned(self.text(on, &places)),
            is_exact: self.is_exact,
        };
        let mut arguments = Arguments::new();
        let mut scalars = Vec::new();
        self.numbers.iter().for_each(|it| scalars.extend(it.to_ne_bytes()));
        self.integers.iter().for_each(|it| scalars.extend(it.to_ne_bytes()));
        arguments.push_bytes(&scalars);
        arguments.push_bytes(&places.bytes());
        arguments.push(numel as u64);
        all.iter().for_each(|it| arguments.push(it.first()));
        let threads = numel.div_ceil(places.pack) as u64;
        let blocks = threads.div_ceil(u64::from(THREADS)).min(i32::MAX as u64) as u32;
        let launch = Launch::new(program, Extent::line(blocks, THREADS), arguments);
        Launch { complaint: self.complaint, ..launch }.into()
    }

    /// The program for operands of these types that lie so.
    fn text(&self, on: Operands<'_>, places: &Places) -> String {
        let (outputs, inputs) = (on.outputs.len(), on.inputs.len());
        let type_of = |input: usize| self.inputs.get(input).copied().unwrap_or(self.compute);
        let fails = self.complaint.is_some();
        let mut text = String::new();
        let mut add = |line: std::fmt::Arguments<'_>| {
            text.write_fmt(line).expect("a string takes every line");
            text.push('\n');
        };
        let list = |count: usize, item: &dyn Fn(usize) -> String| {
            (0..count).map(|it| format!(", {}", item(it))).collect::<String>()
        };
        add(format_args!("typedef {} C;", self.compute));
        add(format_args!("typedef {} Index;", if places.is_short { "u32" } else { "u64" }));
        add(format_args!("struct Scalars {{ double s[{SCALARS}]; i64 k[{SCALARS}]; }};"));
        let operands = outputs + inputs;
        let axes = places.sizes.len().max(1);
        add(format_args!(
            "struct Places {{ u64 sizes[{axes}]; u64 strides[{operands}][{axes}]; }};"
        ));
        for place in 0..SCALARS {
            add(format_args!("#define s{place} (scalars.s[{place}])"));
            add(format_args!("#define k{place} (scalars.k[{place}])"));
        }
        if fails {
            add(format_args!("#define wrong(value) fail(failure, ticket, (value))"));
        }
        text.push_str(self.helpers);
        let failure = if fails { ", Failure *failure, u32 ticket" } else { "" };
        let passed = if fails { ", failure, ticket" } else { "" };
        let mut add = |line: std::fmt::Arguments<'_>| {
            text.write_fmt(line).expect("a string takes every line");
            text.push('\n');
        };
        add(format_args!(
            "DEVICE void element(Index i, const Scalars &scalars{}{}{failure}) {{ {} }}",
            list(outputs, &|it| format!("C &y{it}")),
            list(inputs, &|it| format!("const {} x{it}", type_of(it))),
            self.line
        ));
        add(format_args!(
            "extern \"C\" __global__ void __launch_bounds__({THREADS}) tonnage_{}(const __grid_constant__ Scalars scalars, const __grid_constant__ Places places, u64 n{}{}{failure}) {{",
            self.name,
            list(outputs, &|it| format!("{} *out{it}", stored(on.outputs[it].dtype))),
            list(inputs, &|it| format!("const {} *in{it}", stored(on.inputs[it].dtype))),
        ));
        let pack = places.pack;
        add(format_args!("u64 step = (u64)gridDim.x * {THREADS} * {pack};"));
        add(format_args!(
            "for (u64 first = ((u64)blockIdx.x * {THREADS} + threadIdx.x) * {pack}; first < n; first += step) {{"
        ));
        // One element: `at` gives where an operand's lies.
        let one = |at: &dyn Fn(usize) -> String, index: &str| -> String {
            let mut line = String::new();
            for it in 0..outputs {
                let was = if self.updates {
                    format!(" = Wide<C>::of(widen({}))", at(it))
                } else {
                    String::new()
                };
                line += &format!("C y{it}{was}; ");
            }
            let read = list(inputs, &|it| {
                let conj = if on.inputs[it].conj { "conj" } else { "" };
                format!("Wide<{}>::of({conj}(widen({})))", type_of(it), at(outputs + it))
            });
            line += &format!(
                "element({index}, scalars{}{read}{passed}); ",
                list(outputs, &|it| format!("y{it}"))
            );
            for it in 0..outputs {
                line +=
                    &format!("{} = Narrow<{}>::of(y{it}); ", at(it), stored(on.outputs[it].dtype));
            }
            line
        };
        let pointer = |it: usize| {
            if it < outputs { format!("out{it}") } else { format!("in{}", it - outputs) }
        };
        let kind = |it: usize| {
            let operand = if it < outputs { &on.outputs[it] } else { &on.inputs[it - outputs] };
            stored(operand.dtype)
        };
        if places.sizes.is_empty() {
            if pack > 1 {
                add(format_args!("if (first + {pack} <= n) {{"));
                for it in (0..operands).filter(|&it| !places.is_constant[it]) {
                    let (kind, pointer) = (kind(it), pointer(it));
                    let load = if it >= outputs || self.updates {
                        format!(" = load_pack<{pack}>({pointer} + first)")
                    } else {
                        String::new()
                    };
                    add(format_args!("pack<{kind}, {pack}> p{it}{load};"));
                }
                add(format_args!("#pragma unroll"));
                let at = |it: usize| {
                    if places.is_constant[it] {
                        format!("{}[0]", pointer(it))
                    } else {
                        format!("p{it}.at[j]")
                    }
                };
                add(format_args!(
                    "for (int j = 0; j < {pack}; ++j) {{ {} }}",
                    one(&at, "(Index)(first + j)")
                ));
                for it in 0..outputs {
                    let pointer = pointer(it);
                    add(format_args!("store_pack<{pack}>({pointer} + first, p{it});"));
                }
                add(format_args!("continue; }}"));
            }
            let at = |it: usize| {
                let index = if places.is_constant[it] { "0" } else { "i" };
                format!("{}[{index}]", pointer(it))
            };
            add(format_args!("u64 end = first + {pack} < n ? first + {pack} : n;"));
            add(format_args!("for (u64 i = first; i < end; ++i) {{ {} }}", one(&at, "(Index)i")));
        } else {
            add(format_args!("Index rest = (Index)first;"));
            let begin: String = (0..operands).map(|it| format!("u64 a{it} = 0; ")).collect();
            let go: String = (0..operands)
                .map(|it| format!("a{it} += (u64)index * places.strides[{it}][axis]; "))
                .collect();
            add(format_args!("{begin}"));
            add(format_args!("#pragma unroll"));
            add(format_args!(
                "for (int axis = {axes} - 1; axis >= 0; --axis) {{ Index size = (Index)places.sizes[axis]; Index index = rest % size; rest /= size; {go}}}"
            ));
            let at = |it: usize| format!("{}[a{it}]", pointer(it));
            add(format_args!("{}", one(&at, "(Index)first")));
        }
        add(format_args!("}} }}"));
        text
    }
}

/// How operands of one shape lie.
struct Places {
    /// The axes on which their places depend, with those that can be walked as one made one. None if all lie one
    /// after the other, or are the same everywhere.
    sizes: Vec<usize>,
    /// Of each operand, by axis.
    strides: Vec<Vec<usize>>,
    /// Operands that have one place.
    is_constant: Vec<bool>,
    /// Elements that a thread moves at once.
    pack: usize,
    /// Whether every index has 32 bits.
    is_short: bool,
}

impl Places {
    fn of(operands: &[&Operand]) -> Self {
        let shape = operands[0].layout.shape();
        let numel = operands[0].layout.numel();
        let is_constant: Vec<bool> = operands
            .iter()
            .map(|it| {
                it.layout
                    .strides()
                    .iter()
                    .zip(shape.iter())
                    .all(|(stride, size)| *stride == 0 || *size == 1)
            })
            .collect();
        let is_short = numel <= i32::MAX as usize;
        let lie_side_by_side = operands
            .iter()
            .zip(&is_constant)
            .all(|(it, is_constant)| *is_constant && numel > 1 || it.layout.is_contiguous());
        if lie_side_by_side {
            let is_constant: Vec<bool> =
                is_constant.into_iter().map(|it| it && numel > 1).collect();
            let largest = operands.iter().map(|it| it.dtype.size()).max().unwrap_or(1);
            let pack = PACK / largest.min(PACK);
            let aligned = operands.iter().zip(&is_constant).all(|(it, is_constant)| {
                *is_constant || it.first().is_multiple_of((pack * it.dtype.size()) as u64)
            });
            let pack = if aligned { pack } else { 1 };
            return Self { sizes: Vec::new(), strides: Vec::new(), is_constant, pack, is_short };
        }
        let mut sizes: Vec<usize> = Vec::new();
        let mut strides: Vec<Vec<usize>> = vec![Vec::new(); operands.len()];
        for (axis, &size) in shape.iter().enumerate() {
            if size == 1 {
                continue;
            }
            let here = || operands.iter().map(|it| it.layout.strides()[axis]);
            let goes_on = !sizes.is_empty()
                && strides.iter().zip(here()).all(|(before, stride)| {
                    before.last().is_some_and(|&outer| outer == stride * size)
                });
            if goes_on {
                *sizes.last_mut().expect("an axis goes on") *= size;
                strides.iter_mut().zip(here()).for_each(|(before, stride)| {
                    *before.last_mut().expect("an axis goes on") = stride;
                });
            } else {
                sizes.push(size);
                strides.iter_mut().zip(here()).for_each(|(before, stride)| before.push(stride));
            }
        }
        Self { sizes, strides, is_constant, pack: 1, is_short }
    }

    /// As the program has them.
    fn bytes(&self) -> Vec<u8> {
        if self.sizes.is_empty() {
            let words = 1 + self.is_constant.len();
            return vec![0; words * 8];
        }
        let words = self.sizes.iter().chain(self.strides.iter().flatten());
        words.flat_map(|&it| (it as u64).to_ne_bytes()).collect()
    }
}
