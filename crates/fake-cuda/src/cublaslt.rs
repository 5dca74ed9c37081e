//! cuBLASLt's functions on host memory: matrices columns first, as its manual has them.
//!
//! Descriptors are checked as the library checks them (sizes of attributes); a product is computed when it is queued, in `f64`, and
//! rounded to its type. What it leaves out: algorithms, of which there is one, without workspace; scales and types of 8 bits.

use std::ffi::{c_char, c_int, c_void};

use half::{bf16, f16};

const SUCCESS: c_int = 0;
const INVALID_VALUE: c_int = 7;
const NOT_SUPPORTED: c_int = 15;

/// Bits of an epilogue.
const RELU: u32 = 2;
const BIAS: u32 = 4;
const DRELU: u32 = 8;
const BGRAD: u32 = 16;
const GELU: u32 = 32;
const DGELU: u32 = 64;
const AUX: u32 = 128;
const BGRADA: u32 = 256;
const BGRADB: u32 = 512;

/// How a matrix lies in memory.
#[derive(Clone, Copy, Debug)]
struct Layout {
    kind: c_int,
    rows: u64,
    columns: u64,
    leading: i64,
    batch: i32,
    stride: i64,
}

/// What a product is like.
#[derive(Clone, Copy, Debug)]
struct Product {
    scale: c_int,
    transposed: [i32; 2],
    epilogue: u32,
    vector: u64,
    aside: u64,
    aside_leading: i64,
    aside_stride: i64,
}

/// `cublasLtMatmulHeuristicResult_t`
#[repr(C)]
struct Heuristic {
    algorithm: [u64; 8],
    workspace: usize,
    state: c_int,
    waves: f32,
    reserved: [c_int; 4],
}

/// A number, complex or not.
type Value = (f64, f64);

/// Bytes of a number of a type: of one half of a complex one, and how many halves it has.
fn width(kind: c_int) -> Option<(usize, usize)> {
    match kind {
        2 | 14 => Some((2, 1)),
        0 => Some((4, 1)),
        1 => Some((8, 1)),
        4 => Some((4, 2)),
        5 => Some((8, 2)),
        _ => None,
    }
}

/// # Safety
///
/// A number of that type lies there.
unsafe fn half(kind: c_int, place: *const u8) -> f64 {
    match kind {
        // SAFETY: here and below: the caller's promise.
        2 => f16::from_bits(unsafe { place.cast::<u16>().read_unaligned() }).to_f64(),
        // SAFETY: as above.
        14 => bf16::from_bits(unsafe { place.cast::<u16>().read_unaligned() }).to_f64(),
        // SAFETY: as above.
        0 | 4 => f64::from(unsafe { place.cast::<f32>().read_unaligned() }),
        // SAFETY: as above.
        _ => unsafe { place.cast::<f64>().read_unaligned() },
    }
}

/// # Safety
///
/// There is room for a number of that type.
unsafe fn put_half(kind: c_int, place: *mut u8, value: f64) {
    match kind {
        // SAFETY: here and below: the caller's promise.
        2 => unsafe { place.cast::<u16>().write_unaligned(f16::from_f64(value).to_bits()) },
        // SAFETY: as above.
        14 => unsafe { place.cast::<u16>().write_unaligned(bf16::from_f64(value).to_bits()) },
        // SAFETY: as above.
        0 | 4 => unsafe { place.cast::<f32>().write_unaligned(value as f32) },
        // SAFETY: as above.
        _ => unsafe { place.cast::<f64>().write_unaligned(value) },
    }
}

/// # Safety
///
/// `index` numbers of that type lie before it, and one there.
unsafe fn read(kind: c_int, base: u64, index: i64) -> Value {
    let (bytes, halves) = width(kind).unwrap_or((4, 1));
    let place = pointer(base).wrapping_offset(index as isize * (bytes * halves) as isize);
    // SAFETY: the caller's promise.
    let real = unsafe { half(kind, place) };
    // SAFETY: as above.
    let other = if halves == 2 { unsafe { half(kind, place.wrapping_add(bytes)) } } else { 0.0 };
    (real, other)
}

/// # Safety
///
/// As for [`read`], to be written.
unsafe fn write(kind: c_int, base: u64, index: i64, value: Value) {
    let (bytes, halves) = width(kind).unwrap_or((4, 1));
    let place = pointer(base).wrapping_offset(index as isize * (bytes * halves) as isize);
    // SAFETY: the caller's promise.
    unsafe { put_half(kind, place, value.0) };
    if halves == 2 {
        // SAFETY: as above.
        unsafe { put_half(kind, place.wrapping_add(bytes), value.1) };
    }
}

fn pointer(address: u64) -> *mut u8 {
    std::ptr::with_exposed_provenance_mut(address as usize)
}

fn times(a: Value, b: Value) -> Value {
    (a.0 * b.0 - a.1 * b.1, a.0 * b.1 + a.1 * b.0)
}

fn plus(a: Value, b: Value) -> Value {
    (a.0 + b.0, a.1 + b.1)
}

/// GELU by its formula with `tanh`, and its derivative.
fn gelu(x: f64) -> (f64, f64) {
    let factor = (2.0 / std::f64::consts::PI).sqrt();
    let t = (factor * (x + 0.044_715 * x.powi(3))).tanh();
    let slope = factor * (1.0 + 3.0 * 0.044_715 * x * x);
    (0.5 * x * (1.0 + t), 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * slope)
}

impl Layout {
    /// The place of a number of one matrix of the batch.
    fn at(&self, batch: i64, row: u64, column: u64) -> i64 {
        batch * self.stride + column as i64 * self.leading + row as i64
    }
}

/// Where the matrices lie, and the factors.
struct Places {
    a: (Layout, u64),
    b: (Layout, u64),
    c: (Layout, u64),
    d: (Layout, u64),
    alpha: Value,
    beta: Value,
}

impl Product {
    /// Computes D, what lies beside it, and sums.
    ///
    /// # Safety
    ///
    /// Memory is as large as the layouts say.
    unsafe fn compute(&self, it: &Places) {
        let (m, n) = (it.d.0.rows, it.d.0.columns);
        let k = if self.transposed[0] != 0 { it.a.0.rows } else { it.a.0.columns };
        let left = |z, i, p| {
            let (row, column) = if self.transposed[0] != 0 { (p, i) } else { (i, p) };
            // SAFETY: the caller's promise.
            unsafe { read(it.a.0.kind, it.a.1, it.a.0.at(z, row, column)) }
        };
        let right = |z, p, j| {
            let (row, column) = if self.transposed[1] != 0 { (j, p) } else { (p, j) };
            // SAFETY: the caller's promise.
            unsafe { read(it.b.0.kind, it.b.1, it.b.0.at(z, row, column)) }
        };
        let kind = it.d.0.kind;
        let mut sums = vec![(0.0, 0.0); m.max(n) as usize];
        for z in 0..i64::from(it.d.0.batch) {
            for (i, j) in (0..m).flat_map(|i| (0..n).map(move |j| (i, j))) {
                let product = (0..k)
                    .fold((0.0, 0.0), |sum, p| plus(sum, times(left(z, i, p), right(z, p, j))));
                let mut value = times(it.alpha, product);
                if it.beta != (0.0, 0.0) {
                    // SAFETY: the caller's promise.
                    let old = unsafe { read(it.c.0.kind, it.c.1, it.c.0.at(z, i, j)) };
                    value = plus(value, times(it.beta, old));
                }
                // SAFETY: the caller's promise.
                let value = unsafe { self.finish(value, kind, z, (i, j)) };
                if self.epilogue & BGRAD != 0 {
                    sums[i as usize] = plus(sums[i as usize], value);
                }
                // SAFETY: the caller's promise.
                unsafe { write(kind, it.d.1, it.d.0.at(z, i, j), value) };
            }
        }
        let count = match self.epilogue {
            BGRADA => {
                (0..m).for_each(|i| {
                    sums[i as usize] = (0..k).fold((0.0, 0.0), |sum, p| plus(sum, left(0, i, p)))
                });
                m
            }
            BGRADB => {
                (0..n).for_each(|j| {
                    sums[j as usize] = (0..k).fold((0.0, 0.0), |sum, p| plus(sum, right(0, p, j)))
                });
                n
            }
            other if other & BGRAD != 0 => m,
            _ => 0,
        };
        for index in 0..count {
            // SAFETY: the caller's promise.
            unsafe { write(kind, self.vector, index as i64, sums[index as usize]) };
        }
    }

    /// What comes after a product.
    ///
    /// # Safety
    ///
    /// As for [`compute`](Self::compute).
    unsafe fn finish(&self, mut value: Value, kind: c_int, z: i64, (i, j): (u64, u64)) -> Value {
        let beside = z * self.aside_stride + j as i64 * self.aside_leading + i as i64;
        if self.epilogue & BIAS != 0 {
            // SAFETY: the caller's promise.
            value = plus(value, unsafe { read(kind, self.vector, i as i64) });
        }
        let mask = pointer(self.aside).wrapping_offset(beside as isize / 8);
        let bit = 1u8 << (beside % 8);
        if self.epilogue & RELU != 0 {
            if self.epilogue & AUX != 0 {
                // SAFETY: the caller's promise.
                let byte = unsafe { mask.read() };
                let byte = if value.0 > 0.0 { byte | bit } else { byte & !bit };
                // SAFETY: as above.
                unsafe { mask.write(byte) };
            }
            value.0 = value.0.max(0.0);
        }
        if self.epilogue & GELU != 0 {
            if self.epilogue & AUX != 0 {
                // SAFETY: the caller's promise.
                unsafe { write(kind, self.aside, beside, value) };
            }
            value.0 = gelu(value.0).0;
        }
        // SAFETY: the caller's promise.
        if self.epilogue & DRELU != 0 && unsafe { mask.read() } & bit == 0 {
            value.0 = 0.0;
        }
        if self.epilogue & DGELU != 0 {
            // SAFETY: the caller's promise.
            value.0 *= gelu(unsafe { read(kind, self.aside, beside) }.0).1;
        }
        value
    }
}

/// Writes an exported function that takes and gives what the library's does.
macro_rules! entry {
    ($(#[$doc:meta])* fn $name:ident($($arg:ident: $kind:ty),* $(,)?) -> $answer:ty $body:block) => {
        $(#[$doc])*
        ///
        /// # Safety
        ///
        /// As for the library's function of this name: pointers are good for what it reads or writes there, and descriptors
        /// are alive.
        #[unsafe(no_mangle)]
        #[allow(non_snake_case, reason = "the library's name")]
        #[allow(clippy::too_many_arguments, reason = "the library's")]
        unsafe extern "C" fn $name($($arg: $kind),*) -> $answer $body
    };
}

/// Gives a new object away.
///
/// # Safety
///
/// `place` can be written.
unsafe fn give<T>(place: *mut *mut T, value: T) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { place.write(Box::into_raw(Box::new(value))) };
    SUCCESS
}

/// Takes an object back.
///
/// # Safety
///
/// It is one that [`give`] gave, not taken back yet.
unsafe fn take<T>(object: *mut T) -> c_int {
    // SAFETY: the caller's promise.
    drop(unsafe { Box::from_raw(object) });
    SUCCESS
}

/// A value of an attribute, if it has its size.
///
/// # Safety
///
/// `value` has `size` bytes, of a `T` if it is as large.
unsafe fn value<T: Copy>(value: *const c_void, size: usize) -> Result<T, c_int> {
    if value.is_null() || size != size_of::<T>() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: the caller's promise.
    Ok(unsafe { value.cast::<T>().read_unaligned() })
}

fn answer(result: Result<(), c_int>) -> c_int {
    result.map_or_else(|code| code, |()| SUCCESS)
}

entry! {
    /// The version: 13.0.0.
    fn cublasLtGetVersion() -> usize {
        130_000
    }
}

entry! {
    /// The name of a status.
    fn cublasLtGetStatusName(status: c_int) -> *const c_char {
        match status {
            SUCCESS => c"CUBLAS_STATUS_SUCCESS".as_ptr(),
            INVALID_VALUE => c"CUBLAS_STATUS_INVALID_VALUE".as_ptr(),
            NOT_SUPPORTED => c"CUBLAS_STATUS_NOT_SUPPORTED".as_ptr(),
            _ => std::ptr::null(),
        }
    }
}

entry! {
    /// A handle, which means nothing.
    fn cublasLtCreate(handle: *mut *mut u64) -> c_int {
        // SAFETY: the caller's promise.
        unsafe { give(handle, 0) }
    }
}

entry! {
    /// Ends a handle.
    fn cublasLtDestroy(handle: *mut u64) -> c_int {
        // SAFETY: the caller's promise.
        unsafe { take(handle) }
    }
}

entry! {
    /// A layout.
    fn cublasLtMatrixLayoutCreate(
        layout: *mut *mut Layout, kind: c_int, rows: u64, columns: u64, leading: i64,
    ) -> c_int {
        if width(kind).is_none() {
            return NOT_SUPPORTED;
        }
        // SAFETY: the caller's promise.
        unsafe { give(layout, Layout { kind, rows, columns, leading, batch: 1, stride: 0 }) }
    }
}

entry! {
    /// Batches of a layout.
    fn cublasLtMatrixLayoutSetAttribute(
        layout: *mut Layout, attribute: c_int, from: *const c_void, size: usize,
    ) -> c_int {
        // SAFETY: the caller's promise.
        let layout = unsafe { &mut *layout };
        answer(match attribute {
            // SAFETY: here and below: the caller's promise.
            5 => unsafe { value(from, size) }.map(|it| layout.batch = it),
            // SAFETY: as above.
            6 => unsafe { value(from, size) }.map(|it| layout.stride = it),
            _ => Err(INVALID_VALUE),
        })
    }
}

entry! {
    /// Ends a layout.
    fn cublasLtMatrixLayoutDestroy(layout: *mut Layout) -> c_int {
        // SAFETY: the caller's promise.
        unsafe { take(layout) }
    }
}

entry! {
    /// A description of a product.
    fn cublasLtMatmulDescCreate(descriptor: *mut *mut Product, _compute: c_int, scale: c_int) -> c_int {
        let product = Product {
            scale, transposed: [0; 2], epilogue: 1, vector: 0, aside: 0, aside_leading: 0, aside_stride: 0,
        };
        // SAFETY: the caller's promise.
        unsafe { give(descriptor, product) }
    }
}

entry! {
    /// What a product is like.
    fn cublasLtMatmulDescSetAttribute(
        descriptor: *mut Product, attribute: c_int, from: *const c_void, size: usize,
    ) -> c_int {
        // SAFETY: the caller's promise.
        let it = unsafe { &mut *descriptor };
        answer(match attribute {
            // SAFETY: here and below: the caller's promise.
            3 => unsafe { value(from, size) }.map(|value| it.transposed[0] = value),
            // SAFETY: as above.
            4 => unsafe { value(from, size) }.map(|value| it.transposed[1] = value),
            // SAFETY: as above.
            7 => unsafe { value(from, size) }.map(|value| it.epilogue = value),
            // SAFETY: as above.
            8 => unsafe { value(from, size) }.map(|value| it.vector = value),
            // SAFETY: as above.
            11 => unsafe { value(from, size) }.map(|value| it.aside = value),
            // SAFETY: as above.
            12 => unsafe { value(from, size) }.map(|value| it.aside_leading = value),
            // SAFETY: as above.
            13 => unsafe { value(from, size) }.map(|value| it.aside_stride = value),
            // SAFETY: as above. The bias has D's type.
            26 => unsafe { value::<i32>(from, size) }.map(drop),
            _ => Err(INVALID_VALUE),
        })
    }
}

entry! {
    /// Ends a description.
    fn cublasLtMatmulDescDestroy(descriptor: *mut Product) -> c_int {
        // SAFETY: the caller's promise.
        unsafe { take(descriptor) }
    }
}

entry! {
    /// What is allowed to an algorithm: the workspace.
    fn cublasLtMatmulPreferenceCreate(preference: *mut *mut u64) -> c_int {
        // SAFETY: the caller's promise.
        unsafe { give(preference, 0) }
    }
}

entry! {
    /// Sizes of values are looked at, not the values.
    fn cublasLtMatmulPreferenceSetAttribute(
        _preference: *mut u64, attribute: c_int, from: *const c_void, size: usize,
    ) -> c_int {
        answer(match attribute {
            // SAFETY: here and below: the caller's promise.
            1 => unsafe { value::<u64>(from, size) }.map(drop),
            // SAFETY: as above.
            3 | 5..=8 => unsafe { value::<u32>(from, size) }.map(drop),
            _ => Err(INVALID_VALUE),
        })
    }
}

entry! {
    /// Ends it.
    fn cublasLtMatmulPreferenceDestroy(preference: *mut u64) -> c_int {
        // SAFETY: the caller's promise.
        unsafe { take(preference) }
    }
}

entry! {
    /// The one algorithm, without workspace, if the shapes fit each other.
    fn cublasLtMatmulAlgoGetHeuristic(
        _handle: *mut u64, descriptor: *const Product, a: *const Layout, b: *const Layout, c: *const Layout,
        d: *const Layout, _preference: *const u64, wanted: c_int, results: *mut Heuristic, count: *mut c_int,
    ) -> c_int {
        // SAFETY: the caller's promise.
        let [a, b, c, d] = [a, b, c, d].map(|it| unsafe { *it });
        // SAFETY: the caller's promise.
        let product = unsafe { *descriptor };
        let turned = |layout: Layout, is: i32| {
            if is != 0 { (layout.columns, layout.rows) } else { (layout.rows, layout.columns) }
        };
        let ((m, k), (k_too, n)) = (turned(a, product.transposed[0]), turned(b, product.transposed[1]));
        let fit = k == k_too && (d.rows, d.columns) == (m, n) && (c.rows, c.columns) == (m, n);
        if !fit || wanted < 1 || [a, b, c].iter().any(|it| it.batch != d.batch) {
            return INVALID_VALUE;
        }
        let result =
            Heuristic { algorithm: [1; 8], workspace: 0, state: SUCCESS, waves: 1.0, reserved: [0; 4] };
        // SAFETY: the caller's promise: there is room for as many as are wanted.
        unsafe { results.write(result) };
        // SAFETY: the caller's promise.
        unsafe { count.write(1) };
        SUCCESS
    }
}

entry! {
    /// A product, now.
    fn cublasLtMatmul(
        _handle: *mut u64, descriptor: *const Product, alpha: *const c_void, a: u64, a_layout: *const Layout,
        b: u64, b_layout: *const Layout, beta: *const c_void, c: u64, c_layout: *const Layout, d: u64,
        d_layout: *const Layout, _algorithm: *const c_void, _workspace: u64, _size: usize, _stream: u64,
    ) -> c_int {
        // SAFETY: the caller's promise.
        let product = unsafe { *descriptor };
        // SAFETY: the caller's promise.
        let [la, lb, lc, ld] = [a_layout, b_layout, c_layout, d_layout].map(|it| unsafe { *it });
        // SAFETY: the caller's promise: factors of the type in which is scaled.
        let factor = |from: *const c_void| unsafe { read(product.scale, from.expose_provenance() as u64, 0) };
        let (alpha, beta) = (factor(alpha), factor(beta));
        let places = Places { a: (la, a), b: (lb, b), c: (lc, c), d: (ld, d), alpha, beta };
        // SAFETY: the caller's promise.
        unsafe { product.compute(&places) };
        SUCCESS
    }
}
