//! Processes of a script that left its group, as the workers of `torchrun` do: they are told by a variable that all of them
//! inherit.

use std::fs;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// How often all processes are looked at: one that forks meanwhile leaves a child for the next look.
const LOOKS: usize = 16;

/// Ends every process in whose environment this entry, `NAME=value`, stands.
pub(crate) fn end_those_with(entry: &[u8]) {
    for _ in 0..LOOKS {
        if end_once(entry) == 0 {
            return;
        }
    }
}

/// How many it found.
fn end_once(entry: &[u8]) -> usize {
    let own = std::process::id();
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = processes.filter_map(|it| it.file_name().to_str()?.parse::<u32>().ok());
    numbers.filter(|number| *number != own && end_if_it_has(*number, entry).is_some()).count()
}

fn end_if_it_has(number: u32, entry: &[u8]) -> Option<()> {
    let process = Pid::from_raw(i32::try_from(number).ok()?)?;
    // Opened before it is looked at: should the number go over to another process meanwhile, nobody is ended.
    let opened = pidfd_open(process, PidfdFlags::empty()).ok()?;
    let environment = fs::read(format!("/proc/{number}/environ")).ok()?;
    environment.split(|byte| *byte == 0).find(|it| *it == entry)?;
    // It may be gone, as is wanted.
    let _ = pidfd_send_signal(opened, Signal::KILL);
    Some(())
}
