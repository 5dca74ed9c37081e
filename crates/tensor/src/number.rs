//! Number types that Rust does not have: 16-bit floats and complex numbers.
//!
//! The 16-bit types wrap those of the `half` crate so that it stays out of the public interface.

use std::fmt;
use std::ops::{Add, Div, Mul, Neg, Sub};

/// Defines a 16-bit float over one of `half`'s.
macro_rules! half_float {
    ($(#[$doc:meta])* $name:ident, $inner:ty) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Default, PartialEq, PartialOrd)]
        #[repr(transparent)]
        pub struct $name($inner);

        impl $name {
            /// The nearest such number, ties to even.
            #[must_use]
            #[inline]
            pub fn from_f32(value: f32) -> Self {
                Self(<$inner>::from_f32(value))
            }

            /// The same number with more digits.
            #[must_use]
            #[inline]
            pub fn to_f32(self) -> f32 {
                self.0.to_f32()
            }

            /// Its bits.
            #[must_use]
            pub fn to_bits(self) -> u16 {
                self.0.to_bits()
            }

            /// The number with these bits.
            #[must_use]
            pub fn from_bits(bits: u16) -> Self {
                Self(<$inner>::from_bits(bits))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.to_f32().fmt(f)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.to_f32().fmt(f)
            }
        }
    };
}

half_float!(
    /// A float of 8 exponent and 7 fraction bits: `f32`'s range, two to three digits.
    Bf16,
    half::bf16
);
half_float!(
    /// A float of 5 exponent and 10 fraction bits: up to 65504, three to four digits.
    F16,
    half::f16
);

/// A complex number of two `f32`s: PyTorch's `complex64`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[repr(C)]
pub struct Complex64 {
    /// The real part.
    pub re: f32,
    /// The imaginary part.
    pub im: f32,
}

impl Complex64 {
    /// `re + im·i`.
    #[must_use]
    pub const fn new(re: f32, im: f32) -> Self {
        Self { re, im }
    }

    /// The same with the other sign of the imaginary part.
    #[must_use]
    #[inline]
    pub fn conj(self) -> Self {
        Self::new(self.re, -self.im)
    }

    /// Its distance from zero.
    #[must_use]
    #[inline]
    pub fn abs(self) -> f32 {
        self.re.hypot(self.im)
    }
}

impl Add for Complex64 {
    type Output = Self;
    #[inline]
    fn add(self, other: Self) -> Self {
        Self::new(self.re + other.re, self.im + other.im)
    }
}

impl Sub for Complex64 {
    type Output = Self;
    #[inline]
    fn sub(self, other: Self) -> Self {
        Self::new(self.re - other.re, self.im - other.im)
    }
}

impl Mul for Complex64 {
    type Output = Self;
    #[inline]
    fn mul(self, other: Self) -> Self {
        Self::new(self.re * other.re - self.im * other.im, self.re * other.im + self.im * other.re)
    }
}

impl Div for Complex64 {
    type Output = Self;
    /// By the larger part of the divisor, so that squares do not overflow.
    #[inline]
    fn div(self, other: Self) -> Self {
        if other.re.abs() >= other.im.abs() {
            let ratio = other.im / other.re;
            let scale = other.re + other.im * ratio;
            Self::new((self.re + self.im * ratio) / scale, (self.im - self.re * ratio) / scale)
        } else {
            let ratio = other.re / other.im;
            let scale = other.re * ratio + other.im;
            Self::new((self.re * ratio + self.im) / scale, (self.im * ratio - self.re) / scale)
        }
    }
}

impl Neg for Complex64 {
    type Output = Self;
    #[inline]
    fn neg(self) -> Self {
        Self::new(-self.re, -self.im)
    }
}

impl fmt::Display for Complex64 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{:+}j", self.re, self.im)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn complex_division_undoes_multiplication() {
        let numbers = [(1.0, 2.0), (-3.0, 0.5), (0.0, 4.0), (5.0, 0.0)];
        for (a, b) in numbers.iter().flat_map(|a| numbers.map(|b| (*a, b))) {
            let [a, b] = [a, b].map(|(re, im)| Complex64::new(re, im));
            let back = a * b / b - a;
            assert!(back.abs() < 1e-5, "{a} · {b} / {b}");
        }
        assert_eq!(Complex64::new(3.0, -4.0).abs(), 5.0);
        assert_eq!(Complex64::new(1.0, -2.5).to_string(), "1-2.5j");
    }

    #[test]
    fn sixteen_bit_floats_round_to_even() {
        assert_eq!(Bf16::from_f32(1.0 + 1.0 / 256.0).to_f32(), 1.0);
        assert_eq!(F16::from_f32(65_504.0).to_f32(), 65_504.0);
        assert_eq!(F16::from_f32(1e6).to_f32(), f32::INFINITY);
    }
}
