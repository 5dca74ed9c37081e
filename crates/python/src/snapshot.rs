//! A snapshot that was read, and the questions that are asked of it.

use std::path::PathBuf;
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyDict;
use tonnage::analysis::{Levels, Lifetimes, devices};
use tonnage::snapshot::SnapshotFile;
use tonnage_cli::{Answered, Named, ask, ask_plot, ask_report};

use crate::errors::{raise, usage};
use crate::input::Input;
use crate::live;
use crate::page::Page;
use crate::report::Report;
use crate::table::Table;
use crate::work::{self, Stop};

/// A snapshot, read.
#[pyclass(frozen, module = "tonnage._tonnage")]
pub(crate) struct Snapshot {
    /// The name it goes by.
    #[pyo3(get)]
    name: String,
    pub(crate) file: Arc<SnapshotFile>,
}

/// The text without colours, the JSON, and whether the answer is negative.
pub(crate) fn plain(answered: Answered) -> (String, String, bool) {
    let Answered { text, json, negative } = answered;
    (anstream::adapter::strip_str(&text).to_string(), json, negative)
}

fn read(py: Python<'_>, name: String, memory: Option<u64>, input: Input) -> PyResult<Snapshot> {
    let work = move |stop: &Stop| {
        let file = input.read(&name, memory, stop);
        file.map(|file| Snapshot { name, file: Arc::new(file) })
    };
    work::run(py, work)?.map_err(raise)
}

#[pymethods]
impl Snapshot {
    /// Reads a file.
    #[staticmethod]
    #[pyo3(signature = (path, max_memory=None))]
    fn from_path(py: Python<'_>, path: PathBuf, max_memory: Option<u64>) -> PyResult<Self> {
        read(py, path.display().to_string(), max_memory, Input::Path(path))
    }

    /// Reads bytes.
    #[staticmethod]
    #[pyo3(signature = (data, name, max_memory=None))]
    fn from_bytes(
        py: Python<'_>,
        data: PyBackedBytes,
        name: String,
        max_memory: Option<u64>,
    ) -> PyResult<Self> {
        read(py, name, max_memory, Input::Bytes(data))
    }

    /// Reads from an object with `read(size)`.
    #[staticmethod]
    #[pyo3(signature = (file, name, max_memory=None))]
    fn from_file(
        py: Python<'_>,
        file: Py<PyAny>,
        name: String,
        max_memory: Option<u64>,
    ) -> PyResult<Self> {
        read(py, name, max_memory, Input::Object(file))
    }

    /// Walks what `torch.cuda.memory._snapshot()` returns.
    #[staticmethod]
    #[pyo3(signature = (snapshot, name))]
    fn from_dict(snapshot: &Bound<'_, PyDict>, name: String) -> PyResult<Self> {
        let file = live::walk(snapshot, &name)?;
        Ok(Self { name, file: Arc::new(file) })
    }

    /// Asks a verb about it: text, JSON, and whether the answer is negative.
    #[pyo3(signature = (words, other=None))]
    fn ask(
        &self,
        py: Python<'_>,
        words: Vec<String>,
        other: Option<&Self>,
    ) -> PyResult<(String, String, bool)> {
        let mut inputs = vec![(self.name.clone(), Arc::clone(&self.file))];
        inputs.extend(other.map(|it| (it.name.clone(), Arc::clone(&it.file))));
        let answered = work::run(py, move |_| {
            let inputs: Vec<Named<'_>> = inputs.iter().map(|it| (&*it.0, &*it.1)).collect();
            ask(&words, &inputs)
        })?;
        answered.map(plain).map_err(raise)
    }

    /// The diagnosis.
    fn report(&self, py: Python<'_>, words: Vec<String>) -> PyResult<Report> {
        let (name, file) = (self.name.clone(), Arc::clone(&self.file));
        let reported = work::run(py, move |_| ask_report(&words, &[(&name, &file)]))?;
        Ok(Report::new(reported.map_err(raise)?))
    }

    /// Memory over time, as SVG.
    fn plot(&self, py: Python<'_>, words: Vec<String>) -> PyResult<String> {
        let (name, file) = (self.name.clone(), Arc::clone(&self.file));
        work::run(py, move |_| ask_plot(&words, (&name, &file)))?.map_err(raise)
    }

    /// The peaks of a device within its history, in the order requested, allocated, active, reserved.
    fn peaks(&self, py: Python<'_>) -> PyResult<Vec<(u32, Option<[u64; 4]>)>> {
        let file = Arc::clone(&self.file);
        work::run(py, move |_| {
            let peaks = devices(&file).into_iter().map(|device| {
                let levels = Levels::of(&device, &Lifetimes::of(&device));
                let peak =
                    |of: fn(&tonnage::analysis::Level) -> u64| levels.peak(of).map(|it| it.bytes);
                let peaks = (!device.entries.is_empty()).then(|| {
                    let all = [
                        peak(|it| it.requested),
                        peak(|it| it.allocated),
                        peak(|it| it.active),
                        peak(|it| it.reserved),
                    ];
                    all.map(|bytes| bytes.unwrap_or(0))
                });
                (device.device.0, peaks)
            });
            peaks.collect()
        })
    }

    /// One of its tables.
    fn table(&self, py: Python<'_>, table: &str) -> PyResult<Table> {
        let table = table.parse().map_err(|error: String| usage(&error))?;
        let file = Arc::clone(&self.file);
        let batches = work::run(py, move |_| tonnage::export::arrow_batches(&file, table))?;
        Ok(Table::new(table, batches.map_err(|error| raise(error.into()))?))
    }

    /// The settings of the allocator as the file has them; none if it does not tell.
    fn settings<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        let Some(settings) = &self.file.settings else { return Ok(None) };
        let dict = PyDict::new(py);
        dict.set_item("conf", &settings.conf)?;
        dict.set_item("max_split_size", settings.max_split_size)?;
        dict.set_item("garbage_collection_threshold", settings.garbage_collection_threshold)?;
        dict.set_item("expandable_segments", settings.expandable_segments)?;
        dict.set_item("pinned_num_register_threads", settings.pinned_num_register_threads)?;
        dict.set_item("release_lock_on_cudamalloc", settings.release_lock_on_cudamalloc)?;
        dict.set_item("pinned_use_cuda_host_register", settings.pinned_use_cuda_host_register)?;
        let reuse = settings.graph_capture_record_stream_reuse;
        dict.set_item("graph_capture_record_stream_reuse", reuse)?;
        dict.set_item("max_round_threshold", settings.max_round_threshold)?;
        dict.set_item("max_cached_size", settings.max_cached_size)?;
        let divisions = settings.roundup_power2_divisions.map(|it| it.to_vec());
        dict.set_item("roundup_power2_divisions", divisions)?;
        Ok(Some(dict))
    }

    /// How many bytes lie behind the snapshot, which nobody reads.
    #[getter]
    fn trailing(&self) -> u64 {
        self.file.trailing
    }

    /// Writes it as PyTorch would, packed if the name ends in `.zst`; in the place of another file only by `force`.
    #[pyo3(signature = (path, force=false))]
    fn save(&self, py: Python<'_>, path: PathBuf, force: bool) -> PyResult<()> {
        let file = Arc::clone(&self.file);
        let saved = work::run(py, move |_| match force {
            true => tonnage::snapshot::save(&path, &file),
            false => tonnage::snapshot::save_new(&path, &file),
        })?;
        saved.map_err(|error| raise(error.into()))
    }

    /// Serves it as a page, on this machine's own address.
    #[pyo3(signature = (limit=None, port=None))]
    fn view(&self, py: Python<'_>, limit: Option<u64>, port: Option<u16>) -> PyResult<Page> {
        Page::serve(py, &self.name, Arc::clone(&self.file), limit, port)
    }
}
