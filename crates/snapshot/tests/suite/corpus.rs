//! The fuzzer's seeds, as a plain test: they are read on every run, fuzzer or not.

use std::path::Path;

use tonnage_snapshot::fuzz_pickle;

#[test]
fn no_seed_of_the_fuzzer_panics() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/pickle");
    let mut seeds = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        fuzz_pickle(&std::fs::read(entry.unwrap().path()).unwrap());
        seeds += 1;
    }
    assert!(seeds >= 20, "only {seeds} seeds");
}
