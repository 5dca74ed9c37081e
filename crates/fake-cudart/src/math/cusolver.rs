//! cuSOLVER: handles, and workspaces.
//!
//! Cholesky, LU, QR, LDL and eigenvectors of symmetric matrices have rules that give what cuSOLVER 12.0.4 answered on an
//! H200 for 59 sizes from 1 to 8,192. What else needs is taken to be what LAPACK documents for the same factorisation,
//! which is a guess and noted, as those rules are for other devices and other releases.

use std::ffi::{c_int, c_void};

use super::{entry, handles};
use crate::notes;
use crate::profile::Profile;
use crate::state::{State, put};

handles! {
    cusolverDnCreate cusolverDnCreateGesvdjInfo cusolverDnCreateParams cusolverDnCreateSyevjInfo cusolverSpCreate
}

/// What parts of a workspace begin at multiples of.
const ALIGNMENT: i64 = 32;

/// What the functions for 64-bit sizes need beside the others.
const BESIDE: i64 = 128;

fn aligned(size: i64) -> i64 {
    blocks(size).saturating_mul(ALIGNMENT)
}

/// Blocks of rows or columns that are worked on at once.
fn blocks(size: i64) -> i64 {
    let size = size.max(0);
    size / ALIGNMENT + i64::from(size % ALIGNMENT != 0)
}

/// The upper half of a symmetric matrix.
const UPPER: c_int = 1;

/// Bytes of Cholesky: a flag for each block. The upper half goes another way.
fn cholesky(half: c_int, n: i64, kind: c_int) -> i64 {
    if half == UPPER {
        return BESIDE.saturating_mul(1 + width(kind) / 4);
    }
    BESIDE.saturating_add(aligned(blocks(n).saturating_mul(blocks(n)).saturating_mul(4)))
}

/// Bytes of LU: a flag for each block, and of tall matrices what a panel needs, which is `panel` for up to 2,048 rows and
/// for more. From 1,537 to 2,500 rows little was measured.
fn lu(m: i64, n: i64, panel: [i64; 2]) -> i64 {
    let (rows, columns) = (blocks(m), blocks(n));
    let least = rows.min(columns);
    let flags = aligned(rows.saturating_mul(columns).saturating_mul(4));
    let small = 256 * least.max(1).cast_unsigned().next_power_of_two().min(16).cast_signed();
    let panel = match m {
        ..=1536 => 0,
        1537..=2048 => panel[0] << 10,
        _ => panel[1] << 10,
    };
    flags.max(small).max(panel).saturating_add((least + 1).saturating_mul(256))
}

/// Numbers of QR.
fn qr(n: i64) -> i64 {
    n.max(256).saturating_add(512).saturating_mul(1024)
}

/// Numbers of the orthogonal matrix of a QR of `k` reflections.
fn orthogonal(m: i64, n: i64, k: i64) -> i64 {
    let at_once = k.min(128);
    let by_blocks = aligned(at_once.saturating_mul(m))
        .saturating_add(aligned(at_once.saturating_mul(n).saturating_mul(2)))
        .saturating_add(16640);
    if k > 64 {
        return by_blocks;
    }
    aligned(m.saturating_mul(k)).saturating_add(33024).max(by_blocks)
}

/// Numbers of what multiplies by such a matrix from the left: within 32 of what was measured where there are no more columns
/// than rows.
fn multiplied(m: i64, n: i64, k: i64) -> i64 {
    m.saturating_add(n.saturating_mul(2))
        .saturating_mul(256)
        .saturating_add(aligned(m.saturating_add(k).saturating_mul(k)))
        .saturating_add(aligned(n))
        .saturating_add(65792)
}

/// Numbers of LDL, at least so many.
fn indefinite(n: i64, least: i64) -> i64 {
    let at_once: i64 = if n < 4096 { 64 } else { 128 };
    at_once.saturating_mul(n).saturating_add(64).max(least)
}

/// Numbers of eigenvectors of symmetric matrices, by divide and conquer: exact where `n` is a multiple of 32, and off by 32
/// numbers at most elsewhere.
fn symmetric(n: i64) -> i64 {
    let square = n.saturating_mul(n);
    let small = square.saturating_mul(2).saturating_add(n.saturating_mul(766));
    let small = small.saturating_add(ALIGNMENT / 2) / ALIGNMENT * ALIGNMENT;
    let small = small
        .saturating_add(square)
        .saturating_add(n.saturating_mul(2))
        .saturating_add(if n > ALIGNMENT { 65603 } else { 65571 });
    let large =
        square.saturating_mul(4).saturating_add(n.saturating_mul(127)).saturating_add(32963);
    small.max(large)
}

/// Numbers of eigenvectors of symmetric matrices, by Jacobi's rotations; from 4,096 on it is another way.
fn rotations(n: i64) -> i64 {
    let square = n.saturating_mul(n);
    if n >= 4096 {
        return square.saturating_mul(2);
    }
    let h = blocks(n);
    square + n + 4 * h * h + 1025 * h + 1024
}

/// The same of many matrices.
fn many_rotations(n: i64, batch: i64) -> i64 {
    let h = blocks(n);
    let each = n.saturating_mul(n.saturating_add(2)).saturating_add(1024 * h + 1);
    batch
        .saturating_mul(each)
        .saturating_add(h.saturating_mul(h).saturating_mul(4))
        .saturating_add(1024)
}

/// Bytes of eigenvectors of many symmetric matrices, to 4 KiB.
fn many_symmetric(n: i64, kind: c_int, batch: i64) -> i64 {
    let each = symmetric(n).saturating_mul(width(kind)).saturating_sub(256);
    batch.saturating_mul(each).saturating_add(384)
}

/// Numbers of singular vectors by rotations, all of them or as many as there are values; to 64 of what was measured.
fn singular_rotations(economical: bool, m: i64, n: i64) -> i64 {
    let (least, most) = (m.min(n), m.max(n));
    let h = blocks(least);
    let square = least.saturating_mul(least);
    let of_square = aligned(square.saturating_mul(2))
        .saturating_add(2080 * h + 1024)
        .saturating_add(aligned(h.saturating_mul(h).saturating_mul(4).saturating_add(h)));
    if m == n {
        return of_square;
    }
    let all = if economical { 0 } else { aligned((most - least).saturating_mul(513)) };
    let tall = aligned(most.saturating_mul(least))
        .saturating_add(most.saturating_mul(256))
        .saturating_add(aligned(square))
        .saturating_add(least.saturating_mul(512) + 2 * aligned(least) + 65792)
        .saturating_add(all);
    let copy = if m < n { aligned(m.saturating_mul(n)) } else { 0 };
    tall.max(qr(least).saturating_add(32 + aligned(least)))
        .max(of_square.saturating_add(square))
        .saturating_add(copy)
}

/// Numbers of singular vectors of many small matrices.
const SMALL_SINGULAR: i64 = 992;

/// Numbers of eigenvectors of any matrix: near to what was measured.
fn general(n: i64) -> i64 {
    let small = n.saturating_mul(344).saturating_add(33_152);
    n.saturating_mul(n).saturating_add(n.saturating_mul(4)).saturating_add(128).max(small)
}

/// Numbers of singular values by the QR iteration.
fn by_iteration(m: i64, n: i64) -> i64 {
    let (least, most) = (m.min(n), m.max(n));
    least.saturating_mul(3).saturating_add(most).max(least.saturating_mul(5))
}

/// Numbers of singular vectors by divide and conquer.
fn singular(m: i64, n: i64) -> i64 {
    let least = m.min(n);
    least.saturating_mul(least).saturating_mul(4).saturating_add(least.saturating_mul(7))
}

/// Bytes of a number of this `cudaDataType`.
fn width(kind: c_int) -> i64 {
    match kind {
        // Half precision.
        2 | 14 => 2,
        0 => 4,
        // Double precision, complex.
        5 => 16,
        _ => 8,
    }
}

/// The release that was measured.
const MEASURED: &str = "12.0.4";

/// What a size follows from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    /// What was measured.
    Measured,
    /// What was measured of others near to it.
    Near,
    /// What LAPACK documents.
    Lapack,
}

fn known(size: i64) -> (i64, Source) {
    (size, Source::Measured)
}

fn guessed(size: i64) -> (i64, Source) {
    (size, Source::Lapack)
}

/// Rows of tall matrices whose factors' sizes are hardly known.
const HARDLY_KNOWN: std::ops::RangeInclusive<c_int> = 1537..=2500;

/// Numbers of LU in so many bytes each, by what a panel needs.
fn factors(m: c_int, n: c_int, panel: [i64; 2], width: i64) -> (i64, Source) {
    let source = if HARDLY_KNOWN.contains(&m) { Source::Near } else { Source::Measured };
    (lu(m.into(), n.into(), panel) / width, source)
}

/// Numbers of what multiplies by the orthogonal matrix of a QR.
fn product(m: c_int, n: c_int, k: c_int) -> (i64, Source) {
    let source = if m >= n { Source::Measured } else { Source::Near };
    (multiplied(m.into(), n.into(), k.into()), source)
}

/// Why a size is a guess, if it is one: of what was measured, on another device or with another release.
fn reason(profile: &Profile, source: Source) -> Option<&'static str> {
    let here = profile.is_like_measured() && profile.has_release("cusolver", MEASURED);
    match source {
        Source::Lapack => Some(
            "some workspaces of linear algebra (cuSOLVER) are taken to be as large as LAPACK's",
        ),
        Source::Near => Some(
            "some workspaces of linear algebra (cuSOLVER) follow those of other sizes: such were hardly measured",
        ),
        Source::Measured if !here => {
            Some("workspaces of linear algebra (cuSOLVER) are those of release 12.0.4 on an H200")
        }
        Source::Measured => None,
    }
}

fn note_guess(state: &State, source: Source) {
    if let Some(reason) = reason(&state.profile, source) {
        notes::note(notes::GUESSES_FILE, reason);
    }
}

/// Writes a size in numbers.
///
/// # Safety
///
/// `place` is null, which is refused, or can be written.
unsafe fn put_numbers(
    state: &State,
    place: *mut c_int,
    (count, source): (i64, Source),
) -> Result<(), tonnage_cuda_codes::Code> {
    note_guess(state, source);
    // SAFETY: the caller's promise.
    unsafe { put(place, c_int::try_from(count.max(0)).unwrap_or(c_int::MAX)) }
}

/// Writes a size in bytes of the device, and none of the host.
///
/// # Safety
///
/// `device` and `host` are null, which is refused, or can be written.
unsafe fn put_bytes(
    state: &State,
    device: *mut usize,
    host: *mut usize,
    (bytes, source): (i64, Source),
) -> Result<(), tonnage_cuda_codes::Code> {
    note_guess(state, source);
    let bytes = bytes.max(0);
    // SAFETY: the caller's promise.
    unsafe { put(device, bytes as usize) }?;
    // SAFETY: the caller's promise.
    unsafe { put(host, 0) }
}

/// Functions for one type of numbers, under the names that they have for each.
macro_rules! of_each_type {
    ($(
        [$($name:ident)*] ($($arg:ident: $kind:ty),*) -> $place:ident: $count:expr, then ($($rest:ident: $rest_kind:ty),*);
    )*) => {$(
        of_each_type! { @names [$($name)*] ($($arg: $kind),*) $place, $count, ($($rest: $rest_kind),*) }
    )*};
    (@names [] $args:tt $place:ident, $count:expr, $rest:tt) => {};
    (@names [$name:ident $($more:ident)*] ($($arg:ident: $kind:ty),*) $place:ident, $count:expr, ($($rest:ident: $rest_kind:ty),*)) => {
        entry! {
            /// How many numbers it needs beside.
            fn $name(_handle: u64, $($arg: $kind,)* $place: *mut c_int, $($rest: $rest_kind,)*) |state| {
                // SAFETY: the caller's promise.
                unsafe { put_numbers(state, $place, $count) }
            }
        }
        of_each_type! { @names [$($more)*] ($($arg: $kind),*) $place, $count, ($($rest: $rest_kind),*) }
    };
}

type Address = *const c_void;

of_each_type! {
    [cusolverDnSgetrf_bufferSize]
    (m: c_int, n: c_int, _a: Address, _lda: c_int)
    -> size: factors(m, n, [35, 38], 4), then ();

    [cusolverDnDgetrf_bufferSize]
    (m: c_int, n: c_int, _a: Address, _lda: c_int)
    -> size: factors(m, n, [68, 72], 8), then ();

    [cusolverDnCgetrf_bufferSize]
    (m: c_int, n: c_int, _a: Address, _lda: c_int)
    -> size: factors(m, n, [68, 72], 8), then ();

    [cusolverDnZgetrf_bufferSize]
    (m: c_int, n: c_int, _a: Address, _lda: c_int)
    -> size: factors(m, n, [134, 140], 16), then ();

    [cusolverDnSpotrf_bufferSize]
    (uplo: c_int, n: c_int, _a: Address, _lda: c_int)
    -> size: known(cholesky(uplo, n.into(), 0) / 4), then ();

    [cusolverDnDpotrf_bufferSize]
    (uplo: c_int, n: c_int, _a: Address, _lda: c_int)
    -> size: known(cholesky(uplo, n.into(), 1) / 8), then ();

    [cusolverDnCpotrf_bufferSize]
    (uplo: c_int, n: c_int, _a: Address, _lda: c_int)
    -> size: known(cholesky(uplo, n.into(), 4) / 8), then ();

    [cusolverDnZpotrf_bufferSize]
    (uplo: c_int, n: c_int, _a: Address, _lda: c_int)
    -> size: known(cholesky(uplo, n.into(), 5) / 16), then ();

    [cusolverDnSsytrf_bufferSize]
    (n: c_int, _a: Address, _lda: c_int)
    -> size: known(indefinite(n.into(), 24_608)), then ();

    [cusolverDnDsytrf_bufferSize]
    (n: c_int, _a: Address, _lda: c_int)
    -> size: known(indefinite(n.into(), 13_328)), then ();

    [cusolverDnCsytrf_bufferSize]
    (n: c_int, _a: Address, _lda: c_int)
    -> size: known(indefinite(n.into(), 13_328)), then ();

    [cusolverDnZsytrf_bufferSize]
    (n: c_int, _a: Address, _lda: c_int)
    -> size: known(indefinite(n.into(), 11_016)), then ();

    [cusolverDnSgeqrf_bufferSize cusolverDnDgeqrf_bufferSize cusolverDnCgeqrf_bufferSize cusolverDnZgeqrf_bufferSize]
    (_m: c_int, n: c_int, _a: Address, _lda: c_int)
    -> size: known(qr(n.into())), then ();

    [cusolverDnSorgqr_bufferSize cusolverDnDorgqr_bufferSize cusolverDnCungqr_bufferSize cusolverDnZungqr_bufferSize]
    (m: c_int, n: c_int, k: c_int, _a: Address, _lda: c_int, _tau: Address)
    -> size: known(orthogonal(m.into(), n.into(), k.into())), then ();

    [cusolverDnSormqr_bufferSize cusolverDnDormqr_bufferSize cusolverDnCunmqr_bufferSize cusolverDnZunmqr_bufferSize]
    (_side: c_int, _trans: c_int, m: c_int, n: c_int, k: c_int, _a: Address, _lda: c_int, _tau: Address, _c: Address, _ldc: c_int)
    -> size: product(m, n, k), then ();

    [cusolverDnSsyevd_bufferSize cusolverDnDsyevd_bufferSize cusolverDnCheevd_bufferSize cusolverDnZheevd_bufferSize]
    (_job: c_int, _uplo: c_int, n: c_int, _a: Address, _lda: c_int, _w: Address)
    -> size: known(symmetric(n.into())), then ();

    [cusolverDnSsyevj_bufferSize cusolverDnDsyevj_bufferSize cusolverDnCheevj_bufferSize cusolverDnZheevj_bufferSize]
    (_job: c_int, _uplo: c_int, n: c_int, _a: Address, _lda: c_int, _w: Address)
    -> size: known(rotations(n.into())), then (_parameters: u64);

    [cusolverDnSsyevjBatched_bufferSize cusolverDnDsyevjBatched_bufferSize cusolverDnCheevjBatched_bufferSize cusolverDnZheevjBatched_bufferSize]
    (_job: c_int, _uplo: c_int, n: c_int, _a: Address, _lda: c_int, _w: Address)
    -> size: known(many_rotations(n.into(), batch.into())), then (_parameters: u64, batch: c_int);

    [cusolverDnSgesvd_bufferSize cusolverDnDgesvd_bufferSize cusolverDnCgesvd_bufferSize cusolverDnZgesvd_bufferSize]
    (m: c_int, n: c_int)
    -> size: guessed(by_iteration(m.into(), n.into())), then ();

    [cusolverDnSgesvdj_bufferSize cusolverDnDgesvdj_bufferSize cusolverDnCgesvdj_bufferSize cusolverDnZgesvdj_bufferSize]
    (_job: c_int, econ: c_int, m: c_int, n: c_int, _a: Address, _lda: c_int, _s: Address, _u: Address, _ldu: c_int, _v: Address, _ldv: c_int)
    -> size: known(singular_rotations(econ != 0, m.into(), n.into())), then (_parameters: u64);

    [cusolverDnSgesvdjBatched_bufferSize cusolverDnDgesvdjBatched_bufferSize cusolverDnCgesvdjBatched_bufferSize cusolverDnZgesvdjBatched_bufferSize]
    (_job: c_int, _m: c_int, _n: c_int, _a: Address, _lda: c_int, _s: Address, _u: Address, _ldu: c_int, _v: Address, _ldv: c_int)
    -> size: known(SMALL_SINGULAR), then (_parameters: u64, _batch: c_int);

    [cusolverDnSgesvdaStridedBatched_bufferSize cusolverDnDgesvdaStridedBatched_bufferSize cusolverDnCgesvdaStridedBatched_bufferSize cusolverDnZgesvdaStridedBatched_bufferSize]
    (_job: c_int, _rank: c_int, m: c_int, n: c_int, _a: Address, _lda: c_int, _stride_a: i64, _s: Address, _stride_s: i64,
     _u: Address, _ldu: c_int, _stride_u: i64, _v: Address, _ldv: c_int, _stride_v: i64)
    -> size: guessed(singular(m.into(), n.into()).saturating_mul(batch.into())), then (batch: c_int);
}

entry! {
    /// Cholesky.
    fn cusolverDnXpotrf_bufferSize(
        _handle: u64, _parameters: u64, uplo: c_int, n: i64, _type_a: c_int, _a: Address, _lda: i64, compute: c_int,
        device: *mut usize, host: *mut usize,
    ) |state| {
        // SAFETY: the caller's promise.
        unsafe { put_bytes(state, device, host, known(cholesky(uplo, n, compute))) }
    }

    /// QR.
    fn cusolverDnXgeqrf_bufferSize(
        _handle: u64, _parameters: u64, _m: i64, n: i64, _type_a: c_int, _a: Address, _lda: i64, _type_tau: c_int,
        _tau: Address, compute: c_int, device: *mut usize, host: *mut usize,
    ) |state| {
        let bytes = BESIDE.saturating_add(qr(n).saturating_mul(width(compute)));
        // SAFETY: the caller's promise.
        unsafe { put_bytes(state, device, host, known(bytes)) }
    }

    /// Eigenvectors of a symmetric matrix.
    fn cusolverDnXsyevd_bufferSize(
        _handle: u64, _parameters: u64, _job: c_int, _uplo: c_int, n: i64, _type_a: c_int, _a: Address, _lda: i64,
        _type_w: c_int, _w: Address, compute: c_int, device: *mut usize, host: *mut usize,
    ) |state| {
        let bytes = BESIDE.saturating_add(symmetric(n).saturating_mul(width(compute)));
        // SAFETY: the caller's promise.
        unsafe { put_bytes(state, device, host, known(bytes)) }
    }

    /// Eigenvectors of many symmetric matrices.
    fn cusolverDnXsyevBatched_bufferSize(
        _handle: u64, _parameters: u64, _job: c_int, _uplo: c_int, n: i64, _type_a: c_int, _a: Address, _lda: i64,
        _type_w: c_int, _w: Address, compute: c_int, device: *mut usize, host: *mut usize, batch: i64,
    ) |state| {
        // SAFETY: the caller's promise.
        unsafe { put_bytes(state, device, host, known(many_symmetric(n, compute, batch))) }
    }

    /// Eigenvectors of any matrix.
    fn cusolverDnXgeev_bufferSize(
        _handle: u64, _parameters: u64, _left: c_int, _right: c_int, n: i64, _type_a: c_int, _a: Address, _lda: i64,
        _type_w: c_int, _w: Address, _type_vl: c_int, _vl: Address, _ldvl: i64, _type_vr: c_int, _vr: Address, _ldvr: i64,
        compute: c_int, device: *mut usize, host: *mut usize,
    ) |state| {
        let bytes = general(n).saturating_mul(width(compute));
        // SAFETY: the caller's promise.
        unsafe { put_bytes(state, device, host, guessed(bytes)) }
    }

    /// A system that was factorised: nothing.
    fn cusolverDnXsytrs_bufferSize(
        _handle: u64, _uplo: c_int, _n: i64, _right_hands: i64, _type_a: c_int, _a: Address, _lda: i64, _pivots: Address,
        _type_b: c_int, _b: Address, _ldb: i64, device: *mut usize, host: *mut usize,
    ) |state| {
        // SAFETY: the caller's promise.
        unsafe { put_bytes(state, device, host, known(0)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What an H200 answered.
    #[test]
    fn sizes_are_those_that_were_measured() {
        assert_eq!([1, 65, 1025, 8192].map(|n| cholesky(0, n, 0)), [160, 192, 4512, 262_272]);
        assert_eq!([0, 1, 4, 5].map(|kind| cholesky(UPPER, 300, kind)), [256, 384, 384, 640]);
        let lu = |m, n| lu(m, n, [35, 38]) / 4;
        let small = [lu(1, 1), lu(100, 5000), lu(700, 6000), lu(1025, 1025)];
        assert_eq!(small, [192, 952, 5608, 3272]);
        let large = [lu(1536, 768), lu(2000, 1), lu(3000, 3000), lu(8192, 8192)];
        assert_eq!(large, [2752, 9088, 15808, 81984]);
        assert_eq!([qr(15), qr(1500), qr(8192)], [786_432, 2_060_288, 8_912_896]);
        assert_eq!([orthogonal(64, 32, 32), orthogonal(24, 600, 24)], [35072, 46_016]);
        assert_eq!(orthogonal(1025, 512, 512), 278_912);
        let [one, two, three] =
            [(384, 24608), (300, 24608), (5000, 0)].map(|(n, least)| indefinite(n, least));
        assert_eq!((one, two, three), (24640, 24608, 640_064));
        assert_eq!([33, 256, 1024, 8192].map(symmetric), [94214, 458_819, 4_357_315, 269_508_803]);
        assert_eq!([1, 33, 1000].map(rotations), [2055, 4212, 1_038_920]);
        assert_eq!([many_rotations(1, 33), many_rotations(512, 8)], [34952, 2_238_472]);
        assert_eq!(many_symmetric(32, 0, 8), 2_981_344);
        let economical = |m, n| singular_rotations(true, m, n);
        assert_eq!([economical(64, 64), economical(4000, 1)], [13408, 1_094_400]);
        assert_eq!([economical(600, 300), economical(1, 512)], [831_840, 787_008]);
        assert_eq!(economical(1023, 1000), 3_071_712);
        assert_eq!(singular_rotations(false, 4096, 2048), 14_749_952 + 1_050_624);
        assert_eq!([multiplied(300, 300, 300), multiplied(4000, 8, 300)], [476_512, 2_383_936]);
    }

    #[test]
    fn sizes_of_other_releases_and_devices_and_of_few_measurements_are_guesses() {
        let of = |release: &str, multiprocessors| Profile {
            name: "NVIDIA H200".to_owned(),
            attributes: [(16, multiprocessors), (75, 9), (76, 0)].into(),
            releases: [("cusolver".to_owned(), release.to_owned())].into(),
            ..Profile::default()
        };
        let here = of("12.0.4.66", 132);
        assert_eq!(reason(&here, factors(1536, 8, [35, 38], 4).1), None);
        let other = Profile { name: "NVIDIA H100 80GB HBM3".to_owned(), ..of("12.0.4.66", 132) };
        for elsewhere in [of("12.0.4.66", 108), of("11.7.3.90", 132), of("12.0.40", 132), other] {
            assert!(reason(&elsewhere, Source::Measured).is_some(), "{elsewhere:?}");
        }
        assert_eq!(
            [1537, 2500, 2501].map(|m| factors(m, 8, [35, 38], 4).1),
            [Source::Near, Source::Near, Source::Measured]
        );
        assert!(reason(&here, Source::Near).is_some() && reason(&here, Source::Lapack).is_some());
    }

    #[test]
    fn sizes_are_written_in_numbers_and_in_bytes() {
        let (mut numbers, mut device, mut host) = (-1, 9_usize, 9_usize);
        let null = std::ptr::null();
        // SAFETY: what is written lives here.
        let status =
            unsafe { cusolverDnZpotrf_bufferSize(1, 0, 8192, null, 8192, &raw mut numbers) };
        assert_eq!((status, numbers), (0, 16392));
        let (device_place, host_place) = (&raw mut device, &raw mut host);
        // SAFETY: what is written lives here.
        let status = unsafe {
            cusolverDnXgeqrf_bufferSize(
                1,
                1,
                50,
                10,
                1,
                null,
                50,
                1,
                null,
                1,
                device_place,
                host_place,
            )
        };
        assert_eq!((status, device, host), (0, 768 * 1024 * 8 + 128, 0));
        // SAFETY: null is refused.
        let refused = unsafe { cusolverDnDgesvd_bufferSize(1, 3, 4, std::ptr::null_mut()) };
        assert_ne!(refused, 0);
    }

    #[test]
    fn absurd_sizes_stay_sizes() {
        let absurd = i64::MAX;
        let sizes = [
            symmetric(absurd),
            general(absurd),
            qr(absurd),
            multiplied(absurd, absurd, absurd),
            orthogonal(absurd, absurd, absurd),
            singular(absurd, absurd),
            rotations(absurd),
            cholesky(0, absurd, 0),
        ];
        assert_eq!(sizes, [absurd; 8]);
    }
}
