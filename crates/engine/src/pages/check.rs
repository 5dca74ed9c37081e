//! What is always true of pages that move, as a walk over all of them.

use tonnage_device::Device;

use super::store::Page;
use crate::engine::Engine;
use crate::segment::Role;

macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err(format!($($message)+));
        }
    };
}

impl<D: Device> Engine<D> {
    /// Every page lies where its books say, is in use in one place, and is counted once.
    pub(crate) fn check_pages_that_move(&self) -> Result<(), String> {
        let mut laid = 0;
        for (key, page) in &self.store.pages {
            ensure!(page.active < page.places.len(), "a page is in use nowhere");
            for (index, place) in page.places.iter().enumerate() {
                laid += 1;
                let range = &self.ranges[place.range];
                let offset = place.address.distance_from(range.base);
                let known = range.laid.get(&offset) == Some(&(key, page.size));
                ensure!(known, "the range of {} does not know its page", place.address);
                let is_home = range.role == Role::Home;
                ensure!(is_home == (index == 0), "{} is no home, or a second one", place.address);
                let used = page.used_in(place.range).map(|(offset, used)| match page.lent {
                    Some(lent) if index == page.active => (offset, used - lent.size),
                    _ => (offset, used),
                });
                ensure!(
                    used.is_none() || index == page.active || page.lent.is_some(),
                    "{} is in use, and no one knows",
                    place.address
                );
                let unused = page.size - used.map_or(0, |(_, used)| used);
                let Some(id) = place.blocked else {
                    ensure!(unused == 0, "{} is not in use and not blocked", place.address);
                    continue;
                };
                let offset = match page.lent {
                    // What is lent, or what is not.
                    Some(lent) if index == page.active => lent.offset,
                    Some(lent) if lent.range == place.range && lent.offset == 0 => lent.size,
                    _ => 0,
                };
                let right = self.blocks.get(id).is_some_and(|block| {
                    let at = place.address.offset(offset);
                    block.blocked && (block.address, block.size) == (at, unused)
                });
                ensure!(right, "the block that stands for {} is another", place.address);
            }
        }
        let ranges = self.store.homes.iter().map(|&(_, range)| range);
        let ranges = ranges.chain(self.store.views.values().map(|view| view.range));
        let mut known = 0;
        for range in ranges.map(|range| &self.ranges[range]) {
            known += range.laid.len();
            let mut end = 0;
            for (&offset, &(_, size)) in &range.laid {
                ensure!(end <= offset, "two pages lie at {}", range.base.offset(offset));
                end = offset + size;
            }
        }
        ensure!(known == laid, "{known} places in ranges, {laid} of pages");
        self.check_bytes_in_use()
    }

    /// Mapped blocks lie on pages that are in use there, and together they are all pages.
    fn check_bytes_in_use(&self) -> Result<(), String> {
        let (mut mapped, mut blocked) = (0, 0);
        for (_, block) in self.blocks.iter() {
            let Some(range) = block.range.filter(|&it| self.ranges[it].role != Role::Expandable)
            else {
                continue;
            };
            blocked += usize::from(block.blocked);
            if !block.mapped {
                continue;
            }
            mapped += block.size;
            let laid = &self.ranges[range].laid;
            let start = block.address.distance_from(self.ranges[range].base);
            let end = start + block.size;
            let mut at = laid.range(..=start).next_back().map_or(start, |(&offset, _)| offset);
            while at < end {
                let Some(&(key, size)) = laid.get(&at) else {
                    return Err(format!("no page lies under {}", block.address));
                };
                let page = &self.store.pages[key];
                let here = page.used_in(range).is_some();
                ensure!(here, "the page under {} is in use elsewhere", block.address);
                at += size;
            }
        }
        let pages: u64 = self.store.pages.values().map(|page| page.size).sum();
        ensure!(mapped == pages, "{pages} bytes of pages, {mapped} of blocks on them");
        let unused = |page: &Page| page.places.len() - 1 + usize::from(page.lent.is_some());
        let elsewhere: usize = self.store.pages.values().map(unused).sum();
        ensure!(blocked == elsewhere, "{blocked} blocked blocks for {elsewhere} unused places");
        Ok(())
    }
}
