//! Releases: which one a file is of, and what another would make of it.

use crate::support::{json, recording, snapshot, steady, text, tonnage};

#[test]
fn what_the_release_rests_on_is_said() {
    for (name, release, says) in [
        ("release_2_8.p4", "2.8", "release: 2.8 or earlier, by its keys; followed as 2.8"),
        ("release_2_9.p4", "2.9", "release: 2.9, by its keys"),
        (
            "pytorch_2.11.0",
            "2.11",
            "release: 2.10 or 2.11, by its keys; they do the same here: followed as 2.11",
        ),
        ("pytorch_2.12.1", "2.12", "release: 2.12, by its keys"),
        ("pytorch_2.13.0", "2.13", "release: 2.13, by its keys"),
        (
            "pytorch_2.14.1",
            "2.15",
            "release: 2.14 or later, by its keys; they do the same here: followed as 2.15",
        ),
        ("pytorch_2.15.0", "2.15", "release: 2.14 or later, by its keys"),
        ("release_2_15.p4", "2.15", "release: 2.15 or later, by its keys"),
    ] {
        let output = tonnage(&["replay", &snapshot(name), "--json"]);
        let json = json(&output);
        assert_eq!(json["release"], release, "{name}");
        let first = json["inferred"][0].as_str().unwrap();
        assert!(first.starts_with(says), "{name}: {first}");
    }
}

#[test]
fn real_recordings_of_every_release_are_exact() {
    for release in ["2.11.0", "2.12.0", "2.12.1", "2.13.0", "2.14.1", "2.15.0"] {
        let output = tonnage(&["replay", &snapshot(&format!("pytorch_{release}"))]);
        assert_eq!(output.status.code(), Some(0), "{release}: {}", text(&output.stdout));
    }
}

#[test]
fn a_release_that_the_keys_contradict_is_followed_as_asked_and_said_to_be() {
    let output = tonnage(&["replay", &snapshot("pytorch_2.12.1"), "--pytorch", "2.9", "--json"]);
    let json = json(&output);
    assert_eq!(json["release"], "2.9");
    assert_eq!(json["release_candidates"], serde_json::json!(["2.12"]));
    let first = json["inferred"][0].as_str().unwrap();
    assert_eq!(first, "release: 2.9, as asked for; by its keys the file is of 2.12");
}

#[test]
fn an_upgrade_is_told_in_words_and_figures() {
    let output = tonnage(&["replay", &recording("gpt2_varlen.default"), "--as", "2.15"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    insta::assert_snapshot!(steady(&output));
}

#[test]
fn an_upgrade_in_json_has_both_releases_and_the_difference() {
    let output = tonnage(&["replay", &recording("mlp_seed.default"), "--as", "2.15", "--json"]);
    let json = json(&output);
    assert_eq!(json["schema"], 1);
    assert_eq!(
        (&json["own"]["release"], &json["other"]["release"]),
        (&"2.11".into(), &"2.15".into())
    );
    assert_eq!(json["recorded"]["reserved"], 218_103_808);
    for figure in ["reserved", "allocated", "driver_calls", "retries", "ooms"] {
        let of = |which: &str| json[which][figure].as_i64().unwrap();
        assert_eq!(of("difference"), of("other") - of("own"), "{figure}");
    }
    assert_eq!(json["release_candidates"], serde_json::json!(["2.10", "2.11"]));
    // The release that it was recorded by makes no difference to itself.
    let output = tonnage(&["replay", &recording("mlp_seed.default"), "--as", "2.11", "--json"]);
    assert_eq!(self::json(&output)["verdict"], "same");
}

#[test]
fn settings_that_the_other_release_refuses_are_named_and_can_be_replaced() {
    let file = recording("mlp_seed.default");
    let conf = ["--conf", "large_segment_size_mb:40"];
    let output = tonnage(&[&["replay", &file, "--as", "2.9"][..], &conf].concat());
    assert_eq!(output.status.code(), Some(2));
    assert!(
        text(&output.stderr).contains("2.9 refuses these settings"),
        "{}",
        text(&output.stderr)
    );
    let output = tonnage(&[&["replay", &file, "--as", "2.15"][..], &conf].concat());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("under 2.15: large_segment_size_mb:40"));
    for (release, says) in [("2.7", "not followed here"), ("soon", "not a version")] {
        let output = tonnage(&["replay", &file, "--as", release]);
        assert_eq!(output.status.code(), Some(2));
        assert!(text(&output.stderr).contains(says), "{}", text(&output.stderr));
    }
    let output = tonnage(&["replay", &file, "--as", "2.99"]);
    assert_eq!(output.status.code(), Some(0));
    assert!(text(&output.stdout).contains("2.99 is newer than 2.15"), "{}", text(&output.stdout));
}
