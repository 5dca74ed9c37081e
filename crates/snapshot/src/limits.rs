//! How much a file may ask of the reader.

use crate::spare_memory::spare_memory;

/// What reading one file may cost at most.
///
/// A file decides how much work it makes, and a few kilobytes can ask for terabytes. Reading stops
/// with [`SnapshotError::Limit`](crate::SnapshotError::Limit) at whichever of these comes first. What is done with a file
/// that was read is not bounded here; it grows with the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of pickle, after decompression. Bounds the time as well.
    pub pickle_bytes: u64,
    /// Bytes that the reader may hold at once, by its own count of what it has taken, filled or not, and
    /// of what it takes next. What the decompressor needs comes on top, at most 128 MiB.
    pub memory: u64,
    /// Containers inside containers. PyTorch nests six deep.
    pub depth: usize,
}

impl Limits {
    /// What is allowed where the system does not tell what it has: chosen, within what a workstation has.
    const UNTOLD: u64 = 8 << 30;

    /// What any file may take, if the machine has it: chosen, a history of ten million entries takes less.
    const SMALL_FILE: u64 = 1 << 30;

    /// What a file may take for each of its bytes besides. Chosen: PyTorch's snapshots take less than one byte for
    /// each of the pickle, of which the usual tools make a hundredth at best.
    const PER_BYTE: u64 = 64;

    /// Pickles have so many bytes for each byte that they may take: chosen, those of PyTorch have three.
    const PICKLE: u64 = 4;

    /// Containers inside containers.
    const DEPTH: usize = 256;

    /// Limits for a file of so many bytes, packed as it is: at most half of what this process can still have
    /// ([`spare_memory`](crate::spare_memory())), and of that a small file gets less.
    #[must_use]
    pub fn of_file(bytes: Option<u64>) -> Self {
        Self::of(spare_memory(), bytes)
    }

    /// Limits that let reading take this much memory.
    #[must_use]
    pub fn with_memory(memory: u64) -> Self {
        let pickle_bytes = memory.saturating_mul(Self::PICKLE);
        Self { pickle_bytes, memory, depth: Self::DEPTH }
    }

    fn of(spare: Option<u64>, bytes: Option<u64>) -> Self {
        let machine = spare.map_or(Self::UNTOLD, |spare| spare / 2);
        let file = bytes.map(|bytes| bytes.saturating_mul(Self::PER_BYTE));
        let file = file.map_or(u64::MAX, |bytes| bytes.saturating_add(Self::SMALL_FILE));
        Self::with_memory(machine.min(file))
    }
}

/// Those for a file of unknown size.
impl Default for Limits {
    fn default() -> Self {
        Self::of_file(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_follow_the_machine_and_the_file() {
        const GIB: u64 = 1 << 30;
        for (spare, bytes, memory) in [
            (Some(64 * GIB), None, 32 * GIB),
            (Some(64 * GIB), Some(0), GIB),
            (Some(64 * GIB), Some(1 << 20), GIB + (64 << 20)),
            (Some(64 * GIB), Some(GIB), 32 * GIB),
            (Some(64 * GIB), Some(u64::MAX), 32 * GIB),
            (Some(GIB), Some(1 << 20), GIB / 2),
            (Some(0), None, 0),
            (None, None, 8 * GIB),
        ] {
            let limits = Limits::of(spare, bytes);
            assert_eq!(limits.memory, memory, "{spare:?} {bytes:?}");
            assert_eq!(limits.pickle_bytes, 4 * memory);
        }
    }
}
