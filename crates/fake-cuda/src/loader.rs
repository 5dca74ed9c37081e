//! For tests in Rust: a private copy of the library, and its control in words.
//!
//! The state of a library belongs to the process, and tests of one process run at the same time.
//! A copy of the file is another library to the loader, with a state of its own.

use std::ffi::{CString, OsString, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::control;

/// The file that cargo makes of this crate.
const LIBRARY: &str = "libtonnage_fake_cuda.so";

/// How many things were not given back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Live {
    /// Segments.
    pub segments: usize,
    /// Reserved ranges.
    pub ranges: usize,
    /// Page handles.
    pub pages: usize,
    /// Mappings.
    pub mappings: usize,
    /// Streams.
    pub streams: usize,
    /// Events of the driver.
    pub events: usize,
    /// References to primary contexts.
    pub contexts: usize,
    /// Pieces of pinned host memory.
    pub pinned: usize,
}

/// A fake driver of one test's own.
#[derive(Debug)]
pub struct Fake {
    path: PathBuf,
    control: extern "C" fn(u32, u64, u64) -> u64,
}

impl Fake {
    /// Loads a private copy of the library.
    ///
    /// The library is looked for beside the running program and in the folder above: cargo puts
    /// what a test depends on into `deps`, where the test itself lies.
    ///
    /// # Errors
    ///
    /// If the library is not there (it is built when a test has this crate among its
    /// dependencies), cannot be copied, or cannot be loaded.
    pub fn start() -> Result<Self, String> {
        static COPIES: AtomicU64 = AtomicU64::new(0);
        let library = library()?;
        let mut name = OsString::from(".fake-cuda-");
        name.push(format!("{}-{}.so", std::process::id(), COPIES.fetch_add(1, Ordering::Relaxed)));
        let path = library.with_file_name(name);
        std::fs::copy(&library, &path)
            .map_err(|error| format!("cannot copy {}: {error}", library.display()))?;
        match load_control(&path) {
            Ok(control) => Ok(Self { path, control }),
            Err(reason) => {
                remove(&path);
                Err(format!("cannot load a copy of {}: {reason}", library.display()))
            }
        }
    }

    /// The file to open as the driver. Gone with this value; what was opened stays.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// An operation of [`control`](mod@control).
    pub fn control(&self, operation: u32, a: u64, b: u64) -> u64 {
        (self.control)(operation, a, b)
    }

    /// Starts over.
    pub fn reset(&self) {
        self.control(control::RESET, 0, 0);
    }

    /// The number of driver calls so far.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.control(control::CALLS, 0, 0)
    }

    /// After `calls` more calls, one fails with `code`.
    pub fn fail_after(&self, calls: u64, code: u32) {
        self.control(control::FAIL, calls, u64::from(code));
    }

    /// The number of calls that were made to fail.
    #[must_use]
    pub fn failed(&self) -> u64 {
        self.control(control::FAILED, 0, 0)
    }

    /// No more failures.
    pub fn clear_failures(&self) {
        self.control(control::CLEAR_FAILURES, 0, 0);
    }

    /// Gives device `device` a capacity.
    pub fn set_capacity(&self, device: u64, bytes: u64) {
        self.control(control::CAPACITY, device, bytes);
    }

    /// Bytes that device `device` has given and not got back.
    #[must_use]
    pub fn used(&self, device: u64) -> u64 {
        self.control(control::USED, device, 0)
    }

    /// No work is done any more until told, or waited for.
    pub fn hold_events(&self) {
        self.control(control::HOLD, control::ALL, 0);
    }

    /// No work is done any more until told, not even for those who wait for it.
    pub fn hold_waits(&self) {
        self.control(control::HOLD_WAITS, 0, 0);
    }

    /// Copies that their caller waits for take until told.
    pub fn hold_copies(&self) {
        self.control(control::HOLD_COPIES, 0, 0);
    }

    /// The number of driver calls that wait at this moment.
    #[must_use]
    pub fn waiting(&self) -> u64 {
        self.control(control::WAITING, 0, 0)
    }

    /// Work of every stream is done again, and so are copies.
    pub fn complete_events(&self) {
        self.control(control::COMPLETE, control::ALL, 0);
    }

    /// Work of one stream of device `device` is done again.
    pub fn complete_events_of(&self, stream: u64, device: u64) {
        self.control(control::COMPLETE, stream, device);
    }

    /// What was not given back.
    #[must_use]
    pub fn live(&self) -> Live {
        let count = |kind| self.control(control::LIVE, kind, 0) as usize;
        Live {
            segments: count(control::SEGMENTS),
            ranges: count(control::RANGES),
            pages: count(control::PAGES),
            mappings: count(control::MAPPINGS),
            streams: count(control::STREAMS),
            events: count(control::EVENTS),
            contexts: count(control::CONTEXTS),
            pinned: count(control::PINNED),
        }
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        remove(&self.path);
    }
}

/// A copy that cannot be removed lies in the build folder and goes with it.
fn remove(path: &Path) {
    drop(std::fs::remove_file(path));
}

fn library() -> Result<PathBuf, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let folders = program.ancestors().skip(1).take(2);
    let mut places = folders.flat_map(|folder| [folder.join("deps"), folder.to_owned()]);
    let found = places.by_ref().map(|folder| folder.join(LIBRARY)).find(|path| path.is_file());
    found.ok_or_else(|| {
        format!(
            "there is no {LIBRARY} near {}: build it with `cargo build -p tonnage-fake-cuda`",
            program.display()
        )
    })
}

fn load_control(path: &Path) -> Result<extern "C" fn(u32, u64, u64) -> u64, String> {
    let name = CString::new(path.as_os_str().as_bytes()).map_err(|error| error.to_string())?;
    // SAFETY: the name ends in a zero byte; the file is a copy of this crate's library, whose
    // initialisers are the Rust runtime's. It is never closed, so the function below stays.
    let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if library.is_null() {
        return Err("the loader refused it".into());
    }
    // SAFETY: the library is open, and the name ends in a zero byte.
    let symbol = unsafe { libc::dlsym(library, c"fake_cuda_control".as_ptr()) };
    if symbol.is_null() {
        return Err("it has no fake_cuda_control".into());
    }
    // SAFETY: in this crate's library that symbol is the function of `control.rs`, of this type.
    Ok(unsafe { std::mem::transmute::<*mut c_void, extern "C" fn(u32, u64, u64) -> u64>(symbol) })
}
