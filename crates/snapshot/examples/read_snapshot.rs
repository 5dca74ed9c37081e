//! Reads snapshots and says what they hold, how long that took and the most memory it needed.
//!
//! ```text
//! cargo run --release -p tonnage-snapshot --example read_snapshot -- snapshot.pickle
//! ```

use std::path::PathBuf;
use std::time::Instant;

fn main() {
    for path in std::env::args_os().skip(1).map(PathBuf::from) {
        let before = Instant::now();
        match tonnage_snapshot::open(&path) {
            Ok(file) => println!(
                "{}: {} entries, {} segments, {} stacks in {:.1} ms, peak {}",
                path.display(),
                file.traces.iter().map(Vec::len).sum::<usize>(),
                file.segments.len(),
                file.stacks.len(),
                before.elapsed().as_secs_f64() * 1e3,
                peak_memory(),
            ),
            Err(error) => println!("{error}"),
        }
    }
}

/// The most memory this process ever had, by Linux's count.
fn peak_memory() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    peak.map_or_else(|| "unknown".to_owned(), |peak| peak.trim().to_owned())
}
