//! `tonnage replay`: output and exit status.

use std::path::Path;
use std::process::Output;

use assert_cmd::Command;
use serde_json::Value;

use crate::support::{command, testdata, text, tonnage};

fn replay(file: &Path, more: &[&str]) -> Output {
    let mut arguments = vec!["replay", file.to_str().unwrap()];
    arguments.extend(more);
    tonnage(&arguments)
}

/// Output without what differs from run to run.
fn steady(output: &Output) -> String {
    let lines = text(&output.stdout).lines().filter(|line| !line.starts_with("replayed in"));
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn without_a_file_the_embedded_recording_is_exact() {
    let output = tonnage(&["replay"]);
    assert_eq!(output.status.code(), Some(0));
    insta::assert_snapshot!(steady(&output));
}

#[test]
fn a_recording_that_needs_a_limit_exits_with_1_and_suggests_one() {
    let file = testdata("traces/multistream.gc60.pickle.zst");
    let output = replay(&file, &[]);
    assert_eq!(output.status.code(), Some(1));
    let shown = steady(&output);
    insta::assert_snapshot!(shown.split_once(": ").unwrap().1);
    let fixed = replay(&file, &["--limit", "328529510", "--total", "150109880320"]);
    assert_eq!(fixed.status.code(), Some(0), "{}", text(&fixed.stdout));
}

#[test]
fn json_is_one_object_with_every_field() {
    let output =
        replay(&testdata("traces/mlp_seed.tight.pickle.zst"), &["--json", "--limit=194MiB"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    let mut keys: Vec<_> = json.as_object().unwrap().keys().map(String::as_str).collect();
    keys.sort_unstable();
    let mut expected = [
        "schema",
        "kind",
        "file",
        "device",
        "release",
        "release_candidates",
        "events",
        "history",
        "conf",
        "limit",
        "exact",
        "difference",
        "inferred",
        "stats",
    ];
    expected.sort_unstable();
    assert_eq!(keys, expected);
    assert_eq!(json["schema"], 1);
    assert_eq!(json["release"], "2.11");
    assert_eq!(json["events"], 135);
    assert_eq!(json["history"], "whole");
    assert_eq!(json["limit"], 194 << 20);
    assert_eq!(json["exact"], true);
    assert_eq!(json["difference"], Value::Null);
    assert_eq!(json["stats"]["num_ooms"], 1);
    assert_eq!(json["stats"].as_object().unwrap().len(), 122);
}

#[test]
fn a_difference_is_told_in_json_with_its_event() {
    let file = testdata("traces/multistream.gc60.pickle.zst");
    let output = replay(&file, &["--json"]);
    assert_eq!(output.status.code(), Some(1));
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["exact"], false);
    assert_eq!(json["difference"]["event"], 144);
    for side in ["expected", "got"] {
        assert!(json["difference"][side].as_str().unwrap().starts_with("segment_free"), "{json}");
    }
}

#[test]
fn command_streams_replay_too() {
    let output = replay(&testdata("streams/25.jsonl"), &["--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stdout));
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&json["exact"], &json["events"]), (&Value::Bool(true), &Value::from(220)));
}

#[test]
fn a_stream_under_the_rules_of_another_release_differs() {
    // Nested pools: 2.9 lets the oldest win.
    let differs = (20..26).any(|number| {
        let file = testdata(&format!("streams/{number}.jsonl"));
        replay(&file, &["--pytorch", "2.9"]).status.code() == Some(1)
    });
    assert!(differs);
}

#[test]
fn a_newer_release_gets_the_nearest_rules_and_an_older_one_none() {
    let file = testdata("streams/00.jsonl");
    for (version, known) in [("2.15.0", true), ("2.16", false), ("3.0.0a0+git1", false)] {
        let output = replay(&file, &["--pytorch", version]);
        let told = text(&output.stderr);
        assert_ne!(output.status.code(), Some(2), "{told}");
        assert_eq!(told.contains("the rules of 2.15 are taken"), !known, "{version}: {told}");
        assert_eq!(told.matches("warning").count(), usize::from(!known), "{told}");
    }
    for version in ["2.7.1", "1.13"] {
        let output = replay(&file, &["--pytorch", version]);
        assert_eq!(output.status.code(), Some(2));
        let told = text(&output.stderr);
        assert!(told.contains("2.8"), "{told}");
    }
}

#[test]
fn standard_input_is_read_for_a_dash() {
    let bytes = std::fs::read(testdata("traces/mlp_seed.default.pickle.zst")).unwrap();
    let mut command = command();
    command.args(["replay", "-"]).write_stdin(bytes).assert().success();
}

#[test]
fn plain_and_gzip_files_are_told_by_their_bytes_not_their_names() {
    let zstd = std::fs::read(testdata("traces/mlp_seed.default.pickle.zst")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let script = "import gzip,sys; sys.stdout.buffer.write(gzip.compress(sys.stdin.buffer.read()))";
    let plain = zstd_decoded(&zstd);
    let gzip = Command::new("python3").args(["-c", script]).write_stdin(plain.clone()).output();
    for (name, bytes) in
        [("plain.pickle.gz", plain), ("gzip.pickle", gzip.unwrap().stdout), ("zstd.txt", zstd)]
    {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        assert_eq!(replay(&path, &[]).status.code(), Some(0), "{name}");
    }
}

fn zstd_decoded(bytes: &[u8]) -> Vec<u8> {
    zstd::decode_all(bytes).unwrap()
}

#[test]
fn bad_input_exits_with_2_and_says_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let cases: [(&str, &[u8], &str); 5] = [
        ("empty", b"", "empty file"),
        ("text", b"hello, this is no snapshot", "_dump_snapshot"),
        ("executes", b"\x80\x04cos\nsystem\n(S'true'\ntR.", "byte 2"),
        ("cut", b"\x80\x04}", "3"),
        ("stream", b"{\"format\":\"allocator-stream\"}", "line 1"),
    ];
    for (name, bytes, part) in cases {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        let output = replay(&path, &[]);
        let message = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{name}: {message}");
        assert!(message.contains(part) && message.contains(name), "{name}: {message}");
        assert!(output.stdout.is_empty(), "{name}");
    }
    let missing = replay(&folder.path().join("missing"), &[]);
    assert_eq!(missing.status.code(), Some(2));
    assert!(text(&missing.stderr).contains("cannot open"), "{}", text(&missing.stderr));
}

#[test]
fn bad_usage_exits_with_2() {
    for (arguments, part) in [
        (&["replay", "--limit", "many"][..], "24GiB"),
        (&["replay", "--pytorch", "1.0"], "2.15"),
        (&["replay", "--ordinal", "7"], "device 7"),
        (&["replay", "--nonsense"], "--nonsense"),
        (&["unpack"], "unpack"),
        (&[], "Usage"),
    ] {
        let output = tonnage(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(text(&output.stderr).contains(part), "{arguments:?}: {}", text(&output.stderr));
    }
    let stream = testdata("streams/00.jsonl");
    assert_eq!(replay(&stream, &["--limit", "1GiB"]).status.code(), Some(2));
}

#[test]
fn no_colour_reaches_a_pipe() {
    let output = tonnage(&["replay"]);
    assert!(!text(&output.stdout).contains('\u{1b}'));
}
