//! What calls about pages cost on a GPU: counted on a device that makes none.

use std::ops::Sub;

/// How often pages were made, mapped and given back.
///
/// Costs are by the page, whatever its size up to 128 MiB and however many a call takes: mapping and access of 64
/// pages cost as much in one call as in 64 (H200, driver 13.0).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PageCalls {
    /// Ranges of addresses reserved.
    pub reserved: u64,
    /// Pages made.
    pub created: u64,
    /// Pages put at an address, with access to it.
    pub mapped: u64,
    /// Pages taken from an address.
    pub unmapped: u64,
    /// Pages given back.
    pub destroyed: u64,
    /// Bytes of these.
    pub destroyed_bytes: u64,
}

/// Nanoseconds of each call, medians on an H200.
const RESERVE: u64 = 10_000;
const CREATE: u64 = 15_000;
const MAP_AND_ACCESS: u64 = 31_000;
const UNMAP: u64 = 20_000;
const DESTROY: u64 = 14_000;
const DESTROY_MIB: u64 = 800;

impl PageCalls {
    /// How many calls there were.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.reserved + self.created + self.mapped + self.unmapped + self.destroyed
    }

    /// What the calls take on an H200.
    #[must_use]
    pub fn nanoseconds(&self) -> u64 {
        self.reserved * RESERVE
            + self.created * CREATE
            + self.mapped * MAP_AND_ACCESS
            + self.unmapped * UNMAP
            + self.destroyed * DESTROY
            + (self.destroyed_bytes >> 20) * DESTROY_MIB
    }

    /// What of that made memory grow: pages that are new, each mapped once.
    #[must_use]
    pub fn growth_nanoseconds(&self) -> u64 {
        self.created * (CREATE + MAP_AND_ACCESS)
    }
}

impl Sub for PageCalls {
    type Output = Self;

    /// The calls since an earlier moment.
    fn sub(self, earlier: Self) -> Self {
        Self {
            reserved: self.reserved - earlier.reserved,
            created: self.created - earlier.created,
            mapped: self.mapped - earlier.mapped,
            unmapped: self.unmapped - earlier.unmapped,
            destroyed: self.destroyed - earlier.destroyed,
            destroyed_bytes: self.destroyed_bytes - earlier.destroyed_bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{Device, Dry};

    #[test]
    fn every_call_about_pages_is_counted_once_and_refused_ones_are_not() {
        let mut device = Dry::new(64 << 20);
        let range = device.reserve(64 << 20).unwrap();
        let page = device.create_page(4 << 20).unwrap();
        let before = device.page_calls();
        device.map(page, range).unwrap();
        device.map(page, range).unwrap_err();
        device.create_page(128 << 20).unwrap_err();
        device.unmap(range).unwrap();
        device.destroy_page(page).unwrap();
        let calls = device.page_calls() - before;
        assert_eq!([calls.created, calls.mapped, calls.unmapped, calls.destroyed], [0, 1, 1, 1]);
        assert_eq!(calls.nanoseconds(), 31_000 + 20_000 + 14_000 + 4 * 800);
        assert_eq!(before.growth_nanoseconds(), 46_000);
    }
}
