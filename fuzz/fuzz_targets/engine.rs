//! Any commands in any order: invariants hold, and everything goes back to the device.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tonnage_engine::fuzzing::run_commands(data));
