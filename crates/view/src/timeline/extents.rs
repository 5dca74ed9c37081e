//! Memory obtained from the device, as rows of the page.
//!
//! In:  [`Extents`], which say what was there when. Out: the same with moments as the page counts them, and which of them an
//! address lies in.

use std::collections::BTreeMap;

use tonnage_analysis::{Extent, Extents};

use super::number;

/// Memory that came and went as a whole, by the moments of the page.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    pub(super) extent: Extent,
    /// The first moment at which it is there, and the first at which it no longer is.
    pub(super) begin: u32,
    pub(super) end: u32,
}

/// All rows of a history, by the moment where they begin, then by address.
pub(super) fn rows(extents: &Extents, never: u32) -> Vec<Row> {
    let row = |&extent: &Extent| {
        let (begin, end) = (number(extent.begin, never), number(extent.end, never));
        Row { extent, begin, end }
    };
    extents.rows().iter().map(row).collect()
}

/// For each of these addresses, in the order of their moments, the row that it lies in then, plus one; 0 if none does.
pub(super) fn holding(rows: &[Row], places: impl Iterator<Item = (u32, u64)>) -> Vec<u32> {
    let mut changes: Vec<(u32, bool, u32)> = Vec::with_capacity(2 * rows.len());
    for (place, row) in (0..).zip(rows) {
        changes.push((row.begin, true, place));
        changes.push((row.end, false, place));
    }
    // What ends makes room for what begins.
    changes.sort_unstable();
    let mut changes = changes.into_iter().peekable();
    let mut there = BTreeMap::<u64, u32>::new();
    let held = places.map(|(moment, address)| {
        while let Some((_, begins, place)) = changes.next_if(|it| it.0 <= moment) {
            let start = rows[place as usize].extent.address;
            if begins {
                there.insert(start, place);
            } else if there.get(&start) == Some(&place) {
                there.remove(&start);
            }
        }
        let below = there.range(..=address).next_back().map(|(_, &place)| place);
        below.filter(|&it| address < rows[it as usize].extent.to).map_or(0, |place| place + 1)
    });
    held.collect()
}

#[cfg(test)]
mod tests {
    use tonnage_analysis::{Levels, Lifetimes, devices};
    use tonnage_events::{Action, Address, StreamId, TraceEntry};
    use tonnage_snapshot::SnapshotFile;

    use super::*;

    #[test]
    fn an_address_is_found_in_what_is_there_at_its_moment() {
        use Action::{SegmentAlloc, SegmentFree};
        let entry = |(action, address, size)| TraceEntry {
            action,
            address: Address(address),
            size,
            stream: StreamId::DEFAULT,
            time_us: 0,
            stack: None,
        };
        let entries = [
            (SegmentAlloc, 100, 100),
            (SegmentFree, 100, 100),
            (SegmentAlloc, 100, 50),
            (SegmentAlloc, 300, 100),
            (SegmentFree, 300, 100),
        ];
        let traces = vec![entries.map(entry).to_vec()];
        let file = SnapshotFile { traces, ..SnapshotFile::default() };
        let device = &devices(&file)[0];
        let levels = Levels::of(device, &Lifetimes::of(device));
        let rows = rows(&Extents::of(device, &levels), 6);
        let spans: Vec<_> = rows.iter().map(|it| (it.begin, it.end)).collect();
        assert_eq!(spans, [(1, 2), (3, 6), (4, 5)]);
        let places =
            [(0, 100), (1, 99), (1, 199), (2, 199), (3, 199), (3, 149), (4, 300), (5, 300)];
        assert_eq!(holding(&rows, places.into_iter()), [0, 0, 1, 0, 0, 2, 3, 0]);
    }
}
