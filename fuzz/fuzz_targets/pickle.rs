//! Snapshot files from strangers: an answer or an error, in bounded time and memory.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tonnage_snapshot::fuzz_pickle(data));
