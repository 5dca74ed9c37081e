//! cuDNN's C types and functions, as version 9 defines them: the handle, and the backend's descriptors.
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
}

/// The library on one device.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(super) struct Handle(pub(super) *mut c_void);

// SAFETY: a name that only the library looks behind; it may be used from any thread, one at a time.
unsafe impl Send for Handle {}

/// `cudnnBackendDescriptor_t`
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(super) struct Descriptor(pub(super) *mut c_void);

// SAFETY: as for the handle.
unsafe impl Send for Descriptor {}

/// `cudnnDataType_t`
pub(super) mod data {
    pub(in super::super) const FLOAT: i32 = 0;
    pub(in super::super) const DOUBLE: i32 = 1;
    pub(in super::super) const HALF: i32 = 2;
    pub(in super::super) const BFLOAT16: i32 = 9;
}

/// `cudnnBackendDescriptorType_t`
pub(super) mod kind {
    pub(in super::super) const CONVOLUTION: i32 = 1;
    pub(in super::super) const ENGINE: i32 = 2;
    pub(in super::super) const ENGINE_CONFIG: i32 = 3;
    pub(in super::super) const ENGINE_HEURISTIC: i32 = 4;
    pub(in super::super) const EXECUTION_PLAN: i32 = 5;
    pub(in super::super) const CONVOLUTION_FORWARD: i32 = 10;
    pub(in super::super) const CONVOLUTION_BACKWARD_FILTER: i32 = 11;
    pub(in super::super) const CONVOLUTION_BACKWARD_DATA: i32 = 12;
    pub(in super::super) const OPERATION_GRAPH: i32 = 15;
    pub(in super::super) const VARIANT_PACK: i32 = 16;
    pub(in super::super) const TENSOR: i32 = 17;
}

/// `cudnnBackendAttributeType_t`
pub(super) mod of {
    pub(in super::super) const HANDLE: i32 = 0;
    pub(in super::super) const DATA_TYPE: i32 = 1;
    pub(in super::super) const INT64: i32 = 3;
    pub(in super::super) const FLOAT: i32 = 4;
    pub(in super::super) const DOUBLE: i32 = 5;
    pub(in super::super) const POINTER: i32 = 6;
    pub(in super::super) const CONVOLUTION_MODE: i32 = 7;
    pub(in super::super) const HEURISTIC_MODE: i32 = 8;
    pub(in super::super) const NUMERICAL_NOTE: i32 = 11;
    pub(in super::super) const DESCRIPTOR: i32 = 15;
}

/// `cudnnBackendAttributeName_t`
pub(super) mod attribute {
    pub(in super::super) const CONVOLUTION_COMPUTE_TYPE: i32 = 100;
    pub(in super::super) const CONVOLUTION_MODE: i32 = 101;
    pub(in super::super) const CONVOLUTION_DILATIONS: i32 = 102;
    pub(in super::super) const CONVOLUTION_FILTER_STRIDES: i32 = 103;
    pub(in super::super) const CONVOLUTION_POST_PADDINGS: i32 = 104;
    pub(in super::super) const CONVOLUTION_PRE_PADDINGS: i32 = 105;
    pub(in super::super) const CONVOLUTION_SPATIAL_DIMS: i32 = 106;
    pub(in super::super) const HEURISTIC_MODE: i32 = 200;
    pub(in super::super) const HEURISTIC_OPERATION_GRAPH: i32 = 201;
    pub(in super::super) const HEURISTIC_RESULTS: i32 = 202;
    pub(in super::super) const CONFIG_ENGINE: i32 = 300;
    pub(in super::super) const PLAN_HANDLE: i32 = 400;
    pub(in super::super) const PLAN_ENGINE_CONFIG: i32 = 401;
    pub(in super::super) const PLAN_WORKSPACE_SIZE: i32 = 402;
    pub(in super::super) const GRAPH_HANDLE: i32 = 800;
    pub(in super::super) const GRAPH_OPERATIONS: i32 = 801;
    pub(in super::super) const TENSOR_BYTE_ALIGNMENT: i32 = 900;
    pub(in super::super) const TENSOR_DATA_TYPE: i32 = 901;
    pub(in super::super) const TENSOR_DIMENSIONS: i32 = 902;
    pub(in super::super) const TENSOR_STRIDES: i32 = 903;
    pub(in super::super) const TENSOR_UNIQUE_ID: i32 = 906;
    pub(in super::super) const PACK_UNIQUE_IDS: i32 = 1000;
    pub(in super::super) const PACK_DATA_POINTERS: i32 = 1001;
    pub(in super::super) const PACK_WORKSPACE: i32 = 1003;
    pub(in super::super) const ENGINE_NUMERICAL_NOTE: i32 = 1303;
}

/// The attributes of an operation, in the order of `cudnnBackendAttributeName_t`: alpha, beta, the convolution, and then its
/// three tensors.
pub(super) struct OperationAttributes {
    pub(super) alpha: i32,
    pub(super) beta: i32,
    pub(super) convolution: i32,
    pub(super) input: i32,
    pub(super) filter: i32,
    pub(super) output: i32,
}

pub(super) const FORWARD: OperationAttributes = OperationAttributes {
    alpha: 700,
    beta: 701,
    convolution: 702,
    filter: 703,
    input: 704,
    output: 705,
};
pub(super) const BACKWARD_DATA: OperationAttributes = OperationAttributes {
    alpha: 706,
    beta: 707,
    convolution: 708,
    filter: 709,
    input: 710,
    output: 711,
};
pub(super) const BACKWARD_FILTER: OperationAttributes = OperationAttributes {
    alpha: 712,
    beta: 713,
    convolution: 714,
    filter: 715,
    input: 716,
    output: 717,
};

/// `CUDNN_CROSS_CORRELATION`
pub(super) const CROSS_CORRELATION: i32 = 1;

/// `cudnnBackendHeurMode_t`: the model's choice, and what always works.
pub(super) const MODE_A: i32 = 3;
pub(super) const MODE_FALLBACK: i32 = 2;

/// `cudnnBackendNumericalNote_t`: on tensor cores, which round `f32` to TF32; inputs are rounded; not the same bits every
/// time.
pub(super) const NOTE_TENSOR_CORE: i32 = 0;
pub(super) const NOTE_DOWN_CONVERT_INPUTS: i32 = 1;
pub(super) const NOTE_NONDETERMINISTIC: i32 = 4;

/// More notes than there are kinds of.
pub(super) const NOTES_MOST: usize = 32;

table! {
    version = "cudnnGetVersion" () -> usize;
    error_string = "cudnnGetErrorString" (status: Status) -> *const c_char;
    last_error = "cudnnGetLastErrorString" (message: *mut c_char, size: usize) -> ();
    create = "cudnnCreate" (handle: *mut Handle) -> Status;
    destroy = "cudnnDestroy" (handle: Handle) -> Status;
    set_stream = "cudnnSetStream" (handle: Handle, stream: *mut c_void) -> Status;

    descriptor_create = "cudnnBackendCreateDescriptor"
        (kind: c_int, descriptor: *mut Descriptor) -> Status;
    descriptor_destroy = "cudnnBackendDestroyDescriptor" (descriptor: Descriptor) -> Status;
    descriptor_finalize = "cudnnBackendFinalize" (descriptor: Descriptor) -> Status;
    descriptor_set = "cudnnBackendSetAttribute"
        (descriptor: Descriptor, name: c_int, kind: c_int, count: i64, values: *const c_void)
        -> Status;
    descriptor_get = "cudnnBackendGetAttribute"
        (descriptor: Descriptor, name: c_int, kind: c_int, wanted: i64, count: *mut i64,
         values: *mut c_void) -> Status;
    execute = "cudnnBackendExecute" (handle: Handle, plan: Descriptor, pack: Descriptor) -> Status;
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
        let name = unsafe { (self.error_string)(status) };
        let mut text = if name.is_null() {
            status.0.to_string()
        } else {
            // SAFETY: a constant text ends in a zero byte and is never freed.
            unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
        };
        let mut more = [0u8; 1024];
        // SAFETY: `more` has as many bytes as the library is told.
        unsafe { (self.last_error)(more.as_mut_ptr().cast(), more.len()) };
        let more = CStr::from_bytes_until_nul(&more).unwrap_or_default().to_string_lossy();
        if !more.trim().is_empty() {
            text = format!("{text} ({})", more.trim());
        }
        Err(Error::Refused { library: "cuDNN", call, status: text, what: what.to_string() })
    }
}
