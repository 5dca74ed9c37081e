//! Where a recipe runs.

use std::fmt;
use std::str::FromStr;

use tonnage_memory::{DeviceOptions, RecordOptions};
use tonnage_tensor::{Device, MemoryProfile};

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
    /// A GPU, by its number.
    Cuda(u32),
}

impl DeviceKind {
    /// Bytes of a dry device without a limit: a thousand of the largest machines, and few enough that every
    /// address is a whole number in any program that reads a snapshot.
    pub const UNLIMITED: u64 = 1 << 50;

    /// Bytes of the host without a limit: it keeps addresses for twenty times as many.
    const HOST: u64 = 1 << 40;

    /// The options as this kind takes them: on a GPU, the runtime's own scratch memory is always there.
    #[must_use]
    pub fn adapt(self, mut options: Options) -> Options {
        if matches!(self, Self::Cuda(_)) {
            options.memory_profile = MemoryProfile::Tonnage;
        }
        options
    }

    /// Such a device as `options` want it: as large as their limit, with their settings; it records
    /// its history if a snapshot is to be written. With a limit `host` and `dry` have the same size, so that
    /// the allocator does the same on each; without one it never comes to their ends. A GPU is as large as it is, and
    /// the limit is the allocator's.
    ///
    /// # Errors
    ///
    /// If the settings are wrong, or if there is no such GPU.
    pub fn open(self, options: &Options) -> Result<Device> {
        let capacity = |unlimited| options.limit.unwrap_or(unlimited);
        let config = options.config()?;
        let collects = config.garbage_collection_threshold() > 0.0;
        let setup = DeviceOptions {
            config,
            policy: options.policy,
            snapshot_on_oom: options.save.clone(),
            ..DeviceOptions::default()
        };
        let device = match self {
            Self::Host => Device::host_with(capacity(Self::HOST), setup)?,
            Self::Dry => Device::dry_with(capacity(Self::UNLIMITED), setup)?,
            Self::Cuda(ordinal) => Device::cuda_with(ordinal, setup)?,
        };
        device.set_memory_profile(self.adapt(options.clone()).memory_profile);
        device.allow_tf32(options.tf32);
        if collects || matches!(self, Self::Cuda(_)) {
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
        match self {
            Self::Host => f.pad("host"),
            Self::Dry => f.pad("dry"),
            Self::Cuda(ordinal) => f.pad(&format!("cuda:{ordinal}")),
        }
    }
}

impl FromStr for DeviceKind {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "host" => Ok(Self::Host),
            "dry" => Ok(Self::Dry),
            "cuda" => Ok(Self::Cuda(0)),
            _ => match text.strip_prefix("cuda:").map(str::parse) {
                Some(Ok(ordinal)) => Ok(Self::Cuda(ordinal)),
                Some(Err(_)) => {
                    let what = format!("`{text}` names no GPU: take cuda:0 for the first");
                    Err(Error::Options(what))
                }
                None => {
                    let what = format!("`{text}` is no device: take host, dry or cuda:0");
                    Err(Error::Options(what))
                }
            },
        }
    }
}
