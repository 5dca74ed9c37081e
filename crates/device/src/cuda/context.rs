//! The device's primary context, shared with whatever else lives in the process.
//!
//! PyTorch, cuBLAS and every library over the CUDA runtime use the primary context too, so memory
//! of ours is memory they can use. To be polite to them:
//!
//! - the context is retained, never created, reset or given flags, and given back once;
//! - a call makes it current for its own duration ([`Context::enter`]) and restores what was current
//!   before, unless it is current already, as in a thread that works with PyTorch on this device.
//!
//! The price is one `cuCtxGetCurrent` for each call (a thread-local read in the driver) and a push
//! and a pop where another context was current. The allocator's hot path makes no driver calls, and
//! those that its slow path makes cost from a fraction of a microsecond (events) to tens of them.

use std::marker::PhantomData;
use std::ops::Deref;
use std::sync::{Mutex, PoisonError};

use super::Driver;
use super::sys::{CUcontext, CUdevice};
use crate::DeviceError;

/// A reference to a device's primary context, which the device shares with whoever works in it without the
/// device: [`Launcher`](super::Launcher), [`EventWait`](super::EventWait), [`HeldMemory`](super::HeldMemory).
#[derive(Debug)]
pub(super) struct Context {
    driver: Driver,
    device: CUdevice,
    handle: CUcontext,
    /// An error of leaving the context, when the call itself had succeeded: the next call returns
    /// it, before it does anything.
    parked: Mutex<Option<DeviceError>>,
}

impl Context {
    pub(super) fn retain(driver: Driver, device: CUdevice) -> Result<Self, DeviceError> {
        let handle = driver.primary_context_retain(device)?;
        Ok(Self { driver, device, handle, parked: Mutex::default() })
    }

    pub(super) fn driver(&self) -> &Driver {
        &self.driver
    }

    pub(super) fn handle(&self) -> CUcontext {
        self.handle
    }

    /// Makes the context current on this thread until the answer is dropped.
    pub(super) fn enter(&self) -> Result<Current<'_>, DeviceError> {
        if let Some(error) = self.parked.lock().unwrap_or_else(PoisonError::into_inner).take() {
            return Err(error);
        }
        let pushed = self.driver.context_get_current()? != self.handle;
        if pushed {
            // SAFETY: the context lives as long as `self`, which the answer borrows; it is popped
            // when the answer is dropped, on this thread, since a `Current` cannot leave it.
            unsafe { self.driver.context_push_current(self.handle) }?;
        }
        Ok(Current { context: self, pushed, of_this_thread: PhantomData })
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: the one reference that `retain` took, given back once. What was made in the
        // context belonged to what had a share in `self`, and is gone.
        let released = unsafe { self.driver.primary_context_release(self.device) };
        // Nobody is left to hear of an error; a process that is ending gets one here.
        drop(released);
    }
}

/// Shows that the context is current on this thread, which it cannot leave.
pub(super) struct Current<'a> {
    context: &'a Context,
    pushed: bool,
    /// Pointers are not `Send`.
    of_this_thread: PhantomData<*const ()>,
}

impl Current<'_> {
    pub(super) fn context(&self) -> &Context {
        self.context
    }

    pub(super) fn device(&self) -> CUdevice {
        self.context.device
    }

    pub(super) fn handle(&self) -> CUcontext {
        self.context.handle
    }
}

impl Deref for Current<'_> {
    type Target = Driver;

    fn deref(&self) -> &Driver {
        &self.context.driver
    }
}

impl Drop for Current<'_> {
    fn drop(&mut self) {
        if !self.pushed {
            return;
        }
        // Once more if it failed: nobody else will pop, and this is the right thread.
        let left = self.context_pop_current().or_else(|_| self.context_pop_current());
        if let Err(error) = left {
            *self.context.parked.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
        }
    }
}
