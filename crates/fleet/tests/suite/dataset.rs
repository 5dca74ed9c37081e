//! A dataset: what is left of a run that was stopped, what is kept, what is never touched.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::path::Path;

use tonnage_fleet::{Answer, Crew, Dataset, Found, LookOptions, Row, find};
use tonnage_replay::Until;

use crate::maker::Plant;
use crate::planted::{asked, fleet, source};

/// Looks at what is not known yet, as the command does; stops after so many.
fn run(folder: &Path, out: &Path, most: usize) -> (usize, Option<Vec<Row>>) {
    let (files, options) = (find(&source(folder)).unwrap(), LookOptions::default());
    let mut dataset = Dataset::open(out).unwrap();
    let mut all = dataset.known(&files, &options).unwrap();
    let known: Vec<_> = all.iter().map(|it| it.address.clone()).collect();
    let left: Vec<Found> = files.into_iter().filter(|it| !known.contains(&it.address)).collect();
    let (until, stop) = Until::told();
    let mut done = 0;
    // One worker: others would be done before they are stopped.
    let crew = Crew { workers: NonZeroUsize::MIN, memory: None };
    let looked = crew.look_at(&left, &options, &until, |_, row| {
        done += 1;
        dataset.add(row)?;
        if done >= most {
            stop.now();
        }
        Ok::<(), tonnage_fleet::DatasetError>(())
    });
    match looked.unwrap() {
        Ok(new) => {
            all.extend(new);
            dataset.finish(&all).unwrap();
            (done, Some(all))
        }
        Err(_) => {
            dataset.flush().unwrap();
            (done, None)
        }
    }
}

/// Every file below a folder, with its bytes.
fn contents(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        if path.is_dir() {
            found.extend(
                contents(&path).into_iter().map(|(file, it)| (format!("{name}/{file}"), it)),
            );
        } else {
            found.insert(name, std::fs::read(&path).unwrap());
        }
    }
    found
}

#[test]
fn a_run_that_was_stopped_goes_on_and_ends_with_the_same_bytes() {
    let folder = fleet(20, &[(4, Plant::Buffer(40 << 20))]);
    let outs = tempfile::tempdir().unwrap();
    let (at_once, in_parts) = (outs.path().join("a"), outs.path().join("b"));
    let (done, whole) = run(folder.path(), &at_once, usize::MAX);
    assert_eq!(done, 20);
    let (first, stopped) = run(folder.path(), &in_parts, 5);
    assert!(stopped.is_none() && (5..20).contains(&first), "{first}");
    // As after a kill: a part of a table that counts only with `files`.
    std::fs::write(in_parts.join("held/part-0123456789abcdef.parquet"), "cut").unwrap();
    let (rest, resumed) = run(folder.path(), &in_parts, usize::MAX);
    assert_eq!(first + rest, 20);
    assert_eq!(contents(&at_once), contents(&in_parts));
    let json = |rows: Option<Vec<Row>>| Answer::of(&rows.unwrap(), &asked()).to_json();
    assert_eq!(json(whole), json(resumed));
    let (nothing, again) = run(folder.path(), &in_parts, usize::MAX);
    assert_eq!((nothing, again.map(|it| it.len())), (0, Some(20)));
    assert_eq!(contents(&at_once), contents(&in_parts));
}

#[test]
fn files_that_changed_or_could_not_be_read_are_looked_at_again() {
    let folder = fleet(6, &[]);
    let outs = tempfile::tempdir().unwrap();
    let files = find(&source(folder.path())).unwrap();
    std::fs::write(&files[2].path, b"nothing").unwrap();
    assert_eq!(run(folder.path(), outs.path(), usize::MAX).0, 6);
    std::fs::copy(&files[0].path, &files[1].path).unwrap();
    let (done, rows) = run(folder.path(), outs.path(), usize::MAX);
    assert_eq!((done, rows.unwrap().len()), (2, 6));
    // What is asked for no more goes.
    std::fs::remove_file(&files[5].path).unwrap();
    let (done, rows) = run(folder.path(), outs.path(), usize::MAX);
    assert_eq!((done, rows.unwrap().len()), (1, 5));
    // Another question is another row.
    let options = LookOptions { limit: Some(1 << 40), ..LookOptions::default() };
    let dataset = Dataset::open(outs.path()).unwrap();
    assert!(dataset.known(&find(&source(folder.path())).unwrap(), &options).unwrap().is_empty());
}

#[test]
fn no_other_file_is_touched_and_no_other_folder_taken() {
    let folder = fleet(3, &[]);
    let foreign = Dataset::open(folder.path()).unwrap_err().to_string();
    assert!(foreign.contains("name another folder"), "{foreign}");
    let outs = tempfile::tempdir().unwrap();
    let out = outs.path().join("deep/dataset");
    run(folder.path(), &out, usize::MAX);
    let own = ["files/notes.txt", "files/part-1.parquet", "mine.sql"];
    for name in own {
        std::fs::write(out.join(name), name).unwrap();
    }
    std::fs::remove_file(&find(&source(folder.path())).unwrap()[0].path).unwrap();
    run(folder.path(), &out, usize::MAX);
    assert!(own.iter().all(|name| std::fs::read_to_string(out.join(name)).unwrap() == *name));
    let first = Dataset::open(&out).unwrap();
    assert!(Dataset::open(&out).unwrap_err().to_string().contains("another run"));
    drop(first);
    std::fs::write(out.join("_tonnage_fleet.json"), "{\"tonnage_fleet\": 2}\n").unwrap();
    assert!(Dataset::open(&out).unwrap_err().to_string().contains("another version"));
}

#[test]
fn rows_of_a_damaged_part_are_done_again() {
    let folder = fleet(4, &[]);
    let outs = tempfile::tempdir().unwrap();
    run(folder.path(), outs.path(), usize::MAX);
    let whole = contents(outs.path());
    let part = whole.keys().find(|it| it.starts_with("files/")).unwrap();
    std::fs::write(outs.path().join(part), &whole[part][..100]).unwrap();
    let (done, _) = run(folder.path(), outs.path(), usize::MAX);
    assert_eq!((done, contents(outs.path())), (4, whole.clone()));
    // Whatever byte of what describes the part is another: the reader panics at some of them.
    let (dataset, files) =
        (Dataset::open(outs.path()).unwrap(), find(&source(folder.path())).unwrap());
    let bytes = &whole[part];
    let (rest, length) = bytes[..bytes.len() - 4].split_last_chunk::<4>().unwrap();
    let described = usize::try_from(u32::from_le_bytes(*length)).unwrap();
    for place in rest.len() - described..rest.len() {
        let mut bytes = bytes.clone();
        bytes[place] ^= 1;
        std::fs::write(outs.path().join(part), bytes).unwrap();
        assert!(dataset.known(&files, &LookOptions::default()).unwrap().len() <= 4);
    }
}
