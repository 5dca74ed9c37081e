//! A table of a snapshot, for whoever takes Arrow's C interface: pyarrow, polars, DuckDB, pandas.
//!
//! In:  record batches. Out: capsules by the names of Arrow's PyCapsule interface; columns are shared, not copied.

use arrow_array::ffi::FFI_ArrowSchema;
use arrow_array::ffi_stream::FFI_ArrowArrayStream;
use arrow_array::{RecordBatch, RecordBatchIterator};
use arrow_schema::SchemaRef;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;
use tonnage::export::{self, Column, ExportError};

use crate::errors::raise;
use crate::work::guard;

/// A table of a snapshot.
#[pyclass(frozen, module = "tonnage._tonnage")]
pub(crate) struct Table {
    table: export::Table,
    /// Its columns, or some of them.
    schema: SchemaRef,
    batches: Vec<RecordBatch>,
}

impl Table {
    pub(crate) fn new(table: export::Table, schema: SchemaRef, batches: Vec<RecordBatch>) -> Self {
        Self { table, schema, batches }
    }
}

#[pymethods]
impl Table {
    /// Its name.
    #[getter]
    fn name(&self) -> &'static str {
        self.table.name()
    }

    /// For each column its name, what its values are, whether they can be missing, and what it says.
    #[getter]
    fn columns(&self) -> Vec<(&'static str, &'static str, bool, &'static str)> {
        let is_here = |it: &&Column| self.schema.field_with_name(it.name).is_ok();
        let columns = self.table.columns().iter().filter(is_here);
        columns.map(|it| (it.name, it.kind.name(), it.optional, it.meaning)).collect()
    }

    fn __len__(&self) -> usize {
        self.batches.iter().map(RecordBatch::num_rows).sum()
    }

    /// The columns and their types.
    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        let schema = guard(|| FFI_ArrowSchema::try_from(&*self.schema))?;
        let schema = schema.map_err(|error| raise(ExportError::from(error).into()))?;
        PyCapsule::new_with_value(py, schema, c"arrow_schema")
    }

    /// The rows. Another schema may be asked for, which the interface lets the producer decide about: this one has
    /// one form only.
    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        drop(requested_schema);
        let stream = guard(|| {
            let batches = self.batches.clone().into_iter().map(Ok);
            let reader = RecordBatchIterator::new(batches, SchemaRef::clone(&self.schema));
            FFI_ArrowArrayStream::new(Box::new(reader))
        })?;
        PyCapsule::new_with_value(py, stream, c"arrow_array_stream")
    }
}
