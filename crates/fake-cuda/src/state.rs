//! The driver's state, and the way into every call.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, LazyLock, Mutex, MutexGuard, PoisonError};

use crate::captures::Captures;
use crate::codes::{Code, SUCCESS};
use crate::host_memory::Region;
use crate::launches::Launches;
use crate::memory::Memory;
use crate::queues::Queues;

/// Bytes of each device at the start.
const CAPACITY: u64 = 8 << 30;

/// Devices at the start.
const DEVICES: usize = 2;

/// Handles of contexts begin here, one for each device.
const FIRST_CONTEXT: u64 = 0x4000_0000;

/// A device, but for its memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Device {
    /// References to the primary context.
    pub(crate) retained: u32,
    pub(crate) virtual_memory: bool,
}

#[derive(Debug)]
pub(crate) struct State {
    pub(crate) initialised: bool,
    pub(crate) devices: Vec<Device>,
    pub(crate) memory: Memory,
    pub(crate) queues: Queues,
    pub(crate) launches: Launches,
    pub(crate) captures: Captures,
    /// Pinned host memory.
    pub(crate) pinned: BTreeMap<u64, Region>,
    /// Calls so far, failed ones included.
    pub(crate) calls: u64,
    /// Which call is to fail, and how.
    pub(crate) failures: BTreeMap<u64, c_int>,
    /// Calls that were made to fail.
    pub(crate) failed: u64,
}

static STATE: LazyLock<Mutex<State>> = LazyLock::new(|| Mutex::new(State::new(DEVICES)));

/// The test let something happen: whoever waits looks again.
static PROGRESS: Condvar = Condvar::new();

/// Driver calls that wait at this moment.
pub(crate) static WAITING: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// The contexts that are current on this thread, the last one on top.
    static CURRENT: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

impl State {
    pub(crate) fn new(devices: usize) -> Self {
        Self {
            initialised: false,
            devices: vec![Device { retained: 0, virtual_memory: true }; devices],
            memory: Memory::new(devices, CAPACITY),
            queues: Queues::default(),
            launches: Launches::default(),
            captures: Captures::default(),
            pinned: BTreeMap::new(),
            calls: 0,
            failures: BTreeMap::new(),
            failed: 0,
        }
    }

    /// Counts a call, which fails if it was chosen to.
    fn count(&mut self) -> Result<(), Code> {
        self.calls += 1;
        match self.failures.remove(&self.calls) {
            Some(code) => {
                self.failed += 1;
                Err(Code(code))
            }
            None => Ok(()),
        }
    }

    /// The place of a device, by the driver's number.
    pub(crate) fn device(&self, device: c_int) -> Result<usize, Code> {
        let place = usize::try_from(device).map_err(|_| Code::INVALID_DEVICE)?;
        if place < self.devices.len() { Ok(place) } else { Err(Code::INVALID_DEVICE) }
    }

    /// The device whose context has this handle, if it is alive.
    pub(crate) fn device_of(&self, context: u64) -> Result<usize, Code> {
        let place = context.checked_sub(FIRST_CONTEXT).ok_or(Code::INVALID_CONTEXT)? / 0x10;
        let device = self.devices.get(place as usize).ok_or(Code::INVALID_CONTEXT)?;
        if device.retained == 0 {
            return Err(Code::CONTEXT_IS_DESTROYED);
        }
        Ok(place as usize)
    }

    /// The device whose context is current on this thread.
    pub(crate) fn current(&self) -> Result<usize, Code> {
        let context = current_context()?;
        if context == 0 {
            return Err(Code::INVALID_CONTEXT);
        }
        self.device_of(context)
    }

    pub(crate) fn push_context(&self, context: u64) -> Result<(), Code> {
        self.device_of(context)?;
        with_current(|stack| stack.push(context))
    }

    /// Replaces the current context; null takes it away.
    pub(crate) fn set_context(&self, context: u64) -> Result<(), Code> {
        if context != 0 {
            self.device_of(context)?;
        }
        with_current(|stack| {
            stack.pop();
            if context != 0 {
                stack.push(context);
            }
        })
    }
}

pub(crate) fn context_of(device: usize) -> u64 {
    FIRST_CONTEXT + device as u64 * 0x10
}

/// The context that is current on this thread, or 0.
pub(crate) fn current_context() -> Result<u64, Code> {
    with_current(|stack| stack.last().copied().unwrap_or(0))
}

pub(crate) fn pop_context() -> Result<u64, Code> {
    with_current(Vec::pop)?.ok_or(Code::INVALID_CONTEXT)
}

/// A thread that is ending has no contexts any more.
fn with_current<T>(body: impl FnOnce(&mut Vec<u64>) -> T) -> Result<T, Code> {
    CURRENT.try_with(|stack| body(&mut stack.borrow_mut())).map_err(|_| Code::INVALID_CONTEXT)
}

/// Runs `body` on the state, for a call of the driver. Nothing that goes wrong in it leaves
/// through the C interface but a code.
pub(crate) fn call(body: impl FnOnce(&mut State) -> Result<(), Code>) -> c_int {
    call_before_init(|state| {
        if !state.initialised {
            return Err(Code::NOT_INITIALIZED);
        }
        body(state)
    })
}

/// As [`call`], where `cuInit` need not have been called.
pub(crate) fn call_before_init(body: impl FnOnce(&mut State) -> Result<(), Code>) -> c_int {
    answer(with_state(|state| {
        state.count()?;
        body(state)
    }))
}

/// As [`call`], where the caller may have to wait: `body` is asked again, whenever the test has let
/// something happen, until it says that this is over. Others may call the driver meanwhile.
pub(crate) fn wait(body: impl Fn(&mut State) -> Result<bool, Code>) -> c_int {
    let wait = || {
        let mut state = lock();
        state.count()?;
        if !state.initialised {
            return Err(Code::NOT_INITIALIZED);
        }
        while !body(&mut state)? {
            WAITING.fetch_add(1, Ordering::Relaxed);
            state = PROGRESS.wait(state).unwrap_or_else(PoisonError::into_inner);
            WAITING.fetch_sub(1, Ordering::Relaxed);
        }
        Ok(())
    };
    answer(catch_unwind(AssertUnwindSafe(wait)).ok())
}

/// Wakes the calls that wait.
pub(crate) fn wake() {
    PROGRESS.notify_all();
}

/// The code for an answer, or for none since the call panicked.
fn answer(result: Option<Result<(), Code>>) -> c_int {
    match result {
        Some(Ok(())) => SUCCESS,
        Some(Err(code)) => code.0,
        None => Code::UNKNOWN.0,
    }
}

fn lock() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs `body` on the state; nothing if it panics.
pub(crate) fn with_state<T>(body: impl FnOnce(&mut State) -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(|| body(&mut lock()))).ok()
}
