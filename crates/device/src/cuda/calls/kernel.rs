//! Calls about compiled kernels, in the current context.
//!
//! Images, modules and functions are followed without looking, as streams are: hence the promises.

use std::ffi::{CStr, c_int, c_void};

use crate::DeviceError;
use crate::cuda::context::Current;
use crate::cuda::sys::*;

/// Bytes for what the driver says of an image that it refuses.
const LOG_BYTES: usize = 8 << 10;

/// The extent of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Blocks, in x, y and z.
    pub grid: [u32; 3],
    /// Threads of a block, in x, y and z.
    pub block: [u32; 3],
    /// Bytes of shared memory that a block gets besides what the kernel declares.
    pub shared: u32,
}

impl Extent {
    /// So many blocks of so many threads, in one line.
    #[must_use]
    pub const fn line(blocks: u32, threads: u32) -> Self {
        Self { grid: [blocks, 1, 1], block: [threads, 1, 1], shared: 0 }
    }

    /// The same with so many bytes of shared memory.
    #[must_use]
    pub const fn with_shared(self, shared: u32) -> Self {
        Self { shared, ..self }
    }
}

impl Current<'_> {
    /// Loads compiled kernels, the caller's until `module_unload`. What the driver says of an image
    /// that it refuses is part of the error.
    ///
    /// # Safety
    ///
    /// `image` is a whole cubin or fatbin, or PTX that ends in a zero byte.
    pub(in crate::cuda) unsafe fn module_load(
        &self,
        image: &[u8],
    ) -> Result<CUmodule, DeviceError> {
        let mut module = CUmodule::NULL;
        let mut log = vec![0u8; LOG_BYTES];
        let mut options = [CUjitOption::ERROR_LOG_BUFFER, CUjitOption::ERROR_LOG_BUFFER_SIZE_BYTES];
        // The driver takes numbers as pointers of that value.
        let mut values = [log.as_mut_ptr().cast(), std::ptr::without_provenance_mut(LOG_BYTES)];
        let (image, values) = (image.as_ptr().cast::<c_void>(), values.as_mut_ptr());
        // SAFETY: `module` is a place for one handle; options and values are two each, and the log
        // has as many bytes as the driver is told; all live through the call. The image is good by
        // promise. The caller unloads the module.
        let code = unsafe {
            (self.table().module_load)(&mut module, image, 2, options.as_mut_ptr(), values)
        };
        self.check("cuModuleLoadDataEx", code).map_err(|error| with_log(error, &log))?;
        Ok(module)
    }

    /// Unloads a module, and with it its functions.
    ///
    /// # Safety
    ///
    /// The module is the caller's, from `module_load`; no work that uses it is queued from now on.
    pub(in crate::cuda) unsafe fn module_unload(
        &self,
        module: CUmodule,
    ) -> Result<(), DeviceError> {
        // SAFETY: the caller's promise.
        let code = unsafe { (self.table().module_unload)(module) };
        self.check("cuModuleUnload", code)
    }

    /// A function of a module, as long as that is loaded.
    ///
    /// # Safety
    ///
    /// The module is loaded.
    pub(in crate::cuda) unsafe fn module_function(
        &self,
        module: CUmodule,
        name: &CStr,
    ) -> Result<CUfunction, DeviceError> {
        let mut function = CUfunction::NULL;
        // SAFETY: `function` is a place for one handle; the name ends in a zero byte; the module is
        // good by promise.
        let code = unsafe { (self.table().module_function)(&mut function, module, name.as_ptr()) };
        self.check("cuModuleGetFunction", code)?;
        Ok(function)
    }

    /// What a function needs.
    ///
    /// # Safety
    ///
    /// The function's module is loaded.
    pub(in crate::cuda) unsafe fn function_get(
        &self,
        function: CUfunction,
        attribute: CUfunctionAttribute,
    ) -> Result<u32, DeviceError> {
        let mut value = 0;
        // SAFETY: `value` is a place for one number; the function is good by promise.
        let code = unsafe { (self.table().function_get)(&mut value, attribute, function) };
        self.check("cuFuncGetAttribute", code)?;
        Ok(value.unsigned_abs())
    }

    /// Tells a function what it may use.
    ///
    /// # Safety
    ///
    /// The function's module is loaded.
    pub(in crate::cuda) unsafe fn function_set(
        &self,
        function: CUfunction,
        attribute: CUfunctionAttribute,
        value: u32,
    ) -> Result<(), DeviceError> {
        let value = c_int::try_from(value).unwrap_or(c_int::MAX);
        // SAFETY: the function is good by promise; the driver checks the value.
        let code = unsafe { (self.table().function_set)(function, attribute, value) };
        self.check("cuFuncSetAttribute", code)
    }

    /// The size of a function's argument `index`; none if it has no such argument, or if the driver
    /// is too old to tell, which `None` outside says.
    ///
    /// # Safety
    ///
    /// The function's module is loaded.
    pub(in crate::cuda) unsafe fn function_parameter(
        &self,
        function: CUfunction,
        index: usize,
    ) -> Option<Result<Option<usize>, DeviceError>> {
        let call = self.table().function_parameter?;
        let (mut offset, mut size) = (0, 0);
        // SAFETY: `offset` and `size` are places for one number each; the function is good by promise.
        let code = unsafe { call(function, index, &mut offset, &mut size) };
        if code == CUresult::INVALID_VALUE {
            return Some(Ok(None));
        }
        Some(self.check("cuFuncGetParamInfo", code).map(|()| Some(size)))
    }

    /// How many blocks of so many threads and bytes of shared memory a multiprocessor takes at once.
    ///
    /// # Safety
    ///
    /// The function's module is loaded.
    pub(in crate::cuda) unsafe fn occupancy(
        &self,
        function: CUfunction,
        threads: u32,
        shared: u32,
    ) -> Result<u32, DeviceError> {
        let mut blocks = 0;
        let threads = c_int::try_from(threads).unwrap_or(c_int::MAX);
        // SAFETY: `blocks` is a place for one number; the function is good by promise.
        let code =
            unsafe { (self.table().occupancy)(&mut blocks, function, threads, shared as usize) };
        self.check("cuOccupancyMaxActiveBlocksPerMultiprocessor", code)?;
        Ok(blocks.unsigned_abs())
    }

    /// Queues a launch. The arguments are copied before this returns.
    ///
    /// # Safety
    ///
    /// 1. The function's module stays loaded until the launch is done; `stream` is a stream of this
    ///    context, not destroyed.
    /// 2. `arguments` point to as many values as the function has parameters, each of its type.
    /// 3. What the kernel reads and writes with them is the caller's until it is done.
    pub(in crate::cuda) unsafe fn launch(
        &self,
        function: CUfunction,
        extent: Extent,
        stream: CUstream,
        arguments: &mut [*mut c_void],
    ) -> Result<(), DeviceError> {
        let ([x, y, z], [a, b, c]) = (extent.grid, extent.block);
        let (shared, arguments) = (extent.shared, arguments.as_mut_ptr());
        let extra = std::ptr::null_mut();
        // SAFETY: promises 1 to 3; the driver checks the extent.
        let code = unsafe {
            (self.table().launch)(function, x, y, z, a, b, c, shared, stream, arguments, extra)
        };
        self.check("cuLaunchKernel", code)
    }
}

/// The error, and what the driver has written.
fn with_log(error: DeviceError, log: &[u8]) -> DeviceError {
    let text = CStr::from_bytes_until_nul(log).unwrap_or_default().to_string_lossy();
    let text = text.trim();
    match error {
        DeviceError::Driver { call, code, message } if !text.is_empty() => {
            DeviceError::Driver { call, code, message: format!("{message}: {text}") }
        }
        error => error,
    }
}
