//! Perfetto traces, read back with definitions of their own.

use std::collections::HashMap;
use std::path::Path;

use prost::Message;
use tonnage_analysis::{Levels, Lifetimes, devices};
use tonnage_events::{Action, Address, StreamId, TraceEntry};
use tonnage_export::{Table, write_csv, write_perfetto};
use tonnage_snapshot::{Annotation, SnapshotFile, Stage};

/// The part of Perfetto's protocol that a trace uses, as its documentation has it.
mod proto {
    use prost::{Enumeration, Message};

    #[derive(Clone, PartialEq, Message)]
    pub(crate) struct Trace {
        #[prost(message, repeated, tag = "1")]
        pub(crate) packet: Vec<TracePacket>,
    }

    #[derive(Clone, PartialEq, Message)]
    pub(crate) struct TracePacket {
        #[prost(uint64, optional, tag = "8")]
        pub(crate) timestamp: Option<u64>,
        #[prost(uint32, optional, tag = "10")]
        pub(crate) trusted_packet_sequence_id: Option<u32>,
        #[prost(message, optional, tag = "11")]
        pub(crate) track_event: Option<TrackEvent>,
        #[prost(message, optional, tag = "12")]
        pub(crate) interned_data: Option<InternedData>,
        #[prost(uint32, optional, tag = "13")]
        pub(crate) sequence_flags: Option<u32>,
        #[prost(message, optional, tag = "60")]
        pub(crate) track_descriptor: Option<TrackDescriptor>,
    }

    #[derive(Clone, PartialEq, Message)]
    pub(crate) struct TrackDescriptor {
        #[prost(uint64, optional, tag = "1")]
        pub(crate) uuid: Option<u64>,
        #[prost(string, optional, tag = "2")]
        pub(crate) name: Option<String>,
        #[prost(message, optional, tag = "3")]
        pub(crate) process: Option<ProcessDescriptor>,
        #[prost(uint64, optional, tag = "5")]
        pub(crate) parent_uuid: Option<u64>,
        #[prost(message, optional, tag = "8")]
        pub(crate) counter: Option<CounterDescriptor>,
    }

    #[derive(Clone, PartialEq, Message)]
    pub(crate) struct ProcessDescriptor {
        #[prost(int32, optional, tag = "1")]
        pub(crate) pid: Option<i32>,
        #[prost(string, optional, tag = "6")]
        pub(crate) process_name: Option<String>,
    }

    #[derive(Clone, PartialEq, Message)]
    pub(crate) struct CounterDescriptor {
        #[prost(int32, optional, tag = "3")]
        pub(crate) unit: Option<i32>,
    }

    #[derive(Clone, Copy, Debug, PartialEq, Eq, Enumeration)]
    #[repr(i32)]
    pub(crate) enum Kind {
        Unspecified = 0,
        SliceBegin = 1,
        SliceEnd = 2,
        Instant = 3,
        Counter = 4,
    }

    #[derive(Clone, PartialEq, Message)]
    pub(crate) struct TrackEvent {
        #[prost(message, repeated, tag = "4")]
        pub(crate) debug_annotations: Vec<DebugAnnotation>,
        #[prost(enumeration = "Kind", optional, tag = "9")]
        pub(crate) kind: Option<i32>,
        #[prost(uint64, optional, tag = "10")]
        pub(crate) name_iid: Option<u64>,
        #[prost(uint64, optional, tag = "11")]
        pub(crate) track_uuid: Option<u64>,
        #[prost(int64, optional, tag = "30")]
        pub(crate) counter_value: Option<i64>,
    }

    #[derive(Clone, PartialEq, Message)]
    pub(crate) struct DebugAnnotation {
        #[prost(uint64, optional, tag = "1")]
        pub(crate) name_iid: Option<u64>,
        #[prost(uint64, optional, tag = "3")]
        pub(crate) uint_value: Option<u64>,
        #[prost(uint64, optional, tag = "7")]
        pub(crate) pointer_value: Option<u64>,
        #[prost(uint64, optional, tag = "17")]
        pub(crate) string_value_iid: Option<u64>,
    }

    #[derive(Clone, PartialEq, Message)]
    pub(crate) struct InternedData {
        #[prost(message, repeated, tag = "2")]
        pub(crate) event_names: Vec<Interned>,
        #[prost(message, repeated, tag = "3")]
        pub(crate) debug_annotation_names: Vec<Interned>,
        #[prost(message, repeated, tag = "29")]
        pub(crate) debug_annotation_string_values: Vec<Interned>,
    }

    #[derive(Clone, PartialEq, Message)]
    pub(crate) struct Interned {
        #[prost(uint64, optional, tag = "1")]
        pub(crate) iid: Option<u64>,
        #[prost(string, optional, tag = "2")]
        pub(crate) text: Option<String>,
    }
}

use proto::{Kind, Trace, TrackDescriptor};

fn open(name: &str) -> SnapshotFile {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/traces").join(name);
    tonnage_snapshot::open(&path).unwrap()
}

fn export(file: &SnapshotFile) -> (Trace, u64) {
    let mut bytes = Vec::new();
    let slices = write_perfetto(file, &mut bytes).unwrap();
    (Trace::decode(bytes.as_slice()).unwrap(), slices)
}

/// What a trace shows, once every rule has been checked.
#[derive(Default)]
struct Shown {
    slices: u64,
    names: Vec<String>,
    stacks: Vec<String>,
    instants: HashMap<String, usize>,
    /// Largest and last value of each counter, by its name.
    counters: HashMap<String, (i64, i64)>,
    deepest: usize,
}

fn check(trace: &Trace) -> Shown {
    let mut shown = Shown::default();
    let mut tracks = HashMap::<u64, TrackDescriptor>::new();
    let mut depth = HashMap::<u64, usize>::new();
    let mut last = HashMap::<u32, u64>::new();
    let mut names = HashMap::<(u32, u64), String>::new();
    let mut arguments = HashMap::<(u32, u64), String>::new();
    let mut texts = HashMap::<(u32, u64), String>::new();
    for packet in &trace.packet {
        let sequence = packet.trusted_packet_sequence_id.unwrap();
        let expected = if last.contains_key(&sequence) { 2 } else { 1 };
        assert_eq!(packet.sequence_flags, Some(expected));
        let time = packet.timestamp.unwrap_or(0);
        let before = last.entry(sequence).or_default();
        if let Some(descriptor) = &packet.track_descriptor {
            if let Some(parent) = descriptor.parent_uuid {
                assert!(tracks.contains_key(&parent), "a parent comes first");
            }
            let old = tracks.insert(descriptor.uuid.unwrap(), descriptor.clone());
            assert!(old.is_none(), "each track is described once");
            continue;
        }
        assert!(time >= *before, "times ascend");
        *before = time;
        if let Some(data) = &packet.interned_data {
            let tables = [
                (&mut names, &data.event_names),
                (&mut arguments, &data.debug_annotation_names),
                (&mut texts, &data.debug_annotation_string_values),
            ];
            for (table, new) in tables {
                for it in new {
                    let id = it.iid.filter(|&id| id > 0).unwrap();
                    let old = table.insert((sequence, id), it.text.clone().unwrap());
                    assert!(old.is_none(), "each name is written once");
                }
            }
        }
        let event = packet.track_event.as_ref().unwrap();
        let track = event.track_uuid.unwrap();
        let descriptor = &tracks[&track];
        for argument in &event.debug_annotations {
            let name = &arguments[&(sequence, argument.name_iid.unwrap())];
            if name == "stack" {
                let text = &texts[&(sequence, argument.string_value_iid.unwrap())];
                shown.stacks.push(text.clone());
            }
        }
        let name = event.name_iid.map(|id| names[&(sequence, id)].clone());
        let depth = depth.entry(track).or_default();
        match event.kind() {
            Kind::SliceBegin => {
                *depth += 1;
                shown.slices += 1;
                shown.deepest = shown.deepest.max(*depth);
                shown.names.push(name.unwrap());
            }
            Kind::SliceEnd => {
                *depth = depth.checked_sub(1).expect("a slice ends after it begins");
            }
            Kind::Instant => *shown.instants.entry(name.unwrap()).or_default() += 1,
            Kind::Counter => {
                assert_eq!(descriptor.counter.as_ref().unwrap().unit, Some(3), "bytes");
                let name = descriptor.name.clone().unwrap();
                let value = event.counter_value.unwrap();
                let (most, end) = shown.counters.entry(name).or_default();
                (*most, *end) = (value.max(*most), value);
            }
            Kind::Unspecified => panic!("an event says what it is"),
        }
    }
    assert!(depth.values().all(|&depth| depth == 0), "every slice ends");
    shown
}

#[test]
fn every_rule_holds_and_every_allocation_and_level_is_there() {
    for name in [
        "mlp_seed.default",
        "mlp_seed.tight",
        "gpt2_varlen.default.stacks",
        "multistream.gc60",
        "cudagraph.expandable",
    ] {
        let file = open(&format!("{name}.pickle.zst"));
        let device = &devices(&file)[0];
        let lifetimes = Lifetimes::of(device);
        let levels = Levels::of(device, &lifetimes);
        let (trace, slices) = export(&file);
        let shown = check(&trace);
        assert_eq!(shown.slices, slices, "{name}");
        let scopes = file.annotations.iter().filter(|it| it.stage == Stage::Start).count();
        assert_eq!(shown.slices, (lifetimes.len() + scopes) as u64, "{name}");
        assert_eq!(shown.deepest, 1, "{name}: a lane holds one slice at a time");
        let peak = levels.peak(|level| level.allocated).unwrap().bytes.cast_signed();
        let end = levels.after().last().unwrap();
        assert_eq!(shown.counters["allocated"], (peak, end.allocated.cast_signed()), "{name}");
        assert_eq!(shown.counters["reserved"].1, end.reserved.cast_signed(), "{name}");
        let instants: usize = shown.instants.values().sum();
        let expected = device.entries.iter().filter(|entry| {
            let name = entry.action.name();
            name.starts_with("segment_") || name == "oom" || name == "snapshot"
        });
        assert_eq!(instants, expected.count(), "{name}");
        let with_stacks = lifetimes.iter().filter(|it| it.stack.is_some()).count();
        assert_eq!(shown.stacks.len(), with_stacks, "{name}");
    }
}

#[test]
fn slices_are_named_by_call_site_or_else_by_size() {
    let shown = check(&export(&open("mlp_seed.default.stacks.pickle.zst")).0);
    assert!(shown.names.iter().any(|name| name.contains(".py:")), "{:?}", shown.names);
    assert!(shown.stacks.iter().any(|stack| stack.contains('\n')));
    let shown = check(&export(&open("mlp_seed.default.pickle.zst")).0);
    assert!(shown.names.iter().any(|name| name == "64.00 MiB" || name.ends_with("bytes")));
}

#[test]
fn half_a_history_has_slices_for_what_was_alive_before() {
    let mut file = open("gpt2_generate.default.pickle.zst");
    let half = file.traces[0].len() / 2;
    file.traces[0].drain(..half);
    let (trace, slices) = export(&file);
    let shown = check(&trace);
    assert_eq!(shown.slices, slices);
    assert!(shown.counters["allocated"].0 > 0);
}

#[test]
fn scopes_are_slices_and_those_without_an_end_end_with_the_history() {
    let mut file = open("mlp_seed.default.pickle.zst");
    file.annotations.clear();
    let (first, last) = (file.traces[0][0].time_us, file.traces[0].last().unwrap().time_us);
    for (name, stage, time_us) in [
        ("lost", Stage::End, first),
        ("step", Stage::Start, first),
        ("inner", Stage::Start, first + 1),
        ("step", Stage::End, first + 2),
        ("inner", Stage::End, last + 7),
        ("step", Stage::Start, last + 8),
    ] {
        let device = devices(&file)[0].device;
        file.annotations.push(Annotation { name: name.into(), stage, device, time_us });
    }
    let shown = check(&export(&file).0);
    let named = |name: &str| shown.names.iter().filter(|it| *it == name).count();
    assert_eq!((named("step"), named("inner"), named("lost")), (2, 1, 0));
}

/// Numbers that look random and are the same everywhere.
struct Random(u64);

impl Random {
    fn of<T: Copy>(&mut self, values: &[T]) -> T {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        values[(self.0 % values.len() as u64) as usize]
    }
}

#[test]
fn histories_that_contradict_themselves_make_valid_traces() {
    for seed in 1..=300 {
        let mut random = Random(seed);
        let entries = (0..120).map(|_| TraceEntry {
            action: random.of(&Action::ALL),
            address: Address(random.of(&[0, 1, 512, 1 << 20, 3 << 20, u64::MAX - 1, u64::MAX])),
            size: random.of(&[0, 1, 2 << 20, 64 << 20, 1 << 60, u64::MAX]),
            stream: StreamId(random.of(&[0, 7])),
            time_us: random.of(&[0, 1, 2, u64::MAX]),
            stack: None,
        });
        let traces = vec![entries.collect(), Vec::new()];
        let file = SnapshotFile { traces, ..SnapshotFile::default() };
        let (trace, slices) = export(&file);
        assert_eq!(check(&trace).slices, slices, "seed {seed}");
        for table in Table::ALL {
            write_csv(&file, table, std::io::sink()).unwrap();
        }
    }
}

#[test]
fn a_file_without_times_or_history_makes_a_valid_trace() {
    let mut file = open("mlp_seed.default.pickle.zst");
    for entry in &mut file.traces[0] {
        entry.time_us = 0;
    }
    assert!(check(&export(&file).0).slices > 100);
    file.traces.clear();
    check(&export(&file).0);
    assert_eq!(export(&SnapshotFile::default()).0, Trace::default());
}
