//! Virtual memory: ranges of addresses, pages, and what lies where.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::c_int;

use tonnage_cuda_codes::Code;
use tonnage_device::{Device, PageId};
use tonnage_events::Address;

use crate::state::{State, code_of, with_state};

/// The driver's books, beyond the device's.
#[derive(Debug, Default)]
pub(crate) struct Pages {
    /// Sizes of ranges, which the driver is told again when they go.
    ranges: BTreeMap<u64, u64>,
    /// Pages whose handle was given back while they were mapped.
    released: BTreeMap<u64, u32>,
    /// Mapped pages by address.
    mapped: BTreeMap<u64, (PageId, u64)>,
    /// Devices that may reach them, by the same addresses.
    readers: BTreeMap<u64, BTreeSet<c_int>>,
}

impl Pages {
    /// The page that is mapped at an address.
    pub(crate) fn at(&self, address: u64) -> Option<PageId> {
        let (start, (page, size)) = self.mapped.range(..=address).next_back()?;
        (address - start < *size).then_some(*page)
    }

    /// Mappings that `[address, address + size)` consists of.
    fn whole(&self, address: u64, size: u64) -> Result<Vec<(u64, PageId)>, Code> {
        let end = address.checked_add(size).ok_or(Code::INVALID_VALUE)?;
        let inside = || self.mapped.range(address..end);
        match inside().map(|(_, (_, size))| size).sum::<u64>() == size {
            true => Ok(inside().map(|(&at, &(page, _))| (at, page)).collect()),
            false => Err(Code::INVALID_VALUE),
        }
    }
}

impl State {
    pub(crate) fn reserve(&mut self, size: u64) -> Result<u64, Code> {
        let address = self.device.reserve(size).map_err(code_of)?.0;
        self.pages.ranges.insert(address, size);
        Ok(address)
    }

    pub(crate) fn unreserve(&mut self, address: u64, size: u64) -> Result<(), Code> {
        if self.pages.ranges.get(&address) != Some(&size) {
            return Err(Code::INVALID_VALUE);
        }
        self.device.unreserve(Address(address)).map_err(code_of)?;
        self.pages.ranges.remove(&address);
        Ok(())
    }

    pub(crate) fn map(&mut self, address: u64, size: u64, page: u64) -> Result<(), Code> {
        self.device.map(PageId(page), Address(address)).map_err(code_of)?;
        self.pages.mapped.insert(address, (PageId(page), size));
        Ok(())
    }

    /// Takes away every mapping of `[address, address + size)`; pages whose handles are gone go with
    /// their last mapping.
    pub(crate) fn unmap(&mut self, address: u64, size: u64) -> Result<(), Code> {
        for (at, page) in self.pages.whole(address, size)? {
            self.device.unmap(Address(at)).map_err(code_of)?;
            self.pages.mapped.remove(&at);
            self.pages.readers.remove(&at);
            if let Some(mappings) = self.pages.released.get_mut(&page.0) {
                *mappings -= 1;
                if *mappings == 0 {
                    self.pages.released.remove(&page.0);
                    self.destroy_page(page)?;
                }
            }
        }
        Ok(())
    }

    /// Lets a device at every mapping of `[address, address + size)`, or no longer.
    pub(crate) fn set_access(
        &mut self,
        address: u64,
        size: u64,
        device: c_int,
        may: bool,
    ) -> Result<(), Code> {
        if !self.has_device(device) {
            return Err(Code::INVALID_DEVICE);
        }
        for (at, _) in self.pages.whole(address, size)? {
            let readers = self.pages.readers.entry(at).or_default();
            match may {
                true => readers.insert(device),
                false => readers.remove(&device),
            };
        }
        Ok(())
    }

    /// Whether a device may reach the page that is mapped at an address.
    fn may_reach(&self, device: c_int, address: u64) -> bool {
        let below = self.pages.mapped.range(..=address).next_back();
        below.is_some_and(|(at, (_, size))| {
            address - at < *size
                && self.pages.readers.get(at).is_some_and(|it| it.contains(&device))
        })
    }

    /// Gives a page's handle back. Its memory stays while it is mapped.
    pub(crate) fn release_page(&mut self, page: u64) -> Result<(), Code> {
        let mappings = self.pages.mapped.values().filter(|(mapped, _)| mapped.0 == page).count();
        if mappings == 0 {
            return self.destroy_page(PageId(page));
        }
        self.pages.released.insert(page, u32::try_from(mappings).map_err(|_| Code::UNKNOWN)?);
        Ok(())
    }
}

/// 1 if a device may reach the page that is mapped at an address.
#[unsafe(no_mangle)]
extern "C" fn tonnage_fake_may_reach(device: c_int, address: u64) -> c_int {
    c_int::from(with_state(|state| state.may_reach(device, address)).unwrap_or(false))
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
    fn who_may_reach_a_mapping_is_forgotten_with_it() {
        let mut state = State::of_many(1 << 30, 1 << 30, 2);
        let range = state.reserve(4 * PAGE).unwrap();
        for place in [0, 1] {
            let page = state.device.create_page(PAGE).unwrap().0;
            state.map(range + place * PAGE, PAGE, page).unwrap();
            state.set_access(range + place * PAGE, PAGE, 0, true).unwrap();
        }
        let reached = |state: &State| {
            [0, 1].map(|device| {
                [0, PAGE, 2 * PAGE - 1, 2 * PAGE].map(|at| state.may_reach(device, range + at))
            })
        };
        assert_eq!(reached(&state), [[true, true, true, false], [false; 4]]);
        state.set_access(range, 2 * PAGE, 1, true).unwrap();
        assert_eq!(reached(&state), [[true, true, true, false]; 2]);
        assert_eq!(state.set_access(range, PAGE + 1, 1, true), Err(Code::INVALID_VALUE));
        assert_eq!(state.set_access(range, PAGE, 2, true), Err(Code::INVALID_DEVICE));
        state.set_access(range, PAGE, 1, false).unwrap();
        state.unmap(range + PAGE, PAGE).unwrap();
        assert_eq!(reached(&state), [[true, false, false, false], [false; 4]]);
    }
}
