//! Modules, functions and launches: which were made, and what a test has them do.

use std::collections::BTreeMap;
use std::ffi::c_void;

use crate::codes::Code;
use crate::image::Kernels;

/// Handles of modules begin here.
const FIRST_MODULE: u64 = 0x7000_0000;

/// Handles of functions begin here.
const FIRST_FUNCTION: u64 = 0x8000_0000;

/// Bytes of shared memory that a block gets without asking, and the most that it can ask for: those of an H200.
const SHARED: u32 = 48 << 10;
pub(crate) const SHARED_MOST: u32 = 227 << 10;

/// Threads of a block.
pub(crate) const THREADS_MOST: u32 = 1024;

/// A launch, as C lays it out: what a test sees.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct RawLaunch {
    pub(crate) name: RawBytes,
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) shared: u32,
    pub(crate) stream: u64,
    pub(crate) arguments: *const RawBytes,
    pub(crate) count: usize,
}

/// Bytes of the fake, for the time of a call.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawBytes {
    pub(crate) start: *const u8,
    pub(crate) length: usize,
}

impl RawBytes {
    fn of(bytes: &[u8]) -> Self {
        Self { start: bytes.as_ptr(), length: bytes.len() }
    }
}

/// Who is shown launches.
pub(crate) type Sink = extern "C" fn(launch: *const RawLaunch, data: *mut c_void);

/// What a test has a kernel do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Body {
    pub(crate) call: Sink,
    pub(crate) data: *mut c_void,
}

// SAFETY: the test vouches for its data on any thread (`Fake::on_launch` asks for `Send`), and a body runs with the
// state locked, so one at a time.
unsafe impl Send for Body {}

/// A launch that was queued.
#[derive(Clone, Debug)]
pub(crate) struct Launch {
    pub(crate) name: String,
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) shared: u32,
    pub(crate) stream: u64,
    pub(crate) arguments: Vec<Vec<u8>>,
}

impl Launch {
    /// Shows the launch to a test.
    pub(crate) fn show(&self, call: Sink, data: *mut c_void) {
        let arguments: Vec<_> = self.arguments.iter().map(|it| RawBytes::of(it)).collect();
        let raw = RawLaunch {
            name: RawBytes::of(self.name.as_bytes()),
            grid: self.grid,
            block: self.block,
            shared: self.shared,
            stream: self.stream,
            arguments: arguments.as_ptr(),
            count: arguments.len(),
        };
        call(&raw, data);
    }
}

#[derive(Debug)]
pub(crate) struct Function {
    module: u64,
    pub(crate) name: String,
    pub(crate) sizes: Vec<usize>,
    /// Bytes of shared memory that a launch may ask for.
    pub(crate) shared: u32,
}

#[derive(Debug, Default)]
pub(crate) struct Launches {
    modules: BTreeMap<u64, Kernels>,
    functions: BTreeMap<u64, Function>,
    bodies: BTreeMap<String, Body>,
    pub(crate) done: Vec<Launch>,
    last: u64,
}

impl Launches {
    /// Modules that were not unloaded.
    pub(crate) fn live(&self) -> usize {
        self.modules.len()
    }

    pub(crate) fn load(&mut self, kernels: Kernels) -> u64 {
        self.last += 1;
        let handle = FIRST_MODULE + self.last * 0x10;
        self.modules.insert(handle, kernels);
        handle
    }

    pub(crate) fn unload(&mut self, module: u64) -> Result<(), Code> {
        self.modules.remove(&module).ok_or(Code::INVALID_HANDLE)?;
        self.functions.retain(|_, function| function.module != module);
        Ok(())
    }

    /// The function of a name: the same handle each time.
    pub(crate) fn find(&mut self, module: u64, name: &str) -> Result<u64, Code> {
        let sizes = self.modules.get(&module).ok_or(Code::INVALID_HANDLE)?.get(name);
        let sizes = sizes.ok_or(Code::NOT_FOUND)?.clone();
        let same = |it: &Function| it.module == module && it.name == name;
        if let Some((handle, _)) = self.functions.iter().find(|(_, it)| same(it)) {
            return Ok(*handle);
        }
        self.last += 1;
        let handle = FIRST_FUNCTION + self.last * 0x10;
        let function = Function { module, name: name.to_owned(), sizes, shared: SHARED };
        self.functions.insert(handle, function);
        Ok(handle)
    }

    pub(crate) fn function(&mut self, handle: u64) -> Result<&mut Function, Code> {
        self.functions.get_mut(&handle).ok_or(Code::INVALID_HANDLE)
    }

    pub(crate) fn set_body(&mut self, name: String, body: Body) {
        self.bodies.insert(name, body);
    }

    /// Does a launch: the test's body, if it gave one; a kernel without one does nothing.
    pub(crate) fn run(&mut self, launch: Launch) {
        if let Some(body) = self.bodies.get(&launch.name) {
            launch.show(body.call, body.data);
        }
        self.done.push(launch);
    }
}
