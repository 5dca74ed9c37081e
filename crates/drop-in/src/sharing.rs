//! Memory back to the device while others need it, as a program asks for it: the same from Rust and from C.

use tonnage_memory::Contents;

use crate::devices::device;
use crate::failure::{Wrong, answer, last_words, other};
use crate::types::Status;

/// Gives up to so many cached bytes of a device back, and says how many.
///
/// # Errors
///
/// In words.
pub fn release(number: u32, bytes: u64) -> Result<u64, String> {
    said(|| released(number, bytes))
}

/// Gives all memory of a device back and keeps addresses, with `keep` also contents; says how many bytes.
///
/// # Errors
///
/// In words.
pub fn pause(number: u32, keep: bool) -> Result<u64, String> {
    said(|| paused(number, keep))
}

/// Obtains it again.
///
/// # Errors
///
/// In words.
pub fn resume(number: u32) -> Result<(), String> {
    said(|| resumed(number))
}

pub(crate) fn released(number: u32, bytes: u64) -> Result<u64, Wrong> {
    device(number)?.device().memory().release(bytes).map_err(other)
}

pub(crate) fn paused(number: u32, keep: bool) -> Result<u64, Wrong> {
    let contents = if keep { Contents::Kept } else { Contents::Lost };
    device(number)?.device().memory().pause(contents).map_err(other)
}

pub(crate) fn resumed(number: u32) -> Result<(), Wrong> {
    device(number)?.device().memory().resume().map_err(other)
}

/// Does what is asked for, with panics stopped, as at the interface.
fn said<T>(work: impl FnOnce() -> Result<T, Wrong>) -> Result<T, String> {
    let mut result = None;
    let status = answer(|| {
        result = Some(work()?);
        Ok(())
    });
    match (status, result) {
        (Status::Ok, Some(result)) => Ok(result),
        _ => Err(last_words()),
    }
}
