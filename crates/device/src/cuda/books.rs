//! What the device has given and not got back.
//!
//! The driver is asked only for what these books allow, so that misuse is refused in the words of
//! every other device, before anything happens. Each change is two steps with the driver's call
//! between them: a question that may refuse, and an entry that cannot fail.
//!
//! *The mappings of a range lie inside it and do not overlap; a page's count is the number of its
//! mappings, strays included.*

use std::collections::BTreeMap;

use tonnage_events::Address;

use super::sys::CUmemGenericAllocationHandle;
use crate::{DeviceError, PageId};

/// Who takes a segment back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// `cuMemAlloc`, `cuMemFree`.
    Driver,
    /// `cuMemAllocAsync`: the driver's own pool.
    Pool,
}

#[derive(Clone, Copy, Debug)]
struct Segment {
    size: u64,
    source: Source,
}

#[derive(Clone, Copy, Debug)]
struct Page {
    handle: CUmemGenericAllocationHandle,
    size: u64,
    mappings: u32,
}

/// A page at an address.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mapping {
    pub(super) address: Address,
    pub(super) page: PageId,
    pub(super) handle: CUmemGenericAllocationHandle,
    pub(super) size: u64,
}

#[derive(Debug)]
pub(super) struct Books {
    granularity: u64,
    segments: BTreeMap<Address, Segment>,
    ranges: BTreeMap<Address, u64>,
    pages: BTreeMap<PageId, Page>,
    mappings: BTreeMap<Address, Mapping>,
    /// Mappings that were to be taken back when `map` failed halfway, and could not be.
    strays: Vec<Mapping>,
    last_page: u64,
}

impl Books {
    pub(super) fn new(granularity: u64) -> Self {
        Self {
            granularity,
            segments: BTreeMap::new(),
            ranges: BTreeMap::new(),
            pages: BTreeMap::new(),
            mappings: BTreeMap::new(),
            strays: Vec::new(),
            last_page: 0,
        }
    }

    pub(super) fn granularity(&self) -> u64 {
        self.granularity
    }

    /// Segments, ranges, pages and mappings, by number.
    pub(super) fn counts(&self) -> [usize; 4] {
        [
            self.segments.len(),
            self.ranges.len(),
            self.pages.len(),
            self.mappings.len() + self.strays.len(),
        ]
    }

    // Segments.

    pub(super) fn add_segment(&mut self, address: Address, size: u64, source: Source) {
        self.segments.insert(address, Segment { size, source });
    }

    pub(super) fn segment(
        &self,
        call: &'static str,
        address: Address,
    ) -> Result<Source, DeviceError> {
        self.segments
            .get(&address)
            .map(|segment| segment.source)
            .ok_or_else(|| DeviceError::misuse(call, format!("no segment begins at {address}")))
    }

    pub(super) fn remove_segment(&mut self, address: Address) {
        self.segments.remove(&address);
    }

    // Ranges.

    /// `size`, rounded up to whole granules.
    pub(super) fn range_size(&self, size: u64) -> Result<u64, DeviceError> {
        if size == 0 {
            return Err(DeviceError::misuse("reserve", "a range has at least one byte"));
        }
        size.checked_next_multiple_of(self.granularity).ok_or_else(|| {
            DeviceError::misuse("reserve", format!("the address space has no {size} bytes"))
        })
    }

    pub(super) fn add_range(&mut self, address: Address, size: u64) {
        self.ranges.insert(address, size);
    }

    /// The size of the range at `address`, into which nothing is mapped.
    pub(super) fn empty_range(&self, address: Address) -> Result<u64, DeviceError> {
        let size = *self.ranges.get(&address).ok_or_else(|| {
            DeviceError::misuse("unreserve", format!("no range begins at {address}"))
        })?;
        if let Some(at) = self.overlapped(address, size) {
            return Err(DeviceError::misuse(
                "unreserve",
                format!("a page is still mapped at {at}, inside the range at {address}"),
            ));
        }
        Ok(size)
    }

    pub(super) fn remove_range(&mut self, address: Address) {
        self.ranges.remove(&address);
    }

    // Pages.

    pub(super) fn whole_granules(&self, size: u64) -> Result<(), DeviceError> {
        if size == 0 || !size.is_multiple_of(self.granularity) {
            return Err(DeviceError::misuse(
                "create_page",
                format!("{size} bytes are not a whole number of granules of {}", self.granularity),
            ));
        }
        Ok(())
    }

    pub(super) fn add_page(&mut self, handle: CUmemGenericAllocationHandle, size: u64) -> PageId {
        self.last_page += 1;
        let page = PageId(self.last_page);
        self.pages.insert(page, Page { handle, size, mappings: 0 });
        page
    }

    fn page(&self, call: &'static str, page: PageId) -> Result<&Page, DeviceError> {
        self.pages
            .get(&page)
            .ok_or_else(|| DeviceError::misuse(call, format!("no page {}", page.0)))
    }

    pub(super) fn unmapped_page(
        &self,
        page: PageId,
    ) -> Result<CUmemGenericAllocationHandle, DeviceError> {
        let entry = self.page("destroy_page", page)?;
        if entry.mappings > 0 {
            return Err(DeviceError::misuse(
                "destroy_page",
                format!("page {} is still mapped", page.0),
            ));
        }
        Ok(entry.handle)
    }

    pub(super) fn remove_page(&mut self, page: PageId) {
        self.pages.remove(&page);
    }

    // Mappings.

    /// The mapping of `page` at `address`, if it can be.
    pub(super) fn possible_mapping(
        &self,
        page: PageId,
        address: Address,
    ) -> Result<Mapping, DeviceError> {
        let &Page { handle, size, .. } = self.page("map", page)?;
        if !address.0.is_multiple_of(self.granularity) {
            return Err(DeviceError::misuse("map", format!("{address} is not aligned")));
        }
        if !self.in_one_range(address, size) {
            return Err(DeviceError::misuse(
                "map",
                format!("no reserved range holds {size} bytes at {address}"),
            ));
        }
        if let Some(at) = self.overlapped(address, size) {
            return Err(DeviceError::misuse("map", format!("a page is mapped at {at} already")));
        }
        Ok(Mapping { address, page, handle, size })
    }

    pub(super) fn add_mapping(&mut self, mapping: Mapping) {
        self.mappings.insert(mapping.address, mapping);
        self.count_mapping(mapping.page, 1);
    }

    pub(super) fn mapping(&self, address: Address) -> Result<Mapping, DeviceError> {
        self.mappings
            .get(&address)
            .copied()
            .ok_or_else(|| DeviceError::misuse("unmap", format!("no mapping begins at {address}")))
    }

    /// All of them, by address.
    pub(super) fn mappings(&self) -> impl Iterator<Item = &Mapping> {
        self.mappings.values()
    }

    pub(super) fn remove_mapping(&mut self, mapping: &Mapping) {
        if self.mappings.remove(&mapping.address).is_some() {
            self.count_mapping(mapping.page, -1);
        }
    }

    pub(super) fn add_stray(&mut self, mapping: Mapping) {
        self.strays.push(mapping);
        self.count_mapping(mapping.page, 1);
    }

    pub(super) fn stray(&self) -> Option<Mapping> {
        self.strays.last().copied()
    }

    /// Forgets the stray that [`stray`](Self::stray) named.
    pub(super) fn remove_stray(&mut self) {
        if let Some(stray) = self.strays.pop() {
            self.count_mapping(stray.page, -1);
        }
    }

    fn count_mapping(&mut self, page: PageId, change: i32) {
        if let Some(page) = self.pages.get_mut(&page) {
            page.mappings = page.mappings.saturating_add_signed(change);
        }
    }

    /// Whether one range holds all of `[address, address + size)`.
    fn in_one_range(&self, address: Address, size: u64) -> bool {
        self.ranges.range(..=address).next_back().is_some_and(|(base, &length)| {
            let start = address.0 - base.0;
            start.checked_add(size).is_some_and(|end| end <= length)
        })
    }

    /// A mapping that shares addresses with `[address, address + size)`, which lies in one range.
    fn overlapped(&self, address: Address, size: u64) -> Option<Address> {
        let end = Address(address.0.saturating_add(size));
        let last = self.mappings.range(..end).next_back().map(|(_, mapping)| mapping);
        last.into_iter()
            .chain(&self.strays)
            .find(|other| {
                other.address < end && other.address.0.saturating_add(other.size) > address.0
            })
            .map(|other| other.address)
    }

    // Contents.

    /// Whether `size` bytes at `address` are memory of this device: part of one segment, or
    /// mapped without a gap.
    pub(super) fn holds(&self, address: Address, size: u64) -> bool {
        let Some(end) = address.0.checked_add(size) else { return false };
        let segment = self.segments.range(..=address).next_back();
        if segment.is_some_and(|(base, segment)| end <= base.0.saturating_add(segment.size)) {
            return true;
        }
        let mut covered = address.0;
        while covered < end {
            let Some((_, mapping)) = self.mappings.range(..=Address(covered)).next_back() else {
                return false;
            };
            let mapped = mapping.address.0.saturating_add(mapping.size);
            if mapped <= covered {
                return false;
            }
            covered = mapped;
        }
        true
    }

    // The end.

    /// Takes everything out of the books, so that it can be given back.
    pub(super) fn drain(&mut self) -> Remains {
        let mut mappings: Vec<_> = std::mem::take(&mut self.mappings).into_values().collect();
        mappings.append(&mut self.strays);
        Remains {
            segments: std::mem::take(&mut self.segments).into_keys().collect(),
            mappings,
            pages: std::mem::take(&mut self.pages).into_values().map(|page| page.handle).collect(),
            ranges: std::mem::take(&mut self.ranges).into_iter().collect(),
        }
    }
}

/// What is left at the end, in the order it can be given back.
#[derive(Debug)]
pub(super) struct Remains {
    pub(super) segments: Vec<Address>,
    pub(super) mappings: Vec<Mapping>,
    pub(super) pages: Vec<CUmemGenericAllocationHandle>,
    pub(super) ranges: Vec<(Address, u64)>,
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn books() -> (Books, PageId) {
        let mut books = Books::new(2 * MIB);
        books.add_range(Address(64 * MIB), 64 * MIB);
        let page = books.add_page(7, 4 * MIB);
        (books, page)
    }

    #[test]
    fn addresses_at_the_end_of_the_address_space_are_refused_without_overflow() {
        let (books, page) = books();
        let last = Address(u64::MAX - 2 * MIB + 1);
        assert!(books.possible_mapping(page, last).is_err());
        assert!(!books.holds(last, 4 * MIB));
        assert!(!books.holds(Address(u64::MAX), u64::MAX));
        assert!(books.range_size(u64::MAX).is_err());
    }

    #[test]
    fn neighbouring_mappings_hold_bytes_across_their_border_and_gaps_do_not() {
        let (mut books, page) = books();
        for at in [64, 68, 76] {
            let mapping = books.possible_mapping(page, Address(at * MIB)).unwrap();
            books.add_mapping(mapping);
        }
        assert!(books.holds(Address(65 * MIB), 7 * MIB));
        assert!(!books.holds(Address(65 * MIB), 7 * MIB + 1));
        assert!(!books.holds(Address(72 * MIB), 1));
        assert!(books.holds(Address(79 * MIB), MIB));
        assert!(books.holds(Address(0), 0));
    }

    #[test]
    fn a_stray_mapping_keeps_its_page_and_its_addresses() {
        let (mut books, page) = books();
        let mapping = books.possible_mapping(page, Address(64 * MIB)).unwrap();
        books.add_stray(mapping);
        assert!(books.unmapped_page(page).is_err());
        assert!(books.empty_range(Address(64 * MIB)).is_err());
        assert!(books.possible_mapping(page, Address(66 * MIB)).is_err());
        books.remove_stray();
        assert_eq!(books.unmapped_page(page), Ok(7));
        assert_eq!(books.empty_range(Address(64 * MIB)), Ok(64 * MIB));
    }
}
