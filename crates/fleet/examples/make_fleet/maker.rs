//! Ranks made of a recording: the same program, with sizes, settings and lengths of their own, and differences that are known.
//!
//! In:  a recording with stacks, and what shall be special about a rank.
//! Out: its snapshot, as the allocator would have recorded it.

use std::collections::BTreeMap;

use tonnage_device::Dry;
use tonnage_engine::{Config, Context, Engine, RecordOptions, Release};
use tonnage_events::{Action, Address, DeviceId, Frame, StackId};
use tonnage_replay::snapshot_file;
use tonnage_snapshot::SnapshotFile;

/// What is special about a rank.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Plant {
    /// Nothing.
    Nothing,
    /// A buffer of so many bytes from `plugins/cache.py:7`, from the first tenth on.
    Buffer(u64),
    /// So many bytes from `train/log.py:31` that stay, in each of so many parts of the history.
    Leak(u64, usize),
    /// Other settings.
    Settings(&'static str),
    /// A limit on reserved bytes, and a request of so many bytes from `train/eval.py:5` near the end that is beyond it.
    Fails(u64, u64),
}

/// A rank to make.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Making {
    /// What sizes and length are varied by.
    pub(crate) seed: u64,
    /// Sizes are multiplied by up to this much more or less than 1.
    pub(crate) varied: f64,
    /// The same for how much of the history there is, less than 1.
    pub(crate) shorter: f64,
    /// Bytes that a stage of a pipeline holds beside the others, from `model/embedding.py:11`; 0 for none.
    pub(crate) embedding: u64,
    /// Settings of the stage.
    pub(crate) conf: &'static str,
    /// What is special.
    pub(crate) plant: Plant,
}

/// A number from 0 to 1 that the seed decides.
fn chance(seed: u64, what: u64) -> f64 {
    let mut x = seed
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .wrapping_add(what.wrapping_mul(0xd1b5_4a32_d192_ed03));
    x ^= x >> 32;
    x = x.wrapping_mul(0xd6e8_feb8_6659_fd93);
    x ^= x >> 32;
    x = x.wrapping_mul(0xd6e8_feb8_6659_fd93);
    x ^= x >> 32;
    (x >> 11) as f64 / (1_u64 << 53) as f64
}

/// The snapshot of a rank.
pub(crate) fn make(base: &SnapshotFile, making: &Making) -> SnapshotFile {
    let conf = if let Plant::Settings(conf) = making.plant { conf } else { making.conf };
    let config = Config::parse(conf, Release::default()).expect("settings are settings");
    let mut engine = Engine::new(Dry::new(256 << 30), config);
    engine.record_history(Some(RecordOptions {
        context: Context::Never,
        clock: || 0,
        ..RecordOptions::default()
    }));
    let mut stacks = base.stacks.clone();
    let mut stack = |file: &str, line: u32| {
        stacks.intern(vec![Frame { filename: file.into(), line, name: "made".into() }])
    };
    let (buffer, leak) = (stack("/job/plugins/cache.py", 7), stack("/job/train/log.py", 31));
    let (fails, embedding) = (stack("/job/train/eval.py", 5), stack("/job/model/embedding.py", 11));
    let scale = 1.0 + making.varied * (2.0 * chance(making.seed, 1) - 1.0);
    let entries = &base.traces[0];
    let length = entries.len() as f64 * (1.0 - making.shorter * chance(making.seed, 2));
    let entries = &entries[..length as usize];
    let mut live = BTreeMap::<Address, Address>::new();
    let mut marked: Vec<(usize, u64, Option<StackId>)> = Vec::new();
    let (mut extra, tenth) = (0, entries.len() / 10);
    for (number, entry) in entries.iter().enumerate() {
        let mut ask = |engine: &mut Engine<Dry>, bytes: u64, stack: Option<StackId>| {
            let served = engine.allocate(bytes, entry.stream);
            let recorded = engine.history().map_or(0, |it| it.entries().len());
            marked.push((recorded, entry.time_us, stack));
            served.ok().map(|it| it.address)
        };
        match making.plant {
            Plant::Buffer(bytes) if number == tenth => {
                ask(&mut engine, bytes, Some(buffer));
            }
            Plant::Leak(bytes, parts)
                if number == (2 * extra + 3) * entries.len() / (2 * parts + 4) =>
            {
                extra += 1;
                ask(&mut engine, bytes, Some(leak));
            }
            Plant::Fails(limit, bytes) if number == entries.len() * 9 / 10 => {
                engine.set_limit(Some(limit));
                ask(&mut engine, bytes, Some(fails));
                break;
            }
            _ => {}
        }
        if making.embedding > 0 && number == tenth {
            ask(&mut engine, making.embedding, Some(embedding));
        }
        match entry.action {
            Action::Alloc => {
                let bytes = (entry.size as f64 * scale) as u64;
                if let Some(address) = ask(&mut engine, bytes.max(1), entry.stack) {
                    live.insert(entry.address, address);
                }
            }
            Action::FreeRequested => {
                if let Some(address) = live.remove(&entry.address) {
                    engine.free_address(address).expect("it is live");
                    let recorded = engine.history().map_or(0, |it| it.entries().len());
                    marked.push((recorded, entry.time_us, entry.stack));
                }
            }
            _ => {}
        }
    }
    let mut snapshot = engine.snapshot();
    let mut from = 0;
    for (to, time_us, stack) in marked {
        for entry in &mut snapshot.entries[from..to] {
            entry.time_us = time_us;
            entry.stack = stack.filter(|_| entry.action != Action::FreeCompleted);
        }
        from = to;
    }
    snapshot.stacks = stacks;
    SnapshotFile { annotations: base.annotations.clone(), ..snapshot_file(snapshot, DeviceId(0)) }
}
