//! What is written reads the same: by this crate, by Python, and with what PyTorch's page knows.

use std::fs;
use std::path::{Path, PathBuf};

use crate::support::{NORMAL, normal, python, traces};
use proptest::prelude::*;
use serde_json::Value;
use tonnage_events::{
    Action, Address, BlockState, DeviceId, Frame, PoolId, PoolKind, SnapshotBlock, SnapshotSegment,
    StackId, Stacks, StreamId, TraceEntry,
};
use tonnage_snapshot::{
    AllocatorSettings, Annotation, EntryNote, Keys, Pinned, SnapshotFile, Stage, open, parse, save,
    write,
};

fn written(file: &SnapshotFile) -> Vec<u8> {
    let mut bytes = Vec::new();
    write(&mut bytes, file).unwrap();
    bytes
}

/// The snapshots of the repository: every recording, and every form that releases gave them.
fn snapshots() -> Vec<PathBuf> {
    let folders = [traces(), traces().with_file_name("snapshots")];
    let entries = folders.iter().flat_map(|folder| fs::read_dir(folder).unwrap());
    let paths = entries.map(|entry| entry.unwrap().path());
    paths.filter(|path| path.to_str().unwrap().contains(".pickle")).collect()
}

#[test]
fn every_snapshot_reads_the_same_after_it_was_written() {
    let paths = snapshots();
    assert!(paths.len() >= 68 + 60, "only {}", paths.len());
    for path in paths {
        let file = open(&path).unwrap();
        let bytes = written(&file);
        let again = parse(&bytes).unwrap();
        assert!(again == file, "{}", path.display());
        // And the second time to the byte.
        assert!(written(&again) == bytes, "{}", path.display());
    }
}

#[test]
fn python_and_the_page_find_the_same_values_in_what_was_written() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/page_reader.py");
    let program = format!(
        "{NORMAL}
sys.path.insert(0, sys.argv[2])
import page_reader
data = open(sys.argv[1], 'rb').read()
snapshot = page_reader.read(data)
assert snapshot == pickle.loads(data)
assert set(snapshot) >= {{'segments', 'device_traces', 'external_annotations'}}
json.dump(normal(snapshot), sys.stdout)"
    );
    let folder = tempfile::tempdir().unwrap();
    let forms = traces().with_file_name("snapshots");
    let releases = (8..=15).map(|minor| forms.join(format!("release_2_{minor}.p4.pickle")));
    let recordings = [
        "mlp_seed.default.stacks",
        "gpt2_varlen.default.stacks",
        "multistream.expandable",
        "cudagraph.split128",
    ]
    .map(|name| traces().join(format!("{name}.pickle.zst")));
    for name in recordings.into_iter().chain(releases) {
        let file = open(&name).unwrap();
        let name = name.display();
        let path = folder.path().join("written.pickle");
        save(&path, &file).unwrap();
        let theirs = python(&program, &[&path, page.parent().unwrap()]);
        let theirs: Value = serde_json::from_slice(&theirs).unwrap();
        assert!(normal(&file) == theirs, "{name}");
    }
}

#[test]
fn shared_stacks_and_texts_are_shared_by_whoever_reads_them() {
    let program = "
import pickle, sys
snapshot = pickle.load(open(sys.argv[1], 'rb'))
lists, frames, texts = set(), set(), set()
for entry in snapshot['device_traces'][0]:
    if entry.get('frames'):
        lists.add(id(entry['frames']))
        frames.update(id(frame) for frame in entry['frames'])
        texts.update((id(f['filename']), f['filename']) for f in entry['frames'])
assert len(texts) == len({text for _, text in texts})
print(len(lists), len(frames))";
    let file = open(&traces().join("gpt2_varlen.default.stacks.pickle.zst")).unwrap();
    let saved = tempfile::NamedTempFile::new().unwrap();
    save(saved.path(), &file).unwrap();
    let counts = String::from_utf8(python(program, &[saved.path()])).unwrap();
    let counts: Vec<usize> =
        counts.split_whitespace().map(|count| count.parse().unwrap()).collect();
    assert!(counts[0] <= file.stacks.len(), "{counts:?}");
    let calls: std::collections::HashSet<_> = (0..file.stacks.len() as u32)
        .filter_map(StackId::new)
        .flat_map(|stack| file.stacks.frames(stack))
        .collect();
    assert!(counts[1] <= calls.len(), "{counts:?}");
}

#[test]
fn the_ending_says_how_a_file_is_packed() {
    let file = open(&traces().join("mlp_seed.default.pickle.zst")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    for (name, magic) in [
        ("a.pickle", &b"\x80\x04"[..]),
        ("a.pickle.gz", b"\x1f\x8b"),
        ("a.ZST", b"\x28\xb5\x2f\xfd"),
    ] {
        let path = folder.path().join(name);
        save(&path, &file).unwrap();
        assert!(fs::read(&path).unwrap().starts_with(magic), "{name}");
        assert_eq!(open(&path).unwrap(), file, "{name}");
    }
}

#[test]
fn equality_is_of_frames_and_not_of_their_numbers() {
    let frame = |line| Frame { name: "f".into(), filename: "a.py".into(), line };
    let mut file = SnapshotFile::default();
    let mut other = SnapshotFile::default();
    let unused = other.stacks.intern(vec![frame(9)]);
    let entry = |stack| TraceEntry {
        action: Action::Alloc,
        address: Address(1),
        size: 2,
        stream: StreamId(3),
        time_us: 4,
        stack,
    };
    file.traces = vec![vec![entry(Some(file.stacks.intern(vec![frame(1)])))]];
    other.traces = vec![vec![entry(Some(other.stacks.intern(vec![frame(1)])))]];
    assert_eq!(file, other);
    other.traces[0][0].stack = Some(unused);
    assert_ne!(file, other);
    other.traces[0][0].stack = None;
    assert_ne!(file, other);
    assert_ne!(other, file);
}

fn texts() -> impl Strategy<Value = String> {
    prop_oneof![".{0,8}", "[a-z]{300}", Just(String::new()), Just("action".into())]
}

prop_compose! {
    fn stacks()(lists in prop::collection::vec(
        prop::collection::vec((texts(), texts(), any::<u32>()), 0..4), 1..5,
    )) -> Stacks {
        let mut stacks = Stacks::default();
        for frames in lists {
            let frames = frames.into_iter().map(|(name, filename, line)| Frame {
                name: name.into(),
                filename: filename.into(),
                line,
            });
            stacks.intern(frames.collect());
        }
        stacks
    }
}

prop_compose! {
    fn stack()(number in prop::option::of(0_u32..6)) -> Option<StackId> {
        number.and_then(StackId::new)
    }
}

prop_compose! {
    fn entry()(
        action in prop::sample::select(&Action::ALL[..]),
        (address, size, stream, time_us) in any::<(u64, u64, u64, u64)>(),
        stack in stack(),
    ) -> TraceEntry {
        TraceEntry {
            action, address: Address(address), size, stream: StreamId(stream), time_us, stack,
        }
    }
}

prop_compose! {
    fn block()(
        // No block begins at the last byte there is.
        address in 0..u64::MAX,
        (size, requested_size) in any::<(u64, u64)>(),
        state in prop::sample::select(&BlockState::ALL[..]),
        stack in stack(),
    ) -> SnapshotBlock {
        SnapshotBlock { address: Address(address), size, requested_size, state, stack }
    }
}

prop_compose! {
    fn segment()(
        device in 0..u32::MAX,
        (address, total_size, allocated_size, active_size) in any::<(u64, u64, u64, u64)>(),
        (requested_size, stream, pool) in any::<(u64, u64, (u64, u64))>(),
        (small, expandable) in any::<(bool, bool)>(),
        stack in stack(),
        blocks in prop::collection::vec(block(), 0..4),
    ) -> SnapshotSegment {
        SnapshotSegment {
            device: DeviceId(device),
            address: Address(address),
            total_size,
            allocated_size,
            active_size,
            requested_size,
            stream: StreamId(stream),
            kind: if small { PoolKind::Small } else { PoolKind::Large },
            pool: PoolId(pool.0, pool.1),
            expandable,
            stack,
            blocks,
        }
    }
}

prop_compose! {
    fn settings()(
        conf in texts(),
        max_split_size in any::<Option<i64>>(),
        garbage_collection_threshold in prop::option::of(-1e300..1e300),
        flags in any::<[Option<bool>; 4]>(),
        pinned_num_register_threads in any::<Option<u64>>(),
        (max_round_threshold, max_cached_size) in any::<(Option<i64>, Option<i64>)>(),
        roundup_power2_divisions in any::<Option<[u64; 16]>>(),
    ) -> AllocatorSettings {
        AllocatorSettings {
            conf,
            max_split_size,
            garbage_collection_threshold,
            expandable_segments: flags[0],
            pinned_num_register_threads,
            release_lock_on_cudamalloc: flags[1],
            pinned_use_cuda_host_register: flags[2],
            graph_capture_record_stream_reuse: flags[3],
            max_round_threshold,
            max_cached_size,
            roundup_power2_divisions,
        }
    }
}

prop_compose! {
    fn annotation()(
        name in texts(),
        stage in prop_oneof![Just(Stage::Start), Just(Stage::End), Just(Stage::Other("MARK".into()))],
        device in 0..u32::MAX,
        time_us in any::<u64>(),
    ) -> Annotation {
        Annotation { name: name.into(), stage, device: DeviceId(device), time_us }
    }
}

prop_compose! {
    fn pinned()(
        segments in prop::collection::vec(segment(), 0..4),
        trace in prop::collection::vec(entry(), 0..6),
    ) -> Pinned {
        let on_host = |it| SnapshotSegment { device: DeviceId::HOST, ..it };
        Pinned { segments: segments.into_iter().map(on_host).collect(), trace }
    }
}

/// What an entry may say besides, if its release knows the keys.
fn note(keys: Keys) -> impl Strategy<Value = Option<EntryNote>> {
    let said = (any::<(u64, u64)>(), texts(), prop::option::of(texts()), any::<bool>());
    said.prop_map(move |(pool, user, internal, says)| {
        let note = EntryNote {
            device: DeviceId(0),
            entry: 0,
            pool: if keys.pool_id { PoolId(pool.0, pool.1) } else { PoolId::DEFAULT },
            user_metadata: if keys.user_metadata { user.into() } else { "".into() },
            internal_metadata: internal.map(Into::into),
        };
        let nothing = note.pool.is_default()
            && note.user_metadata.is_empty()
            && note.internal_metadata.is_none();
        (says && !nothing).then_some(note)
    })
}

/// A file whose entries say things besides.
fn with_notes(file: SnapshotFile) -> impl Strategy<Value = SnapshotFile> {
    let host = file.pinned.as_ref().map(|pinned| (DeviceId::HOST, pinned.trace.len()));
    let lens = (0..).map(DeviceId).zip(file.traces.iter().map(Vec::len)).chain(host);
    let places: Vec<_> =
        lens.flat_map(|(device, len)| (0..len as u32).map(move |entry| (device, entry))).collect();
    prop::collection::vec(note(file.keys), places.len()).prop_map(move |notes| {
        let notes = places.iter().zip(notes).filter_map(|(&(device, entry), note)| {
            note.map(|note| EntryNote { device, entry, ..note })
        });
        SnapshotFile { notes: notes.collect(), ..file.clone() }
    })
}

prop_compose! {
    fn file()(
        segments in prop::collection::vec(segment(), 0..4),
        traces in prop::collection::vec(prop::collection::vec(entry(), 0..6), 0..4),
        pinned in prop::option::of(pinned()),
        settings in prop::option::of(settings()),
        annotations in prop::collection::vec(annotation(), 0..4),
        stacks in stacks(),
        keys in any::<[bool; 4]>(),
    ) -> SnapshotFile {
        // The keys are those of entries: where there are none, nothing can be known of them.
        let any = traces.iter().any(|trace| !trace.is_empty())
            || pinned.as_ref().is_some_and(|pinned| !pinned.trace.is_empty());
        let keys = Keys {
            compile_context: any && keys[0],
            user_metadata: any && keys[1],
            forward_frames: any && keys[2],
            pool_id: any && keys[3],
        };
        SnapshotFile {
            segments, traces, pinned, settings, annotations, stacks, keys, ..SnapshotFile::default()
        }
    }
}

proptest! {
    #[test]
    fn any_value_reads_the_same_after_it_was_written(file in file().prop_flat_map(with_notes)) {
        prop_assert_eq!(parse(&written(&file)).unwrap(), file);
    }
}
