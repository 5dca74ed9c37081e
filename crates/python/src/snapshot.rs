//! A snapshot that was read, and the questions that are asked of it.

use std::path::PathBuf;
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyDict;
use tonnage::analysis::{Levels, Lifetimes, Phase, devices};
use tonnage::export::{self, arrow_batches, arrow_schema, recorded_events_schema};
use tonnage::snapshot::{AllocatorSettings, HistoryColumns, SnapshotFile};
use tonnage_cli::{Answered, Named, ask, ask_plot, ask_report};

use crate::contents::Contents;
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
    /// How many bytes lie behind it in its file, which nobody reads.
    #[pyo3(get)]
    trailing: u64,
    settings: Option<AllocatorSettings>,
    contents: Arc<Contents>,
}

impl Snapshot {
    fn new(name: String, (file, history): (SnapshotFile, Vec<HistoryColumns>)) -> Self {
        let (trailing, settings) = (file.trailing, file.settings.clone());
        Self { name, trailing, settings, contents: Arc::new(Contents::new(file, history)) }
    }

    /// Does work with the file, elsewhere, and waits for it.
    fn with_file<T: Send + 'static>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(Arc<SnapshotFile>) -> anyhow::Result<T> + Send + 'static,
    ) -> PyResult<T> {
        let contents = Arc::clone(&self.contents);
        work::run(py, move |_| work(contents.file()?))?.map_err(raise)
    }
}

/// Of each column of a picture its entry, the bytes of its groups, and the reserved bytes.
type Columns = Vec<(usize, Vec<u64>, u64)>;

/// What the program was doing in each column; the first entries of iterations; the requests that failed.
type Marks = (Vec<Option<&'static str>>, Vec<usize>, Vec<usize>);

/// The text without colours, the JSON, and whether the answer is negative.
pub(crate) fn plain(answered: Answered) -> (String, String, bool) {
    let Answered { text, json, negative } = answered;
    (anstream::adapter::strip_str(&text).to_string(), json, negative)
}

fn read(py: Python<'_>, name: String, memory: Option<u64>, input: Input) -> PyResult<Snapshot> {
    let work = move |stop: &Stop| {
        let file = input.read(&name, memory, stop);
        file.map(|file| Snapshot::new(name, file))
    };
    work::run(py, work)?.map_err(raise)
}

#[pymethods]
impl Snapshot {
    /// Reads a file.
    #[staticmethod]
    #[pyo3(signature = (path, name, max_memory=None))]
    fn from_path(
        py: Python<'_>,
        path: PathBuf,
        name: String,
        max_memory: Option<u64>,
    ) -> PyResult<Self> {
        read(py, name, max_memory, Input::Path(path))
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
        Ok(Self::new(name, file))
    }

    /// Asks a verb about it: text, JSON, and whether the answer is negative.
    #[pyo3(signature = (words, other=None))]
    fn ask(
        &self,
        py: Python<'_>,
        words: Vec<String>,
        other: Option<&Self>,
    ) -> PyResult<(String, String, bool)> {
        let name = self.name.clone();
        let other = other.map(|it| (it.name.clone(), Arc::clone(&it.contents)));
        let answered = self.with_file(py, move |file| {
            let mut inputs = vec![(name, file)];
            if let Some((name, contents)) = other {
                inputs.push((name, contents.file()?));
            }
            let inputs: Vec<Named<'_>> = inputs.iter().map(|it| (&*it.0, &*it.1)).collect();
            ask(&words, &inputs)
        })?;
        Ok(plain(answered))
    }

    /// The diagnosis.
    fn report(&self, py: Python<'_>, words: Vec<String>) -> PyResult<Report> {
        let name = self.name.clone();
        let reported = self.with_file(py, move |file| ask_report(&words, &[(&name, &file)]))?;
        Ok(Report::new(reported))
    }

    /// Memory over time: as SVG; and the names of what it is told apart by, then for each column its entry, the bytes of
    /// each of these and the reserved bytes.
    fn plot(
        &self,
        py: Python<'_>,
        words: Vec<String>,
    ) -> PyResult<(String, Vec<String>, Columns, Marks)> {
        let name = self.name.clone();
        let drawn = self.with_file(py, move |file| ask_plot(&words, (&name, &file)))?;
        let strata = drawn.strata;
        let phases = strata.columns.iter().map(|it| it.phase.map(Phase::name)).collect();
        let columns = strata.columns.into_iter();
        let columns = columns.map(|it| (it.event, it.bytes, it.reserved)).collect();
        Ok((drawn.svg, strata.groups, columns, (phases, strata.iterations, strata.failed)))
    }

    /// The peaks of a device within its history, in the order requested, allocated, active, reserved.
    fn peaks(&self, py: Python<'_>) -> PyResult<Vec<(u32, Option<[u64; 4]>)>> {
        self.with_file(py, move |file| {
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
            Ok(peaks.collect())
        })
    }

    /// One of its tables.
    fn table(&self, py: Python<'_>, table: &str) -> PyResult<Table> {
        let table = table.parse().map_err(|error: String| usage(&error))?;
        let batches = self.with_file(py, move |file| Ok(arrow_batches(&file, table)?))?;
        Ok(Table::new(table, arrow_schema(table), batches))
    }

    /// The table of events, as far as the file itself has its columns.
    fn recorded_events(&self, py: Python<'_>) -> PyResult<Table> {
        let contents = Arc::clone(&self.contents);
        let made =
            work::run(py, move |_| -> anyhow::Result<_> { Ok(contents.table()?.batches()?) });
        let batches = made?.map_err(raise)?;
        Ok(Table::new(export::Table::Events, recorded_events_schema(), batches))
    }

    /// The settings of the allocator as the file has them; none if it does not tell.
    fn settings<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        let Some(settings) = &self.settings else { return Ok(None) };
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

    /// Writes it as PyTorch would, packed if the name ends in `.zst`; in the place of another file only by `force`.
    #[pyo3(signature = (path, force=false))]
    fn save(&self, py: Python<'_>, path: PathBuf, force: bool) -> PyResult<()> {
        self.with_file(py, move |file| {
            match force {
                true => tonnage::snapshot::save(&path, &file)?,
                false => tonnage::snapshot::save_new(&path, &file)?,
            }
            Ok(())
        })
    }

    /// Serves it as a page, on this machine's own address.
    #[pyo3(signature = (limit=None, port=None))]
    fn view(&self, py: Python<'_>, limit: Option<u64>, port: Option<u16>) -> PyResult<Page> {
        let file = self.with_file(py, Ok)?;
        Page::serve(py, &self.name, file, limit, port)
    }
}
