//! `tonnage run` and `tonnage predict`: output and exit status.

mod support;

use serde_json::Value;
use support::{json, text, tonnage};

/// A recipe that runs in a moment.
const SMALL: [&str; 9] =
    ["deepnet", "--layers", "4", "--width", "64", "--batch", "512", "--steps", "3"];

fn with<'a>(verb: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    [&[verb], &SMALL[..], more].concat()
}

fn peaks(json: &Value) -> [u64; 3] {
    ["allocated_peak", "reserved_peak", "requested_peak"].map(|key| json[key].as_u64().unwrap())
}

#[test]
fn run_and_predict_print_one_object_with_the_same_bytes() {
    let ran = json(&tonnage(&with("run", &["--json"])));
    let predicted = json(&tonnage(&with("predict", &["--json"])));
    assert_eq!(peaks(&ran), peaks(&predicted));
    for key in ["schema", "breakdown", "phases", "peak_phase", "peak_line", "formulas"] {
        assert!(!ran[key].is_null(), "{key}");
        assert_eq!(ran[key], predicted[key], "{key}");
    }
    assert_eq!(ran["losses"].as_array().unwrap().len(), 3);
    assert_eq!([&ran["device"], &predicted["device"]], ["host", "dry"]);
}

#[test]
fn people_read_the_peak_its_purpose_its_line_and_what_to_try_next() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("run.pickle");
    let file = file.to_str().unwrap();
    let output = tonnage(&with("run", &["--save", file, "--device", "dry"]));
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let shown = text(&output.stdout);
    for expected in [
        "deepnet on dry: layers 4, width 64, batch 512, adam",
        "reserved",
        "allocated at the peak, in ",
        ".rs:",
        "optimizer",
        "zero_grad",
        "tonnage predict deepnet --layers 4 --width 64 --batch 512 --steps 3",
        &format!("tonnage report {file}"),
    ] {
        assert!(shown.contains(expected), "{expected} in\n{shown}");
    }
    for verb in ["report", "replay"] {
        let output = tonnage(&[verb, file]);
        assert_eq!(output.status.code(), Some(0), "{verb}: {}", text(&output.stdout));
    }
    let shown = tonnage(&with("predict", &["--checkpoint", "sqrt"]));
    for expected in ["checkpoints sqrt", "textbook's formula", "8P", "12·B·W·L·2/√n", "--fit 24GiB"]
    {
        assert!(text(&shown.stdout).contains(expected), "{expected} in\n{}", text(&shown.stdout));
    }
}

#[test]
fn what_does_not_fit_exits_with_1_and_its_suggestion_works() {
    let output = tonnage(&with("run", &["--limit", "3MiB"]));
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    let shown = text(&output.stdout);
    assert!(shown.contains("does not fit: out of memory in step 1"), "{shown}");
    assert!(shown.contains("Verdict: need"), "{shown}");
    let suggested = shown.lines().find_map(|it| it.strip_prefix("  tonnage ")).unwrap();
    let again = tonnage(&suggested.split(' ').collect::<Vec<_>>());
    assert_eq!(again.status.code(), Some(0), "{suggested}: {}", text(&again.stdout));
    let output = tonnage(&with("predict", &["--limit", "3MiB", "--json"]));
    assert_eq!(output.status.code(), Some(1));
    let object = json(&output);
    assert_eq!(object["error"], "out_of_memory");
    assert!(object["suggestion"].as_str().unwrap().starts_with("tonnage predict deepnet"));
}

#[test]
fn fit_says_the_largest_batch_and_what_techniques_buy() {
    let output = tonnage(&with("predict", &["--fit", "32MiB", "--json"]));
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let object = json(&output);
    let batch = object["fit"]["batch"].as_u64().unwrap();
    assert!(batch > 512, "{object}");
    assert_eq!(object["sizes"]["batch"], batch);
    assert!(object["reserved_peak"].as_u64().unwrap() <= 32 << 20);
    assert!(object["fit"]["techniques"].as_array().unwrap().len() >= 7);
    let output = tonnage(&with("predict", &["--fit", "32MiB"]));
    let shown = text(&output.stdout);
    assert!(shown.contains("largest batch") && shown.contains("--checkpoint every:1"), "{shown}");
}

#[test]
fn what_is_wrong_is_said_in_a_sentence() {
    for (arguments, expected) in [
        (&["run", "gpt2", "--device", "cuda:0"][..], "recipes do not run on CUDA yet"),
        (&["run", "bert"], "`bert` is no recipe: take one of mlp, deepnet, gpt2, resnet50, mimo"),
        (&["run", "resnet50", "--layers", "3"], "resnet50 has no --layers"),
        (&["run", "mimo", "--offload"], "mimo does not train"),
        (&["run", "gpt2", "--snr", "-3"], "gpt2 has no --snr"),
        (&["predict", "gpt2", "--conf", "nonsense:1"], "nonsense"),
        (&["predict", "gpt2", "--accumulate", "3"], "does not split"),
        (&["predict", "gpt2", "--checkpoint", "often"], "every:K"),
        (&["run", "mlp", "--width", "131072", "--layers", "100"], "the machine has"),
    ] {
        let output = tonnage(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(text(&output.stderr).contains(expected), "{}", text(&output.stderr));
    }
}
