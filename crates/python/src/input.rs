//! Where snapshots come from: a path, bytes, or whatever has a `read`.
//!
//! In:  one of these. Out: a [`SnapshotFile`] and its history, or the command's error.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use anyhow::Context;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use tonnage::snapshot::{HistoryColumns, Limits, SnapshotFile};
use tonnage_cli::{Progress, read_columns_within};

use crate::work::Stop;

/// What a snapshot is read from.
pub(crate) enum Input {
    Path(PathBuf),
    Bytes(PyBackedBytes),
    Object(Py<PyAny>),
}

impl Input {
    /// Reads the snapshot, which goes by this name, within so much memory.
    pub(crate) fn read(
        self,
        name: &str,
        memory: Option<u64>,
        stop: &Stop,
    ) -> anyhow::Result<(SnapshotFile, Vec<HistoryColumns>)> {
        let read = |size: Option<u64>, input: &mut dyn Read| {
            let limits = memory.map_or_else(|| Limits::of_file(size), Limits::with_memory);
            let progress = Progress::bytes(format!("reading {name}"), size);
            let mut input = progress.reader(Watched { inner: input, stop });
            read_columns_within(&mut input, &limits).with_context(|| name.to_owned())
        };
        match self {
            Self::Path(path) => {
                let (size, mut file) = open(&path)?;
                read(size, &mut file)
            }
            Self::Bytes(bytes) => read(Some(bytes.len() as u64), &mut &bytes[..]),
            Self::Object(object) => read(None, &mut ReadObject(object)),
        }
    }
}

fn open(path: &Path) -> anyhow::Result<(Option<u64>, File)> {
    let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    let size = file.metadata().ok().filter(|it| it.is_file()).map(|it| it.len());
    Ok((size, file))
}

/// Stops when no one waits any more.
struct Watched<'a> {
    inner: &'a mut dyn Read,
    stop: &'a Stop,
}

impl Read for Watched<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.stop.is_asked() {
            return Err(io::Error::other("no one waits for it any more"));
        }
        self.inner.read(buffer)
    }
}

/// A Python object with `read(size)`.
struct ReadObject(Py<PyAny>);

impl Read for ReadObject {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        Python::attach(|py| {
            let bytes = self.0.bind(py).call_method1("read", (buffer.len(),))?;
            let bytes: PyBackedBytes = bytes.extract().map_err(|_| {
                crate::errors::usage(
                    "the file object's read(size) returned no bytes: open it with mode \"rb\"",
                )
            })?;
            let room = buffer.get_mut(..bytes.len()).ok_or_else(|| {
                crate::errors::usage("the file object's read(size) returned more than size bytes")
            })?;
            room.copy_from_slice(&bytes);
            Ok(bytes.len())
        })
        .map_err(|error: PyErr| io::Error::other(error))
    }
}
