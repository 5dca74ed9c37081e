//! `tonnage schema`: every verb's JSON is what its schema says, and nothing else would be.

use std::collections::BTreeMap;

use jsonschema::Validator;
use serde_json::{Value, json};

use crate::fleet;
use crate::support::{command, recording, root, snapshot, testdata, text, tonnage};

/// Verbs that print JSON.
const VERBS: [&str; 12] = [
    "run", "predict", "inspect", "replay", "report", "tune", "diff", "export", "fleet", "top",
    "devices", "bench",
];

/// Objects whose keys come from PyTorch or from a recipe: any may come and go.
const OPEN: [&str; 3] = ["stats", "actions", "sizes"];

/// Fields that are there only where there is something to say.
const OPTIONAL: [&str; 2] = ["pinned", "fit"];

fn schema(verb: &str) -> Value {
    serde_json::from_slice(&tonnage(&["schema", verb]).stdout).unwrap()
}

fn validator(schema: &Value) -> Validator {
    jsonschema::draft202012::meta::validate(schema).unwrap();
    jsonschema::draft202012::new(schema).unwrap()
}

fn printed(arguments: &[&str]) -> Value {
    // `devices` is asked of the fake driver, which the others leave alone.
    let driver = tempfile::tempdir().unwrap();
    tonnage_fake_cuda::Fake::install(driver.path()).unwrap();
    let mut command = command();
    command.env("LD_LIBRARY_PATH", driver.path());
    let output = command.args(arguments).arg("--json").output().unwrap();
    let code = output.status.code();
    assert!(matches!(code, Some(0 | 1)), "{arguments:?}: {}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Whether this is what the verb's schema says.
pub(crate) fn assert_is(verb: &str, value: &Value) {
    assert_valid(verb, &validator(&schema(verb)), value, &[verb]);
}

fn assert_valid(verb: &str, validator: &Validator, value: &Value, what: &[&str]) {
    let errors: Vec<_> = validator
        .iter_errors(value)
        .map(|error| format!("{}: {error:.300}", error.instance_path()))
        .collect();
    assert!(
        errors.is_empty(),
        "{what:?} prints what its schema does not allow. A new field: add it to docs/schema/{verb}.json, with a \
         description. A field that is gone or means something else: count up `schema` too.\n{}",
        errors.join("\n")
    );
}

/// What each verb is asked: whole histories and partial ones, none at all, failures, several devices and files.
fn questions() -> Vec<Vec<String>> {
    let (good, died, stacks) = (
        recording("mlp_seed.default"),
        recording("mlp_seed.tight"),
        recording("mlp_seed.default.stacks"),
    );
    let (pinned, bare, two) =
        (snapshot("release_2_15.p4"), snapshot("state_only.p4"), snapshot("release_2_11.p4"));
    let (old, needs_limit) = (snapshot("before_2_0.p2"), recording("multistream.gc60"));
    let planted = |name: &str| {
        testdata("planted").join(format!("{name}.pickle.gz")).to_str().unwrap().to_owned()
    };
    let (leaks, pieces) = (planted("leak_view"), planted("leak_outputs_oom"));
    let stream = testdata("streams/25.jsonl").to_str().unwrap().to_owned();
    let small = ["--layers", "2", "--width", "16", "--batch", "8", "--steps", "2"];
    let recipe =
        |verb: &'static str, more: &[&'static str]| [&[verb, "deepnet"], &small[..], more].concat();
    let cases: Vec<Vec<&str>> = vec![
        vec!["inspect", &died],
        vec!["inspect", &pinned],
        vec!["inspect", &bare],
        vec!["inspect", &old],
        vec!["replay", &good],
        vec!["replay", &stream],
        vec!["replay", &needs_limit],
        vec!["replay", &good, "--conf", "", "--limit", "64MiB"],
        vec!["replay", &died, "--conf", "expandable_segments:True"],
        vec!["replay", &good, "--as", "2.15"],
        vec!["replay", &died, "--as", "2.8"],
        vec!["report", &good],
        vec!["report", &died],
        vec!["report", &died, "--limit", "194MiB"],
        vec!["report", &stacks, &died],
        vec!["report", &bare],
        vec!["report", &pinned, &two, &old],
        vec!["report", &leaks],
        vec!["report", &pieces, &leaks],
        vec!["tune", &good],
        vec!["tune", &died],
        vec!["tune", &good, "--limit", "64MiB"],
        vec!["diff", &good, &died],
        vec!["diff", &bare, &good],
        vec!["diff", &stacks, &leaks, "--fail-if-peak-grows", "0"],
        recipe("run", &[]),
        recipe("run", &["--device", "dry"]),
        recipe("run", &["--limit", "1MiB"]),
        vec!["run", "mimo", "--steps", "1", "--batch", "1", "--device", "dry"],
        recipe("predict", &[]),
        recipe("predict", &["--limit", "1MiB"]),
        recipe("predict", &["--fit", "64MiB"]),
        recipe("predict", &["--fit", "1MiB"]),
        vec!["top"],
        vec!["devices"],
        vec!["bench", "--pairs", "10"],
    ];
    cases.into_iter().map(|case| case.into_iter().map(str::to_owned).collect()).collect()
}

#[test]
fn what_verbs_print_is_what_their_schemas_say() {
    let validators: BTreeMap<_, _> =
        VERBS.iter().map(|&verb| (verb, validator(&schema(verb)))).collect();
    let mut asked = Vec::new();
    for question in questions() {
        let question: Vec<_> = question.iter().map(String::as_str).collect();
        let (&verb, validator) = validators.get_key_value(question[0]).unwrap();
        assert_valid(verb, validator, &printed(&question), &question);
        asked.push(verb);
    }
    let folder = tempfile::tempdir().unwrap();
    for format in [&["--format=csv", "--table=blocks"][..], &["--format=perfetto"]] {
        let output = folder.path().join("written");
        let file = recording("mlp_seed.default");
        let question = [&["export", &file, "--output", output.to_str().unwrap()], format].concat();
        assert_valid("export", &validators["export"], &printed(&question), &question);
        asked.push("export");
    }
    for fleet in [fleet::planted(), fleet::with_unreadable()] {
        let question = ["fleet", "report", fleet.path().to_str().unwrap()];
        assert_valid("fleet", &validators["fleet"], &printed(&question), &question);
        asked.push("fleet");
    }
    assert!(VERBS.iter().all(|verb| asked.contains(verb)));
}

#[test]
fn one_file_has_the_form_of_several() {
    let (one, other) = (recording("mlp_seed.default"), recording("mlp_seed.tight"));
    let (alone, both) = (printed(&["report", &one]), printed(&["report", &one, &other]));
    assert_eq!(alone["files"][0], both["files"][0]);
    let keys = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(keys(&alone), keys(&both));
    assert_eq!((&alone["fullest"], &alone["imbalance"]), (&json!(0), &json!(0)));
    assert_eq!(alone["text"], alone["files"][0]["report"]["verdict"]["text"]);
}

/// Every change of a value, in words: a field more, a field less, a field of another type. Of a list its first element
/// is changed.
fn changes(value: &Value, path: &str, put: &mut dyn FnMut(String, Value)) {
    match value {
        Value::Object(fields) => {
            let name = path.rsplit('/').next().unwrap_or_default();
            if OPEN.contains(&name) {
                put(format!("{path} is a number"), json!(1));
                return;
            }
            let mut more = fields.clone();
            more.insert("a new field".to_owned(), json!(1));
            put(format!("{path} has one more"), Value::Object(more));
            for (key, field) in fields {
                if !OPTIONAL.contains(&key.as_str()) {
                    let mut less = fields.clone();
                    less.remove(key);
                    put(format!("{path} lacks {key}"), Value::Object(less));
                }
                changes(field, &format!("{path}/{key}"), &mut |what, field| {
                    let mut changed = fields.clone();
                    changed.insert(key.clone(), field);
                    put(what, Value::Object(changed));
                });
            }
        }
        Value::Array(elements) => {
            put(format!("{path} is no list"), json!({}));
            if let Some((first, rest)) = elements.split_first() {
                changes(first, &format!("{path}/0"), &mut |what, first| {
                    put(what, Value::Array([&[first], rest].concat()));
                });
            }
        }
        _ => put(format!("{path} is an object"), json!({})),
    }
}

#[test]
fn nothing_that_is_printed_can_change_without_its_schema() {
    let file = recording("mlp_seed.tight");
    let stacks = recording("mlp_seed.default.stacks");
    let recipe = ["deepnet", "--layers", "2", "--width", "16", "--batch", "8", "--steps", "2"];
    let (planted, unreadable) = (fleet::planted(), fleet::with_unreadable());
    for question in [
        &["fleet", "report", planted.path().to_str().unwrap()][..],
        &["fleet", "report", unreadable.path().to_str().unwrap(), "--tune"],
        &["inspect", &snapshot("release_2_15.p4")],
        &["replay", &file],
        &["replay", &file, "--conf", ""],
        &["replay", &file, "--as", "2.15"],
        &["report", &file, &stacks],
        &["tune", &file],
        &["diff", &file, &stacks, "--fail-if-peak-grows", "0"],
        &[&["run"], &recipe[..]].concat(),
        &[&["predict"], &recipe[..], &["--fit", "64MiB"]].concat(),
        &[&["predict"], &recipe[..], &["--limit", "1MiB"]].concat(),
        &["devices"],
        &["bench", "--pairs", "10"],
    ] {
        let validator = validator(&schema(question[0]));
        let value = shortened(printed(question));
        assert_valid(question[0], &validator, &value, question);
        let mut tried = 0;
        changes(&value, "", &mut |what, changed| {
            tried += 1;
            assert!(!validator.is_valid(&changed), "{question:?}: {what}");
        });
        assert!(tried > 10, "{question:?}: {tried}");
    }
}

/// With at most two elements in a list, so that there is not too much to try.
fn shortened(value: Value) -> Value {
    match value {
        Value::Array(elements) => elements.into_iter().take(2).map(shortened).collect(),
        Value::Object(fields) => {
            Value::Object(fields.into_iter().map(|(key, it)| (key, shortened(it))).collect())
        }
        other => other,
    }
}

#[test]
fn every_verb_with_json_has_a_schema_and_every_field_a_description() {
    let listed = tonnage(&["schema"]);
    let listed: Vec<_> = text(&listed.stdout)
        .lines()
        .map(|line| line.split_whitespace().nth(2).unwrap().to_owned())
        .collect();
    assert_eq!(listed, VERBS);
    let help = tonnage(&["--help"]);
    let verbs = text(&help.stdout).lines().skip_while(|it| !it.starts_with("Commands:")).skip(1);
    for line in verbs.take_while(|line| !line.is_empty()) {
        let verb = line.split_whitespace().next().unwrap();
        // Verbs of a fleet are one deeper.
        let asked =
            if verb == "fleet" { &["fleet", "report", "--help"][..] } else { &[verb, "--help"] };
        let has_json = text(&tonnage(asked).stdout).contains("      --json\n");
        assert_eq!(has_json, VERBS.contains(&verb), "{verb}");
    }
    for verb in VERBS {
        let file = root().join(format!("docs/schema/{verb}.json"));
        assert_eq!(
            std::fs::read_to_string(file).unwrap(),
            text(&tonnage(&["schema", verb]).stdout)
        );
        described(verb, &schema(verb));
    }
    let unknown = tonnage(&["schema", "view"]);
    assert_eq!(unknown.status.code(), Some(2));
    assert!(text(&unknown.stderr).contains("report"), "{}", text(&unknown.stderr));
}

/// Every property says what it is, by itself or where it is defined.
fn described(path: &str, schema: &Value) {
    if let Some(properties) = schema.get("properties").and_then(Value::as_object) {
        for (name, property) in properties {
            let said = property.get("description").or_else(|| property.get("$ref"));
            assert!(said.is_some(), "{path}/{name} has no description");
        }
    }
    match schema {
        Value::Object(fields) => {
            for (key, field) in fields {
                described(&format!("{path}/{key}"), field);
            }
        }
        Value::Array(elements) => elements.iter().for_each(|it| described(path, it)),
        _ => {}
    }
}

/// What two verbs print alike is described alike.
#[test]
fn definitions_of_one_name_are_one_definition() {
    let mut seen = BTreeMap::<String, Value>::new();
    for verb in VERBS {
        let schema = schema(verb);
        let Some(definitions) = schema.get("$defs").and_then(Value::as_object) else { continue };
        for (name, definition) in definitions {
            // Each verb has its own of these.
            if ["device", "schema", "outcome"].contains(&name.as_str()) {
                continue;
            }
            let first = seen.entry(name.clone()).or_insert_with(|| definition.clone());
            assert_eq!(first, definition, "{verb}: {name}");
        }
    }
}
