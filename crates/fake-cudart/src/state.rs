//! The device behind all libraries, and the way into every call.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};

use tonnage_cuda_codes::{Code, SUCCESS};
use tonnage_device::{Arenas, DeviceError, Dry, Placement};

use crate::captures::Captures;
use crate::cudnn::Recurrent;
use crate::events::Events;
use crate::nccl::Communicator;
use crate::pages::Pages;
use crate::profile::Profile;
use crate::reads::Reads;
use crate::shadow::Shadow;

/// What the device has if nobody says otherwise: 8 GiB.
const DEFAULT_TOTAL: u64 = 8 << 30;

/// Handles of streams and events begin here, beyond the special streams.
const FIRST_HANDLE: u64 = 0x9000;

static STATE: Mutex<Option<State>> = Mutex::new(None);

thread_local! {
    /// What `cudaGetLastError` answers.
    static LAST: Cell<c_int> = const { Cell::new(SUCCESS) };
}

/// One device and everything made on it.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) device: Dry,
    pub(crate) profile: Profile,
    pub(crate) events: Events,
    pub(crate) pages: Pages,
    pub(crate) captures: Captures,
    pub(crate) shadow: Shadow,
    pub(crate) reads: Reads,
    /// Page-locked host memory that was allocated here: address and bytes.
    pub(crate) pinned: BTreeMap<usize, usize>,
    /// Memory of the program's that counts as page-locked.
    pub(crate) registered: BTreeMap<usize, usize>,
    /// Priorities of streams that have one.
    pub(crate) priorities: BTreeMap<u64, c_int>,
    /// What handles of libraries were told: handle and kind, value.
    pub(crate) settings: BTreeMap<(u64, u8), u64>,
    pub(crate) recurrent: Recurrent,
    /// Groups of ranks, by handle.
    pub(crate) communicators: BTreeMap<u64, Communicator>,
    /// Most bytes that were given out at once, to whomever.
    pub(crate) most: u64,
    last_handle: u64,
}

impl State {
    /// A device without attributes, with the addresses of the command streams.
    pub(crate) fn new(total: u64, capacity: u64) -> Self {
        Self::with(Profile::default(), Dry::new(total).with_capacity(capacity))
    }

    /// The device that this process was told of.
    fn of_environment() -> Self {
        let Some(profile) = Profile::of_environment() else {
            return Self::new(DEFAULT_TOTAL, DEFAULT_TOTAL);
        };
        let device = Dry::new(profile.total).with_capacity(profile.capacity);
        let device = match profile.ascending {
            true => device,
            false => device.with_placement(Placement::Arenas(Arenas::default())),
        };
        Self::with(profile, device)
    }

    fn with(profile: Profile, device: Dry) -> Self {
        Self {
            device,
            profile,
            events: Events::default(),
            pages: Pages::default(),
            captures: Captures::default(),
            shadow: Shadow::default(),
            reads: Reads::default(),
            pinned: BTreeMap::new(),
            registered: BTreeMap::new(),
            priorities: BTreeMap::new(),
            settings: BTreeMap::new(),
            recurrent: Recurrent::default(),
            communicators: BTreeMap::new(),
            most: 0,
            last_handle: FIRST_HANDLE,
        }
    }

    pub(crate) fn next_handle(&mut self) -> u64 {
        self.last_handle += 0x10;
        self.last_handle
    }

    /// Memory was given out.
    pub(crate) fn note_use(&mut self) {
        self.most = self.most.max(self.device.used());
    }

    /// Whether an address of host memory lies in page-locked memory.
    pub(crate) fn is_pinned(&self, address: usize) -> bool {
        [&self.pinned, &self.registered].into_iter().any(|memory| {
            let below = memory.range(..=address).next_back();
            below.is_some_and(|(&start, &size)| address - start < size)
        })
    }
}

/// Most bytes of the device that were given out at once: to PyTorch's allocator, and to whoever asks beside it.
#[unsafe(no_mangle)]
extern "C" fn tonnage_fake_most() -> u64 {
    with_state(|state| state.most).unwrap_or(0)
}

/// What the device refuses, as a code.
pub(crate) fn code_of(error: DeviceError) -> Code {
    match error {
        DeviceError::OutOfMemory { .. } => Code::OUT_OF_MEMORY,
        _ => Code::INVALID_VALUE,
    }
}

/// Runs `body` on the state, for a call of the runtime; a failure is what `cudaGetLastError` answers next.
pub(crate) fn runtime_call(body: impl FnOnce(&mut State) -> Result<(), Code>) -> c_int {
    let code = driver_call(body);
    if code != SUCCESS {
        set_last(code);
    }
    code
}

/// Runs `body` on the state, for a call of the driver. Nothing that goes wrong in it leaves through the C
/// interface but a code.
pub(crate) fn driver_call(body: impl FnOnce(&mut State) -> Result<(), Code>) -> c_int {
    match with_state(body) {
        Some(Ok(())) => SUCCESS,
        Some(Err(code)) => code.0,
        None => Code::UNKNOWN.0,
    }
}

/// Runs `body` on the state; nothing if it panics.
pub(crate) fn with_state<T>(body: impl FnOnce(&mut State) -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(|| {
        let mut state = STATE.lock().unwrap_or_else(PoisonError::into_inner);
        body(state.get_or_insert_with(State::of_environment))
    }))
    .ok()
}

fn set_last(code: c_int) {
    // A thread that is ending has no errors any more.
    let _ = LAST.try_with(|last| last.set(code));
}

/// The last failure of this thread, which is forgotten by that if `forget`.
pub(crate) fn last(forget: bool) -> c_int {
    LAST.try_with(|last| if forget { last.replace(SUCCESS) } else { last.get() }).unwrap_or(SUCCESS)
}

/// Writes a function's answer.
///
/// # Safety
///
/// `place` is null, which is refused, or can be written.
pub(crate) unsafe fn put<T>(place: *mut T, value: T) -> Result<(), Code> {
    if place.is_null() {
        return Err(Code::INVALID_VALUE);
    }
    // SAFETY: the caller's promise.
    unsafe { place.write(value) };
    Ok(())
}
