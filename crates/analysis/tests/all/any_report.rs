//! Every file has a report: valid recordings with marks anywhere, and files that contradict themselves.
//!
//! What a report says of them is the matter of other tests; here it must come, add up where the recording is valid, and
//! be written as text and JSON.

use std::cell::Cell;
use std::num::NonZeroUsize;

use tonnage_analysis::report::{HistoryPurposes, Report, ReportOptions};
use tonnage_analysis::{Comparison, Levels, Lifetimes, devices};
use tonnage_device::Dry;
use tonnage_engine::{Allocation, Config, Engine, RecordOptions, Release};
use tonnage_events::{
    Action, Address, BlockState, DeviceId, PoolId, PoolKind, SnapshotBlock, SnapshotSegment,
    StreamId, TraceEntry,
};
use tonnage_replay::snapshot_file;
use tonnage_snapshot::{Annotation, SnapshotFile, Stage};

use crate::support::testdata;

thread_local! {
    static NOW: Cell<u64> = const { Cell::new(0) };
}

/// Several entries may share a microsecond, as several of PyTorch's do.
fn tick() -> u64 {
    NOW.replace(NOW.get() + 1) / 2 + 1
}

/// Numbers by xorshift.
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }

    fn of<T: Copy>(&mut self, values: &[T]) -> T {
        values[self.below(values.len() as u64) as usize]
    }
}

const NAMES: [&str; 4] = [
    "Optimizer.step#SGD.step",
    "Optimizer.step#Adam.step",
    "Optimizer.zero_grad#SGD.zero_grad",
    "forward",
];

/// When a request of a loop is freed.
#[derive(Clone, Copy)]
enum Freed {
    AtOnce,
    AtTheEnd,
    BetweenMarks,
    InTheNext,
    Never,
}

/// A loop of a few requests with marks somewhere, recorded on the engine.
fn recorded(seed: u64) -> SnapshotFile {
    let mut random = Random::new(seed);
    NOW.set(0);
    let conf = random.of(&[
        "",
        "",
        "expandable_segments:True",
        "max_split_size_mb:32",
        "roundup_power2_divisions:4",
    ]);
    let total = random.of(&[64_u64 << 20, 256 << 20, 80 << 30]);
    let mut engine = Engine::new(Dry::new(total), Config::parse(conf, Release::default()).unwrap());
    let ring = random.of(&[usize::MAX, usize::MAX, 40, 7]);
    let max_entries = NonZeroUsize::new(ring).unwrap();
    engine.record_history(Some(RecordOptions { clock: tick, max_entries, ..Default::default() }));
    let size = |random: &mut Random| match random.below(4) {
        0 => random.below(4096) + 1,
        1 => random.below(1 << 20) + 1,
        _ => (random.below(24) + 1) << 20,
    };
    let fates =
        [Freed::AtOnce, Freed::AtTheEnd, Freed::BetweenMarks, Freed::InTheNext, Freed::Never];
    let body: Vec<(u64, Freed, u64)> = (0..random.below(6))
        .map(|_| (size(&mut random), random.of(&fates), random.of(&[0, 0, 0, 7])))
        .collect();
    for _ in 0..random.below(5) {
        let _ = engine.allocate(size(&mut random), StreamId::DEFAULT);
    }
    let grows = random.below(3) == 0;
    let optimizers = random.below(4);
    let mut marks = Vec::new();
    let mut late: Vec<Allocation> = Vec::new();
    for iteration in 0..random.below(12) {
        let (mut at_the_end, mut between, mut next) = (Vec::new(), Vec::new(), Vec::new());
        for &(bytes, freed, stream) in &body {
            let bytes = if grows { bytes + bytes / 4 * iteration } else { bytes };
            // A small device refuses some: then the program goes on without it.
            let Ok(block) = engine.allocate(bytes, StreamId(stream)) else { continue };
            if random.below(8) == 0 {
                engine.record_stream(block.address, StreamId(3)).unwrap();
            }
            match freed {
                Freed::AtOnce => engine.free(&block).unwrap(),
                Freed::AtTheEnd => at_the_end.push(block),
                Freed::BetweenMarks => between.push(block),
                Freed::InTheNext => next.push(block),
                Freed::Never => {}
            }
        }
        for block in std::mem::replace(&mut late, next).into_iter().chain(at_the_end) {
            engine.free(&block).unwrap();
        }
        for _ in 0..optimizers {
            let name = random.of(&NAMES);
            for stage in [Stage::Start, Stage::End] {
                // Now and then long after the last entry, or for another device.
                let time_us = tick() + if random.below(9) == 0 { 10_000 } else { 0 };
                let device = DeviceId(u32::from(random.below(20) == 0));
                marks.push(Annotation { name: name.into(), stage, device, time_us });
            }
            between.drain(..).for_each(|block| engine.free(&block).unwrap());
        }
        between.drain(..).for_each(|block| engine.free(&block).unwrap());
        if random.below(6) == 0 {
            engine.empty_cache().unwrap();
        }
    }
    let mut file = snapshot_file(engine.snapshot(), DeviceId(0));
    file.annotations = marks;
    file
}

/// Everything that is made of a file, by everyone.
fn report_all(file: &SnapshotFile, without_replay: bool) -> Option<Report> {
    for device in &devices(file) {
        let lifetimes = Lifetimes::of(device);
        let levels = Levels::of(device, &lifetimes);
        let purposes = HistoryPurposes::of(device, &lifetimes, &levels);
        assert_eq!(purposes.purposes.len(), lifetimes.len());
        assert!(purposes.iterations.iter().all(|&it| it < device.entries.len()));
    }
    let _ = Comparison::of(file, &SnapshotFile::default());
    let options = ReportOptions { without_replay, ..ReportOptions::default() };
    let report = Report::of(file, &options).ok()?;
    assert!(!report.to_text("file").is_empty() && !report.to_json().is_empty());
    assert!(report.timeline.iterations.iter().all(|&it| it < report.events));
    assert!(report.causes.iter().any(|it| it.cause == report.verdict.cause));
    Some(report)
}

#[test]
fn a_valid_recording_has_a_report_wherever_its_marks_are() {
    let (mut told_by_marks, mut told) = (0, 0);
    for seed in 0..1_500 {
        let found = std::panic::catch_unwind(|| {
            let file = recorded(seed);
            // A replay takes a hundred times as long.
            let report = report_all(&file, seed % 25 != 0)?;
            let peak = &report.peak.reserved;
            assert_eq!(peak.requested + report.waste.total(), peak.bytes);
            Some(report)
        });
        let report = found.unwrap_or_else(|_| panic!("seed {seed}"));
        let by = report.and_then(|it| it.growth.told_by).map(|it| it.words());
        told += usize::from(by.is_some());
        told_by_marks += usize::from(by == Some("the optimizer's marks"));
    }
    // The loops are ones.
    assert!(told_by_marks > 100 && told > told_by_marks + 100, "{told_by_marks} of {told}");
}

/// What no allocator writes: any action, address, size and time.
fn contradictory(seed: u64) -> SnapshotFile {
    const NUMBERS: [u64; 12] = [
        0,
        1,
        511,
        512,
        2 << 20,
        20 << 20,
        1 << 40,
        (1 << 40) + 512,
        1 << 62,
        1 << 63,
        u64::MAX - 511,
        u64::MAX,
    ];
    let mut random = Random::new(seed);
    let number = |random: &mut Random| {
        let one = random.of(&NUMBERS);
        if random.below(3) == 0 { one.wrapping_add(random.of(&NUMBERS)) } else { one }
    };
    let entries = (0..random.below(40)).map(|_| TraceEntry {
        action: random.of(&[
            Action::Alloc,
            Action::Alloc,
            Action::FreeRequested,
            Action::FreeCompleted,
            Action::SegmentAlloc,
            Action::SegmentFree,
            Action::SegmentMap,
            Action::SegmentUnmap,
            Action::Snapshot,
            Action::Oom,
        ]),
        address: Address(number(&mut random)),
        size: number(&mut random),
        stream: StreamId(random.below(3)),
        time_us: number(&mut random),
        stack: None,
    });
    let entries: Vec<_> = entries.collect();
    let states = [BlockState::ActiveAllocated, BlockState::ActivePendingFree, BlockState::Inactive];
    let segments = (0..random.below(4)).map(|_| SnapshotSegment {
        device: DeviceId(random.below(2) as u32),
        address: Address(number(&mut random)),
        total_size: number(&mut random),
        allocated_size: number(&mut random),
        active_size: number(&mut random),
        requested_size: number(&mut random),
        stream: StreamId(random.below(3)),
        kind: random.of(&[PoolKind::Small, PoolKind::Large]),
        pool: PoolId(number(&mut random), random.below(2)),
        expandable: random.below(2) == 0,
        stack: None,
        blocks: (0..random.below(4))
            .map(|_| SnapshotBlock {
                address: Address(number(&mut random)),
                size: number(&mut random),
                requested_size: number(&mut random),
                state: random.of(&states),
                stack: None,
            })
            .collect(),
    });
    let segments: Vec<_> = segments.collect();
    let annotations = (0..random.below(30)).map(|_| Annotation {
        name: random.of(&NAMES).into(),
        stage: if random.below(2) == 0 { Stage::Start } else { Stage::End },
        device: DeviceId(random.below(2) as u32),
        time_us: number(&mut random),
    });
    let annotations = annotations.collect();
    SnapshotFile { segments, traces: vec![entries], annotations, ..SnapshotFile::default() }
}

#[test]
fn a_file_that_contradicts_itself_has_a_report_or_a_reason() {
    let mut reported = 0;
    for seed in 0..6_000 {
        let found = std::panic::catch_unwind(|| report_all(&contradictory(seed), true).is_some());
        reported += usize::from(found.unwrap_or_else(|_| panic!("seed {seed}")));
    }
    assert!(reported > 1_000, "{reported}");
}

fn odd(name: &str) -> SnapshotFile {
    tonnage_snapshot::open(&testdata().join("odd").join(format!("{name}.pickle"))).unwrap()
}

/// Issue 14, fault 13: two optimizers with nothing but frees between their steps, the last of which ends behind the last
/// entry.
#[test]
fn marks_behind_the_last_entry_and_without_requests_between_them_are_no_iteration() {
    let report = report_all(&odd("two_sgd_optimizers"), false).unwrap();
    assert_eq!(report.growth.iterations, 4);
    for name in ["marks_at_any_time", "marks_after_last_entry"] {
        assert!(report_all(&odd(name), false).is_some(), "{name}");
    }
}

/// Issue 14, fault 19: two segments and two blocks of 2^63 bytes each.
#[test]
fn sums_beyond_64_bits_stay_at_the_largest_value() {
    let mut file = odd("sizes_of_2_63");
    assert!(report_all(&file, false).unwrap().peak.reserved.bytes >= 1 << 63);
    file.traces.clear();
    let report = report_all(&file, false).unwrap();
    assert_eq!(report.peak.reserved.bytes, u64::MAX);
    assert_eq!(report.peak.requested, u64::MAX);
}
