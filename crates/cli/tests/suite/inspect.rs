//! `tonnage inspect`: output and exit status.

use crate::support::{command, json, pickled, recording, snapshot, steady, text, tonnage};
use serde_json::Value;

#[test]
fn a_file_is_described_in_ten_lines() {
    let output = tonnage(&["inspect", &recording("gpt2_varlen.default.stacks")]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let shown = steady(&output);
    assert_eq!(shown.lines().count(), 10);
    insta::assert_snapshot!(shown);
}

#[test]
fn json_has_every_promised_field() {
    let output = tonnage(&["inspect", "--json", &recording("mlp_seed.tight")]);
    let json = json(&output);
    assert_eq!(json["schema"], 1);
    let device = &json["devices"][0];
    for (field, value) in [
        ("device", Value::from(0)),
        ("events", 135.into()),
        ("history", "whole".into()),
        ("segments", 11.into()),
        ("reserved", 201_326_592.into()),
        ("allocated", 68_157_440.into()),
        ("active", 68_157_440.into()),
        ("requested", 68_157_440.into()),
        ("allocated_peak", 178_661_376.into()),
        ("allocated_peak_event", 79.into()),
    ] {
        assert_eq!(device[field], value, "{field}");
    }
}

#[test]
fn a_file_without_history_tells_what_its_segments_tell() {
    let block = |address: u32, size: u32, state: &str| {
        format!(
            "{{'address': {address}, 'size': {size}, 'requested_size': {size}, 'state': '{state}'}}"
        )
    };
    let bytes = pickled(&format!(
        "[{{'device': 3, 'address': 4096, 'total_size': 2097152, 'allocated_size': 1024, \
           'active_size': 2048, 'requested_size': 2048, 'stream': 0, 'segment_type': 'small', \
           'blocks': [{}, {}, {}]}}]",
        block(4096, 1024, "active_allocated"),
        block(5120, 1024, "active_pending_free"),
        block(6144, 2_095_104, "inactive"),
    ));
    let output = command().args(["inspect", "-", "--json"]).write_stdin(bytes.clone()).output();
    let json = json(&output.unwrap());
    let device = &json["devices"][0];
    assert_eq!(device["device"], 3);
    assert_eq!(device["history"], "none");
    assert_eq!(device["reserved"], 2 << 20);
    assert_eq!(device["active"], 2048);
    assert_eq!(device["allocated_peak"], Value::Null);
    assert_eq!(device["allocated_peak_event"], Value::Null);
    let output = command().args(["inspect", "-"]).write_stdin(bytes).output().unwrap();
    assert!(text(&output.stdout).contains("_record_memory_history"), "{}", text(&output.stdout));
}

#[test]
fn an_empty_snapshot_can_be_inspected() {
    let output = command().args(["inspect", "-"]).write_stdin(pickled("[]")).output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert!(text(&output.stdout).contains("nothing was recorded"));
}

#[test]
fn bad_input_exits_with_2() {
    let output = tonnage(&["inspect", "/nowhere/snapshot.pickle"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("cannot open /nowhere/snapshot.pickle"));
    let output = command().args(["inspect", "-"]).write_stdin("no pickle").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(tonnage(&["inspect"]).status.code(), Some(2));
}

#[test]
fn pinned_memory_has_totals_of_its_own() {
    let file = snapshot("release_2_15.p4");
    let output = tonnage(&["inspect", &file]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    insta::assert_snapshot!(steady(&output));
    let json = json(&tonnage(&["inspect", "--json", &file]));
    assert_eq!(json["pinned"]["reserved"], (4 << 20) + 1536);
    assert_eq!(json["pinned"]["lines"][0]["bytes"], 512);
    assert_eq!(json["devices"].as_array().map(Vec::len), Some(1));
    assert_eq!(json["devices"][0]["reserved"], 22 << 20);
    assert_eq!(json["devices"][0]["actions"]["annotate"], 1);
    // What PyTorch itself wrote says the same of its host.
    let json = self::json(&tonnage(&["inspect", "--json", &snapshot("pytorch_2.15.0")]));
    assert_eq!(json["pinned"]["allocated"], 512);
    assert_eq!(json["pinned"]["allocated_peak"], (4 << 20) + 512);
}

#[test]
fn files_that_do_not_speak_of_pinned_memory_show_none() {
    let file = snapshot("release_2_13.p4");
    assert!(!text(&tonnage(&["inspect", &file]).stdout).contains("pinned"));
    assert_eq!(json(&tonnage(&["inspect", "--json", &file]))["pinned"], Value::Null);
}
