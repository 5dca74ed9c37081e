//! How much a device was given to compute, counted when it is queued: on `dry` as well.

use crate::gpu::Gpu;
use crate::shape::{Layout, Shape};
use crate::tensor::Tensor;

/// Kernels and their arithmetic. What copies numbers from one memory to another is not counted.
///
/// ```
/// use tonnage_tensor::{Device, Tensor};
///
/// let device = Device::dry("1 GiB")?;
/// let [a, b] = [[64, 32], [32, 16]].map(|sizes| Tensor::empty(sizes, &device));
/// let before = device.work();
/// a?.matmul(&b?)?;
/// let work = device.work().since(before);
/// assert_eq!((work.kernels, work.operations), (1, 2.0 * 64.0 * 32.0 * 16.0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct QueuedWork {
    /// How many kernels were queued.
    pub kernels: u64,
    /// Multiplications and additions of products, convolutions and attention; of everything else, one for
    /// each number that is written.
    pub operations: f64,
    /// Bytes that kernels read and write, each operand once.
    pub bytes: f64,
    /// Seconds that this takes at least on each of [`Gpu::ALL`]: kernel by kernel, by its arithmetic or its bytes.
    pub seconds: [f64; Gpu::ALL.len()],
}

impl QueuedWork {
    /// What came after `before`.
    #[must_use]
    pub fn since(self, before: Self) -> Self {
        let mut seconds = self.seconds;
        seconds.iter_mut().zip(before.seconds).for_each(|(now, then)| *now -= then);
        Self {
            kernels: self.kernels.saturating_sub(before.kernels),
            operations: self.operations - before.operations,
            bytes: self.bytes - before.bytes,
            seconds,
        }
    }

    /// So much more.
    pub(crate) fn add_all(&mut self, more: Self) {
        self.kernels += more.kernels;
        self.operations += more.operations;
        self.bytes += more.bytes;
        self.seconds.iter_mut().zip(more.seconds).for_each(|(sum, more)| *sum += more);
    }

    /// One kernel more; `is_half` says whether its numbers have 16 bits.
    pub(crate) fn add(&mut self, operations: f64, bytes: f64, is_half: bool) {
        self.kernels += 1;
        self.operations += operations;
        self.bytes += bytes;
        for (sum, gpu) in self.seconds.iter_mut().zip(Gpu::ALL) {
            *sum += gpu.seconds(operations, bytes, is_half);
        }
    }
}

/// Numbers of a shape. As a float, which is exact far beyond any memory and does not overflow.
pub(crate) fn numbers(shape: &Shape) -> f64 {
    shape.iter().map(|size| *size as f64).product()
}

/// Bytes of tensors, as they lie in memory: what is expanded is there once.
pub(crate) fn bytes_of(tensors: &[&Tensor]) -> f64 {
    tensors.iter().map(|it| distinct(it.layout()) * it.dtype().size() as f64).sum()
}

fn distinct(layout: &Layout) -> f64 {
    let sizes = layout.shape().iter().zip(layout.strides());
    sizes.filter(|(_, stride)| **stride != 0).map(|(size, _)| *size as f64).product()
}

/// Multiplications and additions of a product of so many rows, columns and terms.
pub(crate) fn product_operations(sizes: impl IntoIterator<Item = usize>) -> f64 {
    sizes.into_iter().fold(2.0, |product, size| product * size as f64)
}
