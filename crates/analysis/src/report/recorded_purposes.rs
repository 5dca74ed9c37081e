//! What the recorded program said that its blocks are for.
//!
//! In:  a device of a file that Tonnage recorded, an allocation, a moment.
//! Out: the purpose that was said last by then of the block, while the allocation had it; none if there is none, or if the
//!      word is no purpose.

use rustc_hash::FxHashMap;
use tonnage_events::Address;

use super::purpose::Purpose;
use crate::device_view::DeviceView;
use crate::lifetimes::{Lifetime, Moment};

/// What was said of a device's blocks.
pub(super) struct Recorded {
    /// How many entries came before, and what the block is for from then on, ascending.
    by_address: FxHashMap<Address, Vec<(usize, Option<Purpose>)>>,
}

impl Recorded {
    pub(super) fn of(device: &DeviceView<'_>) -> Self {
        let mut by_address = FxHashMap::<Address, Vec<_>>::default();
        // Where entries were left out, their numbers are no longer those that the program counted.
        if device.file.skipped_actions.is_empty() {
            for said in device.file.purposes.of(device.device) {
                let purpose = Purpose::from_name(said.purpose);
                by_address.entry(said.address).or_default().push((said.after, purpose));
            }
        }
        for said in by_address.values_mut() {
            // Of two that were said between the same entries, the later one stays behind.
            said.sort_by_key(|it| it.0);
        }
        Self { by_address }
    }

    /// What an allocation is for once what happens at `moment` has happened.
    pub(super) fn at(&self, it: &Lifetime, moment: Moment) -> Option<Purpose> {
        let said = self.by_address.get(&it.address)?;
        // Behind the entry that hands it out, and before the one that gives it back.
        let from = it.allocated.event().map_or(0, |event| event + 1);
        let by = |moment: Moment| match moment {
            Moment::Before => 0,
            Moment::Event(event) => event + 1,
            Moment::After => usize::MAX,
        };
        let to = by(moment).min(it.free_requested.event().unwrap_or(usize::MAX));
        let last = said.partition_point(|it| it.0 <= to).checked_sub(1)?;
        let (after, purpose) = said[last];
        purpose.filter(|_| after >= from)
    }
}

#[cfg(test)]
mod tests {
    use tonnage_events::{Action, DeviceId, StreamId, TraceEntry};
    use tonnage_snapshot::{RecordedPurposes, SnapshotFile};

    use super::*;
    use crate::device_view::devices;
    use crate::lifetimes::Lifetimes;

    #[test]
    fn a_purpose_holds_from_when_it_is_said_until_the_block_goes() {
        let entry = |action| TraceEntry {
            action,
            address: Address(512),
            size: 512,
            stream: StreamId::DEFAULT,
            time_us: 0,
            stack: None,
        };
        use Action::{Alloc, FreeCompleted, FreeRequested};
        let trace = [Alloc, FreeRequested, FreeCompleted, Alloc, FreeRequested, FreeCompleted];
        let mut purposes = RecordedPurposes::default();
        let mut say = |after, purpose| purposes.say(DeviceId(0), after, Address(512), purpose);
        say(1, "temporary");
        say(1, "activations");
        say(4, "a word that is no purpose");
        let file = SnapshotFile {
            traces: vec![trace.map(entry).to_vec()],
            purposes,
            ..SnapshotFile::default()
        };
        let mut device = devices(&file).remove(0);
        let lifetimes = Lifetimes::of(&device);
        let of = |recorded: &Recorded, row| recorded.at(&lifetimes.get(row), Moment::After);
        let recorded = Recorded::of(&device);
        assert_eq!(of(&recorded, 0), Some(Purpose::Activations));
        assert_eq!(of(&recorded, 1), None, "neither the word nor what the block was before");
        let first = lifetimes.get(0);
        assert_eq!(recorded.at(&first, Moment::Event(0)), Some(Purpose::Activations));
        assert_eq!(recorded.at(&first, Moment::Before), None);
        let skipped = [("odd".to_owned(), 1)].into();
        let odd = SnapshotFile { skipped_actions: skipped, ..file.clone() };
        device.file = &odd;
        assert_eq!(of(&Recorded::of(&device), 0), None, "its entries are not those counted");
    }
}
