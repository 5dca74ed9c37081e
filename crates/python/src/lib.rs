//! The extension module `tonnage._tonnage`: what the Python package asks of Rust.
//!
//! In:  paths, bytes, file objects, the dictionary of `torch.cuda.memory._snapshot()`; the words of a command.
//! Out: [`snapshot::Snapshot`] and what it answers: JSON, texts, tables, a page.
//!
//! Names, types and documentation that people meet are those of the Python files in `tonnage/`; nothing here is
//! public. Everything that takes long runs without the interpreter's lock, and Ctrl-C is answered meanwhile.

// How work is done, and what goes wrong.
mod errors;

mod work;

// What is read,
mod input;

mod live;

mod snapshot;

// and what it answers.
mod report;

mod table;

mod page;

use std::ffi::OsString;

use pyo3::prelude::*;

/// What the Python package asks of Rust.
#[pymodule]
mod _tonnage {
    use super::{OsString, errors, work};
    use pyo3::prelude::*;

    #[pymodule_export]
    use super::page::Page;
    #[pymodule_export]
    use super::report::Report;
    #[pymodule_export]
    use super::snapshot::Snapshot;
    #[pymodule_export]
    use super::table::Table;

    #[pymodule_export]
    const VERSION: &str = env!("CARGO_PKG_VERSION");

    /// Runs the command with these words, of which the first is its name, and returns its exit status.
    #[pyfunction]
    fn command(py: Python<'_>, words: Vec<OsString>) -> u8 {
        py.detach(|| tonnage_cli::command(words))
    }

    /// Asks a verb that needs no snapshot: text, JSON, and whether the answer is negative.
    #[pyfunction]
    fn ask(py: Python<'_>, words: Vec<String>) -> PyResult<(String, String, bool)> {
        let answered = work::run(py, move |_| tonnage_cli::ask(&words, &[]))?;
        Ok(super::snapshot::plain(answered.map_err(errors::raise)?))
    }

    /// The bytes that a text means, such as `24GiB`.
    #[pyfunction]
    fn parse_size(text: &str) -> PyResult<u64> {
        let size: Result<tonnage::Bytes, _> = text.parse();
        size.map(|size| size.0).map_err(|error| errors::usage(&error.to_string()))
    }

    /// Bytes as people read them.
    #[pyfunction]
    fn show_size(bytes: u64) -> String {
        tonnage::Bytes(bytes).to_string()
    }
}
