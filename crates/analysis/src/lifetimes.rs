//! Stage 2: each allocation of a history, from its entries.
//!
//! In:  a [`DeviceView`].
//! Out: [`Lifetimes`]: one row for each allocation, with its block, its stream, its stack and the
//!      entries where it began and ended.
//!
//! One pass over the entries, and one over the blocks at the end for those that the history does not
//! name. Kept in columns of four and eight bytes: a history of a million entries takes some 20 MB.

use rustc_hash::FxHashMap;
use tonnage_events::{Action, Address, BlockState, StackId, StreamId, TraceEntry};

use crate::block_sizes;
use crate::device_view::DeviceView;

/// When something happened, as far as the history tells. Ordered by time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Moment {
    /// Before the first entry.
    Before,
    /// At the entry with this number.
    Event(usize),
    /// Not by the last entry.
    After,
}

impl Moment {
    /// The entry, if it is one.
    #[must_use]
    pub fn event(self) -> Option<usize> {
        match self {
            Self::Event(event) => Some(event),
            Self::Before | Self::After => None,
        }
    }
}

/// One allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lifetime {
    /// Where its block begins.
    pub address: Address,
    /// Bytes that the caller asked for.
    pub requested: u64,
    /// Bytes of its block: rounded, and with what was not split off.
    pub size: u64,
    /// The stream it was allocated on.
    pub stream: StreamId,
    /// When it was handed out.
    pub allocated: Moment,
    /// When its owner gave it back.
    pub free_requested: Moment,
    /// When it went back to its pool.
    pub free_completed: Moment,
    /// Who asked for it, if recorded.
    pub stack: Option<StackId>,
}

impl Lifetime {
    /// Whether it is handed out once what happens at `moment` has happened.
    #[must_use]
    pub fn is_live_after(&self, moment: Moment) -> bool {
        self.allocated <= moment && moment < self.free_requested
    }

    /// Whether it is handed out where the history ends.
    #[must_use]
    pub fn is_live_at_end(&self) -> bool {
        self.free_requested == Moment::After
    }
}

/// The allocations of a history, in the order in which entries first name them, and behind them those
/// that no entry names.
#[derive(Clone, Debug, Default)]
pub struct Lifetimes {
    address: Vec<Address>,
    requested: Vec<u64>,
    pub(crate) size: Vec<u64>,
    stream: Vec<StreamId>,
    allocated: Vec<Mark>,
    free_requested: Vec<Mark>,
    free_completed: Vec<Mark>,
    stack: Vec<Option<StackId>>,
}

/// A [`Moment`] in four bytes: 0 is before, the largest is after.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Mark(u32);

impl Mark {
    const BEFORE: Self = Self(0);
    const AFTER: Self = Self(u32::MAX);

    /// The entry with this number. Those that four bytes cannot count would take 200 GB; the last
    /// stands for them.
    fn at(event: usize) -> Self {
        Self(
            u32::try_from(event)
                .map_or(u32::MAX - 1, |event| event.saturating_add(1))
                .min(u32::MAX - 1),
        )
    }

    fn moment(self) -> Moment {
        match self {
            Self::BEFORE => Moment::Before,
            Self::AFTER => Moment::After,
            Self(event) => Moment::Event(event as usize - 1),
        }
    }
}

impl Lifetimes {
    /// The allocations of a device's history, and those that are alive at its end.
    #[must_use]
    pub fn of(device: &DeviceView<'_>) -> Self {
        let mut gathering = Gathering::default();
        for (event, entry) in device.entries.iter().enumerate() {
            gathering.entry(event, entry);
        }
        gathering.finish(device)
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.address.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.address.is_empty()
    }

    /// The allocation with this number.
    ///
    /// # Panics
    ///
    /// If there are not as many.
    #[must_use]
    pub fn get(&self, row: usize) -> Lifetime {
        Lifetime {
            address: self.address[row],
            requested: self.requested[row],
            size: self.size[row],
            stream: self.stream[row],
            allocated: self.allocated[row].moment(),
            free_requested: self.free_requested[row].moment(),
            free_completed: self.free_completed[row].moment(),
            stack: self.stack[row],
        }
    }

    /// All allocations.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Lifetime> + '_ {
        (0..self.len()).map(|row| self.get(row))
    }

    fn push(&mut self, it: &Lifetime, marks: [Mark; 3]) -> u32 {
        let row = self.len();
        self.address.push(it.address);
        self.requested.push(it.requested);
        self.size.push(it.size);
        self.stream.push(it.stream);
        self.allocated.push(marks[0]);
        self.free_requested.push(marks[1]);
        self.free_completed.push(marks[2]);
        self.stack.push(it.stack);
        // As many rows as entries and blocks: see `Mark::at`.
        row as u32
    }
}

/// A row that is being gathered: what its first entry says.
fn row_of(entry: &TraceEntry, stack: Option<StackId>) -> Lifetime {
    Lifetime {
        address: entry.address,
        requested: entry.size,
        size: entry.size,
        stream: entry.stream,
        allocated: Moment::Before,
        free_requested: Moment::After,
        free_completed: Moment::After,
        stack,
    }
}

/// The pass over the entries.
#[derive(Default)]
struct Gathering {
    lifetimes: Lifetimes,
    /// The row of the block at each address that is handed out or waits for another stream.
    active: FxHashMap<Address, u32>,
}

impl Gathering {
    fn entry(&mut self, event: usize, entry: &TraceEntry) {
        let now = Mark::at(event);
        match entry.action {
            Action::Alloc => {
                let marks = [now, Mark::AFTER, Mark::AFTER];
                let row = self.lifetimes.push(&row_of(entry, entry.stack), marks);
                if let Some(lost) = self.active.insert(entry.address, row) {
                    // Its end is not among the entries, but it lies behind.
                    self.end(lost, now);
                }
            }
            Action::FreeRequested => match self.active.get(&entry.address) {
                Some(&row) => {
                    let mark = &mut self.lifetimes.free_requested[row as usize];
                    if *mark == Mark::AFTER {
                        *mark = now;
                    }
                }
                None => {
                    // The stack is that of the one who frees.
                    let marks = [Mark::BEFORE, now, Mark::AFTER];
                    let row = self.lifetimes.push(&row_of(entry, None), marks);
                    self.active.insert(entry.address, row);
                }
            },
            Action::FreeCompleted => match self.active.remove(&entry.address) {
                Some(row) => self.end(row, now),
                None => {
                    let marks = [Mark::BEFORE, Mark::BEFORE, now];
                    self.lifetimes.push(&row_of(entry, None), marks);
                }
            },
            Action::SegmentAlloc
            | Action::SegmentFree
            | Action::SegmentMap
            | Action::SegmentUnmap
            | Action::Snapshot
            | Action::Oom
            | Action::Annotate => {}
        }
    }

    fn end(&mut self, row: u32, now: Mark) {
        let lifetimes = &mut self.lifetimes;
        lifetimes.free_completed[row as usize] = now;
        let requested = &mut lifetimes.free_requested[row as usize];
        if *requested == Mark::AFTER {
            *requested = now;
        }
    }

    fn finish(mut self, device: &DeviceView<'_>) -> Lifetimes {
        // Blocks at the end tell their own size.
        let mut measured = Vec::new();
        for segment in &device.segments {
            for block in &segment.blocks {
                let free_requested = match block.state {
                    BlockState::ActiveAllocated => Mark::AFTER,
                    BlockState::ActivePendingFree => Mark::BEFORE,
                    BlockState::Inactive => continue,
                };
                let row = self.active.get(&block.address).copied().unwrap_or_else(|| {
                    let row = Lifetime {
                        address: block.address,
                        requested: block.requested_size,
                        size: block.size,
                        stream: segment.stream,
                        allocated: Moment::Before,
                        free_requested: Moment::After,
                        free_completed: Moment::After,
                        stack: block.stack,
                    };
                    self.lifetimes.push(&row, [Mark::BEFORE, free_requested, Mark::AFTER])
                });
                let stack = &mut self.lifetimes.stack[row as usize];
                *stack = stack.or(block.stack);
                measured.push((row as usize, block.size));
            }
        }
        block_sizes::fill(&mut self.lifetimes, device, &measured);
        self.lifetimes
    }
}

#[cfg(test)]
mod tests {
    use tonnage_snapshot::SnapshotFile;

    use super::*;
    use crate::devices;

    fn lifetimes(entries: &[(Action, u64, u64)]) -> Vec<Lifetime> {
        let entry = |&(action, address, size): &(Action, u64, u64)| TraceEntry {
            action,
            address: Address(address),
            size,
            stream: StreamId::DEFAULT,
            time_us: 0,
            stack: None,
        };
        let traces = vec![entries.iter().map(entry).collect()];
        let file = SnapshotFile { traces, ..SnapshotFile::default() };
        Lifetimes::of(&devices(&file)[0]).iter().collect()
    }

    fn moments(it: &Lifetime) -> (Moment, Moment, Moment) {
        (it.allocated, it.free_requested, it.free_completed)
    }

    #[test]
    fn an_address_is_a_new_allocation_each_time_it_is_handed_out() {
        use Moment::{After, Event};
        let found = lifetimes(&[
            (Action::Alloc, 1, 100),
            (Action::FreeRequested, 1, 100),
            (Action::FreeCompleted, 1, 100),
            (Action::Alloc, 1, 200),
        ]);
        assert_eq!(
            found.iter().map(moments).collect::<Vec<_>>(),
            [(Event(0), Event(1), Event(2)), (Event(3), After, After)]
        );
        assert_eq!(found.iter().map(|it| it.size).collect::<Vec<_>>(), [512, 512]);
        assert!(found[0].is_live_after(Event(0)) && !found[0].is_live_after(Event(1)));
        assert!(found[1].is_live_after(Event(3)) && !found[1].is_live_after(Event(2)));
    }

    #[test]
    fn what_is_freed_without_an_allocation_was_alive_before() {
        use Moment::{After, Before, Event};
        let found = lifetimes(&[
            (Action::FreeCompleted, 1, 100),
            (Action::FreeRequested, 2, 100),
            (Action::FreeRequested, 2, 100),
        ]);
        assert_eq!(
            found.iter().map(moments).collect::<Vec<_>>(),
            [(Before, Before, Event(0)), (Before, Event(1), After)]
        );
    }

    #[test]
    fn an_allocation_whose_end_is_missing_ends_where_its_address_is_handed_out_again() {
        use Moment::{After, Event};
        let found = lifetimes(&[(Action::Alloc, 1, 100), (Action::Alloc, 1, 100)]);
        assert_eq!(
            found.iter().map(moments).collect::<Vec<_>>(),
            [(Event(0), Event(1), Event(1)), (Event(1), After, After)]
        );
    }
}
