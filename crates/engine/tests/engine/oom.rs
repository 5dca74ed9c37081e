//! Out of memory: what is tried before, what the report says, and what works afterwards.

use std::path::Path;
use std::sync::{Arc, Mutex};

use serde_json::Value;
use tonnage_device::{Device, Dry};
use tonnage_engine::{
    AllocError, Capture, Config, DeviceId, Engine, OomNote, OutOfMemory, PoolId, PoolKind, Release,
    StreamFilter, StreamId,
};
use tonnage_events::Bytes;

const MIB: u64 = 1 << 20;
const TOTAL: u64 = 8 << 30;
const S0: StreamId = StreamId(0);
const S1: StreamId = StreamId(1);
const S2: StreamId = StreamId(2);
const P: PoolId = PoolId(0, 1);

fn engine(capacity: u64) -> Engine<Dry> {
    engine_with(capacity, "")
}

fn engine_with(capacity: u64, conf: &str) -> Engine<Dry> {
    let config = Config::parse(conf, Release::default()).unwrap();
    Engine::new(Dry::new(TOTAL).with_capacity(capacity), config)
}

/// A request that fails for want of memory.
#[track_caller]
fn fail<D: Device>(engine: &mut Engine<D>, bytes: u64, stream: StreamId) -> OutOfMemory {
    match engine.allocate(bytes, stream) {
        Err(AllocError::OutOfMemory(report)) => *report,
        other => panic!("{bytes} bytes should not fit: {other:?}"),
    }
}

#[test]
fn more_than_the_figures_can_count_is_more_than_there_is() {
    for conf in ["", "expandable_segments:True"] {
        let config = Config::parse(conf, Release::default()).unwrap();
        // A range holds the request, and the device has none of its pages.
        let (total, capacity) =
            if conf.is_empty() { (u64::MAX, u64::MAX) } else { (1 << 60, 1 << 30) };
        let mut engine = Engine::new(Dry::new(total).with_capacity(capacity), config);
        let bytes = (1 << 60) - 1;
        let served = (0..20).take_while(|_| engine.allocate(bytes, S0).is_ok()).count();
        assert_eq!(served, if conf.is_empty() { 4 } else { 0 }, "{conf}");
        let reserved = engine.stats().reserved_bytes.all;
        assert_eq!(
            (reserved.current, reserved.peak),
            (served as i64 * (1 << 60), reserved.current)
        );
        fail(&mut engine, bytes, S0);
        assert_eq!(engine.stats().num_ooms, 2);
    }
}

#[track_caller]
fn assert_says(report: &OutOfMemory, words: &str) {
    let text = report.to_string();
    assert!(text.contains(words), "`{words}` is not in: {text}");
}

#[track_caller]
fn assert_does_not_say(report: &OutOfMemory, words: &str) {
    let text = report.to_string();
    assert!(!text.contains(words), "`{words}` is in: {text}");
}

#[test]
fn the_report_has_every_figure_of_the_moment() {
    let mut engine = engine(100 * MIB);
    engine.device_mut().hold_events();
    engine.set_limit(Some(99 * MIB));
    // 12 MiB that wait for two streams, 20 MiB of which 5 are free, 2 MiB of which 1 is free.
    let pending = engine.allocate(12 * MIB, S0).unwrap();
    engine.record_stream(pending.address, S2).unwrap();
    engine.record_stream(pending.address, S1).unwrap();
    engine.free(&pending).unwrap();
    engine.allocate(15 * MIB / 2, S1).unwrap();
    engine.allocate(15 * MIB / 2, S1).unwrap();
    engine.allocate(MIB, S0).unwrap();
    // In the private pool, 20 MiB with 3 MiB in use.
    engine.begin_allocate_to_pool(P, StreamFilter::Any).unwrap();
    engine.begin_capture(Capture::Everywhere);
    engine.allocate(3 * MIB, S0).unwrap();
    let report = fail(&mut engine, 50_000_001, S0);
    assert_eq!((report.device, report.stream, report.pool), (DeviceId(0), S0, P));
    assert_eq!(report.kind, PoolKind::Large);
    assert_eq!(
        (report.requested, report.rounded, report.segment_size),
        (50_000_001, 50_000_384, 50_331_648)
    );
    assert_eq!((report.device_total, report.device_free), (TOTAL, Some(46 * MIB)));
    assert_eq!(report.limit, Some(99 * MIB));
    assert_eq!((report.allocated, report.pending, report.reserved), (19 * MIB, 12 * MIB, 54 * MIB));
    assert_eq!((report.private_cached, report.largest_own), (17 * MIB, Some(17 * MIB)));
    let largest = report.largest_cached.as_ref().unwrap();
    assert_eq!(
        (largest.size, largest.pool, largest.kind, largest.stream),
        (17 * MIB, P, PoolKind::Large, S0)
    );
    let pending = report.largest_pending.as_ref().unwrap();
    assert_eq!((pending.size, pending.pool, pending.stream), (12 * MIB, PoolId::DEFAULT, S0));
    assert_eq!(pending.waits_for, [S1, S2]);
    assert_eq!(report.cached(), 23 * MIB);
    assert_eq!((engine.stats().num_ooms, engine.stats().num_alloc_retries), (1, 0));
}

#[test]
fn a_failure_that_nobody_wants_explained_has_the_request_and_the_sums() {
    let mut engine = engine(64 * MIB);
    let _held = engine.allocate(40 * MIB, S0).unwrap();
    let explained = fail(&mut engine, 40 * MIB, S0);
    engine.explain_failures(false);
    let report = fail(&mut engine, 40 * MIB, S0);
    assert_eq!((report.requested, report.reserved), (explained.requested, explained.reserved));
    assert_eq!(explained.verdict.requested, 40 * MIB);
    assert_eq!((report.verdict.requested, report.largest_cached), (0, None));
}

#[test]
fn the_message_answers_the_questions_in_order() {
    let mut engine = engine(40 * MIB);
    engine.set_limit(Some(30 * MIB));
    engine.allocate(5 * MIB, S0).unwrap();
    let report = fail(&mut engine, 25_000_000, S0);
    assert_eq!(
        report.to_string(),
        "out of memory: 23.84 MiB were asked for on stream 0 of device 0, 24.00 MiB with rounding \
         to a segment. The device has 8.00 GiB, 20.00 MiB free; 30.00 MiB are allowed. Reserved \
         are 20.00 MiB: 5.00 MiB in use, 0 bytes pending, 15.00 MiB cached. The largest free block \
         has 15.00 MiB (large pool (0, 0), stream 0): what is free lies in pieces too small for \
         23.84 MiB.\n\
         Verdict: pinned_segment: 15.00 MiB are free in segments that one live block keeps.\n  \
         of no use: pinned_segment 15.00 MiB"
    );
    assert_eq!(AllocError::OutOfMemory(Box::new(report.clone())).to_string(), report.to_string());
}

#[test]
fn an_empty_cache_is_said_to_be_empty() {
    let mut engine = engine(40 * MIB);
    let report = fail(&mut engine, 41 * MIB, S0);
    assert_says(&report, "No memory is cached.");
    assert_does_not_say(&report, "expandable_segments");
    assert_eq!((report.largest_own, report.largest_cached), (None, None));
}

/// Two segments of which every other 5 MiB are free.
fn in_pieces(conf: &str) -> Engine<Dry> {
    let mut engine = engine_with(40 * MIB, conf);
    let blocks = [(); 8].map(|()| engine.allocate(5 * MIB, S0).unwrap());
    for block in blocks.iter().step_by(2) {
        engine.free(block).unwrap();
    }
    engine
}

#[test]
fn pieces_that_together_would_do_suggest_expandable_segments() {
    let mut engine = in_pieces("");
    let report = fail(&mut engine, 12 * MIB, S0);
    assert_says(&report, "20.00 MiB cached.");
    assert_says(&report, "5.00 MiB (large pool (0, 0), stream 0): what is free lies in pieces");
    assert_says(&report, "`expandable_segments:True` may help, which was not tried.");
    let report = fail(&mut engine, 30 * MIB, S0);
    assert_does_not_say(&report, "expandable_segments");
}

#[test]
fn pieces_of_another_stream_suggest_nothing() {
    let mut engine = engine(40 * MIB);
    let blocks = [(); 8].map(|()| engine.allocate(5 * MIB, S1).unwrap());
    for block in blocks.iter().step_by(2) {
        engine.free(block).unwrap();
    }
    let report = fail(&mut engine, 12 * MIB, S0);
    assert!(report.cached() >= report.rounded);
    assert_does_not_say(&report, "expandable_segments");
}

#[test]
fn who_knows_the_history_is_not_told_what_may_help() {
    #[derive(Debug)]
    struct Tried;
    impl std::fmt::Display for Tried {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("Verdict: none of 32 settings serves it.")
        }
    }
    impl OomNote for Tried {
        fn is_verdict(&self) -> bool {
            true
        }
    }
    let mut report = fail(&mut in_pieces(""), 12 * MIB, S0);
    report.notes.push(Tried);
    assert_says(&report, "none of 32 settings serves it");
    assert_does_not_say(&report, "expandable_segments");
}

#[test]
fn need_is_said_only_of_more_than_can_be_had() {
    let mut short = engine(40 * MIB);
    short.allocate(30 * MIB, S0).unwrap();
    let report = fail(&mut short, 20 * MIB, S0);
    assert_eq!((report.room(), report.verdict.lacking), (40 * MIB, 10 * MIB));
    assert_says(&report, "Verdict: need: 30.00 MiB were asked for and are live; with this request");
    assert_says(&report, "10.00 MiB more than can be had, whatever the settings.");
    // 5 MiB get a segment of 20 MiB, which is not there; segments that grow in place would do.
    let mut tight = engine(21 * MIB);
    tight.allocate(12 * MIB, S0).unwrap();
    let report = fail(&mut tight, 5 * MIB, S0);
    assert_eq!(report.verdict.lacking, 0);
    assert_says(&report, "Verdict: unknown: 12.00 MiB were asked for and are live");
    assert_does_not_say(&report, "need");
    let mut grows = engine_with(21 * MIB, "expandable_segments:True");
    grows.allocate(12 * MIB, S0).unwrap();
    grows.allocate(5 * MIB, S0).unwrap();
    // A limit is room too.
    let mut limited = engine(40 * MIB);
    limited.set_limit(Some(32 * MIB));
    limited.allocate(30 * MIB, S0).unwrap();
    assert_eq!(fail(&mut limited, 4 * MIB, S0).verdict.lacking, 2 * MIB);
}

#[test]
fn what_is_on_already_is_not_suggested() {
    let mut engine = in_pieces("expandable_segments:True");
    let report = fail(&mut engine, 12 * MIB, S0);
    assert!(report.cached() >= report.rounded);
    assert_says(&report, "pieces too small for 12.00 MiB");
    assert_does_not_say(&report, "`expandable_segments:True` may help");
}

#[test]
fn a_piece_of_another_pool_is_said_to_be_anothers() {
    let mut engine = engine(40 * MIB);
    engine.begin_allocate_to_pool(P, StreamFilter::Any).unwrap();
    let block = engine.allocate(30 * MIB, S0).unwrap();
    engine.free(&block).unwrap();
    engine.end_allocate_to_pool(P).unwrap();
    let report = fail(&mut engine, 25 * MIB, S0);
    assert_says(
        &report,
        "30.00 MiB (large pool (0, 1), stream 0): it belongs to another pool than",
    );
    assert_says(&report, "another pool than large pool (0, 0).");
    assert_eq!((report.largest_own, report.private_cached), (None, 30 * MIB));
}

#[test]
fn a_piece_of_the_pools_other_half_is_said_to_be_anothers() {
    let mut engine = engine(20 * MIB);
    engine.allocate(5 * MIB, S0).unwrap();
    let report = fail(&mut engine, 100, S0);
    assert_says(
        &report,
        "15.00 MiB (large pool (0, 0), stream 0): it belongs to another pool than",
    );
    assert_says(&report, "another pool than small pool (0, 0).");
    assert_eq!((report.kind, report.largest_own), (PoolKind::Small, None));
}

#[test]
fn a_piece_of_another_stream_is_said_to_be_anothers() {
    let mut engine = engine(30 * MIB);
    engine.allocate(5 * MIB, S1).unwrap();
    let report = fail(&mut engine, 12 * MIB, S0);
    assert_says(
        &report,
        "15.00 MiB (large pool (0, 0), stream 1): it belongs to another stream than 0.",
    );
    assert_eq!(report.largest_own, None);
    // The same bytes on the right stream are there.
    engine.allocate(12 * MIB, S1).unwrap();
}

#[test]
fn one_piece_that_would_do_elsewhere_is_not_called_too_many_pieces() {
    let mut engine = engine(30 * MIB);
    engine.allocate(5 * MIB, S1).unwrap();
    let report = fail(&mut engine, 12 * MIB, S0);
    assert_does_not_say(&report, "only not in one piece");
}

#[test]
fn a_piece_kept_by_max_split_is_said_to_be_kept() {
    let mut engine = engine(100 * MIB);
    let block = engine.allocate(100 * MIB, S0).unwrap();
    engine.free(&block).unwrap();
    engine.allocate(10 * MIB, S0).unwrap();
    engine.configure("max_split_size_mb:40").unwrap();
    let report = fail(&mut engine, 30 * MIB, S0);
    assert_says(&report, "90.00 MiB (large pool (0, 0), stream 0): `max_split_size_mb` keeps it");
    assert_eq!(report.largest_own, Some(90 * MIB));
    engine.configure("").unwrap();
    engine.allocate(30 * MIB, S0).unwrap();
}

#[test]
fn an_expandable_piece_passed_over_is_not_blamed_on_max_split() {
    let mut engine = engine_with(40 * MIB, "expandable_segments:True");
    engine.allocate(5 * MIB, S0).unwrap();
    engine.configure("expandable_segments:False").unwrap();
    engine.allocate(20 * MIB, S0).unwrap();
    let report = fail(&mut engine, 12 * MIB, S0);
    assert_eq!(report.largest_own, Some(15 * MIB));
    assert_does_not_say(&report, "max_split_size_mb");
}

#[test]
fn a_pending_piece_names_the_streams_it_waits_for() {
    let mut engine = engine(20 * MIB);
    engine.device_mut().hold_events();
    let block = engine.allocate(20 * MIB, S0).unwrap();
    engine.record_stream(block.address, S2).unwrap();
    engine.record_stream(block.address, S1).unwrap();
    engine.free(&block).unwrap();
    // In a capture, events are not waited for.
    engine.begin_allocate_to_pool(P, StreamFilter::Any).unwrap();
    engine.begin_capture(Capture::Everywhere);
    let report = fail(&mut engine, 20 * MIB, S0);
    assert_says(&report, "0 bytes in use, 20.00 MiB pending, 0 bytes cached.");
    assert_says(&report, "A freed block of 20.00 MiB of stream 0 still waits for stream 1, 2.");
    engine.end_capture().unwrap();
    engine.end_allocate_to_pool(P).unwrap();
    engine.allocate(20 * MIB, S0).unwrap();
}

#[test]
fn a_block_freed_during_a_capture_is_pending_too() {
    let mut engine = engine(20 * MIB);
    engine.begin_capture(Capture::Everywhere);
    engine.begin_allocate_to_pool(P, StreamFilter::Any).unwrap();
    let block = engine.allocate(20 * MIB, S0).unwrap();
    engine.record_stream(block.address, S2).unwrap();
    engine.free(&block).unwrap();
    let report = fail(&mut engine, 20 * MIB, S0);
    let pending = report.largest_pending.unwrap();
    assert_eq!((pending.size, pending.pool, pending.stream), (20 * MIB, P, S0));
    assert_eq!(pending.waits_for, [S2]);
}

/// The real messages, with what else is known about their devices.
fn recorded_failures() -> Vec<(String, Value)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/traces");
    let mut files: Vec<_> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let tight = files.iter().filter(|path| path.to_str().unwrap().ends_with(".tight.json"));
    let read = tight.map(|path| std::fs::read_to_string(path).unwrap());
    let values = read.map(|text| serde_json::from_str::<Value>(&text).unwrap());
    values
        .filter_map(|value| value["error"].as_str().map(|it| (it.to_owned(), value.clone())))
        .collect()
}

/// The bytes of a figure such as `193.93 MiB`.
fn bytes_of(figure: &str) -> u64 {
    let (number, unit) = figure.split_once(' ').unwrap();
    let scale = match unit {
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        _ => panic!("{figure}"),
    };
    (number.parse::<f64>().unwrap() * f64::from(scale)).round() as u64
}

fn between<'a>(text: &'a str, before: &str, after: &str) -> Option<&'a str> {
    let start = text.find(before)? + before.len();
    Some(&text[start..start + text[start..].find(after)?])
}

/// A real message without what only NVML knows (the processes on the device) and without the hint
/// at its end.
fn without_processes(message: &str) -> String {
    let end = message.find(" If reserved but unallocated").unwrap();
    let mut kept = String::new();
    for sentence in message[..end].split_inclusive(". ") {
        // "… in use. 193.93 MiB allowed; …": processes fill whole sentences.
        let of_a_process =
            sentence.starts_with("Process ") || sentence.starts_with("Including non-PyTorch");
        if !of_a_process {
            kept += sentence;
        }
    }
    kept
}

/// A report with the figures of a real message.
fn report_of(message: &str, file: &Value) -> OutOfMemory {
    let figure = |before, after| between(message, before, after).map(bytes_of);
    let private = figure("with ", " allocated in private pools").unwrap_or(0);
    let allocated = figure("Of the allocated memory ", " is allocated").unwrap() - private;
    let unallocated = figure("and ", " is reserved by PyTorch").unwrap();
    let segment_size = figure("Tried to allocate ", ". GPU").unwrap();
    let mut report = fail(&mut engine(0), MIB, S0);
    report.segment_size = segment_size;
    report.device_total = file["total"].as_u64().unwrap();
    report.device_free = figure("of which ", " is free");
    report.limit = file["limit"].as_u64();
    report.allocated = allocated;
    report.private_cached = private;
    report.reserved = allocated + private + unallocated;
    report
}

#[test]
fn pytorchs_message_comes_out_word_for_word() {
    let failures = recorded_failures();
    assert_eq!(failures.len(), 6);
    assert!(failures.iter().any(|(message, _)| message.contains("private pools")));
    for (message, file) in failures {
        let report = report_of(&message, &file);
        assert_eq!(report.pytorch_message(), without_processes(&message));
    }
}

#[test]
fn pytorchs_message_comes_out_of_the_same_state() {
    let failures = recorded_failures();
    let (message, file) = failures
        .into_iter()
        .find(|(_, file)| file["workload"] == "mlp_seed")
        .expect("a recording that failed");
    let free = bytes_of(between(&message, "of which ", " is free").unwrap());
    let device = Dry::new(file["total"].as_u64().unwrap()).with_capacity(192 * MIB + free);
    let mut engine = Engine::new(device, Config::default());
    engine.set_limit(file["limit"].as_u64());
    // As many bytes in use as the recording had, in as many bytes of segments, and no piece of
    // 16 MiB left.
    for _ in 0..7 {
        engine.allocate(20 * MIB, S0).unwrap();
    }
    engine.allocate(10_890_240, S0).unwrap();
    engine.allocate(10 * MIB - 512, S0).unwrap();
    engine.allocate(10 * MIB - 512, S1).unwrap();
    let in_use = file["stats"]["active_bytes.all.peak"].as_u64().unwrap();
    assert_eq!(engine.stats().memory_allocated(), in_use);
    assert_eq!(engine.stats().memory_reserved(), 192 * MIB);
    let report = fail(&mut engine, 16 * MIB, S0);
    assert_eq!(report.pytorch_message(), without_processes(&message));
}

#[test]
fn sizes_in_messages_are_shown_as_pytorch_shows_them() {
    let report = fail(&mut engine(0), 1, S0);
    let shown = |bytes| OutOfMemory { segment_size: bytes, ..report.clone() }.pytorch_message();
    for (bytes, text) in
        [(512, "512 bytes"), (1_536, "1.50 KiB"), (20 * MIB, "20.00 MiB"), (3 << 30, "3.00 GiB")]
    {
        assert!(shown(bytes).contains(&format!("Tried to allocate {text}. ")), "{}", Bytes(bytes));
    }
}

#[test]
fn without_a_limit_or_private_pools_the_message_is_silent_about_them() {
    let message = fail(&mut engine(0), MIB, S0).pytorch_message();
    assert!(!message.contains("allowed") && !message.contains("private pools"), "{message}");
    assert!(message.contains("of which 0 bytes is free. Of the allocated memory"), "{message}");
}

#[test]
fn every_observer_is_told_of_every_failure_before_the_error_returns() {
    let mut engine = engine(40 * MIB);
    let told: Arc<Mutex<Vec<(&str, OutOfMemory)>>> = Arc::default();
    for name in ["first", "second"] {
        let told = Arc::clone(&told);
        engine.add_oom_observer(Arc::new(move |report| {
            told.lock().unwrap().push((name, report.clone()));
        }));
    }
    engine.allocate(40 * MIB, S0).unwrap();
    engine.allocate(0, S0).unwrap_err();
    engine.allocate(1 << 60, S0).unwrap_err();
    assert!(told.lock().unwrap().is_empty(), "only failures for want of memory count");
    engine.set_limit(Some(50 * MIB));
    let report = fail(&mut engine, 20 * MIB + 1, S1);
    let told_now = std::mem::take(&mut *told.lock().unwrap());
    assert_eq!(told_now, [("first", report.clone()), ("second", report.clone())]);
    // What PyTorch's observers get: the segment's size, the limit or the total, the device's free.
    assert_eq!(
        (report.segment_size, report.limit, report.device_total, report.device_free),
        (22 * MIB, Some(50 * MIB), TOTAL, Some(0))
    );
    fail(&mut engine, 20 * MIB, S0);
    assert_eq!(told.lock().unwrap().len(), 2);
}

#[test]
fn callbacks_run_by_name_on_every_miss_before_the_device_is_asked() {
    let mut engine = engine(40 * MIB);
    let calls: Arc<Mutex<Vec<(&str, u64)>>> = Arc::default();
    for name in ["b", "a", "c"] {
        let calls = Arc::clone(&calls);
        engine.set_free_memory_callback(
            name,
            Arc::new(move |engine: &mut Engine<Dry>| {
                calls.lock().unwrap().push((name, engine.device().used()));
                // One that frees memory does not keep the others from being asked.
                name == "a"
            }),
        );
    }
    engine.allocate(20 * MIB, S0).unwrap();
    let called = std::mem::take(&mut *calls.lock().unwrap());
    assert_eq!(called, [("a", 0), ("b", 0), ("c", 0)]);
    let block = engine.allocate(5 * MIB, S0).unwrap();
    assert_eq!(std::mem::take(&mut *calls.lock().unwrap()).len(), 3);
    engine.free(&block).unwrap();
    engine.allocate(5 * MIB, S0).unwrap();
    assert!(calls.lock().unwrap().is_empty(), "a hit in the cache asks nobody");
}

#[test]
fn a_callback_of_the_same_name_is_replaced() {
    let mut engine = engine(40 * MIB);
    let calls: Arc<Mutex<Vec<u32>>> = Arc::default();
    for number in [1, 2] {
        let calls = Arc::clone(&calls);
        engine.set_free_memory_callback(
            "the one",
            Arc::new(move |_: &mut Engine<Dry>| {
                calls.lock().unwrap().push(number);
                false
            }),
        );
    }
    engine.allocate(100, S0).unwrap();
    assert_eq!(*calls.lock().unwrap(), [2]);
}

/// An allocator with one live block, which a callback frees; it says whether it did.
fn with_freeing_callback(admits: bool) -> Engine<Dry> {
    let mut engine = engine(80 * MIB);
    let block = engine.allocate(30 * MIB, S0).unwrap();
    engine.set_free_memory_callback(
        "frees",
        Arc::new(move |engine: &mut Engine<Dry>| engine.free(&block).is_ok() && admits),
    );
    engine
}

#[test]
fn a_callback_that_frees_memory_leads_to_a_second_search() {
    let mut engine = with_freeing_callback(true);
    // One yes among several answers is enough.
    for name in ["before", "zero freed"] {
        engine.set_free_memory_callback(name, Arc::new(|_: &mut Engine<Dry>| false));
    }
    let before = engine.segments()[0].address;
    let block = engine.allocate(30 * MIB, S0).unwrap();
    assert_eq!(block.address, before, "the block that the callback freed");
    assert_eq!((engine.stats().num_device_alloc, engine.stats().memory_reserved()), (1, 30 * MIB));
}

#[test]
fn a_callback_that_admits_nothing_leads_to_no_second_search() {
    let mut engine = with_freeing_callback(false);
    engine.allocate(30 * MIB, S0).unwrap();
    assert_eq!((engine.stats().num_device_alloc, engine.stats().memory_reserved()), (2, 60 * MIB));
}

#[test]
fn a_callback_may_give_back_the_very_pool_that_the_request_was_for() {
    let mut engine = engine(80 * MIB);
    engine.begin_allocate_to_pool(P, StreamFilter::Any).unwrap();
    engine.set_free_memory_callback(
        "ends the pool",
        Arc::new(|engine: &mut Engine<Dry>| {
            engine.end_allocate_to_pool(P).is_ok()
                && engine.release_pool(P).is_ok()
                && engine.empty_cache().is_ok()
        }),
    );
    let block = engine.allocate(30 * MIB, S0).unwrap();
    engine.check_invariants().unwrap();
    engine.free(&block).unwrap();
    engine.empty_cache().unwrap();
    assert_eq!(engine.stats().memory_reserved(), 0);
}

#[test]
fn after_a_failure_the_allocator_serves_again() {
    for conf in ["", "expandable_segments:True", "max_split_size_mb:21"] {
        let mut engine = engine_with(64 * MIB, conf);
        let blocks = [(); 3].map(|()| engine.allocate(20 * MIB, S0).unwrap());
        fail(&mut engine, 20 * MIB, S0);
        fail(&mut engine, 5 * MIB, S1);
        engine.allocate(100, S1).unwrap();
        engine.free(&blocks[1]).unwrap();
        let again = engine.allocate(20 * MIB, S0).unwrap();
        assert_eq!(again.address, blocks[1].address, "{conf}");
        assert_eq!(engine.stats().num_ooms, 2, "{conf}");
        engine.check_invariants().unwrap();
    }
}

#[test]
fn a_failure_releases_what_it_released() {
    let mut engine = engine(64 * MIB);
    let cached = engine.allocate(20 * MIB, S1).unwrap();
    engine.free(&cached).unwrap();
    engine.allocate(20 * MIB, S0).unwrap();
    fail(&mut engine, 60 * MIB, S0);
    assert_eq!(engine.stats().memory_reserved(), 20 * MIB, "what was cached has gone back");
}
