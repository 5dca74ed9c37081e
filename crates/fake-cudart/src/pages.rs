//! Virtual memory: ranges of addresses, pages, and what lies where.

use std::collections::BTreeMap;

use tonnage_cuda_codes::Code;
use tonnage_device::{Device, PageId};
use tonnage_events::Address;

use crate::state::{State, code_of};

/// The driver's books, beyond the device's.
#[derive(Debug, Default)]
pub(crate) struct Pages {
    /// Sizes of ranges, which the driver is told again when they go.
    ranges: BTreeMap<u64, u64>,
    /// Pages whose handle was given back while they were mapped.
    released: BTreeMap<u64, u32>,
    /// Mapped pages by address.
    mapped: BTreeMap<u64, (PageId, u64)>,
}

impl Pages {
    /// The page that is mapped at an address.
    pub(crate) fn at(&self, address: u64) -> Option<PageId> {
        let (start, (page, size)) = self.mapped.range(..=address).next_back()?;
        (address - start < *size).then_some(*page)
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
        let end = address.checked_add(size).ok_or(Code::INVALID_VALUE)?;
        let inside: Vec<_> = self
            .pages
            .mapped
            .range(address..end)
            .map(|(&at, &(page, size))| (at, page, size))
            .collect();
        let whole: u64 = inside.iter().map(|(_, _, size)| size).sum();
        if whole != size {
            return Err(Code::INVALID_VALUE);
        }
        for (at, page, _) in inside {
            self.device.unmap(Address(at)).map_err(code_of)?;
            self.pages.mapped.remove(&at);
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
}
