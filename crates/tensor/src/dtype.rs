//! Element types, and what two of them become when they meet.
//!
//! In:  a [`DType`], or a Rust type that is an [`Element`].
//! Out: sizes, names, PyTorch's promotion rules; [`dispatch!`] and its siblings, which run one piece
//!      of generic code for the type at hand.

use std::fmt;
use std::num::Wrapping;

use crate::create::Scalar;
use crate::math;
use crate::number::{Bf16, Complex64, F16};

/// The type of a tensor's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DType {
    /// 32-bit float: the default.
    F32,
    /// 64-bit float.
    F64,
    /// 16-bit float with `f32`'s range.
    Bf16,
    /// 16-bit float of IEEE 754.
    F16,
    /// 64-bit signed integer: indices and labels.
    I64,
    /// 32-bit signed integer.
    I32,
    /// 8-bit unsigned integer.
    U8,
    /// True or false, a byte each.
    Bool,
    /// Two 32-bit floats.
    Complex64,
}

/// What arithmetic an element type has. Later ones absorb earlier ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Category {
    Bool,
    Integer,
    Float,
    Complex,
}

impl DType {
    /// Every element type.
    pub const ALL: [Self; 9] = [
        Self::F32,
        Self::F64,
        Self::Bf16,
        Self::F16,
        Self::I64,
        Self::I32,
        Self::U8,
        Self::Bool,
        Self::Complex64,
    ];

    /// Bytes of an element.
    #[must_use]
    pub const fn size(self) -> usize {
        match self {
            Self::F64 | Self::I64 | Self::Complex64 => 8,
            Self::F32 | Self::I32 => 4,
            Self::Bf16 | Self::F16 => 2,
            Self::U8 | Self::Bool => 1,
        }
    }

    /// PyTorch's name, such as `float32`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "float32",
            Self::F64 => "float64",
            Self::Bf16 => "bfloat16",
            Self::F16 => "float16",
            Self::I64 => "int64",
            Self::I32 => "int32",
            Self::U8 => "uint8",
            Self::Bool => "bool",
            Self::Complex64 => "complex64",
        }
    }

    pub(crate) const fn category(self) -> Category {
        match self {
            Self::Bool => Category::Bool,
            Self::I64 | Self::I32 | Self::U8 => Category::Integer,
            Self::F32 | Self::F64 | Self::Bf16 | Self::F16 => Category::Float,
            Self::Complex64 => Category::Complex,
        }
    }

    /// Whether it is a real float.
    #[must_use]
    pub fn is_float(self) -> bool {
        self.category() == Category::Float
    }

    /// Whether gradients can flow through it: floats and complex numbers.
    #[must_use]
    pub fn is_differentiable(self) -> bool {
        self.category() >= Category::Float
    }

    /// What two types become when they meet, by PyTorch's rules for tensors.
    #[must_use]
    pub fn promote(self, other: Self) -> Self {
        use DType::{Complex64, F32, I32, I64};
        if self == other {
            return self;
        }
        let (low, high) =
            if self.category() <= other.category() { (self, other) } else { (other, self) };
        if low.category() < high.category() {
            return high;
        }
        match high.category() {
            // Two different 16-bit floats have only 32 bits in common.
            Category::Float if low.size() == high.size() => F32,
            Category::Integer if low == I64 || high == I64 => I64,
            Category::Integer => I32,
            Category::Complex => Complex64,
            _ if low.size() > high.size() => low,
            _ => high,
        }
    }

    /// What a tensor of this type becomes when it meets a Rust float: integers become the default.
    #[must_use]
    pub(crate) fn with_float(self) -> Self {
        if self.category() < Category::Float { Self::F32 } else { self }
    }

    /// What sums of this type are kept in: integers and truths count in 64 bits.
    #[must_use]
    pub(crate) fn of_sums(self) -> Self {
        if self.category() < Category::Float { Self::I64 } else { self }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

mod sealed {
    pub trait Sealed {}
}

/// A Rust type that is an element type. The set is closed: kernels know each of them.
pub trait Element: sealed::Sealed + Copy + Send + Sync + fmt::Debug + 'static {
    /// Its name among the element types.
    const DTYPE: DType;
    /// What lies in memory: for `bool` a byte, of which any value is valid, otherwise the type itself.
    type Stored: Stored;
    #[doc(hidden)]
    fn store(self) -> Self::Stored;
    #[doc(hidden)]
    fn load(stored: Self::Stored) -> Self;
}

macro_rules! element {
    ($($type:ty => $dtype:ident),* $(,)?) => {$(
        impl sealed::Sealed for $type {}
        impl Element for $type {
            const DTYPE: DType = DType::$dtype;
            type Stored = Self;
            #[inline]
            fn store(self) -> Self {
                self
            }
            #[inline]
            fn load(stored: Self) -> Self {
                stored
            }
        }
    )*};
}

element!(
    f32 => F32,
    f64 => F64,
    Bf16 => Bf16,
    F16 => F16,
    i64 => I64,
    i32 => I32,
    u8 => U8,
    Complex64 => Complex64,
);

impl sealed::Sealed for bool {}
impl Element for bool {
    const DTYPE: DType = DType::Bool;
    type Stored = u8;
    fn store(self) -> u8 {
        u8::from(self)
    }
    fn load(stored: u8) -> Self {
        stored != 0
    }
}

/// What lies in a tensor's memory: plain numbers, any bits of which are valid. Kernels compute in
/// these; conversions go over `f64`, integers and complex numbers over themselves.
pub trait Stored: sealed::Sealed + Copy + Default + Send + Sync + PartialEq + 'static {
    #[doc(hidden)]
    fn from_f64(value: f64) -> Self;
    #[doc(hidden)]
    fn to_f64(self) -> f64;
    #[doc(hidden)]
    fn from_i64(value: i64) -> Self;
    #[doc(hidden)]
    fn to_i64(self) -> i64;
    /// The number whose bits these are. The slice has as many bytes as the number.
    #[doc(hidden)]
    fn from_bytes(bytes: &[u8]) -> Self;
    #[doc(hidden)]
    fn to_bytes(self, into: &mut [u8]);
    #[doc(hidden)]
    #[inline]
    fn to_complex(self) -> Complex64 {
        Complex64::new(self.to_f64() as f32, 0.0)
    }
    #[doc(hidden)]
    #[inline]
    fn from_complex(value: Complex64) -> Self {
        Self::from_f64(f64::from(value.re))
    }
}

/// The conversions from and to bytes, by way of a type that has them.
macro_rules! bytes_by {
    ($via:ty, $from:expr, $to:expr) => {
        #[inline]
        fn from_bytes(bytes: &[u8]) -> Self {
            let mut array = [0; size_of::<$via>()];
            array.copy_from_slice(bytes);
            let from: fn($via) -> Self = $from;
            from(<$via>::from_ne_bytes(array))
        }
        #[inline]
        fn to_bytes(self, into: &mut [u8]) {
            let to: fn(Self) -> $via = $to;
            into.copy_from_slice(&to(self).to_ne_bytes());
        }
    };
}

macro_rules! stored {
    ($type:ty; $to:expr, $from:expr; $via:ty, $of_bits:expr, $bits:expr) => {
        impl Stored for $type {
            bytes_by!($via, $of_bits, $bits);
            #[inline]
            fn from_f64(value: f64) -> Self {
                let from: fn(f64) -> Self = $from;
                from(value)
            }
            #[inline]
            fn to_f64(self) -> f64 {
                let to: fn(Self) -> f64 = $to;
                to(self)
            }
            #[inline]
            fn from_i64(value: i64) -> Self {
                Self::from_f64(value as f64)
            }
            #[inline]
            fn to_i64(self) -> i64 {
                self.to_f64() as i64
            }
        }
    };
}

stored!(f32; |it| f64::from(it), |it| it as f32; f32, |it| it, |it| it);
stored!(f64; |it| it, |it| it; f64, |it| it, |it| it);
stored!(Bf16; |it| f64::from(it.to_f32()), |it| Bf16::from_f32(it as f32); u16, Bf16::from_bits, Bf16::to_bits);
stored!(F16; |it| f64::from(it.to_f32()), |it| F16::from_f32(it as f32); u16, F16::from_bits, F16::to_bits);

macro_rules! stored_integer {
    ($($type:ty),*) => {$(
        impl Stored for $type {
            bytes_by!($type, |it| it, |it| it);
            #[inline]
            fn from_f64(value: f64) -> Self {
                // By way of 64 bits, so that what does not fit wraps around, as in PyTorch.
                value as i64 as Self
            }
            #[inline]
            fn to_f64(self) -> f64 {
                self as f64
            }
            #[inline]
            fn from_i64(value: i64) -> Self {
                value as Self
            }
            #[inline]
            fn to_i64(self) -> i64 {
                self as i64
            }
        }
    )*};
}

stored_integer!(i64, i32, u8);

impl Stored for Complex64 {
    fn from_bytes(bytes: &[u8]) -> Self {
        let (re, im) = bytes.split_at(size_of::<f32>());
        Self::new(f32::from_bytes(re), f32::from_bytes(im))
    }
    fn to_bytes(self, into: &mut [u8]) {
        let (re, im) = into.split_at_mut(size_of::<f32>());
        self.re.to_bytes(re);
        self.im.to_bytes(im);
    }
    #[inline]
    fn from_f64(value: f64) -> Self {
        Self::new(value as f32, 0.0)
    }
    #[inline]
    fn to_f64(self) -> f64 {
        f64::from(self.re)
    }
    #[inline]
    fn from_i64(value: i64) -> Self {
        Self::new(value as f32, 0.0)
    }
    #[inline]
    fn to_i64(self) -> i64 {
        self.re as i64
    }
    #[inline]
    fn to_complex(self) -> Complex64 {
        self
    }
    #[inline]
    fn from_complex(value: Complex64) -> Self {
        value
    }
}

/// A real float in kernels: arithmetic happens in [`Wide`](Self::Wide).
pub(crate) trait Float: Stored {
    /// `f32` for 16-bit floats, otherwise the type itself.
    type Wide: Real;
    fn widen(self) -> Self::Wide;
    fn narrow(wide: Self::Wide) -> Self;
    /// Lets `write` fill numbers in [`Wide`](Self::Wide), whatever they held before.
    fn in_wide(numbers: &mut [Self], write: impl FnOnce(&mut [Self::Wide]));
}

/// What the functions of `ops/unary.rs` are written in.
pub(crate) trait Real:
    Stored
    + PartialOrd
    + std::ops::Add<Output = Self>
    + std::ops::Sub<Output = Self>
    + std::ops::Mul<Output = Self>
    + std::ops::Div<Output = Self>
    + std::ops::Neg<Output = Self>
{
    /// A constant.
    fn n(value: f64) -> Self;
    fn sin(self) -> Self;
    fn cos(self) -> Self;
    fn exp(self) -> Self;
    fn ln(self) -> Self;
    fn sqrt(self) -> Self;
    fn tanh(self) -> Self;
    fn abs(self) -> Self;
    fn erf(self) -> Self;
}

/// The functions that loops spend their time in come from the caller.
macro_rules! real {
    ($($type:ident: $exp:path, $tanh:path, $erf:path;)*) => {$(
        impl Real for $type {
            #[inline]
            fn n(value: f64) -> Self { value as Self }
            #[inline]
            fn sin(self) -> Self { $type::sin(self) }
            #[inline]
            fn cos(self) -> Self { $type::cos(self) }
            #[inline]
            fn exp(self) -> Self { $exp(self) }
            #[inline]
            fn ln(self) -> Self { $type::ln(self) }
            #[inline]
            fn sqrt(self) -> Self { $type::sqrt(self) }
            #[inline]
            fn tanh(self) -> Self { $tanh(self) }
            #[inline]
            fn abs(self) -> Self { $type::abs(self) }
            #[inline]
            fn erf(self) -> Self { $erf(self) }
        }
        impl Float for $type {
            type Wide = Self;
            #[inline]
            fn widen(self) -> Self { self }
            #[inline]
            fn narrow(wide: Self) -> Self { wide }
            #[inline]
            fn in_wide(numbers: &mut [Self], write: impl FnOnce(&mut [Self])) {
                write(numbers);
            }
        }
    )*};
}

real!(
    f32: math::exp, math::tanh, math::erf;
    f64: f64::exp, f64::tanh, math::erf_f64;
);

macro_rules! sixteen_bit {
    ($($type:ident),*) => {$(
        impl Float for $type {
            type Wide = f32;
            #[inline]
            fn widen(self) -> f32 { self.to_f32() }
            #[inline]
            fn narrow(wide: f32) -> Self { $type::from_f32(wide) }
            fn in_wide(numbers: &mut [Self], write: impl FnOnce(&mut [f32])) {
                let mut wide = vec![0.0; numbers.len()];
                write(&mut wide);
                numbers.iter_mut().zip(wide).for_each(|(to, it)| *to = Self::narrow(it));
            }
        }
    )*};
}

sixteen_bit!(Bf16, F16);

/// A number in kernels that add and multiply: integers wrap around, 16-bit floats compute in 32.
pub(crate) trait Number: Stored {
    type Math: Copy
        + Send
        + Sync
        + std::ops::Add<Output = Self::Math>
        + std::ops::Sub<Output = Self::Math>
        + std::ops::Mul<Output = Self::Math>
        + std::ops::Div<Output = Self::Math>;
    fn up(self) -> Self::Math;
    fn down(math: Self::Math) -> Self;
    /// A scalar argument, not rounded to the element type first.
    fn math(scalar: Scalar) -> Self::Math;
    /// The same, unless it is complex.
    #[inline]
    fn conj(math: Self::Math) -> Self::Math {
        math
    }
}

macro_rules! number {
    ($($type:ty, $math:ty, $up:expr, $down:expr, $scalar:expr);* $(;)?) => {$(
        impl Number for $type {
            type Math = $math;
            #[inline]
            fn up(self) -> $math {
                let up: fn(Self) -> $math = $up;
                up(self)
            }
            #[inline]
            fn down(math: $math) -> Self {
                let down: fn($math) -> Self = $down;
                down(math)
            }
            #[inline]
            fn math(scalar: Scalar) -> $math {
                let math: fn(Scalar) -> $math = $scalar;
                math(scalar)
            }
        }
    )*};
}

number!(
    f32, f32, |it| it, |it| it, |it| it.stored();
    f64, f64, |it| it, |it| it, |it| it.stored();
    Bf16, f32, Bf16::to_f32, Bf16::from_f32, |it| it.stored();
    F16, f32, F16::to_f32, F16::from_f32, |it| it.stored();
    i64, Wrapping<i64>, Wrapping, |it| it.0, |it| Wrapping(it.stored());
    i32, Wrapping<i32>, Wrapping, |it| it.0, |it| Wrapping(it.stored());
    u8, Wrapping<u8>, Wrapping, |it| it.0, |it| Wrapping(it.stored());
);

impl Number for Complex64 {
    type Math = Self;
    #[inline]
    fn up(self) -> Self {
        self
    }
    #[inline]
    fn down(math: Self) -> Self {
        math
    }
    #[inline]
    fn math(scalar: Scalar) -> Self {
        scalar.stored()
    }
    #[inline]
    fn conj(math: Self) -> Self {
        math.conj()
    }
}

/// Runs `$code` with `$T` as the type of the one [`DType`] of a list that it is; for those that are
/// not on the list, `$other`.
macro_rules! dispatch_among {
    ($dtype:expr, $T:ident: [$($name:ident $type:ty),*] => $code:expr $(, else $other:expr)?) => {{
        use $crate::dtype::DType;
        match $dtype {
            $(DType::$name => {
                type $T = $type;
                $code
            })*
            $(_ => $other,)?
        }
    }};
}

/// Runs `$code` with `$T` as the stored type of a [`DType`]: any of them; `bool` is a byte.
macro_rules! dispatch {
    ($dtype:expr, $T:ident => $code:expr) => {
        $crate::dtype::dispatch_among!($dtype, $T: [
            F32 f32, F64 f64, Bf16 $crate::number::Bf16, F16 $crate::number::F16, I64 i64,
            I32 i32, U8 u8, Bool u8, Complex64 $crate::number::Complex64
        ] => $code)
    };
}

/// Runs `$code` with `$T` as the type of a float; otherwise `$other`, which the shape rule has
/// excluded.
macro_rules! dispatch_float {
    ($dtype:expr, $T:ident => $code:expr, else $other:expr) => {
        $crate::dtype::dispatch_among!($dtype, $T: [
            F32 f32, F64 f64, Bf16 $crate::number::Bf16, F16 $crate::number::F16
        ] => $code, else $other)
    };
}

pub(crate) use {dispatch, dispatch_among, dispatch_float};

#[cfg(test)]
mod tests {
    use super::DType::{Bf16, Bool, Complex64, F16, F32, F64, I32, I64, U8};
    use super::*;

    #[test]
    fn promotion_is_that_of_pytorch() {
        for (a, b, both) in [
            (F32, F64, F64),
            (F16, Bf16, F32),
            (F16, F32, F32),
            (I64, F16, F16),
            (Bool, U8, U8),
            (U8, I32, I32),
            (I32, I64, I64),
            (F64, Complex64, Complex64),
        ] {
            assert_eq!((a.promote(b), b.promote(a)), (both, both), "{a} with {b}");
        }
        assert!(DType::ALL.iter().all(|it| it.promote(*it) == *it));
    }

    #[test]
    fn stored_sizes_are_those_of_the_types() {
        for dtype in DType::ALL {
            assert_eq!(dispatch!(dtype, T => std::mem::size_of::<T>()), dtype.size(), "{dtype}");
        }
    }
}
