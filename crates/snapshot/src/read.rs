//! The ways to read a snapshot.
//!
//! In:  a path, a reader or bytes.
//! Out: a [`SnapshotFile`], or the first thing that is wrong.

use std::fs::{File, Metadata};
use std::io::Read;
use std::path::Path;

use crate::entries::Entries;
use crate::error::{Result, SnapshotError};
use crate::finish::Finish;
use crate::history_columns::HistoryColumns;
use crate::input::Source;
use crate::limits::Limits;
use crate::machine::Machine;
use crate::snapshot_file::SnapshotFile;
use crate::write::write;

/// Reads the snapshot in a file, within [`Limits`] that follow its size and this machine.
///
/// # Errors
///
/// Always [`SnapshotError::File`], with the path and what is wrong.
pub fn open(path: &Path) -> Result<SnapshotFile> {
    let file = File::open(path).map_err(SnapshotError::Io);
    file.and_then(|file| read(&file, &Limits::of_file(size_of_file(&file))))
        .map_err(|source| SnapshotError::File { path: path.to_owned(), source: Box::new(source) })
}

/// The size of a file; pipes and devices have none.
fn size_of_file(file: &File) -> Option<u64> {
    file.metadata().ok().filter(Metadata::is_file).map(|it| it.len())
}

/// Reads the snapshot in `bytes`, within [`Limits`] that follow their number and this machine.
///
/// # Errors
///
/// As [`read`].
pub fn parse(bytes: &[u8]) -> Result<SnapshotFile> {
    read(bytes, &Limits::of_file(Some(bytes.len() as u64)))
}

/// Reads a snapshot from anywhere, a piece at a time. Whether it is compressed shows in its first
/// bytes.
///
/// # Errors
///
/// One of [`SnapshotError`] for whatever is wrong with the input, or for what passes `limits`.
pub fn read(input: impl Read, limits: &Limits) -> Result<SnapshotFile> {
    Ok(read_one_way(input, limits, true, Entries::default())?.0)
}

/// Reads a snapshot as [`read`] does, with the histories of its devices apart from it, by columns: for whoever wants tables.
///
/// # Errors
///
/// As [`read`].
pub fn read_columns(
    input: impl Read,
    limits: &Limits,
) -> Result<(SnapshotFile, Vec<HistoryColumns>)> {
    read_one_way(input, limits, true, Entries::in_columns())
}

fn read_one_way(
    input: impl Read,
    limits: &Limits,
    short_way: bool,
    entries: Entries,
) -> Result<(SnapshotFile, Vec<HistoryColumns>)> {
    let source = Source::new(input, limits.pickle_bytes)?;
    let outcome = Machine::new(source, *limits, short_way, entries).run()?;
    Finish { limits, offset: outcome.offset }.file(outcome)
}

/// What the fuzzer calls: reads `data` within limits that keep one run short. What can be read reads
/// the same by columns, and after it was written again.
#[doc(hidden)]
pub fn fuzz_pickle(data: &[u8]) {
    let limits = Limits { pickle_bytes: 4 << 20, memory: 64 << 20, depth: 64 };
    let Ok(file) = read(data, &limits) else { return };
    let mut written = Vec::new();
    write(&mut written, &file).expect("memory takes what is written");
    let again = parse(&written).expect("what was written can be read");
    assert!(again == file, "reads otherwise after it was written");
    assert_eq!(again.trailing, 0);
    // Columns take other memory than rows: only what is within the limits both ways is compared.
    if let Ok((_, columns)) = read_columns(data, &limits) {
        let traces: Vec<_> = columns.iter().map(HistoryColumns::entries).collect();
        assert!(traces == file.traces, "reads otherwise by columns");
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tonnage_events::StackId;

    use super::*;
    use crate::snapshot_file::Pinned;

    /// What was read, or why not, as text.
    fn outcome(bytes: &[u8], short_way: bool) -> String {
        let limits = Limits { pickle_bytes: 64 << 20, memory: 64 << 20, depth: 64 };
        match read_one_way(bytes, &limits, short_way, Entries::default()) {
            Ok((file, _)) => {
                let SnapshotFile { segments, traces, pinned, notes, settings, .. } = file;
                let (annotations, stacks, keys) = (file.annotations, file.stacks, file.keys);
                let stacks: Vec<_> = (0..stacks.len() as u32)
                    .filter_map(StackId::new)
                    .map(|id| stacks.frames(id))
                    .collect();
                format!(
                    "{segments:?}\n{traces:?}\n{pinned:?}\n{notes:?}\n{settings:?}\n{annotations:?}\n\
                     {stacks:?}\n{keys:?}"
                )
            }
            Err(error) => error.to_string(),
        }
    }

    fn recording(name: &str) -> Vec<u8> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/traces");
        zstd::decode_all(File::open(folder.join(name)).unwrap()).unwrap()
    }

    #[test]
    fn columns_have_the_entries_of_every_recording() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/traces");
        let limits = Limits::default();
        for entry in std::fs::read_dir(folder).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            if name.ends_with(".pickle.zst") {
                let bytes = recording(&name);
                let file = read(&*bytes, &limits).unwrap();
                let (mut other, columns) = read_columns(&*bytes, &limits).unwrap();
                assert!(other.traces.is_empty(), "{name}");
                other.traces = columns.iter().map(HistoryColumns::entries).collect();
                assert!(other == file, "{name}");
            }
        }
    }

    #[test]
    fn several_devices_and_the_host_have_columns_of_their_own() {
        let mut file = parse(&recording("mlp_seed.default.stacks.pickle.zst")).unwrap();
        let whole = file.traces[0].clone();
        file.traces = vec![whole[..300].to_vec(), Vec::new(), whole[200..].to_vec()];
        file.notes.clear();
        let pinned = Pinned { segments: Vec::new(), trace: whole[..50].to_vec() };
        file.pinned = Some(pinned);
        let mut written = Vec::new();
        write(&mut written, &file).unwrap();
        let again = parse(&written).unwrap();
        let (mut other, columns) = read_columns(&*written, &Limits::default()).unwrap();
        assert_eq!(columns.len(), 3);
        other.traces = columns.iter().map(HistoryColumns::entries).collect();
        assert!(other == again);
        let lens: Vec<_> = again.traces.iter().map(Vec::len).collect();
        assert_eq!(lens, [300, 0, whole.len() - 200]);
    }

    #[test]
    fn the_short_way_and_the_long_way_lead_to_the_same_file() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/traces");
        for entry in std::fs::read_dir(folder).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            if name.ends_with(".pickle.zst") {
                let bytes = recording(&name);
                assert!(outcome(&bytes, true) == outcome(&bytes, false), "{name}");
            }
        }
    }

    /// A file with something changed: bytes overwritten, taken out, or put in.
    fn changed(mut bytes: Vec<u8>, changes: &[(usize, u8, u8)]) -> Vec<u8> {
        for &(place, kind, byte) in changes {
            let place = place % bytes.len();
            match kind % 4 {
                0 => bytes[place] = byte,
                1 => drop(bytes.remove(place)),
                2 => bytes.insert(place, byte),
                _ => bytes.truncate(place.max(bytes.len() / 2)),
            }
        }
        bytes
    }

    proptest! {
        #[test]
        fn both_ways_agree_on_damaged_files_and_never_panic(
            stacks in any::<bool>(),
            changes in prop::collection::vec((any::<usize>(), any::<u8>(), any::<u8>()), 1..6),
        ) {
            let name = if stacks { "mlp_seed.default.stacks" } else { "mlp_seed.tight" };
            let bytes = changed(recording(&format!("{name}.pickle.zst")), &changes);
            prop_assert_eq!(outcome(&bytes, true), outcome(&bytes, false));
        }

        #[test]
        fn programs_of_plain_opcodes_never_panic(
            program in prop::collection::vec(prop::sample::select(PLAIN), 0..200),
        ) {
            let bytes = [b"\x80\x04", program.concat().as_slice(), b"."].concat();
            prop_assert_eq!(outcome(&bytes, true), outcome(&bytes, false));
        }
    }

    /// Pieces that random programs are put together from.
    const PLAIN: &[&[u8]] = &[
        b"N",
        b"K\x01",
        b"M\x01\x02",
        b"J\xff\xff\xff\xff",
        b"\x8a\x02\xff\x7f",
        b"G\0\0\0\0\0\0\0\0",
        b"\x88",
        b"\x8c\x01a",
        b"\x8c\x06action",
        b"\x8c\x05alloc",
        b"\x8c\x04size",
        b"\x8c\x04addr",
        b"\x8c\x06stream",
        b"\x8c\x06frames",
        b"\x8c\x04name",
        b"\x8c\x08filename",
        b"\x8c\x08segments",
        b"\x8c\x0ddevice_traces",
        b"\x8c\x06blocks",
        b"\x8c\x05state",
        b"\x8c\x07time_us",
        b"\x8c\x07pool_id",
        b"\x8c\x0duser_metadata",
        b"\x8c\x11internal_metadata",
        b"\x8c\x0bhost_traces",
        b"]",
        b"a",
        b"e",
        b"l",
        b")",
        b"t",
        b"\x85",
        b"\x86",
        b"\x87",
        b"}",
        b"d",
        b"s",
        b"u",
        b"\x8f",
        b"\x90",
        b"\x91",
        b"0",
        b"(",
        b"1",
        b"h\0",
        b"h\x01",
        b"h\x02",
        b"q\0",
        b"q\x01",
        b"r\x02\0\0\0",
        b"r\xff\xff\xff\xff",
        b"j\xff\xff\xff\xff",
        b"\x94",
        b"I5\n",
        b"(",
        b"(",
        b"\x94",
        b"}\x94(",
        b"}(\x8c\x06actionh\x01\x8c\x04sizeK\x01\x8c\x04addrK\x02\x8c\x06streamK\0u",
        b"}(\x8c\x04name\x8c\x01a\x8c\x08filename\x8c\x01bu",
    ];
}
