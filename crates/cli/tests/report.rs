//! `tonnage report`: output and exit status.

mod support;

use support::{json, recording, text, tonnage};

#[test]
fn the_verdict_comes_first_and_the_page_is_100_columns_wide() {
    let output = tonnage(&["report", &recording("mlp_seed.default.stacks")]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let page = text(&output.stdout);
    assert!(page.lines().nth(3).unwrap().starts_with("Reserved memory peaks at"), "{page}");
    assert!(page.lines().skip(1).all(|line| line.chars().count() <= 100), "{page}");
}

#[test]
fn json_has_every_promised_field_and_waste_adds_up() {
    let json = json(&tonnage(&["report", "--json", &recording("mlp_seed.tight")]));
    for key in ["verdict", "causes", "waste", "peak", "growth", "ooms", "advice"] {
        assert!(!json[key].is_null(), "{key}");
    }
    let waste: u64 =
        json["waste"].as_object().unwrap().values().map(|it| it.as_u64().unwrap()).sum();
    let reserved = &json["peak"]["reserved"];
    assert_eq!(
        waste + reserved["requested"].as_u64().unwrap(),
        reserved["bytes"].as_u64().unwrap()
    );
    assert_eq!(json["ooms"].as_array().unwrap().len(), 1);
}

#[test]
fn several_files_are_ranks_of_which_one_is_the_limit() {
    let files = [recording("mlp_seed.default"), recording("mlp_seed.tight")];
    let json = json(&tonnage(&["report", "--json", &files[0], &files[1]]));
    assert_eq!(json["limit"], 0);
    assert_eq!(json["ranks"].as_array().unwrap().len(), 2);
}
