//! The history and the state of a device as a file that PyTorch's tools read.
//!
//! In:  the engine's snapshot.
//! Out: such a file.

use std::path::Path;

pub use tonnage_replay::snapshot_file;
pub use tonnage_snapshot::SaveError;

use crate::view::Memory;

impl Memory<'_> {
    /// Saves the state and the history as a file, as `torch.cuda.memory._dump_snapshot` does:
    /// Python's `pickle`, `torch.cuda._memory_viz`, PyTorch's page and `tonnage replay` read it.
    /// A name that ends in `.zst` or `.gz` is compressed, which the first three do not read.
    ///
    /// The history is there if [`record_history`](Memory::record_history) was called before. Other
    /// threads go on allocating while the file is written.
    ///
    /// ```
    /// use tonnage_memory::{Device, RecordOptions};
    ///
    /// let device = Device::dry("80 GiB")?;
    /// device.memory().record_history(Some(RecordOptions::default()));
    /// let block = device.allocate(1000)?;
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("snapshot.pickle");
    /// device.memory().dump_snapshot(&path)?;
    /// # assert_eq!(tonnage_snapshot::open(&path)?.traces[0].len(), 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If the file cannot be written; what was there before then still is.
    #[doc(alias = "_dump_snapshot")]
    #[doc(alias = "save_snapshot")]
    pub fn dump_snapshot(&self, path: impl AsRef<Path>) -> Result<(), SaveError> {
        tonnage_snapshot::save(path.as_ref(), &snapshot_file(self.snapshot(), self.device.id()))
    }
}
