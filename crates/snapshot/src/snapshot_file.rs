//! What a snapshot file holds, as plain data.

use std::collections::BTreeMap;
use std::sync::Arc;

use tonnage_events::{
    DeviceId, Frame, PoolId, SnapshotBlock, SnapshotSegment, StackId, Stacks, TraceEntry,
};

use crate::recorded_purposes::RecordedPurposes;

/// What a snapshot holds.
///
/// Two are equal if they say the same: stacks are compared by their frames and not by their numbers,
/// and what is known of the file alone ([`skipped_actions`](Self::skipped_actions),
/// [`trailing`](Self::trailing)) does not count.
#[derive(Clone, Debug, Default)]
pub struct SnapshotFile {
    /// The segments of all devices, in the file's order: by device, then by address.
    pub segments: Vec<SnapshotSegment>,
    /// The history of each device, oldest entry first, by the device's ordinal.
    pub traces: Vec<Vec<TraceEntry>>,
    /// Pinned memory of the host; none where the file does not speak of it (before PyTorch 2.14).
    pub pinned: Option<Pinned>,
    /// What some entries say besides, by device and number of the entry, ascending; the host's come last.
    pub notes: Vec<EntryNote>,
    /// How the allocator was set up. Not in a bare list of segments.
    pub settings: Option<AllocatorSettings>,
    /// Scopes that the program marked, such as `Optimizer.step`, oldest first.
    pub annotations: Vec<Annotation>,
    /// What the program said that blocks are for; empty in PyTorch's files.
    pub purposes: RecordedPurposes,
    /// The call stacks that entries, segments and blocks refer to.
    pub stacks: Stacks,
    /// Keys that tell the release which wrote the file.
    pub keys: Keys,
    /// Entries that were left out because their action is not known, by action.
    pub skipped_actions: BTreeMap<String, usize>,
    /// Bytes that follow the snapshot in its file. Neither this reader nor Python's looks at them, and
    /// PyTorch writes none: perhaps several dumps were appended to one file, and this is the first.
    pub trailing: u64,
}

impl SnapshotFile {
    /// What the entries of one device say besides, by ascending number of the entry.
    #[must_use]
    pub fn notes_of(&self, device: DeviceId) -> &[EntryNote] {
        let from = self.notes.partition_point(|note| note.device < device);
        let of_device = self.notes[from..].partition_point(|note| note.device == device);
        &self.notes[from..from + of_device]
    }

    /// The pools that the entries of one device are about.
    #[must_use]
    pub fn entry_pools(&self, device: DeviceId) -> EntryPools<'_> {
        EntryPools { notes: self.keys.pool_id.then(|| self.notes_of(device)) }
    }
}

/// The pool that each entry of a history is about, where the file says so: from PyTorch 2.12 on.
#[derive(Clone, Copy, Debug, Default)]
pub struct EntryPools<'a> {
    /// By ascending entry; none where the file does not name pools.
    notes: Option<&'a [EntryNote]>,
}

impl EntryPools<'_> {
    /// Whether the file names them.
    #[must_use]
    pub fn are_told(&self) -> bool {
        self.notes.is_some()
    }

    /// The pool of an entry, by its number; none if the file does not name pools.
    #[must_use]
    pub fn get(&self, entry: usize) -> Option<PoolId> {
        let notes = self.notes?;
        let found = u32::try_from(entry).ok().and_then(|entry| {
            let place = notes.partition_point(|note| note.entry < entry);
            notes.get(place).filter(|note| note.entry == entry)
        });
        Some(found.map_or(PoolId::DEFAULT, |note| note.pool))
    }
}

impl PartialEq for SnapshotFile {
    fn eq(&self, other: &Self) -> bool {
        let mut stacks = SameStacks {
            ours: &self.stacks,
            theirs: &other.stacks,
            known: vec![None; self.stacks.len()],
        };
        self.settings == other.settings
            && self.keys == other.keys
            && self.annotations == other.annotations
            && self.notes == other.notes
            && self.purposes == other.purposes
            && all(&self.segments, &other.segments, |a, b| stacks.segment(a, b))
            && all(&self.traces, &other.traces, |a, b| all(a, b, |a, b| stacks.entry(a, b)))
            && match (&self.pinned, &other.pinned) {
                (Some(ours), Some(theirs)) => {
                    all(&ours.segments, &theirs.segments, |a, b| stacks.segment(a, b))
                        && all(&ours.trace, &theirs.trace, |a, b| stacks.entry(a, b))
                }
                (ours, theirs) => ours.is_none() && theirs.is_none(),
            }
    }
}

fn all<T>(ours: &[T], theirs: &[T], mut same: impl FnMut(&T, &T) -> bool) -> bool {
    ours.len() == theirs.len() && ours.iter().zip(theirs).all(|(a, b)| same(a, b))
}

/// Compares things with stacks of two files.
struct SameStacks<'a> {
    ours: &'a Stacks,
    theirs: &'a Stacks,
    /// Which of theirs is known to be the same, by the number of ours: frames are compared once.
    known: Vec<Option<StackId>>,
}

impl SameStacks<'_> {
    fn stack(&mut self, ours: Option<StackId>, theirs: Option<StackId>) -> bool {
        fn frames(stacks: &Stacks, id: Option<StackId>) -> &[Frame] {
            id.map_or(&[], |id| stacks.frames(id))
        }
        let number = ours.map(|id| id.number() as usize);
        let known = number.and_then(|number| self.known.get_mut(number));
        if let Some(known) = &known
            && known.is_some()
            && **known == theirs
        {
            return true;
        }
        let same = frames(self.ours, ours) == frames(self.theirs, theirs);
        if let (true, Some(known)) = (same, known) {
            *known = theirs;
        }
        same
    }

    fn entry(&mut self, ours: &TraceEntry, theirs: &TraceEntry) -> bool {
        TraceEntry { stack: None, ..*ours } == TraceEntry { stack: None, ..*theirs }
            && self.stack(ours.stack, theirs.stack)
    }

    fn block(&mut self, ours: &SnapshotBlock, theirs: &SnapshotBlock) -> bool {
        SnapshotBlock { stack: None, ..*ours } == SnapshotBlock { stack: None, ..*theirs }
            && self.stack(ours.stack, theirs.stack)
    }

    fn segment(&mut self, ours: &SnapshotSegment, theirs: &SnapshotSegment) -> bool {
        let bare = |it: &SnapshotSegment| SnapshotSegment {
            blocks: Vec::new(),
            stack: None,
            device: it.device,
            address: it.address,
            total_size: it.total_size,
            allocated_size: it.allocated_size,
            active_size: it.active_size,
            requested_size: it.requested_size,
            stream: it.stream,
            kind: it.kind,
            pool: it.pool,
            expandable: it.expandable,
        };
        bare(ours) == bare(theirs)
            && self.stack(ours.stack, theirs.stack)
            && all(&ours.blocks, &theirs.blocks, |a, b| self.block(a, b))
    }
}

/// The settings of PyTorch's allocator when the snapshot was taken. `None` for what the file does
/// not say.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AllocatorSettings {
    /// The text of `PYTORCH_CUDA_ALLOC_CONF`, or of the variable that replaced it; empty if none
    /// was set.
    pub conf: String,
    /// Blocks of this many bytes or more are not split; −1 for no such bound.
    pub max_split_size: Option<i64>,
    /// The share of the memory limit from which on unused segments are given back; 0 for never.
    pub garbage_collection_threshold: Option<f64>,
    /// Whether segments grow in place.
    pub expandable_segments: Option<bool>,
    /// Threads that register pinned memory.
    pub pinned_num_register_threads: Option<u64>,
    /// Whether other threads may allocate while one waits for `cudaMalloc`.
    pub release_lock_on_cudamalloc: Option<bool>,
    /// Whether pinned memory comes from `cudaHostRegister`.
    pub pinned_use_cuda_host_register: Option<bool>,
    /// Whether a capture may reuse what other streams were recorded on.
    pub graph_capture_record_stream_reuse: Option<bool>,
    /// Requests for pinned memory up to this many bytes are rounded to a power of two; −1 for all.
    pub max_round_threshold: Option<i64>,
    /// Pinned blocks up to this many bytes are kept when they are freed; −1 for all.
    pub max_cached_size: Option<i64>,
    /// Steps between two powers of two, for sizes from 1 MiB, 2 MiB, ... up to 32768 MiB; 0 for
    /// none.
    pub roundup_power2_divisions: Option<[u64; 16]>,
}

/// The beginning or end of a scope that the program marked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Annotation {
    /// The scope's name; empty if it has none.
    pub name: Arc<str>,
    /// Beginning or end.
    pub stage: Stage,
    /// The device.
    pub device: DeviceId,
    /// When, in microseconds since 1970; 0 if not known.
    pub time_us: u64,
}

/// Which end of a scope.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stage {
    /// `START`.
    Start,
    /// `END`.
    End,
    /// Another word, or an empty one if there is none: not a scope of PyTorch's own.
    Other(Arc<str>),
}

/// Pinned memory: host memory that devices copy from and to, and its allocator's history.
///
/// Each segment is one block; their device is [`DeviceId::HOST`]. Sizes are those of blocks, also where a
/// device's would be what was requested: the host's allocator does not keep that.
#[derive(Clone, Debug, Default)]
pub struct Pinned {
    /// What was pinned when the snapshot was taken, in the file's order.
    pub segments: Vec<SnapshotSegment>,
    /// The history, oldest entry first; empty unless recording was asked for
    /// (`record_pinned_host_memory=True`).
    pub trace: Vec<TraceEntry>,
}

/// What an entry says besides what every entry does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryNote {
    /// The device that the entry is of, or the host.
    pub device: DeviceId,
    /// The entry, from 0, of its device's history.
    pub entry: u32,
    /// The pool that it is about; the default pool also where the file does not say.
    pub pool: PoolId,
    /// What the program said (`_set_memory_metadata`, or for `annotate` the annotation); empty if nothing.
    pub user_metadata: Arc<str>,
    /// What the allocator said of itself, from PyTorch 2.15 on.
    pub internal_metadata: Option<Arc<str>>,
}

/// Keys that some entry has. Later releases write more of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Keys {
    /// `compile_context`.
    pub compile_context: bool,
    /// `user_metadata`: from PyTorch 2.10 on.
    pub user_metadata: bool,
    /// `forward_frames`: from PyTorch 2.11 on, and only if they were recorded.
    pub forward_frames: bool,
    /// `pool_id`: from PyTorch 2.12 on.
    pub pool_id: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_of_the_default_pool_unless_they_say_otherwise_where_the_file_names_pools() {
        let note = |device, entry, pool| EntryNote {
            device: DeviceId(device),
            entry,
            pool: PoolId(0, pool),
            user_metadata: "".into(),
            internal_metadata: None,
        };
        let mut file = SnapshotFile {
            notes: vec![note(0, 2, 5), note(0, 7, 6), note(1, 2, 9), note(u32::MAX, 0, 0)],
            ..SnapshotFile::default()
        };
        assert!(!file.entry_pools(DeviceId(0)).are_told());
        assert_eq!(file.entry_pools(DeviceId(0)).get(2), None);
        file.keys.pool_id = true;
        let pools = file.entry_pools(DeviceId(0));
        let of = |entry| pools.get(entry).map(|pool| pool.1);
        assert_eq!([of(0), of(2), of(6), of(7), of(8)], [0, 5, 0, 6, 0].map(Some));
        assert_eq!(of(usize::MAX), Some(0));
        assert_eq!(file.entry_pools(DeviceId(1)).get(2), Some(PoolId(0, 9)));
        assert_eq!(file.entry_pools(DeviceId(3)).get(2), Some(PoolId::DEFAULT));
        assert_eq!(file.notes_of(DeviceId::HOST).len(), 1);
    }
}
