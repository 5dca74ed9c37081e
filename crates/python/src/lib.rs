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

mod contents;

mod snapshot;

// and what it answers.
mod report;

mod table;

mod page;

use pyo3::prelude::*;

/// What the Python package asks of Rust.
#[pymodule]
mod _tonnage {
    use std::ffi::OsString;
    use std::io::Write;
    use std::path::PathBuf;

    use pyo3::prelude::*;
    use pyo3::pybacked::PyBackedBytes;
    use tonnage::snapshot::OutputFile;

    use super::{errors, work};

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

    /// Runs the command with these words, of which the first is its name, and returns its exit status. Signals are its
    /// own from here on: for a process that does nothing else.
    #[pyfunction]
    fn command(py: Python<'_>, words: Vec<OsString>) -> PyResult<u8> {
        find_libraries(py)?;
        py.detach(|| work::guard(|| tonnage_cli::command(words)))
    }

    /// Says where the libraries lie that PyTorch scripts run on: a wheel has them in the package.
    fn find_libraries(py: Python<'_>) -> PyResult<()> {
        let package: PathBuf = py.import("tonnage")?.getattr("__file__")?.extract()?;
        tonnage_cli::libraries_in(package.with_file_name("libraries"));
        Ok(())
    }

    /// Says that this process is a fork: threads of its parent did not come along.
    #[pyfunction]
    fn after_fork() {
        tonnage::tensor::after_fork();
    }

    /// Writes a file, whole or not at all; in the place of another only by `force`.
    #[pyfunction]
    #[pyo3(signature = (path, data, force=false))]
    fn write_file(py: Python<'_>, path: PathBuf, data: PyBackedBytes, force: bool) -> PyResult<()> {
        let write = move |_: &work::Stop| -> anyhow::Result<()> {
            let mut file = OutputFile::at(path)?;
            if !force {
                file = file.only_if_new()?;
            }
            file.write(|out| Ok(out.write_all(&data)?))
        };
        work::run(py, write)?.map_err(errors::raise)
    }

    /// Asks a verb that needs no snapshot: text, JSON, and whether the answer is negative. Where ranks are run, whoever presses
    /// Ctrl-C waits until scripts are ended and the dataset is free for others.
    #[pyfunction]
    fn ask(py: Python<'_>, words: Vec<String>) -> PyResult<(String, String, bool)> {
        find_libraries(py)?;
        let mut flags = words.iter().take_while(|word| *word != "--");
        let runs_ranks =
            flags.any(|word| matches!(word.split('=').next(), Some("--out" | "--one")));
        let ask = move |stop: &work::Stop| {
            // Scripts that run end with whoever waits for them.
            tonnage_cli::stop_scripts_when(stop.until(), || tonnage_cli::ask(&words, &[]))
        };
        let answered = if runs_ranks { work::run_to_its_end(py, ask) } else { work::run(py, ask) }?;
        Ok(super::snapshot::plain(answered.map_err(errors::raise)?))
    }

    /// Asks `fleet`, which stops when someone presses Ctrl-C, keeps what is done, and leaves its dataset to others.
    #[pyfunction]
    fn ask_fleet(py: Python<'_>, words: Vec<String>) -> PyResult<(String, String, bool)> {
        let answered = work::run_to_its_end(py, move |stop| {
            tonnage_cli::ask_until(&words, &[], stop.until())
        })?;
        Ok(super::snapshot::plain(answered.map_err(errors::raise)?))
    }

    /// The variables by which a process of this Python, with PyTorch in it, has a GPU that computes nothing; and the folder
    /// that it needs to its end.
    #[pyfunction]
    fn fake_gpu(
        py: Python<'_>,
        python: String,
        gpu: String,
    ) -> PyResult<(PathBuf, Vec<(&'static str, OsString)>)> {
        find_libraries(py)?;
        let made = work::run(py, move |_| tonnage_cli::fake_gpu(&python, &gpu))?;
        made.map_err(|error| errors::raise(error.into()))
    }

    /// An SVG as PNG.
    #[pyfunction]
    fn png(py: Python<'_>, svg: String) -> PyResult<Vec<u8>> {
        work::run(py, move |_| tonnage_cli::png(&svg))?.map_err(errors::raise)
    }

    /// Where the table of the drop-in's functions is, for the shim.
    #[pyfunction]
    fn drop_in_interface() -> usize {
        std::ptr::from_ref(tonnage_drop_in::tonnage_interface()).expose_provenance()
    }

    /// Gives cached bytes of a device back, or all that one of PyTorch's pools caches, and says how many.
    #[pyfunction]
    #[pyo3(signature = (device, bytes, pool=None))]
    fn release_memory(
        py: Python<'_>,
        device: u32,
        bytes: u64,
        pool: Option<(u64, u64)>,
    ) -> PyResult<u64> {
        py.detach(|| tonnage_drop_in::release(device, pool, bytes)).map_err(errors::sharing)
    }

    /// Gives all memory of a device back for a while, or of one of PyTorch's pools, and says how much it was.
    #[pyfunction]
    #[pyo3(signature = (device, keep, pool=None))]
    fn pause_memory(
        py: Python<'_>,
        device: u32,
        keep: bool,
        pool: Option<(u64, u64)>,
    ) -> PyResult<u64> {
        py.detach(|| tonnage_drop_in::pause(device, pool, keep)).map_err(errors::sharing)
    }

    /// Obtains it again.
    #[pyfunction]
    #[pyo3(signature = (device, pool=None))]
    fn resume_memory(py: Python<'_>, device: u32, pool: Option<(u64, u64)>) -> PyResult<()> {
        py.detach(|| tonnage_drop_in::resume(device, pool)).map_err(errors::sharing)
    }

    /// Raises if that would be refused.
    #[pyfunction]
    #[pyo3(signature = (device, pool=None))]
    fn check_pause(py: Python<'_>, device: u32, pool: Option<(u64, u64)>) -> PyResult<()> {
        py.detach(|| tonnage_drop_in::check_pause(device, pool)).map_err(errors::sharing)
    }

    /// Notes that one of PyTorch's pools is a tag's.
    #[pyfunction]
    fn tag_pool(py: Python<'_>, device: u32, pool: (u64, u64), name: &str) -> PyResult<()> {
        py.detach(|| tonnage_drop_in::tag(device, pool, name)).map_err(errors::sharing)
    }

    /// The pools whose memory is given back now by themselves, each with its device.
    #[pyfunction]
    fn paused_pools(py: Python<'_>) -> PyResult<Vec<(u32, (u64, u64))>> {
        py.detach(tonnage_drop_in::paused_pools).map_err(errors::sharing)
    }

    /// The devices whose memory is given back now.
    #[pyfunction]
    fn paused_devices(py: Python<'_>) -> PyResult<Vec<u32>> {
        py.detach(tonnage_drop_in::paused_devices).map_err(errors::sharing)
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
