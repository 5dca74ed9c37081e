//! The device behind all libraries, and the way into every call.

use std::cell::{Cell, UnsafeCell};
use std::collections::BTreeMap;
use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

use tonnage_cuda_codes::{Code, SUCCESS};
use tonnage_device::{Arenas, DeviceError, Dry, FirstFit, Placement};

use crate::captures::Captures;
use crate::cards::Cards;
use crate::cudnn::Recurrent;
use crate::events::Events;
use crate::nccl::Communicator;
use crate::notes;
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
    /// How many devices the environment showed when the first was used: what it says later counts no more, as on a GPU.
    pub(crate) visible: Cell<Option<c_int>>,
    /// Whether addresses ascend.
    pub(crate) ascends: bool,
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
        Profile::of_environment().map_or_else(|| Self::new(DEFAULT_TOTAL, DEFAULT_TOTAL), Self::of)
    }

    /// A device of this profile.
    pub(crate) fn of(profile: Profile) -> Self {
        let placement = match profile.ascending {
            true => Placement::FirstFit(FirstFit::default()),
            false => Placement::Arenas(Arenas::default()),
        };
        Self::with(profile, placement)
    }

    fn with(profile: Profile, placement: Placement) -> Self {
        let devices = u64::try_from(profile.devices).unwrap_or(1).max(1);
        let of_all = profile.capacity.saturating_mul(devices);
        let ascends = matches!(placement, Placement::FirstFit(_));
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
            visible: Cell::new(None),
            ascends,
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
    hold_while_forking();
    catch_unwind(AssertUnwindSafe(|| {
        let mut state = STATE.lock().unwrap_or_else(PoisonError::into_inner);
        body(state.get_or_insert_with(State::of_environment))
    }))
    .ok()
}

/// The state's lock and that of notes, which is taken inside it, while a process is forked: a child that another thread's
/// call was under way in would wait for it for ever.
struct Held(UnsafeCell<Option<(MutexGuard<'static, Option<State>>, notes::Told)>>);

// SAFETY: it is touched by that thread alone that holds the state's lock and forks: it is filled behind the lock, and emptied
// before that is given back.
unsafe impl Sync for Held {}

static HELD: Held = Held(UnsafeCell::new(None));

/// Has C's library call what follows whenever this process forks.
fn hold_while_forking() {
    static DONE: Once = Once::new();
    // SAFETY: the functions stay as long as the process does.
    DONE.call_once(|| unsafe {
        libc::pthread_atfork(Some(before_fork), Some(after_fork), Some(after_fork));
    });
}

extern "C" fn before_fork() {
    let state = STATE.lock().unwrap_or_else(PoisonError::into_inner);
    let held = (state, notes::told());
    // SAFETY: as `Held` says.
    unsafe { *HELD.0.get() = Some(held) };
}

extern "C" fn after_fork() {
    // SAFETY: as `Held` says.
    let held = unsafe { (*HELD.0.get()).take() };
    drop(held);
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Another thread is in a call that notes something, again and again, while this one forks.
    #[test]
    fn a_child_that_is_forked_amid_a_call_does_not_wait_for_it() {
        let done = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(std::sync::atomic::Ordering::Relaxed) {
                    with_state(|_| {
                        let _told = notes::told();
                        std::thread::yield_now();
                    });
                }
            });
            with_state(|_| ());
            let mut statuses = Vec::new();
            for _ in 0..100 {
                // SAFETY: the child calls nothing but what must not wait, and ends.
                let child = unsafe { libc::fork() };
                if child == 0 {
                    // A child that waits is ended by its clock.
                    // SAFETY: it takes a number.
                    unsafe { libc::alarm(20) };
                    with_state(|_| drop(notes::told()));
                    // SAFETY: it ends the child, and nothing of the parent's.
                    unsafe { libc::_exit(0) };
                }
                let mut status = -1;
                // SAFETY: the place can be written.
                unsafe { libc::waitpid(child, &raw mut status, 0) };
                statuses.push(status);
            }
            // The other thread ends, whatever came out.
            done.store(true, std::sync::atomic::Ordering::Relaxed);
            assert_eq!(statuses, [0; 100]);
        });
    }
}
