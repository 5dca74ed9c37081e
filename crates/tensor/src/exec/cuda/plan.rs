//! How a GPU computes a kernel, as data.
//!
//! In:  a [`Kernel`](super::super::Kernel) and the memory it works on.
//! Out: a [`Plan`]: which programs with which arguments, or which call of a library. Nothing here asks a driver, so
//!      plans are made, looked at and compiled on machines without a GPU.

use std::borrow::Cow;

use tonnage_cuda_libs::{KernelSource, blas, dnn};
use tonnage_device::cuda::{Arguments, Extent};

use super::super::Operand;
use crate::dtype::DType;

/// The memory of a launch: what is written, and what is read.
#[derive(Clone, Copy)]
pub(crate) struct Operands<'a> {
    pub(crate) outputs: &'a [Operand],
    pub(crate) inputs: &'a [Operand],
}

impl<'a> Operands<'a> {
    /// All of it.
    pub(crate) fn all(&self) -> Vec<&'a Operand> {
        self.outputs.iter().chain(self.inputs).collect()
    }
}

/// How a GPU computes a kernel.
pub(crate) enum Plan {
    /// By programs of our own, one after the other.
    Launches(Vec<Launch>),
    /// By the matrix library.
    Product(Box<LibraryProduct>),
    /// By the library of convolutions, and programs of our own after it.
    Convolution(Box<LibraryConvolution>),
}

/// A program and what it is given.
pub(crate) struct Launch {
    pub(crate) program: Program,
    pub(crate) extent: Extent,
    pub(crate) arguments: Arguments,
    /// For a program that can find wrong values: the sentence about one. It is given two more arguments, by which it
    /// says so: see `fail` in the prelude.
    pub(crate) complaint: Option<Complaint>,
}

/// A product for the matrix library, and where its matrices lie; the workspace is the queue's to fill in.
pub(crate) struct LibraryProduct {
    pub(crate) product: blas::Product,
    pub(crate) operands: blas::Operands,
}

/// A convolution for the library, where its tensors lie, and what comes after.
pub(crate) struct LibraryConvolution {
    pub(crate) convolution: dnn::Convolution,
    pub(crate) operands: dnn::Operands,
    /// The same by a program of our own, for shapes that the library has no engine for.
    pub(crate) by_definition: Launch,
    pub(crate) then: Vec<Launch>,
}

/// The sentence about a wrong value that a program met.
pub(crate) type Complaint = Box<dyn Fn(i64) -> String + Send + Sync>;

/// A kernel in CUDA C++, behind the prelude.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Program {
    /// What it computes; its `extern "C"` function is called `tonnage_` and this.
    pub(crate) name: Cow<'static, str>,
    /// What comes between the prelude and the text: types and constants of this instance.
    pub(crate) head: String,
    pub(crate) text: Cow<'static, str>,
    /// Whether products and sums stay apart, as on the host: for numbers that must be equal bit by bit.
    pub(crate) is_exact: bool,
}

/// Without the text, which is long; programs of one name seldom have as much of it but not the same.
impl std::hash::Hash for Program {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        (&self.name, &self.head, self.text.len(), self.is_exact).hash(state);
    }
}

/// What every program begins with.
const PRELUDE: &str = include_str!("prelude.cu");

impl Program {
    /// A program from a file beside its operation, for these types and constants: `("T", "float")`.
    pub(crate) fn new(
        name: &'static str,
        text: &'static str,
        constants: &[(&str, &dyn std::fmt::Display)],
    ) -> Self {
        let head =
            constants.iter().map(|(name, value)| format!("#define {name} {value}\n")).collect();
        Self { name: Cow::Borrowed(name), head, text: Cow::Borrowed(text), is_exact: false }
    }

    /// The same, with products and sums apart.
    pub(crate) fn exact(self) -> Self {
        Self { is_exact: true, ..self }
    }

    /// The name of its function.
    pub(crate) fn function(&self) -> String {
        format!("tonnage_{}", self.name)
    }

    /// As the compiler takes it.
    pub(crate) fn source(&self) -> KernelSource {
        let text = [PRELUDE, &self.head, &self.text].concat();
        let options: &[&str] = if self.is_exact { &["--fmad=false"] } else { &[] };
        KernelSource::made(self.name.to_string(), text).with_options(options)
    }
}

impl Launch {
    /// So many blocks of so many threads.
    pub(crate) fn new(program: Program, extent: Extent, arguments: Arguments) -> Self {
        Self { program, extent, arguments, complaint: None }
    }

    /// The same, with what to say of wrong values.
    pub(crate) fn complains(
        self,
        complaint: impl Fn(i64) -> String + Send + Sync + 'static,
    ) -> Self {
        Self { complaint: Some(Box::new(complaint)), ..self }
    }
}

impl From<Launch> for Plan {
    fn from(launch: Launch) -> Self {
        Self::Launches(vec![launch])
    }
}

impl Plan {
    /// Nothing to do: there are no elements.
    pub(crate) const fn nothing() -> Self {
        Self::Launches(Vec::new())
    }

    /// The programs of our own in it.
    pub(crate) fn into_launches(self) -> Vec<Launch> {
        match self {
            Self::Launches(launches) => launches,
            Self::Convolution(it) => std::iter::once(it.by_definition).chain(it.then).collect(),
            Self::Product(_) => Vec::new(),
        }
    }
}

impl Operand {
    /// Where its first element lies.
    pub(crate) fn first(&self) -> u64 {
        self.address + (self.layout.offset() * self.dtype.size()) as u64
    }
}

/// The name of an element type in the prelude.
pub(crate) const fn stored(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "float",
        DType::F64 => "double",
        DType::Bf16 => "bf16",
        DType::F16 => "f16",
        DType::I64 => "i64",
        DType::I32 => "int",
        DType::U8 => "u8",
        DType::Bool => "truth",
        DType::Complex64 => "complex",
    }
}

/// The name of the type in which elements of a type are computed with, as on the host.
pub(crate) const fn wide(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 | DType::Bf16 | DType::F16 => "float",
        DType::F64 => "double",
        DType::I64 | DType::I32 | DType::U8 | DType::Bool => "i64",
        DType::Complex64 => "complex",
    }
}
