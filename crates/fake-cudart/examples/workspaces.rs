//! Makes `data/matmuls.bin` from measured plans, and says how well the rules fit them: `workspaces FILE… > matmuls.bin`.
//!
//! In:  lines of bytes on a GPU, bytes without a device, and the plan in JSON (`data/README.md`).

use std::io::Write;

use tonnage_fake_cudart::workspaces::Measurements;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut measurements = Measurements::default();
    for path in std::env::args().skip(1) {
        for line in std::fs::read_to_string(&path)?.lines() {
            let mut words = line.splitn(3, ' ');
            let (Some(bytes), Some(answered), Some(plan)) =
                (words.next(), words.next(), words.next())
            else {
                return Err(format!("{path}: not bytes, bytes and a plan: {line}").into());
            };
            let number = |word: &str| {
                word.parse::<u64>().map_err(|error| format!("{path}: {word}: {error}"))
            };
            measurements.add(plan, number(answered)?, number(bytes)?);
        }
    }
    eprint!("{}", measurements.rates());
    std::io::stdout().write_all(&measurements.matmuls())?;
    Ok(())
}
