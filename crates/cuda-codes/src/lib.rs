//! CUDA's result codes: one number, the driver's name, the runtime's name, and the words that both have for it.
//!
//! Both fakes answer with them.

#![forbid(unsafe_code)]

use std::ffi::{CStr, c_int};

/// A result code that is not success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Code(pub c_int);

/// All is well.
pub const SUCCESS: c_int = 0;

/// What a code is called, and its words.
pub type Text = (&'static CStr, &'static CStr);

macro_rules! codes {
    ($($name:ident = $number:literal, $driver:literal, $runtime:literal, $words:literal;)*) => {
        impl Code {
            $(
                #[doc = $words]
                pub const $name: Self = Self($number);
            )*
        }

        /// The driver's name and words for a code; nothing for one that it does not have.
        #[must_use]
        pub fn driver_text(code: c_int) -> Option<Text> {
            match code {
                SUCCESS => Some((c"CUDA_SUCCESS", c"no error")),
                $($number => Some((
                    c_str(concat!("CUDA_ERROR_", $driver, "\0")),
                    c_str(concat!($words, "\0")),
                )),)*
                _ => None,
            }
        }

        /// The runtime's name and words for a code; those of an unknown one if it does not have it.
        #[must_use]
        pub fn runtime_text(code: c_int) -> Text {
            match code {
                SUCCESS => (c"cudaSuccess", c"no error"),
                $($number => (c_str(concat!("cudaError", $runtime, "\0")), c_str(concat!($words, "\0"))),)*
                _ => (c"cudaErrorUnknown", c"unrecognized error code"),
            }
        }
    };
}

/// A text of the table, which ends in a zero byte.
const fn c_str(text: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(text.as_bytes()) {
        Ok(text) => text,
        Err(_) => c"",
    }
}

codes! {
    INVALID_VALUE = 1, "INVALID_VALUE", "InvalidValue", "invalid argument";
    OUT_OF_MEMORY = 2, "OUT_OF_MEMORY", "MemoryAllocation", "out of memory";
    NOT_INITIALIZED = 3, "NOT_INITIALIZED", "InitializationError", "initialization error";
    NO_DEVICE = 100, "NO_DEVICE", "NoDevice", "no CUDA-capable device is detected";
    INVALID_DEVICE = 101, "INVALID_DEVICE", "InvalidDevice", "invalid device ordinal";
    INVALID_IMAGE = 200, "INVALID_IMAGE", "InvalidKernelImage", "device kernel image is invalid";
    INVALID_CONTEXT = 201, "INVALID_CONTEXT", "DeviceUninitialized", "invalid device context";
    INVALID_PTX = 218, "INVALID_PTX", "InvalidPtx", "a PTX JIT compilation failed";
    INVALID_HANDLE = 400, "INVALID_HANDLE", "InvalidResourceHandle", "invalid resource handle";
    NOT_FOUND = 500, "NOT_FOUND", "SymbolNotFound", "named symbol not found";
    NOT_READY = 600, "NOT_READY", "NotReady", "device not ready";
    CONTEXT_IS_DESTROYED = 709, "CONTEXT_IS_DESTROYED", "ContextIsDestroyed", "context is destroyed";
    NOT_SUPPORTED = 801, "NOT_SUPPORTED", "NotSupported", "operation not supported";
    CAPTURE_UNSUPPORTED = 900, "STREAM_CAPTURE_UNSUPPORTED", "StreamCaptureUnsupported", "operation not permitted when stream is capturing";
    CAPTURE_INVALIDATED = 901, "STREAM_CAPTURE_INVALIDATED", "StreamCaptureInvalidated", "operation failed due to a previous error during capture";
    CAPTURE_MERGE = 902, "STREAM_CAPTURE_MERGE", "StreamCaptureMerge", "operation would result in a merge of separate capture sequences";
    CAPTURE_UNMATCHED = 903, "STREAM_CAPTURE_UNMATCHED", "StreamCaptureUnmatched", "capture was not ended in the same stream as it began";
    CAPTURE_UNJOINED = 904, "STREAM_CAPTURE_UNJOINED", "StreamCaptureUnjoined", "capturing stream has unjoined work";
    CAPTURE_ISOLATION = 905, "STREAM_CAPTURE_ISOLATION", "StreamCaptureIsolation", "dependency created on uncaptured work in another stream";
    CAPTURED_EVENT = 907, "CAPTURED_EVENT", "CapturedEvent", "operation not permitted on an event last recorded in a capturing stream";
    UNKNOWN = 999, "UNKNOWN", "Unknown", "unknown error";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_its_names_and_words() {
        let known: Vec<_> =
            (0..1000).filter_map(|code| driver_text(code).map(|text| (code, text))).collect();
        assert_eq!(known.len(), 22);
        for (code, (driver, words)) in known {
            let (runtime, same) = runtime_text(code);
            assert!(driver.to_bytes().starts_with(b"CUDA_"), "{code}: {driver:?}");
            assert!(runtime.to_bytes().starts_with(b"cuda"), "{code}: {runtime:?}");
            assert!(!words.is_empty(), "{code}");
            assert_eq!(words, same, "{code}");
        }
        assert_eq!(driver_text(12345), None);
        assert_eq!(runtime_text(12345).0, c"cudaErrorUnknown");
    }
}
