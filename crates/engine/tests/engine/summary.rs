//! `memory_summary` and `memory_stats` against what PyTorch 2.11 printed for the same figures.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tonnage_device::Dry;
use tonnage_engine::{Config, DeviceId, Engine, Stat, StatArray, Stats, StreamId};

fn testdata() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata")
}

/// The recordings: their names and what is known of each.
fn recordings() -> Vec<(String, Value)> {
    let entries = std::fs::read_dir(testdata().join("traces")).unwrap();
    let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|it| it == "json"));
    files.sort();
    let read = |path: PathBuf| {
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        (name, serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap())
    };
    files.into_iter().map(read).collect()
}

/// Figures by name, as `memory_stats` gives them.
type Figures = BTreeMap<String, i64>;

fn figures_of(recording: &Value) -> Figures {
    let stats = recording["stats"].as_object().unwrap();
    stats.iter().map(|(name, value)| (name.clone(), value.as_i64().unwrap())).collect()
}

fn stat(figures: &Figures, name: &str) -> Stat {
    let figure = |metric: &str| figures[&format!("{name}.{metric}")];
    Stat {
        current: figure("current"),
        peak: figure("peak"),
        allocated: figure("allocated"),
        freed: figure("freed"),
    }
}

fn array(figures: &Figures, name: &str) -> StatArray {
    StatArray {
        all: stat(figures, &format!("{name}.all")),
        small_pool: stat(figures, &format!("{name}.small_pool")),
        large_pool: stat(figures, &format!("{name}.large_pool")),
    }
}

fn stats_of(figures: &Figures) -> Stats {
    Stats {
        allocation: array(figures, "allocation"),
        segment: array(figures, "segment"),
        active: array(figures, "active"),
        inactive_split: array(figures, "inactive_split"),
        allocated_bytes: array(figures, "allocated_bytes"),
        reserved_bytes: array(figures, "reserved_bytes"),
        active_bytes: array(figures, "active_bytes"),
        inactive_split_bytes: array(figures, "inactive_split_bytes"),
        requested_bytes: array(figures, "requested_bytes"),
        oversize_allocations: stat(figures, "oversize_allocations"),
        oversize_segments: stat(figures, "oversize_segments"),
        num_alloc_retries: figures["num_alloc_retries"],
        num_ooms: figures["num_ooms"],
        num_sync_all_streams: figures["num_sync_all_streams"],
        num_device_alloc: figures["num_device_alloc"],
        num_device_free: figures["num_device_free"],
        max_split_size: figures["max_split_size"],
        ..Stats::default()
    }
}

#[test]
fn every_recorded_summary_comes_out_character_by_character() {
    let mut compared = 0;
    for (name, recording) in recordings() {
        let Some(expected) = recording["summary"].as_str() else { continue };
        let stats = stats_of(&figures_of(&recording));
        assert_eq!(stats.memory_summary(DeviceId(0), false), expected, "{name}");
        compared += 1;
    }
    assert_eq!(compared, 13, "each recording with default settings has one");
}

#[test]
fn every_recorded_figure_has_its_name_and_place() {
    let mut compared = 0;
    for (name, recording) in recordings() {
        let figures = figures_of(&recording);
        let got = stats_of(&figures).memory_stats();
        assert_eq!(got, figures.into_iter().collect::<Vec<_>>(), "{name}");
        compared += 1;
    }
    assert_eq!(compared, 68);
}

/// The tables of the file of printed summaries.
fn printed_tables() -> Vec<String> {
    let text = std::fs::read_to_string(testdata().join("memory_summary_2.11.txt")).unwrap();
    let mut tables = vec![String::new()];
    for line in text.lines() {
        if line.is_empty() {
            tables.push(String::new());
        } else if let Some(table) = tables.last_mut() {
            *table += line;
            *table += "\n";
        }
    }
    tables.retain(|table| !table.is_empty());
    tables
}

/// The number that a cell shows, rounded down to the cell's unit.
fn number_in(cell: &str) -> i64 {
    let mut words = cell.split_whitespace();
    let number: i64 = words.next().unwrap().parse().unwrap();
    number
        * match words.next() {
            None | Some("B") => 1,
            Some("KiB") => 1 << 10,
            Some("MiB") => 1 << 20,
            Some("GiB") => 1 << 30,
            Some("K") => 1_000,
            Some("M") => 1_000_000,
            Some(unit) => panic!("{unit} in `{cell}`"),
        }
}

/// Figures that a full table was printed from, as far as it shows them: whole units, which is all
/// that comes out again.
fn read_back(table: &str) -> Stats {
    let arrays = [
        "allocated_bytes",
        "active_bytes",
        "requested_bytes",
        "reserved_bytes",
        "inactive_split_bytes",
        "allocation",
        "active",
        "segment",
        "inactive_split",
    ];
    let mut names: Vec<String> = Vec::new();
    for array in arrays {
        names.extend(["all", "large_pool", "small_pool"].map(|pool| format!("{array}.{pool}")));
    }
    names.extend(["oversize_allocations", "oversize_segments"].map(str::to_owned));
    let rows = table.lines().filter(|line| line.split('|').count() == 7).skip(1);
    let mut figures = Figures::from([("max_split_size".to_owned(), -1)]);
    for (row, name) in rows.zip(names) {
        let cells = row.split('|').skip(2);
        for (cell, metric) in cells.zip(["current", "peak", "allocated", "freed"]) {
            figures.insert(format!("{name}.{metric}"), number_in(cell));
        }
    }
    for name in ["alloc_retries", "ooms", "sync_all_streams", "device_alloc", "device_free"] {
        figures.insert(format!("num_{name}"), 0);
    }
    stats_of(&figures)
}

#[test]
fn the_printed_tables_come_out_in_full_and_abbreviated() {
    let tables = printed_tables();
    let [abbreviated, full] = &tables[..] else { panic!("{} tables", tables.len()) };
    let stats = read_back(full);
    assert_eq!(&stats.memory_summary(DeviceId(0), false), full);
    assert_eq!(&stats.memory_summary(DeviceId(0), true), abbreviated);
}

#[test]
fn failures_retries_and_the_device_stand_in_the_head() {
    let stats = Stats { num_ooms: 12, num_alloc_retries: 3_456, ..Stats::default() };
    let summary = stats.memory_summary(DeviceId(13), true);
    let lines: Vec<_> = summary.lines().collect();
    assert_eq!(
        lines[1],
        "|                  PyTorch CUDA memory summary, device ID 13                |"
    );
    assert_eq!(
        lines[3],
        "|            CUDA OOMs: 12           |        cudaMalloc retries: 3456      |"
    );
    assert!(lines.iter().all(|line| line.len() == 77), "{summary}");
}

#[test]
fn an_allocators_summary_shows_its_own_figures_and_device() {
    let device = Dry::new(8 << 30).with_id(DeviceId(2));
    let mut engine = Engine::new(device, Config::default());
    engine.allocate(30 << 20, StreamId::DEFAULT).unwrap();
    let summary = engine.memory_summary(false);
    assert_eq!(summary, engine.stats().memory_summary(DeviceId(2), false));
    let row = "| Allocated memory      |  30720 KiB |  30720 KiB |  30720 KiB |      0 B   |";
    assert!(summary.lines().any(|line| line == row), "{summary}");
    assert!(summary.contains("device ID 2 "), "{summary}");
    assert_ne!(summary, engine.memory_summary(true));
}
