//! For tests in Rust: a private copy of the library, and its control in words.
//!
//! The state of a library belongs to the process, and tests of one process run at the same time.
//! A copy of the file is another library to the loader, with a state of its own.

use std::ffi::{CStr, CString, OsString, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::control;
use crate::launches::{RawBytes, RawLaunch, Sink};

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
    /// Modules.
    pub modules: usize,
    /// Graphs, of both kinds.
    pub graphs: usize,
}

/// A launch, as the fake saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenLaunch {
    /// The kernel.
    pub name: String,
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub block: [u32; 3],
    /// Bytes of shared memory that were asked for.
    pub shared: u32,
    /// The stream's handle.
    pub stream: u64,
    /// The arguments' bytes, in order.
    pub arguments: Vec<Vec<u8>>,
}

impl SeenLaunch {
    /// Argument `index` as a number of so many bytes; none if it is of another size.
    #[must_use]
    pub fn argument<const N: usize>(&self, index: usize) -> Option<[u8; N]> {
        self.arguments.get(index)?.as_slice().try_into().ok()
    }

    /// # Safety
    ///
    /// `raw` is a launch that the library shows.
    unsafe fn of(raw: *const RawLaunch) -> Self {
        // SAFETY: the caller's promise, for the time of this call.
        let raw = unsafe { &*raw };
        // SAFETY: the library says how many there are.
        let arguments = unsafe { std::slice::from_raw_parts(raw.arguments, raw.count) };
        // SAFETY: the library says how long each is.
        let bytes =
            |it: &RawBytes| unsafe { std::slice::from_raw_parts(it.start, it.length) }.to_vec();
        Self {
            name: String::from_utf8_lossy(&bytes(&raw.name)).into_owned(),
            grid: raw.grid,
            block: raw.block,
            shared: raw.shared,
            stream: raw.stream,
            arguments: arguments.iter().map(bytes).collect(),
        }
    }
}

/// A fake driver of one test's own.
#[derive(Debug)]
pub struct Fake {
    path: PathBuf,
    entries: Entries,
}

/// What the library exports for tests.
#[derive(Clone, Copy, Debug)]
struct Entries {
    control: Control,
    each_launch: EachLaunch,
    on_launch: OnLaunch,
}

type Control = extern "C" fn(u32, u64, u64) -> u64;
type EachLaunch = extern "C" fn(Sink, *mut c_void);
type OnLaunch = unsafe extern "C" fn(*const u8, usize, Sink, *mut c_void);

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
        match load_entries(&path) {
            Ok(entries) => Ok(Self { path, entries }),
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

    /// Makes a folder with the driver, NVML, cuBLASLt and cuDNN under their names, for programs that are to find them
    /// with `LD_LIBRARY_PATH`. Each process has a state of its own.
    ///
    /// # Errors
    ///
    /// If the library is not there, or if the folder cannot be written.
    pub fn install(folder: &Path) -> Result<(), String> {
        let library = library()?;
        let driver = folder.join("libcuda.so.1");
        std::fs::copy(&library, &driver).map_err(|error| error.to_string())?;
        link(&driver, folder, &["libnvidia-ml.so.1", "libcublasLt.so.13", "libcudnn.so.9"])
    }

    /// Puts the libraries over this driver into a folder, under their names: whoever opens them there has those of this
    /// value.
    ///
    /// # Errors
    ///
    /// If the folder cannot be written.
    pub fn link_libraries(&self, folder: &Path) -> Result<(), String> {
        link(&self.path, folder, &["libcublasLt.so.13", "libcudnn.so.9"])
    }

    /// An operation of [`control`](mod@control).
    pub fn control(&self, operation: u32, a: u64, b: u64) -> u64 {
        (self.entries.control)(operation, a, b)
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

    /// Whether device `device` may read and write what is mapped at an address.
    #[must_use]
    pub fn reaches(&self, device: u64, address: u64) -> bool {
        self.control(control::REACHES, device, address) == 1
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
            modules: count(control::MODULES),
            graphs: count(control::GRAPHS),
        }
    }

    /// The launches so far, oldest first; those of graphs when these are launched.
    #[must_use]
    pub fn launches(&self) -> Vec<SeenLaunch> {
        extern "C" fn keep(launch: *const RawLaunch, data: *mut c_void) {
            // SAFETY: `data` is the list below, which nobody else uses meanwhile.
            let list = unsafe { &mut *data.cast::<Vec<SeenLaunch>>() };
            // SAFETY: the library shows launches.
            list.push(unsafe { SeenLaunch::of(launch) });
        }
        let mut list = Vec::new();
        (self.entries.each_launch)(keep, (&raw mut list).cast());
        list
    }

    /// Forgets the launches so far.
    pub fn forget_launches(&self) {
        self.control(control::FORGET_LAUNCHES, 0, 0);
    }

    /// From now on a launch of this kernel calls `body`, which may read and write memory of the devices (its
    /// addresses are addresses of this process) and calls no function of the driver. Stays until the end of the process.
    pub fn on_launch(&self, name: &str, body: impl Fn(&SeenLaunch) + Send + 'static) {
        extern "C" fn call<F: Fn(&SeenLaunch)>(launch: *const RawLaunch, data: *mut c_void) {
            // SAFETY: `data` is the body below, which is never dropped.
            let body = unsafe { &*data.cast::<F>() };
            // SAFETY: the library shows launches.
            let launch = unsafe { SeenLaunch::of(launch) };
            // Nothing unwinds through the library.
            let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| body(&launch)));
            if done.is_err() {
                std::process::abort();
            }
        }
        fn of<F: Fn(&SeenLaunch)>(_: &F) -> Sink {
            call::<F>
        }
        let sink = of(&body);
        let data = Box::into_raw(Box::new(body)).cast();
        // SAFETY: the name has as many bytes; the body is `Send`, called one at a time, and never dropped.
        unsafe { (self.entries.on_launch)(name.as_ptr(), name.len(), sink, data) };
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

/// Gives a file more names. One file under several names is one library, with one state.
fn link(file: &Path, folder: &Path, names: &[&str]) -> Result<(), String> {
    names.iter().try_for_each(|name| {
        std::os::unix::fs::symlink(file, folder.join(name)).map_err(|error| error.to_string())
    })
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

fn load_entries(path: &Path) -> Result<Entries, String> {
    let name = CString::new(path.as_os_str().as_bytes()).map_err(|error| error.to_string())?;
    // SAFETY: the name ends in a zero byte; the file is a copy of this crate's library, whose
    // initialisers are the Rust runtime's. It is never closed, so the functions below stay.
    let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if library.is_null() {
        return Err("the loader refused it".into());
    }
    let find = |name: &CStr| {
        // SAFETY: the library is open, and the name ends in a zero byte.
        let symbol = unsafe { libc::dlsym(library, name.as_ptr()) };
        if symbol.is_null() {
            return Err(format!("it has no {}", name.to_string_lossy()));
        }
        Ok(symbol)
    };
    let control = find(c"fake_cuda_control")?;
    let each_launch = find(c"fake_cuda_each_launch")?;
    let on_launch = find(c"fake_cuda_on_launch")?;
    Ok(Entries {
        // SAFETY: in this crate's library that is the function of `control.rs`, of this type.
        control: unsafe { std::mem::transmute::<*mut c_void, Control>(control) },
        // SAFETY: as above.
        each_launch: unsafe { std::mem::transmute::<*mut c_void, EachLaunch>(each_launch) },
        // SAFETY: as above.
        on_launch: unsafe { std::mem::transmute::<*mut c_void, OnLaunch>(on_launch) },
    })
}
