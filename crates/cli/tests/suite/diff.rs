//! `tonnage diff`: output and exit status.

use crate::support::{command, json, pickled, recording, steady, text, tonnage};

#[test]
fn peaks_segments_and_settings_are_compared_largest_changes_first() {
    let (a, b) = (recording("gpt2_varlen.default"), recording("gpt2_varlen.split128"));
    let output = tonnage(&["diff", &a, &b, "--top", "3"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    insta::assert_snapshot!(steady(&output));
}

#[test]
fn with_stacks_call_sites_are_compared() {
    let (a, b) = (recording("gpt2_varlen.default.stacks"), recording("mlp_seed.default.stacks"));
    let output = tonnage(&["diff", &a, &b, "--json"]);
    let json = json(&output);
    assert_eq!(json["schema"], 2);
    assert_eq!(json["grown"], serde_json::Value::Null, "nobody asked");
    let device = &json["devices"][0];
    assert_eq!(device["allocated_peak"]["change"], 195_529_216_i64 - 7_145_677_824_i64);
    for groups in ["at_peak", "live"] {
        let groups = device[groups].as_array().unwrap();
        assert!(
            groups.iter().any(|it| it["call_site"].as_str().is_some_and(|it| it.contains(".py:")))
        );
        let changes: Vec<_> =
            groups.iter().map(|it| it["allocated"]["change"].as_i64().unwrap().abs()).collect();
        assert!(changes.is_sorted_by(|a, b| a >= b), "{changes:?}");
    }
}

#[test]
fn a_file_is_no_different_from_itself() {
    let file = recording("cudagraph.default");
    let output = tonnage(&["diff", &file, &file, "--json", "--fail-if-peak-grows", "0"]);
    assert_eq!(output.status.code(), Some(0));
    let json = json(&output);
    assert_eq!(json["settings"].as_array().unwrap().len(), 0);
    for list in ["segment_sizes", "at_peak", "live"] {
        assert_eq!(json["devices"][0][list].as_array().unwrap().len(), 0, "{list}");
    }
    let other = recording("cudagraph.expandable");
    for form in [&[][..], &["--markdown"]] {
        let says = |b: &str| {
            let output = tonnage(&[&["diff", file.as_str(), b][..], form].concat());
            text(&output.stdout).to_owned()
        };
        assert!(says(&file).ends_with("\nnothing differs\n"), "{}", says(&file));
        assert!(!says(&other).contains("nothing differs"), "{}", says(&other));
    }
}

#[test]
fn a_peak_that_grows_too_much_exits_with_1() {
    let (a, b) = (recording("mlp_seed.tight"), recording("mlp_seed.default"));
    for (growth, status) in [("10%", 0), ("9%", 1), ("17MiB", 0), ("16MiB", 1), ("0", 1)] {
        let off = ["--fail-if-reserved-grows", "off"];
        let tonnage = |arguments: &[&str]| tonnage(&[arguments, &off].concat());
        let output = tonnage(&["diff", &a, &b, "--fail-if-peak-grows", growth]);
        assert_eq!(output.status.code(), Some(status), "{growth}: {}", text(&output.stdout));
        assert_eq!(text(&output.stdout).contains("grown: "), status == 1, "{growth}");
        let output = tonnage(&["diff", &a, &b, "--json", "--fail-if-peak-grows", growth]);
        assert_eq!(output.status.code(), Some(status), "{growth}");
        let grown = json(&output)["grown"].as_array().unwrap().clone();
        assert_eq!(
            grown.first().map(|it| &it["peak"] == "allocated"),
            (status == 1).then_some(true),
            "{growth}"
        );
        let output = tonnage(&["diff", &b, &a, "--fail-if-peak-grows", growth]);
        assert_eq!(output.status.code(), Some(0), "{growth}");
    }
}

#[test]
fn reserved_memory_is_guarded_too() {
    // Allocated memory grew by 0.4 %, reserved memory by 139 %.
    let (a, b) = (recording("gpt2_varlen.default"), recording("gpt2_varlen.split128"));
    for (arguments, status) in [
        (&["--fail-if-peak-grows", "5%"][..], 1),
        (&["--fail-if-peak-grows", "5%", "--fail-if-reserved-grows", "150%"], 0),
        (&["--fail-if-peak-grows", "5%", "--fail-if-reserved-grows", "off"], 0),
        (&["--fail-if-reserved-grows", "13GiB"], 0),
        (&["--fail-if-reserved-grows", "12GiB"], 1),
        (&["--fail-if-peak-grows", "0", "--fail-if-reserved-grows", "off"], 1),
    ] {
        let output = tonnage(&[&["diff", &a, &b][..], arguments].concat());
        assert_eq!(output.status.code(), Some(status), "{arguments:?}: {}", text(&output.stdout));
    }
    let output = tonnage(&["diff", &a, &b, "--json", "--fail-if-peak-grows", "5%"]);
    let grown = &json(&output)["grown"];
    assert_eq!(grown[0]["peak"], "reserved", "{grown}");
    assert_eq!((grown.as_array().unwrap().len(), &grown[0]["device"]), (1, &serde_json::json!(0)));
}

#[test]
fn markdown_is_for_a_pull_request() {
    let (a, b) = (recording("gpt2_varlen.default.stacks"), recording("mlp_seed.default.stacks"));
    let arguments = ["diff", &a, &b, "--markdown", "--top", "2", "--fail-if-peak-grows", "5%"];
    let output = tonnage(&arguments);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    insta::assert_snapshot!(steady(&output));
    let output = tonnage(&["diff", &b, &a, "--markdown", "--fail-if-peak-grows", "5%"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text(&output.stdout).contains("- ❌ the allocated peak of device 0 grew"),
        "{}",
        text(&output.stdout)
    );
}

#[test]
fn a_peak_that_is_not_known_or_a_growth_that_is_none_exits_with_2() {
    let folder = tempfile::tempdir().unwrap();
    let bare = folder.path().join("bare.pickle");
    let segment = "[{'device': 0, 'address': 4096, 'total_size': 512, 'allocated_size': 512, \
                    'active_size': 512, 'requested_size': 512, 'stream': 0, 'segment_type': 'small', 'blocks': []}]";
    std::fs::write(&bare, pickled(segment)).unwrap();
    let file = recording("mlp_seed.tight");
    let output = tonnage(&["diff", &file, bare.to_str().unwrap(), "--fail-if-peak-grows", "5%"]);
    assert_eq!(output.status.code(), Some(2));
    let message = text(&output.stderr);
    assert!(message.contains("bare.pickle") && message.contains("no history"), "{message}");
    let output = tonnage(&["diff", &file, &file, "--fail-if-peak-grows", "lots"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("5%"), "{}", text(&output.stderr));
}

#[test]
fn names_that_command_a_terminal_are_spelled_out() {
    let folder = tempfile::tempdir().unwrap();
    let snapshot = |name: &str, size: u64| {
        let path = folder.path().join(name);
        let expression = format!(
            "{{'segments': [{{'device': 0, 'address': 4096, 'total_size': 2097152, \
               'allocated_size': {size}, 'active_size': {size}, 'requested_size': {size}, 'stream': 0, \
               'segment_type': 'small', 'blocks': [{{'address': 4096, 'size': {size}, \
               'requested_size': {size}, 'state': 'active_allocated', 'frames': [{{'name': \
               'evil\\x1b]0;owned\\x07\\x1b[2J\\x9b31m\\u202e', 'filename': 'a\\nb.py', 'line': 1}}]}}]}}], \
               'device_traces': [[]]}}"
        );
        std::fs::write(&path, pickled(&expression)).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (a, b) = (snapshot("a\u{1b}[31m.pickle", 512), snapshot("b.pickle", 1024));
    for more in [&["--top", "5"][..], &["--json"]] {
        let mut command = command();
        command.args(["diff", &a, &b]).args(more);
        // As on a terminal: otherwise escapes would be taken out with the colours.
        let output = command.env("CLICOLOR_FORCE", "1").env_remove("NO_COLOR").output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        let mut shown = text(&output.stdout).to_owned();
        assert!(shown.contains("evil"), "{shown}");
        for own in ["\u{1b}[1m", "\u{1b}[0m"] {
            shown = shown.replace(own, "");
        }
        let unsafe_ones =
            shown.chars().filter(|&c| c != '\n' && (c.is_control() || c == '\u{202e}'));
        assert_eq!(unsafe_ones.count(), 0, "{shown:?}");
        assert!(!shown.contains("a\nb.py"), "{shown}");
    }
}
