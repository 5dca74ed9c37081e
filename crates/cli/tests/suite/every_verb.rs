//! What every verb does alike: exit status, text from files, bytes behind a snapshot, closed pipes, colours.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::support::{command, json, pickled, recording, text, tonnage};

/// A snapshot with one block that lives to its end, with these settings and actions that nobody knows.
fn snapshot(path: &Path, conf: &str, action: &str) -> String {
    let entry = |action: &str, size: u64| {
        format!(
            "{{'action': '{action}', 'addr': 4194304, 'size': {size}, 'stream': 0, 'time_us': 1}}"
        )
    };
    let entries =
        [entry("segment_alloc", 2 << 20), entry("alloc", 512), entry(action, 512)].join(", ");
    let expression = format!(
        "{{'segments': [{{'device': 0, 'address': 4194304, 'total_size': 2097152, 'allocated_size': 512, \
           'active_size': 512, 'requested_size': 512, 'stream': 0, 'segment_type': 'small', 'blocks': \
           [{{'address': 4194304, 'size': 512, 'requested_size': 512, 'state': 'active_allocated'}}, \
           {{'address': 4194816, 'size': 2096640, 'requested_size': 0, 'state': 'inactive'}}]}}], \
           'device_traces': [[{entries}]], 'allocator_settings': {{'PYTORCH_CUDA_ALLOC_CONF': '{conf}'}}}}"
    );
    std::fs::write(path, pickled(&expression)).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn exit_status_is_0_for_yes_1_for_no_and_2_for_bad_input() {
    let folder = tempfile::tempdir().unwrap();
    let broken = folder.path().join("broken.pickle");
    std::fs::write(&broken, b"\x80\x04cos\nsystem\n.").unwrap();
    let (broken, good) = (broken.to_str().unwrap(), recording("mlp_seed.default"));
    let (good, trace) = (good.as_str(), folder.path().join("trace"));
    let trace = trace.to_str().unwrap();
    let needs_limit = recording("multistream.gc60");
    let cases: &[(i32, &[&str])] = &[
        (0, &["inspect", good]),
        (2, &["inspect", broken]),
        (2, &["inspect", "no such file"]),
        (2, &["inspect"]),
        (0, &["replay", good]),
        (0, &["replay", good, "--conf", "", "--limit", "64MiB"]),
        (1, &["replay", &needs_limit]),
        (2, &["replay", broken]),
        (2, &["replay", good, "--conf", "no_such_key:1"]),
        (2, &["replay", good, "--limit", "24 gallons"]),
        (0, &["report", good]),
        (2, &["report", broken]),
        (0, &["tune", good]),
        (1, &["tune", good, "--limit", "64MiB"]),
        (2, &["tune", broken]),
        (0, &["diff", good, good]),
        (1, &["diff", &recording("mlp_seed.tight"), good, "--fail-if-peak-grows", "0"]),
        (2, &["diff", good, broken]),
        (0, &["export", good, "--format", "perfetto", "--output", trace]),
        (2, &["export", broken, "--format", "csv", "--output", trace]),
        (2, &["export", good, "--format", "xml"]),
        (0, &["top", "--json"]),
        (2, &["top", "--interval", "never"]),
        (0, &["completions", "bash"]),
        (2, &["completions", "csh"]),
        (0, &["man"]),
        (2, &["man", "--dir", good]),
        (0, &["--help"]),
        (0, &["--version"]),
        (2, &["no-such-verb"]),
    ];
    for (status, arguments) in cases {
        let output = tonnage(arguments);
        let message = text(&output.stderr);
        assert_eq!(output.status.code(), Some(*status), "{arguments:?}: {message}");
        // Whoever is refused is told why, and nothing that could be taken for an answer is printed.
        assert_eq!(message.starts_with("error:"), *status == 2, "{arguments:?}: {message}");
        assert!(*status != 2 || output.stdout.is_empty(), "{arguments:?}");
    }
}

#[test]
fn sizes_are_bytes_binary_or_decimal() {
    let file = recording("mlp_seed.default");
    for (size, limit) in [
        ("24GiB", 24_u64 << 30),
        ("24GB", 24_000_000_000),
        ("24 gib", 24 << 30),
        ("1000000000", 1_000_000_000),
    ] {
        let output = tonnage(&["replay", &file, "--conf", "", "--json", "--limit", size]);
        assert_eq!(json(&output)["limit"], limit, "{size}");
    }
}

#[test]
fn text_from_a_file_never_commands_the_terminal() {
    let folder = tempfile::tempdir().unwrap();
    let evil = "evil\\x1b]0;owned\\x07\\x9b31m\\u202e";
    let file = snapshot(&folder.path().join("a\u{1b}[31m.pickle"), evil, evil);
    for verb in [
        &["replay"][..],
        &["replay", "--json"],
        &["replay", "--conf="],
        &["tune"],
        &["tune", "--json"],
        &["inspect"],
    ] {
        let mut command = command();
        command.args(&verb[..1]).arg(&file).args(&verb[1..]);
        // As on a terminal: otherwise escapes would be taken out with the colours.
        let output = command.env("CLICOLOR_FORCE", "1").env_remove("NO_COLOR").output().unwrap();
        assert_ne!(output.status.code(), Some(2), "{verb:?}: {}", text(&output.stderr));
        let mut shown = text(&output.stdout).to_owned() + text(&output.stderr);
        for own in ["\u{1b}[1m", "\u{1b}[0m", "\u{1b}[32m", "\u{1b}[31m", "\u{1b}[39m"] {
            shown = shown.replace(own, "");
        }
        assert!(verb[0] == "inspect" || shown.contains("evil"), "{verb:?}: {shown}");
        let dangerous: Vec<_> =
            shown.chars().filter(|&c| c != '\n' && (c.is_control() || c == '\u{202e}')).collect();
        assert!(dangerous.is_empty(), "{verb:?}: {dangerous:?} in {shown:?}");
    }
}

#[test]
fn bytes_behind_the_snapshot_are_told_on_standard_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("twice.pickle");
    let file = snapshot(&path, "", "snapshot");
    let mut bytes = std::fs::read(&path).unwrap();
    bytes.extend_from_within(..);
    let once = bytes.len() / 2;
    std::fs::write(&path, bytes).unwrap();
    for verb in ["inspect", "replay", "tune"] {
        let output = tonnage(&[verb, &file, "--json"]);
        assert_eq!(output.status.code(), Some(0), "{verb}: {}", text(&output.stderr));
        let message = text(&output.stderr);
        let told =
            message.starts_with("warning:") && message.contains(&format!("{once} bytes before"));
        assert!(told, "{verb}: {message}");
        serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap();
    }
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let (program, file) = (command().get_program().to_owned(), recording("gpt2_varlen.default"));
    let csv: &[&str] = &["export", &file, "--format", "csv", "--output", "-"];
    for arguments in
        [&["replay", &file][..], &["tune", &file, "--json"], &["diff", &file, &file], csv]
    {
        let mut child = Command::new(&program)
            .args(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", text(&output.stderr));
        assert!(output.stderr.is_empty(), "{arguments:?}: {}", text(&output.stderr));
    }
}
