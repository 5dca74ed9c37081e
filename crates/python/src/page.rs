//! The page of `tonnage view`, served by this process on its own machine's address.

use std::mem;
use std::sync::{Arc, Mutex};

use pyo3::prelude::*;
use tonnage::snapshot::SnapshotFile;
use tonnage_view::{Recordings, Running, Server, ViewOptions};

use crate::errors::raise;
use crate::work;

/// A page that is served until it is closed or forgotten.
#[pyclass(frozen, module = "tonnage._tonnage")]
pub(crate) struct Page {
    /// The address to open, token included.
    #[pyo3(get)]
    url: String,
    /// Its port.
    #[pyo3(get)]
    port: u16,
    running: Mutex<Option<Running>>,
    /// The process that serves it: a fork has the page's memory, but not its threads.
    process: u32,
}

impl Page {
    /// Serves a snapshot by its name.
    pub(crate) fn serve(
        py: Python<'_>,
        name: &str,
        file: Arc<SnapshotFile>,
        limit: Option<u64>,
        port: Option<u16>,
    ) -> PyResult<Self> {
        let name = name.to_owned();
        let served = work::run(py, move |_| -> anyhow::Result<Self> {
            let recordings = Recordings::new(ViewOptions { limit, ..ViewOptions::default() });
            recordings.open(&name, SnapshotFile::clone(&file));
            let server = Server::bind(recordings, port)?.in_frames_of_this_machine();
            let (url, port) = (server.url(), server.port());
            let running = server.start()?;
            Ok(Self { url, port, running: Mutex::new(Some(running)), process: std::process::id() })
        })?;
        served.map_err(raise)
    }
}

#[pymethods]
impl Page {
    /// Ends it.
    fn close(&self, py: Python<'_>) {
        // A lock that someone panicked with is as good as any: the server stops when it is dropped.
        let running =
            self.running.lock().map_or_else(|it| it.into_inner().take(), |mut it| it.take());
        py.detach(|| self.end(running));
    }
}

impl Page {
    /// Stops the server and waits for its threads; in a fork there are none to wait for.
    fn end(&self, running: Option<Running>) {
        match self.process == std::process::id() {
            true => drop(running),
            false => mem::forget(running),
        }
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        let running = self.running.get_mut().map_or_else(|it| it.into_inner().take(), Option::take);
        self.end(running);
    }
}
