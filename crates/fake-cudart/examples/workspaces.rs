//! Makes `data/workspaces.bin` from what `data/collect.c` wrote on a GPU: `workspaces FILE… > workspaces.bin`.

use std::collections::BTreeMap;
use std::io::Write;

use tonnage_fake_cudart::workspaces::{key_of, to_table};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut records = BTreeMap::new();
    for path in std::env::args().skip(1) {
        for line in std::fs::read_to_string(&path)?.lines() {
            let Some((bytes, plan)) = line.split_once(' ') else { continue };
            let Some(key) = key_of(plan) else { continue };
            let bytes: u64 = bytes.parse().map_err(|error| format!("{path}: {line}: {error}"))?;
            if records.insert(key, bytes).is_some_and(|before| before != bytes) {
                return Err(format!("{path}: two answers for one plan: {line}").into());
            }
        }
    }
    eprintln!("{} plans", records.len());
    std::io::stdout().write_all(&to_table(&records))?;
    Ok(())
}
