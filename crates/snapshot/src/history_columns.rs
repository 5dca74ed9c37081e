//! A history by columns: the same entries, for whoever wants their table.
//!
//! In:  entries. Out: [`HistoryColumns`], and the entries again.
//!
//! Memory that is written for the first time is dear: for a million entries, as dear as half of reading them. So readers
//! that want columns have the reader fill them, without rows before.

use tonnage_events::{Action, Address, StackId, StreamId, TraceEntry};

/// The history of a device, by columns of the same length.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HistoryColumns {
    /// What happened: the number of the action in [`Action::ALL`].
    pub actions: Vec<u8>,
    /// Where.
    pub addresses: Vec<u64>,
    /// How many bytes.
    pub sizes: Vec<u64>,
    /// The streams.
    pub streams: Vec<u64>,
    /// Microseconds since 1970; 0 if unknown.
    pub times: Vec<u64>,
    /// The number of the stack, or [`HistoryColumns::NO_STACK`].
    pub stacks: Vec<i32>,
}

impl HistoryColumns {
    /// Stands for a stack that was not recorded.
    pub const NO_STACK: i32 = -1;

    /// Bytes of an entry.
    pub(crate) const ROW: usize = size_of::<u8>() + 4 * size_of::<u64>() + size_of::<i32>();

    /// How many entries there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.actions.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.actions.is_empty()
    }

    /// The entries.
    #[must_use]
    pub fn entries(&self) -> Vec<TraceEntry> {
        let places = self.addresses.iter().zip(&self.sizes);
        let when = self.streams.iter().zip(&self.times);
        let what = self.actions.iter().zip(&self.stacks);
        what.zip(places.zip(when))
            .map(|((&action, &stack), ((&address, &size), (&stream, &time_us)))| TraceEntry {
                // Each number is an action's.
                action: Action::ALL.get(usize::from(action)).copied().unwrap_or(Action::Snapshot),
                address: Address(address),
                size,
                stream: StreamId(stream),
                time_us,
                stack: u32::try_from(stack).ok().and_then(StackId::new),
            })
            .collect()
    }

    pub(crate) fn capacity(&self) -> usize {
        self.addresses.capacity()
    }

    /// Makes room for exactly so many more.
    pub(crate) fn reserve(&mut self, more: usize) {
        self.actions.reserve_exact(more);
        self.stacks.reserve_exact(more);
        for numbers in self.numbers() {
            numbers.reserve_exact(more);
        }
    }

    /// Gives back the room that is not needed.
    pub(crate) fn shrink(&mut self) {
        self.actions.shrink_to_fit();
        self.stacks.shrink_to_fit();
        for numbers in self.numbers() {
            numbers.shrink_to_fit();
        }
    }

    fn numbers(&mut self) -> [&mut Vec<u64>; 4] {
        [&mut self.addresses, &mut self.sizes, &mut self.streams, &mut self.times]
    }

    /// Puts entries at the end.
    pub(crate) fn add(&mut self, entries: &[TraceEntry]) {
        // Fewer than half of the numbers are given: see the limits.
        let stack = |it: &TraceEntry| it.stack.and_then(|it| i32::try_from(it.number()).ok());
        self.actions.extend(entries.iter().map(|it| it.action as u8));
        self.addresses.extend(entries.iter().map(|it| it.address.0));
        self.sizes.extend(entries.iter().map(|it| it.size));
        self.streams.extend(entries.iter().map(|it| it.stream.0));
        self.times.extend(entries.iter().map(|it| it.time_us));
        self.stacks.extend(entries.iter().map(|it| stack(it).unwrap_or(Self::NO_STACK)));
    }

    /// Puts a copy of some of another's entries at the end.
    pub(crate) fn extend(&mut self, other: &Self, rows: std::ops::Range<usize>) {
        self.actions.extend_from_slice(&other.actions[rows.clone()]);
        self.addresses.extend_from_slice(&other.addresses[rows.clone()]);
        self.sizes.extend_from_slice(&other.sizes[rows.clone()]);
        self.streams.extend_from_slice(&other.streams[rows.clone()]);
        self.times.extend_from_slice(&other.times[rows.clone()]);
        self.stacks.extend_from_slice(&other.stacks[rows]);
    }
}

impl From<&[TraceEntry]> for HistoryColumns {
    fn from(entries: &[TraceEntry]) -> Self {
        let mut columns = Self::default();
        columns.reserve(entries.len());
        columns.add(entries);
        columns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_have_all_that_entries_say() {
        let entry = |number: u32| TraceEntry {
            action: Action::ALL[number as usize % Action::ALL.len()],
            address: Address(u64::from(number) << 40),
            size: u64::MAX - u64::from(number),
            stream: StreamId(u64::from(number) * 3),
            time_us: u64::from(number) * 5,
            stack: StackId::new(number).filter(|_| !number.is_multiple_of(4)),
        };
        let entries: Vec<_> = (0..100).map(entry).collect();
        let columns = HistoryColumns::from(&*entries);
        assert_eq!((columns.len(), columns.is_empty()), (100, false));
        assert_eq!(columns.entries(), entries);
        let mut parts = HistoryColumns::default();
        parts.extend(&columns, 0..30);
        parts.extend(&columns, 30..100);
        assert_eq!(parts, columns);
    }
}
