//! `tonnage export`: files, standard output and exit status.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::support::{
    command, json, pickled, python_with_packages, recording, root, text, tonnage, wait_until,
};

fn copied(folder: &Path, name: &str) -> String {
    let path = folder.join("run.pickle.zst");
    std::fs::copy(recording(name), &path).unwrap();
    path.to_str().unwrap().to_owned()
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<_> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn without_a_name_the_file_lies_beside_the_snapshot_and_is_not_overwritten() {
    let folder = tempfile::tempdir().unwrap();
    let file = copied(folder.path(), "mlp_seed.default");
    for (format, output) in [
        ("perfetto", "run.perfetto-trace"),
        ("parquet", "run.events.parquet"),
        ("csv", "run.events.csv"),
    ] {
        let run = |more: &[&str]| {
            let mut arguments = vec!["export", &file, "--format", format];
            arguments.extend(more);
            tonnage(&arguments)
        };
        let first = run(&[]);
        assert_eq!(first.status.code(), Some(0), "{}", text(&first.stderr));
        assert!(text(&first.stdout).contains(output), "{}", text(&first.stdout));
        let written = std::fs::read(folder.path().join(output)).unwrap();
        let again = run(&[]);
        assert_eq!(again.status.code(), Some(2));
        assert!(text(&again.stderr).contains("--force"), "{}", text(&again.stderr));
        assert_eq!(run(&["--force"]).status.code(), Some(0));
        let rewritten = std::fs::read(folder.path().join(output)).unwrap();
        assert!(written == rewritten, "{format}: the same file gives the same bytes");
    }
    let expected = ["run.events.csv", "run.events.parquet", "run.perfetto-trace", "run.pickle.zst"];
    assert_eq!(names(folder.path()), expected);
}

#[test]
fn a_trace_is_valid_by_perfettos_own_protocol() {
    let (python, folder) = (python_with_packages(), tempfile::tempdir().unwrap());
    let trace = folder.path().join("trace");
    let check = root().join("crates/cli/tests/check_perfetto.py");
    for name in ["gpt2_varlen.default.stacks", "multistream.expandable", "cudagraph.tight"] {
        let file = recording(name);
        let path = trace.to_str().unwrap();
        let written = tonnage(&["export", &file, "--format", "perfetto", "--output", path]);
        assert_eq!(written.status.code(), Some(0), "{name}: {}", text(&written.stderr));
        let checked = Command::new(&python).arg(&check).arg(&trace).output().unwrap();
        assert!(checked.status.success(), "{name}: {}", text(&checked.stderr));
    }
}

#[test]
fn json_says_what_was_written() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("out.csv");
    let file = recording("mlp_seed.default");
    let path = output.to_str().unwrap();
    let arguments =
        ["export", &file, "--format=csv", "--table=allocations", "--json", "--output", path];
    let json = json(&tonnage(&arguments));
    assert_eq!(json["schema"], 1);
    assert_eq!(json["table"], "allocations");
    assert_eq!(json["output"], path);
    assert_eq!(json["rows"], 151);
    assert_eq!(std::fs::read_to_string(output).unwrap().lines().count(), 152);
}

#[test]
fn a_dash_is_standard_output_and_standard_input() {
    let bytes = std::fs::read(recording("mlp_seed.default")).unwrap();
    let mut command = command();
    command.args(["export", "-", "--format", "csv", "--output", "-"]).write_stdin(bytes);
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert_eq!(text(&output.stdout).lines().count(), 460);
    assert!(output.stderr.is_empty());
}

#[test]
fn what_cannot_be_written_exits_with_2_and_says_what_to_do() {
    let file = recording("mlp_seed.default");
    for (arguments, part) in [
        (&["export", &file, "--format", "csv", "-o", "/nowhere/out.csv"][..], "/nowhere/out.csv"),
        (&["export", &file, "--format", "perfetto", "--table", "events"], "--table"),
        (&["export", &file, "--format", "csv", "--table", "rows"], "`allocations`"),
        (&["export", &file, "--format", "csv", "--json", "-o", "-"], "--output"),
        (&["export", &file], "--format"),
        (&["export", "-", "--format", "csv"], "--output"),
    ] {
        let output = tonnage(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(text(&output.stderr).contains(part), "{arguments:?}: {}", text(&output.stderr));
        assert!(output.stdout.is_empty());
    }
    let mut command = command();
    command.args(["export", "-", "--format", "perfetto", "-o", "x"]).write_stdin(pickled("[]"));
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("--table blocks"), "{}", text(&output.stderr));
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    for arguments in [
        vec![
            "export".to_owned(),
            recording("gpt2_varlen.default"),
            "--format=csv".into(),
            "-o-".into(),
        ],
        vec!["inspect".to_owned(), recording("gpt2_varlen.default")],
    ] {
        let program = command();
        let mut child = Command::new(program.get_program())
            .args(&arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut out = BufReader::with_capacity(64, child.stdout.take().unwrap());
        out.read_line(&mut line).unwrap();
        drop(out);
        let mut errors = String::new();
        child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(0), "{arguments:?}");
        assert_eq!(errors, "", "{arguments:?}");
    }
}

#[cfg(unix)]
#[test]
fn after_ctrl_c_the_file_is_whole_or_not_there() {
    let folder = tempfile::tempdir().unwrap();
    let entries = "[{'action': 'alloc', 'addr': 512 * i, 'size': 512, 'stream': 0, 'frames': [], \
                    'time_us': i} for i in range(1, 400000)]";
    let snapshot = pickled(&format!("{{'segments': [], 'device_traces': [{entries}]}}"));
    std::fs::write(folder.path().join("long.pickle"), snapshot).unwrap();
    let mut child = Command::new(command().get_program())
        .args(["export", "long.pickle", "--format", "csv"])
        .current_dir(folder.path())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    // Once it has begun the file, it has been told what to do about Ctrl-C.
    wait_until("the file is begun", || names(folder.path()).len() > 1);
    let pid = child.id().to_string();
    assert!(
        Command::new("sh").args(["-c", &format!("kill -INT {pid}")]).status().unwrap().success()
    );
    let status = child.wait().unwrap();
    let whole = folder.path().join("long.events.csv");
    if status.code() == Some(0) || whole.exists() {
        // It was faster: the signal came when the file was whole already, before the program ended or after.
        assert!(matches!(status.code(), Some(0 | 130)), "{status}");
        assert_eq!(names(folder.path()), ["long.events.csv", "long.pickle"]);
        // A line for each entry and one for the names of the columns.
        assert_eq!(std::fs::read_to_string(whole).unwrap().lines().count(), 400_000);
    } else {
        assert_eq!(status.code(), Some(130));
        assert_eq!(names(folder.path()), ["long.pickle"]);
    }
}
