//! `tonnage report`: output and exit status.

use crate::support::{json, recording, snapshot, text, tonnage};

#[test]
fn the_verdict_comes_first_and_a_pipe_gets_whole_lines_without_colours() {
    let output = tonnage(&["report", &recording("mlp_seed.default.stacks")]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let page = text(&output.stdout);
    assert!(page.lines().nth(3).unwrap().starts_with("Reserved memory peaked at"), "{page}");
    assert!(!page.contains('…') && !page.contains('\u{1b}'), "{page}");
}

#[test]
fn json_has_every_promised_field_and_waste_adds_up() {
    let json = &json(&tonnage(&["report", "--json", &recording("mlp_seed.tight")]));
    let json = &json["files"][0]["report"];
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
    assert_eq!(json["fullest"], 0);
    assert_eq!(json["files"].as_array().unwrap().len(), 2);
}

#[test]
fn the_page_is_written_whole_and_replaces_the_one_that_was_there() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("report.html");
    std::fs::write(&path, "old").unwrap();
    let file = recording("mlp_seed.default.stacks");
    let output = tonnage(&["report", &file, "--html", path.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(text(&output.stdout).starts_with("wrote "), "{}", text(&output.stdout));
    let page = std::fs::read_to_string(&path).unwrap();
    assert!(page.starts_with("<!DOCTYPE html>") && page.ends_with("</html>"));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);

    let piped = tonnage(&["report", &file, "--html", "-"]);
    assert_eq!(text(&piped.stdout), page);
}

#[test]
fn a_page_that_cannot_be_written_is_an_error_with_its_name() {
    let output =
        tonnage(&["report", &recording("mlp_seed.default"), "--html", "/nowhere/report.html"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        text(&output.stderr).contains("cannot write /nowhere/report.html"),
        "{}",
        text(&output.stderr)
    );
}

#[test]
fn the_page_goes_to_a_file_beside_json_but_not_into_the_same_output() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("report.html");
    let file = recording("mlp_seed.tight");
    let both =
        json(&tonnage(&["report", "--json", &file, &file, "--html", path.to_str().unwrap()]));
    assert_eq!(both["files"].as_array().unwrap().len(), 2);
    let page = std::fs::read_to_string(&path).unwrap();
    assert!(page.contains("2 files side by side"));

    let output = tonnage(&["report", "--json", "--html", "-", &file]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        text(&output.stderr).contains("both write to standard output"),
        "{}",
        text(&output.stderr)
    );
}

#[test]
fn pinned_memory_is_shown_apart_and_part_of_no_figure_of_the_device() {
    let file = snapshot("release_2_15.p4");
    let output = tonnage(&["report", &file]);
    let page = text(&output.stdout);
    assert!(page.contains("Pinned memory of the host, part of no figure above"), "{page}");
    assert!(page.contains("/src/inner.py:3 inner"), "{page}");
    let pinned = &json(&tonnage(&["report", "--json", &file]))["files"][0]["report"];
    assert_eq!(pinned["pinned"]["reserved"], (4 << 20) + 1536);
    assert_eq!(pinned["pinned"]["allocated_peak"], (4 << 20) + 512);
    assert_eq!(pinned["peak"]["reserved"]["bytes"], 22 << 20);
    let folder = tempfile::tempdir().unwrap();
    let html = folder.path().join("report.html");
    tonnage(&["report", &file, "--html", html.to_str().unwrap()]);
    let html = std::fs::read_to_string(html).unwrap();
    assert!(html.contains("Pinned memory of the host"), "{html}");
    // Older files have no such part.
    let older = tonnage(&["report", &snapshot("release_2_13.p4")]);
    assert!(!text(&older.stdout).contains("Pinned"), "{}", text(&older.stdout));
}
