//! The device, its memory, numbers, and the list of cases.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::time::Duration;

use half::{bf16, f16};
use tonnage_cuda_libs::blas::Number;
use tonnage_cuda_libs::cache::Cache;
use tonnage_cuda_libs::find::Search;
use tonnage_cuda_libs::{Error, Kernels};
use tonnage_device::Device;
use tonnage_device::cuda::{Cuda, Driver, Launcher};
use tonnage_events::{Address, StreamId};
use tonnage_fake_cuda::Fake;

/// Anything that went wrong, in words.
pub(crate) type Outcome<T> = Result<T, String>;

/// The device, with a stream of its own.
pub(crate) struct Gpu {
    device: RefCell<Cuda>,
    pub(crate) launcher: Launcher,
    pub(crate) stream: StreamId,
    pub(crate) kernels: Kernels,
    pub(crate) search: Search,
    pub(crate) is_real: bool,
    /// What the fake is loaded from.
    _folder: Option<tempfile::TempDir>,
}

impl Gpu {
    pub(crate) fn open() -> Outcome<Self> {
        let device = Cuda::open(0).map_err(words)?;
        let version = device.launcher().driver().version().map_err(words)?;
        let search = Search::here().for_driver(version);
        println!("{:#?}", device.properties());
        println!("libraries are looked for in {:#?}", search.folders());
        Self::with(device, search, None)
    }

    /// The fake driver, with its cuBLASLt.
    pub(crate) fn open_fake() -> Outcome<Self> {
        let folder = tempfile::tempdir().map_err(words)?;
        Fake::install(folder.path())?;
        // SAFETY: the fake keeps to the driver's interface.
        let driver = unsafe { Driver::load_from(folder.path().join("libcuda.so.1")) };
        let device = Cuda::open_with(driver.map_err(words)?, 0).map_err(words)?;
        Self::with(device, Search::only(folder.path()), Some(folder))
    }

    fn with(mut device: Cuda, search: Search, folder: Option<tempfile::TempDir>) -> Outcome<Self> {
        let (launcher, stream) = (device.launcher(), device.create_stream().map_err(words)?);
        let kernels = Kernels::with(launcher.clone(), search.clone(), Cache::none());
        let (device, is_real) = (RefCell::new(device), folder.is_none());
        Ok(Self { device, launcher, stream, kernels, search, is_real, _folder: folder })
    }

    /// Memory that goes back when dropped.
    pub(crate) fn memory(&self, size: usize) -> Outcome<Memory<'_>> {
        let address = self.device.borrow_mut().acquire(size.max(1) as u64).map_err(words)?;
        Ok(Memory { gpu: self, address, size })
    }

    /// Memory with these bytes in it.
    pub(crate) fn upload(&self, bytes: &[u8]) -> Outcome<Memory<'_>> {
        let memory = self.memory(bytes.len())?;
        self.device.borrow_mut().write(memory.address, bytes).map_err(words)?;
        Ok(memory)
    }

    pub(crate) fn synchronize(&self) -> Outcome<()> {
        self.launcher.synchronize(self.stream).map_err(words)
    }

    pub(crate) fn with_device<T>(&self, body: impl FnOnce(&mut Cuda) -> T) -> T {
        body(&mut self.device.borrow_mut())
    }

    /// How long `body` takes on the device, the mean of so many times after one more.
    pub(crate) fn time(&self, times: u32, body: impl Fn() -> Outcome<()>) -> Outcome<Duration> {
        if !self.is_real {
            return Ok(Duration::ZERO);
        }
        body()?;
        let begin = self.launcher.moment(self.stream).map_err(words)?;
        for _ in 0..times {
            body()?;
        }
        let end = self.launcher.moment(self.stream).map_err(words)?;
        Ok(end.since(&begin).map_err(words)? / times)
    }
}

/// A piece of the device's memory.
pub(crate) struct Memory<'a> {
    gpu: &'a Gpu,
    pub(crate) address: Address,
    size: usize,
}

impl Memory<'_> {
    /// What is in it, after all that is queued.
    pub(crate) fn download(&self) -> Outcome<Vec<u8>> {
        self.gpu.synchronize()?;
        let mut bytes = vec![0; self.size];
        self.gpu.device.borrow_mut().read(self.address, &mut bytes).map_err(words)?;
        Ok(bytes)
    }
}

impl Drop for Memory<'_> {
    fn drop(&mut self) {
        // A device that has failed says so in the next case.
        let _ = self.gpu.device.borrow_mut().release(self.address);
    }
}

pub(crate) fn words(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// Numbers as bytes of a type: two for each complex one.
pub(crate) fn pack(number: Number, values: &[f64]) -> Vec<u8> {
    let each = |value: &f64| match number {
        Number::F16 => f16::from_f64(*value).to_ne_bytes().to_vec(),
        Number::Bf16 => bf16::from_f64(*value).to_ne_bytes().to_vec(),
        Number::F32 | Number::Complex32 => (*value as f32).to_ne_bytes().to_vec(),
        Number::F64 | Number::Complex64 => value.to_ne_bytes().to_vec(),
    };
    values.iter().flat_map(each).collect()
}

/// The way back.
pub(crate) fn unpack(number: Number, bytes: &[u8]) -> Vec<f64> {
    fn of<const N: usize>(bytes: &[u8], to: impl Fn([u8; N]) -> f64) -> Vec<f64> {
        bytes.as_chunks::<N>().0.iter().map(|it| to(*it)).collect()
    }
    match number {
        Number::F16 => of(bytes, |it| f16::from_ne_bytes(it).to_f64()),
        Number::Bf16 => of(bytes, |it| bf16::from_ne_bytes(it).to_f64()),
        Number::F32 | Number::Complex32 => of(bytes, |it| f64::from(f32::from_ne_bytes(it))),
        Number::F64 | Number::Complex64 => of(bytes, f64::from_ne_bytes),
    }
}

/// Numbers between -1 and 1, as the type has them.
pub(crate) fn random(number: Number, count: usize, seed: u64) -> Vec<f64> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f64 / (1u64 << 23) as f64 - 1.0
    };
    let values: Vec<_> = (0..count).map(|_| next()).collect();
    unpack(number, &pack(number, &values))
}

/// The largest distance, as a share of the largest number that is wanted.
pub(crate) fn distance(got: &[f64], want: &[f64]) -> f64 {
    if got.len() != want.len() || got.iter().any(|it| !it.is_finite()) {
        return f64::INFINITY;
    }
    let largest = want.iter().fold(1e-30f64, |most, it| most.max(it.abs()));
    got.iter().zip(want).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max) / largest
}

/// What a case gives: its error, what is allowed, its time, and what else is worth a word.
pub(crate) struct Measured {
    pub(crate) error: f64,
    pub(crate) bound: f64,
    pub(crate) time: Duration,
    pub(crate) note: String,
}

impl Measured {
    pub(crate) fn new(error: f64, bound: f64, time: Duration) -> Self {
        Self { error, bound, time, note: String::new() }
    }

    pub(crate) fn with(self, note: String) -> Self {
        Self { note, ..self }
    }

    /// A case that is right or wrong.
    pub(crate) fn exact(is_right: bool, note: &str) -> Self {
        let error = if is_right { 0.0 } else { f64::INFINITY };
        Self { error, bound: 0.0, time: Duration::ZERO, note: note.to_owned() }
    }
}

/// All cases, and how they went.
pub(crate) struct Cases {
    wanted: Vec<String>,
    right: usize,
    wrong: Vec<String>,
    refused: Vec<String>,
}

impl Cases {
    pub(crate) fn new(wanted: Vec<String>) -> Self {
        Self { wanted, right: 0, wrong: Vec::new(), refused: Vec::new() }
    }

    pub(crate) fn run(&mut self, name: &str, body: impl FnOnce() -> Outcome<Measured>) {
        self.case(name, false, body);
    }

    /// A case that a library may refuse: there are types that not every one has.
    pub(crate) fn optional(&mut self, name: &str, body: impl FnOnce() -> Outcome<Measured>) {
        self.case(name, true, body);
    }

    fn case(&mut self, name: &str, optional: bool, body: impl FnOnce() -> Outcome<Measured>) {
        if !self.wanted.is_empty() && !self.wanted.iter().any(|part| name.contains(part)) {
            return;
        }
        let outcome = catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|it| (*it).to_owned()));
            Err(format!("panicked: {}", text.unwrap_or_default()))
        });
        match outcome {
            Ok(Measured { error, bound, time, note }) => {
                let is_right = error <= bound;
                let sign = if is_right { "ok    " } else { "WRONG " };
                println!(
                    "{sign} {name:<72} error {error:9.2e} of {bound:7.1e}  {:>9.2} us  {note}",
                    time.as_secs_f64() * 1e6
                );
                if is_right { self.right += 1 } else { self.wrong.push(name.to_owned()) }
            }
            Err(reason) if optional => {
                println!("refused {name:<71} {reason}");
                self.refused.push(name.to_owned());
            }
            Err(reason) => {
                println!("FAILED {name:<72} {reason}");
                self.wrong.push(name.to_owned());
            }
        }
    }

    pub(crate) fn summary(self) -> ExitCode {
        println!(
            "{} right, {} refused, {} wrong",
            self.right,
            self.refused.len(),
            self.wrong.len()
        );
        for name in &self.wrong {
            println!("  wrong: {name}");
        }
        if self.wrong.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

/// A library that is not there: every case of it would say the same.
pub(crate) fn missing(cases: &mut Cases, name: &str, error: &Error) {
    cases.run(name, || Err(error.to_string()));
}
