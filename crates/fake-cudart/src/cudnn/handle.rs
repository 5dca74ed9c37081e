//! Functions that take a handle: handles are numbers, sizes are those that were recorded, nothing is computed.

use std::ffi::{c_int, c_void};

use crate::entry::library_entry as entry;
use crate::state::put;
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

    /// Normalising needs nothing beside, as recorded for images whose channels come first.
    fn cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(
        _handle: u64,
        _mode: c_int,
        _operations: c_int,
        _x: usize,
        _z: usize,
        _y: usize,
        _parameters: usize,
        _activation: usize,
        size: *mut usize,
    ) |_| {
        // SAFETY: the caller's promise.
        unsafe { put(size, 0) }
    }

    /// The same on the way back.
    fn cudnnGetBatchNormalizationBackwardExWorkspaceSize(
        _handle: u64,
        _mode: c_int,
        _operations: c_int,
        _x: usize,
        _y: usize,
        _dy: usize,
        _dz: usize,
        _dx: usize,
        _parameters: usize,
        _activation: usize,
        size: *mut usize,
    ) |_| {
        // SAFETY: the caller's promise.
        unsafe { put(size, 0) }
    }

    /// Nothing is kept from one to the other.
    fn cudnnGetBatchNormalizationTrainingExReserveSpaceSize(
        _handle: u64,
        _mode: c_int,
        _operations: c_int,
        _activation: usize,
        _x: usize,
        size: *mut usize,
    ) |_| {
        // SAFETY: the caller's promise.
        unsafe { put(size, 0) }
    }
}

/// Functions that only compute.
macro_rules! computes {
    ($($name:ident)*) => {$(
        /// Nothing is computed.
        #[unsafe(no_mangle)]
        #[allow(non_snake_case, reason = "the library's name")]
        extern "C" fn $name(_handle: u64, _rest: *const c_void) -> c_int {
            0
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
    cudnnFindConvolutionForwardAlgorithmEx cudnnGetCTCLossWorkspaceSize cudnnGetCTCLossWorkspaceSize_v8
    cudnnGetConvolutionBackwardDataAlgorithm_v7 cudnnGetConvolutionBackwardDataWorkspaceSize
    cudnnGetConvolutionBackwardFilterAlgorithm_v7 cudnnGetConvolutionBackwardFilterWorkspaceSize
    cudnnGetConvolutionForwardAlgorithm_v7 cudnnGetConvolutionForwardWorkspaceSize
}
