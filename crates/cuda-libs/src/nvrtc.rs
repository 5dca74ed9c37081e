//! NVRTC: CUDA C++ in, an image for one architecture out.
//!
//! Kernels see no header but the [`prelude`], which they include by its name: users have the compiler's
//! library, and in general not its folder of headers.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fmt;
use std::path::{Path, PathBuf};

use crate::find::{Found, Search, Wanted};
use crate::kernels::KernelSource;
use crate::{Error, Result, prelude};

/// Who compiles.
pub const NVRTC: Wanted = Wanted {
    name: "NVRTC",
    purpose: "compiles the kernels of a CUDA device",
    files: &[("libnvrtc.so.13", 13), ("libnvrtc.so.12", 12)],
    companions: &["libnvrtc-builtins.so"],
    package: "nvidia-cuda-nvrtc",
};

/// What every kernel is compiled with.
const OPTIONS: [&str; 2] = ["--std=c++17", "--device-as-default-execution-space"];

/// A device's compute capability: (9, 0) for Hopper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Architecture {
    /// The generation.
    pub major: u32,
    /// Its variant.
    pub minor: u32,
}

impl Architecture {
    /// The architectures for which every kernel is compiled in tests: Ampere, Hopper, and Blackwell's two.
    pub const TESTED: [Self; 4] =
        [Self::new(8, 0), Self::new(9, 0), Self::new(10, 0), Self::new(12, 0)];

    /// By its two numbers.
    #[must_use]
    pub const fn new(major: u32, minor: u32) -> Self {
        Self { major, minor }
    }

    fn number(self) -> u32 {
        10 * self.major + self.minor
    }

    /// The compiler's name. From Hopper on it is that of the architecture with all its own instructions, since an image is
    /// made for the device that runs it and for no other.
    fn target(self) -> String {
        let own = if self.major >= 9 { "a" } else { "" };
        format!("sm_{}{own}", self.number())
    }
}

impl fmt::Display for Architecture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sm_{}", self.number())
    }
}

impl From<(u32, u32)> for Architecture {
    fn from((major, minor): (u32, u32)) -> Self {
        Self::new(major, minor)
    }
}

/// A program of the compiler's.
#[derive(Clone, Copy)]
#[repr(transparent)]
struct Program(*mut c_void);

/// What every call returns.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
struct Status(c_int);

impl Status {
    const SUCCESS: Self = Self(0);
    const COMPILATION: Self = Self(6);
}

/// The functions that are called, under their names.
#[derive(Clone, Copy)]
struct Table {
    error_string: unsafe extern "C" fn(Status) -> *const c_char,
    version: unsafe extern "C" fn(*mut c_int, *mut c_int) -> Status,
    architectures: unsafe extern "C" fn(*mut c_int) -> Status,
    architecture_list: unsafe extern "C" fn(*mut c_int) -> Status,
    create: unsafe extern "C" fn(
        *mut Program,
        *const c_char,
        *const c_char,
        c_int,
        *const *const c_char,
        *const *const c_char,
    ) -> Status,
    destroy: unsafe extern "C" fn(*mut Program) -> Status,
    compile: unsafe extern "C" fn(Program, c_int, *const *const c_char) -> Status,
    log_size: unsafe extern "C" fn(Program, *mut usize) -> Status,
    log: unsafe extern "C" fn(Program, *mut c_char) -> Status,
    cubin_size: unsafe extern "C" fn(Program, *mut usize) -> Status,
    cubin: unsafe extern "C" fn(Program, *mut c_char) -> Status,
    ptx_size: unsafe extern "C" fn(Program, *mut usize) -> Status,
    ptx: unsafe extern "C" fn(Program, *mut c_char) -> Status,
}

/// The compiler, loaded.
pub struct Compiler {
    table: Table,
    version: (u32, u32),
    architectures: Vec<u32>,
    path: PathBuf,
}

impl fmt::Debug for Compiler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Compiler")
            .field("version", &self.version)
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

/// Compiled kernels: a cubin for one architecture, or PTX where the compiler does not know the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// The bytes, as the driver takes them.
    pub bytes: Vec<u8>,
}

impl Compiler {
    /// Finds and loads the compiler.
    ///
    /// # Errors
    ///
    /// If it is nowhere, or is none.
    pub fn load(search: &Search) -> Result<Self> {
        let found = search.open(&NVRTC)?;
        let table = Table::resolve(&found)?;
        let path = found.keep();
        let mut compiler = Self { table, version: (0, 0), architectures: Vec::new(), path };
        compiler.version = compiler.ask_version()?;
        compiler.architectures = compiler.ask_architectures()?;
        Ok(compiler)
    }

    /// Its version: (13, 0).
    #[must_use]
    pub fn version(&self) -> (u32, u32) {
        self.version
    }

    /// Where it was found.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The option that names an architecture, and whether the answer is a cubin: for a device that the compiler does not
    /// know it is PTX of the newest one below, which the driver compiles.
    fn target(&self, architecture: Architecture) -> (String, bool) {
        let number = architecture.number();
        if self.architectures.contains(&number) {
            return (format!("--gpu-architecture={}", architecture.target()), true);
        }
        let below = self.architectures.iter().copied().filter(|it| *it <= number).max();
        (format!("--gpu-architecture=compute_{}", below.unwrap_or(number)), false)
    }

    /// All that decides what comes out, in order: two compilations with equal parts give equal images.
    pub(crate) fn parts(&self, source: &KernelSource, architecture: Architecture) -> Vec<String> {
        let mut parts = vec![format!("{:?}", self.version), self.target(architecture).0];
        parts.extend(OPTIONS.iter().chain(source.options).map(|it| (*it).to_owned()));
        parts.extend([prelude::TEXT.to_owned(), source.name.to_string(), source.text.to_string()]);
        parts
    }

    /// Compiles a source.
    ///
    /// # Errors
    ///
    /// [`Error::Compile`], with the compiler's log, if the source is wrong.
    pub fn compile(&self, source: &KernelSource, architecture: Architecture) -> Result<Image> {
        let (target, is_cubin) = self.target(architecture);
        let program = self.create(source)?;
        let compiled = self.run(&program, source, &target);
        let image = compiled.and_then(|status| match status {
            Status::SUCCESS if is_cubin => self.bytes(&program, "nvrtcGetCUBIN", source),
            Status::SUCCESS => self.bytes(&program, "nvrtcGetPTX", source),
            status => Err(self.refusal(&program, status, source, architecture)),
        });
        Ok(Image { bytes: image? })
    }

    fn create(&self, source: &KernelSource) -> Result<Owned<'_>> {
        let name = c_text(&format!("{}.cu", source.name))?;
        let (text, header, header_name) =
            (c_text(&source.text)?, c_text(prelude::TEXT)?, c_text(prelude::NAME)?);
        let mut program = Program(std::ptr::null_mut());
        let (headers, names) = ([header.as_ptr()], [header_name.as_ptr()]);
        // SAFETY: `program` is a place for one handle; all texts end in a zero byte and live through the call, which copies
        // them; there is one header, and one name for it.
        let status = unsafe {
            (self.table.create)(
                &mut program,
                text.as_ptr(),
                name.as_ptr(),
                1,
                headers.as_ptr(),
                names.as_ptr(),
            )
        };
        self.check("nvrtcCreateProgram", status, source)?;
        Ok(Owned { compiler: self, program })
    }

    fn run(&self, program: &Owned<'_>, source: &KernelSource, target: &str) -> Result<Status> {
        let options = OPTIONS.iter().chain(source.options).copied().chain([target]);
        let options = options.map(c_text).collect::<Result<Vec<_>>>()?;
        let pointers: Vec<_> = options.iter().map(|it| it.as_ptr()).collect();
        // SAFETY: the program is alive; there are as many options as the compiler is told, each ends in a zero byte.
        Ok(unsafe {
            (self.table.compile)(program.program, pointers.len() as c_int, pointers.as_ptr())
        })
    }

    /// What a compiled program is.
    fn bytes(
        &self,
        program: &Owned<'_>,
        call: &'static str,
        source: &KernelSource,
    ) -> Result<Vec<u8>> {
        let (size_of, copy) = match call {
            "nvrtcGetCUBIN" => (self.table.cubin_size, self.table.cubin),
            _ => (self.table.ptx_size, self.table.ptx),
        };
        let mut size = 0;
        // SAFETY: the program is alive; `size` is a place for one number.
        let status = unsafe { size_of(program.program, &mut size) };
        self.check(call, status, source)?;
        let mut bytes = vec![0u8; size];
        // SAFETY: the program is alive; `bytes` has the room that the compiler asked for.
        let status = unsafe { copy(program.program, bytes.as_mut_ptr().cast()) };
        self.check(call, status, source)?;
        Ok(bytes)
    }

    fn refusal(
        &self,
        program: &Owned<'_>,
        status: Status,
        source: &KernelSource,
        architecture: Architecture,
    ) -> Error {
        let log = self.log(program);
        if status == Status::COMPILATION || !log.is_empty() {
            let (name, architecture) = (source.name.to_string(), architecture.to_string());
            return Error::Compile { name, architecture, log };
        }
        self.error("nvrtcCompileProgram", status, source)
    }

    fn log(&self, program: &Owned<'_>) -> String {
        let mut size = 0;
        // SAFETY: the program is alive; `size` is a place for one number.
        let status = unsafe { (self.table.log_size)(program.program, &mut size) };
        if status != Status::SUCCESS || size == 0 {
            return String::new();
        }
        let mut text = vec![0u8; size];
        // SAFETY: the program is alive; `text` has the room that the compiler asked for.
        let status = unsafe { (self.table.log)(program.program, text.as_mut_ptr().cast()) };
        let text = CStr::from_bytes_until_nul(&text).unwrap_or_default();
        if status == Status::SUCCESS {
            text.to_string_lossy().trim().to_owned()
        } else {
            String::new()
        }
    }

    fn ask_version(&self) -> Result<(u32, u32)> {
        let (mut major, mut minor) = (0, 0);
        // SAFETY: places for one number each.
        let status = unsafe { (self.table.version)(&mut major, &mut minor) };
        self.check_plain("nvrtcVersion", status)?;
        Ok((major.unsigned_abs(), minor.unsigned_abs()))
    }

    fn ask_architectures(&self) -> Result<Vec<u32>> {
        let mut count = 0;
        // SAFETY: a place for one number.
        let status = unsafe { (self.table.architectures)(&mut count) };
        self.check_plain("nvrtcGetNumSupportedArchs", status)?;
        let mut list = vec![0; usize::try_from(count).unwrap_or(0)];
        // SAFETY: places for as many numbers as the compiler has said.
        let status = unsafe { (self.table.architecture_list)(list.as_mut_ptr()) };
        self.check_plain("nvrtcGetSupportedArchs", status)?;
        Ok(list.into_iter().map(c_int::unsigned_abs).collect())
    }

    fn check(&self, call: &'static str, status: Status, source: &KernelSource) -> Result<()> {
        if status == Status::SUCCESS { Ok(()) } else { Err(self.error(call, status, source)) }
    }

    fn check_plain(&self, call: &'static str, status: Status) -> Result<()> {
        if status == Status::SUCCESS {
            return Ok(());
        }
        Err(self.failure(call, status, self.path.display().to_string()))
    }

    fn error(&self, call: &'static str, status: Status, source: &KernelSource) -> Error {
        self.failure(call, status, format!("the kernel {}", source.name))
    }

    fn failure(&self, call: &'static str, status: Status, what: String) -> Error {
        // SAFETY: the compiler answers every number with a constant text.
        let text = unsafe { (self.table.error_string)(status) };
        let status = if text.is_null() {
            status.0.to_string()
        } else {
            // SAFETY: a constant text ends in a zero byte and is never freed.
            unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
        };
        Error::Refused { library: "NVRTC", call, status, what }
    }
}

fn c_text(text: &str) -> Result<CString> {
    CString::new(text).map_err(|_| Error::Misuse("a kernel's text has a zero byte inside".into()))
}

/// A program that goes when dropped.
struct Owned<'a> {
    compiler: &'a Compiler,
    program: Program,
}

impl Drop for Owned<'_> {
    fn drop(&mut self) {
        // SAFETY: ours, destroyed once.
        unsafe { (self.compiler.table.destroy)(&mut self.program) };
    }
}

impl Table {
    fn resolve(found: &Found) -> Result<Self> {
        macro_rules! get {
            ($name:literal) => {{
                // SAFETY: the field's type is that of the function of this name in NVRTC's manual.
                unsafe { found.function($name) }?
            }};
        }
        Ok(Self {
            error_string: get!("nvrtcGetErrorString"),
            version: get!("nvrtcVersion"),
            architectures: get!("nvrtcGetNumSupportedArchs"),
            architecture_list: get!("nvrtcGetSupportedArchs"),
            create: get!("nvrtcCreateProgram"),
            destroy: get!("nvrtcDestroyProgram"),
            compile: get!("nvrtcCompileProgram"),
            log_size: get!("nvrtcGetProgramLogSize"),
            log: get!("nvrtcGetProgramLog"),
            cubin_size: get!("nvrtcGetCUBINSize"),
            cubin: get!("nvrtcGetCUBIN"),
            ptx_size: get!("nvrtcGetPTXSize"),
            ptx: get!("nvrtcGetPTX"),
        })
    }
}
