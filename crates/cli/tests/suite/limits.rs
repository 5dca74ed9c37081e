//! Small files that ask for much: every verb that reads stops early, says how to allow more, and never aborts.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::support::{command, recording, text, tonnage};

/// Packs a pickle that begins with `head` and goes on with so many MiB of `piece`.
fn bomb(folder: &Path, name: &str, head: &[u8], piece: &[u8], mebibytes: usize) -> PathBuf {
    let path = folder.join(name);
    let mut packed =
        zstd::stream::write::Encoder::new(std::fs::File::create(&path).unwrap(), 1).unwrap();
    let block = piece.repeat((1 << 20) / piece.len());
    std::io::Write::write_all(&mut packed, head).unwrap();
    for _ in 0..mebibytes {
        std::io::Write::write_all(&mut packed, &block).unwrap();
    }
    packed.finish().unwrap();
    path
}

/// Each verb that reads a recording, without its file.
const READERS: [&[&str]; 7] = [
    &["inspect"],
    &["replay"],
    &["replay", "--conf", ""],
    &["report"],
    &["tune"],
    &["export", "--format", "csv", "--output", "-"],
    &["view", "--no-open", "--port", "0"],
];

fn read(reader: &[&str], file: &Path, more: &[&str]) -> Output {
    let mut arguments = reader.to_vec();
    arguments.insert(1, file.to_str().unwrap());
    arguments.extend(more);
    tonnage(&arguments)
}

fn is_refused(output: &Output, what: &str) {
    assert_eq!(output.status.code(), Some(2), "{what}: {}", text(&output.stderr));
    let message = text(&output.stderr);
    assert!(message.contains("--max-memory "), "{what}: {message}");
    assert!(message.contains("of memory that it may take"), "{what}: {message}");
}

#[test]
fn every_verb_stops_at_the_memory_that_it_may_take_and_names_the_option() {
    let folder = tempfile::tempdir().unwrap();
    let file = bomb(folder.path(), "values.zst", b"\x80\x04](", b"N", 64);
    for reader in READERS {
        is_refused(&read(reader, &file, &["--max-memory", "64MiB"]), &format!("{reader:?}"));
    }
    let (bomb, good) = (file.to_str().unwrap(), recording("mlp_seed.default"));
    let output = tonnage(&["diff", &good, bomb, "--max-memory", "64MiB"]);
    is_refused(&output, "diff");
    // What is read of the other kind of file is bounded too.
    let stream = folder.path().join("endless.jsonl");
    std::fs::write(&stream, [b"{", &*b" ".repeat(2 << 20)].concat()).unwrap();
    is_refused(&read(&["replay"], &stream, &["--max-memory", "8MiB"]), "stream");
}

#[test]
fn an_ordinary_file_is_read_within_little_and_more_can_be_allowed() {
    let file = PathBuf::from(recording("gpt2_varlen.default.stacks"));
    for reader in [&["inspect"][..], &["report"]] {
        let output = read(reader, &file, &["--max-memory", "256MiB"]);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    }
    is_refused(&read(&["inspect"], &file, &["--max-memory", "1MiB"]), "too little");
    let output = read(&["inspect"], &file, &["--max-memory", "much"]);
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn a_small_file_takes_a_gibibyte_at_most_however_much_there_is() {
    let folder = tempfile::tempdir().unwrap();
    // Each value takes sixteen bytes and more: eight GiB, if they may.
    let file = bomb(folder.path(), "values.zst", b"\x80\x04](", b"N", 512);
    let size = file.metadata().unwrap().len();
    assert!(size < 256 << 10, "{size}");
    let output = Command::new("python3")
        .args(["-c", MEASURE])
        .arg(command().get_program())
        .arg("inspect")
        .arg(&file)
        .output()
        .unwrap();
    let said = text(&output.stdout);
    let (code, kib) = said.trim().split_once(' ').unwrap_or_else(|| panic!("{said}"));
    assert_eq!(code, "2");
    assert!(text(&output.stderr).contains("--max-memory"), "{}", text(&output.stderr));
    // A gibibyte, what the file's size allows, and what unpacking and the program itself take.
    let kib: u64 = kib.parse().unwrap();
    assert!(kib < (1 << 20) + (200 << 10), "{kib} KiB");
}

/// Runs a command; its exit status, and the most memory that it took, in KiB.
const MEASURE: &str = "import resource, subprocess, sys
code = subprocess.run(sys.argv[1:]).returncode
print(code, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)";

#[test]
fn under_a_limit_of_the_process_reading_ends_with_a_message_and_does_not_abort() {
    let folder = tempfile::tempdir().unwrap();
    for (name, head, piece) in [
        ("values.zst", &b"\x80\x04]("[..], &b"N"[..]),
        ("stack.zst", b"\x80\x04", b"N"),
        ("dictionaries.zst", b"\x80\x04](", b"}"),
        ("memo.zst", b"\x80\x04", b"N\x94"),
        ("text.zst", b"\x80\x04\x8d\0\0\0\0\x02\0\0\0", b"a"),
        ("tuples.zst", b"\x80\x04", b"NN\x86"),
    ] {
        let file = bomb(folder.path(), name, head, piece, 256);
        let output = Command::new("sh")
            .args(["-c", "ulimit -v 700000 && exec \"$0\" inspect \"$1\""])
            .arg(command().get_program())
            .arg(&file)
            .output()
            .unwrap();
        is_refused(&output, name);
    }
}
