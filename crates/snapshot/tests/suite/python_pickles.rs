//! Pickles that Python writes, of every protocol, give the values that Python put in.

use crate::support::{NORMAL, normal, python};
use serde_json::Value;
use tonnage_events::DeviceId;
use tonnage_snapshot::{SnapshotError, SnapshotFile, open, parse};

/// Defines `entry`, `segment` and `block`, which make the dictionaries of a snapshot.
const MAKE: &str = r#"
def entry(i, **more):
    e = {'action': ['alloc', 'free_requested', 'free_completed'][i % 3],
         'addr': 0x7f0000000000 + 512 * i, 'size': i * 37 % (1 << 33), 'stream': i % 2,
         'time_us': 1794704059916637 + i, 'compile_context': 'N/A', 'user_metadata': ''}
    e.update(more)
    return e

def block(address, size, state='inactive', frames=[]):
    return {'address': address, 'size': size, 'requested_size': size - 1, 'state': state,
            'frames': frames}

def segment(address, blocks, **more):
    s = {'device': 0, 'address': address, 'total_size': sum(b['size'] for b in blocks),
         'allocated_size': 1, 'active_size': 2, 'requested_size': 3, 'stream': 0,
         'segment_type': 'large', 'segment_pool_id': (0, 0), 'is_expandable': False,
         'frames': [], 'blocks': blocks}
    s.update(more)
    return s

def frame(name, line):
    return {'name': name, 'filename': '/src/' + name + '.py', 'line': line}
"#;

/// Has Python run `make`, which sets `d`, and compares what it pickles with what we read, for every
/// protocol and way of pickling. Returns what we read.
fn round_trip(make: &str) -> SnapshotFile {
    let program = format!(
        r"{NORMAL}{MAKE}
import io, pickletools
{make}
d = d
folder = sys.argv[1]
for protocol in range(2, 6):
    plain = pickle.dumps(d, protocol)
    open(f'{{folder}}/{{protocol}}', 'wb').write(plain)
    open(f'{{folder}}/{{protocol}}-optimized', 'wb').write(pickletools.optimize(plain))
    out = io.BytesIO()
    pickle._Pickler(out, protocol).dump(d)
    open(f'{{folder}}/{{protocol}}-python', 'wb').write(out.getvalue())
    out = io.BytesIO()
    fast = pickle.Pickler(out, protocol)
    fast.fast = True
    fast.dump(d)
    open(f'{{folder}}/{{protocol}}-fast', 'wb').write(out.getvalue())
json.dump(normal(d), sys.stdout)
"
    );
    let folder = tempfile::tempdir().unwrap();
    let theirs: Value = serde_json::from_slice(&python(&program, &[folder.path()])).unwrap();
    let mut last = None;
    for protocol in 2..=5 {
        for way in ["", "-optimized", "-python", "-fast"] {
            let file = open(&folder.path().join(format!("{protocol}{way}"))).unwrap();
            assert!(normal(&file) == theirs, "protocol {protocol}{way}:\n{make}");
            last = Some(file);
        }
    }
    last.unwrap()
}

/// The error for what Python pickles of `d`.
fn refused(make: &str) -> SnapshotError {
    let program = format!("{NORMAL}{MAKE}\n{make}\nsys.stdout.buffer.write(pickle.dumps(d, 4))");
    match parse(&python(&program, &[])) {
        Ok(_) => panic!("accepted:\n{make}"),
        Err(error) => error,
    }
}

#[test]
fn batches_of_more_than_a_thousand_entries_come_back_whole() {
    for count in [0, 1, 2, 999, 1000, 1001, 2500] {
        let file = round_trip(&format!(
            "d = {{'segments': [], 'device_traces': [[entry(i) for i in range({count})], []]}}"
        ));
        assert_eq!(file.traces[0].len(), count);
    }
}

#[test]
fn the_traces_of_several_devices_stay_apart() {
    let file = round_trip(
        "d = {'segments': [], 'device_traces':
              [[entry(i) for i in range(n)] for n in [1500, 0, 1, 3000, 2]]}",
    );
    let lens: Vec<usize> = file.traces.iter().map(Vec::len).collect();
    assert_eq!(lens, [1500, 0, 1, 3000, 2]);
}

#[test]
fn things_that_are_shared_are_seen_wherever_they_are_shared() {
    let file = round_trip(
        "f = [frame('a', 1), frame('b', 2)]
g = [f[0], frame('c', 3)]
one = [frame('d', 4)]
e = entry(7, frames=f)
b = [block(0, 512, 'active_allocated', f), block(512, 512, 'active_pending_free', g)]
t = [e, e, entry(8, frames=g), entry(9, frames=list(f)), e, entry(10, frames=[]),
     entry(11, frames=one), entry(12, frames=one), entry(13, frames=[f[1]])]
d = {'segments': [segment(0, b, frames=f), segment(0, b)], 'device_traces': [t, t, t[:2]],
     'external_annotations': []}",
    );
    assert_eq!(file.stacks.len(), 4);
    assert_eq!(file.traces[0], file.traces[1]);
}

#[test]
fn texts_outside_ascii_come_back() {
    let file = round_trip(
        "d = {'segments': [], 'device_traces': [[
    entry(0, frames=[frame('größe_' + 'x' * 300, 1), frame('関数', 2), frame('', 0)]),
    entry(1, frames=[frame('y' * 70000, 5)]),
]], 'external_annotations': [{'name': 'Schritt ✓', 'stage': 'START', 'device': 3, 'time_us': 5}]}",
    );
    assert_eq!(&*file.annotations[0].name, "Schritt ✓");
}

#[test]
fn numbers_of_every_width_come_back() {
    round_trip(
        "d = {'segments': [], 'device_traces': [[
    entry(0, addr=n, size=m, stream=n, time_us=m)
    for n in [0, 1, 255, 256, 65535, 65536, 2**31 - 1, 2**31, 2**32, 2**47, 2**63 - 1, 2**63,
              2**64 - 1]
    for m in [0, 2**40, 2**64 - 1]]]}",
    );
}

#[test]
fn keys_may_be_missing_and_others_may_be_there() {
    let file = round_trip(
        "e = entry(0, extra={'action': 1, 'size': 'x'}, more=[1, None, 2.5, (1, 2, 3), (), -5, 2**100,
                     -2**100, 2**3000, True, {1: [2]}])
for key in ['time_us', 'compile_context', 'user_metadata']:
    del e[key]
oom = {'action': 'oom', 'device_free': 123, 'size': 5, 'stream': 0, 'new': {}}
s = segment(0, [block(0, 512)])
for key in ['frames', 'is_expandable', 'segment_pool_id']:
    del s[key]
del s['blocks'][0]['frames']
s['future'] = {'blocks': 'none'}
d = {'version': 3, 'segments': [s], 'device_traces': [[e, oom]],
     'allocator_settings': {'max_split_size': -1, 'PYTORCH_CUDA_ALLOC_CONF': None, 'new': [1]},
     'external_annotations': [{'time_us': 1, 'device': 0, 'other': (1,)}],
     'later': {str(i): i for i in range(1500)}, 'again': [{'action': []}] * 3}",
    );
    assert!(!file.keys.user_metadata && !file.keys.forward_frames);
}

#[test]
fn bytes_and_sets_under_other_keys_are_skipped() {
    let program = format!(
        "{NORMAL}{MAKE}
more = [b'raw', b'r' * 300, bytearray(b'z'), {{4}}, set(), frozenset([5]), b'x' * 100000]
d = {{'segments': [], 'device_traces': [[entry(i, more=more) for i in range(5)]], 'more': more}}
sys.stdout.buffer.write(pickle.dumps(d, 5))"
    );
    let file = parse(&python(&program, &[])).unwrap();
    assert_eq!(file.traces[0].len(), 5);
}

#[test]
fn settings_and_pools_come_back() {
    let file = round_trip(
        "d = {'segments': [segment(2**21 * i, [block(2**21 * i, 2**21)], segment_pool_id=(0, i),
                       is_expandable=True, segment_type='small', device=i) for i in range(5)],
     'device_traces': [],
     'allocator_settings': {
        'PYTORCH_CUDA_ALLOC_CONF': 'expandable_segments:True', 'max_split_size': 2**27,
        'garbage_collection_threshold': 0.6, 'expandable_segments': True,
        'pinned_num_register_threads': 8, 'release_lock_on_cudamalloc': True,
        'pinned_use_cuda_host_register': False, 'graph_capture_record_stream_reuse': True,
        'roundup_power2_divisions': {str(1 << i): i for i in range(16)}}}",
    );
    assert_eq!(file.settings.unwrap().roundup_power2_divisions.unwrap()[15], 15);
}

#[test]
fn a_bare_list_of_segments_is_a_snapshot_without_traces() {
    let file = round_trip("d = [segment(4096 * i, [block(4096 * i, 4096)]) for i in range(3)]");
    assert_eq!(file.segments.len(), 3);
    assert!(file.traces.is_empty() && file.settings.is_none());
    assert!(round_trip("d = []").segments.is_empty());
}

#[test]
fn entries_of_an_unknown_action_are_counted_and_left_out() {
    let program = format!(
        "{NORMAL}{MAKE}
t = [entry(i) for i in range(10)]
t[3]['action'] = t[7]['action'] = 'segment_split'
t[9]['action'] = 'pool_begin'
d = {{'segments': [], 'device_traces': [t, t[:4]]}}
sys.stdout.buffer.write(pickle.dumps(d, 4))"
    );
    let file = parse(&python(&program, &[])).unwrap();
    let lens: Vec<usize> = file.traces.iter().map(Vec::len).collect();
    assert_eq!(lens, [7, 3]);
    let skipped: Vec<_> = file.skipped_actions.into_iter().collect();
    assert_eq!(skipped, [("pool_begin".to_owned(), 1), ("segment_split".to_owned(), 3)]);
}

#[test]
fn keys_that_tell_the_release_are_noticed() {
    let file = round_trip(
        "d = {'segments': [], 'device_traces': [[entry(0, forward_frames=['a', 'b'])]]}",
    );
    assert!(file.keys.user_metadata && file.keys.forward_frames && file.keys.compile_context);
}

#[test]
fn pools_and_metadata_of_entries_come_back_from_every_protocol() {
    let file = round_trip(
        "p = (0, 2**63)
t = [entry(0, pool_id=(0, 0)), entry(1, pool_id=p), entry(2, pool_id=p, user_metadata='größe'),
     entry(3, pool_id=(300, 70000), internal_metadata=''), entry(4, action='annotate', user_metadata='x')]
t += [entry(i, pool_id=(0, i % 3), user_metadata=str(i % 5) * (i % 5)) for i in range(5, 2500)]
d = {'segments': [], 'device_traces': [t, [], t[:4]], 'host_segments': [segment(0, [block(0, 64)], device=-1)],
     'host_traces': t[1:3]}",
    );
    assert!(file.keys.pool_id && file.keys.user_metadata);
    assert_eq!(file.notes.last().map(|it| (it.device, it.entry)), Some((DeviceId::HOST, 1)));
    assert_eq!(file.pinned.unwrap().segments[0].device, DeviceId::HOST);
}

#[test]
fn metadata_that_is_no_text_is_harmless() {
    let program = format!(
        "{NORMAL}{MAKE}
t = [entry(0, user_metadata=m, internal_metadata=m) for m in [None, 5, [1], b'x', {{}}, {{'a': 'b'}}]]
d = {{'segments': [], 'device_traces': [t], 'host_segments': None, 'host_traces': None}}
sys.stdout.buffer.write(pickle.dumps(d, 4))"
    );
    let file = parse(&python(&program, &[])).unwrap();
    assert_eq!((file.traces[0].len(), file.notes.len()), (6, 0));
    let pinned = file.pinned.unwrap();
    assert!(pinned.segments.is_empty() && pinned.trace.is_empty());
}

#[test]
fn what_is_wrong_is_named_by_its_path() {
    let traces =
        "t = [entry(i) for i in range(1200)]\nd = {'segments': [], 'device_traces': [[], t]}\n";
    let segments = "s = [segment(4096 * i, [block(4096 * i, 4096)]) for i in range(3)]\n\
                    d = {'segments': s, 'device_traces': []}\n";
    for (before, change, path, part) in [
        (traces, "t[1117]['size'] = -5", "device_traces[1][1117].size", "the integer -5"),
        (traces, "t[0]['size'] = 2**64", "device_traces[1][0].size", "more than 64 bits"),
        (traces, "t[0]['size'] = float('nan')", "device_traces[1][0].size", "the float NaN"),
        (traces, "t[0]['size'] = float('inf')", "device_traces[1][0].size", "the float inf"),
        (traces, "t[0]['addr'] = 1.5", "device_traces[1][0].addr", "the float 1.5"),
        (traces, "t[5]['stream'] = True", "device_traces[1][5].stream", "a bool"),
        (traces, "t[5]['action'] = 7", "device_traces[1][5].action", "the integer 7"),
        (traces, "del t[5]['stream']", "device_traces[1][5].stream", "the key is missing"),
        (traces, "t[5] = 3", "device_traces[1][5]", "a number or text"),
        (traces, "t[1003] = {'a': 1}", "device_traces[1][1003]", "a dictionary of another kind"),
        (traces, "d['device_traces'] = t", "device_traces[0]", "a list of trace entries"),
        (traces, "d['device_traces'] = 5", "device_traces", "the integer 5"),
        (
            traces,
            "t[8]['frames'] = [frame('a', 1), frame('b', 'x')]",
            "device_traces[1][8].frames[1].line",
            "the text \"x\"",
        ),
        (traces, "t[8]['frames'] = [frame('a', 1), 5]", "device_traces[1][8].frames", "at index 1"),
        (traces, "t[8]['frames'] = {}", "device_traces[1][8].frames", "a dictionary"),
        (segments, "s[2]['blocks'][0]['state'] = 'odd'", "segments[2].blocks[0].state", "\"odd\""),
        (segments, "s[1]['segment_type'] = 'huge'", "segments[1].segment_type", "\"huge\""),
        (segments, "s[1]['segment_pool_id'] = (-1, 0)", "segments[1].segment_pool_id", "a tuple"),
        (segments, "s[1]['device'] = 2**32", "segments[1].device", "4294967296"),
        (segments, "s[1]['device'] = 2**32 - 1", "segments[1].device", "4294967295"),
        (segments, "s[1]['device'] = -1", "segments[1].device", "the integer -1"),
        (segments, "s[1]['device'] = -2", "segments[1].device", "the integer -2"),
        (segments, "d['host_segments'] = 5", "host_segments", "the integer 5"),
        (segments, "d['host_segments'] = [{'a': 1}]", "host_segments[0]", "another kind"),
        (segments, "d['host_segments'] = [entry(0)]", "host_segments", "trace entries"),
        (traces, "d['host_traces'] = [t]", "host_traces", "a list of trace entries"),
        (traces, "d['host_traces'] = [dict(t[0], size=-1)]", "host_traces[0].size", "-1"),
        (traces, "t[7]['pool_id'] = 5", "device_traces[1][7].pool_id", "the integer 5"),
        (traces, "t[7]['pool_id'] = (0, -1)", "device_traces[1][7].pool_id", "a tuple"),
        (traces, "t[7]['pool_id'] = (0, 1, 2)", "device_traces[1][7].pool_id", "a tuple"),
        (
            segments,
            "d['allocator_settings'] = {'max_cached_size': 1.5}",
            "allocator_settings.max_cached_size",
            "1.5",
        ),
        (segments, "del s[1]['total_size']", "segments[1].total_size", "missing"),
        (segments, "s[0]['blocks'] = [1]", "segments[0].blocks", "a number or text at index 0"),
        (
            segments,
            "d = s; del s[1]['blocks'][0]['size']; s[1]['blocks'][0]['address'] = 0",
            "[1].blocks",
            "at index 0",
        ),
        (segments, "d = {}", "top level", "no such key"),
        (segments, "d = 5", "top level", "the integer 5"),
        (
            segments,
            "d['allocator_settings'] = {'max_split_size': 'x'}",
            "allocator_settings.max_split_size",
            "\"x\"",
        ),
        (
            segments,
            "d['external_annotations'] = [{'time_us': -1, 'device': 0}]",
            "external_annotations[0].time_us",
            "-1",
        ),
    ] {
        let error = refused(&format!("{before}{change}"));
        let text = error.to_string();
        let SnapshotError::Shape { path: found, .. } = error else {
            panic!("{change}: {text}");
        };
        assert_eq!(found, path, "{change}: {text}");
        assert!(text.contains(part), "{change}: {text}");
    }
}
