//! `tonnage predict --model`: the words that our script is given and what is made of what it tells, with a stand-in for
//! Python that runs another script. The script itself is run with PyTorch by `cargo xtask scripts`.

use std::os::unix::fs::PermissionsExt as _;
use std::process::Output;

use serde_json::json;

use crate::predict_script::{Place, valid};
use crate::support::{command, testdata, text, tonnage};

/// Says what it was started with, and a model's facts; more than eight examples do not fit.
const TELLS: &str = r#"
import json, sys, torch
torch.cuda.init()
words = sys.argv[2:]
with open("words", "a") as file: file.write(" ".join(words) + "\n")
if "--batch" in words and int(words[words.index("--batch") + 1]) > 8:
    raise torch.OutOfMemoryError("Tried to allocate")
facts = {"model": "LlamaForCausalLM", "parameters": 1000, "trained": 10 if "--lora" in words else 1000, "weights": 2048}
if "--generate" in words:
    facts.update(trained=0, cache=4096)
print("tonnage-model " + json.dumps(facts))
"#;

/// A Python that runs that script in the place of any other.
fn place() -> Place {
    let place = Place::new(TELLS);
    let python = place.path("python");
    std::fs::write(
        &python,
        "#!/bin/sh\nif [ \"$1\" = -c ]; then exec python3 \"$@\"; fi\nexec python3 train.py \"$@\"\n",
    )
    .unwrap();
    std::fs::set_permissions(&python, std::fs::Permissions::from_mode(0o755)).unwrap();
    place
}

fn predict(place: &Place, flags: &[&str]) -> Output {
    let mut command = command();
    command.args(["predict", "--model", "config.json", "--python", "./python"]).args(flags);
    command.current_dir(place.path("")).env("PYTHONPATH", place.path(""));
    command.env("STAND_IN", testdata("traces").join("mlp_seed.default"));
    command.output().unwrap()
}

#[test]
fn a_model_is_told_with_its_parameters_and_its_script_by_name() {
    let place = place();
    let output =
        predict(&place, &["--batch", "4", "--checkpoint", "--lora", "16", "--dtype", "bf16"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let said = text(&output.stdout);
    let begin = "LlamaForCausalLM: 1,000 parameters, 2.00 KiB of weights; 10 are trained\n\
                 ./python model.py config.json --batch 4 --lora 16 --dtype bf16 --checkpoint\nas one NVIDIA H200";
    assert!(said.starts_with(begin), "{said}");
    let value = valid(&predict(&place, &["--generate", "5", "--requests", "3", "--json"]));
    assert_eq!(value["model"]["cache"], 4096);
    assert_eq!(
        value["command"],
        json!(["./python", "model.py", "config.json", "--generate", "5", "--requests", "3"])
    );
    // Each runs twice.
    let words = std::fs::read_to_string(place.path("words")).unwrap();
    let generates = "config.json --generate 5 --requests 3\n".repeat(2);
    assert!(words.ends_with(&generates), "{words}");
}

#[test]
fn numbers_of_a_model_are_searched_for_by_their_names() {
    let place = place();
    let value = valid(&predict(&place, &["--search", "batch=1..64", "--seq", "128", "--json"]));
    assert_eq!(value["search"], json!([{ "largest": { "batch": 8 }, "next": { "batch": 9 } }]));
    assert_eq!(
        value["command"],
        json!(["./python", "model.py", "config.json", "--batch", "{batch}", "--seq", "128"])
    );
    assert_eq!(value["best"]["model"]["class"], "LlamaForCausalLM");
}

#[test]
fn the_script_is_shown_and_not_run() {
    let shown = tonnage(&["predict", "--model", "x.json", "--amp", "bf16", "--show-script"]);
    assert_eq!(shown.status.code(), Some(0), "{}", text(&shown.stderr));
    let said = text(&shown.stdout);
    assert!(
        said.starts_with("# python3 model.py x.json --amp bf16\n\n\"\"\"The memory of a"),
        "{said}"
    );
    assert!(said.ends_with("    main()\n"), "{said}");
    valid(&tonnage(&["predict", "--model", "x.json", "--show-script", "--json"]));
    // What is searched for counts as given.
    let search = ["--search", "generate=1..8", "--requests", "4", "--show-script"];
    let shown = tonnage(&[&["predict", "--model", "x.json"], &search[..]].concat());
    let said = text(&shown.stdout);
    let command = "# python3 model.py x.json --generate {generate} --requests 4\n";
    assert!(said.starts_with(command), "{said} {}", text(&shown.stderr));
}

#[test]
fn what_a_model_has_not_is_said() {
    for (flags, why) in [
        (&["--search", "width=1..8"][..], "--search width: of a model there are batch, seq, "),
        (&["--search", "batch=1..8", "--batch", "2"], "--batch is given, and searched for"),
        (&["--search", "batch=1..8", "--generate", "4"], "it is `requests` that are computed"),
        (&["--search", "requests=1..8"], "without --generate it is `batch`"),
        (&["--requests", "8"], "--requests: without --generate it is `batch`"),
        (
            &["--search", "generate=1..8", "--batch", "2"],
            "--batch: with --generate it is `requests`",
        ),
        (&["--search", "generate=1..8", "--search", "steps=1..2"], "nothing is trained"),
        (&["--checkpoint", "sqrt"], "write --checkpoint alone"),
        (&["--generate", "2", "--lora", "2"], "cannot be used with"),
        (&["--layers", "2"], "cannot be used with"),
        (&["--dtype", "int8"], "possible values"),
    ] {
        let words = [&["predict", "--model", "config.json"], flags].concat();
        let output = tonnage(&words);
        assert_eq!(output.status.code(), Some(2), "{flags:?}");
        assert!(text(&output.stderr).contains(why), "{flags:?}: {}", text(&output.stderr));
    }
    let output = tonnage(&["predict", "--lora", "2"]);
    assert!(text(&output.stderr).contains("--model"), "{}", text(&output.stderr));
}
