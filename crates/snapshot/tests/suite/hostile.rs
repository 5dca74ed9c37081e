//! Files that want to run code, waste memory or waste time get an error that says where, and no
//! more than they are allowed.

use std::io::{Cursor, Read, Write};
use std::time::{Duration, Instant};

use crate::support::{python, traces};
use proptest::prelude::*;
use tonnage_snapshot::{Limits, SnapshotError, fuzz_pickle, open, parse, read};

/// Limits that a test can reach.
const SMALL: Limits = Limits { pickle_bytes: 64 << 20, memory: 32 << 20, depth: 100 };

/// A small real file.
fn small_file() -> Vec<u8> {
    let path = traces().join("mlp_seed.tight.pickle.zst");
    zstd::decode_all(std::fs::File::open(path).unwrap()).unwrap()
}

fn error_of(bytes: &[u8]) -> SnapshotError {
    match read(bytes, &SMALL) {
        Ok(_) => panic!("accepted {:?}...", &bytes[..bytes.len().min(40)]),
        Err(error) => error,
    }
}

#[test]
fn every_opcode_that_is_not_plain_data_is_refused_by_name_and_place() {
    for (opcode, name) in [
        (&b"cos\nsystem\n"[..], "GLOBAL"),
        (b"\x93", "STACK_GLOBAL"),
        (b"R", "REDUCE"),
        (b"b", "BUILD"),
        (b"ios\nsystem\n", "INST"),
        (b"o", "OBJ"),
        (b"\x81", "NEWOBJ"),
        (b"\x92", "NEWOBJ_EX"),
        (b"\x82\x01", "EXT1"),
        (b"\x83\x01\x00", "EXT2"),
        (b"\x84\x01\x00\x00\x00", "EXT4"),
        (b"P1\n", "PERSID"),
        (b"Q", "BINPERSID"),
        (b"\x97", "NEXT_BUFFER"),
        (b"\x98", "READONLY_BUFFER"),
        (b"S'a'\n", "STRING"),
        (b"T\x01\x00\x00\x00a", "BINSTRING"),
        (b"U\x01a", "SHORT_BINSTRING"),
        (b"Va\n", "UNICODE"),
        (b"F1.5\n", "FLOAT"),
        (b"L5L\n", "LONG"),
        (b"g0\n", "GET"),
        (b"p0\n", "PUT"),
        (b"2", "DUP"),
    ] {
        let bytes = [b"\x80\x04NN", opcode, b"."].concat();
        let error = error_of(&bytes);
        assert!(
            matches!(error, SnapshotError::Opcode { opcode, offset: 4, .. } if opcode == name),
            "{name}: {error}"
        );
        assert!(error.to_string().contains(&format!("byte 4: opcode {name}")), "{error}");
    }
}

#[test]
fn a_pickle_that_would_run_a_command_is_refused_and_runs_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let witness = folder.path().join("witness");
    let program = "
import os, pickle, sys
class Run:
    def __reduce__(self):
        return (os.system, (f'touch {sys.argv[1]}',))
sys.stdout.buffer.write(pickle.dumps({'segments': [], 'x': Run()}, 4))";
    let error = error_of(&python(program, &[&witness]));
    assert!(matches!(error, SnapshotError::Opcode { opcode: "STACK_GLOBAL", .. }), "{error}");
    assert!(!witness.exists());
}

#[test]
fn every_byte_that_is_no_opcode_is_named() {
    for byte in [0x00, b'!', 0x7f, 0x99, 0xff] {
        let error = error_of(&[0x80, 4, byte, b'.']);
        assert!(matches!(error, SnapshotError::Malformed { offset: 2, .. }), "{byte:#x}: {error}");
    }
}

#[test]
fn a_file_cut_anywhere_is_truncated_where_it_ends() {
    let whole = small_file();
    assert!(parse(&whole).is_ok());
    for len in 1..whole.len() {
        match parse(&whole[..len]) {
            Err(SnapshotError::Truncated { offset }) => assert_eq!(offset, len as u64),
            other => panic!("{len} bytes: {:?}", other.map(|_| "accepted")),
        }
    }
}

#[test]
fn a_compressed_file_cut_anywhere_is_an_error() {
    let whole = small_file();
    let zstd = zstd::encode_all(&*whole, 3).unwrap();
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(&whole).unwrap();
    let gzip = gzip.finish().unwrap();
    let plain = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(plain.path(), &whole).unwrap();
    let xz = python(
        "import lzma, sys; sys.stdout.buffer.write(lzma.compress(open(sys.argv[1], 'rb').read()))",
        &[plain.path()],
    );
    for (name, packed) in [("zstd", zstd), ("gzip", gzip), ("xz", xz)] {
        assert!(parse(&packed).is_ok(), "{name}");
        for len in 1..packed.len() {
            assert!(parse(&packed[..len]).is_err(), "{name}, {len} bytes");
        }
    }
}

#[test]
fn damaged_compression_is_told_from_a_damaged_pickle() {
    let mut packed = zstd::encode_all(&*small_file(), 3).unwrap();
    let middle = packed.len() / 2;
    packed[middle..middle + 16].fill(0xff);
    let error = error_of(&packed);
    assert!(
        matches!(
            error,
            SnapshotError::Damaged { compression: "zstd", .. }
                | SnapshotError::Malformed { .. }
                | SnapshotError::Truncated { .. }
        ),
        "{error}"
    );
    let mut packed = packed[..20].to_vec();
    packed[4..].fill(0xff);
    let error = error_of(&packed);
    assert!(matches!(error, SnapshotError::Damaged { compression: "zstd", .. }), "{error}");
}

#[test]
fn other_files_are_told_what_they_look_like() {
    for (bytes, part) in [
        (&b""[..], "an empty file"),
        (b"{\"segments\": []}", "JSON"),
        (b"  [1, 2]\n", "JSON"),
        (b"PK\x03\x04\x14\x00archive/data.pkl", "torch.save"),
        (b"<!DOCTYPE html><html>", "web page"),
        (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
        (b"(dp0\nS'segments'\n", "protocol 0 or 1"),
        (b"}q\x00.", "protocol 0 or 1"),
        (b"BZh91AY", "bzip2"),
        (b"\x7fELF\x02", "a program"),
        (b"\x93NUMPY", "NumPy"),
        (b"hello", "text"),
        (b"\xde\xad\xbe\xef", "other binary data"),
    ] {
        let error = error_of(bytes);
        assert!(matches!(error, SnapshotError::NotAPickle { .. }), "{error}");
        assert!(error.to_string().contains(part), "{error}");
    }
    let twice = zstd::encode_all(&*zstd::encode_all(&*small_file(), 3).unwrap(), 3).unwrap();
    assert!(error_of(&twice).to_string().contains("compressed twice"));
}

#[test]
fn a_file_that_cannot_be_opened_is_named() {
    for path in ["/nonexistent/snapshot.pickle", "/tmp"] {
        let error = open(path.as_ref()).unwrap_err();
        assert!(error.to_string().starts_with(path), "{error}");
        assert!(matches!(error, SnapshotError::File { source, .. }
            if matches!(*source, SnapshotError::Io(_))));
    }
}

#[test]
fn a_protocol_that_does_not_exist_is_refused() {
    for version in [0, 1, 6, 255] {
        let error = error_of(&[0x80, version, b']', b'.']);
        assert!(error.to_string().contains(&format!("protocol {version}")), "{error}");
    }
}

#[test]
fn broken_programs_are_malformed_at_the_opcode_that_cannot_be_followed() {
    for (program, offset) in [
        (&b"."[..], 2), // nothing to return
        (b"(.", 3),     // a mark in the way
        (b"0.", 2),     // nothing to pop
        (b"e.", 2),     // no mark
        (b"Ne.", 3),    // no mark
        (b"(e.", 3),    // no list
        (b"N(Ne.", 5),  // not a list
        (b"}(Ne.", 5),  // a dictionary, not a list
        (b"](NNu.", 6), // a list, not a dictionary
        (b"}(Nu.", 5),  // a key without a value
        (b"}Ns.", 4),   // too few
        (b"h\x07.", 2), // never memoised
        (b"j\xff\xff\xff\xff.", 2),
        (b"]\x94h\x00a.", 6),          // contains itself
        (b"]\x94]h\x00ah\x00Na.", 11), // changed after it was used
        // Used and then changed again, by way of the last place of the memo.
        (b"]]r\xff\xff\xff\xffa]j\xff\xff\xff\xffNa.", 17),
        (b"\x8b\xff\xff\xff\xff.", 2),
        (b"I12x\n.", 2),
        (b"I99999999999999999999999999\n.", 2),
        (b"\x86.", 2),
        (b"N(N\x90.", 5),
    ] {
        let bytes = [b"\x80\x04", program].concat();
        match error_of(&bytes) {
            SnapshotError::Malformed { offset: found, .. } => {
                assert_eq!(found, offset, "{program:?}");
            }
            other => panic!("{program:?}: {other}"),
        }
    }
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
fn compression_bombs_stop_at_the_limit() {
    let bomb = || repeated(b"\x80\x04", b"N0", 128 << 20);
    let packed = zstd::encode_all(bomb(), 1).unwrap();
    assert!(packed.len() < 1 << 20, "{}", packed.len());
    let error = error_of(&packed);
    assert!(
        matches!(error, SnapshotError::Limit { limit: "pickle_bytes", offset, .. }
            if offset == SMALL.pickle_bytes),
        "{error}"
    );
    assert!(error.to_string().contains("raise `Limits::pickle_bytes`"), "{error}");

    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::copy(&mut bomb(), &mut gzip).unwrap();
    let error = error_of(&gzip.finish().unwrap());
    assert!(matches!(error, SnapshotError::Limit { limit: "pickle_bytes", .. }), "{error}");

    let xz = "import lzma, sys
sys.stdout.buffer.write(lzma.compress(b'\\x80\\x04' + b'N0' * (33 << 20), preset=0))";
    let error = error_of(&python(xz, &[]));
    assert!(matches!(error, SnapshotError::Limit { limit: "pickle_bytes", .. }), "{error}");
}

#[test]
fn a_bomb_behind_the_snapshot_stops_at_the_limit_too() {
    let packed = zstd::encode_all(repeated(b"\x80\x04].", b"\0", 128 << 20), 1).unwrap();
    let error = error_of(&packed);
    assert!(matches!(error, SnapshotError::Limit { limit: "pickle_bytes", .. }), "{error}");
}

#[test]
fn compression_that_looks_back_too_far_is_refused_before_it_takes_memory() {
    // A valid file whose header asks for a dictionary of 4 GiB, checksum and all.
    let program = "
import lzma, struct, sys, zlib
packed = bytearray(lzma.compress(b'\\x80\\x04].'))
size = (packed[12] + 1) * 4
assert packed[14:16] == b'\\x21\\x01'
packed[16] = 40
packed[12 + size - 4:12 + size] = struct.pack('<I', zlib.crc32(packed[12:12 + size - 4]))
sys.stdout.buffer.write(packed)";
    let xz = python(program, &[]);
    let mut zstd = zstd::stream::write::Encoder::new(Vec::new(), 1).unwrap();
    zstd.window_log(28).unwrap();
    zstd.write_all(&[0; 1 << 20]).unwrap();
    for (name, packed) in [("xz", xz), ("zstd", zstd.finish().unwrap())] {
        let error = error_of(&packed);
        assert!(
            matches!(error, SnapshotError::Window { compression, .. } if compression == name),
            "{name}: {error}"
        );
    }
}

#[test]
fn a_few_bytes_that_name_the_same_thing_many_times_are_not_copied_beyond_the_limit() {
    const MAKE: &str = "
import pickle, sys
entries = [{'action': 'alloc', 'addr': 1, 'size': 1, 'stream': 0} for i in range(3000)]
blocks = [{'address': 0, 'size': 1, 'requested_size': 1, 'state': 'inactive'} for i in range(3000)]
segment = {'device': 0, 'address': 0, 'total_size': 1, 'allocated_size': 1, 'active_size': 2,
           'requested_size': 3, 'stream': 0, 'segment_type': 'large', 'blocks': blocks}
frames = [{'name': 'a', 'filename': 'b', 'line': 1}] * 100
laughs = [[]]
for i in range(40):
    laughs = [laughs] * 1000
name = 'n' * 1000000
notes = [{'name': name, 'stage': name, 'device': 0, 'time_us': i} for i in range(10000)]
";
    for (what, snapshot, expected) in [
        ("a trace for many devices", "{'segments': [], 'device_traces': [entries] * 10000}", false),
        (
            "an entry many times",
            "{'segments': [], 'device_traces': [entries[:1] * 1000000]}",
            false,
        ),
        ("a segment many times", "[segment] * 10000", false),
        ("blocks for many segments", "[dict(segment) for i in range(10000)]", false),
        ("lists of lists of lists", "{'segments': [], 'x': laughs}", true),
        ("lists of lists as traces", "{'segments': [], 'device_traces': laughs}", false),
        (
            "a long name for many annotations",
            "{'segments': [], 'external_annotations': notes}",
            true,
        ),
    ] {
        let program = format!("{MAKE}\nsys.stdout.buffer.write(pickle.dumps({snapshot}, 4))");
        let bytes = python(&program, &[]);
        let start = Instant::now();
        let result = read(&*bytes, &SMALL);
        assert!(start.elapsed() < Duration::from_secs(5), "{what}: {:?}", start.elapsed());
        match (result, expected) {
            (Ok(_), true) => {}
            (
                Err(SnapshotError::Limit { limit: "memory", .. } | SnapshotError::Shape { .. }),
                false,
            ) => {}
            (other, _) => panic!("{what}: {:?}", other.map(|_| "accepted")),
        }
    }
}

#[test]
fn an_error_of_the_reader_is_passed_on() {
    struct Broken;
    impl Read for Broken {
        fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
            Err(std::io::Error::other("the disk is gone"))
        }
    }
    let error = read(Cursor::new(b"\x80\x04(").chain(Broken), &SMALL).unwrap_err();
    assert!(matches!(error, SnapshotError::Io(_)), "{error}");
    assert!(error.to_string().contains("the disk is gone"), "{error}");
}

#[test]
fn a_reader_that_gives_single_bytes_gives_the_same_snapshot() {
    struct Dribble(Cursor<Vec<u8>>);
    impl Read for Dribble {
        fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
            let one = into.len().min(1);
            self.0.read(&mut into[..one])
        }
    }
    let bytes = small_file();
    let whole = parse(&bytes).unwrap();
    let dribbled = read(Dribble(Cursor::new(bytes)), &SMALL).unwrap();
    assert_eq!(whole.traces, dribbled.traces);
    assert_eq!(whole.segments, dribbled.segments);
}

proptest! {
    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        fuzz_pickle(&bytes);
        fuzz_pickle(&[b"\x80\x04", bytes.as_slice()].concat());
    }
}
