//! How much a device was given to compute, counted when it is queued: on `dry` as well.

use crate::shape::Shape;

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
}

impl QueuedWork {
    /// What came after `before`.
    #[must_use]
    pub fn since(self, before: Self) -> Self {
        let kernels = self.kernels.saturating_sub(before.kernels);
        Self { kernels, operations: self.operations - before.operations }
    }

    /// One kernel more.
    pub(crate) fn add(&mut self, operations: f64) {
        self.kernels += 1;
        self.operations += operations;
    }
}

/// Numbers of a shape. As a float, which is exact far beyond any memory and does not overflow.
pub(crate) fn numbers(shape: &Shape) -> f64 {
    shape.iter().map(|size| *size as f64).product()
}

/// Multiplications and additions of a product of so many rows, columns and terms.
pub(crate) fn product_operations(sizes: impl IntoIterator<Item = usize>) -> f64 {
    sizes.into_iter().fold(2.0, |product, size| product * size as f64)
}
