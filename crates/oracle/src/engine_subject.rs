//! The engine as a subject: on a dry device, with the rules of the nearest release that it knows.

use std::collections::BTreeMap;
use std::sync::Arc;

use tonnage_device::Dry;
use tonnage_engine::config::{ConfigErrorKind, from_environment};
use tonnage_engine::{
    AllocError, Allocation, CacheError, Capture, Config, ConfigError, Context, Engine, PoolError,
    RecordOptions, Release, Stat, StatArray, Stats, StreamFilter,
};
use tonnage_events::{BlockState, PoolId, PoolKind, SnapshotSegment, StreamId};

use crate::Subject;
use crate::command::{Command, Stream};
use crate::transcript::{
    Answer, Block, End, Entry, Figures, Kind, Refusal, Reply, Segment, Settings, State, Transcript,
};

/// The engine, following a release.
#[derive(Clone, Copy, Debug)]
pub struct EngineSubject {
    release: Release,
}

impl EngineSubject {
    /// The engine with a release's rules.
    #[must_use]
    pub fn new(release: Release) -> Self {
        Self { release }
    }
}

impl Subject for EngineSubject {
    fn play(&mut self, stream: &Stream) -> anyhow::Result<Transcript> {
        let start = &stream.start;
        let lookup = |wanted: &str| {
            let found = start.environment.iter().find(|(name, _)| name == wanted);
            found.map(|(_, value)| value.clone())
        };
        let config = match from_environment(lookup, self.release) {
            Ok(config) => config,
            Err(error) => {
                let start = Err(refusal(&error));
                return Ok(Transcript {
                    start,
                    answers: Vec::new(),
                    end: None,
                    died: None,
                    lost_pool_at: None,
                });
            }
        };
        let settings = settings(&config);
        let device = Dry::new(start.total).with_capacity(start.capacity);
        let mut engine = Engine::new(device, config);
        engine.explain_failures(false);
        let mut player = Player { engine, blocks: BTreeMap::new() };
        let mut answers = Vec::with_capacity(stream.commands.len());
        let mut lost_pool_at = None;
        for (at, command) in stream.commands.iter().enumerate() {
            answers.push(player.answer(command));
            let gives_back =
                matches!(command, Command::EmptyCache { .. } | Command::Allocate { .. });
            if gives_back && lost_pool_at.is_none() && player.engine.outlives_pytorchs_pool() {
                lost_pool_at = Some(at);
            }
        }
        let end = Some(end(&player.engine));
        Ok(Transcript { start: Ok(settings), answers, end, died: None, lost_pool_at })
    }
}

struct Player {
    engine: Engine<Dry>,
    blocks: BTreeMap<u64, Allocation>,
}

impl Player {
    fn answer(&mut self, command: &Command) -> Answer {
        let reply = self.reply(command);
        let configured = matches!(command, Command::Configure(_));
        let looked = matches!(command, Command::Snapshot);
        Answer {
            reply,
            figures: figures(self.engine.stats()),
            settings: configured.then(|| settings(self.engine.config())),
            segments: looked.then(|| segments(&self.engine)),
        }
    }

    fn reply(&mut self, command: &Command) -> Reply {
        let engine = &mut self.engine;
        match *command {
            Command::Allocate { id, size, stream } => match engine.allocate(size, StreamId(stream))
            {
                Ok(block) => {
                    self.blocks.insert(id, block);
                    Reply::At(block.address.0)
                }
                Err(AllocError::OutOfMemory(_) | AllocError::Rejected(_)) => Reply::OutOfMemory,
                Err(error) => runtime(error),
            },
            Command::Free { id } => match self.blocks.remove(&id) {
                Some(block) => done(engine.free(&block)),
                None => Reply::NoSuchBlock,
            },
            Command::RecordStream { id, stream } => match self.blocks.get(&id) {
                Some(block) => done(engine.record_stream_of(block, StreamId(stream))),
                None => Reply::NoSuchBlock,
            },
            Command::EmptyCache { pool } => done::<CacheError>(engine.empty_cache_of(id_of(pool))),
            Command::Events { complete: true } => {
                engine.device_mut().complete_events();
                Reply::Done
            }
            Command::Events { complete: false } => {
                engine.device_mut().hold_events();
                Reply::Done
            }
            Command::EventsOf { stream } => {
                engine.device_mut().complete_events_of(StreamId(stream));
                Reply::Done
            }
            Command::PoolBegin { pool, only } => {
                let filter = only
                    .map_or(StreamFilter::Any, |stream| StreamFilter::Only(vec![StreamId(stream)]));
                done(engine.begin_allocate_to_pool(id_of(pool), filter))
            }
            Command::PoolEnd { pool } => done(engine.end_allocate_to_pool(id_of(pool))),
            Command::PoolRelease { pool } => done(engine.release_pool(id_of(pool))),
            Command::PoolNoSplit { pool } => match engine.set_pool_no_split(id_of(pool)) {
                Err(PoolError::NoSplitUnsupported) => Reply::Absent,
                result => done(result),
            },
            Command::PoolUseOnOom { on: false, .. } if !takes_mark_away(engine) => Reply::Absent,
            Command::PoolUseOnOom { pool, on } => {
                engine.set_pool_use_on_oom(id_of(pool), on);
                Reply::Done
            }
            Command::PoolUse { pool } => done(engine.create_or_use_pool(id_of(pool))),
            Command::CaptureBegin { here } => {
                let elsewhere = || Capture::When(Arc::new(|| false));
                engine.begin_capture(if here { Capture::Everywhere } else { elsewhere() });
                Reply::Done
            }
            Command::CaptureEnd => done(engine.end_capture()),
            Command::Fraction(share) => done(engine.set_memory_fraction(share)),
            Command::Configure(ref settings) => match engine.configure(settings) {
                Ok(()) => Reply::Done,
                Err(error) => Reply::Refused(refusal(&error)),
            },
            Command::ReserveClass { .. } if !has_reserves(engine) => Reply::Absent,
            Command::ReserveClass { stream, ref class } => {
                engine.set_stream_reserve_class(StreamId(stream), class);
                Reply::Done
            }
            Command::ResetPeaks => {
                engine.reset_peak_stats();
                Reply::Done
            }
            Command::ResetSums => {
                engine.reset_accumulated_stats();
                Reply::Done
            }
            Command::RecordHistory => {
                let options =
                    RecordOptions { context: Context::Never, clock: || 0, ..Default::default() };
                engine.record_history(Some(options));
                Reply::Done
            }
            Command::Snapshot => Reply::Done,
        }
    }
}

/// Whether a pool's mark can be taken away again.
fn takes_mark_away(engine: &Engine<Dry>) -> bool {
    engine.config().release().destroyed_pool_loses_use_on_oom()
}

fn has_reserves(engine: &Engine<Dry>) -> bool {
    engine.config().release().reserve_configurable()
}

fn id_of((first, second): (u64, u64)) -> PoolId {
    PoolId(first, second)
}

fn done<E: std::error::Error>(result: Result<(), E>) -> Reply {
    result.map_or_else(runtime, |()| Reply::Done)
}

fn runtime(error: impl std::error::Error) -> Reply {
    Reply::Refused(Refusal { kind: Kind::Runtime, message: error.to_string() })
}

fn refusal(error: &ConfigError) -> Refusal {
    let kind = match error.kind() {
        ConfigErrorKind::ValueError => Kind::Value,
        ConfigErrorKind::IndexError => Kind::Index,
        ConfigErrorKind::RuntimeError => Kind::Runtime,
    };
    Refusal { kind, message: error.to_string() }
}

fn figures(stats: &Stats) -> Figures {
    [
        Some(stats.reserved_bytes.all.current),
        Some(stats.allocated_bytes.all.current),
        Some(stats.active_bytes.all.current),
        Some(stats.requested_bytes.all.current),
        Some(stats.inactive_split_bytes.all.current),
        Some(stats.inactive_split.all.current),
        Some(stats.segment.all.current),
        Some(stats.allocation.all.current),
        Some(stats.active.all.current),
        Some(stats.reserved_bytes.small_pool.current),
        Some(stats.reserved_bytes.large_pool.current),
        Some(stats.num_alloc_retries),
        Some(stats.num_ooms),
        Some(stats.num_sync_all_streams),
        Some(stats.num_device_alloc),
        Some(stats.num_device_free),
        Some(stats.oversize_allocations.current),
        Some(stats.oversize_segments.current),
        Some(stats.num_oom_rejections),
    ]
}

/// The settings in force, as far as the release has them.
fn settings(config: &Config) -> Settings {
    let release = config.release();
    let mut settings = Settings::default();
    settings.put("max_split_size", config.max_split_size());
    settings.put("max_non_split_rounding", config.max_non_split_rounding());
    settings.put("expandable_segments", u8::from(config.expandable_segments()));
    settings.put("release_lock_on_cudamalloc", u8::from(config.release_lock_on_cudamalloc()));
    settings.put("pinned_use_cuda_host_register", u8::from(config.pinned_use_cuda_host_register()));
    settings.put("pinned_num_register_threads", config.pinned_num_register_threads());
    settings.put("pinned_use_background_threads", u8::from(config.pinned_use_background_threads()));
    settings.put("garbage_collection_threshold", config.garbage_collection_threshold().to_bits());
    settings.put(
        "graph_capture_record_stream_reuse",
        u8::from(config.graph_capture_record_stream_reuse()),
    );
    if release.memory_fraction_configurable() {
        settings.put("per_process_memory_fraction", config.per_process_memory_fraction().to_bits());
    }
    if release.pinned_reserve_configurable() {
        settings.put("pinned_reserve_segment_size", config.pinned_reserve_segment_size());
    }
    if release.rejection_configurable() {
        settings.put("throw_on_cudamalloc_oom", u8::from(config.throw_on_cudamalloc_oom()));
    }
    if release.pinned_catch_all_configurable() {
        settings.put("pinned_free_catch_all", u8::from(config.pinned_free_catch_all()));
    }
    if release.pinned_bounds_configurable() {
        let bound = |bound: Option<u64>| bound.unwrap_or(u64::MAX);
        settings.put("pinned_max_round_threshold", bound(config.pinned_max_round_threshold()));
        settings.put("pinned_max_cached_size", bound(config.pinned_max_cached_size()));
    }
    if release.reserve_configurable() {
        let all = config.expandable_segments_reserve();
        let of_class = config.expandable_segments_reserve_by_class();
        for name in ["", "a"] {
            let reserve =
                of_class.get(name).copied().or(all).map_or(0, |reserve| reserve.bytes(1 << 30));
            settings.put(&format!("expandable_segments_reserve.{name}"), reserve);
        }
    }
    if release.large_segment_configurable() {
        settings.put("large_segment_size", config.large_segment_size());
    }
    let divisions = config.roundup_power2_divisions().map(|divisions| format!("{divisions},"));
    settings.put("roundup_power2_divisions", divisions.concat());
    settings.put_last(config.last_settings());
    settings
}

fn segments(engine: &Engine<Dry>) -> Vec<Segment> {
    engine.segments().iter().map(segment).collect()
}

fn segment(segment: &SnapshotSegment) -> Segment {
    let blocks = segment.blocks.iter().map(|block| {
        let (state, requested) = match block.state {
            BlockState::ActiveAllocated => (State::Allocated, block.requested_size),
            BlockState::ActivePendingFree => (State::Pending, block.requested_size),
            BlockState::Inactive => (State::Free, 0),
        };
        Block { size: block.size, state, requested }
    });
    Segment {
        address: segment.address.0,
        size: segment.total_size,
        large: segment.kind == PoolKind::Large,
        stream: segment.stream.0,
        pool: (segment.pool.0, segment.pool.1),
        expandable: segment.expandable,
        sums: [segment.allocated_size, segment.active_size, segment.requested_size],
        blocks: blocks.collect(),
    }
}

fn end(engine: &Engine<Dry>) -> End {
    let stats = engine.stats();
    let mut full = BTreeMap::new();
    let arrays: [(&str, &StatArray); 9] = [
        ("allocation", &stats.allocation),
        ("segment", &stats.segment),
        ("active", &stats.active),
        ("inactive_split", &stats.inactive_split),
        ("allocated_bytes", &stats.allocated_bytes),
        ("reserved_bytes", &stats.reserved_bytes),
        ("active_bytes", &stats.active_bytes),
        ("inactive_split_bytes", &stats.inactive_split_bytes),
        ("requested_bytes", &stats.requested_bytes),
    ];
    for (name, array) in arrays {
        full.insert(format!("{name}.all"), four(array.all));
        full.insert(format!("{name}.small_pool"), four(array.small_pool));
        full.insert(format!("{name}.large_pool"), four(array.large_pool));
    }
    full.insert("oversize_allocations".to_owned(), four(stats.oversize_allocations));
    full.insert("oversize_segments".to_owned(), four(stats.oversize_segments));
    End {
        full,
        max_split: stats.max_split_size,
        segments: segments(engine),
        history: history(engine),
    }
}

fn history(engine: &Engine<Dry>) -> Vec<Entry> {
    let Some(history) = engine.history() else { return Vec::new() };
    let entries = history.entries().map(|entry| Entry {
        action: entry.action,
        address: entry.address.0,
        size: entry.size,
        stream: entry.stream.0,
        pool: (0, 0),
    });
    let mut entries: Vec<_> = entries.collect();
    for (place, PoolId(first, second)) in history.pools() {
        entries[place].pool = (first, second);
    }
    entries
}

fn four(stat: Stat) -> [i64; 4] {
    [stat.current, stat.peak, stat.allocated, stat.freed]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::Start;

    #[test]
    fn answers_are_those_of_the_specifications_first_example() {
        let sizes = [1, 512, 513, 1_048_576, 1_048_064];
        let commands = (1..).zip(sizes).map(|(id, size)| Command::Allocate { id, size, stream: 0 });
        let stream = Stream { start: Start::plain(), commands: commands.collect() };
        let transcript = EngineSubject::new(Release::V2_11).play(&stream).unwrap();
        let base = 0x7000_0000_0000;
        let places = [0, 512, 1024, 2048, 2 << 20].map(|offset| Reply::At(base + offset));
        let replies: Vec<_> =
            transcript.answers.iter().map(|answer| answer.reply.clone()).collect();
        assert_eq!(replies, places);
        let last = transcript.answers[4].figures;
        assert_eq!(
            (last[0], last[1], last[4]),
            (Some(4_194_304), Some(2_098_688), Some(2_095_616))
        );
        assert_eq!(transcript.end.unwrap().full["segment.all"], [2, 2, 2, 0]);
    }

    #[test]
    fn settings_that_are_refused_end_the_stream_where_it_begins() {
        let environment = vec![("PYTORCH_CUDA_ALLOC_CONF".to_owned(), "no_such_key:1".to_owned())];
        let start = Start { environment, ..Start::plain() };
        let stream = Stream { start, commands: vec![Command::Snapshot] };
        let transcript = EngineSubject::new(Release::V2_11).play(&stream).unwrap();
        assert_eq!(transcript.start.unwrap_err().kind, Kind::Value);
        assert!(transcript.answers.is_empty());
    }
}
