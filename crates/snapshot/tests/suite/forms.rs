//! Snapshots in the forms that releases have given them, as `testdata/snapshots/make.py` makes them.

use std::path::{Path, PathBuf};

use crate::support::python;
use tonnage_events::{Action, Address, BlockState, DeviceId, PoolId, PoolKind, StreamId};
use tonnage_snapshot::{SnapshotFile, Stage, open, parse};

const BASE: u64 = 0x7f00_0000_0000;
const MIB: u64 = 1 << 20;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/snapshots")
}

/// The snapshot in this form, the same at every protocol.
fn form(name: &str) -> SnapshotFile {
    let open = |protocol| open(&folder().join(format!("{name}.p{protocol}.pickle"))).unwrap();
    let file = open(2);
    for protocol in 3..=5 {
        assert_eq!(open(protocol), file, "{name}, protocol {protocol}");
    }
    assert_eq!(file.trailing, 0);
    file
}

/// Address, size, requested size and state of a segment's blocks.
fn blocks(file: &SnapshotFile, segment: usize) -> Vec<(u64, u64, u64, BlockState)> {
    let blocks = file.segments[segment].blocks.iter();
    blocks.map(|it| (it.address.0 - BASE, it.size, it.requested_size, it.state)).collect()
}

fn functions(file: &SnapshotFile, stack: Option<tonnage_events::StackId>) -> Vec<&str> {
    let frames = stack.map_or(&[][..], |stack| file.stacks.frames(stack));
    frames.iter().map(|frame| &*frame.name).collect()
}

#[test]
fn blocks_without_addresses_lie_one_behind_the_other() {
    use BlockState::{ActiveAllocated, ActivePendingFree, Inactive};
    let file = form("before_2_0");
    // Nobody knows what was requested: all of an active block, none of a free one.
    let expected = [
        (0, 1536, 1536, ActiveAllocated),
        (1536, 512, 512, ActivePendingFree),
        (2048, 2 * MIB - 2048, 0, Inactive),
    ];
    assert_eq!(blocks(&file, 0), expected);
    let segment = &file.segments[0];
    assert_eq!((segment.allocated_size, segment.active_size), (1536, 2048));
    assert_eq!(segment.requested_size, 2048);
    assert_eq!((segment.stream, segment.pool), (StreamId(0), PoolId::DEFAULT));
    assert!(file.traces.is_empty() && file.settings.is_none());
}

#[test]
fn the_history_of_a_block_says_what_was_requested_and_where() {
    use BlockState::{ActiveAllocated, ActivePendingFree, Inactive};
    let file = form("release_2_0");
    let expected = [
        (0, 1024, 1000, ActiveAllocated),
        (1024, 2048, 2000, ActivePendingFree),
        (3072, 20 * MIB - 3072, 0, Inactive),
    ];
    assert_eq!(blocks(&file, 0), expected);
    assert_eq!(file.segments[0].requested_size, 3000);
    let stacks = file.segments[0].blocks.iter().map(|block| functions(&file, block.stack));
    assert_eq!(stacks.collect::<Vec<_>>(), [vec!["inner", "outer"], vec![], vec![]]);
    let oom = file.traces[0][2];
    assert_eq!((oom.action, oom.address, oom.time_us), (Action::Oom, Address(5 * MIB), 0));
    assert_eq!(functions(&file, file.traces[0][1].stack), ["inner", "outer"]);
    assert!(!file.keys.compile_context && file.settings.is_none());
}

#[test]
fn several_devices_keep_their_ordinals() {
    let file = form("release_2_1");
    let devices: Vec<_> = file.segments.iter().map(|segment| segment.device).collect();
    assert_eq!(devices, [DeviceId(0), DeviceId(2)]);
    assert_eq!(file.traces.iter().map(Vec::len).collect::<Vec<_>>(), [2, 0, 2]);
    assert_eq!(file.traces[2][1].stream, StreamId(0x55aa));
    assert_eq!(file.settings.unwrap().max_split_size, Some(64 << 20));
}

#[test]
fn times_annotations_and_native_stacks_are_there() {
    let file = form("release_2_6");
    assert_eq!(file.traces[0][1].time_us, 1_700_000_000_000_001);
    let stages: Vec<_> = file.annotations.iter().map(|it| (&it.stage, it.time_us % 10)).collect();
    assert_eq!(stages, [(&Stage::Start, 2), (&Stage::End, 9)]);
    assert_eq!(&*file.annotations[0].name, "Optimizer.step#Adam.step");
    let stack = file.traces[0][1].stack;
    assert_eq!(functions(&file, stack), ["c10::Allocator::allocate", "at::empty_cuda", "inner"]);
    // A line that is not known is −1, of which C++ makes an unsigned number.
    let lines: Vec<_> = file.stacks.frames(stack.unwrap()).iter().map(|frame| frame.line).collect();
    assert_eq!(lines, [0, 0, 3]);
}

#[test]
fn a_snapshot_without_history_has_its_segments() {
    let file = form("state_only");
    assert_eq!(file.segments[0].requested_size, 1000);
    assert_eq!((file.traces.len(), file.traces[0].len()), (1, 0));
    assert_eq!(file.settings.unwrap().conf, "");
}

#[test]
fn segments_that_were_made_up_from_a_profile_get_what_they_lack() {
    let file = form("profile");
    let segment = &file.segments[0];
    assert_eq!((segment.device, segment.kind), (DeviceId(1), PoolKind::Large));
    assert_eq!((segment.allocated_size, segment.active_size), (4 * MIB, 4 * MIB));
    assert_eq!(segment.blocks[1].address, Address(BASE + 4 * MIB));
}

#[test]
fn what_a_later_release_adds_does_not_disturb() {
    let file = form("later");
    assert_eq!(file.traces[0].len(), 2);
    assert_eq!(
        file.skipped_actions.into_iter().collect::<Vec<_>>(),
        [("segment_migrated".into(), 1)]
    );
    let oom = file.traces[0][1];
    assert_eq!((oom.action, oom.address), (Action::Oom, Address(77)));
    assert_eq!(file.traces[0][0].address, Address(BASE));
    assert_eq!(file.settings.unwrap().conf, "expandable_segments:True");
    assert_eq!(file.annotations[0].stage, Stage::Other("MARK".into()));
    assert!(file.keys.user_metadata && file.keys.forward_frames);
}

#[test]
fn each_release_has_the_keys_that_are_its_own() {
    for minor in 8..=15_u32 {
        let file = form(&format!("release_2_{minor}"));
        let settings = file.settings.as_ref().unwrap();
        assert_eq!(settings.graph_capture_record_stream_reuse.is_some(), minor >= 9, "{minor}");
        assert_eq!(settings.max_cached_size, (minor >= 13).then_some(64 << 20), "{minor}");
        assert_eq!(settings.max_round_threshold, (minor >= 13).then_some(-1), "{minor}");
        assert_eq!(file.keys.user_metadata, minor >= 10, "{minor}");
        assert_eq!(file.keys.pool_id, minor >= 12, "{minor}");
        assert_eq!(file.pinned.is_some(), minor >= 14, "{minor}");
        assert!(file.skipped_actions.is_empty(), "{minor}");
        let tagged = file.notes.iter().filter(|it| it.internal_metadata.is_some()).count();
        assert_eq!(tagged, if minor >= 15 { 3 } else { 0 }, "{minor}");
    }
}

#[test]
fn what_entries_say_besides_is_kept_with_their_numbers() {
    let file = form("release_2_15");
    let notes: Vec<_> = file
        .notes
        .iter()
        .map(|it| {
            (it.device.0, it.entry, it.pool.1, &*it.user_metadata, it.internal_metadata.as_deref())
        })
        .collect();
    let tag = Some("mallocWithAddress");
    let expected = [
        (0, 2, 3, "", None),
        (0, 3, 3, "step 1", None),
        (0, 4, 3, "", None),
        (0, 5, 3, "", None),
        (0, 6, 0, "weights", None),
        (0, 7, 3, "", tag),
        (0, 8, 3, "", tag),
        (0, 9, 3, "", tag),
    ];
    assert_eq!(notes, expected);
    assert_eq!(file.traces[0][6].action, Action::Annotate);
}

#[test]
fn pinned_memory_is_kept_apart_from_that_of_devices() {
    use BlockState::{ActiveAllocated, ActivePendingFree, Inactive};
    let file = form("release_2_14");
    assert_eq!((file.segments.len(), file.traces.len(), file.traces[0].len()), (2, 1, 7));
    let pinned = file.pinned.unwrap();
    let states: Vec<_> =
        pinned.segments.iter().map(|it| (it.device, it.total_size, it.blocks[0].state)).collect();
    let host = DeviceId::HOST;
    assert_eq!(
        states,
        [(host, 4 * MIB, Inactive), (host, 512, ActiveAllocated), (host, 1024, ActivePendingFree)]
    );
    assert_eq!((pinned.trace.len(), pinned.trace[8].action), (9, Action::FreeRequested));
}

/// What PyTorch itself wrote, over a CUDA runtime that computes nothing (`shapes.py` there).
#[test]
fn real_files_of_each_release_are_read_to_the_last_key() {
    for (release, pool_id, settings, host) in [
        ("2.11.0", false, false, false),
        ("2.12.0", true, false, false),
        ("2.12.1", true, false, false),
        ("2.13.0", true, true, false),
        ("2.14.1", true, true, true),
        ("2.15.0", true, true, true),
    ] {
        let file = open(&folder().join(format!("pytorch_{release}.pickle"))).unwrap();
        let found = file.settings.as_ref().unwrap();
        assert!(file.keys.compile_context && file.keys.user_metadata, "{release}");
        assert_eq!(file.keys.pool_id, pool_id, "{release}");
        assert_eq!(found.max_round_threshold, settings.then_some(-1), "{release}");
        assert!(file.skipped_actions.is_empty(), "{release}");
        assert_eq!(file.pinned.is_some(), host, "{release}");
        let annotated = file.traces[0].iter().filter(|it| it.action == Action::Annotate).count();
        assert_eq!(annotated, usize::from(host), "{release}");
        if let Some(pinned) = &file.pinned {
            let sizes: Vec<_> = pinned.segments.iter().map(|it| it.total_size).collect();
            assert!(sizes.contains(&(4 * MIB)) && sizes.contains(&512), "{release}: {sizes:?}");
            // Two blocks obtained and handed out, one of them given back.
            assert_eq!(pinned.trace.len(), 6, "{release}");
        }
    }
}

#[test]
fn files_packed_in_parts_are_read_as_one() {
    let plain = form("release_2_6");
    for name in ["packed.pickle.gz", "parts.pickle.gz", "packed.pickle.xz", "parts.pickle.xz"] {
        let file = open(&folder().join(name)).unwrap();
        assert_eq!(file, plain, "{name}");
        assert_eq!(file.trailing, 0, "{name}");
    }
}

#[test]
fn the_first_of_several_snapshots_in_a_file_is_read_and_the_rest_counted() {
    let read = |name: &str| std::fs::read(folder().join(name)).unwrap();
    let (first, second) = (read("state_only.p4.pickle"), read("later.p4.pickle"));
    let file = parse(&[&*first, &*second].concat()).unwrap();
    assert_eq!(file, form("state_only"));
    assert_eq!(file.trailing, second.len() as u64);
}

#[test]
fn the_files_are_what_the_script_makes() {
    let program = "
import os, runpy, shutil, sys
shutil.copy(os.path.join(sys.argv[1], 'make.py'), sys.argv[2])
runpy.run_path(os.path.join(sys.argv[2], 'make.py'))";
    let made = tempfile::tempdir().unwrap();
    python(program, &[&folder(), made.path()]);
    let mut files = 0;
    for entry in std::fs::read_dir(folder()).unwrap() {
        let kept = entry.unwrap().path();
        let again = made.path().join(kept.file_name().unwrap());
        let is_made = again.exists();
        if is_made && kept.to_str().unwrap().ends_with(".pickle") {
            assert_eq!(std::fs::read(&kept).unwrap(), std::fs::read(again).unwrap(), "{kept:?}");
            files += 1;
        }
    }
    assert_eq!(files, 28 + 32);
}
