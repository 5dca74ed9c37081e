//! A dataset: what is left of a run that was stopped, what is kept, what is never touched.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use parquet::data_type::{ByteArray, ByteArrayType};
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use tonnage_fleet::{
    Answer, AnswerOptions, Crew, Dataset, Found, LookOptions, Row, find, place_rows,
};
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
            place_rows(&mut all, &options.names);
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
fn a_dataset_says_whether_the_run_that_wrote_it_came_to_its_end() {
    let folder = fleet(6, &[]);
    let outs = tempfile::tempdir().unwrap();
    let is_finished = || Dataset::is_finished(outs.path());
    run(folder.path(), outs.path(), 2);
    assert!(!is_finished());
    run(folder.path(), outs.path(), usize::MAX);
    assert!(is_finished());
    // Whoever looks and adds nothing leaves it so.
    drop(Dataset::open(outs.path()).unwrap());
    assert!(is_finished());
    let row = Dataset::read(outs.path()).unwrap().remove(0);
    Dataset::open(outs.path()).unwrap().add(&row).unwrap();
    assert!(!is_finished());
    let told = |unfinished| {
        let options = AnswerOptions { unfinished, ..asked() };
        Answer::of(&Dataset::read(outs.path()).unwrap(), &options)
    };
    assert!(told(true).is_negative() && !told(false).is_negative());
    assert!(told(true).text.starts_with("This dataset is of a run that did not end"));
    assert!(told(true).to_json().contains("\"unfinished\": true"));
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
fn ranks_of_a_dataset_are_those_of_the_report() {
    let folder = fleet(3, &[]);
    let outs = tempfile::tempdir().unwrap();
    // Names without a rank: the last numbers tell files apart.
    for (number, file) in find(&source(folder.path())).unwrap().iter().enumerate() {
        std::fs::rename(&file.path, folder.path().join(format!("v2_{}.pickle.gz", number + 5)))
            .unwrap();
    }
    let (_, rows) = run(folder.path(), outs.path(), usize::MAX);
    let rows = rows.unwrap();
    let told = Answer::of(&rows, &asked());
    assert!(told.groups.iter().all(|it| !it.ranks.is_empty()), "{:?}", told.groups);
    assert_eq!(
        rows.iter().map(|it| it.place.rank).collect::<Vec<_>>(),
        [Some(5), Some(6), Some(7)]
    );
    // What is in the files of the dataset.
    let mut kept = Vec::new();
    for part in std::fs::read_dir(outs.path().join("files")).unwrap() {
        let part = std::fs::File::open(part.unwrap().path()).unwrap();
        let reader = SerializedFileReader::new(part).unwrap();
        for row in reader.get_row_iter(None).unwrap() {
            let row = row.unwrap();
            let rank = row.get_column_iter().find(|it| it.0 == "rank").unwrap().1.to_string();
            kept.push(rank);
        }
    }
    assert_eq!(kept, ["5", "6", "7"]);
}

#[test]
fn a_dataset_in_storage_is_refused_and_no_folder_made() {
    for out in ["s3://bucket/ranks", "gs://bucket/ranks", "hdfs://node/ranks", "s3:/bucket/ranks"] {
        let told = Dataset::open(Path::new(out)).unwrap_err().to_string();
        assert!(told.starts_with(out) && told.contains("a folder of this machine"), "{told}");
        assert!(!Path::new(&format!("{}:", out.split(':').next().unwrap())).exists());
    }
    assert!(Dataset::open(&tempfile::tempdir().unwrap().path().join("s3:")).is_ok());
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

#[test]
fn a_dataset_is_read_as_it_is_while_others_write_it_and_without_its_files() {
    let folder = fleet(6, &[]);
    let outs = tempfile::tempdir().unwrap();
    let out = outs.path().join("dataset");
    std::fs::write(folder.path().join("rank_9.pickle"), b"nothing").unwrap();
    let (_, rows) = run(folder.path(), &out, usize::MAX);
    let whole = contents(&out);
    drop(folder);
    let writes = Dataset::open(&out).unwrap();
    assert!(Dataset::is_at(&out) && !Dataset::is_at(outs.path()));
    assert_eq!(Dataset::read(&out).unwrap(), rows.clone().unwrap());
    drop(writes);
    assert_eq!(contents(&out), whole);
    // A run that was stopped leaves two parts with the same files: the later one counts.
    let mut later = rows.unwrap();
    later.truncate(2);
    later[0].version = "of later".to_owned();
    let mut dataset = Dataset::open(&out).unwrap();
    later.iter().for_each(|row| dataset.add(row).unwrap());
    dataset.flush().unwrap();
    for part in std::fs::read_dir(out.join("files")).unwrap() {
        let path = part.unwrap().path();
        let is_first =
            whole.contains_key(&format!("files/{}", path.file_name().unwrap().display()));
        let when = SystemTime::UNIX_EPOCH + Duration::from_secs(if is_first { 1 } else { 2 });
        std::fs::File::options().write(true).open(path).unwrap().set_modified(when).unwrap();
    }
    let read = Dataset::read(&out).unwrap();
    assert_eq!((read.len(), &read[0], &read[1]), (7, &later[0], &later[1]));
}

#[test]
fn a_dataset_that_cannot_be_read_is_an_error_that_names_the_part() {
    let folder = fleet(4, &[]);
    let outs = tempfile::tempdir().unwrap();
    let none = Dataset::read(outs.path()).unwrap_err().to_string();
    assert!(none.contains("is no dataset of a fleet"), "{none}");
    run(folder.path(), outs.path(), usize::MAX);
    let whole = contents(outs.path());
    let name = whole.keys().find(|it| it.starts_with("files/")).unwrap();
    let part = outs.path().join(name);
    let bytes = &whole[name];
    for damaged in [&bytes[..100], &bytes[1..], b""] {
        std::fs::write(&part, damaged).unwrap();
        let why = Dataset::read(outs.path()).unwrap_err().to_string();
        assert!(why.contains(name) && why.contains("is damaged"), "{why}");
    }
    // Whatever byte of what describes it is another, nothing panics.
    let (rest, length) = bytes[..bytes.len() - 4].split_last_chunk::<4>().unwrap();
    let described = usize::try_from(u32::from_le_bytes(*length)).unwrap();
    for place in rest.len() - described..rest.len() {
        let mut bytes = bytes.clone();
        bytes[place] ^= 1;
        std::fs::write(&part, bytes).unwrap();
        assert!(Dataset::read(outs.path()).map_or(0, |it| it.len()) <= 4);
    }
    std::fs::write(outs.path().join("_tonnage_fleet.json"), "{}").unwrap();
    assert!(Dataset::read(outs.path()).unwrap_err().to_string().contains("another version"));
}

/// A part with so many rows, all of one text, which takes hardly more bytes than that.
fn write_alike(part: &Path, rows: usize, text: &str) {
    let schema =
        Arc::new(parse_message_type("message files { required binary row (UTF8); }").unwrap());
    let file = std::fs::File::create(part).unwrap();
    let mut writer = SerializedFileWriter::new(file, schema, Arc::default()).unwrap();
    let mut group = writer.next_row_group().unwrap();
    let mut column = group.next_column().unwrap().unwrap();
    let values = vec![ByteArray::from(text); rows];
    column.typed::<ByteArrayType>().write_batch(&values, None, None).unwrap();
    column.close().unwrap();
    group.close().unwrap();
    writer.close().unwrap();
}

#[test]
fn a_part_that_stands_for_more_rows_than_a_part_has_is_damaged() {
    let (folder, outs) = (fleet(1, &[]), tempfile::tempdir().unwrap());
    let rows = run(folder.path(), outs.path(), usize::MAX).1.unwrap();
    let text = serde_json::to_string(&rows[0]).unwrap();
    let name = contents(outs.path()).into_keys().find(|it| it.starts_with("files/")).unwrap();
    let part = outs.path().join(&name);
    write_alike(&part, 64, &text);
    assert_eq!(Dataset::read(outs.path()).unwrap(), rows);
    for many in [65, 3_000_000] {
        write_alike(&part, many, &text);
        let bytes = std::fs::metadata(&part).unwrap().len();
        assert!(bytes < 1 << 20, "{bytes}");
        let why = Dataset::read(outs.path()).unwrap_err().to_string();
        assert!(why.contains(&name) && why.contains("is damaged"), "{why}");
    }
    // Rows that are few and long: one, and all of a part together.
    for (many, length) in [(1, 17 << 20), (8, 10 << 20)] {
        let mut row = rows[0].clone();
        row.version = "v".repeat(length);
        write_alike(&part, many, &serde_json::to_string(&row).unwrap());
        let why = Dataset::read(outs.path()).unwrap_err().to_string();
        assert!(why.contains(&name) && why.contains("is damaged"), "{many}: {why}");
    }
}
