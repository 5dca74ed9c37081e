//! The device behind all libraries, and the way into every call.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};

use tonnage_device::{Device, Dry, EventId, PageId};
use tonnage_events::{Address, StreamId};

use crate::codes::{Code, SUCCESS};

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
    /// Events by handle; what they were last recorded as.
    events: BTreeMap<u64, Option<EventId>>,
    /// Sizes of ranges, which the driver is told again when they go.
    ranges: BTreeMap<u64, u64>,
    /// Pages whose handle was given back while they were mapped.
    released: BTreeMap<u64, u32>,
    /// Mapped pages by address.
    mapped: BTreeMap<u64, (PageId, u64)>,
    /// Whether streams count as capturing.
    pub(crate) capturing: bool,
    last_handle: u64,
}

impl State {
    pub(crate) fn new(total: u64, capacity: u64) -> Self {
        Self {
            device: Dry::new(total).with_capacity(capacity),
            events: BTreeMap::new(),
            ranges: BTreeMap::new(),
            released: BTreeMap::new(),
            mapped: BTreeMap::new(),
            capturing: false,
            last_handle: FIRST_HANDLE,
        }
    }

    pub(crate) fn next_handle(&mut self) -> u64 {
        self.last_handle += 0x10;
        self.last_handle
    }

    // Events.

    pub(crate) fn create_event(&mut self) -> u64 {
        let handle = self.next_handle();
        self.events.insert(handle, None);
        handle
    }

    pub(crate) fn destroy_event(&mut self, handle: u64) -> Result<(), Code> {
        let recorded = self.events.remove(&handle).ok_or(Code::INVALID_HANDLE)?;
        self.forget_mark(recorded)
    }

    /// Marks the end of what is queued; an earlier mark is forgotten.
    pub(crate) fn record_event(&mut self, handle: u64, stream: u64) -> Result<(), Code> {
        let before = *self.events.get(&handle).ok_or(Code::INVALID_HANDLE)?;
        let mark = self.device.record_event(StreamId(stream))?;
        self.events.insert(handle, Some(mark));
        self.forget_mark(before)
    }

    fn forget_mark(&mut self, mark: Option<EventId>) -> Result<(), Code> {
        mark.map_or(Ok(()), |mark| Ok(self.device.destroy_event(mark)?))
    }

    /// Whether the mark was reached. An event that was never recorded counts as reached.
    pub(crate) fn is_reached(&mut self, handle: u64) -> Result<bool, Code> {
        match *self.events.get(&handle).ok_or(Code::INVALID_HANDLE)? {
            Some(mark) => Ok(self.device.query_event(mark)?),
            None => Ok(true),
        }
    }

    // Ranges and pages.

    pub(crate) fn reserve(&mut self, size: u64) -> Result<u64, Code> {
        let address = self.device.reserve(size)?.0;
        self.ranges.insert(address, size);
        Ok(address)
    }

    pub(crate) fn unreserve(&mut self, address: u64, size: u64) -> Result<(), Code> {
        if self.ranges.get(&address) != Some(&size) {
            return Err(Code::INVALID_VALUE);
        }
        self.device.unreserve(Address(address))?;
        self.ranges.remove(&address);
        Ok(())
    }

    pub(crate) fn map(&mut self, address: u64, size: u64, page: u64) -> Result<(), Code> {
        self.device.map(PageId(page), Address(address))?;
        self.mapped.insert(address, (PageId(page), size));
        Ok(())
    }

    /// Takes away every mapping of `[address, address + size)`; pages whose handles are gone go with
    /// their last mapping.
    pub(crate) fn unmap(&mut self, address: u64, size: u64) -> Result<(), Code> {
        let end = address.checked_add(size).ok_or(Code::INVALID_VALUE)?;
        let inside: Vec<_> =
            self.mapped.range(address..end).map(|(&at, &(page, size))| (at, page, size)).collect();
        let whole: u64 = inside.iter().map(|(_, _, size)| size).sum();
        if whole != size {
            return Err(Code::INVALID_VALUE);
        }
        for (at, page, _) in inside {
            self.device.unmap(Address(at))?;
            self.mapped.remove(&at);
            if let Some(mappings) = self.released.get_mut(&page.0) {
                *mappings -= 1;
                if *mappings == 0 {
                    self.released.remove(&page.0);
                    self.device.destroy_page(page)?;
                }
            }
        }
        Ok(())
    }

    /// Gives a page's handle back. Its memory stays while it is mapped.
    pub(crate) fn release_page(&mut self, page: u64) -> Result<(), Code> {
        let mappings = self.mapped.values().filter(|(mapped, _)| mapped.0 == page).count();
        if mappings == 0 {
            return Ok(self.device.destroy_page(PageId(page))?);
        }
        self.released.insert(page, u32::try_from(mappings).map_err(|_| Code::UNKNOWN)?);
        Ok(())
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
        body(state.get_or_insert_with(|| State::new(DEFAULT_TOTAL, DEFAULT_TOTAL)))
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

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = 2 << 20;

    #[test]
    fn a_page_lives_as_long_as_its_handle_or_its_mapping() {
        let mut state = State::new(1 << 30, 1 << 30);
        let range = state.reserve(4 * PAGE).unwrap();
        let page = state.device.create_page(PAGE).unwrap().0;
        state.map(range, PAGE, page).unwrap();
        state.release_page(page).unwrap();
        assert_eq!(state.device.used(), PAGE);
        assert_eq!(state.unreserve(range, 4 * PAGE), Err(Code::INVALID_VALUE));
        state.unmap(range, PAGE).unwrap();
        assert_eq!(state.device.used(), 0);
        assert_eq!(state.unreserve(range, PAGE), Err(Code::INVALID_VALUE));
        state.unreserve(range, 4 * PAGE).unwrap();
        assert_eq!(state.device.handles(), 0);
    }

    #[test]
    fn unmapping_part_of_a_mapping_is_refused() {
        let mut state = State::new(1 << 30, 1 << 30);
        let range = state.reserve(4 * PAGE).unwrap();
        let page = state.device.create_page(2 * PAGE).unwrap().0;
        state.map(range, 2 * PAGE, page).unwrap();
        assert_eq!(state.unmap(range, PAGE), Err(Code::INVALID_VALUE));
        assert_eq!(state.unmap(range + PAGE, PAGE), Err(Code::INVALID_VALUE));
        state.unmap(range, 2 * PAGE).unwrap();
    }

    #[test]
    fn an_event_that_is_recorded_again_means_the_later_mark() {
        let mut state = State::new(1 << 30, 1 << 30);
        let event = state.create_event();
        assert_eq!(state.is_reached(event), Ok(true));
        state.device.hold_events();
        state.record_event(event, 1).unwrap();
        assert_eq!(state.is_reached(event), Ok(false));
        state.device.complete_events_of(StreamId(2));
        state.record_event(event, 2).unwrap();
        assert_eq!(state.is_reached(event), Ok(true));
        state.destroy_event(event).unwrap();
        assert_eq!(state.device.handles(), 0);
        assert_eq!(state.is_reached(event), Err(Code::INVALID_HANDLE));
    }
}
