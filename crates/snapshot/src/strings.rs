//! Stage 4: texts, each kept once.
//!
//! In:  the bytes of a text, as the pickle spells it out.
//! Out: a [`StrId`], the same for equal texts; the ids of the [texts we know](known) are constants.
//!
//! PyTorch spells the action out again for every entry, so most calls find a text that is already
//! here. Texts that the snapshot does not need are kept too: only later does one learn which.

use std::hash::{BuildHasher, RandomState};

use crate::rows::{grows, taken};
use crate::value::StrId;

/// Declares the texts of the format, in the order of their ids.
macro_rules! known_texts {
    ($($name:ident = $text:literal,)*) => {
        #[allow(non_camel_case_types, clippy::upper_case_acronyms)]
        #[derive(Clone, Copy)]
        enum Place { $($name,)* }
        $(#[allow(dead_code, reason = "some are named only as the end of a range")]
        pub(crate) const $name: StrId = StrId(Place::$name as u32);)*
        /// The texts, by id.
        pub(crate) const ALL: &[&str] = &[$($text,)*];
    };
}

/// The keys and words of a snapshot.
pub(crate) mod known {
    use super::StrId;

    known_texts! {
        // The actions come first, in the order of `Action::ALL`: an id below 10 is one.
        ALLOC = "alloc",
        FREE_REQUESTED = "free_requested",
        FREE_COMPLETED = "free_completed",
        SEGMENT_ALLOC = "segment_alloc",
        SEGMENT_FREE = "segment_free",
        SEGMENT_MAP = "segment_map",
        SEGMENT_UNMAP = "segment_unmap",
        SNAPSHOT = "snapshot",
        OOM = "oom",
        ANNOTATE = "annotate",
        // Then the sizes that roundup divisions are given for, ascending.
        SIZE_1 = "1",
        SIZE_2 = "2",
        SIZE_4 = "4",
        SIZE_8 = "8",
        SIZE_16 = "16",
        SIZE_32 = "32",
        SIZE_64 = "64",
        SIZE_128 = "128",
        SIZE_256 = "256",
        SIZE_512 = "512",
        SIZE_1024 = "1024",
        SIZE_2048 = "2048",
        SIZE_4096 = "4096",
        SIZE_8192 = "8192",
        SIZE_16384 = "16384",
        SIZE_32768 = "32768",
        // Keys of an entry.
        ACTION = "action",
        ADDR = "addr",
        DEVICE_FREE = "device_free",
        SIZE = "size",
        STREAM = "stream",
        TIME_US = "time_us",
        COMPILE_CONTEXT = "compile_context",
        USER_METADATA = "user_metadata",
        INTERNAL_METADATA = "internal_metadata",
        POOL_ID = "pool_id",
        NOT_APPLICABLE = "N/A",
        EMPTY = "",
        FRAMES = "frames",
        FORWARD_FRAMES = "forward_frames",
        // Keys of a frame.
        NAME = "name",
        FILENAME = "filename",
        LINE = "line",
        // Keys of a segment and of a block.
        DEVICE = "device",
        ADDRESS = "address",
        TOTAL_SIZE = "total_size",
        ALLOCATED_SIZE = "allocated_size",
        ACTIVE_SIZE = "active_size",
        REQUESTED_SIZE = "requested_size",
        SEGMENT_TYPE = "segment_type",
        SEGMENT_POOL_ID = "segment_pool_id",
        IS_EXPANDABLE = "is_expandable",
        BLOCKS = "blocks",
        STATE = "state",
        ACTIVE_ALLOCATED = "active_allocated",
        ACTIVE_PENDING_FREE = "active_pending_free",
        INACTIVE = "inactive",
        SMALL = "small",
        LARGE = "large",
        // Keys of a block in files of PyTorch 2.0 and before.
        HISTORY = "history",
        REAL_SIZE = "real_size",
        // Keys of an annotation.
        STAGE = "stage",
        START = "START",
        END = "END",
        // Keys of the whole.
        SEGMENTS = "segments",
        DEVICE_TRACES = "device_traces",
        ALLOCATOR_SETTINGS = "allocator_settings",
        EXTERNAL_ANNOTATIONS = "external_annotations",
        HOST_SEGMENTS = "host_segments",
        HOST_TRACES = "host_traces",
        // Not PyTorch's: see `recorded_purposes.rs`.
        TONNAGE_PURPOSES = "tonnage_purposes",
        // Keys of the settings.
        PYTORCH_CUDA_ALLOC_CONF = "PYTORCH_CUDA_ALLOC_CONF",
        PYTORCH_ALLOC_CONF = "PYTORCH_ALLOC_CONF",
        MAX_SPLIT_SIZE = "max_split_size",
        GARBAGE_COLLECTION_THRESHOLD = "garbage_collection_threshold",
        EXPANDABLE_SEGMENTS = "expandable_segments",
        PINNED_NUM_REGISTER_THREADS = "pinned_num_register_threads",
        RELEASE_LOCK_ON_CUDAMALLOC = "release_lock_on_cudamalloc",
        PINNED_USE_CUDA_HOST_REGISTER = "pinned_use_cuda_host_register",
        GRAPH_CAPTURE_RECORD_STREAM_REUSE = "graph_capture_record_stream_reuse",
        MAX_ROUND_THRESHOLD = "max_round_threshold",
        MAX_CACHED_SIZE = "max_cached_size",
        ROUNDUP_POWER2_DIVISIONS = "roundup_power2_divisions",
    }
}

/// Places in the front of the table. A snapshot has some dozens of texts that keep coming back.
const RECENT: usize = 512;

/// A place in a table that holds no text.
const VACANT: u32 = u32::MAX;

/// Distinct texts.
pub(crate) struct Strings {
    /// All texts, one after the other.
    texts: String,
    /// Where each ends.
    ends: Vec<usize>,
    /// Ids by hash, with open addressing; at most half full. The hash is keyed at random, so that
    /// a file cannot be made whose texts all collide.
    table: Vec<u32>,
    hasher: RandomState,
    /// Ids by a cheaper hash, the latest of each: nearly every text is found here.
    recent: Box<[u32; RECENT]>,
}

impl Strings {
    /// The known texts under their ids, and nothing else.
    pub(crate) fn new() -> Self {
        let mut strings = Self {
            texts: String::new(),
            ends: Vec::new(),
            table: vec![VACANT; 256],
            hasher: RandomState::new(),
            recent: Box::new([VACANT; RECENT]),
        };
        for text in known::ALL {
            strings.intern(text.as_bytes());
        }
        strings
    }

    /// How many distinct texts there are.
    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    /// Bytes held, about.
    pub(crate) fn memory(&self) -> u64 {
        let (len, capacity) = (self.texts.len(), self.texts.capacity());
        let growth = if grows(len, capacity) { 2 * capacity } else { 0 };
        // The table is half full at most, and doubled then.
        let places = self.table.len();
        let more = if grows(2 * self.len(), places) { 2 * places } else { 0 };
        let table = (places + more) * size_of::<u32>();
        (capacity + growth + taken(&self.ends) + table) as u64
    }

    /// The id of a text.
    #[inline]
    pub(crate) fn intern(&mut self, text: &[u8]) -> StrId {
        let place = cheap_hash(text) % RECENT;
        let recent = self.recent[place];
        if recent != VACANT && self.text(StrId(recent)).as_bytes() == text {
            return StrId(recent);
        }
        let id = self.intern_slowly(text);
        self.recent[place] = id.0;
        id
    }

    /// The text.
    #[inline]
    pub(crate) fn text(&self, id: StrId) -> &str {
        let index = id.0 as usize;
        let start = if index == 0 { 0 } else { self.ends[index - 1] };
        &self.texts[start..self.ends[index]]
    }

    #[inline(never)]
    fn intern_slowly(&mut self, text: &[u8]) -> StrId {
        let mut place = self.place_of(text);
        if self.table[place] != VACANT {
            return StrId(self.table[place]);
        }
        let Ok(text) = std::str::from_utf8(text) else {
            // Python's lone surrogates, which stand for bytes of file names that are not UTF-8,
            // have no place in a Rust string. Replaced here and not on the way out, so that
            // different ids remain different texts.
            return self.intern_slowly(String::from_utf8_lossy(text).as_bytes());
        };
        if (self.ends.len() + 1) * 2 > self.table.len() {
            self.grow();
            place = self.place_of(text.as_bytes());
        }
        let id = self.ends.len() as u32;
        self.texts.push_str(text);
        self.ends.push(self.texts.len());
        self.table[place] = id;
        StrId(id)
    }

    /// The place in the table where the text is, or would go.
    fn place_of(&self, text: &[u8]) -> usize {
        let mask = self.table.len() - 1;
        let mut place = self.hasher.hash_one(text) as usize & mask;
        while self.table[place] != VACANT && self.text(StrId(self.table[place])).as_bytes() != text
        {
            place = (place + 1) & mask;
        }
        place
    }

    fn grow(&mut self) {
        self.table = vec![VACANT; self.table.len() * 2];
        for id in 0..self.ends.len() as u32 {
            let place = self.place_of(self.text(StrId(id)).as_bytes());
            self.table[place] = id;
        }
    }
}

/// Tells the usual texts apart by their length and last eight bytes; paths share their beginning.
#[inline]
fn cheap_hash(text: &[u8]) -> usize {
    let tail = match text.last_chunk::<8>() {
        Some(bytes) => u64::from_le_bytes(*bytes),
        None => text.iter().fold(0, |sum, &byte| sum << 8 | u64::from(byte)),
    };
    // The multiplier is 2⁶⁴ over the golden ratio, which spreads neighbours apart.
    let mixed = (tail ^ text.len() as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 40) as usize
}

#[cfg(test)]
mod tests {
    use tonnage_events::Action;

    use super::*;

    #[test]
    fn the_first_ids_are_the_actions_in_order_and_the_next_the_division_sizes() {
        let strings = Strings::new();
        assert_eq!(strings.len(), known::ALL.len());
        for (id, action) in Action::ALL.into_iter().enumerate() {
            assert_eq!(strings.text(StrId(id as u32)), action.name());
        }
        for power in 0..16 {
            let id = StrId(known::SIZE_1.0 + power);
            assert_eq!(strings.text(id), (1_u32 << power).to_string());
        }
    }

    #[test]
    fn texts_that_look_alike_once_repaired_are_one() {
        let mut strings = Strings::new();
        let first = strings.intern(b"dir/\xff.py");
        assert_eq!(strings.intern(b"dir/\xfe.py"), first);
        assert_eq!(strings.text(first), "dir/\u{fffd}.py");
    }

    #[test]
    fn every_text_keeps_its_id_through_growth_and_crowding_out() {
        let mut strings = Strings::new();
        let texts: Vec<String> = (0..5_000).map(|n| format!("text {n}")).collect();
        let ids: Vec<StrId> = texts.iter().map(|text| strings.intern(text.as_bytes())).collect();
        for (text, &id) in texts.iter().zip(&ids) {
            assert_eq!(strings.intern(text.as_bytes()), id);
            assert_eq!(strings.text(id), text);
        }
        assert_eq!(strings.len(), known::ALL.len() + texts.len());
    }
}
