//! Reads snapshots and says what they hold, how long that took and the most memory it needed; with
//! `--json`, as a line that `benches/snapshot.py` understands.
//!
//! ```text
//! cargo run --release -p tonnage-snapshot --example read_snapshot -- snapshot.pickle
//! ```

use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use tonnage_snapshot::SnapshotError;

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    let json = arguments.iter().any(|argument| argument == "--json");
    let mut status = ExitCode::SUCCESS;
    for path in arguments.iter().filter(|argument| *argument != "--json") {
        if let Err(error) = show(Path::new(path), json) {
            eprintln!("{error}");
            status = ExitCode::FAILURE;
        }
    }
    status
}

fn show(path: &Path, json: bool) -> Result<(), SnapshotError> {
    let before = Instant::now();
    let file = tonnage_snapshot::open(path)?;
    let seconds = before.elapsed().as_secs_f64();
    let entries: usize = file.traces.iter().map(Vec::len).sum();
    let peak = peak_kib();
    if json {
        println!("{{\"entries\": {entries}, \"seconds\": {seconds}, \"peak_kib\": {peak}}}");
    } else {
        println!(
            "{}: {entries} entries, {} segments, {} stacks in {:.1} ms, peak {:.1} MiB",
            path.display(),
            file.segments.len(),
            file.stacks.len(),
            seconds * 1e3,
            peak as f64 / 1024.0,
        );
    }
    Ok(())
}

/// The most memory this process ever had, by Linux's count; 0 elsewhere.
fn peak_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok()).unwrap_or(0)
}
