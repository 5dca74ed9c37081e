//! Kernels: registered, configured, launched, and doing nothing.

use std::cell::RefCell;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::atomic::AtomicUsize;

use tonnage_cuda_codes::Code;

use super::entry;
use crate::profile::attribute;
use crate::state::{State, put};

/// The extents of a grid or a block.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Extents {
    pub(crate) x: c_uint,
    pub(crate) y: c_uint,
    pub(crate) z: c_uint,
}

#[derive(Clone, Copy)]
struct Configuration {
    grid: Extents,
    block: Extents,
    shared: usize,
    stream: u64,
}

/// `cudaFuncAttributes`.
#[repr(C)]
struct FunctionAttributes {
    shared: usize,
    constant: usize,
    local: usize,
    max_threads: c_int,
    registers: c_int,
    ptx: c_int,
    binary: c_int,
    cache_mode: c_int,
    max_dynamic_shared: c_int,
    rest: [c_int; 23],
}

/// Registers that a kernel is told to use: enough for every choice that was seen to depend on it.
const REGISTERS: c_int = 32;

/// Shared memory that every kernel may have.
const DYNAMIC_SHARED: c_int = 49152;

thread_local! {
    /// Configurations of launches under way on this thread.
    static CONFIGURATIONS: RefCell<Vec<Configuration>> = const { RefCell::new(Vec::new()) };
}

/// The handle that every module gets: a place that nobody looks into.
static MODULE: AtomicUsize = AtomicUsize::new(0);

/// A module of kernels is there.
#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "the runtime's name")]
extern "C" fn __cudaRegisterFatBinary(_binary: *const c_void) -> *mut *mut c_void {
    MODULE.as_ptr().cast()
}

/// All of it is there.
#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "the runtime's name")]
extern "C" fn __cudaRegisterFatBinaryEnd(_module: *mut *mut c_void) {}

/// It is gone.
#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "the runtime's name")]
extern "C" fn __cudaUnregisterFatBinary(_module: *mut *mut c_void) {}

/// It is ready.
#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "the runtime's name")]
extern "C" fn __cudaInitModule(_module: *mut *mut c_void) -> c_char {
    1
}

/// A kernel has a name. Further arguments are not looked at.
#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "the runtime's name")]
extern "C" fn __cudaRegisterFunction(_module: *mut *mut c_void) {}

/// A variable has a name. Further arguments are not looked at.
#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "the runtime's name")]
extern "C" fn __cudaRegisterVar(_module: *mut *mut c_void) {}

/// Keeps the configuration of the launch that follows.
#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "the runtime's name")]
extern "C" fn __cudaPushCallConfiguration(
    grid: Extents,
    block: Extents,
    shared: usize,
    stream: u64,
) -> c_uint {
    let configuration = Configuration { grid, block, shared, stream };
    // A thread that is ending launches nothing.
    let kept = CONFIGURATIONS.try_with(|kept| kept.borrow_mut().push(configuration));
    c_uint::from(kept.is_err())
}

entry! {
    /// Gives it back.
    fn __cudaPopCallConfiguration(
        grid: *mut Extents,
        block: *mut Extents,
        shared: *mut usize,
        stream: *mut u64,
    ) |_| {
        let kept = CONFIGURATIONS.try_with(|kept| kept.borrow_mut().pop());
        let kept = kept.ok().flatten().ok_or(Code::INVALID_VALUE)?;
        // SAFETY: the caller's promise.
        unsafe { put(grid, kept.grid) }?;
        // SAFETY: the caller's promise.
        unsafe { put(block, kept.block) }?;
        // SAFETY: the caller's promise.
        unsafe { put(shared, kept.shared) }?;
        // SAFETY: the caller's promise.
        unsafe { put(stream, kept.stream) }
    }

    /// A kernel goes by the address of the function that launches it.
    fn __cudaGetKernel(place: *mut *const c_void, function: *const c_void) |_| {
        // SAFETY: the caller's promise.
        unsafe { put(place, function) }
    }

    /// Variables of kernels lie on the device.
    fn cudaGetSymbolAddress(place: *mut *mut c_void, _symbol: *const c_void) |_| {
        // SAFETY: the caller's promise. Nothing lies there.
        unsafe { put(place, std::ptr::without_provenance_mut(SYMBOLS)) }
    }

    /// What CUB chooses its sizes by: the architecture that a kernel was compiled for.
    fn cudaFuncGetAttributes(place: *mut FunctionAttributes, _function: *const c_void) |state| {
        let architecture = state.profile.architecture();
        let attributes = FunctionAttributes {
            shared: 0,
            constant: 0,
            local: 0,
            max_threads: state.profile.attribute(attribute::MAX_THREADS_PER_BLOCK),
            registers: REGISTERS,
            ptx: architecture,
            binary: architecture,
            cache_mode: 0,
            max_dynamic_shared: DYNAMIC_SHARED,
            rest: [0; 23],
        };
        // SAFETY: the caller's promise.
        unsafe { put(place, attributes) }
    }

    /// Blocks that a multiprocessor has at once.
    fn cudaOccupancyMaxActiveBlocksPerMultiprocessor(
        count: *mut c_int,
        _function: *const c_void,
        threads: c_int,
        _shared: usize,
    ) |state| {
        // SAFETY: the caller's promise.
        unsafe { occupancy(state, count, threads) }
    }

    /// The same.
    fn cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
        count: *mut c_int,
        _function: *const c_void,
        threads: c_int,
        _shared: usize,
        _flags: c_uint,
    ) |state| {
        // SAFETY: the caller's promise.
        unsafe { occupancy(state, count, threads) }
    }
}

/// Where variables of kernels are told to lie: an address of the device that nothing else has.
pub(crate) const SYMBOLS: usize = 0x3000_0000_1000;

/// # Safety
///
/// `count` is null, which is refused, or can be written.
unsafe fn occupancy(state: &State, count: *mut c_int, threads: c_int) -> Result<(), Code> {
    // SAFETY: the caller's promise.
    unsafe { put(count, state.profile.blocks_at_once(threads)) }
}

/// Functions that only set something: their arguments are not looked at.
macro_rules! does_nothing {
    ($($name:ident)*) => {$(
        /// Nothing is set.
        #[unsafe(no_mangle)]
        #[allow(non_snake_case, reason = "the runtime's name")]
        extern "C" fn $name() -> c_int {
            0
        }
    )*};
}

does_nothing! {
    cudaFuncSetAttribute cudaFuncSetCacheConfig cudaProfilerStart cudaProfilerStop
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_comes_back_last_first() {
        let extents = |x| Extents { x, y: 2, z: 3 };
        assert_eq!(__cudaPushCallConfiguration(extents(1), extents(10), 7, 70), 0);
        assert_eq!(__cudaPushCallConfiguration(extents(2), extents(20), 8, 80), 0);
        let (mut grid, mut block, mut shared, mut stream) = (extents(0), extents(0), 0, 0);
        let mut pop = || {
            // SAFETY: all can be written.
            let code = unsafe {
                __cudaPopCallConfiguration(
                    &raw mut grid,
                    &raw mut block,
                    &raw mut shared,
                    &raw mut stream,
                )
            };
            (code, grid.x, block.x, shared, stream)
        };
        assert_eq!(pop(), (0, 2, 20, 8, 80));
        assert_eq!(pop(), (0, 1, 10, 7, 70));
        assert_eq!(pop().0, Code::INVALID_VALUE.0);
    }

    #[test]
    fn structures_have_the_runtimes_sizes() {
        assert_eq!(size_of::<FunctionAttributes>(), 144);
        assert_eq!(size_of::<Extents>(), 12);
    }
}
