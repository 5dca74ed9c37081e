//! What an allocator recorded of itself, dumped, read and replayed, is what happened.

use tonnage::engine::{RecordOptions, StackDepth};
use tonnage::events::Action;
use tonnage::memory::{Device, DeviceOptions, snapshot_file};
use tonnage::replay::recording::{RecordingOptions, replay_recording};
use tonnage::snapshot::SnapshotFile;
use tonnage::{Config, DeviceId, Release, snapshot};

const MIB: u64 = 1 << 20;

/// Configurations that lead to different histories.
const CONFS: [&str; 5] = [
    "",
    "expandable_segments:True",
    "max_split_size_mb:32",
    "roundup_power2_divisions:[256:1,512:2,1024:4,>:8]",
    "garbage_collection_threshold:0.5,max_split_size_mb:64",
];

fn device(conf: &str, release: Release, id: u32) -> Device {
    let config = Config::parse(conf, release).unwrap();
    let options = DeviceOptions { config, id: DeviceId(id), ..DeviceOptions::default() };
    Device::dry_with("512 MiB", options).unwrap()
}

/// Allocates and frees by a fixed rule: small and large, on two streams, until memory is short.
fn work(device: &Device) {
    let stream = device.create_stream().unwrap();
    let mut live = Vec::new();
    let mut state = 1_u64;
    for step in 0..600 {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let random = state >> 33;
        if random % 5 < 3 {
            let bytes = if random % 7 < 4 { random % 5000 + 1 } else { random % (24 * MIB) + MIB };
            let asked = match step % 9 {
                0 => device.allocate_on(bytes, stream.id()),
                _ => device.allocate(bytes),
            };
            match asked {
                Ok(block) => live.push(block),
                Err(_) => live.truncate(live.len() / 2),
            }
        } else if !live.is_empty() {
            let block = live.swap_remove(random as usize % live.len());
            if step % 4 == 0 {
                block.record_stream(stream.id());
            }
        }
        if step % 250 == 249 {
            device.memory().empty_cache().unwrap();
        }
    }
    std::mem::forget(live);
}

/// Records `work`, and returns what the device says and what is read from the dump.
fn dumped(device: &Device, name: &str, options: RecordOptions) -> (SnapshotFile, SnapshotFile) {
    device.memory().record_history(Some(options));
    work(device);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    let kept = snapshot_file(device.memory().snapshot(), device.id());
    device.memory().dump_snapshot(&path).unwrap();
    let mut read = snapshot::open(&path).unwrap();
    // The second snapshot shows that there was a first.
    let noted = read.traces[device.id().0 as usize].pop().unwrap();
    assert_eq!(noted.action, Action::Snapshot);
    (kept, read)
}

#[test]
fn a_dump_reads_as_what_the_device_recorded() {
    for (conf, name) in CONFS.into_iter().zip(["a.pickle", "b.pickle.zst", "c.pickle.gz", "d", "e"])
    {
        let (kept, read) =
            dumped(&device(conf, Release::default(), 3), name, RecordOptions::default());
        assert_eq!(kept.traces.len(), 4);
        assert!(kept.traces[3].len() > 800, "{conf}: {}", kept.traces[3].len());
        assert!(kept.segments.iter().all(|segment| segment.device == DeviceId(3)));
        assert!(!kept.stacks.is_empty());
        let has = |action| kept.traces[3].iter().any(|entry| entry.action == action);
        assert!(has(Action::Oom) && has(Action::FreeCompleted), "{conf}");
        assert!(kept == read, "{conf}");
    }
    let options = RecordOptions { stacks: StackDepth::Backtrace, ..RecordOptions::default() };
    let (kept, read) = dumped(&device("", Release::default(), 0), "f.pickle", options);
    assert!(kept == read, "backtraces");
}

#[test]
fn a_dump_replays_exactly() {
    for release in [Release::V2_9, Release::V2_11] {
        for conf in CONFS {
            let device = device(conf, release, 1);
            let (_, read) = dumped(&device, "dump.pickle", RecordOptions::default());
            let total = Some(512 * MIB);
            let options = RecordingOptions { total, ..RecordingOptions::default() };
            let outcome = replay_recording(&read, &options).unwrap();
            assert!(outcome.exact(), "{release}, {conf}: {:?}", outcome.difference);
            assert_eq!((outcome.release, outcome.device), (release, 1), "{conf}");
            let stats = device.memory().stats();
            assert_eq!(outcome.stats.allocated_bytes, stats.allocated_bytes, "{release}, {conf}");
            assert_eq!(outcome.stats.reserved_bytes, stats.reserved_bytes, "{release}, {conf}");
        }
    }
}

#[test]
fn a_device_without_history_dumps_its_state() {
    let device = device("", Release::default(), 0);
    let block = device.allocate(1000).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.pickle");
    device.memory().dump_snapshot(&path).unwrap();
    let file = snapshot::open(&path).unwrap();
    assert_eq!(file.segments[0].requested_size, block.requested());
    assert!(file.traces[0].is_empty());
}
