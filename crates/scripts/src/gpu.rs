//! GPUs as data: name, memory as PyTorch sees it, attributes, what cuDNN is told.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::path::Path;

use serde::Deserialize;
use tonnage_fake_cudart::profile::Profile;

use crate::Error;

/// Files that come with the program: name and text.
const KNOWN: [(&str, &str); 1] = [("h200", include_str!("../data/gpus/h200.json"))];

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

    fn parse(path: &str, text: &str) -> Result<Self, Error> {
        let bad = |reason: String| Error::BadGpu { path: path.to_owned(), reason };
        let gpu: Self = serde_json::from_str(text).map_err(|error| bad(error.to_string()))?;
        if gpu.context >= gpu.memory {
            return Err(bad("the context takes all of the memory".to_owned()));
        }
        Ok(gpu)
    }

    /// The device that a script meets, of which at most `limit` bytes can be had, the driver's share among them.
    pub(crate) fn profile(&self, limit: Option<u64>, version: c_int) -> Result<Profile, Error> {
        let room = limit.unwrap_or(self.memory).min(self.memory);
        let no_room = Error::NoRoom { limit: room, context: self.context };
        let capacity = room.checked_sub(self.context).filter(|it| *it > 0).ok_or(no_room)?;
        Ok(Profile {
            name: self.name.clone(),
            total: self.memory,
            capacity,
            version,
            attributes: self.attributes.clone(),
            cudnn: if self.cudnn.is_null() { String::new() } else { self.cudnn.to_string() },
            ascending: false,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_can_be_read_and_has_what_pytorch_asks_for() {
        for (name, _) in KNOWN {
            let gpu = Gpu::find(name).unwrap();
            let profile = gpu.profile(None, 13000).unwrap();
            assert_eq!(profile.capacity, gpu.memory - gpu.context, "{name}");
            assert!(profile.architecture() >= 50, "{name}");
            for attribute in [1, 10, 16, 39, 81, 82, 97, 106] {
                assert!(profile.attribute(attribute) > 0, "{name}: {attribute}");
            }
        }
    }

    #[test]
    fn limits_leave_something_or_are_refused() {
        let gpu = Gpu::find("H200").unwrap();
        let capacity = |limit| gpu.profile(Some(limit), 13000).map(|profile| profile.capacity);
        assert_eq!(capacity(24 << 30).unwrap(), (24 << 30) - gpu.context);
        assert_eq!(capacity(1 << 50).unwrap(), gpu.memory - gpu.context);
        assert!(matches!(capacity(1 << 20), Err(Error::NoRoom { .. })));
        assert!(matches!(capacity(gpu.context), Err(Error::NoRoom { .. })));
    }

    #[test]
    fn an_unknown_gpu_is_told_with_those_that_are_known() {
        let error = Gpu::find("h2000").unwrap_err().to_string();
        assert!(
            error.contains("`h2000`") && error.contains("h200,") || error.contains("h200;"),
            "{error}"
        );
        let error = Gpu::parse("x.json", "{\"name\": 1}").unwrap_err().to_string();
        assert!(error.starts_with("x.json: no data of a GPU"), "{error}");
    }
}
