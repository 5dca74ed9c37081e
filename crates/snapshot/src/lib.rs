//! Reads the memory snapshots that PyTorch writes (`torch.cuda.memory._dump_snapshot`), without
//! executing anything, and writes them.
//!
//! In:  the bytes of a pickle (protocols 2 to 5), plain or compressed with zstd, gzip or xz.
//! Out: a [`SnapshotFile`]: segments, traces, settings, annotations and stacks as plain data.
//!
//! A pickle is a program for a small stack machine, and Python's reader lets that program import
//! and call whatever it names. This one knows the instructions for plain data and no others: a
//! file that asks for more is refused, with the instruction and its place. Nothing here judges
//! whether blocks tile their segment or a free follows its allocation; that is the consumer's.
//!
//! The file is read once, front to back, in pieces. Dictionaries become rows as soon as they are
//! complete, so that memory grows with the events and the distinct stacks and not with the
//! objects Python would make of them:
//!
//! | stage | in → out | lives in |
//! | --- | --- | --- |
//! | 1 input | compressed bytes → plain bytes with offsets | `input.rs` |
//! | 2 opcodes | byte → what it is called, and whether it is plain data | `opcode.rs` |
//! | 3 machine | opcodes → values | `machine/`, `memo.rs`, `memo_chunk.rs`, `value.rs`, `entry_path.rs` |
//! | 4 rows | complete dictionaries and lists → rows | `rows.rs`, `dicts.rs`, `strings.rs`, ... |
//! | 5 file | rows → [`SnapshotFile`] | `finish.rs`, `snapshot_file.rs` |
//! Writing goes the other way: [`SnapshotFile`] → opcodes → bytes, in `write.rs`, `pickle_out.rs` and
//! `save.rs`. What was read and written again reads the same.
//!
//! ```
//! // What `pickle.dumps([], protocol=4)` gives: the snapshot of an allocator without segments.
//! let file = tonnage_snapshot::parse(b"\x80\x04]\x94.")?;
//! assert!(file.segments.is_empty());
//! # Ok::<(), tonnage_snapshot::SnapshotError>(())
//! ```

#![forbid(unsafe_code)]

mod error;

mod limits;

mod spare_memory;

// 1. Bytes, decompressed, with offsets.
mod input;

// 2. What a byte asks for.
mod opcode;

// 3. The stack machine.
mod machine;

mod entry_path;

mod memo;

mod memo_chunk;

mod spelled_stacks;

mod value;

// 4. Complete things, as rows.
mod rows;

mod dicts;

mod fields;

mod entries;

mod history_columns;

mod call_stacks;

mod strings;

// 5. What a file holds.
mod finish;

mod snapshot_file;

mod recorded_purposes;

// The ways in.
mod read;

mod objects;

// And out.
mod pickle_out;

mod write;

mod output_file;

mod per_process;

mod save;

pub use error::SnapshotError;
pub use history_columns::HistoryColumns;
pub use limits::Limits;
pub use objects::{Items, Object, ObjectReader};
pub use output_file::{OutputError, OutputFile, abandon_unfinished, same_file};
pub use read::{fuzz_pickle, open, parse, read, read_columns};
pub use recorded_purposes::{RecordedPurpose, RecordedPurposes};
pub use save::{SaveError, check_save, pack, save, save_new};
pub use snapshot_file::{
    AllocatorSettings, Annotation, EntryNote, EntryPools, Keys, Pinned, SnapshotFile, Stage,
};
pub use spare_memory::spare_memory;
pub use write::write;
