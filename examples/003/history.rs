//! Document 003, memory tracking: the summary, the history, and a snapshot.

use tonnage::RecordOptions;
use tonnage::tensor::{Device, Result, Tensor};
use tonnage_examples::Notes;

pub(crate) fn program(device: &Device, notes: &mut Notes) -> Result<()> {
    notes.begin("003-history")?;
    let memory = device.memory();
    memory.record_history(Some(RecordOptions::default()));
    let _x = Tensor::randn([1000, 1000], device)?;
    let snapshot = memory.snapshot();
    memory.record_history(None);
    for entry in &snapshot.entries {
        let line = entry.stack.and_then(|stack| snapshot.stacks.frames(stack).first());
        if let Some(frame) = line {
            notes.say(&format!(
                "{:?} of {} bytes at {}:{}",
                entry.action, entry.size, frame.filename, frame.line
            ));
        }
    }
    notes.say(&memory.summary());
    notes.at("x");
    Ok(())
}

fn main() -> std::process::ExitCode {
    tonnage_examples::run(program)
}
