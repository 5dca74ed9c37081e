//! Kernels that PyTorch did not launch, and graphs: what writes to the device without anybody here seeing what.
//!
//! A kernel that PyTorch's own libraries launch belongs to an operator, and those are watched (`tonnage_values.py`). Others are
//! counted. Which it is, is told by where the call comes from; arguments are not looked at.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use tonnage_cuda_codes::Code;

use crate::driver::outsiders::is_pytorchs;
use crate::runtime::kernel::Extents;
use crate::state::with_state;

/// Kernels that others launched.
static LAUNCHES: AtomicU64 = AtomicU64::new(0);

/// Graphs that were launched.
static REPLAYS: AtomicU64 = AtomicU64::new(0);

/// Whether such a kernel is part of a graph.
static IN_GRAPH: AtomicBool = AtomicBool::new(false);

/// Calls of PyTorch's own that are kept in mind: it has some thousand places that launch kernels.
const PLACES: usize = 1 << 14;

/// Where such calls come from, each at a place that follows from its address.
static OWN: [AtomicUsize; PLACES] = [const { AtomicUsize::new(0) }; PLACES];

/// A kernel is launched by a call that goes back to this address.
fn launched(from: *const c_void) {
    let known = &OWN[(from.addr() >> 2) % PLACES];
    if known.load(Ordering::Relaxed) == from.addr() {
        return;
    }
    if is_pytorchs(from) {
        known.store(from.addr(), Ordering::Relaxed);
    } else {
        by_others();
    }
}

/// Something may have been written that nobody saw.
pub(crate) fn by_others() {
    LAUNCHES.fetch_add(1, Ordering::Relaxed);
    if is_capturing() {
        IN_GRAPH.store(true, Ordering::Relaxed);
    }
}

/// A graph is launched, with all that is in it.
pub(crate) fn replayed() {
    REPLAYS.fetch_add(1, Ordering::Relaxed);
    if IN_GRAPH.load(Ordering::Relaxed) {
        LAUNCHES.fetch_add(1, Ordering::Relaxed);
    }
}

fn is_capturing() -> bool {
    with_state(|state| state.captures.any()).unwrap_or(false)
}

/// Kernels that others than PyTorch launched so far.
#[unsafe(no_mangle)]
extern "C" fn tonnage_fake_launches() -> u64 {
    LAUNCHES.load(Ordering::Relaxed)
}

/// Graphs that were launched so far.
#[unsafe(no_mangle)]
extern "C" fn tonnage_fake_replays() -> u64 {
    REPLAYS.load(Ordering::Relaxed)
}

/// Whether a graph is being captured, on any stream.
#[unsafe(no_mangle)]
extern "C" fn tonnage_fake_capturing() -> c_int {
    c_int::from(is_capturing())
}

/// The same, on a stream: a node, if that is captured.
extern "C" fn launched_on(from: *const c_void, stream: u64) -> c_int {
    // Without a state nothing is captured.
    let _ = with_state(|state| state.captures.add_node(stream));
    launched(from);
    0
}

/// The same, on the stream of a configuration.
///
/// # Safety
///
/// The configuration is one, or null.
unsafe extern "C" fn launched_as(
    from: *const c_void,
    configuration: *const LaunchConfiguration,
) -> c_int {
    // SAFETY: the caller's promise.
    match unsafe { configuration.as_ref() } {
        Some(configuration) => launched_on(from, configuration.stream),
        None => Code::INVALID_VALUE.0,
    }
}

/// What a launch is told beside its kernel. The driver has fewer bytes for those of shared memory, which nobody here reads; the stream
/// lies where the runtime has it.
#[repr(C)]
struct LaunchConfiguration {
    grid: Extents,
    block: Extents,
    shared: usize,
    stream: u64,
}

/// A function that goes on as another, which is told where the call goes back to, and what else the instructions put into the
/// second register. Nothing is launched.
macro_rules! goes_on {
    ($name:ident($($argument:ident: $type:ty),*), $instructions:literal, $on:path, $elsewhere:expr) => {
        /// Nothing is launched, and who wanted it is looked at.
        #[cfg(target_arch = "x86_64")]
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        #[allow(non_snake_case, reason = "CUDA's name")]
        unsafe extern "C" fn $name($($argument: $type),*) -> c_int {
            // Where the call goes back to lies on top of the stack; it becomes the first argument.
            std::arch::naked_asm!($instructions, "mov rdi, [rsp]", "jmp {}", sym $on)
        }

        /// Nothing is launched; who wanted it is not known here.
        #[cfg(not(target_arch = "x86_64"))]
        #[unsafe(no_mangle)]
        #[allow(non_snake_case, reason = "CUDA's name")]
        unsafe extern "C" fn $name($($argument: $type),*) -> c_int {
            $elsewhere
        }
    };
}

/// Functions of the runtime: kernel, grid and block fill the registers, so that the stream lies on the stack, behind the bytes of
/// shared memory.
macro_rules! of_runtime {
    ($($name:ident)*) => {$(
        goes_on! {
            $name(
                _kernel: *const c_void, _grid: Extents, _block: Extents, _arguments: *mut *mut c_void, _shared: usize, _stream: u64
            ),
            "mov rsi, [rsp + 16]", launched_on, launched_on(std::ptr::null(), _stream)
        }
    )*};
}

of_runtime! { __cudaLaunchKernel cudaLaunchCooperativeKernel cudaLaunchKernel }

goes_on! {
    cudaLaunchKernelExC(_configuration: *const LaunchConfiguration, _kernel: *const c_void, _arguments: *mut *mut c_void),
    "mov rsi, rdi", launched_as, unsafe { launched_as(std::ptr::null(), _configuration) }
}

/// Functions of the driver: the kernel and five of six extents fill the registers, so that the stream lies on the stack, behind the
/// last extent and the bytes of shared memory.
macro_rules! of_driver {
    ($($name:ident($($more:ident: $type:ty)?);)*) => {$(
        goes_on! {
            $name(
                _kernel: *const c_void, _grid_x: c_uint, _grid_y: c_uint, _grid_z: c_uint, _block_x: c_uint, _block_y: c_uint,
                _block_z: c_uint, _shared: c_uint, _stream: u64, _arguments: *mut *mut c_void $(, $more: $type)?
            ),
            "mov rsi, [rsp + 24]", launched_on, launched_on(std::ptr::null(), _stream)
        }
    )*};
}

of_driver! {
    cuLaunchCooperativeKernel();
    cuLaunchKernel(_more: *mut *mut c_void);
}

goes_on! {
    cuLaunchKernelEx(
        _configuration: *const LaunchConfiguration, _kernel: *const c_void, _arguments: *mut *mut c_void, _more: *mut *mut c_void
    ),
    "mov rsi, rdi", launched_as, unsafe { launched_as(std::ptr::null(), _configuration) }
}

/// The driver's function of this name, if it launches.
pub(crate) fn function(name: &[u8]) -> Option<*const c_void> {
    match name {
        b"cuLaunchCooperativeKernel" => Some(cuLaunchCooperativeKernel as *const c_void),
        b"cuLaunchKernel" => Some(cuLaunchKernel as *const c_void),
        b"cuLaunchKernelEx" => Some(cuLaunchKernelEx as *const c_void),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::ptr::{null, null_mut};
    use std::sync::PoisonError;

    use super::*;
    use crate::captures::ALONE;

    #[test]
    fn a_configuration_has_the_runtimes_layout() {
        assert_eq!(std::mem::offset_of!(LaunchConfiguration, stream), 32);
    }

    /// A stream of no other test.
    const STREAM: u64 = 0x1_0000_0051;

    /// What a launch is told of shared memory: no stream.
    const SHARED: u32 = 0x52;

    /// The nodes that what is captured next on the stream comes right behind.
    fn behind() -> Vec<u64> {
        with_state(|state| state.captures.at(STREAM).map(|place| place.behind.to_vec()))
            .flatten()
            .unwrap()
    }

    /// This program is none of PyTorch's libraries. One test, since others would be counted too.
    #[test]
    fn kernels_of_others_are_counted_and_are_nodes_of_their_stream() {
        let before = tonnage_fake_launches();
        let [grid, block] = [1, 4].map(|x| Extents { x, y: x + 1, z: x + 2 });
        let configuration =
            LaunchConfiguration { grid, block, shared: SHARED as usize, stream: STREAM };
        let kernel = std::ptr::without_provenance(0x53);
        let arguments = std::ptr::without_provenance_mut(0x54);
        let more = std::ptr::without_provenance_mut(0x55);
        // SAFETY: nothing is looked at but the stream, here and below.
        let runtimes = |launch: unsafe extern "C" fn(_, _, _, _, _, _) -> c_int| unsafe {
            launch(kernel, grid, block, arguments, SHARED as usize, STREAM)
        };
        let launches: [&dyn Fn() -> c_int; 7] = [
            &|| runtimes(cudaLaunchKernel),
            &|| runtimes(cudaLaunchCooperativeKernel),
            &|| runtimes(__cudaLaunchKernel),
            // SAFETY: as above, of the configuration.
            &|| unsafe { cudaLaunchKernelExC(&raw const configuration, kernel, arguments) },
            // SAFETY: as above.
            &|| unsafe {
                cuLaunchKernel(kernel, 1, 2, 3, 4, 5, 6, SHARED, STREAM, arguments, more)
            },
            &|| {
                // SAFETY: as above.
                unsafe {
                    cuLaunchCooperativeKernel(kernel, 1, 2, 3, 4, 5, 6, SHARED, STREAM, arguments)
                }
            },
            // SAFETY: as above, of the configuration.
            &|| unsafe { cuLaunchKernelEx(&raw const configuration, kernel, arguments, more) },
        ];
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        with_state(|state| state.captures.begin(STREAM)).unwrap();
        for (number, launch) in launches.iter().enumerate() {
            let last = behind();
            assert_eq!(launch(), 0, "launch {number}");
            let now = behind();
            let [node] = now[..] else { panic!("launch {number}: one node, not {now:?}") };
            assert!(!last.contains(&node), "launch {number}: a node of its own");
            let comes_behind = with_state(|state| state.captures.before(node).to_vec()).unwrap();
            assert_eq!(comes_behind, last, "launch {number}");
        }
        with_state(|state| state.captures.end(STREAM)).flatten().unwrap();
        assert_eq!(tonnage_fake_launches() - before, launches.len() as u64);
        assert_eq!(function(b"cuLaunchKernel"), Some(cuLaunchKernel as *const c_void));
        assert_eq!(function(b"cuMemCreate"), None);
        // SAFETY: null is refused.
        let refused = unsafe { cudaLaunchKernelExC(null(), null(), null_mut()) };
        assert_eq!(refused, Code::INVALID_VALUE.0);
        let replays = tonnage_fake_replays();
        replayed();
        assert_eq!(tonnage_fake_replays() - replays, 1);
    }
}
