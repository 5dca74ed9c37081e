//! What each device of a host has given out.
//!
//! All devices are alike and their addresses are of one space, as CUDA's are; the bytes are each one's own. A segment or
//! a page belongs to the device that was current when it was asked for.

use std::collections::BTreeMap;
use std::ffi::c_int;

use tonnage_cuda_codes::Code;
use tonnage_device::{Device, MemoryInfo, PageId};
use tonnage_events::Address;

use crate::devices::current;
use crate::notes;
use crate::state::{State, code_of, with_state};

/// The books of all devices.
#[derive(Debug)]
pub(crate) struct Cards {
    /// Bytes that each can give out.
    capacity: u64,
    /// Bytes given out by device: now, and most at once.
    given: BTreeMap<c_int, (u64, u64)>,
    /// Whose a segment is, by its address, and its bytes.
    segments: BTreeMap<u64, (c_int, u64)>,
    /// Whose a page is.
    pages: BTreeMap<u64, (c_int, u64)>,
}

impl Cards {
    pub(crate) fn new(capacity: u64) -> Self {
        let (given, segments, pages) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Self { capacity, given, segments, pages }
    }

    /// Whose segment an address lies in, if it lies in one.
    fn holder(&self, address: u64) -> Option<c_int> {
        let (start, (device, size)) = self.segments.range(..=address).next_back()?;
        (address - start < *size).then_some(*device)
    }

    fn used(&self, device: c_int) -> u64 {
        self.given.get(&device).map_or(0, |given| given.0)
    }

    fn check(&self, device: c_int, size: u64) -> Result<(), Code> {
        let used = self.used(device).checked_add(size);
        match used.is_some_and(|used| used <= self.capacity) {
            true => Ok(()),
            false => Err(Code::OUT_OF_MEMORY),
        }
    }

    fn give(&mut self, device: c_int, size: u64) {
        let (now, most) = self.given.entry(device).or_default();
        *now += size;
        *most = (*most).max(*now);
    }

    fn take_back(&mut self, (device, size): (c_int, u64)) {
        if let Some((now, _)) = self.given.get_mut(&device) {
            *now = now.saturating_sub(size);
        }
    }
}

impl State {
    /// Whose memory an address is: that of a segment, or of a page that is mapped there.
    pub(crate) fn holder(&self, address: u64) -> Option<c_int> {
        let of_page =
            || self.cards.pages.get(&self.pages.at(address)?.0).map(|(device, _)| *device);
        self.cards.holder(address).or_else(of_page)
    }

    /// A segment of the thread's device.
    pub(crate) fn acquire(&mut self, size: u64) -> Result<Address, Code> {
        let device = current();
        self.cards.check(device, size)?;
        let address = self.device.acquire(size).map_err(code_of)?;
        self.give(device, size);
        self.cards.segments.insert(address.0, (device, size));
        Ok(address)
    }

    fn give(&mut self, device: c_int, size: u64) {
        notes::note(notes::USED_FILE, &std::process::id().to_string());
        self.cards.give(device, size);
    }

    /// Takes a segment back, whosever it is.
    pub(crate) fn release(&mut self, address: Address) -> Result<(), Code> {
        self.device.release(address).map_err(code_of)?;
        if let Some(share) = self.cards.segments.remove(&address.0) {
            self.cards.take_back(share);
        }
        Ok(())
    }

    /// A page of the thread's device.
    pub(crate) fn create_page(&mut self, size: u64) -> Result<PageId, Code> {
        let device = current();
        self.cards.check(device, size)?;
        let page = self.device.create_page(size).map_err(code_of)?;
        self.give(device, size);
        self.cards.pages.insert(page.0, (device, size));
        Ok(page)
    }

    /// Takes a page back.
    pub(crate) fn destroy_page(&mut self, page: PageId) -> Result<(), Code> {
        self.device.destroy_page(page).map_err(code_of)?;
        if let Some(share) = self.cards.pages.remove(&page.0) {
            self.cards.take_back(share);
        }
        Ok(())
    }

    /// Bytes of the thread's device, free and in all.
    pub(crate) fn memory_info(&self) -> MemoryInfo {
        self.memory_info_of(current())
    }

    /// Bytes of a device.
    pub(crate) fn memory_info_of(&self, device: c_int) -> MemoryInfo {
        let free = self.cards.capacity.saturating_sub(self.cards.used(device));
        MemoryInfo { free, total: self.device.total() }
    }
}

/// Most bytes of a device that were given out at once: to PyTorch's allocator, and to whoever asks beside it.
#[unsafe(no_mangle)]
extern "C" fn tonnage_fake_most(device: c_int) -> u64 {
    let most = |state: &mut State| state.cards.given.get(&device).map_or(0, |given| given.1);
    with_state(most).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::devices::make_current;

    const PAGE: u64 = 2 << 20;

    #[test]
    fn each_device_has_memory_of_its_own() {
        let mut state = State::of_many(10 * PAGE, 8 * PAGE, 2);
        make_current(1);
        let first = state.acquire(6 * PAGE).unwrap();
        assert_eq!(state.acquire(3 * PAGE), Err(Code::OUT_OF_MEMORY));
        assert_eq!(state.create_page(4 * PAGE), Err(Code::OUT_OF_MEMORY));
        assert_eq!(state.acquire(u64::MAX), Err(Code::OUT_OF_MEMORY));
        make_current(0);
        assert_eq!(state.memory_info().free, 8 * PAGE);
        assert_eq!(state.cards.holder(first.0 + 6 * PAGE - 1), Some(1));
        assert_eq!(state.cards.holder(first.0 + 6 * PAGE), None);
        assert_eq!(state.cards.holder(first.0 - 1), None);
        let second = state.acquire(7 * PAGE).unwrap();
        let page = state.create_page(PAGE).unwrap();
        assert_eq!(state.memory_info(), MemoryInfo { free: 0, total: 10 * PAGE });
        let range = state.reserve(2 * PAGE).unwrap();
        state.map(range + PAGE, PAGE, page.0).unwrap();
        make_current(1);
        let last = range + 2 * PAGE - 1;
        assert_eq!(
            [first.0, range, last, last + 1].map(|it| state.holder(it)),
            [Some(1), None, Some(0), None]
        );
        make_current(0);
        state.unmap(range + PAGE, PAGE).unwrap();
        // It goes back to its own device, whichever is current.
        state.release(first).unwrap();
        assert_eq!(state.memory_info().free, 0);
        state.release(second).unwrap();
        state.destroy_page(page).unwrap();
        assert_eq!(state.memory_info().free, 8 * PAGE);
        assert_eq!(state.cards.given, BTreeMap::from([(0, (0, 8 * PAGE)), (1, (0, 6 * PAGE))]));
    }
}
