//! The diagnosis, as text, JSON and HTML.

use std::sync::Arc;

use pyo3::prelude::*;
use tonnage::analysis::report::{Layout, Ranks};
use tonnage_cli::report_page;

use crate::work;

/// The diagnosis of a snapshot.
#[pyclass(frozen, module = "tonnage._tonnage")]
pub(crate) struct Report(Arc<Ranks>);

impl Report {
    pub(crate) fn new(ranks: Ranks) -> Self {
        Self(Arc::new(ranks))
    }
}

#[pymethods]
impl Report {
    /// For people: as wide as this, or whole.
    #[pyo3(signature = (columns=None))]
    fn text(&self, py: Python<'_>, columns: Option<usize>) -> PyResult<String> {
        let ranks = Arc::clone(&self.0);
        work::run(py, move |_| ranks.to_text_in(Layout { columns, colours: false }))
    }

    /// For programs.
    fn json(&self, py: Python<'_>) -> PyResult<String> {
        let ranks = Arc::clone(&self.0);
        work::run(py, move |_| ranks.to_json())
    }

    /// One page that needs nothing else.
    fn html(&self, py: Python<'_>) -> PyResult<String> {
        let ranks = Arc::clone(&self.0);
        work::run(py, move |_| report_page(&ranks))
    }
}
