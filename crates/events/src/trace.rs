//! The entry that PyTorch's memory history keeps of a state change.

use std::fmt;

use crate::{Address, Event, StackId, StreamId};

/// What an entry says happened, under PyTorch's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// A block was handed out.
    Alloc,
    /// A block was given back by its owner.
    FreeRequested,
    /// A block went back to its pool.
    FreeCompleted,
    /// A segment was obtained from the device.
    SegmentAlloc,
    /// A segment was returned to the device.
    SegmentFree,
    /// Pages were mapped into an expandable segment.
    SegmentMap,
    /// Pages were unmapped from an expandable segment.
    SegmentUnmap,
    /// A snapshot was taken.
    Snapshot,
    /// A request failed.
    Oom,
    /// The program said something about a block in use (from PyTorch 2.14 on): nothing changed.
    Annotate,
}

impl Action {
    /// Every action, in PyTorch's order.
    pub const ALL: [Self; 10] = [
        Self::Alloc,
        Self::FreeRequested,
        Self::FreeCompleted,
        Self::SegmentAlloc,
        Self::SegmentFree,
        Self::SegmentMap,
        Self::SegmentUnmap,
        Self::Snapshot,
        Self::Oom,
        Self::Annotate,
    ];

    /// PyTorch's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Alloc => "alloc",
            Self::FreeRequested => "free_requested",
            Self::FreeCompleted => "free_completed",
            Self::SegmentAlloc => "segment_alloc",
            Self::SegmentFree => "segment_free",
            Self::SegmentMap => "segment_map",
            Self::SegmentUnmap => "segment_unmap",
            Self::Snapshot => "snapshot",
            Self::Oom => "oom",
            Self::Annotate => "annotate",
        }
    }

    /// The action with this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|action| action.name() == name)
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One entry of a memory history.
///
/// What `address` and `size` mean depends on the action:
///
/// | action | address | size |
/// | --- | --- | --- |
/// | alloc, free_requested, free_completed, annotate | of the block | requested bytes |
/// | segment_alloc, segment_free | of the segment | of the segment |
/// | segment_map, segment_unmap | of the first page | of the pages |
/// | snapshot | 0 | active bytes |
/// | oom | free bytes on the device | the rounded request |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceEntry {
    /// What happened.
    pub action: Action,
    /// Where, or for `oom` the device's free bytes.
    pub address: Address,
    /// How many bytes.
    pub size: u64,
    /// On which stream.
    pub stream: StreamId,
    /// When, in microseconds since 1970; 0 if not known.
    pub time_us: u64,
    /// Who asked, if that was recorded.
    pub stack: Option<StackId>,
}

impl TraceEntry {
    /// The entry that PyTorch's history would keep of `event`: none for changes that it does not
    /// show. Time and stack are left open.
    #[must_use]
    pub fn of(event: &Event) -> Option<Self> {
        let (action, address, size, stream) = match *event {
            Event::Alloc(block) => (Action::Alloc, block.address, block.requested, block.stream),
            Event::FreeRequested(block) => {
                (Action::FreeRequested, block.address, block.requested, block.stream)
            }
            Event::FreeCompleted(block) => {
                (Action::FreeCompleted, block.address, block.requested, block.stream)
            }
            Event::SegmentAlloc(it) => (Action::SegmentAlloc, it.address, it.size, it.stream),
            Event::SegmentFree(it) => (Action::SegmentFree, it.address, it.size, it.stream),
            Event::SegmentMap(it) => (Action::SegmentMap, it.address, it.size, it.stream),
            Event::SegmentUnmap(it) => (Action::SegmentUnmap, it.address, it.size, it.stream),
            Event::Oom { device_free, size, stream, .. } => {
                (Action::Oom, Address(device_free), size, stream)
            }
            Event::Snapshot { active, .. } => {
                (Action::Snapshot, Address(0), active, StreamId::DEFAULT)
            }
            Event::Retry | Event::Synchronize | Event::Rejected => return None,
        };
        Some(Self { action, address, size, stream, time_us: 0, stack: None })
    }

    /// Whether both say that the same thing happened: action, address, size and stream. The free
    /// bytes that an `oom` reports are the device's, not the allocator's, and do not count.
    #[must_use]
    pub fn agrees_with(&self, other: &Self) -> bool {
        self.action == other.action
            && (self.action == Action::Oom || self.address == other.address)
            && self.size == other.size
            && self.stream == other.stream
    }
}

impl fmt::Display for TraceEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { action, address, size, stream, .. } = self;
        match action {
            Action::Oom => write!(f, "{action} of {size} bytes on stream {stream}"),
            Action::Snapshot => write!(f, "{action} with {size} active bytes"),
            _ => write!(f, "{action} {address}, {size} bytes on stream {stream}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_action_is_found_by_its_name() {
        for action in Action::ALL {
            assert_eq!(Action::from_name(action.name()), Some(action));
        }
        assert_eq!(Action::from_name("free"), None);
    }

    #[test]
    fn the_free_bytes_of_an_oom_are_not_compared_and_all_else_is() {
        let entry = |action, address, size, stream| TraceEntry {
            action,
            address: Address(address),
            size,
            stream: StreamId(stream),
            time_us: 0,
            stack: None,
        };
        let oom = entry(Action::Oom, 1, 2, 3);
        assert!(oom.agrees_with(&entry(Action::Oom, 9, 2, 3)));
        let alloc = entry(Action::Alloc, 1, 2, 3);
        for other in [
            entry(Action::FreeRequested, 1, 2, 3),
            entry(Action::Alloc, 9, 2, 3),
            entry(Action::Alloc, 1, 9, 3),
            entry(Action::Alloc, 1, 2, 9),
        ] {
            assert!(!alloc.agrees_with(&other), "{other}");
        }
    }
}
