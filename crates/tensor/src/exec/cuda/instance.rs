//! The programs of kernels that compute each element by itself.
//!
//! In:  all that decides a program's text.
//! Out: the text, written once and then known.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::{LazyLock, PoisonError, RwLock};

use smallvec::SmallVec;

use super::elementwise::{INTEGERS, NUMBERS};
use super::plan::stored;
use crate::dtype::DType;

/// Threads of a block.
pub(super) const THREADS: u32 = 256;

/// How the elements of an operand are read and written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Place {
    pub(super) dtype: DType,
    pub(super) conj: bool,
    /// Whether all elements of a pack have one place.
    pub(super) is_constant: bool,
}

/// What decides a program's text.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct Instance {
    pub(super) name: &'static str,
    pub(super) line: Cow<'static, str>,
    pub(super) helpers: &'static str,
    /// The type that is computed in.
    pub(super) compute: &'static str,
    /// Types that the line has inputs in, where they differ from that.
    pub(super) inputs: SmallVec<[&'static str; 4]>,
    /// Outputs first.
    pub(super) operands: SmallVec<[Place; 6]>,
    pub(super) outputs: usize,
    /// Axes on which places depend; none if elements lie one after the other.
    pub(super) axes: usize,
    pub(super) pack: usize,
    /// Whether every index has 32 bits.
    pub(super) is_short: bool,
    pub(super) updates: bool,
    pub(super) rounds: bool,
    pub(super) fails: bool,
}

/// Texts by what decides them. They stay for good, as the compiled programs do; there are as many.
static KNOWN: LazyLock<RwLock<HashMap<Instance, &'static str>>> = LazyLock::new(RwLock::default);

/// What all texts with scalars begin with.
pub(super) fn scalars_text(compute: &str) -> String {
    let mut text = format!(
        "typedef {compute} C;\nstruct Scalars {{ double s[{NUMBERS}]; i64 k[{INTEGERS}]; }};\n"
    );
    (0..NUMBERS).for_each(|it| text += &format!("#define s{it} (scalars.s[{it}])\n"));
    (0..INTEGERS).for_each(|it| text += &format!("#define k{it} (scalars.k[{it}])\n"));
    for (place, [re, im]) in [["s0", "s1"], ["s2", "s3"]].iter().enumerate() {
        let number = match compute {
            "complex" => format!("complex((float){re}, (float){im})"),
            "i64" => format!("k{place}"),
            "bool" => format!("(k{place} != 0)"),
            _ => format!("((C){re})"),
        };
        text += &format!("#define n{place} {number}\n");
    }
    text
}

impl Instance {
    /// Its text.
    pub(super) fn known_text(self) -> &'static str {
        if let Some(text) = KNOWN.read().unwrap_or_else(PoisonError::into_inner).get(&self) {
            return text;
        }
        let text = self.text();
        let mut known = KNOWN.write().unwrap_or_else(PoisonError::into_inner);
        known.entry(self).or_insert_with(|| Box::leak(text.into_boxed_str()))
    }

    fn text(&self) -> String {
        let (outputs, operands) = (self.outputs, self.operands.len());
        let inputs = operands - outputs;
        let mut text = scalars_text(self.compute);
        let mut add = |line: std::fmt::Arguments<'_>| {
            text.write_fmt(line).expect("a string takes every line");
            text.push('\n');
        };
        let list = |count: usize, item: &dyn Fn(usize) -> String| {
            (0..count).map(|it| format!(", {}", item(it))).collect::<String>()
        };
        add(format_args!("typedef {} Index;", if self.is_short { "u32" } else { "u64" }));
        let (axes, pack) = (self.axes, self.pack);
        if axes > 0 {
            add(format_args!(
                "struct Places {{ u64 sizes[{axes}]; u64 strides[{axes}][{operands}]; }};"
            ));
        }
        let (failure, passed) = match self.fails {
            true => (", Failure *failure, u32 ticket", ", failure, ticket"),
            false => ("", ""),
        };
        if self.fails {
            add(format_args!("#define wrong(value) fail(failure, ticket, (value))"));
        }
        add(format_args!("{}", self.helpers));
        add(format_args!(
            "DEVICE void element(Index i, const Scalars &scalars{}{}{failure}) {{ {} }}",
            list(outputs, &|it| format!("C &y{it}")),
            list(inputs, &|it| format!("const {} x{it}", self.type_of_input(it))),
            self.line
        ));
        add(format_args!(
            "extern \"C\" __global__ void __launch_bounds__({THREADS}) tonnage_{}(const __grid_constant__ Scalars scalars{}, u64 n{}{}{failure}) {{",
            self.name,
            if axes > 0 { ", const __grid_constant__ Places places" } else { "" },
            list(outputs, &|it| format!("{} *out{it}", self.stored(it))),
            list(inputs, &|it| format!("const {} *in{it}", self.stored(outputs + it))),
        ));
        add(format_args!("u64 step = (u64)gridDim.x * {THREADS} * {pack};"));
        add(format_args!(
            "for (u64 first = ((u64)blockIdx.x * {THREADS} + threadIdx.x) * {pack}; first < n; first += step) {{"
        ));
        if axes > 0 {
            // Where the pack begins in each operand. Packs never cross the end of the last axis.
            let begin: String = (0..operands).map(|it| format!("u64 a{it} = 0; ")).collect();
            let go: String = (0..operands)
                .map(|it| format!("a{it} += (u64)index * places.strides[axis][{it}]; "))
                .collect();
            add(format_args!("Index rest = (Index)first;\n{begin}\n#pragma unroll"));
            add(format_args!(
                "for (int axis = {axes} - 1; axis >= 0; --axis) {{ Index size = (Index)places.sizes[axis]; Index index = rest % size; rest /= size; {go}}}"
            ));
        }
        let begin = |it: usize| if axes > 0 { format!("a{it}") } else { "first".to_owned() };
        let constant = |it: usize| if axes > 0 { format!("a{it}") } else { "0".to_owned() };
        if pack > 1 {
            match axes {
                0 => add(format_args!("if (first + {pack} <= n) {{")),
                _ => add(format_args!("{{")),
            }
            for it in (0..operands).filter(|it| !self.operands[*it].is_constant) {
                let load = match it >= outputs || self.updates {
                    true => format!(" = load_pack<{pack}>({} + {})", self.pointer(it), begin(it)),
                    false => String::new(),
                };
                add(format_args!("pack<{}, {pack}> p{it}{load};", self.stored(it)));
            }
            let at = |it: usize| match self.operands[it].is_constant {
                true => format!("{}[{}]", self.pointer(it), constant(it)),
                false => format!("p{it}.at[j]"),
            };
            let one = self.one(&at, "(Index)(first + j)", passed);
            add(format_args!("#pragma unroll\nfor (int j = 0; j < {pack}; ++j) {{ {one} }}"));
            for it in 0..outputs {
                add(format_args!(
                    "store_pack<{pack}>({} + {}, p{it});",
                    self.pointer(it),
                    begin(it)
                ));
            }
            add(format_args!("continue; }}"));
        }
        if axes > 0 {
            if pack == 1 {
                let at = |it: usize| format!("{}[a{it}]", self.pointer(it));
                add(format_args!("{}", self.one(&at, "(Index)first", passed)));
            }
        } else {
            let at = |it: usize| {
                let index = if self.operands[it].is_constant { "0" } else { "i" };
                format!("{}[{index}]", self.pointer(it))
            };
            let one = self.one(&at, "(Index)i", passed);
            add(format_args!("u64 end = first + {pack} < n ? first + {pack} : n;"));
            add(format_args!("for (u64 i = first; i < end; ++i) {{ {one} }}"));
        }
        add(format_args!("}} }}"));
        text
    }

    /// One element; `at` gives where an operand's lies.
    fn one(&self, at: &dyn Fn(usize) -> String, index: &str, passed: &str) -> String {
        let mut line = String::new();
        let (mut results, mut read) = (String::new(), String::new());
        for it in 0..self.outputs {
            let was = match self.updates {
                true => format!(" = Wide<C>::of(widen({}))", at(it)),
                false => String::new(),
            };
            line += &format!("C y{it}{was}; ");
            results += &format!(", y{it}");
        }
        let target = self.operands[0].dtype;
        let is_half = matches!(target, DType::Bf16 | DType::F16);
        for it in self.outputs..self.operands.len() {
            let conj = if self.operands[it].conj { "conj" } else { "" };
            let mut wide = format!("{conj}(widen({}))", at(it));
            if self.rounds && is_half && self.operands[it].dtype != target {
                wide = format!("widen(Narrow<{}>::of({wide}))", stored(target));
            }
            read += &format!(", Wide<{}>::of({wide})", self.type_of_input(it - self.outputs));
        }
        line += &format!("element({index}, scalars{results}{read}{passed}); ");
        for it in 0..self.outputs {
            line += &format!("{} = Narrow<{}>::of(y{it}); ", at(it), self.stored(it));
        }
        line
    }

    fn type_of_input(&self, input: usize) -> &'static str {
        self.inputs.get(input).copied().unwrap_or(self.compute)
    }

    fn stored(&self, operand: usize) -> &'static str {
        stored(self.operands[operand].dtype)
    }

    fn pointer(&self, operand: usize) -> String {
        match operand.checked_sub(self.outputs) {
            Some(input) => format!("in{input}"),
            None => format!("out{operand}"),
        }
    }
}
