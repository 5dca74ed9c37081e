//! How long a GPU takes at least: by the arithmetic that it does in a second, and by the bytes that it moves.
//!
//! In:  operations and bytes of a kernel, and whether its numbers have 16 bits. Out: seconds, whichever of the two takes longer.
//!
//! Figures are those of the makers' data sheets. Real kernels come close to one of the two or to neither; shares of a step are
//! told well by them, its length is not.

/// A GPU by its data sheet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Gpu {
    /// H200 SXM.
    H200,
    /// H100 SXM.
    H100,
    /// A100 SXM with 80 GB.
    A100,
    /// GeForce RTX 4090.
    Rtx4090,
}

impl Gpu {
    /// All of them, in their order.
    pub const ALL: [Self; 4] = [Self::H200, Self::H100, Self::A100, Self::Rtx4090];

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::H200 => "H200",
            Self::H100 => "H100",
            Self::A100 => "A100",
            Self::Rtx4090 => "RTX 4090",
        }
    }

    /// Bytes that its memory moves in a second.
    #[must_use]
    pub fn bandwidth(self) -> f64 {
        match self {
            Self::H200 => 4.8e12,
            Self::H100 => 3.35e12,
            Self::A100 => 2.039e12,
            Self::Rtx4090 => 1.008e12,
        }
    }

    /// Multiplications and additions in a second: of numbers of 16 bits by tensor cores, of others in float32 without them (no
    /// TF32, which is off by default here).
    #[must_use]
    pub fn operations(self, is_half: bool) -> f64 {
        match (self, is_half) {
            (Self::H200 | Self::H100, true) => 989e12,
            (Self::H200 | Self::H100, false) => 67e12,
            (Self::A100, true) => 312e12,
            (Self::A100, false) => 19.5e12,
            (Self::Rtx4090, true) => 165e12,
            (Self::Rtx4090, false) => 82.6e12,
        }
    }

    /// Seconds that a kernel takes at least.
    pub(crate) fn seconds(self, operations: f64, bytes: f64, is_half: bool) -> f64 {
        (operations / self.operations(is_half)).max(bytes / self.bandwidth())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_takes_longer_decides() {
        let product = Gpu::H200.seconds(67e12, 1.0, false);
        assert!((product - 1.0).abs() < 1e-9);
        let copy = Gpu::H200.seconds(1.0, 9.6e12, false);
        assert!((copy - 2.0).abs() < 1e-9);
        assert!(Gpu::H200.seconds(67e12, 1.0, true) < 0.1);
    }
}
