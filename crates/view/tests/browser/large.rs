//! A recording as long as one likes.
//!
//! In: a number of entries. Out: a training loop's history: parameters that stay, activations that pile up and go,
//! temporaries between them.

use tonnage_events::{Action, Address, Frame, StreamId, TraceEntry};
use tonnage_snapshot::SnapshotFile;

const MIB: u64 = 1 << 20;

/// Layers of the model.
const LAYERS: u64 = 60;

pub(crate) fn recording(entries: usize) -> SnapshotFile {
    let mut file = SnapshotFile::default();
    let lines = ["forward", "backward", "step", "attention", "loss"];
    let stacks: Vec<_> = (10_u32..)
        .zip(lines)
        .map(|(line, name)| {
            let frame = Frame { name: name.into(), filename: "/home/me/train.py".into(), line };
            file.stacks.intern(vec![frame])
        })
        .collect();
    let mut history: Vec<TraceEntry> = Vec::with_capacity(entries + 8);
    let mut push = |action, address: u64, size, stack: usize| {
        let time_us = 1_000_000 + 7 * history.len() as u64;
        let (address, stack) = (Address(address), Some(stacks[stack]));
        history.push(TraceEntry {
            action,
            address,
            size,
            stream: StreamId::DEFAULT,
            time_us,
            stack,
        });
        history.len()
    };
    // One segment; addresses in it are given by place, so that nothing overlaps.
    let base = 0x7f00_0000_0000;
    let place = |slot: u64| base + slot * 4 * MIB;
    push(Action::SegmentAlloc, base, 4 * LAYERS * 4 * MIB, 0);
    for layer in 0..LAYERS {
        push(Action::Alloc, place(layer), 4 * MIB, 2);
    }
    let temporary = place(3 * LAYERS);
    let mut length = 0;
    'steps: for step in 0.. {
        for layer in 0..LAYERS {
            push(Action::Alloc, place(LAYERS + layer), (1 + (layer + step) % 4) * MIB, 0);
            for number in 0..4 {
                push(Action::Alloc, temporary + number * MIB, MIB, 3);
                push(Action::FreeRequested, temporary + number * MIB, MIB, 3);
                push(Action::FreeCompleted, temporary + number * MIB, MIB, 3);
            }
        }
        for layer in (0..LAYERS).rev() {
            let (address, size) = (place(LAYERS + layer), (1 + (layer + step) % 4) * MIB);
            push(Action::FreeRequested, address, size, 1);
            length = push(Action::FreeCompleted, address, size, 1);
        }
        if length >= entries {
            break 'steps;
        }
    }
    file.traces = vec![history];
    file
}
