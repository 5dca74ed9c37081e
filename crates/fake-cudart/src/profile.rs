//! The device that is imitated: name, memory, attributes; as lines of text, which pass from the program that starts a
//! script to the libraries inside it.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::fmt::Write as _;
use std::path::Path;

/// Where a process finds the lines.
pub const PROFILE_VARIABLE: &str = "TONNAGE_FAKE_PROFILE";

/// The attributes of a device that behaviour here depends on, by the numbers that runtime and driver share.
pub mod attribute {
    use std::ffi::c_int;

    /// Threads of a block, at most.
    pub const MAX_THREADS_PER_BLOCK: c_int = 1;
    /// Multiprocessors.
    pub const MULTIPROCESSORS: c_int = 16;
    /// Threads that a multiprocessor has at once.
    pub const MAX_THREADS_PER_MULTIPROCESSOR: c_int = 39;
    /// The first number of the architecture.
    pub const MAJOR: c_int = 75;
    /// Its second number.
    pub const MINOR: c_int = 76;
    /// Blocks that a multiprocessor has at once.
    pub const MAX_BLOCKS_PER_MULTIPROCESSOR: c_int = 106;
}

/// A device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Profile {
    /// As the driver names it.
    pub name: String,
    /// Bytes, as PyTorch sees them.
    pub total: u64,
    /// Of these, what can be had: the rest is the driver's, or was taken away by a limit.
    pub capacity: u64,
    /// CUDA's release, in its own way of writing it: 13000.
    pub version: c_int,
    /// Attributes by number; those that are missing are 0.
    pub attributes: BTreeMap<c_int, c_int>,
    /// The device in cuDNN's words: the JSON that its device-less mode takes. Empty if there are none.
    pub cudnn: String,
    /// How many of it there are; 0 is one.
    pub devices: c_int,
    /// Releases of CUDA's libraries that the program would have, by name: `cusolver`.
    pub releases: BTreeMap<String, String>,
    /// Whether new addresses ascend, instead of following what a driver was seen to do.
    pub ascending: bool,
}

impl Profile {
    /// An attribute.
    #[must_use]
    pub fn attribute(&self, number: c_int) -> c_int {
        self.attributes.get(&number).copied().unwrap_or(0)
    }

    /// The architecture in one number: 90.
    #[must_use]
    pub fn architecture(&self) -> c_int {
        10 * self.attribute(attribute::MAJOR) + self.attribute(attribute::MINOR)
    }

    /// Whether libraries answer as on the H200 on which their answers were measured: by its name, the architecture, and the number
    /// of multiprocessors, which an H100 has too.
    #[must_use]
    pub fn is_like_measured(&self) -> bool {
        self.name.starts_with("NVIDIA H200")
            && self.architecture() == 90
            && self.attribute(attribute::MULTIPROCESSORS) == 132
    }

    /// Whether a library is of this release: one of these numbers, or more of them.
    #[must_use]
    pub fn has_release(&self, library: &str, release: &str) -> bool {
        let rest = self.releases.get(library).and_then(|it| it.strip_prefix(release));
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    }

    /// Blocks of so many threads that a multiprocessor has at once, if nothing else is scarce.
    #[must_use]
    pub fn blocks_at_once(&self, threads: c_int) -> c_int {
        let threads = threads.max(1);
        let by_threads = self.attribute(attribute::MAX_THREADS_PER_MULTIPROCESSOR) / threads;
        by_threads.min(self.attribute(attribute::MAX_BLOCKS_PER_MULTIPROCESSOR)).max(1)
    }

    /// As lines.
    #[must_use]
    pub fn to_lines(&self) -> String {
        let mut lines = format!(
            "name {}\ntotal {}\ncapacity {}\nversion {}\ncudnn {}\ndevices {}\nascending {}\n",
            self.name.replace('\n', " "),
            self.total,
            self.capacity,
            self.version,
            self.cudnn.replace('\n', " "),
            self.devices,
            self.ascending
        );
        for (number, value) in &self.attributes {
            // Writing to a string cannot fail.
            let _ = writeln!(lines, "attribute {number} {value}");
        }
        for (library, release) in &self.releases {
            let _ = writeln!(lines, "release {library} {}", release.replace('\n', " "));
        }
        lines
    }

    /// From lines.
    ///
    /// # Errors
    ///
    /// The line that is none.
    pub fn from_lines(text: &str) -> Result<Self, String> {
        let mut profile = Self::default();
        for line in text.lines() {
            profile.take(line).ok_or_else(|| format!("no line of a device's profile: {line}"))?;
        }
        Ok(profile)
    }

    fn take(&mut self, line: &str) -> Option<()> {
        let (key, value) = line.split_once(' ')?;
        match key {
            "name" => value.clone_into(&mut self.name),
            "total" => self.total = value.parse().ok()?,
            "capacity" => self.capacity = value.parse().ok()?,
            "version" => self.version = value.parse().ok()?,
            "cudnn" => value.clone_into(&mut self.cudnn),
            "devices" => self.devices = value.parse().ok()?,
            "ascending" => self.ascending = value.parse().ok()?,
            "release" => {
                let (library, release) = value.split_once(' ')?;
                self.releases.insert(library.to_owned(), release.to_owned());
            }
            "attribute" => {
                let (number, value) = value.split_once(' ')?;
                self.attributes.insert(number.parse().ok()?, value.parse().ok()?);
            }
            _ => return None,
        }
        Some(())
    }

    /// The one that this process was told of, if any.
    pub(crate) fn of_environment() -> Option<Self> {
        let path = std::env::var_os(PROFILE_VARIABLE)?;
        let text = std::fs::read_to_string(Path::new(&path));
        let profile =
            text.map_err(|error| error.to_string()).and_then(|text| Self::from_lines(&text));
        match profile {
            Ok(profile) => Some(profile),
            Err(error) => {
                eprintln!("the fake CUDA libraries cannot read {}: {error}", path.display());
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_is_the_same_after_its_lines_were_read() {
        let profile = Profile {
            name: "A card with spaces".to_owned(),
            total: 1 << 40,
            capacity: 1 << 39,
            version: 13000,
            attributes: [(16, 132), (75, 9), (76, 1), (39, 2048), (106, 32)].into(),
            cudnn: "{\"a\": [1, 2]}".to_owned(),
            devices: 8,
            releases: [("cufft".to_owned(), "12.0.0.61".to_owned())].into(),
            ascending: true,
        };
        assert!(profile.has_release("cufft", "12.0") && !profile.has_release("cufft", "12.0.0.6"));
        assert!(!profile.has_release("cusolver", "12.0"));
        assert_eq!(Profile::from_lines(&profile.to_lines()), Ok(profile.clone()));
        assert_eq!(profile.architecture(), 91);
        assert_eq!(profile.blocks_at_once(128), 16);
        assert_eq!(profile.blocks_at_once(1), 32);
        assert_eq!(profile.blocks_at_once(4096), 1);
        for line in ["name", "total x", "attribute 1", "release x", "colour red"] {
            assert!(Profile::from_lines(line).unwrap_err().contains(line));
        }
    }
}
