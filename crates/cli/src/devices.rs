//! `tonnage devices`: the GPUs of this machine, who holds their memory, and what kernels can count on.
//!
//! In:  the driver, NVML and the libraries, each loaded if it is there; sheets of processes that publish theirs.
//! Out: a paragraph for each device, or one JSON object; without a GPU one sentence that says why.

use std::fmt::Write;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;
use tonnage::Bytes;
use tonnage::cuda_libs::find::Search;
use tonnage::cuda_libs::nvml::{Nvml, Process};
use tonnage::cuda_libs::versions;
use tonnage::device::cuda::{Cuda, Driver, Properties};
use tonnage::device::{Device as _, DeviceError};
use tonnage::monitor::{FigureSheet, Places, processes};
use tonnage::snapshot::OutputFile;

use crate::Answer;
use crate::output::{plain, print, print_json, write_file};

/// Show the GPUs of this machine, who holds their memory, and which libraries are here
///
/// Total and free memory as the driver tells it; what this process holds by opening a device (its context), and what other processes hold,
/// where NVML tells, beside what they have allocated and reserved, where they publish it (`tonnage top`); the levels of memory; the
/// versions of the driver and of the libraries that kernels, products and convolutions need, with where they were found.
/// Exit status 1 if there is no GPU.
#[derive(Args)]
pub(crate) struct Arguments {
    /// Print one JSON object
    #[arg(long)]
    json: bool,

    /// Write a file with a GPU's data (name, memory, multiprocessors, attributes, the driver's share), for `tonnage predict --gpu FILE`
    #[arg(long, value_name = "FILE", conflicts_with = "json")]
    capture: Option<PathBuf>,

    /// The Python that asks the driver, with PyTorch in it to measure what that takes
    #[arg(long, value_name = "PATH", requires = "capture", default_value = "python3")]
    python: String,

    /// The number of the GPU
    #[arg(long, value_name = "N", requires = "capture", default_value_t = 0)]
    device: u32,
}

/// The form of the JSON; counts up when a field changes its meaning or goes.
const SCHEMA: u32 = 1;

#[derive(Serialize)]
struct Answered {
    schema: u32,
    /// Why there are no devices.
    unavailable: Option<String>,
    driver: Option<DriverVersion>,
    libraries: Vec<Library>,
    devices: Vec<Device>,
}

#[derive(Serialize)]
struct DriverVersion {
    /// The driver's own version, where NVML tells.
    version: Option<String>,
    /// The newest CUDA that it knows.
    cuda: String,
}

#[derive(Serialize)]
struct Library {
    name: &'static str,
    version: Option<String>,
    path: Option<String>,
    /// The sentence that says that it is missing.
    missing: Option<String>,
}

#[derive(Serialize)]
struct Device {
    device: String,
    name: String,
    compute_capability: String,
    pci_bus_id: String,
    multiprocessors: u32,
    expandable_segments: bool,
    total: u64,
    free: u64,
    this_process: Holder,
    /// Others, where NVML tells.
    other_processes: Option<Vec<Holder>>,
    levels: Levels,
    clock_khz: u32,
    memory_clock_khz: u32,
    memory_bus_bits: u32,
}

/// A process on a device.
#[derive(Serialize)]
struct Holder {
    pid: u32,
    command: Option<String>,
    /// Bytes as the driver sees them, the context included.
    driver: Option<u64>,
    allocated: Option<u64>,
    reserved: Option<u64>,
}

/// Memory from far to near.
#[derive(Serialize)]
struct Levels {
    bandwidth: u64,
    l2: u64,
    shared_per_multiprocessor: u32,
    shared_per_block: u32,
    shared_per_block_most: u32,
    registers_per_multiprocessor: u32,
    registers_per_block: u32,
    threads_per_multiprocessor: u32,
    threads_per_block: u32,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<Answer> {
    if let Some(path) = &arguments.capture {
        return capture(path, &arguments.python, arguments.device);
    }
    let answered = look();
    if arguments.json {
        print_json(&serde_json::to_string_pretty(&answered)?)?;
    } else {
        print(&text(&answered))?;
    }
    Ok(if answered.devices.is_empty() { Answer::No } else { Answer::Yes })
}

/// Writes what the card tells of itself.
fn capture(path: &Path, python: &str, device: u32) -> anyhow::Result<Answer> {
    let file = OutputFile::at(path)?.only_if_new()?;
    let (gpu, text) = tonnage_scripts::capture(python, device)?;
    write_file(&file, |out| Ok(out.write_all(text.as_bytes())?))?;
    let share = match gpu.is_context_estimated() {
        true => "an estimate: name a Python with PyTorch by --python, and it is measured",
        false => "measured",
    };
    print(&format!(
        "{}: {}, {}, the driver's share {}, {share}\ntonnage predict --gpu {} -- python train.py\n",
        plain(&path.to_string_lossy()),
        plain(&gpu.name),
        Bytes(gpu.memory),
        Bytes(gpu.context),
        plain(&path.to_string_lossy()),
    ))?;
    Ok(Answer::Yes)
}

fn look() -> Answered {
    let mut search = Search::here();
    let (mut driver, mut devices, mut unavailable) = (None, Vec::new(), None);
    match Driver::load().and_then(|driver| Ok((driver.version()?, driver))) {
        Ok((version, loaded)) => {
            search = search.for_driver(version);
            let nvml = Nvml::load(&search).ok();
            match look_at_devices(&loaded, nvml.as_ref()) {
                Ok(found) => devices = found,
                Err(error) => unavailable = Some(error.to_string()),
            }
            driver = Some(DriverVersion {
                version: nvml.and_then(|it| it.driver_version().ok()),
                cuda: format!("{}.{}", version / 1000, version % 1000 / 10),
            });
        }
        Err(error) => unavailable = Some(error.to_string()),
    }
    if devices.is_empty() && unavailable.is_none() {
        unavailable = Some("the CUDA driver has no devices".to_owned());
    }
    Answered { schema: SCHEMA, unavailable, driver, libraries: libraries(&search), devices }
}

fn libraries(search: &Search) -> Vec<Library> {
    let library = |it: versions::Library| match it.found {
        Ok((version, path)) => Library {
            name: it.name,
            version: Some(version),
            path: Some(path.display().to_string()),
            missing: None,
        },
        Err(error) => {
            Library { name: it.name, version: None, path: None, missing: Some(error.to_string()) }
        }
    };
    versions::libraries(search).into_iter().map(library).collect()
}

fn look_at_devices(driver: &Driver, nvml: Option<&Nvml>) -> Result<Vec<Device>, DeviceError> {
    let sheets = processes(&Places::from_env()).sheets;
    let look = |properties: Properties| {
        // The driver tells what is free in a context alone; it goes with `opened`.
        let mut opened = Cuda::open_with(driver.clone(), properties.id.0)?;
        let memory = opened.memory_info()?;
        let running = nvml.and_then(|it| it.processes(&properties.pci_bus_id).ok());
        Ok(device(&properties, memory.free, running, &sheets))
    };
    driver.devices()?.into_iter().map(look).collect()
}

fn device(
    properties: &Properties,
    free: u64,
    running: Option<Vec<Process>>,
    sheets: &[FigureSheet],
) -> Device {
    let name = format!("cuda:{}", properties.id.0);
    let this = std::process::id();
    let of_this = running.iter().flatten().find(|it| it.pid == this).and_then(|it| it.bytes);
    let holder = |process: Process| {
        let sheet = sheets.iter().find(|it| it.pid == process.pid);
        let figures =
            || sheet.iter().flat_map(|it| &it.devices).filter(|it| is_on(&it.name, &name));
        let is_told = figures().next().is_some();
        Holder {
            pid: process.pid,
            command: sheet.map(|it| it.command.clone()),
            driver: process.bytes,
            allocated: is_told.then(|| figures().map(|it| it.allocated.now).sum()),
            reserved: is_told.then(|| figures().map(|it| it.reserved.now).sum()),
        }
    };
    let others =
        running.map(|list| list.into_iter().filter(|it| it.pid != this).map(holder).collect());
    let hardware = properties.hardware;
    Device {
        device: name.clone(),
        name: properties.name.clone(),
        compute_capability: {
            let (major, minor) = properties.compute_capability;
            format!("{major}.{minor}")
        },
        pci_bus_id: properties.pci_bus_id.clone(),
        multiprocessors: properties.multiprocessors,
        expandable_segments: properties.virtual_memory,
        total: properties.total,
        free,
        this_process: Holder {
            pid: this,
            command: Some("tonnage devices".to_owned()),
            driver: of_this,
            allocated: Some(0),
            reserved: Some(0),
        },
        other_processes: others,
        levels: Levels {
            bandwidth: hardware.bandwidth(),
            l2: hardware.l2,
            shared_per_multiprocessor: hardware.shared_per_multiprocessor,
            shared_per_block: hardware.shared_per_block,
            shared_per_block_most: hardware.shared_per_block_most,
            registers_per_multiprocessor: hardware.registers_per_multiprocessor,
            registers_per_block: hardware.registers_per_block,
            threads_per_multiprocessor: hardware.threads_per_multiprocessor,
            threads_per_block: hardware.threads_per_block,
        },
        clock_khz: hardware.clock_khz,
        memory_clock_khz: hardware.memory_clock_khz,
        memory_bus_bits: hardware.memory_bus_bits,
    }
}

/// Whether a sheet's device, `cuda:0` or `cuda:0#2` for the second on it, is this one.
fn is_on(sheet: &str, device: &str) -> bool {
    sheet.split('#').next() == Some(device)
}

fn text(answered: &Answered) -> String {
    let mut text = String::new();
    for device in &answered.devices {
        // Writing to a string cannot fail.
        let _ = paragraph(&mut text, device);
    }
    if let Some(why) = &answered.unavailable {
        let _ = writeln!(text, "{}", plain(why));
    }
    if let Some(DriverVersion { version, cuda }) = &answered.driver {
        let version = version.as_deref().unwrap_or("of a version that NVML does not tell");
        let _ = writeln!(text, "driver    {}, for CUDA up to {cuda}", plain(version));
        for library in &answered.libraries {
            let _ = match (library, &library.missing) {
                (Library { version: Some(version), path: Some(path), .. }, _) => {
                    writeln!(text, "{:<9} {version}, {}", library.name, plain(path))
                }
                (_, missing) => {
                    writeln!(
                        text,
                        "{:<9} {}",
                        library.name,
                        plain(missing.as_deref().unwrap_or("?"))
                    )
                }
            };
        }
    }
    text
}

fn paragraph(text: &mut String, device: &Device) -> std::fmt::Result {
    let Device { name, levels, .. } = device;
    writeln!(
        text,
        "{}    {}, compute capability {}, {} multiprocessors, at {}",
        device.device,
        plain(name),
        device.compute_capability,
        device.multiprocessors,
        plain(&device.pci_bus_id),
    )?;
    writeln!(text, "  memory  {}, of which {} free", Bytes(device.total), Bytes(device.free))?;
    let held = device.this_process.driver;
    let held = held.map_or("not told".to_owned(), |it| format!("{}, its context", Bytes(it)));
    writeln!(text, "  this    {held}; nothing allocated, nothing reserved")?;
    match &device.other_processes {
        None => writeln!(text, "  others  NVML does not tell")?,
        Some(list) if list.is_empty() => writeln!(text, "  others  none")?,
        Some(list) => list.iter().try_for_each(|it| other(text, it))?,
    }
    let kib = |bytes: u32| Bytes(u64::from(bytes));
    writeln!(
        text,
        "  levels  {:.2} TB/s to memory, L2 {}",
        levels.bandwidth as f64 / 1e12,
        Bytes(levels.l2)
    )?;
    writeln!(
        text,
        "          shared memory {} of a multiprocessor, {} of a block, up to {} if asked for",
        kib(levels.shared_per_multiprocessor),
        kib(levels.shared_per_block),
        kib(levels.shared_per_block_most),
    )?;
    writeln!(
        text,
        "          registers {} of a multiprocessor, {} of a block",
        kib(4 * levels.registers_per_multiprocessor),
        kib(4 * levels.registers_per_block),
    )
}

fn other(text: &mut String, holder: &Holder) -> std::fmt::Result {
    let held = holder.driver.map_or("not told".to_owned(), |it| Bytes(it).to_string());
    write!(text, "  others  process {}", holder.pid)?;
    if let Some(command) = &holder.command {
        write!(text, " ({})", plain(command))?;
    }
    write!(text, ": {held}")?;
    if let (Some(allocated), Some(reserved)) = (holder.allocated, holder.reserved) {
        write!(text, ", {} allocated, {} reserved", Bytes(allocated), Bytes(reserved))?;
    }
    writeln!(text)
}
