//! How fast this machine computes, for estimates of time.

use std::hint::black_box;
use std::time::Instant;

use tonnage_tensor::{DType, Device, Tensor};

use crate::error::Result;

/// Rows and columns of the product that is timed: large enough to keep every core busy, small enough to take a moment.
const SIDE: usize = 768;

/// The best of so many, since the first one also starts threads.
const TRIES: usize = 3;

/// Multiplications and additions of a product of matrices in a second, measured now.
///
/// # Errors
///
/// If there is no memory for it.
pub fn host_speed() -> Result<f64> {
    let device = Device::host(1u64 << 30)?;
    let matrix = Tensor::ones([SIDE, SIDE], (&device, DType::F32))?;
    let mut best = f64::INFINITY;
    for _ in 0..TRIES {
        let began = Instant::now();
        black_box(matrix.matmul(&matrix)?);
        device.synchronize()?;
        best = best.min(began.elapsed().as_secs_f64());
    }
    Ok(2.0 * (SIDE as f64).powi(3) / best.max(1e-9))
}
