//! How the time of a report grows with the history: the work is doubled twice, and the ratios are printed.
//!
//! Two is linear, four is quadratic. `cargo bench -p tonnage-analysis --bench growth`; with `-- --test` once, and small.

use std::hint::black_box;
use std::time::{Duration, Instant};

use tonnage_analysis::report::{Report, ReportOptions};
use tonnage_events::{Action, Address, Frame, StackId, StreamId, TraceEntry};
use tonnage_snapshot::SnapshotFile;

const MIB: u64 = 1 << 20;

/// A loop that keeps one block of each iteration and frees another, in segments of their own size. `size` and `line` are
/// those of what is kept.
fn leaking(iterations: u64, size: fn(u64) -> u64, line: Option<fn(u64) -> u32>) -> SnapshotFile {
    let mut file = SnapshotFile::default();
    let mut stack = |line: u32| -> StackId {
        let (name, filename) = ("step".into(), "/home/me/train.py".into());
        file.stacks.intern(vec![Frame { name, filename, line }])
    };
    let passing = line.map(|_| stack(7));
    let mut entries = Vec::new();
    let mut push = |action, address, size, stack| {
        let (address, stream) = (Address(address), StreamId::DEFAULT);
        let time_us = 1 + entries.len() as u64;
        entries.push(TraceEntry { action, address, size, stream, time_us, stack });
    };
    let temporary = 1 << 40;
    push(Action::SegmentAlloc, temporary, 20 * MIB, passing);
    for number in 0..iterations {
        let kept = (1 << 41) + number * 4 * MIB;
        let of_kept = line.map(|line| stack(line(number)));
        push(Action::SegmentAlloc, kept, 2 * MIB, of_kept);
        push(Action::Alloc, kept, size(number), of_kept);
        push(Action::Alloc, temporary, 8 * MIB, passing);
        push(Action::FreeRequested, temporary, 8 * MIB, passing);
        push(Action::FreeCompleted, temporary, 8 * MIB, passing);
    }
    file.traces = vec![entries];
    file
}

/// The shortest of several rounds: what else the machine does only adds.
fn time(file: &SnapshotFile, rounds: u32) -> Duration {
    let options = ReportOptions { without_replay: true, ..ReportOptions::default() };
    let round = |_| {
        let began = Instant::now();
        black_box(Report::of(black_box(file), &options).expect("there is a history"));
        began.elapsed()
    };
    (0..rounds).map(round).min().unwrap_or_default()
}

fn main() {
    let is_smoke = std::env::args().any(|it| it == "--test");
    let (least, rounds) = if is_smoke { (50, 1) } else { (25_000, 5) };
    type Sizes = fn(u64) -> u64;
    type Lines = Option<fn(u64) -> u32>;
    let cases: [(&str, Sizes, Lines); 3] = [
        ("leak of one size, without stacks", |_| 512 << 10, None),
        ("leak of ever other sizes, without stacks", |number| 512 * (1 + number % 1900), None),
        ("leak of one line in ten, with stacks", |_| 512 << 10, Some(|number| number as u32 % 10)),
    ];
    println!("{:<44}{:>12}{:>14}{:>8}", "", "iterations", "report", "ratio");
    for (name, size, line) in cases {
        let mut before = None::<Duration>;
        for iterations in [least, 2 * least, 4 * least] {
            let took = time(&leaking(iterations, size, line), rounds);
            let ratio = before.map_or(String::new(), |before| {
                format!("{:.2}", took.as_secs_f64() / before.as_secs_f64())
            });
            println!("{name:<44}{iterations:>12}{:>14}{ratio:>8}", format!("{took:.1?}"));
            before = Some(took);
        }
    }
}
