//! Segments, ranges, pages and mappings.

use std::collections::BTreeMap;

use crate::codes::Code;
use crate::host_memory::{Access, File, GRANULARITY, Region};

/// What a segment was asked with, and so how it may be given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// `cuMemAlloc`
    Plain,
    /// `cuMemAllocAsync`
    Pool,
}

#[derive(Debug)]
struct Segment {
    region: Region,
    device: usize,
    origin: Origin,
}

#[derive(Debug)]
struct Page {
    file: File,
    device: usize,
    /// The caller still has its handle.
    held: bool,
    mappings: u32,
}

#[derive(Debug)]
struct Mapping {
    size: u64,
    page: u64,
    /// The device whose memory the page is.
    device: usize,
    /// What devices may do; others nothing.
    access: BTreeMap<usize, Access>,
}

impl Mapping {
    fn access(&self, device: usize) -> Access {
        self.access.get(&device).copied().unwrap_or(Access::None)
    }
}

/// Capacity and use of one device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget {
    pub(crate) capacity: u64,
    pub(crate) used: u64,
}

/// All memory of all devices.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    pub(crate) budgets: Vec<Budget>,
    segments: BTreeMap<u64, Segment>,
    ranges: BTreeMap<u64, Region>,
    pages: BTreeMap<u64, Page>,
    mappings: BTreeMap<u64, Mapping>,
    last_page: u64,
}

impl Memory {
    /// Memory of `devices` devices, each with `capacity` bytes.
    pub(crate) fn new(devices: usize, capacity: u64) -> Self {
        Self { budgets: vec![Budget { capacity, used: 0 }; devices], ..Self::default() }
    }

    /// Segments, ranges, pages and mappings that were not given back.
    pub(crate) fn live(&self) -> [usize; 4] {
        let held = self.pages.values().filter(|page| page.held).count();
        [self.segments.len(), self.ranges.len(), held, self.mappings.len()]
    }

    fn take(&mut self, device: usize, size: u64) -> Result<(), Code> {
        let budget = self.budgets.get_mut(device).ok_or(Code::INVALID_DEVICE)?;
        match budget.used.checked_add(size) {
            Some(used) if used <= budget.capacity => {
                budget.used = used;
                Ok(())
            }
            _ => Err(Code::OUT_OF_MEMORY),
        }
    }

    fn put(&mut self, device: usize, size: u64) {
        if let Some(budget) = self.budgets.get_mut(device) {
            budget.used = budget.used.saturating_sub(size);
        }
    }

    /// A segment; the device gives memory in whole granules.
    pub(crate) fn alloc(&mut self, device: usize, size: u64, origin: Origin) -> Result<u64, Code> {
        if size == 0 {
            return Err(Code::INVALID_VALUE);
        }
        let size = size.checked_next_multiple_of(GRANULARITY).ok_or(Code::OUT_OF_MEMORY)?;
        self.take(device, size)?;
        let region = match Region::new(size, Access::ReadWrite) {
            Ok(region) => region,
            Err(code) => {
                self.put(device, size);
                return Err(code);
            }
        };
        let address = region.address();
        self.segments.insert(address, Segment { region, device, origin });
        Ok(address)
    }

    /// Takes a segment back. Memory of `cuMemAlloc` cannot be given to the pool.
    pub(crate) fn free(&mut self, address: u64, to: Origin) -> Result<(), Code> {
        let segment = self.segments.get(&address).ok_or(Code::INVALID_VALUE)?;
        if to == Origin::Pool && segment.origin != Origin::Pool {
            return Err(Code::INVALID_VALUE);
        }
        let (device, size) = (segment.device, segment.region.size());
        self.segments.remove(&address);
        self.put(device, size);
        Ok(())
    }

    pub(crate) fn reserve(&mut self, size: u64, alignment: u64) -> Result<u64, Code> {
        // Alignments above the granularity are possible on a device; nothing here needs them.
        if !whole(size)
            || alignment > GRANULARITY
            || !(alignment == 0 || alignment.is_power_of_two())
        {
            return Err(Code::INVALID_VALUE);
        }
        let region = Region::new(size, Access::None)?;
        let address = region.address();
        self.ranges.insert(address, region);
        Ok(address)
    }

    pub(crate) fn unreserve(&mut self, address: u64, size: u64) -> Result<(), Code> {
        let region = self.ranges.get(&address).ok_or(Code::INVALID_VALUE)?;
        if region.size() != size || overlap(&self.mappings, address, size) {
            return Err(Code::INVALID_VALUE);
        }
        self.ranges.remove(&address);
        Ok(())
    }

    pub(crate) fn create(&mut self, device: usize, size: u64) -> Result<u64, Code> {
        if !whole(size) {
            return Err(Code::INVALID_VALUE);
        }
        self.take(device, size)?;
        let file = match File::new(size) {
            Ok(file) => file,
            Err(code) => {
                self.put(device, size);
                return Err(code);
            }
        };
        self.last_page += 1;
        let handle = FIRST_PAGE + self.last_page;
        self.pages.insert(handle, Page { file, device, held: true, mappings: 0 });
        Ok(handle)
    }

    /// The caller's handle goes; the memory stays while it is mapped.
    pub(crate) fn release(&mut self, handle: u64) -> Result<(), Code> {
        let page = self.pages.get_mut(&handle).filter(|page| page.held);
        page.ok_or(Code::INVALID_VALUE)?.held = false;
        self.drop_unused(handle);
        Ok(())
    }

    pub(crate) fn map(
        &mut self,
        address: u64,
        size: u64,
        offset: u64,
        handle: u64,
    ) -> Result<(), Code> {
        let page = self.pages.get_mut(&handle).filter(|page| page.held);
        let page = page.ok_or(Code::INVALID_VALUE)?;
        if offset != 0 || size != page.file.size() {
            return Err(Code::NOT_SUPPORTED);
        }
        let region = self.ranges.values().find(|region| region.contains(address, size));
        let region = region.ok_or(Code::INVALID_VALUE)?;
        if !address.is_multiple_of(GRANULARITY) || overlap(&self.mappings, address, size) {
            return Err(Code::INVALID_VALUE);
        }
        region.place(address, &page.file)?;
        page.mappings += 1;
        let (device, access) = (page.device, BTreeMap::new());
        self.mappings.insert(address, Mapping { size, page: handle, device, access });
        Ok(())
    }

    pub(crate) fn unmap(&mut self, address: u64, size: u64) -> Result<(), Code> {
        for at in self.whole_mappings(address, size)? {
            let Some(mapping) = self.mappings.remove(&at) else { continue };
            if let Some(region) = self.ranges.values().find(|region| region.contains(at, 1)) {
                region.clear(at, mapping.size)?;
            }
            if let Some(page) = self.pages.get_mut(&mapping.page) {
                page.mappings = page.mappings.saturating_sub(1);
            }
            self.drop_unused(mapping.page);
        }
        Ok(())
    }

    /// Lets a device do so much with a stretch of addresses. The process itself may do what the device may whose memory it is.
    pub(crate) fn set_access(
        &mut self,
        address: u64,
        size: u64,
        device: usize,
        access: Access,
    ) -> Result<(), Code> {
        for at in self.whole_mappings(address, size)? {
            let Some(mapping) = self.mappings.get_mut(&at) else { continue };
            if mapping.device == device {
                let region = self.ranges.values().find(|region| region.contains(at, 1));
                region.ok_or(Code::INVALID_VALUE)?.protect(at, mapping.size, access)?;
            }
            mapping.access.insert(device, access);
        }
        Ok(())
    }

    /// Whether a device may read and write what is mapped at an address.
    pub(crate) fn reaches(&self, device: usize, address: u64) -> bool {
        let below = self.mappings.range(..=address).next_back();
        below.is_some_and(|(at, mapping)| {
            address - at < mapping.size && mapping.access(device) == Access::ReadWrite
        })
    }

    /// The mappings that tile `[address, address + size)`. Parts of mappings and gaps are refused.
    fn whole_mappings(&self, address: u64, size: u64) -> Result<Vec<u64>, Code> {
        let end = address.checked_add(size).ok_or(Code::INVALID_VALUE)?;
        let mut next = address;
        let mut found = Vec::new();
        while next < end {
            let mapping = self.mappings.get(&next).ok_or(Code::INVALID_VALUE)?;
            found.push(next);
            next += mapping.size;
        }
        if next == end && !found.is_empty() { Ok(found) } else { Err(Code::INVALID_VALUE) }
    }

    fn drop_unused(&mut self, handle: u64) {
        let Some(page) = self.pages.get(&handle) else { return };
        if page.held || page.mappings > 0 {
            return;
        }
        let (device, size) = (page.device, page.file.size());
        self.pages.remove(&handle);
        self.put(device, size);
    }

    /// Whether `size` bytes at `address` can be read, or written too.
    pub(crate) fn check_access(&self, address: u64, size: u64, write: bool) -> Result<(), Code> {
        if self.segments.values().any(|segment| segment.region.contains(address, size)) {
            return Ok(());
        }
        let end = address.checked_add(size).ok_or(Code::INVALID_VALUE)?;
        let mut next = address;
        while next < end {
            let below = self.mappings.range(..=next).next_back();
            let (at, mapping) = below.ok_or(Code::INVALID_VALUE)?;
            let allowed = match mapping.access(mapping.device) {
                Access::None => false,
                Access::Read => !write,
                Access::ReadWrite => true,
            };
            if at + mapping.size <= next || !allowed {
                return Err(Code::INVALID_VALUE);
            }
            next = at + mapping.size;
        }
        Ok(())
    }
}

/// Handles begin here, so that no small number is one by accident.
const FIRST_PAGE: u64 = 0x7000_0000;

fn whole(size: u64) -> bool {
    size > 0 && size.is_multiple_of(GRANULARITY)
}

fn overlap(mappings: &BTreeMap<u64, Mapping>, address: u64, size: u64) -> bool {
    let last = mappings.range(..address.saturating_add(size)).next_back();
    last.is_some_and(|(at, mapping)| at + mapping.size > address)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn memory() -> Memory {
        Memory::new(1, 64 * MIB)
    }

    /// Whether the kernel can read a byte there; the process itself would die trying.
    fn readable(address: u64) -> bool {
        let mut pipe = [0; 2];
        // SAFETY: `pipe` is a place for two descriptors.
        assert_eq!(unsafe { libc::pipe(pipe.as_mut_ptr()) }, 0);
        let byte = std::ptr::with_exposed_provenance(address as usize);
        // SAFETY: the kernel checks the address, and says so if it cannot be read.
        let written = unsafe { libc::write(pipe[1], byte, 1) };
        for end in pipe {
            // SAFETY: opened above, and used by nobody else.
            unsafe { libc::close(end) };
        }
        written == 1
    }

    #[test]
    fn pages_are_mapped_whole_and_without_offset() {
        let mut memory = memory();
        let range = memory.reserve(16 * MIB, 0).unwrap();
        let page = memory.create(0, 4 * MIB).unwrap();
        assert_eq!(memory.map(range, 2 * MIB, 0, page), Err(Code::NOT_SUPPORTED));
        assert_eq!(memory.map(range, 2 * MIB, 2 * MIB, page), Err(Code::NOT_SUPPORTED));
        assert_eq!(memory.map(range, 4 * MIB, 2 * MIB, page), Err(Code::NOT_SUPPORTED));
        assert_eq!(memory.map(range + 4096, 4 * MIB, 0, page), Err(Code::INVALID_VALUE));
        assert_eq!(memory.map(range + 14 * MIB, 4 * MIB, 0, page), Err(Code::INVALID_VALUE));
        assert_eq!(memory.map(range, 4 * MIB, 0, page + 1), Err(Code::INVALID_VALUE));
        memory.map(range, 4 * MIB, 0, page).unwrap();
        assert_eq!(memory.map(range + 2 * MIB, 4 * MIB, 0, page), Err(Code::INVALID_VALUE));
        memory.map(range + 4 * MIB, 4 * MIB, 0, page).unwrap();
    }

    #[test]
    fn part_of_a_mapping_is_neither_unmapped_nor_given_access() {
        let mut memory = memory();
        let range = memory.reserve(16 * MIB, 0).unwrap();
        let page = memory.create(0, 4 * MIB).unwrap();
        for at in [0, 4, 12] {
            memory.map(range + at * MIB, 4 * MIB, 0, page).unwrap();
        }
        for (at, size) in [(0, 2), (2, 2), (0, 6), (4, 8), (8, 4), (0, 0), (0, 16)] {
            let (at, size) = (range + at * MIB, size * MIB);
            assert_eq!(memory.unmap(at, size), Err(Code::INVALID_VALUE), "{at:x} {size}");
            let access = memory.set_access(at, size, 0, Access::ReadWrite);
            assert_eq!(access, Err(Code::INVALID_VALUE), "{at:x} {size}");
        }
        memory.set_access(range, 8 * MIB, 0, Access::ReadWrite).unwrap();
        memory.unmap(range, 8 * MIB).unwrap();
        assert_eq!(memory.unreserve(range, 16 * MIB), Err(Code::INVALID_VALUE));
        memory.unmap(range + 12 * MIB, 4 * MIB).unwrap();
        assert_eq!(memory.unreserve(range, 8 * MIB), Err(Code::INVALID_VALUE));
        memory.unreserve(range, 16 * MIB).unwrap();
    }

    #[test]
    fn sizes_are_whole_granules() {
        let mut memory = memory();
        for size in [0, 1, MIB, 3 * MIB] {
            assert_eq!(memory.create(0, size), Err(Code::INVALID_VALUE));
            assert_eq!(memory.reserve(size, 0), Err(Code::INVALID_VALUE));
        }
        assert_eq!(memory.reserve(2 * MIB, 3), Err(Code::INVALID_VALUE));
        assert_eq!(memory.alloc(0, 0, Origin::Plain), Err(Code::INVALID_VALUE));
    }

    #[test]
    fn memory_cannot_be_touched_before_access_is_given_nor_after_it_is_gone() {
        let mut memory = memory();
        let range = memory.reserve(2 * MIB, 0).unwrap();
        let page = memory.create(0, 2 * MIB).unwrap();
        assert!(!readable(range));
        memory.map(range, 2 * MIB, 0, page).unwrap();
        assert!(!readable(range));
        assert_eq!(memory.check_access(range, 1, false), Err(Code::INVALID_VALUE));
        memory.set_access(range, 2 * MIB, 1, Access::ReadWrite).unwrap();
        assert!(memory.reaches(1, range) && !memory.reaches(0, range) && !readable(range));
        memory.set_access(range, 2 * MIB, 0, Access::Read).unwrap();
        assert!(readable(range));
        assert_eq!(memory.check_access(range, 1, false), Ok(()));
        assert_eq!(memory.check_access(range, 1, true), Err(Code::INVALID_VALUE));
        memory.unmap(range, 2 * MIB).unwrap();
        assert!(!readable(range));
    }

    #[test]
    fn a_released_page_is_memory_until_it_is_unmapped() {
        let mut memory = memory();
        let range = memory.reserve(2 * MIB, 0).unwrap();
        let page = memory.create(0, 2 * MIB).unwrap();
        memory.map(range, 2 * MIB, 0, page).unwrap();
        memory.release(page).unwrap();
        assert_eq!(memory.release(page), Err(Code::INVALID_VALUE));
        assert_eq!((memory.live(), memory.budgets[0].used), ([0, 1, 0, 1], 2 * MIB));
        memory.unmap(range, 2 * MIB).unwrap();
        assert_eq!((memory.live(), memory.budgets[0].used), ([0, 1, 0, 0], 0));
    }

    #[test]
    fn a_device_gives_no_more_than_it_has() {
        let mut memory = memory();
        let segment = memory.alloc(0, 40 * MIB, Origin::Plain).unwrap();
        assert_eq!(memory.create(0, 26 * MIB), Err(Code::OUT_OF_MEMORY));
        assert_eq!(memory.alloc(0, u64::MAX, Origin::Plain), Err(Code::OUT_OF_MEMORY));
        memory.create(0, 24 * MIB).unwrap();
        assert_eq!(memory.alloc(0, 1, Origin::Plain), Err(Code::OUT_OF_MEMORY));
        assert_eq!(memory.free(segment + MIB, Origin::Plain), Err(Code::INVALID_VALUE));
        assert_eq!(memory.free(segment, Origin::Pool), Err(Code::INVALID_VALUE));
        memory.free(segment, Origin::Plain).unwrap();
        assert_eq!(memory.budgets[0].used, 24 * MIB);
    }
}
