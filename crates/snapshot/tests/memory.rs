//! What hostile files cost, measured for the whole process: hence one test, alone in its program.

use std::io::{Cursor, Read};

use tonnage_snapshot::{Limits, SnapshotError, read};

/// Limits that a test can reach.
const SMALL: Limits = Limits { pickle_bytes: 64 << 20, memory: 32 << 20, depth: 100 };

/// The most memory this process ever had, in KiB.
fn peak_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// `times` copies of `piece`, one after the other, between `head` and nothing.
fn repeated(head: &'static [u8], piece: &'static [u8], times: u64) -> impl Read {
    struct Repeat(&'static [u8], usize);
    impl Read for Repeat {
        fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
            for byte in into.iter_mut() {
                *byte = self.0[self.1];
                self.1 = (self.1 + 1) % self.0.len();
            }
            Ok(into.len())
        }
    }
    Cursor::new(head).chain(Repeat(piece, 0).take(times * piece.len() as u64))
}

#[test]
fn hostile_files_cost_no_more_than_they_are_allowed() {
    lengths_that_the_file_does_not_have_cost_nothing();
    bombs_stop_at_the_limit_that_they_reach();
}

fn lengths_that_the_file_does_not_have_cost_nothing() {
    let before = peak_memory();
    for header in [
        &b"\x8d\xff\xff\xff\xff\xff\xff\xff\x7f"[..], // BINUNICODE8
        b"\x8d\xff\xff\xff\xff\xff\xff\xff\xff",
        b"X\xff\xff\xff\xff",                    // BINUNICODE
        b"\x8e\xff\xff\xff\xff\xff\xff\xff\xff", // BINBYTES8
        b"\x96\xff\xff\xff\xff\xff\xff\xff\xff", // BYTEARRAY8
        b"B\xff\xff\xff\xff",                    // BINBYTES
        b"\x8b\xff\xff\xff\x7f",                 // LONG4
        b"\x95\xff\xff\xff\xff\xff\xff\xff\xff", // FRAME
    ] {
        let bytes = [b"\x80\x04", header, b"abc"].concat();
        match read(&*bytes, &SMALL).map(drop).unwrap_err() {
            SnapshotError::Truncated { offset } => assert_eq!(offset, bytes.len() as u64),
            SnapshotError::Malformed { .. } if header[0] == 0x95 => {}
            other => panic!("{header:?}: {other}"),
        }
    }
    assert!(peak_memory() - before < 16 << 10, "{} KiB more", peak_memory() - before);
}

fn bombs_stop_at_the_limit_that_they_reach() {
    // What is repeated, how the file begins, which limit it runs into.
    let bombs: &[(&str, &[u8], &[u8], &str)] = &[
        ("marks", b"", b"(", "depth"),
        ("nested lists with marks", b"", b"](", "depth"),
        ("nested lists", b"", b"]", "memory"),
        ("nested dictionaries", b"", b"}", "memory"),
        ("values", b"", b"N", "memory"),
        ("memoised values", b"N", b"\x94", "pickle_bytes"),
        ("memoised tuples", b"", b"KaKb\x86\x940KcKd\x86\x940", "memory"),
        ("memoised floats", b"", b"G\x7f\xf8\0\0\0\0\0\0\x940", "memory"),
        ("tuples", b"", b"NN\x86", "memory"),
        ("tuples in tuples", b"N", b"\x85", "pickle_bytes"),
        ("one list", b"](", b"N", "memory"),
        ("one list by batches", b"]", b"(NNNNNNNNe", "memory"),
        ("nothing at all", b"", b"N0", "pickle_bytes"),
        ("entries", b"\x8c\x06action\x94\x8c\x05alloc\x94\x8c\x04addr\x94\x8c\x04size\x94\x8c\x06stream\x94",
         b"}(h\0h\x01h\x02K\0h\x03K\0h\x04K\0u", "memory"),
        ("bad entries", b"\x8c\x06action\x94\x8c\x05alloc\x94\x8c\x04addr\x94\x8c\x04size\x94\x8c\x06stream\x94",
         b"}(h\0h\x01h\x02Nu", "memory"),
        ("frames", b"\x8c\x04name\x94\x8c\x08filename\x94", b"}(h\0h\x01h\x01h\x01u0", "pickle_bytes"),
        ("closed lists", b"]\x94]", b"](h\0h\0ea", "memory"),
    ];
    let before = peak_memory();
    for (name, head, piece, limit) in bombs {
        let head: &'static [u8] = [b"\x80\x04", *head].concat().leak();
        let result = read(repeated(head, piece, u64::MAX / 64), &SMALL);
        match result {
            Err(SnapshotError::Limit { limit: found, .. }) => assert_eq!(found, *limit, "{name}"),
            other => panic!("{name}: {:?}", other.map(|_| "accepted")),
        }
    }
    // What a vector takes while it grows is counted before it does; the rest is the system's.
    let (used, allowed) = (peak_memory() - before, SMALL.memory >> 10);
    assert!(used < allowed + (8 << 10), "{used} KiB for a limit of {allowed} KiB");
}
