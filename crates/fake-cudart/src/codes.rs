//! The runtime's result codes, with its names and words for them. The driver has the same numbers.

use std::ffi::{CStr, c_int};

use tonnage_device::DeviceError;

/// A result code that is not success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Code(pub(crate) c_int);

pub(crate) const SUCCESS: c_int = 0;

macro_rules! codes {
    ($($name:ident = $number:literal, $symbol:literal, $words:literal;)*) => {
        impl Code {
            $(pub(crate) const $name: Self = Self($number);)*
        }

        /// Name and words of a code.
        pub(crate) fn text(code: c_int) -> (&'static CStr, &'static CStr) {
            match code {
                SUCCESS => (c"cudaSuccess", c"no error"),
                $($number => ($symbol, $words),)*
                _ => (c"cudaErrorUnknown", c"unrecognized error code"),
            }
        }
    };
}

codes! {
    INVALID_VALUE = 1, c"cudaErrorInvalidValue", c"invalid argument";
    OUT_OF_MEMORY = 2, c"cudaErrorMemoryAllocation", c"out of memory";
    INVALID_DEVICE = 101, c"cudaErrorInvalidDevice", c"invalid device ordinal";
    INVALID_HANDLE = 400, c"cudaErrorInvalidResourceHandle", c"invalid resource handle";
    NOT_READY = 600, c"cudaErrorNotReady", c"device not ready";
    NOT_SUPPORTED = 801, c"cudaErrorNotSupported", c"operation not supported";
    UNKNOWN = 999, c"cudaErrorUnknown", c"unknown error";
}

/// What the device refuses, in the runtime's words.
impl From<DeviceError> for Code {
    fn from(error: DeviceError) -> Self {
        match error {
            DeviceError::OutOfMemory { .. } => Self::OUT_OF_MEMORY,
            _ => Self::INVALID_VALUE,
        }
    }
}
