//! Every recording of PyTorch's in the repository is read, and holds what was recorded beside it.

use std::fs::{self, File};
use std::path::PathBuf;

use crate::support::{NORMAL, normal, python, traces};
use serde_json::Value;
use tonnage_snapshot::open;

/// The recordings, with what the recorder wrote beside each.
fn recordings() -> Vec<(PathBuf, Value)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(traces()).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if let Some(stem) = name.strip_suffix(".pickle.zst") {
            let beside = File::open(path.with_file_name(format!("{stem}.json"))).unwrap();
            found.push((path, serde_json::from_reader(beside).unwrap()));
        }
    }
    found.sort_by(|a, b| a.0.cmp(&b.0));
    found
}

#[test]
fn every_recording_holds_the_events_and_bytes_that_pytorch_counted() {
    let recordings = recordings();
    assert!(recordings.len() >= 68, "only {} recordings", recordings.len());
    for (path, beside) in recordings {
        let file = open(&path).unwrap();
        let name = path.display();
        let entries: usize = file.traces.iter().map(Vec::len).sum();
        assert_eq!(entries as u64, beside["events"].as_u64().unwrap(), "{name}");
        assert!(file.skipped_actions.is_empty(), "{name}");
        assert!(file.keys.user_metadata && file.keys.compile_context, "{name}");

        let stats = |key: &str| beside["stats"][key].as_u64().unwrap_or(0);
        let total = |each: fn(&tonnage_events::SnapshotSegment) -> u64| {
            file.segments.iter().map(each).sum::<u64>()
        };
        assert_eq!(total(|it| it.total_size), stats("reserved_bytes.all.current"), "{name}");
        assert_eq!(total(|it| it.allocated_size), stats("allocated_bytes.all.current"), "{name}");
        assert_eq!(total(|it| it.active_size), stats("active_bytes.all.current"), "{name}");
        assert_eq!(total(|it| it.requested_size), stats("requested_bytes.all.current"), "{name}");
        let expandable = file.segments.iter().any(|it| it.expandable);
        if !expandable {
            assert_eq!(file.segments.len() as u64, stats("segment.all.current"), "{name}");
        }
        for segment in &file.segments {
            let blocks: u64 = segment.blocks.iter().map(|block| block.size).sum();
            assert_eq!(blocks, segment.total_size, "{name}, segment {}", segment.address);
        }
        let settings = file.settings.unwrap();
        assert_eq!(settings.conf, beside["conf"].as_str().unwrap(), "{name}");
    }
}

#[test]
fn a_recording_with_stacks_keeps_each_stack_once() {
    let file = open(&traces().join("mlp_seed.default.stacks.pickle.zst")).unwrap();
    // PyTorch writes an empty list where no Python code was running.
    let with_stack = file.traces[0].iter().filter_map(|entry| entry.stack).count();
    assert!(with_stack > 300 && with_stack < file.traces[0].len(), "{with_stack}");
    assert!(file.stacks.len() > 10 && file.stacks.len() < with_stack, "{}", file.stacks.len());
    assert_eq!(file.annotations.len(), 20);
    let first = file.traces[0].iter().find_map(|entry| entry.stack).unwrap();
    let innermost = &file.stacks.frames(first)[0];
    assert!(innermost.filename.ends_with(".py") && innermost.line > 0, "{innermost:?}");
}

#[test]
fn python_finds_the_same_values_in_a_recording() {
    let program =
        format!("{NORMAL}\njson.dump(normal(pickle.load(open(sys.argv[1], 'rb'))), sys.stdout)");
    for name in
        ["mlp_seed.default.stacks", "cudagraph.default", "multistream.expandable", "resnet50.tight"]
    {
        let path = traces().join(format!("{name}.pickle.zst"));
        let plain = tempfile::NamedTempFile::new().unwrap();
        zstd::stream::copy_decode(File::open(&path).unwrap(), plain.as_file()).unwrap();
        let theirs: Value = serde_json::from_slice(&python(&program, &[plain.path()])).unwrap();
        assert!(normal(&open(&path).unwrap()) == theirs, "{name}, compressed");
        assert!(normal(&open(plain.path()).unwrap()) == theirs, "{name}, plain");
    }
}
