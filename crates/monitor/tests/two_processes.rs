//! Sheets between processes: read while they are written, and gone when their writer is.
//!
//! The test program starts itself as the writer.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tonnage_monitor::{
    CallSite, DeviceFigures, FigureSheet, NowAndPeak, Places, Publisher, processes,
};

const FOLDER: &str = "TONNAGE_TEST_WRITER";

/// The longest wait for anything: how busy the machine is decides no test.
const PATIENCE: Duration = Duration::from_secs(600);

/// Sheets that are read while they are written. Chosen: some of the looks meet a write, on any machine.
const LOOKS: u64 = 2_000;

/// A sheet whose figures all follow from one number, and whose length changes with it.
fn sheet(number: u64) -> FigureSheet {
    let level = NowAndPeak { now: number, peak: number };
    let device = DeviceFigures {
        name: format!("dry:{number}"),
        total: number,
        allocated: level,
        reserved: level,
        allocations: number,
        past: vec![number; (number % 100) as usize],
        call_sites: Some(vec![
            CallSite { line: format!("f:{number}"), bytes: number, blocks: 1 };
            (number % 7) as usize
        ]),
        ..DeviceFigures::default()
    };
    let devices = vec![device; 1 + (number % 5) as usize];
    FigureSheet { sampled_us: number, devices, ..FigureSheet::of_this_process() }
}

/// What the other process does: it writes sheets without a pause until it is killed.
#[test]
fn writer() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    let mut publisher = Publisher::create(&Places::only(folder)).unwrap();
    for number in 1.. {
        publisher.publish(&sheet(number)).unwrap();
    }
}

/// Kills its process at the end, also of a test that fails.
struct Writer(Child);

impl Writer {
    fn start(folder: &Path) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "writer"]).env(FOLDER, folder).stdout(Stdio::null());
        Self(command.spawn().unwrap())
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

fn wait_until(mut what: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !what() {
        assert!(begin.elapsed() < PATIENCE, "it did not happen within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn every_sheet_that_is_read_is_one_that_was_written() {
    let folder = tempfile::tempdir().unwrap();
    let places = Places::only(folder.path());
    let writer = Writer::start(folder.path());
    wait_until(|| processes(&places).sheets.iter().any(|it| !it.devices.is_empty()));
    let (begin, mut read, mut torn, mut last) = (Instant::now(), 0, 0, 0);
    while read < LOOKS {
        assert!(begin.elapsed() < PATIENCE, "{read} read whole, {torn} times none");
        let found = processes(&places);
        for sheet_read in found.sheets {
            assert_eq!(sheet_read.pid, writer.0.id());
            let number = sheet_read.sampled_us;
            assert!(number >= last, "{number} after {last}");
            let expected = sheet(number);
            assert_eq!(sheet_read.devices, expected.devices);
            (read, last) = (read + 1, number);
        }
        // Written without a pause, a sheet may be torn each time that it is looked at.
        torn += found.skipped.len();
        assert!(
            found.skipped.iter().all(|it| it.reason.contains("checksum")),
            "{:?}",
            found.skipped
        );
    }
    println!("{read} sheets of {last} read whole, {torn} times none");
}

#[test]
fn a_sheet_vanishes_with_its_process_however_that_ends() {
    let folder = tempfile::tempdir().unwrap();
    let places = Places::only(folder.path());
    let writer = Writer::start(folder.path());
    wait_until(|| !processes(&places).sheets.is_empty());
    // As by `kill -9`: nothing of the process's own runs any more.
    drop(writer);
    assert!(processes(&places).sheets.is_empty());
    assert_eq!(folder.path().read_dir().unwrap().count(), 0);
}
