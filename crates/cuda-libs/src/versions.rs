//! Which libraries are here, and which versions: no device is asked.

use std::path::PathBuf;

use crate::blas::CUBLASLT;
use crate::dnn::CUDNN;
use crate::find::{Search, Wanted};
use crate::nvrtc::{Compiler, NVRTC};
use crate::{Error, Result};

/// A library, as it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Library {
    /// Its name for people.
    pub name: &'static str,
    /// Its version and where it lies; or the sentence that says that it is missing.
    pub found: Result<(String, PathBuf), Error>,
}

/// Every library that computing on a device needs.
#[must_use]
pub fn libraries(search: &Search) -> Vec<Library> {
    let nvrtc = || {
        let compiler = Compiler::load(search)?;
        let (major, minor) = compiler.version();
        Ok((format!("{major}.{minor}"), compiler.path().to_owned()))
    };
    let numbered = |wanted: &Wanted, call| {
        let found = search.open(wanted)?;
        // SAFETY: both libraries' functions of these names take nothing and return a number.
        let version = unsafe { found.function::<unsafe extern "C" fn() -> usize>(call) }?;
        // SAFETY: as above.
        let version = unsafe { version() };
        Ok((with_points(version), found.keep()))
    };
    vec![
        Library { name: NVRTC.name, found: nvrtc() },
        Library { name: CUBLASLT.name, found: numbered(&CUBLASLT, "cublasLtGetVersion") },
        Library { name: CUDNN.name, found: numbered(&CUDNN, "cudnnGetVersion") },
    ]
}

/// 130100 is 13.1.0, and 91900 is 9.19.0.
fn with_points(number: usize) -> String {
    format!("{}.{}.{}", number / 10_000, number / 100 % 100, number % 100)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_written_with_points() {
        assert_eq!((with_points(130_100), with_points(91_900)), ("13.1.0".into(), "9.19.0".into()));
    }

    #[test]
    fn what_is_missing_is_said_in_a_sentence() {
        for library in libraries(&Search::default()) {
            match library.found {
                Ok((version, path)) => assert!(!version.is_empty() && path.file_name().is_some()),
                Err(error) => assert!(error.to_string().starts_with(library.name), "{error}"),
            }
        }
    }
}
