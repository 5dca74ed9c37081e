//! `tonnage fleet report`: what it says of ranks that were made with differences.

#[path = "../../../fleet/examples/make_fleet/maker.rs"]
mod maker;

use std::path::Path;

use serde_json::Value;
use tempfile::TempDir;

use crate::support::{command, json, recording, text, tonnage};
use maker::{Making, Plant, make};

fn fleet(ranks: u64, plants: &[(u64, Plant)]) -> TempDir {
    let base = recording("mlp_seed.default.stacks");
    let base = tonnage::snapshot::open(Path::new(&base)).unwrap();
    let folder = tempfile::tempdir().unwrap();
    for rank in 0..ranks {
        let plant = plants.iter().find(|it| it.0 == rank).map_or(Plant::Nothing, |it| it.1);
        let embedding = if rank < 2 { 64 << 20 } else { 0 };
        let making = Making { seed: rank, varied: 0.01, shorter: 0.1, embedding, conf: "", plant };
        let path = folder.path().join(format!("pp{}_rank{rank}.pickle.gz", rank / 2));
        tonnage::snapshot::save(&path, &make(&base, &making)).unwrap();
    }
    folder
}

/// Ranks of which some differ, one leaks and one fails.
pub(crate) fn planted() -> TempDir {
    let plants = [
        (3, Plant::Buffer(40 << 20)),
        (5, Plant::Leak(12 << 20, 5)),
        (7, Plant::Fails(400 << 20, 300 << 20)),
        (9, Plant::Settings("expandable_segments:True")),
    ];
    fleet(12, &plants)
}

/// Ranks of which one cannot be read.
pub(crate) fn with_unreadable() -> TempDir {
    let folder = fleet(4, &[]);
    std::fs::write(folder.path().join("rank_9.pickle"), b"cos\nsystem\n.").unwrap();
    folder
}

fn report(folder: &Path, more: &[&str]) -> Value {
    json(&tonnage(&[&["fleet", "report", folder.to_str().unwrap(), "--json"], more].concat()))
}

#[test]
fn planted_differences_are_named_and_the_printed_diffs_can_be_run() {
    let folder = planted();
    let told = report(folder.path(), &[]);
    let ranks = |list: &str| -> Vec<u64> {
        told[list].as_array().unwrap().iter().map(|it| it["rank"].as_u64().unwrap()).collect()
    };
    let mut outliers = ranks("outliers");
    outliers.sort_unstable();
    assert_eq!(outliers, [3, 5, 9], "{told:#}");
    assert_eq!(ranks("failed"), [7], "{told:#}");
    assert_eq!(told["growing"][0]["ranks"], "5");
    let page = tonnage(&["fleet", "report", folder.path().to_str().unwrap()]);
    let page = text(&page.stdout);
    let advised: Vec<_> =
        page.lines().filter_map(|line| line.trim().strip_prefix("tonnage diff ")).collect();
    assert_eq!(advised.len(), 3, "{page}");
    for words in advised {
        let words: Vec<_> = ["diff"].into_iter().chain(words.split(' ')).collect();
        assert_eq!(tonnage(&words).status.code(), Some(0), "{words:?}");
    }
    assert_eq!(told, report(folder.path(), &["--jobs", "1"]));
    let by_pattern = report(folder.path(), &["--names", r"pp\d+_rank(?<rank>\d+)"]);
    assert_eq!(by_pattern["failed"][0]["rank"], 7);
    assert_eq!(by_pattern["failed"][0]["pp"], Value::Null);
}

#[test]
fn what_could_not_be_read_is_named_and_the_status_is_1() {
    let folder = with_unreadable();
    let output = tonnage(&["fleet", "report", folder.path().to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    assert!(
        text(&output.stdout).contains("rank_9.pickle: not a pickled"),
        "{}",
        text(&output.stdout)
    );
    let only = folder.path().join("rank_9.pickle");
    let output = tonnage(&["fleet", "report", only.to_str().unwrap()]);
    assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0));
}

#[test]
fn sources_are_folders_globs_and_lists() {
    let folder = fleet(4, &[]);
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    std::fs::write(path("list"), format!("{}\n{}\n", path("pp0_rank1.pickle.gz"), path("gone")))
        .unwrap();
    let files = |sources: &[&str]| {
        let output = tonnage(&[&["fleet", "report", "--json"], sources].concat());
        let code = output.status.code();
        (
            code,
            serde_json::from_slice::<Value>(&output.stdout)
                .map_or(0, |it| it["files"].as_u64().unwrap()),
        )
    };
    assert_eq!(files(&[&path("")]), (Some(0), 4));
    assert_eq!(files(&[&path("pp1_*.gz"), &path("pp1_rank3.pickle.gz")]), (Some(0), 2));
    assert_eq!(files(&[&format!("@{}", path("list"))]), (Some(1), 2));
    for bad in [path("gone"), path("*.npz"), format!("@{}", path("nolist"))] {
        assert_eq!(files(&[&bad]), (Some(2), 0), "{bad}");
    }
    let mut listed = command();
    let listed = listed.args(["fleet", "report", "@-", "--json"]);
    let output = listed.write_stdin(path("pp0_*")).output().unwrap();
    assert_eq!(json(&output)["files"], 2);
    for (option, why) in [
        (["--names", "(\\d+)"], "groups are"),
        (["--names", "("], "no regular expression"),
        (["--jobs", "0"], "--jobs"),
    ] {
        let output = tonnage(&[&["fleet", "report", &path("")], &option[..]].concat());
        assert_eq!(output.status.code(), Some(2), "{option:?}");
        assert!(text(&output.stderr).contains(why), "{}", text(&output.stderr));
    }
}

#[test]
fn a_file_may_take_no_more_memory_than_it_is_given() {
    let folder = fleet(2, &[]);
    let source = folder.path().to_str().unwrap();
    let output = tonnage(&["fleet", "report", source, "--max-memory", "1KiB"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("--max-memory"), "{}", text(&output.stderr));
}

#[test]
fn a_dataset_is_gone_on_with_and_says_the_same() {
    let folder = planted();
    let outs = tempfile::tempdir().unwrap();
    let out = outs.path().join("ranks");
    let out = out.to_str().unwrap();
    let without = report(folder.path(), &[]);
    assert_eq!(without, report(folder.path(), &["--out", out]));
    // Of what is kept, nothing is looked at again: the files may be anything by now.
    for file in std::fs::read_dir(folder.path()).unwrap() {
        let path = file.unwrap().path();
        let (time, length) = {
            let about = std::fs::metadata(&path).unwrap();
            (about.modified().unwrap(), about.len())
        };
        std::fs::write(&path, vec![0; usize::try_from(length).unwrap()]).unwrap();
        let file = std::fs::File::options().write(true).open(&path).unwrap();
        file.set_modified(time).unwrap();
    }
    let kept = report(folder.path(), &["--out", out]);
    assert_eq!(kept["groups"], without["groups"]);
    assert_eq!(kept["unreadable"], without["unreadable"]);
    let foreign = folder.path().to_str().unwrap();
    let output = tonnage(&["fleet", "report", foreign, "--out", foreign]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("name another folder"), "{}", text(&output.stderr));
}

/// How often the thread of a program that waits for Ctrl-C has begun to: once more when it has done what Ctrl-C is to do.
fn waits_for_ctrl_c(process: u32) -> u64 {
    let threads = std::fs::read_dir(format!("/proc/{process}/task")).unwrap();
    let mut threads = threads.map(|it| it.unwrap().path());
    let is_it = |it: &std::path::PathBuf| {
        std::fs::read_to_string(it.join("comm")).is_ok_and(|it| it.trim() == "ctrl-c")
    };
    let status = std::fs::read_to_string(threads.find(is_it).unwrap().join("status")).unwrap();
    let waits = status.lines().find_map(|it| it.strip_prefix("voluntary_ctxt_switches:"));
    waits.unwrap().trim().parse().unwrap()
}

#[test]
fn ctrl_c_keeps_what_is_done_and_the_same_command_goes_on() {
    let folder = fleet(10, &[]);
    let outs = tempfile::tempdir().unwrap();
    let out = outs.path().join("ranks");
    let (source, out) = (folder.path().to_str().unwrap(), out.to_str().unwrap());
    // The last file is one that does not end before someone says so.
    let last = folder.path().join("zz_rank10.pickle");
    assert!(std::process::Command::new("mkfifo").arg(&last).status().unwrap().success());
    let words = ["fleet", "report", source, "--jobs", "1", "--json", "--out", out];
    let program = command().get_program().to_owned();
    let child = std::process::Command::new(program)
        .args(words)
        .arg(&last)
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    // Opens when someone reads it: then the others are done.
    let writer = std::fs::File::options().write(true).open(&last).unwrap();
    let pid = rustix::process::Pid::from_child(&child);
    let before = waits_for_ctrl_c(child.id());
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    while waits_for_ctrl_c(child.id()) == before {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    drop(writer);
    let stopped = child.wait_with_output().unwrap();
    let said = text(&stopped.stderr);
    assert_eq!((stopped.status.code(), stopped.stdout.len()), (Some(130), 0), "{said}");
    assert!(said.contains("stopped: 10 of 11 files are done and kept"), "{said}");
    let left = |more: &[&str]| {
        let words = [&["fleet", "files", source, "--out", out], more].concat();
        json(&tonnage(&words))["left"].as_array().unwrap().len()
    };
    assert_eq!((left(&[]), left(&[last.to_str().unwrap()])), (0, 1));
    let whole = report(folder.path(), &[]);
    assert_eq!(json(&tonnage(&words)), whole);
}

#[test]
fn a_dataset_of_a_run_that_did_not_end_says_so_and_mixed_rows_are_refused() {
    let (folder, outs) = (fleet(3, &[]), tempfile::tempdir().unwrap());
    let out = outs.path().join("ranks");
    let out = out.to_str().unwrap();
    // What a program does that spreads files over machines, until it is stopped.
    let keep = |name: &str, more: &[&str]| {
        let path = folder.path().join(name);
        let path = path.to_str().unwrap();
        let words = ["fleet", "look", path, "--address", path, "--version-of", "1"];
        let row = tonnage(&[&words, more].concat()).stdout;
        let rows = outs.path().join("rows");
        std::fs::write(&rows, row).unwrap();
        let kept = tonnage(&["fleet", "keep", "--rows", rows.to_str().unwrap(), "--out", out]);
        assert_eq!(kept.status.code(), Some(0), "{}", text(&kept.stderr));
    };
    keep("pp0_rank0.pickle.gz", &[]);
    let told = tonnage(&["fleet", "report", out]);
    assert_eq!(told.status.code(), Some(1), "{}", text(&told.stderr));
    assert!(text(&told.stdout).starts_with("This dataset is of a run that did not end"));
    let json_told = tonnage(&["fleet", "report", out, "--json"]).stdout;
    let json_told: Value = serde_json::from_slice(&json_told).unwrap();
    assert_eq!((&json_told["unfinished"], &json_told["files"]), (&true.into(), &1.into()));
    keep("pp0_rank1.pickle.gz", &["--limit", "80GiB"]);
    let mixed = tonnage(&["fleet", "report", out]);
    assert_eq!((mixed.status.code(), mixed.stdout.len()), (Some(2), 0));
    let said = text(&mixed.stderr);
    assert!(said.contains("in several ways") && said.lines().count() == 1, "{said}");
    // The command that comes to its end puts it in order.
    let whole = report(folder.path(), &["--out", out]);
    let kept = report(Path::new(out), &[]);
    assert_eq!((&kept["unfinished"], &kept["files"]), (&false.into(), &3.into()));
    assert_eq!(kept["groups"], whole["groups"]);
}

#[test]
fn rows_of_files_that_are_not_asked_for_go() {
    let (folder, outs) = (fleet(3, &[]), tempfile::tempdir().unwrap());
    let out = outs.path().join("ranks");
    let source = folder.path().to_str().unwrap();
    let looked = |name: &str| {
        let path = folder.path().join(name);
        let words = [
            "fleet",
            "look",
            path.to_str().unwrap(),
            "--address",
            path.to_str().unwrap(),
            "--version-of",
            "1",
        ];
        text(&tonnage(&words).stdout).trim().to_owned()
    };
    let rows = ["pp0_rank0.pickle.gz", "pp1_rank2.pickle.gz"].map(looked).join("\n");
    let kept = outs.path().join("rows");
    std::fs::write(&kept, rows).unwrap();
    std::fs::remove_file(folder.path().join("pp1_rank2.pickle.gz")).unwrap();
    let told =
        report(folder.path(), &["--rows", kept.to_str().unwrap(), "--out", out.to_str().unwrap()]);
    assert_eq!(told["files"], 2, "{source}: {told:#}");
}

#[test]
fn ray_is_of_the_python_package() {
    let folder = fleet(2, &[]);
    let source = folder.path().to_str().unwrap();
    let output = tonnage(&["fleet", "report", source, "--ray", "auto"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("pip install tonnage ray"), "{}", text(&output.stderr));
}
