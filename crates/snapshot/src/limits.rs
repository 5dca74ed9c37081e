//! How much a file may ask of the reader.

/// What reading one file may cost at most.
///
/// A file decides how much work it makes, and a few kilobytes can ask for terabytes. Reading stops
/// with [`SnapshotError::Limit`](crate::SnapshotError::Limit) at whichever of these comes first.
/// The defaults are chosen, not measured: far above any recording known to us, and within what a
/// workstation has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of pickle, after decompression. Bounds the time as well.
    pub pickle_bytes: u64,
    /// Bytes that the reader may hold at once, by its own count of what it has taken, filled or not.
    /// Taken stock of once per buffer of input, so a table that grows can pass it before it is
    /// noticed. What the decompressor needs comes on top, at most 128 MiB.
    pub memory: u64,
    /// Containers inside containers. PyTorch nests six deep.
    pub depth: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { pickle_bytes: 16 << 30, memory: 8 << 30, depth: 256 }
    }
}
