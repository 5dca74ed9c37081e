//! Compiled kernels, loaded into a device's context.

use std::ffi::CString;
use std::sync::Arc;

use super::arguments::Arguments;
use super::context::Context;
use super::launcher::Launcher;
use super::sys::{CUfunction, CUfunctionAttribute, CUmodule};
use crate::DeviceError;

/// Compiled kernels on one device. A handle: the kernels are unloaded with the last clone, after all work of the device.
#[derive(Clone, Debug)]
pub struct Module {
    loaded: Arc<Loaded>,
}

#[derive(Debug)]
struct Loaded {
    handle: CUmodule,
    context: Arc<Context>,
}

/// A kernel of a [`Module`], which it keeps loaded.
#[derive(Clone, Debug)]
pub struct Function {
    handle: CUfunction,
    name: Arc<str>,
    /// Sizes of the parameters, where the driver tells.
    parameters: Option<Arc<[usize]>>,
    module: Arc<Loaded>,
}

/// What a kernel needs, as it was compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Needs {
    /// Registers of a thread.
    pub registers: u32,
    /// Bytes of shared memory that it declares.
    pub shared: u32,
    /// Bytes of a thread that lie in the device's memory: spilled registers, arrays.
    pub local: u32,
    /// The most threads that a block of it can have.
    pub threads_per_block: u32,
}

const _: () = {
    const fn anywhere<T: Send + Sync>() {}
    anywhere::<Module>();
    anywhere::<Function>();
};

impl Launcher {
    /// Loads compiled kernels: a cubin, a fatbin, or PTX, which the driver compiles.
    ///
    /// # Errors
    ///
    /// If the image is not for this device, or is refused; what the driver says of it is part of the error.
    ///
    /// # Safety
    ///
    /// The image is whole and as a compiler has made it: the driver follows its tables without looking.
    pub unsafe fn load(&self, image: &[u8]) -> Result<Module, DeviceError> {
        let context = Arc::clone(&self.queues.context);
        // PTX ends in a zero byte, and one more does no harm to the others.
        let image = [image, &[0]].concat();
        // SAFETY: the caller's promise; PTX ends in a zero byte now.
        let handle = unsafe { context.enter()?.module_load(&image) }?;
        Ok(Module { loaded: Arc::new(Loaded { handle, context }) })
    }
}

impl Module {
    /// The kernel of this name: its `extern "C"` name, or as the compiler mangles it.
    ///
    /// # Errors
    ///
    /// If there is no such kernel.
    pub fn function(&self, name: &str) -> Result<Function, DeviceError> {
        let text = CString::new(name).map_err(|_| {
            DeviceError::misuse("function", format!("{name:?} has a zero byte inside"))
        })?;
        let current = self.loaded.context.enter()?;
        // SAFETY: loaded as long as `self`.
        let found = unsafe { current.module_function(self.loaded.handle, &text) };
        let handle = found.map_err(|error| named(error, name))?;
        let mut sizes = Some(Vec::new());
        while let Some(known) = &mut sizes {
            // SAFETY: loaded as long as `self`.
            match unsafe { current.function_parameter(handle, known.len()) } {
                Some(Ok(Some(size))) => known.push(size),
                Some(Ok(None)) => break,
                Some(Err(error)) => return Err(error),
                None => sizes = None,
            }
        }
        Ok(Function {
            handle,
            name: name.into(),
            parameters: sizes.map(Arc::from),
            module: Arc::clone(&self.loaded),
        })
    }
}

impl Function {
    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it needs.
    ///
    /// # Errors
    ///
    /// If the driver cannot tell.
    pub fn needs(&self) -> Result<Needs, DeviceError> {
        let current = self.module.context.enter()?;
        // SAFETY: loaded as long as `self`.
        let get = |attribute| unsafe { current.function_get(self.handle, attribute) };
        Ok(Needs {
            registers: get(CUfunctionAttribute::NUM_REGS)?,
            shared: get(CUfunctionAttribute::SHARED_SIZE_BYTES)?,
            local: get(CUfunctionAttribute::LOCAL_SIZE_BYTES)?,
            threads_per_block: get(CUfunctionAttribute::MAX_THREADS_PER_BLOCK)?,
        })
    }

    /// Lets launches ask for up to `bytes` of shared memory: above 48 KiB a kernel must be allowed to.
    ///
    /// # Errors
    ///
    /// If the device has not as much for a block.
    pub fn allow_shared(&self, bytes: u32) -> Result<(), DeviceError> {
        let current = self.module.context.enter()?;
        let attribute = CUfunctionAttribute::MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // SAFETY: loaded as long as `self`.
        let allowed = unsafe { current.function_set(self.handle, attribute, bytes) };
        allowed.map_err(|error| named(error, &self.name))
    }

    /// How many blocks of so many threads and bytes of shared memory a multiprocessor holds at once.
    ///
    /// # Errors
    ///
    /// If the driver cannot tell.
    pub fn blocks_per_multiprocessor(&self, threads: u32, shared: u32) -> Result<u32, DeviceError> {
        let current = self.module.context.enter()?;
        // SAFETY: loaded as long as `self`.
        unsafe { current.occupancy(self.handle, threads, shared) }
    }

    pub(super) fn handle(&self) -> CUfunction {
        self.handle
    }

    /// Refuses arguments that are not as many and as large as the parameters.
    pub(super) fn check_arguments(&self, arguments: &Arguments) -> Result<(), DeviceError> {
        let Some(parameters) = &self.parameters else { return Ok(()) };
        if arguments.sizes().eq(parameters.iter().copied()) {
            return Ok(());
        }
        let given: Vec<_> = arguments.sizes().collect();
        let what = format!(
            "{} takes arguments of {parameters:?} bytes, and was given {given:?}",
            self.name
        );
        Err(DeviceError::misuse("launch", what))
    }
}

/// The error, and of which function it is.
fn named(error: DeviceError, name: &str) -> DeviceError {
    match error {
        DeviceError::Driver { call, code, message } => {
            DeviceError::Driver { call, code, message: format!("{message}, for {name}") }
        }
        error => error,
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        // The first try may return an error that an earlier call has parked.
        let Ok(current) = self.context.enter().or_else(|_| self.context.enter()) else { return };
        // Work of its kernels may still be queued. If it cannot be waited for, as while someone's work is captured in the
        // context, the module stays until the context goes: kernels may still run.
        let wait = || current.synchronize_context();
        if wait().or_else(|_| wait()).is_err() {
            return;
        }
        // SAFETY: ours, unloaded once, with the last handle, so that nothing is queued from now on; what was queued
        // before is done: it was waited for. The context is current by type.
        let unload = || unsafe { current.module_unload(self.handle) };
        // Once more if it failed; nobody is left to hear of an error.
        drop(unload().or_else(|_| unload()));
    }
}
