//! The shared libraries that the archive is linked to: file names, symbol versions, exported names.

/// A shared library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Library {
    /// Its file name; `{major}` stands for the runtime's first number.
    file: &'static str,
    /// The version that its symbols carry; empty for none.
    version: &'static str,
    /// What it exports, as patterns of a version script.
    exports: &'static str,
}

/// Every library, in the order in which they are linked.
pub const LIBRARIES: [Library; 2] = [
    Library {
        file: "libcudart.so.{major}",
        version: "libcudart.so.{major}",
        exports: "cuda*; fake_cudart_control;",
    },
    Library { file: "libnvidia-ml.so.1", version: "", exports: "nvml*;" },
];

impl Library {
    /// The file, for a release of the runtime.
    #[must_use]
    pub fn file(&self, major: u32) -> String {
        self.file.replace("{major}", &major.to_string())
    }

    /// The linker's version script, for a release of the runtime.
    #[must_use]
    pub fn version_script(&self, major: u32) -> String {
        let version = self.version.replace("{major}", &major.to_string());
        format!("{version} {{ global: {} local: *; }};\n", self.exports)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_runtime_carries_its_version_and_the_management_library_none() {
        let [runtime, management] = LIBRARIES;
        assert_eq!(runtime.file(12), "libcudart.so.12");
        assert_eq!(
            runtime.version_script(13),
            "libcudart.so.13 { global: cuda*; fake_cudart_control; local: *; };\n"
        );
        assert_eq!(management.version_script(13), " { global: nvml*; local: *; };\n");
    }
}
