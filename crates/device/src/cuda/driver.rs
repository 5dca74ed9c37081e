//! Level 1: the driver library, opened at run time, as a table of its functions.
//!
//! Nothing is linked against CUDA: the library is looked for when a device is opened, and a machine
//! without it gets an error that says so. Each symbol is resolved once, under the name that the
//! driver exports (`_v2` where the headers rename the call).

use std::error::Error;
use std::ffi::{CStr, OsStr, c_char, c_int, c_uint, c_void};
use std::path::Path;
use std::sync::Arc;

use libloading::Library;

use super::sys::*;
use crate::DeviceError;

/// The names of NVIDIA's library, in the order they are tried. The first is the one that every
/// driver installs; the second belongs to development packages.
const NAMES: [&str; 2] = ["libcuda.so.1", "libcuda.so"];

macro_rules! table {
    (
        newer {
            $($new:ident = $new_symbol:literal ($($new_arg:ident: $new_kind:ty),* $(,)?);)*
        }
        $($name:ident = $symbol:literal ($($arg:ident: $kind:ty),* $(,)?);)*
    ) => {
        /// The driver's functions.
        pub(super) struct Table {
            $(pub(super) $name: unsafe extern "C" fn($($arg: $kind),*) -> CUresult,)*
            $(pub(super) $new: Option<unsafe extern "C" fn($($new_arg: $new_kind),*) -> CUresult>,)*
        }

        impl Table {
            fn resolve(library: &Library, from: &str) -> Result<Self, DeviceError> {
                Ok(Self {
                    $($name: {
                        // SAFETY: the symbol is looked up under the name of the driver's function
                        // and given that function's type, as the driver's manual states it.
                        let found = unsafe {
                            library.get::<unsafe extern "C" fn($($arg: $kind),*) -> CUresult>(
                                $symbol,
                            )
                        };
                        *found.map_err(|error| missing_symbol($symbol, from, &error))?
                    },)*
                    $($new: {
                        // SAFETY: as above.
                        let found = unsafe {
                            library.get::<unsafe extern "C" fn($($new_arg: $new_kind),*) -> CUresult>(
                                $new_symbol,
                            )
                        };
                        found.ok().map(|found| *found)
                    },)*
                })
            }
        }
    };
}

table! {
    // What drivers older than CUDA 12.4 do without.
    newer {
        function_parameter = c"cuFuncGetParamInfo"
            (function: CUfunction, index: usize, offset: *mut usize, size: *mut usize);
    }

    init = c"cuInit" (flags: c_uint);
    driver_version = c"cuDriverGetVersion" (version: *mut c_int);
    error_name = c"cuGetErrorName" (code: CUresult, text: *mut *const c_char);
    error_string = c"cuGetErrorString" (code: CUresult, text: *mut *const c_char);

    device_count = c"cuDeviceGetCount" (count: *mut c_int);
    device_get = c"cuDeviceGet" (device: *mut CUdevice, ordinal: c_int);
    device_name = c"cuDeviceGetName" (name: *mut c_char, length: c_int, device: CUdevice);
    device_total_memory = c"cuDeviceTotalMem_v2" (bytes: *mut usize, device: CUdevice);
    device_attribute = c"cuDeviceGetAttribute"
        (value: *mut c_int, attribute: CUdeviceAttribute, device: CUdevice);

    primary_context_retain = c"cuDevicePrimaryCtxRetain"
        (context: *mut CUcontext, device: CUdevice);
    primary_context_release = c"cuDevicePrimaryCtxRelease_v2" (device: CUdevice);
    context_get_current = c"cuCtxGetCurrent" (context: *mut CUcontext);
    context_push_current = c"cuCtxPushCurrent_v2" (context: CUcontext);
    context_pop_current = c"cuCtxPopCurrent_v2" (context: *mut CUcontext);
    context_synchronize = c"cuCtxSynchronize" ();

    memory_info = c"cuMemGetInfo_v2" (free: *mut usize, total: *mut usize);
    memory_alloc = c"cuMemAlloc_v2" (address: *mut CUdeviceptr, size: usize);
    memory_free = c"cuMemFree_v2" (address: CUdeviceptr);
    memory_alloc_async = c"cuMemAllocAsync"
        (address: *mut CUdeviceptr, size: usize, stream: CUstream);
    memory_free_async = c"cuMemFreeAsync" (address: CUdeviceptr, stream: CUstream);

    address_reserve = c"cuMemAddressReserve"
        (address: *mut CUdeviceptr, size: usize, alignment: usize, wish: CUdeviceptr, flags: u64);
    address_free = c"cuMemAddressFree" (address: CUdeviceptr, size: usize);
    memory_create = c"cuMemCreate"
        (handle: *mut CUmemGenericAllocationHandle, size: usize,
         properties: *const CUmemAllocationProp, flags: u64);
    memory_release = c"cuMemRelease" (handle: CUmemGenericAllocationHandle);
    memory_map = c"cuMemMap"
        (address: CUdeviceptr, size: usize, offset: usize,
         handle: CUmemGenericAllocationHandle, flags: u64);
    memory_unmap = c"cuMemUnmap" (address: CUdeviceptr, size: usize);
    memory_set_access = c"cuMemSetAccess"
        (address: CUdeviceptr, size: usize, access: *const CUmemAccessDesc, count: usize);
    allocation_granularity = c"cuMemGetAllocationGranularity"
        (granularity: *mut usize, properties: *const CUmemAllocationProp, option: c_int);

    stream_create = c"cuStreamCreate" (stream: *mut CUstream, flags: c_uint);
    stream_destroy = c"cuStreamDestroy_v2" (stream: CUstream);
    stream_synchronize = c"cuStreamSynchronize" (stream: CUstream);
    stream_query = c"cuStreamQuery" (stream: CUstream);
    stream_wait_event = c"cuStreamWaitEvent" (stream: CUstream, event: CUevent, flags: c_uint);

    event_create = c"cuEventCreate" (event: *mut CUevent, flags: c_uint);
    event_destroy = c"cuEventDestroy_v2" (event: CUevent);
    event_record = c"cuEventRecord" (event: CUevent, stream: CUstream);
    event_query = c"cuEventQuery" (event: CUevent);
    event_synchronize = c"cuEventSynchronize" (event: CUevent);
    event_elapsed = c"cuEventElapsedTime" (milliseconds: *mut f32, from: CUevent, to: CUevent);

    copy_to_device = c"cuMemcpyHtoD_v2" (to: CUdeviceptr, from: *const c_void, size: usize);
    copy_to_host = c"cuMemcpyDtoH_v2" (to: *mut c_void, from: CUdeviceptr, size: usize);
    copy_to_device_async = c"cuMemcpyHtoDAsync_v2"
        (to: CUdeviceptr, from: *const c_void, size: usize, stream: CUstream);
    copy_to_host_async = c"cuMemcpyDtoHAsync_v2"
        (to: *mut c_void, from: CUdeviceptr, size: usize, stream: CUstream);
    copy_within_async = c"cuMemcpyDtoDAsync_v2"
        (to: CUdeviceptr, from: CUdeviceptr, size: usize, stream: CUstream);
    copy_peer_async = c"cuMemcpyPeerAsync"
        (to: CUdeviceptr, to_context: CUcontext, from: CUdeviceptr, from_context: CUcontext,
         size: usize, stream: CUstream);
    fill_async = c"cuMemsetD8Async"
        (to: CUdeviceptr, value: u8, size: usize, stream: CUstream);
    fill_words_async = c"cuMemsetD32Async"
        (to: CUdeviceptr, value: c_uint, count: usize, stream: CUstream);

    module_load = c"cuModuleLoadDataEx"
        (module: *mut CUmodule, image: *const c_void, count: c_uint, options: *mut CUjitOption,
         values: *mut *mut c_void);
    module_unload = c"cuModuleUnload" (module: CUmodule);
    module_function = c"cuModuleGetFunction"
        (function: *mut CUfunction, module: CUmodule, name: *const c_char);
    function_get = c"cuFuncGetAttribute"
        (value: *mut c_int, attribute: CUfunctionAttribute, function: CUfunction);
    function_set = c"cuFuncSetAttribute"
        (function: CUfunction, attribute: CUfunctionAttribute, value: c_int);
    occupancy = c"cuOccupancyMaxActiveBlocksPerMultiprocessor"
        (blocks: *mut c_int, function: CUfunction, threads: c_int, shared: usize);
    launch = c"cuLaunchKernel"
        (function: CUfunction, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint,
         block_y: c_uint, block_z: c_uint, shared: c_uint, stream: CUstream,
         arguments: *mut *mut c_void, extra: *mut *mut c_void);

    capture_begin = c"cuStreamBeginCapture_v2" (stream: CUstream, mode: c_int);
    capture_end = c"cuStreamEndCapture" (stream: CUstream, graph: *mut CUgraph);
    capture_status = c"cuStreamIsCapturing" (stream: CUstream, status: *mut c_int);
    graph_instantiate = c"cuGraphInstantiateWithFlags"
        (exec: *mut CUgraphExec, graph: CUgraph, flags: u64);
    graph_nodes = c"cuGraphGetNodes"
        (graph: CUgraph, nodes: *mut *mut c_void, count: *mut usize);
    graph_launch = c"cuGraphLaunch" (exec: CUgraphExec, stream: CUstream);
    graph_exec_destroy = c"cuGraphExecDestroy" (exec: CUgraphExec);
    graph_destroy = c"cuGraphDestroy" (graph: CUgraph);

    host_alloc = c"cuMemHostAlloc" (memory: *mut *mut c_void, size: usize, flags: c_uint);
    host_free = c"cuMemFreeHost" (memory: *mut c_void);
}

/// A CUDA driver, loaded and initialised. Clones share it.
#[derive(Clone)]
pub struct Driver {
    table: Arc<Table>,
}

impl std::fmt::Debug for Driver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Driver").finish_non_exhaustive()
    }
}

impl Driver {
    /// Opens NVIDIA's driver library and initialises it.
    ///
    /// # Errors
    ///
    /// If there is no driver, if it lacks a function that is needed (CUDA 11.4 has them all), or
    /// if it does not start, as on a machine without an NVIDIA device.
    pub fn load() -> Result<Self, DeviceError> {
        let mut first = None;
        for name in NAMES {
            match open(name.as_ref()) {
                Ok(library) => return Self::start(library, name),
                Err(error) => _ = first.get_or_insert(error),
            }
        }
        Err(no_driver(NAMES[0], first.as_ref()))
    }

    /// Opens the driver library at `path` and initialises it.
    ///
    /// # Errors
    ///
    /// As for [`load`](Self::load).
    ///
    /// # Safety
    ///
    /// The file, if it is a library, is a CUDA driver or keeps to its interface: its initialisers
    /// run, and its functions are called by name.
    pub unsafe fn load_from(path: impl AsRef<Path>) -> Result<Self, DeviceError> {
        let path = path.as_ref();
        let name = path.display().to_string();
        match open(path.as_os_str()) {
            Ok(library) => Self::start(library, &name),
            Err(error) => Err(no_driver(&name, Some(&error))),
        }
    }

    fn start(library: Library, name: &str) -> Result<Self, DeviceError> {
        let table = Table::resolve(&library, name)?;
        // The library stays for the life of the process: the table points into it, and a driver
        // that has started threads of its own cannot be unloaded.
        std::mem::forget(library);
        let driver = Self { table: Arc::new(table) };
        driver.init()?;
        Ok(driver)
    }

    pub(super) fn table(&self) -> &Table {
        &self.table
    }

    /// The driver's name and words for a code.
    pub(super) fn text(&self, code: CUresult) -> String {
        let mut name = std::ptr::null();
        // SAFETY: `name` is a place for one pointer; the call needs no context and frees nothing.
        let named = unsafe { (self.table.error_name)(code, &mut name) };
        let mut words = std::ptr::null();
        // SAFETY: as above, for `words`.
        let worded = unsafe { (self.table.error_string)(code, &mut words) };
        match (static_text(named, name), static_text(worded, words)) {
            (Some(name), Some(words)) => format!("{words} ({name})"),
            (Some(text), None) | (None, Some(text)) => text,
            (None, None) => "the driver has no words for this code".into(),
        }
    }
}

/// What `cuGetErrorName` or `cuGetErrorString` answered.
fn static_text(result: CUresult, text: *const c_char) -> Option<String> {
    if result != CUresult::SUCCESS || text.is_null() {
        return None;
    }
    // SAFETY: after a success the driver has put a pointer to one of its constant strings there:
    // it ends in a zero byte and is never freed, since the library stays loaded.
    let text = unsafe { CStr::from_ptr(text) };
    Some(text.to_string_lossy().into_owned())
}

fn open(name: &OsStr) -> Result<Library, libloading::Error> {
    // SAFETY: the library is NVIDIA's driver by its name, or one that the caller of `load_from`
    // vouches for: its initialisers keep to what a driver's do.
    unsafe { Library::new(name) }
}

fn no_driver(name: &str, error: Option<&libloading::Error>) -> DeviceError {
    let why = error.map_or_else(|| "no reason given".into(), reason);
    DeviceError::Unavailable(format!(
        "no CUDA driver was found: {name} cannot be opened ({why}). Install NVIDIA's driver, or \
         use the host or dry device"
    ))
}

/// The loader's own words, which the error keeps behind its own.
fn reason(error: &libloading::Error) -> String {
    error.source().map_or_else(|| error.to_string(), ToString::to_string)
}

fn missing_symbol(symbol: &CStr, library: &str, error: &libloading::Error) -> DeviceError {
    DeviceError::Unavailable(format!(
        "{library} has no {}: it is not a CUDA driver, or one older than CUDA 11.4 ({})",
        symbol.to_string_lossy(),
        reason(error)
    ))
}
