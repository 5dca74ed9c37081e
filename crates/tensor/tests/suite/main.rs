//! Everything that is tested from outside the crate, as one program. With `TONNAGE_TEST_CUDA=1` on the first GPU, but for
//! what is about this machine's memory or compares bytes with PyTorch's.

use tonnage_memory::DeviceOptions;
use tonnage_tensor::Device;
use tonnage_tensor::testing::has_gpu;

mod autograd;

mod checkpoint;

mod errors;

mod fuzz;

mod kernels;

mod models;

mod offload;

mod properties;

mod pytorch_bytes;

mod pytorch_models;

mod pytorch_optim;

mod pytorch_requests;

mod pytorch_values;

mod streams;

mod training;

/// A device that computes: this machine's memory, or the first GPU.
fn computing(capacity: &str) -> Device {
    computing_with(capacity, DeviceOptions::default())
}

/// The same with other options.
fn computing_with(capacity: &str, options: DeviceOptions) -> Device {
    match has_gpu() {
        true => Device::cuda_with(0, options).unwrap(),
        false => Device::host_with(capacity, options).unwrap(),
    }
}
