//! Level 1: the driver's C types, as CUDA 12 and 13 define them.
//!
//! Names are the driver's own, so that its manual can be read beside this file. Only what the
//! table in `driver.rs` needs is here; the sizes at the end are NVIDIA's.

use std::ffi::{c_int, c_uint, c_void};

/// What every call returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub(super) struct CUresult(pub(super) c_int);

impl CUresult {
    pub(super) const SUCCESS: Self = Self(0);
    pub(super) const INVALID_VALUE: Self = Self(1);
    pub(super) const OUT_OF_MEMORY: Self = Self(2);
    pub(super) const NOT_READY: Self = Self(600);
    pub(super) const NOT_SUPPORTED: Self = Self(801);
}

/// A device, by ordinal.
pub(super) type CUdevice = c_int;

/// An address of device memory.
pub(super) type CUdeviceptr = u64;

/// A piece of physical memory.
pub(super) type CUmemGenericAllocationHandle = u64;

macro_rules! handle {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(transparent)]
        pub(super) struct $name(pub(super) *mut c_void);

        impl $name {
            pub(super) const NULL: Self = Self(std::ptr::null_mut());
        }

        // SAFETY: the pointer is a name that only the driver looks behind, and every driver call
        // that takes one may be made from any thread.
        unsafe impl Send for $name {}

        // SAFETY: as above; what is shared is the name, which nothing changes.
        unsafe impl Sync for $name {}
    };
}

handle! {
    /// A context: the driver's state of one process on one device.
    CUcontext
}

handle! {
    /// A queue of work. Null is the legacy default stream.
    CUstream
}

handle! {
    /// A mark in a queue of work.
    CUevent
}

handle! {
    /// Compiled kernels, loaded into a context.
    CUmodule
}

handle! {
    /// A kernel of a module.
    CUfunction
}

handle! {
    /// Work that was captured instead of done.
    CUgraph
}

handle! {
    /// A graph that can be launched.
    CUgraphExec
}

/// Where memory lies.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct CUmemLocation {
    pub(super) kind: c_int,
    pub(super) id: c_int,
}

/// `CU_MEM_LOCATION_TYPE_DEVICE`
pub(super) const LOCATION_DEVICE: c_int = 1;

/// What memory `cuMemCreate` is asked for.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct CUmemAllocationProp {
    pub(super) kind: c_int,
    pub(super) requested_handle_types: c_int,
    pub(super) location: CUmemLocation,
    pub(super) win32_handle_meta_data: *mut c_void,
    pub(super) alloc_flags: CUmemAllocationFlags,
}

/// The last member of [`CUmemAllocationProp`].
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(super) struct CUmemAllocationFlags {
    pub(super) compression_type: u8,
    pub(super) gpu_direct_rdma_capable: u8,
    pub(super) usage: u16,
    pub(super) reserved: [u8; 4],
}

/// `CU_MEM_ALLOCATION_TYPE_PINNED`
pub(super) const ALLOCATION_PINNED: c_int = 1;

/// `CU_MEM_ALLOC_GRANULARITY_MINIMUM`
pub(super) const GRANULARITY_MINIMUM: c_int = 0;

/// Who may do what with a mapping.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct CUmemAccessDesc {
    pub(super) location: CUmemLocation,
    pub(super) flags: c_int,
}

/// `CU_MEM_ACCESS_FLAGS_PROT_READWRITE`
pub(super) const ACCESS_READ_WRITE: c_int = 3;

/// `CU_STREAM_NON_BLOCKING`: the stream does not wait for the legacy default stream.
pub(super) const STREAM_NON_BLOCKING: c_uint = 1;

/// `CU_EVENT_DEFAULT`: the event knows when it was reached.
pub(super) const EVENT_DEFAULT: c_uint = 0;

/// `CU_EVENT_DISABLE_TIMING`
pub(super) const EVENT_DISABLE_TIMING: c_uint = 2;

/// `CU_STREAM_CAPTURE_MODE_RELAXED`: calls that are no work of a stream, such as those that obtain memory, stay
/// allowed during a capture.
pub(super) const CAPTURE_RELAXED: c_int = 2;

/// `CU_STREAM_CAPTURE_STATUS_NONE`
pub(super) const CAPTURE_NONE: c_int = 0;

/// What `cuModuleLoadDataEx` is told besides the image.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(super) struct CUjitOption(pub(super) c_int);

impl CUjitOption {
    pub(super) const ERROR_LOG_BUFFER: Self = Self(5);
    pub(super) const ERROR_LOG_BUFFER_SIZE_BYTES: Self = Self(6);
}

/// What a function can be asked, and told.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(super) struct CUfunctionAttribute(pub(super) c_int);

impl CUfunctionAttribute {
    pub(super) const MAX_THREADS_PER_BLOCK: Self = Self(0);
    pub(super) const SHARED_SIZE_BYTES: Self = Self(1);
    pub(super) const LOCAL_SIZE_BYTES: Self = Self(3);
    pub(super) const NUM_REGS: Self = Self(4);
    pub(super) const MAX_DYNAMIC_SHARED_SIZE_BYTES: Self = Self(8);
}

/// What `cuDeviceGetAttribute` can be asked.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(super) struct CUdeviceAttribute(pub(super) c_int);

impl CUdeviceAttribute {
    pub(super) const MAX_THREADS_PER_BLOCK: Self = Self(1);
    pub(super) const MAX_SHARED_MEMORY_PER_BLOCK: Self = Self(8);
    pub(super) const WARP_SIZE: Self = Self(10);
    pub(super) const MAX_REGISTERS_PER_BLOCK: Self = Self(12);
    pub(super) const CLOCK_RATE: Self = Self(13);
    pub(super) const MULTIPROCESSOR_COUNT: Self = Self(16);
    pub(super) const MEMORY_CLOCK_RATE: Self = Self(36);
    pub(super) const GLOBAL_MEMORY_BUS_WIDTH: Self = Self(37);
    pub(super) const L2_CACHE_SIZE: Self = Self(38);
    pub(super) const MAX_THREADS_PER_MULTIPROCESSOR: Self = Self(39);
    pub(super) const PCI_BUS_ID: Self = Self(33);
    pub(super) const PCI_DEVICE_ID: Self = Self(34);
    pub(super) const PCI_DOMAIN_ID: Self = Self(50);
    pub(super) const COMPUTE_CAPABILITY_MAJOR: Self = Self(75);
    pub(super) const COMPUTE_CAPABILITY_MINOR: Self = Self(76);
    pub(super) const MAX_SHARED_MEMORY_PER_MULTIPROCESSOR: Self = Self(81);
    pub(super) const MAX_REGISTERS_PER_MULTIPROCESSOR: Self = Self(82);
    pub(super) const MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: Self = Self(97);
    pub(super) const VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED: Self = Self(102);
}

const _: () = {
    assert!(size_of::<CUmemLocation>() == 8);
    assert!(size_of::<CUmemAllocationFlags>() == 8);
    assert!(size_of::<CUmemAllocationProp>() == 32);
    assert!(size_of::<CUmemAccessDesc>() == 12);
};
