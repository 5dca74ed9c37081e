//! What the tests of the page share: recordings, and a file that means harm.

// Each test program uses some of it.
#![allow(dead_code)]

pub(crate) mod chromium;

pub(crate) mod hostile;

use std::path::{Path, PathBuf};

use tonnage_analysis::report::{RankRow, Report, ReportOptions};
use tonnage_snapshot::SnapshotFile;

pub(crate) fn testdata() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata")
}

pub(crate) fn recording(name: &str) -> RankRow {
    let path = testdata().join("traces").join(format!("{name}.pickle.zst"));
    row(name, &tonnage_snapshot::open(&path).unwrap())
}

/// What settings save is left out: a debug build takes seconds to try them.
pub(crate) fn row(name: &str, file: &SnapshotFile) -> RankRow {
    let options = ReportOptions { without_replay: true, ..ReportOptions::default() };
    RankRow { file: name.to_owned(), report: Report::of(file, &options).unwrap() }
}

pub(crate) fn page(row: &RankRow) -> String {
    tonnage_html::report_html(&row.file, &row.report)
}
