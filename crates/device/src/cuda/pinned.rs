//! Host memory that the device reaches directly, obtained and given back without the device.
//!
//! Pinning takes as long as touching every page (631 ms for 1 GiB on an H200's host, driver 580), and
//! giving any back waits for all work of the device (measured there too): whoever shares a device
//! behind a lock need not hold it meanwhile.

use std::collections::BTreeSet;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::Cuda;
use super::context::{Context, Current};
use crate::DeviceError;

/// The pinned host memory of a device: a handle, for any thread, while the device is used by others.
#[derive(Clone, Debug)]
pub struct Pinned {
    books: Arc<Books>,
}

const _: () = {
    const fn anywhere<T: Send + Sync>() {}
    anywhere::<Pinned>();
};

#[derive(Debug)]
struct Books {
    context: Arc<Context>,
    /// Where the pieces begin that were not given back.
    live: Mutex<BTreeSet<usize>>,
}

impl Books {
    fn live(&self) -> MutexGuard<'_, BTreeSet<usize>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pinned {
    pub(super) fn new(context: &Arc<Context>) -> Self {
        let (context, live) = (Arc::clone(context), Mutex::default());
        Self { books: Arc::new(Books { context, live }) }
    }

    /// Obtains `size` bytes of host memory that the device reaches directly, which queued copies need
    /// to run beside other work. It is the caller's until [`release`](Self::release), or until the
    /// device is gone.
    ///
    /// # Errors
    ///
    /// [`DeviceError::OutOfMemory`] if they are not to be had.
    pub fn acquire(&self, size: usize) -> Result<NonNull<u8>, DeviceError> {
        let none = || DeviceError::misuse("acquire_pinned", "pinned memory has at least one byte");
        if size == 0 {
            return Err(none());
        }
        let current = self.books.context.enter()?;
        let memory = NonNull::new(current.host_alloc(size)?).ok_or_else(none)?;
        self.books.live().insert(memory.as_ptr().expose_provenance());
        Ok(memory)
    }

    /// Gives pinned memory back.
    ///
    /// # Errors
    ///
    /// If no pinned memory begins there.
    ///
    /// # Safety
    ///
    /// Neither the host nor queued work uses the memory any more.
    pub unsafe fn release(&self, memory: NonNull<u8>) -> Result<(), DeviceError> {
        let start = memory.as_ptr().addr();
        if !self.books.live().remove(&start) {
            let what = format!("no pinned memory begins at {memory:p}");
            return Err(DeviceError::misuse("release_pinned", what));
        }
        let released = self.books.context.enter().and_then(|current| {
            // SAFETY: ours by the books, which have forgotten it, so that it is given back once; used
            // by nobody by the caller's promise. The context is current by type.
            unsafe { current.host_free(memory.as_ptr()) }
        });
        if released.is_err() {
            self.books.live().insert(start);
        }
        released
    }

    /// Pieces that were not given back.
    pub(super) fn live(&self) -> usize {
        self.books.live().len()
    }

    /// Gives back what was not: the device ends. Work of the context has been waited for.
    pub(super) fn close(&self, current: &Current<'_>) {
        for start in std::mem::take(&mut *self.books.live()) {
            let memory = std::ptr::with_exposed_provenance_mut(start);
            // SAFETY: ours by the books, which no longer name it. No work uses it, as the caller says,
            // and it was its holder's only until the device is gone. The context is current by type.
            let released = unsafe { current.host_free(memory) };
            // Nobody is left to hear of an error.
            drop(released);
        }
    }
}

impl Cuda {
    /// The pinned host memory, for use without the device. What is obtained when the device is gone
    /// stays until it is released.
    #[must_use]
    pub fn pinned(&self) -> Pinned {
        self.pinned.clone()
    }
}
