//! Memory back to the device while others need it, as a program asks for it: the same from Rust and from C.

use tonnage_engine::{PauseError, ResumeError};
use tonnage_events::PoolId;
use tonnage_memory::{Contents, DeviceError};

use crate::devices::{Slot, device, if_opened, opened};
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

/// The numbers that PyTorch names a private pool by.
type Pool = (u64, u64);

fn id((first, second): Pool) -> PoolId {
    PoolId(first, second)
}

/// Gives up to so many cached bytes of a device back, or all that a private pool caches, and says how many.
///
/// # Errors
///
/// See [`SharingError`].
pub fn release(number: u32, pool: Option<Pool>, bytes: u64) -> Result<u64, SharingError> {
    said(|| released(number, pool.map(id), bytes))
}

/// Notes that a private pool of a device holds what is allocated under a tag of this name: requests that go there are no part of a
/// graph capture, and messages name the tag. While that is paused, a pool that holds nothing yet is paused with it.
///
/// # Errors
///
/// See [`SharingError`].
pub fn tag(number: u32, pool: Pool, name: &str) -> Result<(), SharingError> {
    said(|| {
        let slot = device(number).map_err(refused)?;
        let tagged = slot.with(|engine| engine.set_pool_tag(id(pool), name));
        tagged.map_err(|error| SharingError::Refused(error.to_string()))
    })
}

/// Whether [`pause`] would be refused: nothing is waited for.
///
/// # Errors
///
/// See [`SharingError`].
pub fn check_pause(number: u32, pool: Option<Pool>) -> Result<(), SharingError> {
    said(|| {
        let memory = device(number).map_err(refused)?.device().memory();
        memory.check_pause(pool.map(id)).map_err(not_paused)
    })
}

/// Gives all memory of a device back, or of a private pool, and keeps addresses, with `keep` also contents; says how many bytes.
///
/// # Errors
///
/// See [`SharingError`].
pub fn pause(number: u32, pool: Option<Pool>, keep: bool) -> Result<u64, SharingError> {
    said(|| paused(number, pool.map(id), keep))
}

/// Obtains it again: without a pool also what pools gave back by themselves.
///
/// # Errors
///
/// See [`SharingError`].
pub fn resume(number: u32, pool: Option<Pool>) -> Result<(), SharingError> {
    said(|| resumed(number, pool.map(id)))
}

/// The devices whose memory is given back now.
///
/// # Errors
///
/// If the allocator of a `MemPool` asks.
pub fn paused_devices() -> Result<Vec<u32>, SharingError> {
    if forks::is_orphan() {
        return Ok(Vec::new());
    }
    said(|| {
        let paused = opened().filter(|(_, slot)| slot.device().memory().is_paused());
        Ok(paused.map(|(number, _)| number).collect())
    })
}

/// The private pools whose memory is given back now by themselves, each with its device.
///
/// # Errors
///
/// If the allocator of a `MemPool` asks.
pub fn paused_pools() -> Result<Vec<(u32, Pool)>, SharingError> {
    if forks::is_orphan() {
        return Ok(Vec::new());
    }
    let of_device = |(number, slot): (u32, &Slot)| {
        let pools = slot.device().memory().paused_pools();
        pools.into_iter().map(move |PoolId(first, second)| (number, (first, second)))
    };
    said(|| Ok(opened().flat_map(of_device).collect()))
}

pub(crate) fn released(number: u32, pool: Option<PoolId>, bytes: u64) -> Result<u64, SharingError> {
    let Some(slot) = if_opened(number).map_err(refused)? else { return Ok(0) };
    let memory = slot.device().memory();
    let released = match pool {
        None => memory.release(bytes),
        Some(pool) => memory.release_pool_memory(pool),
    };
    released.map_err(|error| SharingError::Device(error.to_string()))
}

pub(crate) fn paused(number: u32, pool: Option<PoolId>, keep: bool) -> Result<u64, SharingError> {
    let contents = if keep { Contents::Kept } else { Contents::Lost };
    let memory = device(number).map_err(refused)?.device().memory();
    let paused = match pool {
        None => memory.pause(contents),
        Some(pool) => memory.pause_pool(pool, contents),
    };
    paused.map_err(not_paused)
}

fn not_paused(error: PauseError) -> SharingError {
    match error {
        PauseError::Device(_) => SharingError::Device(error.to_string()),
        _ => SharingError::Refused(error.to_string()),
    }
}

pub(crate) fn resumed(number: u32, pool: Option<PoolId>) -> Result<(), SharingError> {
    let memory = device(number).map_err(refused)?.device().memory();
    let resumed = match pool {
        Some(pool) => memory.resume_pool(pool),
        None => memory.resume().and_then(|()| {
            memory.paused_pools().into_iter().try_for_each(|pool| memory.resume_pool(pool))
        }),
    };
    resumed.map_err(|error| match error {
        ResumeError::Device(DeviceError::OutOfMemory { .. }) => SharingError::NoMemory(format!(
            "{error}: the allocator stays paused, and resume can be called again"
        )),
        ResumeError::Device(_) => SharingError::Device(error.to_string()),
        _ => SharingError::Refused(error.to_string()),
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
