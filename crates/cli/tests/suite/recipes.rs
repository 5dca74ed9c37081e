//! `tonnage run` and `tonnage predict`: output and exit status.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::support::{command, json, pickled, text, tonnage, wait_until};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

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
fn the_environment_names_placement_rules_where_no_flag_does() {
    let reserved = |conf: &str, more: &[&str]| {
        let mut command = command();
        command.args(["predict", "gpt2-tiny", "--steps", "1", "--json"]).args(more);
        command.env("TONNAGE_CONF", conf);
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        json(&output)["reserved_peak"].as_u64().unwrap()
    };
    let pages = reserved("", &["--policy", "pages"]);
    assert!(pages < reserved("", &[]), "{pages}");
    assert_eq!(reserved("policy:pages", &[]), pages);
    assert_eq!(reserved("policy:pages", &["--policy", "pytorch"]), reserved("", &[]));
    for verb in ["run", "predict"] {
        for wrong in ["pages", "policy:pages,slack:7"] {
            let mut command = command();
            let output = command.args(with(verb, &[])).env("TONNAGE_CONF", wrong).output().unwrap();
            assert_eq!(output.status.code(), Some(2));
            let said = text(&output.stderr);
            assert!(said.contains("TONNAGE_CONF") && said.contains("slack:0.02"), "{said}");
        }
    }
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
        "by linear at tonnage-tensor/models/deepnet.rs:",
        ", called from tonnage-plan/program.rs:",
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

#[test]
fn what_is_saved_of_a_run_tells_its_purposes_and_phases_as_the_run_did() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("run.pickle");
    let file = file.to_str().unwrap();
    for recipe in [&SMALL[..], &["mlp", "--width", "100", "--batch", "100", "--steps", "3"]] {
        let more = ["--device", "dry", "--save", file, "--json"];
        let ran = json(&tonnage(&[&["run"], recipe, &more].concat()));
        let report = json(&tonnage(&["report", file, "--json"]));
        let report = &report["files"][0]["report"];
        let held = report["peak"]["purposes"].as_array().unwrap();
        assert!(held.len() >= 4, "{held:?}");
        let mut known = 0;
        for it in held {
            let (bytes, blocks) = (it["bytes"].as_u64().unwrap(), it["blocks"].as_u64().unwrap());
            let purpose = it["purpose"].as_str().unwrap();
            assert_eq!(it["confidence"], "recorded", "{purpose}");
            // A run counts blocks, which are rounded to 512 bytes, and a report what was asked for.
            let ran = ran["breakdown"][purpose].as_u64().unwrap();
            assert!(bytes <= ran && ran < bytes + 512 * blocks, "{purpose}: {bytes}, {ran}");
            known += ran;
        }
        assert_eq!(known, ran["allocated_peak"], "nothing else was allocated");
        assert_eq!(report["growth"]["told_by"], "annotations");
        // What the file says beyond PyTorch's is a text that Python reads as any other.
        let python = "import pickle, sys; it = pickle.load(open(sys.argv[1], 'rb')); \
                      print(it['tonnage_purposes'].split()[0], *sorted({a['name'] for a in it['external_annotations']}))";
        let read = Command::new("python3").args(["-c", python, file]).output().unwrap();
        let scopes = "1 Optimizer.step Optimizer.zero_grad backward data forward model\n";
        assert_eq!(text(&read.stdout), scopes, "{}", text(&read.stderr));
    }
}

#[test]
fn purposes_that_are_none_are_refused_with_their_line_and_other_versions_are_passed_over() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("odd.pickle");
    let inspect = |purposes: &str| {
        let snapshot =
            format!("{{'segments': [], 'device_traces': [[]], 'tonnage_purposes': {purposes}}}");
        std::fs::write(&file, pickled(&snapshot)).unwrap();
        tonnage(&["inspect", file.to_str().unwrap()])
    };
    for (purposes, part) in
        [("'1 cache\\n0 0 512 0\\n0 0 512 9'", "tonnage_purposes, line 3"), ("[1, 2]", "a text")]
    {
        let output = inspect(purposes);
        assert_eq!(output.status.code(), Some(2), "{purposes}");
        assert!(text(&output.stderr).contains(part), "{}", text(&output.stderr));
    }
    for purposes in ["'1 cache\\n0 0 512 0'", "'2 of another version'", "None"] {
        assert_eq!(inspect(purposes).status.code(), Some(0), "{purposes}");
    }
}

/// A file with something in it that no run may touch before it has ended.
fn precious(folder: &Path) -> PathBuf {
    let path = folder.join("run.pickle");
    std::fs::write(&path, "PRECIOUS").unwrap();
    path
}

fn is_untouched(path: &Path) {
    assert_eq!(std::fs::read(path).unwrap(), b"PRECIOUS");
    assert_eq!(path.parent().unwrap().read_dir().unwrap().count(), 1, "nothing lies beside it");
}

#[test]
fn a_run_that_is_refused_leaves_the_file_that_it_would_have_saved() {
    let folder = tempfile::tempdir().unwrap();
    let path = precious(folder.path());
    let file = path.to_str().unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    for (arguments, why) in [
        // More than any machine has.
        (
            &["run", "mlp", "--width", "131072", "--layers", "100", "--save", file][..],
            "the machine has",
        ),
        (&["run", "mlp", "--view", "--port", &port, "--no-open", "--save", file], "is taken"),
        (&["run", "bert", "--save", file], "no recipe"),
    ] {
        let output = tonnage(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", text(&output.stdout));
        assert!(text(&output.stderr).contains(why), "{}", text(&output.stderr));
        is_untouched(&path);
    }
}

#[test]
fn where_nothing_can_be_saved_nothing_is_run() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("no/run.pickle");
    for (path, why) in [
        (missing.to_str().unwrap(), "No such file"),
        (folder.path().to_str().unwrap(), "it is a folder"),
        ("run.pickle.xz", "xz is read but not written"),
        ("-", "name a file"),
    ] {
        // Would go on for hours.
        for verb in ["run", "predict"] {
            let output = tonnage(&[verb, "mlp", "--steps", "1000000", "--save", path]);
            assert_eq!(output.status.code(), Some(2), "{verb} {path}");
            let message = text(&output.stderr);
            assert!(message.contains(why) && message.contains(path), "{message}");
        }
    }
    assert_eq!(folder.path().read_dir().unwrap().count(), 0);
}

/// Ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_run_begins_at_once_and_one_that_is_killed_leaves_the_old_file() {
    for signal in [Signal::KILL, Signal::INT] {
        let (folder, sheets) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let path = precious(folder.path());
        let mut run = Command::new(command().get_program());
        run.args(["run", "mlp", "--width", "64", "--batch", "16", "--steps", "1000000", "--save"])
            .arg(&path)
            .env("TONNAGE_PUBLISH", "1")
            .env("TONNAGE_MONITOR_DIR", sheets.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let mut running = Running(run.spawn().unwrap());
        // It trains, and does not first play through all of its steps.
        wait_until("the run shows its figures", || {
            let mut top = command();
            top.args(["top", "--json"]).env("TONNAGE_MONITOR_DIR", sheets.path());
            let device = &json(&top.output().unwrap())["processes"][0]["devices"][0];
            device["device"] == "host:0" && device["allocations"].as_u64() > Some(0)
        });
        is_untouched(&path);
        kill_process(Pid::from_child(&running.0), signal).unwrap();
        assert!(!running.0.wait().unwrap().success());
        is_untouched(&path);
    }
}

#[test]
fn what_is_saved_of_a_run_that_does_not_fit_is_its_own_failure() {
    let folder = tempfile::tempdir().unwrap();
    let path = precious(folder.path());
    let file = path.to_str().unwrap();
    let predicted = json(&tonnage(&with("predict", &["--json"])));
    let limit = (peaks(&predicted)[1] * 85 / 100).to_string();
    for device in ["host", "dry"] {
        let output =
            tonnage(&with("run", &["--device", device, "--limit", &limit, "--save", file]));
        assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
        // Something that fits was tried after that, and left the file alone.
        assert!(text(&output.stdout).contains("fits with"), "{}", text(&output.stdout));
        let report = &json(&tonnage(&["report", file, "--json"]))["files"][0]["report"];
        assert_eq!(report["failed_requests"], 1, "{device}");
        let inspected = json(&tonnage(&["inspect", file, "--json"]));
        let reserved = inspected["devices"][0]["reserved_peak"].as_u64().unwrap();
        assert!(reserved <= limit.parse().unwrap(), "{device}: {reserved}");
    }
    assert_eq!(folder.path().read_dir().unwrap().count(), 1);
}

/// A form of each recipe that runs in a moment, and the share of its memory that is too little.
const EACH: [&str; 5] = [
    "mlp --layers 3 --width 128 --batch 8192 --steps 2",
    "deepnet --layers 8 --width 128 --batch 2048 --steps 2",
    "gpt2-tiny --layers 2 --width 64 --batch 32 --seq 128 --steps 2",
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
        (&["run", "gpt2", "--device", "cuda:first"][..], "names no GPU: take cuda:0"),
        (
            &["run", "bert"],
            "`bert` is no recipe: take one of mlp, deepnet, gpt2-tiny, gpt2, gpt2-medium, gpt2-large, gpt2-xl, resnet50, mimo",
        ),
        (&["run", "resnet50", "--layers", "3"], "resnet50 has no --layers"),
        (&["run", "mimo", "--offload"], "mimo does not train"),
        (&["run", "gpt2", "--snr", "-3"], "gpt2 has no --snr"),
        (&["predict", "gpt2", "--conf", "nonsense:1"], "nonsense"),
        (&["predict", "gpt2", "--accumulate", "3"], "does not split"),
        (&["predict", "gpt2", "--checkpoint", "often"], "every:K"),
        (&["run", "mlp", "--width", "131072", "--layers", "100"], "the machine has"),
        (&["run", "--device", "tpu"], "`tpu` is no device: take host, dry or cuda:0"),
        (&["run", "--steps", "0"], "--steps 0: take 1 to 1000000"),
        (&["predict", "--limit", "0"], "--limit 0: nothing fits"),
        (&["predict", "--width", "100"], "multiple of 8"),
        (&["predict", "--batch", "0"], "--batch 0: gpt2-tiny takes 1 to"),
        (&["predict", "--layers", "many"], "invalid value 'many' for '--layers <N>'"),
        (&["predict", "--optimizer", "lion"], "take sgd, adam or adamw"),
        (&["predict", "--amp", "fp8"], "take bf16 or f16"),
        (&["predict", "--fit", "8 gallons"], "8 gallons"),
        (&["predict", "--context", "1GiB"], "--fit"),
        (&["predict", "--fit", "1GiB", "--context", "1GiB"], "nothing is left to fit into"),
        (&["predict", "gpt2", "--vocab", "255"], "--vocab 255: gpt2 takes 256 to"),
        (&["predict", "--fit", "8GiB", "--limit", "8GiB"], "cannot be used with '--limit"),
        (&["predict", "--device", "dry"], "unexpected argument '--device'"),
    ] {
        let output = tonnage(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(text(&output.stderr).contains(expected), "{}", text(&output.stderr));
    }
}

#[test]
fn the_published_sizes_of_gpt2_have_their_parameters() {
    for (recipe, parameters) in [
        ("gpt2", 124_439_808_u64),
        ("gpt2-medium", 354_823_168),
        ("gpt2-large", 774_030_080),
        ("gpt2-xl", 1_557_611_200),
    ] {
        // Few tokens leave the places of 1,024.
        for seq in ["64", "1024"] {
            let arguments =
                ["predict", recipe, "--batch", "1", "--steps", "1", "--seq", seq, "--json"];
            let object = json(&tonnage(&arguments));
            assert_eq!(object["parameters"], parameters, "{recipe}");
            assert_eq!(object["recipe"], recipe);
        }
    }
    let rows = |vocab: &str| {
        let arguments =
            ["predict", "gpt2", "--batch", "1", "--steps", "1", "--vocab", vocab, "--json"];
        json(&tonnage(&arguments))["parameters"].as_u64().unwrap()
    };
    assert_eq!(rows("50304") - rows("50257"), 47 * 768);
}

#[test]
fn without_a_recipe_it_is_the_small_one_and_says_so() {
    let predicted = tonnage(&["predict"]);
    let shown = text(&predicted.stdout);
    assert!(shown.starts_with("gpt2-tiny on dry: layers 4,"), "{shown}");
    assert!(shown.contains("GPT-2 itself is `tonnage predict gpt2`"), "{shown}");
    let named = tonnage(&["predict", "gpt2-tiny"]);
    assert!(!text(&named.stdout).contains("no recipe named"), "{}", text(&named.stdout));
    assert_eq!(
        json(&tonnage(&["predict", "--json"])),
        json(&tonnage(&["predict", "gpt2-tiny", "--json"]))
    );
}

#[test]
fn techniques_are_combined_and_the_context_is_taken_off() {
    let base = ["predict", "deepnet", "--layers", "6", "--width", "128", "--steps", "1", "--json"];
    let fitted = |more: &[&str]| json(&tonnage(&[&base[..], more].concat()))["fit"].clone();
    let fit = fitted(&["--fit", "24MiB"]);
    let together = &fit["together"];
    let batch = together["batch"].as_u64().unwrap();
    for gain in fit["techniques"].as_array().unwrap() {
        let technique = gain["technique"].as_str().unwrap();
        assert!(
            technique.starts_with("--accumulate") || gain["batch"].as_u64().unwrap() < batch,
            "{fit}"
        );
    }
    // It is as said: that batch fits with all of them, and the next does not.
    let techniques: Vec<_> = together["techniques"].as_array().unwrap().iter().collect();
    let flags = techniques.iter().flat_map(|it| it.as_str().unwrap().split(' '));
    let mut arguments: Vec<_> = base[..base.len() - 1].iter().copied().chain(flags).collect();
    arguments.extend(["--limit", "24MiB", "--batch"]);
    for (batch, code) in [(batch, 0), (batch + 1, 1)] {
        let batch = batch.to_string();
        let output = tonnage(&[&arguments[..], &[&batch[..]]].concat());
        assert_eq!(output.status.code(), Some(code), "{}", text(&output.stderr));
    }
    assert_eq!(fitted(&["--fit", "30MiB", "--context", "6MiB"]), fit);
}

#[test]
fn a_long_run_is_announced_with_its_time_and_memory() {
    let output = tonnage(&["run", "gpt2", "--batch", "1", "--limit", "1MiB"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        !text(&output.stderr).contains("take about"),
        "it does not fit: {}",
        text(&output.stderr)
    );
    // Ended before its first step, by a reader of its first line.
    let program = command();
    let mut child = Command::new(program.get_program())
        .args(["run", "gpt2", "--layers", "2", "--batch", "2", "--steps", "100000"])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut errors = std::io::BufReader::new(child.stderr.take().unwrap());
    std::io::BufRead::read_line(&mut errors, &mut line).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(
        line.contains("100,000 steps of gpt2 take about ")
            && line.contains("GiB here: an estimate"),
        "{line}"
    );
}
