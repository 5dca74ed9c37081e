//! Where a recipe runs.

use std::fmt;
use std::str::FromStr;

use tonnage_memory::{DeviceOptions, RecordOptions};
use tonnage_tensor::Device;

use crate::error::{Error, Result};
use crate::options::Options;

/// A kind of device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DeviceKind {
    /// This machine's memory.
    Host,
    /// None: nothing is computed, the bytes are the same.
    Dry,
}

impl DeviceKind {
    /// Bytes of a dry device without a limit: a thousand of the largest machines, and few enough that every
    /// address is a whole number in any program that reads a snapshot.
    pub const UNLIMITED: u64 = 1 << 50;

    /// Bytes of the host without a limit: it keeps addresses for twenty times as many.
    const HOST: u64 = 1 << 40;

    /// Such a device as `options` want it: as large as their limit, with their settings; it records
    /// its history if a snapshot is to be written. With a limit both kinds have the same size, so that
    /// the allocator does the same on each; without one it never comes to their ends.
    ///
    /// # Errors
    ///
    /// If the settings are wrong.
    pub fn open(self, options: &Options) -> Result<Device> {
        let unlimited = match self {
            Self::Host => Self::HOST,
            Self::Dry => Self::UNLIMITED,
        };
        let capacity = options.limit.unwrap_or(unlimited);
        let config = options.config()?;
        let collects = config.garbage_collection_threshold() > 0.0;
        let setup = DeviceOptions {
            config,
            snapshot_on_oom: options.save.clone(),
            ..DeviceOptions::default()
        };
        let device = match self {
            Self::Host => Device::host_with(capacity, setup)?,
            Self::Dry => Device::dry_with(capacity, setup)?,
        };
        if collects {
            // The threshold is a share of what the process may have, not of what the device has.
            device.memory().set_limit(options.limit);
        }
        if options.save.is_some() {
            device.memory().record_history(Some(RecordOptions::default()));
        }
        Ok(device)
    }
}

impl fmt::Display for DeviceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Host => "host",
            Self::Dry => "dry",
        })
    }
}

impl FromStr for DeviceKind {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "host" => Ok(Self::Host),
            "dry" => Ok(Self::Dry),
            _ if text == "cuda" || text.starts_with("cuda:") => Err(Error::Options(format!(
                "`{text}`: recipes do not run on CUDA yet, since its kernels do not exist: take host, or dry for the same bytes"
            ))),
            _ => Err(Error::Options(format!("`{text}` is no device: take host or dry"))),
        }
    }
}
