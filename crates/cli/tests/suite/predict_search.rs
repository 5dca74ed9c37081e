//! `tonnage predict --search`: the largest that fits, with a stand-in for PyTorch that fails where a script says so.

use serde_json::json;

use crate::predict_script::{Place, valid};
use crate::support::text;

/// Fits while the product of its numbers is at most forty.
const SEARCHED: &str = "
import math, sys, torch
torch.cuda.init()
size = math.prod(int(word) for word in sys.argv[1:] if word.isdigit())
if size > 40:
    raise torch.OutOfMemoryError(f'Tried to allocate {size}')
if size == 13:
    raise ValueError('thirteen')
";

#[test]
fn the_largest_that_fits_is_told_with_the_next_that_does_not() {
    let place = Place::new(SEARCHED);
    let output = place.run(
        "mlp_seed.default",
        &["--search", "batch=1..512"],
        &["--batch", "{batch}", "{x}"],
    );
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let said = text(&output.stdout);
    for words in [
        "python3 train.py --batch {batch} {x}\non one NVIDIA H200 (139.80 GiB)\n",
        "the largest that fits: batch=40; 41, the next, was run too and does not fit\n",
        "  batch=1    fits, 208.00 MiB reserved (218,103,808 bytes)\n",
        "  batch=41   does not fit\n",
        // The largest itself, with the name filled in and other braces as they were.
        "\npython3 train.py --batch 40 {x}\nas one NVIDIA H200",
    ] {
        assert!(said.contains(words), "{words:?} is not in\n{said}");
    }
    // Whoever reads no terminal sees each run when it is done.
    assert!(text(&output.stderr).contains("note: batch=41: does not fit\n"), "{said}");

    let value = valid(&place.run(
        "mlp_seed.default",
        &["--search", "batch=1..512", "--json", "--save", "largest.pickle"],
        &["{batch}"],
    ));
    assert_eq!(value["search"], json!([{ "largest": { "batch": 40 }, "next": { "batch": 41 } }]));
    assert_eq!(value["best"]["command"], json!(["python3", "train.py", "40"]));
    assert_eq!((&value["best"]["snapshot"], &value["odd"]), (&json!("largest.pickle"), &json!([])));
    assert!(place.path("largest.pickle").is_file());
}

#[test]
fn everything_or_nothing_may_fit() {
    let place = Place::new(SEARCHED);
    let search = |values: &str, flags: &[&str]| {
        let flags = [&["--search", values], flags].concat();
        place.run("mlp_seed.default", &flags, &["{batch}"])
    };
    let output = search("batch=2,30", &[]);
    assert_eq!(output.status.code(), Some(0));
    assert!(text(&output.stdout).contains("all fit: batch=30, the last that was asked for"));
    let output = search("batch=50..60", &[]);
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stdout);
    assert!(said.contains("nothing fits: not even batch=50, the least"), "{said}");
    let value = valid(&search("batch=50..60", &["--json"]));
    assert_eq!(value["search"], json!([{ "largest": null, "next": { "batch": 50 } }]));
    assert_eq!((value["runs"].as_array().unwrap().len(), &value["best"]), (1, &json!(null)));
}

/// With half of a mask true forty fit, with all of it twenty: by itself, each of those between may not fit.
#[test]
fn the_largest_fits_whatever_is_guessed_as_it_would_by_itself() {
    let script = "
import json, os, sys, torch
torch.cuda.init()
size = int(sys.argv[1])
if 'TONNAGE_GUESSES' in os.environ:
    with open(os.environ['TONNAGE_GUESSES'], 'a') as file:
        file.write(json.dumps({'line': 'train.py:1', 'what': 'a mask', 'kind': 'mask'}) + '\\n')
if size > (20 if os.environ.get('TONNAGE_DENSITY') == '1' else 40):
    raise torch.OutOfMemoryError(f'Tried to allocate {size}')
";
    let place = Place::new(script);
    let flags = ["--search", "batch=16,20,30,40,50"];
    // In this recording a request failed, which those that end well got over.
    let output = place.run("mlp_seed.tight", &flags, &["{batch}"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let said = text(&output.stdout);
    assert!(
        said.contains(
            "the largest that fits: batch=20; 30, the next, was run too and may not fit\n"
        ),
        "{said}"
    );
    assert!(said.contains("\npython3 train.py 20\nas one NVIDIA H200"), "{said}");
    let alone = |batch: &str| place.run("mlp_seed.tight", &[], &[batch]).status.code();
    assert_eq!([alone("20"), alone("30")], [Some(0), Some(1)]);
    // What fitted by the first guess is no answer where nothing fits by all.
    let flags = ["--search", "batch=30,40", "--json", "--save", "none.pickle"];
    let value = valid(&place.run("mlp_seed.tight", &flags, &["{batch}"]));
    assert_eq!((&value["search"][0]["largest"], &value["best"]), (&json!(null), &json!(null)));
    assert!(!place.path("none.pickle").exists());
    let said = place.run("mlp_seed.tight", &flags[..2], &["{batch}"]);
    let said = text(&said.stdout);
    let nothing = "nothing fits for sure: batch=30, the least that was asked for, may not fit\n";
    assert!(said.contains(nothing), "{said}");
}

#[test]
fn of_several_names_there_is_a_table() {
    let place = Place::new(SEARCHED);
    let flags = ["--search", "batch=1..64", "--search", "seq=1,7,50"];
    let output = place.run("mlp_seed.default", &flags, &["{batch}", "{seq}"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let said = text(&output.stdout);
    let table = "\
the largest that fits of batch; the next was run too, and does not fit
seq  batch  next
  1     40  41
  7      5  6
 50   none  1
";
    assert!(said.contains(table), "{said}");
    let flags = [&flags[..], &["--json"]].concat();
    let value = valid(&place.run("mlp_seed.default", &flags, &["{batch}", "{seq}"]));
    assert_eq!(value["search"][1]["largest"], json!({ "batch": 5, "seq": 7 }));
}

#[test]
fn a_script_that_fails_by_itself_ends_the_search() {
    let place = Place::new(SEARCHED);
    let output = place.run("mlp_seed.default", &["--search", "batch=13..20"], &["{batch}"]);
    assert_eq!(output.status.code(), Some(2));
    let said = text(&output.stderr);
    assert!(
        said.contains(
            "error: the search ends here: batch=13: the script failed: ValueError: thirteen\n"
        ),
        "{said}"
    );
    assert!(text(&output.stdout).contains("ValueError: thirteen"), "{}", text(&output.stdout));
}

/// The first run leaves a checkpoint, from which all others go on: each would fit.
#[test]
fn a_search_ends_where_runs_go_on_from_what_earlier_ones_wrote() {
    let script = |file: &str| {
        format!(
            "import os, sys, torch\ntorch.cuda.init()\nfile = {file}\n\
             if os.path.exists(file):\n    open(file).read()\n    torch.allocations = 10\n\
             open(file, 'w').write('zeros')\n"
        )
    };
    let flags = ["--search", "batch=1,30"];
    let output = Place::new(&script("'last.pt'")).run("mlp_seed.default", &flags, &["{batch}"]);
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stdout));
    let said = text(&output.stderr);
    assert!(said.contains("batch=1: the script read ") && said.contains("last.pt"), "{said}");
    assert!(said.contains("asked for memory 10 times where another run did 151"), "{said}");
    assert!(said.contains("tempfile.mkdtemp()"), "{said}");
    // One for each value is met by the second run of that value.
    let of_value = script("f'{sys.argv[1]}.pt'");
    let output = Place::new(&of_value).run("mlp_seed.default", &flags, &["{batch}"]);
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stdout));
    // Each run by itself, as the advice says.
    let own = script("__import__('tempfile').mkdtemp() + '/last.pt'");
    let output = Place::new(&own).run("mlp_seed.default", &flags, &["{batch}"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
}

#[test]
fn what_cannot_be_searched_is_said() {
    let place = Place::new(SEARCHED);
    for (flags, why) in [
        (&["--search", "batch=1..8"][..], "`{batch}` is nowhere in the command"),
        (&["--search", "seq=8..1"], "nothing lies in `8..1`: write it as in `batch=1..512`"),
        (&["--search", "seq=1", "--search", "seq=2"], "`seq` is searched for twice"),
        (&["--search", "seq=1", "--search", "x=2", "--save", "a.pickle"], "--save keeps one run"),
    ] {
        let output = place.run("mlp_seed.default", flags, &["{seq}", "{x}"]);
        assert_eq!(output.status.code(), Some(2), "{flags:?}");
        assert!(text(&output.stderr).contains(why), "{}", text(&output.stderr));
    }
}
