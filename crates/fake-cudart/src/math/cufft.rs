//! cuFFT: plans go by number, and what they need beside.
//!
//! The rule is that of cuFFT 12.0 on an H200: transforms of lengths that have a kernel of their own need nothing, other real
//! ones half of their numbers and other complex ones all. It is exact in one dimension for the lengths that were measured
//! (99 lengths, 2,018 plans of all kinds and dimensions), and a guess for others, for other devices and other releases, which
//! is noted.

use std::ffi::c_int;

use super::entry;
use crate::notes;
use crate::profile::Profile;
use crate::state::put;

/// Types of numbers, as `cudaDataType` counts them.
const REAL_DOUBLE: c_int = 1;
const HALF: c_int = 2;
const COMPLEX: c_int = 4;
const COMPLEX_DOUBLE: c_int = 5;
const COMPLEX_HALF: c_int = 6;

/// The release that was measured.
const RELEASE: &str = "12.0";

/// Lengths up to which every measured transform has a kernel of its own.
const SHORT: i64 = 256;

/// Longer ones that have, of real numbers: those of both precisions, and of single alone.
const REAL: [i64; 16] =
    [300, 320, 384, 400, 480, 512, 600, 640, 768, 800, 960, 1000, 1024, 1920, 2187, 4096];
const REAL_SINGLE: [i64; 4] = [2048, 3072, 8192, 16384];

/// Complex transforms have one up to here, and at a few lengths more.
const LONG: i64 = 10_000;
const COMPLEX_SINGLE: [i64; 4] = [16000, 16384, 20000, 24000];

/// Measured lengths beyond the short ones.
const MEASURED: [i64; 55] = [
    300, 320, 384, 400, 480, 500, 512, 600, 640, 700, 768, 800, 960, 1000, 1024, 1200, 1280, 1500,
    1536, 1600, 1920, 2000, 2048, 2187, 2400, 3000, 3072, 4000, 4096, 5000, 6000, 8000, 8192,
    10000, 12000, 16000, 16384, 20000, 22050, 24000, 32000, 32768, 44100, 48000, 50000, 65536,
    96000, 100_000, 131_072, 160_000, 262_144, 480_000, 524_288, 1_000_000, 1_048_576,
];

/// The kind of a transform: whether one side is real, and whether its numbers are double or half, of which the latter were not measured.
#[derive(Clone, Copy)]
struct Kind {
    real: bool,
    double: bool,
    half: bool,
}

impl Kind {
    fn of(from: c_int, to: c_int) -> Self {
        let is_complex = |it| matches!(it, COMPLEX | COMPLEX_DOUBLE | COMPLEX_HALF);
        Self {
            real: !(is_complex(from) && is_complex(to)),
            double: matches!(from, REAL_DOUBLE | COMPLEX_DOUBLE),
            half: matches!(from, HALF | COMPLEX_HALF),
        }
    }

    /// Whether one kernel does it.
    fn at_once(self, length: i64) -> bool {
        let Self { real, double, .. } = self;
        if length <= SHORT {
            return true;
        }
        match (real, double) {
            (true, false) => REAL.contains(&length) || REAL_SINGLE.contains(&length),
            (true, true) => REAL.contains(&length) || length == 2048,
            (false, false) => length <= LONG || COMPLEX_SINGLE.contains(&length),
            (false, true) => (length <= LONG && length != 3000) || length == 16384,
        }
    }

    /// Bytes beside, and whether that was measured.
    fn workspace(self, extents: &[i64], batch: i64) -> (i64, bool) {
        let Some((&last, others)) = extents.split_last() else { return (0, false) };
        let all = extents.iter().fold(batch, |product, extent| product.saturating_mul(*extent));
        let width = match self {
            Self { double: true, .. } => 16,
            Self { half: true, .. } => 4,
            _ => 8,
        };
        let bytes = all.saturating_mul(width);
        let complex = Self { real: false, ..self };
        let needed = if self.at_once(last) && others.iter().all(|it| complex.at_once(*it)) {
            0
        } else if self.real && last % 2 == 0 {
            bytes / 2
        } else {
            bytes
        };
        let short = extents.iter().all(|it| *it <= SHORT);
        (needed, !self.half && (short || (others.is_empty() && MEASURED.contains(&last))))
    }
}

/// Why a size is a guess, if it is one.
fn reason(profile: &Profile, measured: bool) -> Option<&'static str> {
    let here = profile.is_like_measured() && profile.has_release("cufft", RELEASE);
    match measured {
        true if here => None,
        true => {
            Some("workspaces of Fourier transforms (cuFFT) are those of release 12.0 on an H200")
        }
        false => Some(
            "workspaces of Fourier transforms (cuFFT) follow those of other lengths or types on an H200",
        ),
    }
}

entry! {
    /// A plan.
    fn cufftCreate(plan: *mut c_int) |state| {
        let handle = state.next_handle();
        // SAFETY: the caller's promise.
        unsafe { put(plan, handle as c_int) }
    }

    /// What the plan needs beside. PyTorch takes it from its own memory each time that it executes the plan.
    fn cufftXtMakePlanMany(
        _plan: c_int,
        rank: c_int,
        n: *mut i64,
        _in_embed: *mut i64,
        _in_stride: i64,
        _in_distance: i64,
        in_type: c_int,
        _out_embed: *mut i64,
        _out_stride: i64,
        _out_distance: i64,
        out_type: c_int,
        batch: i64,
        workspace: *mut usize,
        _type: c_int,
    ) |state| {
        let rank = usize::try_from(rank).unwrap_or(0);
        let extents = if n.is_null() {
            &[][..]
        } else {
            // SAFETY: the caller's promise: as many extents as dimensions.
            unsafe { std::slice::from_raw_parts(n, rank) }
        };
        let (bytes, measured) = Kind::of(in_type, out_type).workspace(extents, batch);
        if let Some(reason) = reason(&state.profile, measured) {
            notes::note(notes::GUESSES_FILE, reason);
        }
        // SAFETY: the caller's promise.
        unsafe { put(workspace, usize::try_from(bytes).unwrap_or(0)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workspaces_are_those_that_were_measured() {
        let [r2c, c2c, z2d, z2z] = [(0, 4), (4, 4), (5, 1), (5, 5)].map(|(a, b)| Kind::of(a, b));
        assert_eq!(r2c.workspace(&[1024], 6464), (0, true));
        assert_eq!(r2c.workspace(&[5000], 64), (5000 * 64 * 4, true));
        assert_eq!(r2c.workspace(&[8192], 3), (0, true));
        assert_eq!(z2d.workspace(&[8192], 3), (8192 * 3 * 8, true));
        assert_eq!(c2c.workspace(&[24000], 2), (0, true));
        assert_eq!(c2c.workspace(&[65536], 64), (65536 * 64 * 8, true));
        assert_eq!(z2z.workspace(&[24000], 1), (24000 * 16, true));
        assert_eq!(r2c.workspace(&[64, 224], 8), (0, true));
        assert_eq!(c2c.workspace(&[1001], 1), (0, false));
        assert!(!r2c.workspace(&[257], 1).1);
        assert_eq!(r2c.workspace(&[], 1), (0, false));
        // Half precision was not measured.
        let [r2c, c2c] = [(2, 6), (6, 6)].map(|(from, to)| Kind::of(from, to));
        assert_eq!((r2c.real, c2c.real), (true, false));
        assert_eq!(r2c.workspace(&[64], 3), (0, false));
        assert_eq!(c2c.workspace(&[65536], 2), (65536 * 2 * 4, false));
    }

    #[test]
    fn other_releases_are_a_guess() {
        let of = |release: &str| Profile {
            name: "NVIDIA H200".to_owned(),
            attributes: [(16, 132), (75, 9), (76, 0)].into(),
            releases: [("cufft".to_owned(), release.to_owned())].into(),
            ..Profile::default()
        };
        assert_eq!(reason(&of("12.0.0.61"), true), None);
        assert!(
            reason(&of("11.3.3.83"), true).is_some() && reason(&of("12.0.0.61"), false).is_some()
        );
        assert!(reason(&Profile::default(), true).is_some());
    }
}
