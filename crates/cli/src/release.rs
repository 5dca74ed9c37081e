//! The release of PyTorch that the command line names.

use tonnage::Release;
use tonnage::engine::config::{Nearest, ParseReleaseError};

use crate::output;

/// Reads a version for clap. One that is newer than all that are known gets the nearest rules, and a sentence
/// that says so.
pub(crate) fn nearest(text: &str) -> Result<Release, ParseReleaseError> {
    let nearest: Nearest = text.parse()?;
    if let Some(note) = nearest.note() {
        output::warning(&note);
    }
    Ok(nearest.release)
}
