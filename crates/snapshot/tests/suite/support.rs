//! Python as the judge: writes pickles, and says what is in one.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use tonnage_events::{DeviceId, SnapshotSegment, StackId, TraceEntry};
use tonnage_snapshot::{SnapshotFile, Stage};

/// The directory of the recordings.
pub(crate) fn traces() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/traces")
}

/// What a Python program prints.
///
/// # Panics
///
/// If it fails, or there is no `python3`: these tests need one.
pub(crate) fn python(program: &str, arguments: &[&Path]) -> Vec<u8> {
    let output =
        Command::new("python3").args(["-c", program]).args(arguments).output().expect(
            "these tests need `python3`: install it (Debian: apt-get install python3-minimal)",
        );
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}\n{program}");
    output.stdout
}

/// Defines `normal(snapshot)`, which gives what [`normal`] gives.
pub(crate) const NORMAL: &str = r#"
import json, pickle, sys

def frames(f):
    return [[x['name'], x['filename'], x.get('line', 0)] for x in f] if f else None

def normal(d):
    if isinstance(d, list):
        d = {'segments': d}
    settings = d.get('allocator_settings')
    def segments(l):
        return [[
            s['device'], s['address'], s['total_size'], s['allocated_size'], s['active_size'],
            s['requested_size'], s['stream'], s['segment_type'],
            list(s.get('segment_pool_id', (0, 0))), s.get('is_expandable', False),
            frames(s.get('frames')),
            [[b['address'], b['size'], b['requested_size'], b['state'], frames(b.get('frames'))]
             for b in s['blocks']],
        ] for s in l]
    def trace(t):
        return [[e['action'], e['addr'] if 'addr' in e else e['device_free'], e['size'], e['stream'],
                 e.get('time_us', 0), frames(e.get('frames'))] for e in t]
    def notes(device, t):
        said = [[device, i, list(e.get('pool_id', (0, 0))), e.get('user_metadata', ''),
                 e.get('internal_metadata')] for i, e in enumerate(t)]
        return [n for n in said if n[2:] != [[0, 0], '', None]]
    return {
        'segments': segments(d['segments']),
        'traces': [trace(t) for t in d.get('device_traces', [])],
        'pinned': [segments(d.get('host_segments', [])), trace(d.get('host_traces', []))]
                  if 'host_segments' in d or 'host_traces' in d else None,
        'notes': [n for i, t in enumerate(d.get('device_traces', [])) for n in notes(i, t)]
                 + notes(-1, d.get('host_traces', [])),
        'settings': settings and [
            settings.get('PYTORCH_CUDA_ALLOC_CONF') or '', settings.get('max_split_size'),
            settings.get('garbage_collection_threshold'), settings.get('expandable_segments'),
            settings.get('pinned_num_register_threads'),
            settings.get('release_lock_on_cudamalloc'),
            settings.get('pinned_use_cuda_host_register'),
            settings.get('graph_capture_record_stream_reuse'),
            settings.get('max_round_threshold'), settings.get('max_cached_size'),
            [settings['roundup_power2_divisions'][str(1 << i)] for i in range(16)]
            if 'roundup_power2_divisions' in settings else None,
        ],
        'annotations': [
            [a.get('name', ''), a.get('stage', ''), a.get('device', 0), a.get('time_us', 0)]
            for a in d.get('external_annotations', [])],
    }
"#;

/// What was read, in a form that Python can write too.
pub(crate) fn normal(file: &SnapshotFile) -> Value {
    let frames = |stack: Option<StackId>| {
        stack.map(|stack| {
            let frames = file.stacks.frames(stack).iter();
            frames
                .map(|frame| json!([*frame.name, *frame.filename, frame.line]))
                .collect::<Vec<_>>()
        })
    };
    let device = |it: DeviceId| if it == DeviceId::HOST { -1 } else { i64::from(it.0) };
    let segment = |it: &SnapshotSegment| {
        let blocks = it.blocks.iter().map(|block| {
            json!([
                block.address.0,
                block.size,
                block.requested_size,
                block.state.name(),
                frames(block.stack)
            ])
        });
        json!([
            device(it.device),
            it.address.0,
            it.total_size,
            it.allocated_size,
            it.active_size,
            it.requested_size,
            it.stream.0,
            it.kind.name(),
            [it.pool.0, it.pool.1],
            it.expandable,
            frames(it.stack),
            blocks.collect::<Vec<_>>()
        ])
    };
    let trace = |trace: &[TraceEntry]| {
        let entries = trace.iter().map(|it| {
            let (action, stack) = (it.action.name(), frames(it.stack));
            json!([action, it.address.0, it.size, it.stream.0, it.time_us, stack])
        });
        entries.collect::<Vec<_>>()
    };
    let notes = file.notes.iter().map(|it| {
        let (pool, internal) = ([it.pool.0, it.pool.1], it.internal_metadata.as_deref());
        json!([device(it.device), it.entry, pool, *it.user_metadata, internal])
    });
    let settings = file.settings.as_ref().map(|it| {
        json!([
            it.conf,
            it.max_split_size,
            it.garbage_collection_threshold,
            it.expandable_segments,
            it.pinned_num_register_threads,
            it.release_lock_on_cudamalloc,
            it.pinned_use_cuda_host_register,
            it.graph_capture_record_stream_reuse,
            it.max_round_threshold,
            it.max_cached_size,
            it.roundup_power2_divisions
        ])
    });
    let annotations = file.annotations.iter().map(|it| {
        let stage = match &it.stage {
            Stage::Start => "START",
            Stage::End => "END",
            Stage::Other(word) => word,
        };
        json!([*it.name, stage, it.device.0, it.time_us])
    });
    json!({
        "segments": file.segments.iter().map(segment).collect::<Vec<_>>(),
        "traces": file.traces.iter().map(|it| trace(it)).collect::<Vec<_>>(),
        "pinned": file.pinned.as_ref().map(|it| {
            json!([it.segments.iter().map(segment).collect::<Vec<_>>(), trace(&it.trace)])
        }),
        "notes": notes.collect::<Vec<_>>(),
        "settings": settings,
        "annotations": annotations.collect::<Vec<_>>(),
    })
}
