//! `tonnage replay --conf` and `tonnage tune`: output and exit status.

use std::process::Output;

use serde_json::Value;

use crate::support::{command, json, testdata, text};

fn tonnage(verb: &str, file: Option<&str>, more: &[&str]) -> Output {
    let mut command = command();
    command.arg(verb);
    // A path that is the same on every machine.
    command.current_dir(testdata(""));
    command.args(file);
    command.args(more).output().unwrap()
}

fn keys(json: &Value) -> Vec<&str> {
    let mut keys: Vec<_> = json.as_object().unwrap().keys().map(String::as_str).collect();
    keys.sort_unstable();
    keys
}

const MLP: Option<&str> = Some("traces/mlp_seed.default.pickle.zst");
const MULTISTREAM: Option<&str> = Some("traces/multistream.default.pickle.zst");
const RESNET_TIGHT: Option<&str> = Some("traces/resnet50.tight.pickle.zst");

#[test]
fn the_embedded_recording_under_expandable_segments() {
    let output = tonnage("replay", None, &["--conf", "expandable_segments:True"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    insta::assert_snapshot!(text(&output.stdout));
}

#[test]
fn a_new_failure_is_told_with_what_it_means() {
    let output = tonnage("replay", MLP, &["--conf", "", "--limit", "194MiB"]);
    assert_eq!(output.status.code(), Some(0), "a prediction is an answer");
    insta::assert_snapshot!(text(&output.stdout));
}

#[test]
fn failures_that_are_served_now_are_told() {
    let output = tonnage("replay", RESNET_TIGHT, &["--conf", "expandable_segments:True"]);
    assert_eq!(output.status.code(), Some(0));
    insta::assert_snapshot!(text(&output.stdout));
}

#[test]
fn json_has_what_a_replay_has_and_the_prediction() {
    let limit = ["--conf", "", "--limit", "203350384", "--total", "150109880320", "--json"];
    let output = tonnage("replay", MLP, &limit);
    assert_eq!(output.status.code(), Some(0));
    let json = json(&output);
    for key in [
        "schema",
        "file",
        "device",
        "release",
        "events",
        "conf",
        "limit",
        "exact",
        "difference",
        "inferred",
        "stats",
        "peaks",
        "floor",
        "waste",
        "oom",
        "policy",
        "at_peak",
        "oom_means",
    ] {
        assert!(json.get(key).is_some(), "{key}");
    }
    assert_eq!((&json["exact"], &json["schema"]), (&Value::Null, &Value::from(1)));
    assert_eq!(keys(&json["peaks"]), ["active", "allocated", "requested", "reserved"]);
    assert_eq!(json["peaks"]["reserved"], 201_326_592);
    assert_eq!(json["floor"], 195_526_856);
    assert_eq!(keys(&json["oom"]), ["bytes", "event", "request", "stream"]);
    assert_eq!((&json["oom"]["event"], &json["oom"]["request"]), (&81.into(), &43.into()));
    let waste = json["waste"].as_object().unwrap();
    let kinds = [
        "fragmentation",
        "pending",
        "pinned_segment",
        "private_pool",
        "rounding",
        "stream",
        "unsplit",
    ];
    assert_eq!(keys(&json["waste"]), kinds);
    let wasted: u64 = waste.values().map(|bytes| bytes.as_u64().unwrap()).sum();
    let requested = json["at_peak"]["requested"].as_u64().unwrap();
    assert_eq!(json["at_peak"]["reserved"], wasted + requested);
    assert_eq!(json["at_peak"]["reserved"], json["peaks"]["reserved"]);
}

#[test]
fn a_policy_alone_keeps_the_recorded_settings() {
    let file = Some("traces/mlp_seed.expandable.pickle.zst");
    let json = json(&tonnage("replay", file, &["--policy", "pytorch", "--json"]));
    assert_eq!(json["conf"], "expandable_segments:True");
    assert_eq!(json["peaks"]["reserved"], 213_909_504);
    assert_eq!((&json["limit"], &json["oom"]), (&Value::Null, &Value::Null));
}

#[test]
fn a_recording_that_needs_its_limit_to_be_read_is_given_the_one_asked_about() {
    let file = Some("traces/multistream.gc60.pickle.zst");
    let limit = ["--conf", "garbage_collection_threshold:0.6", "--limit", "328529510", "--json"];
    let with_limit = json(&tonnage("replay", file, &limit));
    assert_eq!(with_limit["peaks"]["reserved"], 257_949_696);
    let unlimited = json(&tonnage("replay", file, &["--conf", "", "--json"]));
    let said = |json: &Value| json["inferred"].to_string().contains("was understood up to entry");
    assert_eq!((said(&with_limit), said(&unlimited)), (false, true));
}

#[test]
fn settings_that_cannot_be_followed_exit_with_2_and_say_why() {
    let stream = Some("streams/00.jsonl");
    for (verb, file, arguments, part) in [
        ("replay", MLP, &["--conf", "max_split_size_mb:1"][..], "max_split_size_mb"),
        ("replay", MLP, &["--conf", "nonsense:1"], "nonsense"),
        ("replay", MLP, &["--conf", "backend:cudaMallocAsync"], "native"),
        ("replay", MLP, &["--conf", "per_process_memory_fraction:0.5"], "--total"),
        ("replay", MLP, &["--policy", "nonsense"], "pytorch"),
        ("replay", stream, &["--conf", ""], "snapshot"),
        ("tune", stream, &[], "snapshot"),
        ("tune", Some("traces/missing.pickle"), &[], "cannot open"),
        ("tune", MLP, &["--limit", "much"], "24GiB"),
    ] {
        let output = tonnage(verb, file, arguments);
        let message = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {message}");
        assert!(message.contains(part), "{arguments:?}: {message}");
        assert!(output.stdout.is_empty(), "{arguments:?}");
    }
}

#[test]
fn tune_says_what_to_set_and_what_it_saves() {
    let output = tonnage("tune", MULTISTREAM, &[]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    insta::assert_snapshot!(text(&output.stdout));
}

#[test]
fn tune_says_when_nothing_fits_and_what_is_needed() {
    let output = tonnage("tune", MLP, &["--limit", "150MiB"]);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    insta::assert_snapshot!(text(&output.stdout));
}

#[test]
fn tune_says_when_there_is_nothing_to_gain() {
    let file = Some("traces/mlp_seed.expandable.pickle.zst");
    let output = tonnage("tune", file, &["--pytorch", "2.9"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("nothing to gain"), "{}", text(&output.stdout));
    assert!(!text(&output.stdout).contains("export"), "{}", text(&output.stdout));
}

#[test]
fn what_pages_cost_the_driver_is_told_in_total_from_growth_for_each_time_and_each_iteration() {
    let output = tonnage("replay", MLP, &["--policy", "pages", "--repeat", "2", "--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let json = json(&output);
    let ratio = json["waste_ratio"].as_f64().unwrap();
    assert!((1.0..1.05).contains(&ratio), "{ratio}");
    let driver = &json["driver_ns"];
    let passes = driver["passes"].as_array().unwrap();
    let ns = |it: &Value, key: &str| it[key].as_u64().unwrap();
    let sum = |all: &[Value], key: &str| all.iter().map(|it| ns(it, key)).sum::<u64>();
    assert_eq!(passes.len(), 2);
    for key in ["total", "growth"] {
        assert_eq!(ns(driver, key), sum(passes, key));
        assert!(ns(&passes[0], key) > ns(&passes[1], key), "{key}");
    }
    for pass in passes {
        let iterations = pass["iterations"].as_array().unwrap();
        assert!(iterations.len() > 2, "{iterations:?}");
        assert!(sum(iterations, "total") <= ns(pass, "total"));
        assert!(sum(iterations, "recorded") > 0);
        assert!(sum(iterations, "recorded") <= ns(driver, "recorded"));
        assert!(iterations.is_sorted_by_key(|it| ns(it, "event")));
    }
    assert_eq!(passes[1]["iterations"][2]["percent"], 0.0, "the same again");
    let pytorch = self::json(&tonnage("replay", MLP, &["--conf", "", "--json"]));
    assert_eq!(pytorch["driver_ns"]["total"], 0);
}

#[test]
fn tune_as_json_has_the_candidates_best_first() {
    let output = tonnage("tune", MULTISTREAM, &["--limit", "300MiB", "--json"]);
    assert_eq!(output.status.code(), Some(0));
    let json = json(&output);
    for key in ["schema", "file", "floor", "limit", "candidates"] {
        assert!(!json[key].is_null(), "{key}");
    }
    assert_eq!((&json["floor"], &json["limit"]), (&249_520_128.into(), &(300 << 20).into()));
    let candidates = json["candidates"].as_array().unwrap();
    for candidate in candidates {
        let expected = [
            "allocated_peak",
            "conf",
            "driver_calls",
            "driver_ns",
            "ooms",
            "policy",
            "reserved_peak",
            "retries",
        ];
        assert_eq!(keys(candidate), expected);
    }
    let rank = |it: &&Value| (it["ooms"].as_u64() > Some(0), it["reserved_peak"].as_u64());
    assert!(candidates.iter().collect::<Vec<_>>().is_sorted_by_key(rank), "{candidates:?}");
    let pages = candidates.iter().find(|it| it["policy"] == "pages").expect("it is among them");
    assert!(pages["driver_calls"].as_u64() > Some(0) && pages["driver_ns"].as_u64() > Some(0));
    let output = tonnage("tune", MULTISTREAM, &[]);
    assert!(text(&output.stdout).contains("TONNAGE_CONF=policy:pages"), "{}", text(&output.stdout));
}

#[test]
fn no_colour_and_no_progress_reach_a_pipe() {
    let output = tonnage("tune", MLP, &[]);
    assert!(!text(&output.stdout).contains('\u{1b}'));
    assert!(output.stderr.is_empty(), "{}", text(&output.stderr));
}
