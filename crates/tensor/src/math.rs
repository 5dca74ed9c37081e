//! Functions of `f32` without branches, so that compilers turn loops over them into vectors; and the
//! error function, which the standard library does not have.
//!
//! In:  a number.
//! Out: its function, to about one unit in the last place, whatever the number.
//!
//! Polynomials are Taylor's where the series is short enough; the one that is not says how it was made.

use std::f32::consts::{FRAC_2_SQRT_PI, LN_2, LOG2_E, SQRT_2, TAU};

/// `Σ cᵢ·xⁱ`, by Horner's rule.
#[inline(always)]
fn polynomial<const N: usize>(x: f32, coefficients: [f32; N]) -> f32 {
    coefficients.iter().rev().fold(0.0, |sum, it| sum * x + it)
}

/// Adding this and taking it off again rounds to the nearest integer, if that is below 2²².
const ROUND: f32 = 12_582_912.0;

/// eˣ.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    // Beyond these, the result is infinite or zero; NaN stays, since comparisons with it fail.
    let x = if x > 89.0 { 89.0 } else { x };
    let x = if x < -104.0 { -104.0 } else { x };
    // x = n·ln 2 + r, with |r| ≤ ln 2 / 2. The first part of ln 2 has few bits, so n times it is exact.
    let shifted = x * LOG2_E + ROUND;
    let n = shifted - ROUND;
    const HIGH: f32 = 355.0 / 512.0;
    const LOW: f32 = (std::f64::consts::LN_2 - HIGH as f64) as f32;
    let r = x - n * HIGH - n * LOW;
    let e = polynomial(
        r,
        [1.0, 1.0, 0.5, 1.0 / 6.0, 1.0 / 24.0, 1.0 / 120.0, 1.0 / 720.0, 1.0 / 5040.0],
    );
    // 2ⁿ in two factors: each is a normal number, where n itself may reach beyond them.
    let n = shifted.to_bits() as i32 - ROUND.to_bits() as i32;
    let half = n >> 1;
    let power = |n: i32| f32::from_bits(((n + 127) << 23) as u32);
    e * power(half) * power(n - half)
}

/// The hyperbolic tangent.
#[inline(always)]
pub(crate) fn tanh(x: f32) -> f32 {
    let square = x * x;
    let near = x * polynomial(
        square,
        [
            1.0,
            -1.0 / 3.0,
            2.0 / 15.0,
            -17.0 / 315.0,
            62.0 / 2835.0,
            -1382.0 / 155_925.0,
            21844.0 / 6_081_075.0,
        ],
    );
    let far = 1.0 - 2.0 / (exp(2.0 * x.abs()) + 1.0);
    if x.abs() < 0.4 { near } else { far.copysign(x) }
}

/// The error function.
#[inline(always)]
pub(crate) fn erf(x: f32) -> f32 {
    let (square, size) = (x * x, x.abs());
    let near = x * polynomial(
        square,
        [
            FRAC_2_SQRT_PI,
            -FRAC_2_SQRT_PI / 3.0,
            FRAC_2_SQRT_PI / 10.0,
            -FRAC_2_SQRT_PI / 42.0,
            FRAC_2_SQRT_PI / 216.0,
            -FRAC_2_SQRT_PI / 1320.0,
            FRAC_2_SQRT_PI / 9360.0,
            -FRAC_2_SQRT_PI / 75_600.0,
            FRAC_2_SQRT_PI / 685_440.0,
            -FRAC_2_SQRT_PI / 6_894_720.0,
        ],
    );
    // e^(x²)·erfc(x) for 1 ≤ x ≤ 4.1, by its Chebyshev series in t = 1 / (1 + x/2), which is brought to
    // -1 … 1; the first eight terms are right to 2·10⁻¹¹. Beyond 4.1 the result is 1 anyway.
    let t = 1.0 / (1.0 + size * 0.5);
    let z = (t - 0.497_267_76) * (1.0 / 0.169_398_9);
    let scaled = polynomial(
        z,
        [
            0.253_068_53,
            0.143_837_24,
            0.027_589_95,
            0.003_068_104,
            5.168_365e-5,
            -3.109_162e-5,
            -1.318_444e-6,
            4.794_534_5e-7,
        ],
    );
    let far = 1.0 - exp(-square) * scaled;
    if size < 1.0 {
        near
    } else if size > 4.1 {
        1f32.copysign(x)
    } else {
        // NaN comes here and stays.
        far.copysign(x)
    }
}

/// The natural logarithm of a normal positive number.
#[inline(always)]
pub(crate) fn ln_normal(x: f32) -> f32 {
    // x = m·2ⁿ with √½ ≤ m < √2, and ln m = 2·artanh((m - 1) / (m + 1)).
    let shifted = x.to_bits().wrapping_sub((SQRT_2 * 0.5).to_bits());
    let n = (shifted as i32) >> 23;
    let m = f32::from_bits(x.to_bits().wrapping_sub((n << 23) as u32));
    let s = (m - 1.0) / (m + 1.0);
    let series = polynomial(s * s, [2.0, 2.0 / 3.0, 2.0 / 5.0, 2.0 / 7.0, 2.0 / 9.0]);
    s * series + n as f32 * LN_2
}

/// Sine and cosine of a part of a whole turn, 0 ≤ `turn` ≤ 1.
#[inline(always)]
pub(crate) fn sin_cos_turn(turn: f32) -> (f32, f32) {
    // The nearest quarter, and the rest in radians: at most an eighth of a turn.
    let shifted = turn * 4.0 + ROUND;
    let quarter = shifted.to_bits();
    let x = (turn - (shifted - ROUND) * 0.25) * TAU;
    let square = x * x;
    let sin =
        x * polynomial(square, [1.0, -1.0 / 6.0, 1.0 / 120.0, -1.0 / 5040.0, 1.0 / 362_880.0]);
    let cos = polynomial(
        square,
        [1.0, -0.5, 1.0 / 24.0, -1.0 / 720.0, 1.0 / 40_320.0, -1.0 / 3_628_800.0],
    );
    let (a, b) = if quarter & 1 == 0 { (sin, cos) } else { (cos, sin) };
    let sin = if quarter & 2 == 0 { a } else { -a };
    let cos = if (quarter + 1) & 2 == 0 { b } else { -b };
    (sin, cos)
}

/// The error function of an `f64`, to about its last digit. Not for speed.
pub(crate) fn erf_f64(x: f64) -> f64 {
    let (size, square) = (x.abs(), x * x);
    if size < 3.0 {
        // 2/√π · e^(-x²) · Σ 2ⁿ x^(2n+1) / (1·3·…·(2n+1)): no term takes from another.
        let (mut term, mut sum, mut n) = (x, x, 1.0);
        while term.abs() > sum.abs() * 1e-17 {
            term *= 2.0 * square / (2.0 * n + 1.0);
            sum += term;
            n += 1.0;
        }
        return std::f64::consts::FRAC_2_SQRT_PI * (-square).exp() * sum;
    }
    if size > 6.0 {
        return 1f64.copysign(x);
    }
    // The continued fraction of erfc, from its far end; NaN comes here and stays.
    let fraction = (1..=60).rev().fold(0.0, |rest, n| f64::from(n) * 0.5 / (size + rest));
    let erfc = (-square).exp() / ((size + fraction) * std::f64::consts::PI.sqrt());
    (1.0 - erfc).copysign(x)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The largest error over numbers spread over a range, in units of the last place.
    fn worst(
        range: std::ops::Range<f64>,
        f: impl Fn(f32) -> f32,
        exact: impl Fn(f64) -> f64,
    ) -> f64 {
        let steps = 200_000;
        (0..=steps)
            .map(|step| {
                let x = (range.start + (range.end - range.start) * f64::from(step) / 2e5) as f32;
                let exact = exact(f64::from(x));
                let unit = (exact.abs() as f32).max(f32::MIN_POSITIVE);
                let unit = f64::from(f32::from_bits(unit.to_bits() + 1) - unit);
                (f64::from(f(x)) - exact).abs() / unit
            })
            .fold(0.0, f64::max)
    }

    #[test]
    fn errors_are_about_one_unit_in_the_last_place() {
        let figures = [
            worst(-87.0..88.7, exp, f64::exp),
            worst(-10.0..10.0, tanh, f64::tanh),
            worst(-0.5..0.5, tanh, f64::tanh),
            worst(-6.0..6.0, erf, erf_f64),
            worst(1e-7..1.0, ln_normal, f64::ln),
            worst(1.0..1e30, ln_normal, f64::ln),
        ];
        assert!(figures.iter().all(|worst| *worst < 2.6), "{figures:?}");
        for step in 0..=1_000_000 {
            let turn = step as f32 / 1e6;
            let (sin, cos) = sin_cos_turn(turn);
            let exact = (f64::from(turn) * std::f64::consts::TAU).sin_cos();
            let error = (f64::from(sin) - exact.0).abs().max((f64::from(cos) - exact.1).abs());
            assert!(error < 1.5e-7, "{turn}: {error}");
        }
    }

    #[test]
    fn ends_and_what_is_no_number_are_kept() {
        assert_eq!((exp(f32::INFINITY), exp(f32::NEG_INFINITY)), (f32::INFINITY, 0.0));
        assert_eq!((exp(100.0), exp(-110.0), exp(0.0)), (f32::INFINITY, 0.0, 1.0));
        assert!(exp(-100.0) > 0.0, "below normal numbers, not zero");
        assert_eq!((tanh(f32::INFINITY), tanh(-1e30)), (1.0, -1.0));
        assert_eq!((tanh(1e-30), erf(1e-30)), (1e-30, 1e-30 * FRAC_2_SQRT_PI));
        assert_eq!((erf(f32::INFINITY), erf(-9.0)), (1.0, -1.0));
        assert!([exp, tanh, erf].iter().all(|f| f(f32::NAN).is_nan()));
        assert!(tanh(-0.0).is_sign_negative() && erf(-0.0).is_sign_negative());
    }

    #[test]
    fn the_error_function_has_its_known_values() {
        // Abramowitz and Stegun, table 7.1.
        for (x, value) in [
            (0.5, 0.520_499_877_8),
            (1.0, 0.842_700_792_9),
            (2.0, 0.995_322_265_0),
            (3.0, 0.999_977_909_5),
        ] {
            assert!((erf_f64(x) - value).abs() < 1e-10 && erf_f64(-x) == -erf_f64(x), "{x}");
        }
        // The series and the fraction meet.
        assert!((erf_f64(3.0 - 1e-12) - erf_f64(3.0 + 1e-12)).abs() < 1e-15);
        assert!(erf_f64(f64::NAN).is_nan());
    }
}
