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
    let keys = |it: &Value| it.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(keys(&ran), keys(&predicted));
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
        "by linear at crates/tensor/src/models/deepnet.rs:",
        ", called from crates/plan/src/program.rs:",
        "optimizer",
        "zero_grad",
        "tonnage predict deepnet --layers 4 --width 64 --batch 512 --steps 3",
        &format!("tonnage report {file}"),
    ] {
        assert!(shown.contains(expected), "{expected} in\n{shown}");
    }
    let shown = tonnage(&with("predict", &["--checkpoint", "sqrt"]));
    for expected in ["checkpoints sqrt", "textbook's formula", "8P", "12·B·W·L·2/√n", "--fit 24GiB"]
    {
        assert!(text(&shown.stdout).contains(expected), "{expected} in\n{}", text(&shown.stdout));
    }
}

#[test]
fn the_snapshot_of_a_run_opens_with_every_verb_and_replays_exactly() {
    let folder = tempfile::tempdir().unwrap();
    for (device, conf) in [("host", ""), ("host", "expandable_segments:True"), ("dry", "")] {
        let file = folder.path().join(format!("{device}.pickle"));
        let file = file.to_str().unwrap();
        let flags = ["--device", device, "--conf", conf, "--save", file];
        let ran = json(&tonnage(&with("run", &[&flags[..], &["--json"]].concat())));
        for verb in ["inspect", "report"] {
            let output = tonnage(&[verb, file]);
            assert_eq!(output.status.code(), Some(0), "{verb} {device}: {}", text(&output.stderr));
        }
        let replayed = json(&tonnage(&["replay", file, "--json"]));
        assert_eq!(replayed["exact"], true, "{device} {conf}: {replayed}");
        let inspected = json(&tonnage(&["inspect", file, "--json"]));
        for peak in ["allocated_peak", "reserved_peak", "requested_peak"] {
            assert_eq!(inspected["devices"][0][peak], ran[peak], "{device} {conf}");
        }
    }
}

/// A form of each recipe that runs in a moment, and the share of its memory that is too little.
const EACH: [&str; 5] = [
    "mlp --layers 3 --width 128 --batch 8192 --steps 2",
    "deepnet --layers 8 --width 128 --batch 2048 --steps 2",
    "gpt2 --layers 2 --width 64 --batch 32 --seq 128 --steps 2",
    "resnet50 --width 8 --batch 16 --image 32 --steps 2",
    "mimo --antennas 16 --users 4 --subcarriers 50000 --steps 2",
];

#[test]
fn what_does_not_fit_exits_with_1_and_its_suggestion_works() {
    for recipe in EACH {
        for percent in [85, 40] {
            let words = |verb| [verb].into_iter().chain(recipe.split(' '));
            let predicted = json(&tonnage(&words("predict").chain(["--json"]).collect::<Vec<_>>()));
            let limit = (peaks(&predicted)[1] * percent / 100).to_string();
            let limited = ["--limit", &limit];
            let output = tonnage(&words("run").chain(limited).collect::<Vec<_>>());
            assert_eq!(output.status.code(), Some(1), "{recipe}: {}", text(&output.stderr));
            let shown = text(&output.stdout);
            assert!(shown.contains("does not fit: out of memory in step "), "{shown}");
            assert!(shown.contains("Verdict: "), "{shown}");
            let line = shown.lines().find_map(|it| it.strip_prefix("  tonnage "));
            let suggested = line.unwrap_or_else(|| panic!("{recipe}: {shown}"));
            assert!(suggested.contains(" --limit "), "{suggested}");
            let again = tonnage(&suggested.split(' ').collect::<Vec<_>>());
            assert_eq!(again.status.code(), Some(0), "{suggested}: {}", text(&again.stdout));
            let more = limited.into_iter().chain(["--json"]);
            let object = json(&tonnage(&words("predict").chain(more).collect::<Vec<_>>()));
            assert_eq!(object["error"], "out_of_memory", "{recipe}");
            let same = suggested.replacen("run", "tonnage predict", 1);
            assert_eq!(object["suggestion"], same, "{recipe}");
        }
    }
}

#[test]
fn what_is_larger_than_any_technique_can_help_is_said_to_be_so() {
    let output = tonnage(&["predict", "deepnet", "--width", "4096", "--limit", "1GiB"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stdout).contains("the model itself is too large"));
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
        (&["run", "--device", "tpu"], "`tpu` is no device: take host or dry"),
        (&["run", "--steps", "0"], "--steps 0: take 1 to 1000000"),
        (&["predict", "--limit", "0"], "--limit 0: nothing fits"),
        (&["predict", "--width", "100"], "multiple of 8"),
        (&["predict", "--batch", "0"], "--batch 0: gpt2 takes 1 to"),
        (&["predict", "--layers", "many"], "invalid value 'many' for '--layers <N>'"),
        (&["predict", "--optimizer", "lion"], "take sgd, adam or adamw"),
        (&["predict", "--amp", "fp8"], "take bf16 or f16"),
        (&["predict", "--fit", "8 gallons"], "8 gallons"),
        (&["predict", "--fit", "8GiB", "--limit", "8GiB"], "cannot be used with '--limit"),
        (&["predict", "--device", "dry"], "unexpected argument '--device'"),
    ] {
        let output = tonnage(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(text(&output.stderr).contains(expected), "{}", text(&output.stderr));
    }
}
