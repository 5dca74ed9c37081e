//! Sums of bytes that do not wrap.

/// Adds up bytes. No device has as many as the type holds, but a file can say so: the sum then stays at the largest value.
pub(crate) trait TotalBytes: Iterator<Item = u64> + Sized {
    fn total_bytes(self) -> u64 {
        self.fold(0, u64::saturating_add)
    }
}

impl<I: Iterator<Item = u64>> TotalBytes for I {}
