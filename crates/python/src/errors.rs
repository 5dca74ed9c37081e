//! Errors of Rust as exceptions of `tonnage._errors`, with the sentence that the command prints.

use std::io;

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use tonnage::engine::config::ConfigError;
use tonnage::snapshot::SnapshotError;
use tonnage_cli::{ScriptFailed, TooMuch};
use tonnage_drop_in::SharingError;

/// An exception of the package's, made of a sentence and what else it tells.
pub(crate) fn exception(
    kind: &str,
    sentence: &str,
    set: impl FnOnce(&Bound<'_, PyAny>) -> PyResult<()>,
) -> PyErr {
    static MODULE: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    Python::attach(|py| {
        let module = MODULE.get_or_try_init(py, || Ok(py.import("tonnage._errors")?.unbind()));
        let made = module.and_then(|module| {
            let made = module.bind(py).getattr(kind)?.call1((sentence,))?;
            set(&made)?;
            Ok(PyErr::from_value(made))
        });
        made.unwrap_or_else(|error| error)
    })
}

/// What the command would refuse.
pub(crate) fn usage(sentence: &str) -> PyErr {
    exception("UsageError", sentence, |_| Ok(()))
}

/// Memory that could not be given back, or had again.
pub(crate) fn sharing(error: SharingError) -> PyErr {
    let (kind, sentence) = match error {
        SharingError::NoMemory(sentence) => ("NoMemoryError", sentence),
        SharingError::Device(sentence) => ("DeviceError", sentence),
        SharingError::Refused(sentence) => ("UsageError", sentence),
    };
    exception(kind, &sentence, |_| Ok(()))
}

/// Something in this package is wrong.
pub(crate) fn internal(sentence: &str) -> PyErr {
    exception("InternalError", sentence, |_| Ok(()))
}

/// An error of a verb, by what the caller can do about it.
pub(crate) fn raise(error: anyhow::Error) -> PyErr {
    let sentence = tonnage_cli::with_causes(&error);
    let found = error.chain().find_map(|cause| {
        if let Some(cause) = cause.downcast_ref::<SnapshotError>() {
            return Some(of_snapshot(&sentence, cause));
        }
        if let Some(cause) = cause.downcast_ref::<io::Error>() {
            return Some(of_file(&sentence, cause));
        }
        if cause.is::<TooMuch>() {
            return Some(exception("LimitError", &sentence, |_| Ok(())));
        }
        if let Some(cause) = cause.downcast_ref::<ScriptFailed>() {
            let text = cause.text.clone();
            return Some(exception("ScriptError", &sentence, |it| it.setattr("text", text)));
        }
        if cause.is::<ConfigError>() {
            return Some(exception("ConfError", &sentence, |_| Ok(())));
        }
        // A word that the command does not know: what it prints, less the advice for a terminal.
        let said = cause.downcast_ref::<clap::Error>()?.to_string();
        let what = said.split("\n\n").next().unwrap_or_default();
        Some(usage(what.trim_start_matches("error: ").trim_end()))
    });
    found.unwrap_or_else(|| exception("Error", &sentence, |_| Ok(())))
}

fn of_snapshot(sentence: &str, error: &SnapshotError) -> PyErr {
    let offset = match error {
        SnapshotError::File { source, .. } => return of_snapshot(sentence, source),
        SnapshotError::Io(error) => return of_file(sentence, error),
        SnapshotError::Limit { offset, .. } => {
            let offset = *offset;
            return exception("LimitError", sentence, |it| it.setattr("offset", offset));
        }
        SnapshotError::Opcode { offset, .. }
        | SnapshotError::Truncated { offset }
        | SnapshotError::Damaged { offset, .. }
        | SnapshotError::Malformed { offset, .. }
        | SnapshotError::Shape { offset, .. } => Some(*offset),
        _ => None,
    };
    exception("SnapshotError", sentence, |it| it.setattr("offset", offset))
}

fn of_file(sentence: &str, error: &io::Error) -> PyErr {
    // What a file object of Python's raised goes on as it is.
    if let Some(raised) = error.get_ref().and_then(|it| it.downcast_ref::<PyErr>()) {
        return Python::attach(|py| raised.clone_ref(py));
    }
    let kind = match error.kind() {
        io::ErrorKind::NotFound => "MissingFileError",
        io::ErrorKind::PermissionDenied => "ForbiddenFileError",
        io::ErrorKind::AlreadyExists => "ExistingFileError",
        _ => "FileError",
    };
    let sentence = match error.kind() {
        io::ErrorKind::AlreadyExists => {
            format!("{sentence}: it is kept unless force=True is passed")
        }
        _ => sentence.to_owned(),
    };
    exception(kind, &sentence, |it| it.setattr("errno", error.raw_os_error()))
}
