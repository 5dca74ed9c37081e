//! Functions that take a handle: handles are numbers, nothing is computed.

use std::ffi::{c_int, c_void};

use crate::entry::library_entry as entry;
use crate::state::{State, put};
use crate::unknown;

/// The stream of a handle, among what handles were told.
const STREAM: u8 = 4;

entry! {
    /// A handle.
    fn cudnnCreate(handle: *mut u64) |state| {
        let made = state.next_handle();
        // SAFETY: the caller's promise.
        unsafe { put(handle, made) }
    }

    /// No more of it.
    fn cudnnDestroy(handle: u64) |state| {
        state.settings.remove(&(handle, STREAM));
        Ok(())
    }

    /// Remembers.
    fn cudnnSetStream(handle: u64, stream: u64) |state| {
        state.settings.insert((handle, STREAM), stream);
        Ok(())
    }

    /// What was told.
    fn cudnnGetStream(handle: u64, stream: *mut u64) |state| {
        // SAFETY: the caller's promise.
        unsafe { put(stream, state.settings.get(&(handle, STREAM)).copied().unwrap_or(0)) }
    }
}

/// Work starts on the stream of a handle: a node, if that is captured.
pub(super) fn start_work(state: &mut State, handle: u64) {
    let stream = state.settings.get(&(handle, STREAM)).copied().unwrap_or(0);
    state.captures.add_node(stream);
}

/// Functions that only compute.
macro_rules! computes {
    ($($name:ident)*) => {$(
        /// Nothing is computed.
        #[unsafe(no_mangle)]
        #[allow(non_snake_case, reason = "the library's name")]
        extern "C" fn $name(handle: u64, _rest: *const c_void) -> c_int {
            crate::state::driver_call(|state| {
                start_work(state, handle);
                Ok(())
            })
        }
    )*};
}

computes! {
    cudnnActivationBackward cudnnActivationForward cudnnAddTensor cudnnBatchNormalizationBackward
    cudnnBatchNormalizationBackwardEx cudnnBatchNormalizationForwardInference
    cudnnBatchNormalizationForwardTraining cudnnBatchNormalizationForwardTrainingEx cudnnCTCLoss cudnnCTCLoss_v8
    cudnnConvolutionBackwardBias cudnnConvolutionBackwardData cudnnConvolutionBackwardFilter
    cudnnConvolutionBiasActivationForward cudnnConvolutionForward cudnnDropoutBackward cudnnDropoutForward
    cudnnPoolingBackward cudnnPoolingForward cudnnRNNBackwardData_v8 cudnnRNNBackwardWeights_v8 cudnnRNNForward
    cudnnScaleTensor cudnnSetTensor cudnnSoftmaxBackward cudnnSoftmaxForward cudnnSpatialTfGridGeneratorBackward
    cudnnSpatialTfGridGeneratorForward cudnnSpatialTfSamplerBackward cudnnSpatialTfSamplerForward
    cudnnTransformTensor
}

/// Functions that need a device to answer: refused, and noted.
macro_rules! refused {
    ($($name:ident)*) => {$(
        /// Refused, and noted.
        #[unsafe(no_mangle)]
        #[allow(non_snake_case, reason = "the library's name")]
        extern "C" fn $name(_handle: u64, _rest: *const c_void) -> c_int {
            unknown::called(concat!(stringify!($name), " bufferSize"))
        }
    )*};
}

refused! {
    cudnnFindConvolutionBackwardDataAlgorithmEx cudnnFindConvolutionBackwardFilterAlgorithmEx
    cudnnFindConvolutionForwardAlgorithmEx cudnnGetConvolutionBackwardDataAlgorithm_v7 cudnnGetConvolutionBackwardDataWorkspaceSize
    cudnnGetConvolutionBackwardFilterAlgorithm_v7 cudnnGetConvolutionBackwardFilterWorkspaceSize
    cudnnGetConvolutionForwardAlgorithm_v7 cudnnGetConvolutionForwardWorkspaceSize
}
