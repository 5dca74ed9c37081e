//! Memory back to the device while others need it, as a program asks for it: the same from Rust and from C.

use tonnage_engine::PauseError;
use tonnage_memory::{Contents, DeviceError};

use crate::devices::{device, if_opened, opened};
use crate::failure::{Wrong, answer, last_words, other};
use crate::forks;
use crate::types::Status;

/// What did not go well, in words, by what can be done about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SharingError {
    /// Others hold the memory now: later there may be enough.
    NoMemory(String),
    /// The device failed.
    Device(String),
    /// What was asked for cannot be.
    Refused(String),
}

/// Gives up to so many cached bytes of a device back, and says how many.
///
/// # Errors
///
/// See [`SharingError`].
pub fn release(number: u32, bytes: u64) -> Result<u64, SharingError> {
    said(|| released(number, bytes))
}

/// Gives all memory of a device back and keeps addresses, with `keep` also contents; says how many bytes.
///
/// # Errors
///
/// See [`SharingError`].
pub fn pause(number: u32, keep: bool) -> Result<u64, SharingError> {
    said(|| paused(number, keep))
}

/// Obtains it again.
///
/// # Errors
///
/// See [`SharingError`].
pub fn resume(number: u32) -> Result<(), SharingError> {
    said(|| resumed(number))
}

/// The devices whose memory is given back now.
#[must_use]
pub fn paused_devices() -> Vec<u32> {
    if forks::is_orphan() {
        return Vec::new();
    }
    let paused = opened().filter(|(_, slot)| slot.device().memory().is_paused());
    paused.map(|(number, _)| number).collect()
}

pub(crate) fn released(number: u32, bytes: u64) -> Result<u64, SharingError> {
    let Some(slot) = if_opened(number).map_err(refused)? else { return Ok(0) };
    slot.device().memory().release(bytes).map_err(|error| SharingError::Device(error.to_string()))
}

pub(crate) fn paused(number: u32, keep: bool) -> Result<u64, SharingError> {
    let contents = if keep { Contents::Kept } else { Contents::Lost };
    let slot = device(number).map_err(refused)?;
    slot.device().memory().pause(contents).map_err(|error| match error {
        PauseError::Device(_) => SharingError::Device(error.to_string()),
        _ => SharingError::Refused(error.to_string()),
    })
}

pub(crate) fn resumed(number: u32) -> Result<(), SharingError> {
    let slot = device(number).map_err(refused)?;
    slot.device().memory().resume().map_err(|error| match error {
        DeviceError::OutOfMemory { .. } => SharingError::NoMemory(format!(
            "{error}: the allocator stays paused, and resume can be called again"
        )),
        _ => SharingError::Device(error.to_string()),
    })
}

fn refused(wrong: Wrong) -> SharingError {
    SharingError::Refused(wrong.to_string())
}

impl From<SharingError> for Wrong {
    fn from(error: SharingError) -> Self {
        let (SharingError::NoMemory(text)
        | SharingError::Device(text)
        | SharingError::Refused(text)) = error;
        other(text)
    }
}

/// Does what is asked for, with panics stopped, as at the interface.
fn said<T>(work: impl FnOnce() -> Result<T, SharingError>) -> Result<T, SharingError> {
    let mut result = None;
    let status = answer(|| {
        result = Some(work());
        Ok(())
    });
    match (status, result) {
        (Status::Ok, Some(result)) => result,
        _ => Err(SharingError::Device(last_words())),
    }
}
