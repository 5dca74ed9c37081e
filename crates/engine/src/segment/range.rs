//! Expandable segments: reserved ranges and the pages mapped into them.
//!
//! # Note \[Expandable segments\]
//!
//! *Why.* A fixed segment that is a little too small for a request is of no use to it, however much
//! of it is free. Varying sizes therefore leave many such segments behind. One range that grows at
//! its end has no such ends.
//!
//! *How.* Each (pool, stream) reserves a range of addresses an eighth larger than the device. Pages
//! are mapped at its end as it grows, and whole free pages anywhere in it can be unmapped. Blocks
//! are cut from it as from any segment; the part without pages is an *unmapped* block, kept apart
//! from the free ones. Merging stops where mapped and unmapped meet.
//!
//! *Limits.* The page is the unit: 2 MiB in small pools, the large segment size in large ones. A page
//! with one live block stays. And one stream's free pages cannot serve another.

use std::collections::BTreeMap;

use slotmap::{SlotMap, new_key_type};
use tonnage_device::{Device, DeviceError, PageId};
use tonnage_events::Address;

use crate::pages::{PageKey, ViewKey};

new_key_type! {
    /// Names an expandable segment.
    pub(crate) struct RangeId;
}

/// A reserved range of addresses.
#[derive(Clone, Debug)]
pub(crate) struct Range {
    pub(crate) base: Address,
    pub(crate) size: u64,
    pub(crate) page_size: u64,
    pub(crate) role: Role,
    /// How many were reserved before it.
    pub(crate) number: u64,
    /// The places that have a page: as much as is mapped, however far into the range that lies. Of an expandable
    /// segment alone.
    pages: BTreeMap<usize, PageId>,
    /// Pages that move, with their sizes, by where they begin in the range: those of a home or view.
    pub(crate) laid: BTreeMap<u64, (PageKey, u64)>,
}

/// What a range is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// An expandable segment, with pages of its own.
    Expandable,
    /// The place where pages that move begin.
    Home,
    /// A place where some of them lie one behind the other a second time.
    View(ViewKey),
}

/// Consecutive places for pages in a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Places {
    pub(crate) first: usize,
    pub(crate) count: usize,
}

/// Addresses of all ranges together, at most: more than any address space has. With as many bytes of segments
/// ([`MOST_RESERVED`](crate::stats::MOST_RESERVED)) their sum is a number of 64 bits.
const MOST_ADDRESSES: u64 = 1 << 62;

/// All expandable segments of a device.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ranges {
    all: SlotMap<RangeId, Range>,
    /// How many were ever reserved.
    numbers: u64,
    /// Addresses that are reserved, abandoned ones too.
    addresses: u64,
    /// Pages that were unmapped but that the device would not take back. They serve again before
    /// new ones are made, and go back with the next cached memory that does: nothing is lost.
    stranded: Vec<(u64, PageId)>,
}

impl Range {
    /// Where the page at this place begins.
    pub(crate) fn address_of(&self, place: usize) -> Address {
        self.base.offset(place as u64 * self.page_size)
    }

    /// The places that `bytes` from `start`, a page boundary, reach into.
    pub(crate) fn places_touched(&self, start: Address, bytes: u64) -> Places {
        let offset = start.distance_from(self.base);
        debug_assert!(offset.is_multiple_of(self.page_size), "unmapped blocks begin with a page");
        Places {
            first: (offset / self.page_size) as usize,
            count: bytes.div_ceil(self.page_size) as usize,
        }
    }

    /// The places that lie entirely within `bytes` from `start`.
    pub(crate) fn places_within(&self, start: Address, bytes: u64) -> Places {
        let offset = start.distance_from(self.base);
        let first = offset.div_ceil(self.page_size);
        let end = (offset + bytes) / self.page_size;
        Places { first: first as usize, count: end.saturating_sub(first) as usize }
    }

    /// The pages that move and lie entirely within `bytes` from `start`, by address.
    pub(crate) fn laid_within(
        &self,
        start: Address,
        bytes: u64,
    ) -> impl Iterator<Item = (Address, PageKey)> + '_ {
        let offset = start.distance_from(self.base);
        let end = offset + bytes;
        let here = self.laid.range(offset..end).filter(move |(at, (_, size))| *at + size <= end);
        here.map(|(&offset, &(page, _))| (self.base.offset(offset), page))
    }

    /// Whether a page lies at this place.
    pub(crate) fn has_page(&self, place: usize) -> bool {
        self.pages.contains_key(&place)
    }
}

impl std::ops::Index<RangeId> for Ranges {
    type Output = Range;

    fn index(&self, id: RangeId) -> &Range {
        &self.all[id]
    }
}

impl std::ops::IndexMut<RangeId> for Ranges {
    fn index_mut(&mut self, id: RangeId) -> &mut Range {
        &mut self.all[id]
    }
}

impl Ranges {
    /// Reserves a range.
    pub(crate) fn reserve<D: Device>(
        &mut self,
        device: &mut D,
        size: u64,
        page_size: u64,
        role: Role,
    ) -> Result<RangeId, DeviceError> {
        let addresses = self.addresses.saturating_add(size);
        if addresses > MOST_ADDRESSES {
            let reason = format!("no address space has {addresses} bytes for expandable segments");
            return Err(DeviceError::Misuse { call: "reserve", reason });
        }
        let base = device.reserve(size)?;
        self.addresses = addresses;
        let (pages, laid) = (BTreeMap::new(), BTreeMap::new());
        let number = self.numbers;
        self.numbers += 1;
        Ok(self.all.insert(Range { base, size, page_size, role, number, pages, laid }))
    }

    /// Forgets a range that holds no pages; its addresses stay reserved.
    pub(crate) fn abandon(&mut self, id: RangeId) {
        self.all.remove(id);
    }

    /// Gives a range back that holds no pages.
    pub(crate) fn unreserve<D: Device>(
        &mut self,
        device: &mut D,
        id: RangeId,
    ) -> Result<(), DeviceError> {
        device.unreserve(self.all[id].base)?;
        if let Some(gone) = self.all.remove(id) {
            self.addresses -= gone.size;
        }
        Ok(())
    }

    /// Bytes that the device would not take back.
    pub(crate) fn stranded_bytes(&self) -> u64 {
        self.stranded.iter().map(|&(size, _)| size).sum()
    }

    /// Tries again to give back the pages that the device would not take.
    pub(crate) fn release_stranded<D: Device>(
        &mut self,
        device: &mut D,
    ) -> Result<(), DeviceError> {
        while let Some(&(_, page)) = self.stranded.last() {
            device.destroy_page(page)?;
            self.stranded.pop();
        }
        Ok(())
    }

    /// Keeps a page that the device would not take back.
    pub(crate) fn strand(&mut self, size: u64, page: PageId) {
        self.stranded.push((size, page));
    }

    /// Puts pages in all these places, or, if the device fails, in none of them.
    pub(crate) fn map<D: Device>(
        &mut self,
        device: &mut D,
        id: RangeId,
        places: Places,
    ) -> Result<(), DeviceError> {
        let Places { first, count } = places;
        let page_size = self.all[id].page_size;
        // As many as the device has, which may be far fewer than were asked for.
        let mut pages = Vec::new();
        let mut result = Ok(());
        for _ in 0..count {
            match self.obtain(device, page_size) {
                Ok(page) => pages.push(page),
                Err(error) => {
                    result = Err(error);
                    break;
                }
            }
        }
        let range = &mut self.all[id];
        if result.is_ok() {
            for (index, &page) in pages.iter().enumerate() {
                if let Err(error) = device.map(page, range.address_of(first + index)) {
                    result = Err(error);
                    break;
                }
                range.pages.insert(first + index, page);
            }
        }
        if result.is_err() {
            for (index, page) in pages.into_iter().enumerate() {
                // A second failure while undoing the first leaves the page where it is; mapping
                // this place again would find it and fail, but nothing is handed out twice.
                let unmapped = !self.all[id].has_page(first + index)
                    || device.unmap(self.all[id].address_of(first + index)).is_ok();
                if unmapped {
                    self.all[id].pages.remove(&(first + index));
                    if device.destroy_page(page).is_err() {
                        self.stranded.push((page_size, page));
                    }
                }
            }
        }
        result
    }

    /// Takes the pages away from these places, in order, and returns how many were taken before
    /// the device failed, if it did.
    pub(crate) fn unmap<D: Device>(
        &mut self,
        device: &mut D,
        id: RangeId,
        places: Places,
    ) -> (usize, Result<(), DeviceError>) {
        for index in 0..places.count {
            let range = &mut self.all[id];
            if let Err(error) = device.unmap(range.address_of(places.first + index)) {
                return (index, Err(error));
            }
            let place = places.first + index;
            let page = range.pages.remove(&place).expect("a mapped place has a page");
            if let Err(error) = device.destroy_page(page) {
                self.stranded.push((range.page_size, page));
                return (index + 1, Err(error));
            }
        }
        (places.count, Ok(()))
    }

    /// Gives the memory of some expandable segments back, and keeps their addresses. Returns the places that have none then, with the
    /// first failure.
    pub(crate) fn let_go<D: Device>(
        &mut self,
        device: &mut D,
        goes: impl Fn(RangeId) -> bool,
    ) -> (Vec<(RangeId, usize)>, Result<(), DeviceError>) {
        let (mut gone, mut result) = (Vec::new(), Ok(()));
        for (id, range) in self.all.iter().filter(|(id, _)| goes(*id)) {
            for (&place, &page) in &range.pages {
                if let Err(error) = device.unmap(range.address_of(place)) {
                    result = result.and(Err(error));
                    continue;
                }
                if device.destroy_page(page).is_err() {
                    self.stranded.push((range.page_size, page));
                }
                gone.push((id, place));
            }
        }
        (gone, result)
    }

    /// Puts pages where [`let_go`](Self::let_go) took them from, from the last one on; those that are left have none yet.
    pub(crate) fn bring_back<D: Device>(
        &mut self,
        device: &mut D,
        gone: &mut Vec<(RangeId, usize)>,
    ) -> Result<(), DeviceError> {
        while let Some(&(id, place)) = gone.last() {
            let (size, address) = (self.all[id].page_size, self.all[id].address_of(place));
            let page = self.obtain(device, size)?;
            if let Err(error) = device.map(page, address) {
                if device.destroy_page(page).is_err() {
                    self.stranded.push((size, page));
                }
                return Err(error);
            }
            self.all[id].pages.insert(place, page);
            gone.pop();
        }
        Ok(())
    }

    /// A page that the device would not take back, or a new one.
    pub(crate) fn obtain<D: Device>(
        &mut self,
        device: &mut D,
        size: u64,
    ) -> Result<PageId, DeviceError> {
        if let Some(at) = self.stranded.iter().position(|&(of, _)| of == size) {
            return Ok(self.stranded.swap_remove(at).1);
        }
        device.create_page(size)
    }
}

#[cfg(test)]
mod tests {
    use tonnage_device::{Dry, FailNth};

    use super::*;

    const PAGE: u64 = 2 << 20;

    #[test]
    fn places_touched_round_outwards_and_places_within_inwards() {
        let mut device = Dry::new(1 << 30);
        let mut ranges = Ranges::default();
        let id = ranges.reserve(&mut device, 64 * PAGE, PAGE, Role::Expandable).unwrap();
        let range = &ranges[id];
        let at = |bytes| range.base.offset(bytes);
        assert_eq!(range.places_touched(at(2 * PAGE), PAGE + 1), Places { first: 2, count: 2 });
        assert_eq!(range.places_within(at(1), 3 * PAGE), Places { first: 1, count: 2 });
        assert_eq!(range.places_within(at(0), 2 * PAGE), Places { first: 0, count: 2 });
        assert_eq!(range.places_within(at(1), PAGE).count, 0);
    }

    #[test]
    fn a_page_takes_as_much_wherever_it_lies() {
        let mut device = Dry::new(1 << 30);
        let mut ranges = Ranges::default();
        let id = ranges.reserve(&mut device, 1 << 60, PAGE, Role::Expandable).unwrap();
        let far = Places { first: (1 << 60) / PAGE as usize - 1, count: 1 };
        ranges.map(&mut device, id, far).unwrap();
        assert_eq!(
            [far.first - 1, far.first].map(|place| ranges[id].has_page(place)),
            [false, true]
        );
    }

    #[test]
    fn whichever_device_call_fails_nothing_is_lost() {
        for n in 0.. {
            let mut device = FailNth::new(Dry::new(1 << 30), n);
            let mut ranges = Ranges::default();
            let Ok(id) = ranges.reserve(&mut device, 64 * PAGE, PAGE, Role::Expandable) else {
                continue;
            };
            let places = Places { first: 1, count: 3 };
            if ranges.map(&mut device, id, places).is_ok() {
                let (done, result) = ranges.unmap(&mut device, id, places);
                let mapped = (0..64).filter(|&place| ranges[id].has_page(place)).count();
                assert_eq!((mapped, result.is_ok()), (3 - done, done == 3 && !device.failed()));
            }
            let mapped = (0..64).filter(|&place| ranges[id].has_page(place)).count() as u64;
            assert_eq!(device.inner.used(), mapped * PAGE + ranges.stranded_bytes(), "call {n}");
            if !device.failed() {
                return;
            }
        }
    }
}
