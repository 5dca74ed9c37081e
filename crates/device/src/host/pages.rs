//! Reserved ranges, pages of physical memory, and which page lies where.
//!
//! In:  the virtual-memory calls of [`Device`](crate::Device).
//! Out: mappings made and unmade, or a refusal that changed nothing.
//!
//! The pages of a device are parts of one memory file (`memfd`), each at an offset of its own that
//! is never used again: the file is sparse and may be 2⁶³ bytes long, so offsets do not run out, and
//! destroying a page punches a hole where it was. A file for each page would need no hole, but a
//! descriptor for each page: at the usual limit of 1,024 open files, 2 GiB of 2 MiB pages.
//!
//! This file counts no bytes against the capacity: that is the device's.

use std::collections::BTreeMap;
use std::fs::File;

use tonnage_events::Address;

use super::addresses::Addresses;
use super::memory::{self, ALIGNMENT, Span};
use crate::{DeviceError, PageId};

/// The unit of mapping, as on NVIDIA's devices.
pub(super) const GRANULARITY: u64 = ALIGNMENT as u64;

/// The virtual memory of one device.
///
/// *Every mapping lies inside one range, mappings do not overlap, and a page's count is the number
/// of mappings that name it.*
#[derive(Debug, Default)]
pub(super) struct Pages {
    ranges: BTreeMap<Address, Range>,
    pages: BTreeMap<PageId, Page>,
    /// Which page lies at an address, and its size.
    mappings: BTreeMap<Address, (PageId, u64)>,
    /// Opened by the first page.
    file: Option<File>,
    /// How long the file is: where the next page begins.
    file_length: u64,
    last_page: u64,
}

#[derive(Debug)]
struct Range {
    span: Span,
    size: u64,
}

#[derive(Debug)]
struct Page {
    file_offset: u64,
    size: u64,
    mappings: u32,
}

impl Pages {
    pub(super) fn reserve(
        &mut self,
        size: u64,
        addresses: &mut Addresses,
    ) -> Result<Address, DeviceError> {
        whole_granules("reserve", size)?;
        let live = self.ranges.iter().map(|(&address, range)| (address, range.size));
        let span = addresses.range(size, live).map_err(|error| memory::driver("mmap", &error))?;
        let address = Address(span.start());
        self.ranges.insert(address, Range { span, size });
        Ok(address)
    }

    pub(super) fn unreserve(&mut self, address: Address) -> Result<(), DeviceError> {
        let size = match self.ranges.get(&address) {
            Some(range) => range.size,
            None => return Err(none_begins("unreserve", "range", address)),
        };
        if let Some((at, _)) = self.mappings.range(address..address.offset(size)).next() {
            return Err(DeviceError::misuse(
                "unreserve",
                format!("a page is still mapped at {at}, inside the range at {address}"),
            ));
        }
        let range = self.ranges.remove(&address).expect("looked up above");
        range.span.release().map_err(|(span, error)| {
            self.ranges.insert(address, Range { span, size });
            memory::driver("munmap", &error)
        })
    }

    /// Makes a page of `size` bytes, which [`whole_granules`] has accepted.
    pub(super) fn create(&mut self, size: u64) -> Result<PageId, DeviceError> {
        let out_of_memory = DeviceError::OutOfMemory { requested: size };
        let file = match self.file.take() {
            Some(file) => file,
            None => memory::memory_file()
                .map_err(|error| memory::memory_or_driver("memfd_create", size, &error))?,
        };
        let file = self.file.insert(file);
        let file_offset = self.file_length;
        let length = file_offset.checked_add(size).ok_or(out_of_memory)?;
        file.set_len(length)
            .map_err(|error| memory::memory_or_driver("ftruncate", size, &error))?;
        self.file_length = length;
        self.last_page += 1;
        let page = PageId(self.last_page);
        self.pages.insert(page, Page { file_offset, size, mappings: 0 });
        Ok(page)
    }

    /// Returns the size of what is gone.
    pub(super) fn destroy(&mut self, page: PageId) -> Result<u64, DeviceError> {
        let entry = self.pages.get(&page).ok_or_else(|| no_page("destroy_page", page))?;
        if entry.mappings > 0 {
            return Err(DeviceError::misuse(
                "destroy_page",
                format!("page {} is still mapped", page.0),
            ));
        }
        let (file_offset, size) = (entry.file_offset, entry.size);
        if let Some(file) = &self.file {
            memory::punch_hole(file, file_offset, size)
                .map_err(|error| memory::driver("fallocate", &error))?;
        }
        self.pages.remove(&page);
        Ok(size)
    }

    pub(super) fn map(&mut self, page: PageId, address: Address) -> Result<(), DeviceError> {
        let entry = self.pages.get_mut(&page).ok_or_else(|| no_page("map", page))?;
        let size = entry.size;
        if !address.0.is_multiple_of(GRANULARITY) {
            return Err(DeviceError::misuse("map", format!("{address} is not aligned")));
        }
        let below = self.ranges.range_mut(..=address).next_back();
        let inside = below.filter(|(base, range)| {
            address.distance_from(**base).checked_add(size).is_some_and(|end| end <= range.size)
        });
        let Some((base, range)) = inside else {
            return Err(DeviceError::misuse(
                "map",
                format!("no reserved range holds {size} bytes at {address}"),
            ));
        };
        // The range holds `size` bytes at `address`, so the sum stays inside the address space.
        let below = self.mappings.range(..address.offset(size)).next_back();
        if let Some((at, (_, length))) = below
            && at.offset(*length) > address
        {
            return Err(DeviceError::misuse("map", format!("a page is mapped at {at} already")));
        }
        let file = self.file.as_ref().expect("the first page opened the file");
        range
            .span
            .map_file(address.distance_from(*base), size, file, entry.file_offset)
            .map_err(|error| memory::driver("mmap", &error))?;
        entry.mappings += 1;
        self.mappings.insert(address, (page, size));
        Ok(())
    }

    pub(super) fn unmap(&mut self, address: Address) -> Result<(), DeviceError> {
        let Some(&(page, size)) = self.mappings.get(&address) else {
            return Err(none_begins("unmap", "mapping", address));
        };
        let below = self.ranges.range_mut(..=address).next_back();
        let (base, range) = below.expect("a mapping lies inside a range");
        range
            .span
            .clear(address.distance_from(*base), size)
            .map_err(|error| memory::driver("mmap", &error))?;
        self.mappings.remove(&address);
        self.pages.get_mut(&page).expect("a mapped page exists").mappings -= 1;
        Ok(())
    }

    /// Whether all of `[address, address + length)` is mapped, by one page or by neighbours.
    pub(super) fn covers(&self, address: Address, length: u64) -> bool {
        let Some(end) = address.0.checked_add(length) else { return false };
        let mut at = address.0;
        while at < end {
            let below = self.mappings.range(..=Address(at)).next_back();
            match below {
                Some((base, (_, size))) if at - base.0 < *size => at = base.0 + size,
                _ => return false,
            }
        }
        true
    }

    /// Ranges and pages that were not given back.
    pub(super) fn handles(&self) -> usize {
        self.ranges.len() + self.pages.len()
    }
}

pub(super) fn whole_granules(call: &'static str, size: u64) -> Result<(), DeviceError> {
    if size == 0 || !size.is_multiple_of(GRANULARITY) {
        return Err(DeviceError::misuse(
            call,
            format!("{size} bytes are not a whole number of granules of {GRANULARITY}"),
        ));
    }
    Ok(())
}

fn no_page(call: &'static str, page: PageId) -> DeviceError {
    DeviceError::misuse(call, format!("no page {}", page.0))
}

pub(super) fn none_begins(call: &'static str, what: &str, address: Address) -> DeviceError {
    DeviceError::misuse(call, format!("no {what} begins at {address}"))
}
