//! Where segments and ranges lie.
//!
//! In:  sizes, and what lies where by now.
//! Out: spans whose addresses have the order that they have on a dry device: ranges below segments, each
//!      in the lowest gap. The system's own choice goes downwards and depends on what else the process
//!      does.
//!
//! Ties between equally large free blocks go to the lowest address, so with the same order of addresses
//! an allocator takes the same decisions here and there.

use std::io;
use std::sync::Arc;

use tonnage_events::Address;

use super::memory::{ALIGNMENT, Access, Span};
use crate::dry::placement::first_gap;

/// Addresses to keep for segments, in capacities: the gaps of a fragmented device need some, too.
const FOR_SEGMENTS: u64 = 4;

/// Addresses to keep for ranges, in capacities: an allocator reserves a little more than one for each
/// stream and kind of pool.
const FOR_RANGES: u64 = 16;

/// The addresses of a device.
#[derive(Debug)]
pub(super) struct Addresses {
    /// A capacity, rounded up.
    unit: u64,
    home: Home,
}

/// Addresses in a row, kept for the device alone. They cost no memory.
#[derive(Debug)]
enum Home {
    NotYet,
    /// First those for ranges, then those for segments.
    At(Arc<Span>),
    /// The system has not so many.
    Nowhere,
}

impl Addresses {
    pub(super) fn new(capacity: u64) -> Self {
        let unit = capacity.max(1).checked_next_multiple_of(ALIGNMENT as u64).unwrap_or(u64::MAX);
        Self { unit, home: Home::NotYet }
    }

    /// A place for a segment among those that are live, ascending.
    pub(super) fn segment(
        &mut self,
        size: u64,
        live: impl Iterator<Item = (Address, u64)>,
    ) -> io::Result<Span> {
        let from = self.unit.saturating_mul(FOR_RANGES);
        let end = self.unit.saturating_mul(FOR_RANGES + FOR_SEGMENTS);
        self.place(size, live, from, end, Access::ReadWrite)
    }

    /// A place for a range among those that are live, ascending.
    pub(super) fn range(
        &mut self,
        size: u64,
        live: impl Iterator<Item = (Address, u64)>,
    ) -> io::Result<Span> {
        let end = self.unit.saturating_mul(FOR_RANGES);
        self.place(size, live, 0, end, Access::None)
    }

    /// The lowest gap between two offsets of the home; if there is none, wherever the system likes.
    fn place(
        &mut self,
        size: u64,
        live: impl Iterator<Item = (Address, u64)>,
        from: u64,
        end: u64,
        access: Access,
    ) -> io::Result<Span> {
        if let Some(home) = self.home() {
            let gap = first_gap(Address(home.start() + from), size, live);
            let offset = gap.map(|address| address.0 - home.start());
            if let Some(offset) = offset.filter(|offset| offset.saturating_add(size) <= end) {
                return Span::within(&home, offset, size, access);
            }
        }
        Span::obtain(size, access)
    }

    fn home(&mut self) -> Option<Arc<Span>> {
        if let Home::NotYet = self.home {
            let size = self.unit.checked_mul(FOR_RANGES + FOR_SEGMENTS);
            let span = size.and_then(|size| Span::obtain(size, Access::None).ok());
            self.home = span.map_or(Home::Nowhere, |span| Home::At(Arc::new(span)));
        }
        match &self.home {
            Home::At(home) => Some(Arc::clone(home)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::Host;
    use crate::{Device, Dry};

    const MIB: u64 = 1 << 20;

    #[test]
    fn segments_and_ranges_have_the_order_of_a_dry_device() {
        let (mut dry, mut host) = (Dry::new(4 << 30), Host::new(4 << 30));
        let mut live: Vec<(Address, Address)> = Vec::new();
        let mut seed = 1_u64;
        for step in 0..400 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let random = seed >> 33;
            if random.is_multiple_of(3) && !live.is_empty() {
                let (a, b) = live.swap_remove(random as usize / 3 % live.len());
                dry.release(a).unwrap();
                host.release(b).unwrap();
            } else {
                let size = (1 + random % 20) * MIB;
                live.push((dry.acquire(size).unwrap(), host.acquire(size).unwrap()));
            }
            live.sort_unstable();
            assert!(live.is_sorted_by_key(|(_, host)| *host), "step {step}");
        }
        let lowest = live.iter().map(|(_, host)| *host).min().unwrap();
        assert!(host.reserve(64 * MIB).unwrap() < lowest);
    }

    #[test]
    fn a_device_larger_than_the_address_space_still_gives_memory() {
        let mut host = Host::new(u64::MAX);
        let address = host.acquire(MIB).unwrap();
        host.write(address, b"there").unwrap();
        host.release(address).unwrap();
    }

    #[test]
    fn what_finds_no_gap_at_home_lies_elsewhere() {
        let mut addresses = Addresses::new(2 * MIB);
        let home = addresses.home().unwrap();
        let inside = addresses.segment(2 * MIB, std::iter::empty()).unwrap();
        assert_eq!(inside.start(), home.start() + 32 * MIB);
        let outside = addresses.segment(64 * MIB, std::iter::empty()).unwrap();
        assert!(!(home.start()..home.start() + 40 * MIB).contains(&outside.start()));
    }
}
