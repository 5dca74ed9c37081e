//! What the examples share: the figures at each point of a program, and a way to run one.
//!
//! Each example is a file of its own, in a folder for its document, and a command:
//!
//! ```text
//! cargo run --release -p tonnage-examples --example 000-allocate-and-free
//! cargo run --release -p tonnage-examples --example 004-after-a-function -- dry
//! ```
//!
//! They run on `host`, this machine's memory, unless told `dry`, where nothing is computed and the
//! figures are the same; those that would need gigabytes run on `dry` only.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use tonnage::tensor::{Device, Result};

/// A point of a program, with PyTorch's words for the figures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Point {
    /// The program, or which of its variants.
    pub example: String,
    /// What was just done.
    pub point: String,
    /// `torch.cuda.memory_allocated()`
    pub allocated: u64,
    /// `torch.cuda.memory_reserved()`
    pub reserved: u64,
    /// `torch.cuda.max_memory_allocated()`
    pub peak: u64,
    /// `torch.cuda.max_memory_reserved()`
    pub peak_reserved: u64,
}

/// The figures at each point of a program, as it goes along.
#[derive(Debug)]
pub struct Notes {
    device: Device,
    example: String,
    points: Vec<Point>,
    prints: bool,
}

impl Notes {
    /// Notes about programs on this device.
    #[must_use]
    pub fn new(device: &Device) -> Self {
        Self { device: device.clone(), example: String::new(), points: Vec::new(), prints: false }
    }

    /// A program or variant begins, with nothing cached.
    ///
    /// # Errors
    ///
    /// If the device fails.
    pub fn begin(&mut self, example: impl Into<String>) -> Result<()> {
        self.device.synchronize()?;
        self.empty_cache();
        self.device.memory().reset_peak_stats();
        self.go_on_with(example);
        Ok(())
    }

    /// A program begins with the cache and the peaks that the one before it left.
    pub fn go_on_with(&mut self, example: impl Into<String>) {
        self.example = example.into();
        self.say(&self.example);
    }

    /// Gives back all cached memory. A device that fails says so, and the figures show it.
    pub fn empty_cache(&self) {
        if let Err(error) = self.device.memory().empty_cache() {
            eprintln!("the cache could not be emptied: {error}");
        }
    }

    /// Something to read.
    pub fn say(&self, text: &str) {
        if self.prints {
            println!("{text}");
        }
    }

    /// The program is at this point.
    pub fn at(&mut self, point: impl Into<String>) {
        let memory = self.device.memory();
        let point = Point {
            example: self.example.clone(),
            point: point.into(),
            allocated: memory.allocated(),
            reserved: memory.reserved(),
            peak: memory.max_allocated(),
            peak_reserved: memory.max_reserved(),
        };
        if self.prints {
            println!(
                "  {:<16} allocated {:>14}   reserved {:>14}   peak {:>14}",
                point.point, point.allocated, point.reserved, point.peak
            );
        }
        self.points.push(point);
    }

    /// The points so far.
    #[must_use]
    pub fn points(&self) -> &[Point] {
        &self.points
    }
}

/// A program: what it does on a device, noting its points.
pub type Program = fn(&Device, &mut Notes) -> Result<()>;

/// Runs a program on `host`, or on `dry` if the first argument says so.
#[must_use]
pub fn run(program: Program) -> ExitCode {
    let device = match std::env::args().nth(1).as_deref() {
        None | Some("host") => Device::host("8 GiB"),
        Some("dry") => Device::dry("80 GiB"),
        Some(other) => {
            eprintln!("there is no device `{other}`; say `host` or `dry`");
            return ExitCode::from(2);
        }
    };
    run_on(device, program)
}

/// Runs a program on `dry`: it would need more memory than most machines have.
#[must_use]
pub fn run_dry(program: Program) -> ExitCode {
    run_on(Device::dry("80 GiB"), program)
}

fn run_on<E: std::fmt::Display>(
    device: std::result::Result<Device, E>,
    program: Program,
) -> ExitCode {
    let device = match device {
        Ok(device) => device,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    let mut notes = Notes { prints: true, ..Notes::new(&device) };
    match program(&device, &mut notes).and_then(|()| device.synchronize()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
