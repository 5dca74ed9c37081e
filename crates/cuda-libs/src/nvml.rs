//! NVML: which processes hold how much of a device's memory, as the driver sees it.
//!
//! It comes with the driver and is loaded at run time. Where it is not, or says nothing, as in some containers, nothing is
//! known of other processes.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};

use crate::find::{Found, Search, Wanted};
use crate::{Error, Result};

/// Who knows the processes.
pub const NVML: Wanted = Wanted {
    name: "NVML",
    purpose: "tells which processes use a device",
    files: &[("libnvidia-ml.so.1", 0)],
    companions: &[],
    package: "nvidia-ml-py",
};

/// What every call returns.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
struct Status(c_int);

impl Status {
    const SUCCESS: Self = Self(0);
    const INSUFFICIENT_SIZE: Self = Self(7);
}

/// A device of NVML's.
#[derive(Clone, Copy)]
#[repr(transparent)]
struct Device(*mut c_void);

/// `nvmlProcessInfo_t`, of the calls with `_v3`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct ProcessInfo {
    pid: c_uint,
    used: u64,
    gpu_instance: c_uint,
    compute_instance: c_uint,
}

const _: () = assert!(size_of::<ProcessInfo>() == 24);

/// `NVML_VALUE_NOT_AVAILABLE`
const UNKNOWN: u64 = u64::MAX;

/// Bytes for a version.
const VERSION_BYTES: usize = 96;

struct Table {
    init: unsafe extern "C" fn() -> Status,
    error_string: unsafe extern "C" fn(Status) -> *const c_char,
    driver_version: unsafe extern "C" fn(*mut c_char, c_uint) -> Status,
    device: unsafe extern "C" fn(*const c_char, *mut Device) -> Status,
    processes: unsafe extern "C" fn(Device, *mut c_uint, *mut ProcessInfo) -> Status,
}

/// NVML, loaded and started.
pub struct Nvml {
    table: Table,
}

/// A process that computes on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    /// Its number, in NVML's view: in a container that of the machine, or of the container.
    pub pid: u32,
    /// Bytes that it holds, its context included; none if the driver does not tell.
    pub bytes: Option<u64>,
}

impl Nvml {
    /// Finds, loads and starts NVML.
    ///
    /// # Errors
    ///
    /// If it is nowhere, or does not start.
    pub fn load(search: &Search) -> Result<Self> {
        let found = search.open(&NVML)?;
        let table = Table::resolve(&found)?;
        found.keep();
        let nvml = Self { table };
        // SAFETY: takes nothing; may be called any number of times.
        let status = unsafe { (nvml.table.init)() };
        nvml.check("nvmlInit", status, "this machine")?;
        Ok(nvml)
    }

    /// The driver's own version: `580.82.07`.
    ///
    /// # Errors
    ///
    /// If NVML cannot tell.
    pub fn driver_version(&self) -> Result<String> {
        let mut text = [0u8; VERSION_BYTES];
        // SAFETY: `text` has as many bytes as NVML is told.
        let status = unsafe {
            (self.table.driver_version)(text.as_mut_ptr().cast(), VERSION_BYTES as c_uint)
        };
        self.check("nvmlSystemGetDriverVersion", status, "this machine")?;
        let text = CStr::from_bytes_until_nul(&text).unwrap_or_default();
        Ok(text.to_string_lossy().into_owned())
    }

    /// The processes that compute on the device at this place of the bus, as in `0000:1b:00.0`.
    ///
    /// # Errors
    ///
    /// If there is no such device, or if NVML cannot tell.
    pub fn processes(&self, pci_bus_id: &str) -> Result<Vec<Process>> {
        let place = CString::new(pci_bus_id)
            .map_err(|_| Error::Misuse("a place of the bus has no zero byte".into()))?;
        let mut device = Device(std::ptr::null_mut());
        // SAFETY: the text ends in a zero byte; `device` is a place for one handle.
        let status = unsafe { (self.table.device)(place.as_ptr(), &mut device) };
        self.check("nvmlDeviceGetHandleByPciBusId", status, pci_bus_id)?;
        let mut room = 64;
        loop {
            let mut list = vec![ProcessInfo::default(); room];
            let mut count = room as c_uint;
            // SAFETY: the device is NVML's; `list` has as many places as it is told.
            let status = unsafe { (self.table.processes)(device, &mut count, list.as_mut_ptr()) };
            // More have come meanwhile; there is an end to that.
            if status == Status::INSUFFICIENT_SIZE && room < 1 << 16 {
                room *= 4;
                continue;
            }
            self.check("nvmlDeviceGetComputeRunningProcesses", status, pci_bus_id)?;
            list.truncate(count as usize);
            let known = |used: u64| (used != UNKNOWN).then_some(used);
            return Ok(list
                .iter()
                .map(|it| Process { pid: it.pid, bytes: known(it.used) })
                .collect());
        }
    }

    fn check(&self, call: &'static str, status: Status, what: &str) -> Result<()> {
        if status == Status::SUCCESS {
            return Ok(());
        }
        // SAFETY: NVML answers every number with a constant text.
        let text = unsafe { (self.table.error_string)(status) };
        let status = if text.is_null() {
            status.0.to_string()
        } else {
            // SAFETY: a constant text ends in a zero byte and is never freed.
            unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
        };
        Err(Error::Refused { library: "NVML", call, status, what: what.to_owned() })
    }
}

impl Table {
    fn resolve(found: &Found) -> Result<Self> {
        macro_rules! get {
            ($name:literal) => {{
                // SAFETY: the field's type is that of the function of this name in NVML's manual.
                unsafe { found.function($name) }?
            }};
        }
        Ok(Self {
            init: get!("nvmlInit_v2"),
            error_string: get!("nvmlErrorString"),
            driver_version: get!("nvmlSystemGetDriverVersion"),
            device: get!("nvmlDeviceGetHandleByPciBusId_v2"),
            processes: get!("nvmlDeviceGetComputeRunningProcesses_v3"),
        })
    }
}
