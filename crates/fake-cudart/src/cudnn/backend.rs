//! The graph interface: descriptors are the installed library's; wherever one would take a handle it is given the
//! device of the profile instead.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::sync::{Mutex, OnceLock, PoisonError};

use super::forward;
use super::handle::start_work;
use super::workspaces::{self, Known};
use crate::notes;
use crate::state::{driver_call, with_state};

/// Kinds of descriptors, in the library's numbers.
const ENGINE: c_int = 2;
const HEURISTIC: c_int = 4;
const PLAN: c_int = 5;
const DEVICE: c_int = 38;

/// Where these are told the device.
const HEURISTIC_DEVICE: c_int = 204;
const PLAN_DEVICE: c_int = 407;
const ENGINE_DEVICE: c_int = 1307;

/// The bytes that a plan needs beside, and the plan in JSON.
const PLAN_WORKSPACE: c_int = 402;
const PLAN_JSON: c_int = 405;

/// More than any plan's JSON was seen to have.
const PLAN_ROOM: usize = 1 << 16;

/// Where a device is described in JSON.
const DEVICE_JSON: c_int = 2702;

/// Types of attributes.
const TYPE_HANDLE: c_int = 0;
const TYPE_DESCRIPTOR: c_int = 15;
const TYPE_CHAR: c_int = 24;

forward! {
    fn create / c"cudnnBackendCreateDescriptor"(kind: c_int, place: *mut usize);
    fn destroy / c"cudnnBackendDestroyDescriptor"(descriptor: usize);
    fn set / c"cudnnBackendSetAttribute"(
        descriptor: usize, name: c_int, kind: c_int, count: i64, values: *const c_void,
    );
    fn finalize / c"cudnnBackendFinalize"(descriptor: usize);
    fn get / c"cudnnBackendGetAttribute"(
        descriptor: usize, name: c_int, kind: c_int, room: i64, count: *mut i64, values: *mut c_void,
    );
}

/// Kinds of descriptors that are told the device.
static KINDS: Mutex<BTreeMap<usize, c_int>> = Mutex::new(BTreeMap::new());

fn kinds<T>(body: impl FnOnce(&mut BTreeMap<usize, c_int>) -> T) -> T {
    body(&mut KINDS.lock().unwrap_or_else(PoisonError::into_inner))
}

/// The descriptor of the device; nothing if the profile does not say what it is, or the library does not take it.
fn device() -> Option<usize> {
    static DESCRIPTOR: OnceLock<Option<usize>> = OnceLock::new();
    *DESCRIPTOR.get_or_init(|| {
        let json = with_state(|state| state.profile.cudnn.clone())?;
        if json.is_empty() {
            notes::note(notes::GUESSES_FILE, "this GPU's data do not describe it to cuDNN");
            return None;
        }
        let mut descriptor = 0;
        // SAFETY: the place can be written.
        let created = unsafe { create(DEVICE, &raw mut descriptor) };
        let (length, text) = (json.len() as i64, json.as_ptr().cast());
        // SAFETY: the descriptor was made above, and the text has that length.
        let told =
            created == 0 && unsafe { set(descriptor, DEVICE_JSON, TYPE_CHAR, length, text) } == 0;
        // SAFETY: the descriptor was made above.
        let done = told && unsafe { finalize(descriptor) } == 0;
        if !done {
            notes::note(
                notes::GUESSES_FILE,
                "cuDNN does not work without a device: it is older than 9.8",
            );
        }
        done.then_some(descriptor)
    })
}

/// A descriptor.
///
/// # Safety
///
/// As for the library's function of this name.
#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "the library's name")]
unsafe extern "C" fn cudnnBackendCreateDescriptor(kind: c_int, place: *mut usize) -> c_int {
    // SAFETY: the caller's promise.
    let code = unsafe { create(kind, place) };
    if code == 0 && matches!(kind, ENGINE | HEURISTIC | PLAN) {
        // SAFETY: the library has just written it.
        let descriptor = unsafe { place.read() };
        kinds(|kinds| kinds.insert(descriptor, kind));
    }
    code
}

/// No more of it.
///
/// # Safety
///
/// As for the library's function of this name.
#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "the library's name")]
unsafe extern "C" fn cudnnBackendDestroyDescriptor(descriptor: usize) -> c_int {
    kinds(|kinds| kinds.remove(&descriptor));
    // SAFETY: the caller's promise.
    unsafe { destroy(descriptor) }
}

/// An attribute; handles, which are none, are not passed on.
///
/// # Safety
///
/// As for the library's function of this name.
#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "the library's name")]
unsafe extern "C" fn cudnnBackendSetAttribute(
    descriptor: usize,
    name: c_int,
    kind: c_int,
    count: i64,
    values: *const c_void,
) -> c_int {
    if kind == TYPE_HANDLE {
        return 0;
    }
    // SAFETY: the caller's promise.
    unsafe { set(descriptor, name, kind, count, values) }
}

/// The descriptor is complete, with the device where a handle would have told it.
///
/// # Safety
///
/// As for the library's function of this name.
#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "the library's name")]
unsafe extern "C" fn cudnnBackendFinalize(descriptor: usize) -> c_int {
    let name = match kinds(|kinds| kinds.get(&descriptor).copied()) {
        Some(ENGINE) => Some(ENGINE_DEVICE),
        Some(HEURISTIC) => Some(HEURISTIC_DEVICE),
        Some(PLAN) => Some(PLAN_DEVICE),
        _ => None,
    };
    if let Some(name) = name
        && let Some(device) = device()
    {
        let place = (&raw const device).cast();
        // SAFETY: both descriptors are the library's. A refusal shows in what follows.
        let _ = unsafe { set(descriptor, name, TYPE_DESCRIPTOR, 1, place) };
    }
    // SAFETY: the caller's promise.
    unsafe { finalize(descriptor) }
}

/// An attribute. Workspaces that the library does not know without a device follow measurements.
///
/// # Safety
///
/// As for the library's function of this name.
#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "the library's name")]
unsafe extern "C" fn cudnnBackendGetAttribute(
    descriptor: usize,
    name: c_int,
    kind: c_int,
    room: i64,
    count: *mut i64,
    values: *mut c_void,
) -> c_int {
    // SAFETY: the caller's promise.
    let code = unsafe { get(descriptor, name, kind, room, count, values) };
    if code != 0 || name != PLAN_WORKSPACE || room < 1 || values.is_null() {
        return code;
    }
    // SAFETY: the library has just written a number of this type there.
    let answered = unsafe { values.cast::<i64>().read() };
    let Ok(answered) = u64::try_from(answered) else { return code };
    let plan = plan_json(descriptor);
    let known =
        plan.map_or_else(|| workspaces::unread(answered), |it| workspaces::known(&it, answered));
    // A plan does not name its GPU.
    let is_measured = with_state(|state| state.profile.is_like_measured()).unwrap_or(false);
    let known = if is_measured { known } else { known.elsewhere(answered) };
    let bytes = match known {
        Known::AsAnswered => answered,
        Known::Bytes(bytes) => bytes,
        Known::Guessed(bytes, guess) => {
            notes::note(notes::GUESSES_FILE, guess.reason());
            bytes
        }
    };
    // SAFETY: as above.
    unsafe { values.cast::<i64>().write(i64::try_from(bytes).unwrap_or(i64::MAX)) };
    code
}

/// A plan in the library's JSON.
fn plan_json(plan: usize) -> Option<String> {
    let mut text = vec![0_u8; PLAN_ROOM];
    let mut length = 0;
    let (room, place) = (text.len() as i64, text.as_mut_ptr().cast());
    // SAFETY: the descriptor is the library's, which the caller has asked already; there is so much room.
    let code = unsafe { get(plan, PLAN_JSON, TYPE_CHAR, room, &raw mut length, place) };
    if code != 0 {
        return None;
    }
    text.truncate(usize::try_from(length).ok()?);
    let text = String::from_utf8(text).ok()?;
    Some(text.trim_end_matches('\0').to_owned())
}

/// Nothing is executed.
#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "the library's name")]
extern "C" fn cudnnBackendExecute(handle: u64, _plan: usize, _pack: usize) -> c_int {
    driver_call(|state| {
        start_work(state, handle);
        Ok(())
    })
}
