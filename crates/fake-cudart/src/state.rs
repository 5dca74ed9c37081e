//! The device behind all libraries, and the way into every call.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};

use tonnage_cuda_codes::{Code, SUCCESS};
use tonnage_device::{Arenas, DeviceError, Dry, FirstFit, Placement};

use crate::captures::Captures;
use crate::cards::Cards;
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

/// The devices and everything made on them.
#[derive(Debug)]
pub(crate) struct State {
    /// Addresses, of all devices.
    pub(crate) device: Dry,
    /// The bytes of each.
    pub(crate) cards: Cards,
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
    last_handle: u64,
}

impl State {
    /// A device without attributes, with the addresses of the command streams.
    pub(crate) fn new(total: u64, capacity: u64) -> Self {
        Self::of_many(total, capacity, 1)
    }

    /// So many of it.
    pub(crate) fn of_many(total: u64, capacity: u64, devices: c_int) -> Self {
        let profile = Profile { total, capacity, devices, ..Profile::default() };
        Self::with(profile, Placement::FirstFit(FirstFit::default()))
    }

    /// The device that this process was told of.
    fn of_environment() -> Self {
        let Some(profile) = Profile::of_environment() else {
            return Self::new(DEFAULT_TOTAL, DEFAULT_TOTAL);
        };
        let placement = match profile.ascending {
            true => Placement::FirstFit(FirstFit::default()),
            false => Placement::Arenas(Arenas::default()),
        };
        Self::with(profile, placement)
    }

    fn with(profile: Profile, placement: Placement) -> Self {
        let devices = u64::try_from(profile.devices).unwrap_or(1).max(1);
        let of_all = profile.capacity.saturating_mul(devices);
        let device = Dry::new(profile.total).with_capacity(of_all).with_placement(placement);
        Self {
            device,
            cards: Cards::new(profile.capacity),
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
            last_handle: FIRST_HANDLE,
        }
    }

    pub(crate) fn next_handle(&mut self) -> u64 {
        self.last_handle += 0x10;
        self.last_handle
    }

    /// Whether an address of host memory lies in page-locked memory.
    pub(crate) fn is_pinned(&self, address: usize) -> bool {
        [&self.pinned, &self.registered].into_iter().any(|memory| {
            let below = memory.range(..=address).next_back();
            below.is_some_and(|(&start, &size)| address - start < size)
        })
    }
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
