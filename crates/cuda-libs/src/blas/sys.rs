//! cuBLASLt's C types and functions, as versions 12 and 13 define them.
//!
//! Names are the library's own where its manual is to be read beside this file. Enumerations are numbers of 32 bits.

use std::ffi::{CStr, c_char, c_int, c_void};

use crate::table::table;
use crate::{Error, Result};

/// What every call returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub(super) struct Status(pub(super) c_int);

impl Status {
    pub(super) const SUCCESS: Self = Self(0);
    pub(super) const NOT_SUPPORTED: Self = Self(15);
}

macro_rules! handle {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(transparent)]
        pub(super) struct $name(pub(super) *mut c_void);

        impl $name {
            pub(super) const NULL: Self = Self(std::ptr::null_mut());
        }

        // SAFETY: a name that only the library looks behind; it may be used from any thread, one at a time.
        unsafe impl Send for $name {}
    };
}

handle! {
    /// The library on one device.
    Handle
}

// SAFETY: the library may be called with one handle from many threads at once, as its manual says.
unsafe impl Sync for Handle {}

handle! {
    /// What a product is like.
    ProductDescriptor
}

handle! {
    /// How a matrix lies in memory.
    Layout
}

// SAFETY: layouts are read alone once they are made.
unsafe impl Sync for Layout {}

handle! {
    /// What is allowed to an algorithm.
    Preference
}

/// `cublasLtMatmulAlgo_t`
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(super) struct Algorithm {
    data: [u64; 8],
}

/// `cublasLtMatmulHeuristicResult_t`
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Heuristic {
    pub(super) algorithm: Algorithm,
    pub(super) workspace: usize,
    pub(super) state: Status,
    pub(super) waves: f32,
    reserved: [c_int; 4],
}

impl Heuristic {
    pub(super) const NONE: Self = Self {
        algorithm: Algorithm { data: [0; 8] },
        workspace: 0,
        state: Status::NOT_SUPPORTED,
        waves: 0.0,
        reserved: [0; 4],
    };
}

const _: () = {
    assert!(size_of::<Algorithm>() == 64);
    assert!(size_of::<Heuristic>() == 96);
};

/// `cudaDataType_t`
pub(super) mod data {
    pub(in super::super) const R_32F: i32 = 0;
    pub(in super::super) const R_64F: i32 = 1;
    pub(in super::super) const R_16F: i32 = 2;
    pub(in super::super) const C_32F: i32 = 4;
    pub(in super::super) const C_64F: i32 = 5;
    pub(in super::super) const R_16BF: i32 = 14;
}

/// `cublasComputeType_t`
pub(super) mod compute {
    pub(in super::super) const F32: i32 = 68;
    pub(in super::super) const F64: i32 = 70;
    pub(in super::super) const F32_FAST_TF32: i32 = 77;
}

/// `cublasLtMatmulDescAttributes_t`
pub(super) mod product {
    pub(in super::super) const TRANSPOSE_A: i32 = 3;
    pub(in super::super) const TRANSPOSE_B: i32 = 4;
    pub(in super::super) const EPILOGUE: i32 = 7;
    pub(in super::super) const BIAS_POINTER: i32 = 8;
    pub(in super::super) const EPILOGUE_AUX_POINTER: i32 = 11;
    pub(in super::super) const EPILOGUE_AUX_LD: i32 = 12;
    pub(in super::super) const EPILOGUE_AUX_BATCH_STRIDE: i32 = 13;
    pub(in super::super) const BIAS_DATA_TYPE: i32 = 26;
}

/// `cublasLtMatrixLayoutAttribute_t`
pub(super) mod layout {
    pub(in super::super) const BATCH_COUNT: i32 = 5;
    pub(in super::super) const STRIDED_BATCH_OFFSET: i32 = 6;
}

/// `cublasLtMatmulPreferenceAttributes_t`
pub(super) mod preference {
    pub(in super::super) const MAX_WORKSPACE_BYTES: i32 = 1;
    pub(in super::super) const REDUCTION_SCHEME_MASK: i32 = 3;
    pub(in super::super) const MIN_ALIGNMENT_A_BYTES: i32 = 5;
    pub(in super::super) const MIN_ALIGNMENT_B_BYTES: i32 = 6;
    pub(in super::super) const MIN_ALIGNMENT_C_BYTES: i32 = 7;
    pub(in super::super) const MIN_ALIGNMENT_D_BYTES: i32 = 8;
}

/// `cublasLtEpilogue_t`
pub(super) mod epilogue {
    pub(in super::super) const DEFAULT: u32 = 1;
    pub(in super::super) const RELU: u32 = 2;
    pub(in super::super) const BIAS: u32 = 4;
    pub(in super::super) const DRELU: u32 = 8 | AUX;
    pub(in super::super) const BGRAD: u32 = 16;
    pub(in super::super) const GELU: u32 = 32;
    pub(in super::super) const DGELU: u32 = 64 | AUX;
    pub(in super::super) const AUX: u32 = 128;
    pub(in super::super) const BGRADA: u32 = 256;
    pub(in super::super) const BGRADB: u32 = 512;
}

/// `CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE`: parts of a sum are added in the type in which they were computed.
pub(super) const REDUCE_IN_COMPUTE_TYPE: u32 = 2;

table! {
    version = "cublasLtGetVersion" () -> usize;
    status_name = "cublasLtGetStatusName" (status: Status) -> *const c_char;
    create = "cublasLtCreate" (handle: *mut Handle) -> Status;
    destroy = "cublasLtDestroy" (handle: Handle) -> Status;

    layout_create = "cublasLtMatrixLayoutCreate"
        (layout: *mut Layout, kind: c_int, rows: u64, columns: u64, leading: i64) -> Status;
    layout_set = "cublasLtMatrixLayoutSetAttribute"
        (layout: Layout, attribute: c_int, value: *const c_void, size: usize) -> Status;
    layout_destroy = "cublasLtMatrixLayoutDestroy" (layout: Layout) -> Status;

    product_create = "cublasLtMatmulDescCreate"
        (descriptor: *mut ProductDescriptor, compute: c_int, scale: c_int) -> Status;
    product_set = "cublasLtMatmulDescSetAttribute"
        (descriptor: ProductDescriptor, attribute: c_int, value: *const c_void, size: usize)
        -> Status;
    product_destroy = "cublasLtMatmulDescDestroy" (descriptor: ProductDescriptor) -> Status;

    preference_create = "cublasLtMatmulPreferenceCreate" (preference: *mut Preference) -> Status;
    preference_set = "cublasLtMatmulPreferenceSetAttribute"
        (preference: Preference, attribute: c_int, value: *const c_void, size: usize) -> Status;
    preference_destroy = "cublasLtMatmulPreferenceDestroy" (preference: Preference) -> Status;

    heuristic = "cublasLtMatmulAlgoGetHeuristic"
        (handle: Handle, product: ProductDescriptor, a: Layout, b: Layout, c: Layout, d: Layout,
         preference: Preference, wanted: c_int, results: *mut Heuristic, count: *mut c_int)
        -> Status;
    multiply = "cublasLtMatmul"
        (handle: Handle, product: ProductDescriptor, alpha: *const c_void, a: *const c_void,
         a_layout: Layout, b: *const c_void, b_layout: Layout, beta: *const c_void,
         c: *const c_void, c_layout: Layout, d: *mut c_void, d_layout: Layout,
         algorithm: *const Algorithm, workspace: *mut c_void, size: usize, stream: *mut c_void)
        -> Status;
}

impl Table {
    /// A result that means success or failure, of a call for `what`.
    pub(super) fn check(
        &self,
        call: &'static str,
        status: Status,
        what: &dyn std::fmt::Display,
    ) -> Result<()> {
        if status == Status::SUCCESS {
            return Ok(());
        }
        // SAFETY: the library answers every number with a constant text.
        let name = unsafe { (self.status_name)(status) };
        let status = if name.is_null() {
            status.0.to_string()
        } else {
            // SAFETY: a constant text ends in a zero byte and is never freed.
            unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
        };
        Err(Error::Refused { library: "cuBLASLt", call, status, what: what.to_string() })
    }
}
