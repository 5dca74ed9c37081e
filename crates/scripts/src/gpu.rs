//! GPUs as data: name, memory as PyTorch sees it, attributes, what cuDNN is told.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::path::Path;

use serde::Deserialize;
use tonnage_fake_cudart::profile::Profile;

use crate::Error;

/// Files that come with the program, by the memory of the card: name and text.
const KNOWN: [(&str, &str); 11] = [
    ("t4", include_str!("../data/gpus/t4.json")),
    ("l4", include_str!("../data/gpus/l4.json")),
    ("a10g", include_str!("../data/gpus/a10g.json")),
    ("rtx4090", include_str!("../data/gpus/rtx4090.json")),
    ("rtx3090", include_str!("../data/gpus/rtx3090.json")),
    ("rtx5090", include_str!("../data/gpus/rtx5090.json")),
    ("a100-40", include_str!("../data/gpus/a100-40.json")),
    ("a100-80", include_str!("../data/gpus/a100-80.json")),
    ("h100", include_str!("../data/gpus/h100.json")),
    ("h200", include_str!("../data/gpus/h200.json")),
    ("b200", include_str!("../data/gpus/b200.json")),
];

/// A GPU's data, as its file has them.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gpu {
    /// As the driver names it.
    pub name: String,
    /// Whether the data were measured on one, and not taken from public figures.
    pub measured: bool,
    /// Where the data are from.
    pub source: String,
    /// Bytes, as PyTorch sees them.
    pub memory: u64,
    /// Bytes that the driver takes before a program has asked for any: its context.
    pub context: u64,
    /// Whether that was measured, where it differs from the rest.
    context_measured: Option<bool>,
    /// Attributes by the driver's numbers.
    attributes: BTreeMap<c_int, c_int>,
    /// What cuDNN's device-less mode takes.
    cudnn: serde_json::Value,
}

impl Gpu {
    /// By name, or by the path of a file.
    ///
    /// # Errors
    ///
    /// If there is none of this name, or the file holds no GPU's data.
    pub fn find(name: &str) -> Result<Self, Error> {
        if let Some((_, text)) = KNOWN.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)) {
            return Self::parse(name, text);
        }
        let path = Path::new(name);
        if !path.is_file() {
            let known: Vec<_> = KNOWN.iter().map(|(name, _)| *name).collect();
            return Err(Error::NoGpu { name: name.to_owned(), known: known.join(", ") });
        }
        let text = std::fs::read_to_string(path).map_err(Error::of(path))?;
        Self::parse(name, &text)
    }

    /// Whether the driver's share is an estimate: what an H200's took.
    #[must_use]
    pub fn is_context_estimated(&self) -> bool {
        !self.context_measured.unwrap_or(self.measured)
    }

    pub(crate) fn parse(path: &str, text: &str) -> Result<Self, Error> {
        let bad = |reason: String| Error::BadGpu { path: path.to_owned(), reason };
        let gpu: Self = serde_json::from_str(text).map_err(|error| bad(error.to_string()))?;
        if gpu.context >= gpu.memory {
            return Err(bad("the context takes all of the memory".to_owned()));
        }
        Ok(gpu)
    }

    /// Those that come with the program, by their short names.
    pub fn known() -> impl Iterator<Item = (&'static str, Self)> {
        // That each can be read is tested.
        KNOWN.iter().filter_map(|(name, text)| Some((*name, Self::parse(name, text).ok()?)))
    }

    /// Bytes that a script can have of a device of which at most `limit` bytes are there, the driver's share among them.
    ///
    /// # Errors
    ///
    /// If the driver's share leaves nothing.
    pub fn room(&self, limit: Option<u64>) -> Result<u64, Error> {
        let total = self.total(limit);
        let room = total.checked_sub(self.context).filter(|room| *room > 0);
        room.ok_or(Error::NoRoom { limit: total, context: self.context })
    }

    /// Bytes of the device under a limit.
    #[must_use]
    pub fn total(&self, limit: Option<u64>) -> u64 {
        limit.unwrap_or(self.memory).min(self.memory)
    }

    /// The same with other memory.
    pub(crate) fn with_memory(&self, memory: u64) -> Self {
        Self { memory, ..self.clone() }
    }

    /// The device that a script meets, so many times: under a limit, one that has no more.
    pub(crate) fn profile(
        &self,
        limit: Option<u64>,
        version: c_int,
        devices: u32,
    ) -> Result<Profile, Error> {
        Ok(Profile {
            name: self.name.clone(),
            total: self.total(limit),
            capacity: self.room(limit)?,
            version,
            attributes: self.attributes.clone(),
            cudnn: if self.cudnn.is_null() { String::new() } else { self.cudnn.to_string() },
            devices: c_int::try_from(devices).unwrap_or(1),
            releases: BTreeMap::new(),
            ascending: false,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_can_be_read_and_has_what_pytorch_asks_for() {
        let mut last = 0;
        for (name, _) in KNOWN {
            let gpu = Gpu::find(name).unwrap();
            let profile = gpu.profile(None, 13000, 1).unwrap();
            assert_eq!(profile.capacity, gpu.memory - gpu.context, "{name}");
            assert!(profile.architecture() >= 50, "{name}");
            assert_eq!(gpu.measured, name == "h200", "{name}");
            assert_eq!(gpu.is_context_estimated(), name != "h200", "{name}");
            assert_eq!(gpu.cudnn["totalGlobalMem"], gpu.memory, "{name}");
            assert_eq!(gpu.cudnn["deviceVer"], 10 * profile.architecture(), "{name}");
            assert_eq!(gpu.cudnn["multiProcessorCount"], profile.attribute(16), "{name}");
            assert!(gpu.memory > last, "{name} is not in its place");
            last = gpu.memory;
            for attribute in [1, 10, 16, 39, 81, 82, 97, 106] {
                assert!(profile.attribute(attribute) > 0, "{name}: {attribute}");
            }
        }
    }

    #[test]
    fn limits_leave_something_or_are_refused() {
        let gpu = Gpu::find("H200").unwrap();
        let capacity = |limit| gpu.profile(Some(limit), 13000, 1).map(|profile| profile.capacity);
        assert_eq!(capacity(24 << 30).unwrap(), (24 << 30) - gpu.context);
        assert_eq!(capacity(1 << 50).unwrap(), gpu.memory - gpu.context);
        assert!(matches!(capacity(1 << 20), Err(Error::NoRoom { .. })));
        assert!(matches!(capacity(gpu.context), Err(Error::NoRoom { .. })));
    }

    #[test]
    fn an_unknown_gpu_is_told_with_those_that_are_known() {
        let error = Gpu::find("h2000").unwrap_err().to_string();
        assert!(
            error.contains("`h2000`") && error.contains("t4, ") && error.contains("b200;"),
            "{error}"
        );
        let error = Gpu::parse("x.json", "{\"name\": 1}").unwrap_err().to_string();
        assert!(error.starts_with("x.json: no data of a GPU"), "{error}");
    }
}
