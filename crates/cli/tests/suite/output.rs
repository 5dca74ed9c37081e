//! Files that verbs write, whatever lies at their path. Nothing under `/dev` is touched: nodes, pipes and links are made
//! for each test.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{FileTypeExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::support::{command, recording, text, tonnage};

/// Verbs that write a file, each with what it begins with.
const WRITERS: [(&[&str], &str); 2] = [
    (&["export", "--format", "csv", "--output"], "device,"),
    (&["report", "--html"], "<!DOCTYPE html>"),
];

/// Lets a verb write to a path.
fn write(writer: &[&str], to: &Path) -> Output {
    let file = recording("mlp_seed.default");
    let mut arguments = vec![writer[0], &file];
    arguments.extend(&writer[1..]);
    arguments.push(to.to_str().unwrap());
    tonnage(&arguments)
}

fn is_written(output: &Output, writer: &[&str]) {
    assert_eq!(output.status.code(), Some(0), "{writer:?}: {}", text(&output.stderr));
}

#[test]
fn a_device_is_written_to_and_stays_a_device() {
    let folder = tempfile::tempdir().unwrap();
    let node = folder.path().join("null");
    let made = Command::new("mknod").arg(&node).args(["c", "1", "3"]).output().unwrap();
    // Only root makes nodes, and not in every container; elsewhere they cannot be opened.
    if !made.status.success() || File::options().write(true).open(&node).is_err() {
        return;
    }
    for (writer, _) in WRITERS {
        is_written(&write(writer, &node), writer);
        assert!(fs::symlink_metadata(&node).unwrap().file_type().is_char_device(), "{writer:?}");
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn a_pipe_is_written_to_and_stays_a_pipe() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    for (writer, beginning) in WRITERS {
        let reader = std::thread::spawn({
            let pipe = pipe.clone();
            move || {
                let mut text = String::new();
                File::open(pipe).unwrap().read_to_string(&mut text).unwrap();
                text
            }
        });
        is_written(&write(writer, &pipe), writer);
        let read = reader.join().unwrap();
        assert!(read.starts_with(beginning), "{writer:?}: {}", &read[..100]);
        assert!(fs::symlink_metadata(&pipe).unwrap().file_type().is_fifo(), "{writer:?}");
    }
}

#[test]
fn links_stay_and_what_they_lead_to_is_replaced_with_its_permissions() {
    let folder = tempfile::tempdir().unwrap();
    let (real, link) = (folder.path().join("real"), folder.path().join("link"));
    fs::write(&real, "keep").unwrap();
    fs::set_permissions(&real, PermissionsExt::from_mode(0o640)).unwrap();
    symlink("real", &link).unwrap();
    for (writer, beginning) in WRITERS {
        is_written(&write(writer, &link), writer);
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink(), "{writer:?}");
        assert!(fs::read_to_string(&real).unwrap().starts_with(beginning), "{writer:?}");
        assert_eq!(fs::metadata(&real).unwrap().permissions().mode() & 0o777, 0o640);
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
}

#[test]
fn what_cannot_be_written_is_named_once_and_before_the_file_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("no/such/folder/out");
    for (writer, _) in WRITERS {
        for (path, why) in
            [(folder.path(), "it is a folder"), (&missing, "No such file or directory")]
        {
            let output = write(writer, path);
            assert_eq!(output.status.code(), Some(2), "{writer:?}");
            let message = text(&output.stderr);
            assert!(message.contains(&format!("cannot write {}", path.display())), "{message}");
            assert!(message.contains(why), "{message}");
            assert_eq!(message.matches(&path.display().to_string()).count(), 1, "{message}");
        }
    }
    // One that is not there is not looked for where the other is wrong.
    let output = tonnage(&["report", "/nowhere.pickle", "--html", folder.path().to_str().unwrap()]);
    assert!(text(&output.stderr).contains("it is a folder"), "{}", text(&output.stderr));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn no_verb_writes_over_what_it_reads() {
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path();
    let input = home.join("run.pickle.zst");
    fs::copy(recording("mlp_seed.default"), &input).unwrap();
    let before = fs::read(&input).unwrap();
    symlink(&input, home.join("soft")).unwrap();
    fs::hard_link(&input, home.join("hard")).unwrap();
    let given = input.to_str().unwrap();
    for (writer, _) in WRITERS {
        for name in ["run.pickle.zst", "soft", "hard"] {
            let to = home.join(name);
            let (verb, more) = (writer[0], &writer[1..]);
            for (from, stdin) in [(given, Stdio::null()), ("-", File::open(&input).unwrap().into())]
            {
                let mut run = Command::new(command().get_program());
                run.arg(verb).arg(from).args(more).arg(&to).stdin(stdin);
                let output = run.output().unwrap();
                assert_eq!(output.status.code(), Some(2), "{writer:?} {name} {from}");
                let message = text(&output.stderr);
                assert!(message.contains("is the file that is read"), "{message}");
            }
        }
        // Nor is it added to.
        let out = File::options().append(true).open(&input).unwrap();
        let mut run = Command::new(command().get_program());
        run.arg(writer[0]).arg(given).args(&writer[1..]).arg("-").stdout(out);
        let output = run.output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{writer:?}");
        assert!(text(&output.stderr).contains("the file that is read"), "{}", text(&output.stderr));
    }
    assert!(fs::read(&input).unwrap() == before);
}

/// What `/dev/stdout` is on Linux, made for the test.
fn standard_output(folder: &Path) -> PathBuf {
    let link = folder.join("stdout");
    symlink("/proc/self/fd/1", &link).unwrap();
    link
}

#[test]
fn a_name_of_standard_output_is_standard_output_and_adds_to_its_file() {
    let folder = tempfile::tempdir().unwrap();
    let (link, log) = (standard_output(folder.path()), folder.path().join("log"));
    for (writer, beginning) in WRITERS {
        // A pipe: as with `-`, the data and nothing else.
        let output = write(writer, &link);
        is_written(&output, writer);
        let data = text(&output.stdout);
        assert!(data.starts_with(beginning), "{writer:?}");
        assert!(data == text(&write(writer, Path::new("-")).stdout), "{writer:?}");
        // A file to which the shell would add.
        fs::write(&log, "before\n").unwrap();
        let out = File::options().append(true).open(&log).unwrap();
        let mut run = Command::new(command().get_program());
        run.arg(writer[0]).arg(recording("mlp_seed.default")).args(&writer[1..]).arg(&link);
        assert!(run.stdout(out).status().unwrap().success(), "{writer:?}");
        let written = fs::read_to_string(&log).unwrap();
        assert!(written == format!("before\n{data}"), "{writer:?}");
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
}
