//! The command streams of PyTorch's own library give the same answers here.

use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

use tonnage_replay::stream::{Stream, replay_stream};

fn streams() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/streams");
    let mut files: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "jsonl"))
        .collect();
    files.sort();
    files
}

fn read(path: &Path) -> Stream {
    Stream::read(BufReader::new(File::open(path).unwrap())).unwrap()
}

#[test]
fn every_stream_gives_pytorchs_answers() {
    let files = streams();
    assert_eq!(files.len(), 70);
    for path in files {
        let outcome = replay_stream(&read(&path), None).unwrap();
        assert_eq!(outcome.difference, None, "{}", path.display());
    }
}
