//! A command stream through the engine.

use std::collections::BTreeMap;

use tonnage_device::{Device, Dry};
use tonnage_engine::{AllocError, Allocation, Capture, Config, Engine, Release, StreamFilter};
use tonnage_events::{Address, PoolId, StreamId};

use super::compare::{current_difference, end_difference, segments_difference};
use super::format::{Command, Header, Line, Stream, StreamError};
use crate::outcome::{Difference, HistoryKind, Outcome};

/// Pages may have any number of MiB: the driver that the library ran against refused none, unlike NVIDIA's.
const GRANULARITY: u64 = 1 << 20;

impl Stream {
    /// A device like the one that the stream was recorded on.
    #[must_use]
    pub fn device(&self) -> Dry {
        let Header { device_total, device_capacity, .. } = self.header;
        Dry::new(device_total).with_capacity(device_capacity).with_granularity(GRANULARITY)
    }
}

/// Gives every command of a stream to the engine and compares every answer.
///
/// # Errors
///
/// If the header's settings or release cannot be read.
pub fn replay_stream(stream: &Stream, release: Option<Release>) -> Result<Outcome, StreamError> {
    let header = &stream.header;
    let bad_header =
        |reason: String| StreamError::Malformed { line: 1, expected: "header", reason };
    let release = match release {
        Some(release) => release,
        None => header.library.parse().map_err(|error| bad_header(format!("{error}")))?,
    };
    let config =
        Config::parse(&header.conf, release).map_err(|error| bad_header(error.to_string()))?;
    let mut engine = Engine::new(stream.device(), config);
    engine.explain_failures(false);
    if let Some(fraction) = header.fraction {
        engine.set_memory_fraction(fraction).map_err(|error| bad_header(error.to_string()))?;
    }
    let limit = engine.limit();
    let difference = if limit == header.limit {
        run_and_compare(&mut engine, stream)
    } else {
        Some(Difference {
            event: 0,
            expected: format!("limit {:?}", header.limit),
            got: format!("limit {limit:?}"),
        })
    };
    Ok(Outcome {
        device: 0,
        release,
        candidates: vec![release],
        events: stream.lines.len(),
        history: HistoryKind::Whole,
        conf: header.conf.clone(),
        limit,
        difference,
        inferred: Vec::new(),
        stats: engine.stats().clone(),
    })
}

fn run_and_compare(engine: &mut Engine<Dry>, stream: &Stream) -> Option<Difference> {
    let mut player = Player::new(engine);
    let mut expected = BTreeMap::new();
    for (event, line) in stream.lines.iter().enumerate() {
        let found = player.play(line).err();
        expected.extend(line.stats.iter().map(|(name, &value)| (name.clone(), value)));
        let found = found.or_else(|| current_difference(&expected, player.engine.stats()));
        if let Some((expected, got)) = found {
            return Some(Difference { event, expected, got });
        }
    }
    let segments = player.engine.segments();
    end_difference(&stream.end, player.engine.stats(), &segments, stream.lines.len())
}

/// Gives every command of a stream to an engine over any device, and compares nothing: for tests
/// in which the device fails. Commands that fail are passed over.
pub fn run_commands<D: Device>(engine: &mut Engine<D>, stream: &Stream) {
    let mut player = Player::new(engine);
    for line in &stream.lines {
        // The answers differ as soon as the device has failed once.
        let _ = player.play_on_any(&line.command);
    }
}

/// What one command expects and got.
type Mismatch = (String, String);

struct Player<'a, D> {
    engine: &'a mut Engine<D>,
    blocks: BTreeMap<u64, Allocation>,
}

impl<'a, D: Device> Player<'a, D> {
    fn new(engine: &'a mut Engine<D>) -> Self {
        Self { engine, blocks: BTreeMap::new() }
    }

    /// Plays what every device understands.
    fn play_on_any(&mut self, command: &Command) -> Result<(), Mismatch> {
        match command {
            &Command::Alloc { id, size, stream, address } => {
                self.allocate(id, size, stream, address)
            }
            Command::Free { id } => {
                let block = self.blocks.remove(id).ok_or_else(|| unknown(*id))?;
                refused(self.engine.free(&block))
            }
            Command::RecordStream { id, stream } => {
                let block = self.blocks.get(id).ok_or_else(|| unknown(*id))?;
                refused(self.engine.record_stream(block.address, StreamId(*stream)))
            }
            Command::EmptyCache { pool } => {
                let pool = pool.map_or(PoolId::DEFAULT, |(first, second)| PoolId(first, second));
                refused(self.engine.empty_cache_of(pool))
            }
            &Command::PoolBegin { pool: (first, second) } => refused(
                self.engine.begin_allocate_to_pool(PoolId(first, second), StreamFilter::Any),
            ),
            &Command::PoolEnd { pool: (first, second) } => {
                refused(self.engine.end_allocate_to_pool(PoolId(first, second)))
            }
            &Command::PoolRelease { pool: (first, second) } => {
                refused(self.engine.release_pool(PoolId(first, second)))
            }
            &Command::PoolNoSplit { pool: (first, second) } => {
                refused(self.engine.set_pool_no_split(PoolId(first, second)))
            }
            &Command::PoolUseOnOom { pool: (first, second), on } => {
                self.engine.set_pool_use_on_oom(PoolId(first, second), on);
                Ok(())
            }
            &Command::MemoryFraction { fraction } => {
                refused(self.engine.set_memory_fraction(fraction))
            }
            Command::CaptureBegin => {
                self.engine.begin_capture(Capture::Everywhere);
                Ok(())
            }
            Command::CaptureEnd => refused(self.engine.end_capture()),
            Command::Configure { conf } => refused(self.engine.configure(conf)),
            Command::Snapshot { segments } => {
                segments_difference(segments, &self.engine.segments()).map_or(Ok(()), Err)
            }
            Command::Events { .. } | Command::StreamEventsComplete { .. } => Ok(()),
        }
    }

    fn allocate(
        &mut self,
        id: u64,
        size: u64,
        stream: u64,
        expected: Option<u64>,
    ) -> Result<(), Mismatch> {
        let got = match self.engine.allocate(size, StreamId(stream)) {
            Ok(block) => {
                if self.blocks.insert(id, block).is_some() {
                    return Err((format!("a new block {id}"), "that block exists".to_owned()));
                }
                Some(block.address)
            }
            Err(AllocError::OutOfMemory(_) | AllocError::Rejected(_)) => None,
            Err(error) => return Err((show(expected.map(Address)), error.to_string())),
        };
        let expected = expected.map(Address);
        if got == expected { Ok(()) } else { Err((show(expected), show(got))) }
    }
}

impl Player<'_, Dry> {
    fn play(&mut self, line: &Line) -> Result<(), Mismatch> {
        match line.command {
            Command::Events { complete: true } => self.engine.device_mut().complete_events(),
            Command::Events { complete: false } => self.engine.device_mut().hold_events(),
            Command::StreamEventsComplete { stream } => {
                self.engine.device_mut().complete_events_of(StreamId(stream));
            }
            ref command => return self.play_on_any(command),
        }
        Ok(())
    }
}

fn show(address: Option<Address>) -> String {
    address.map_or_else(|| "out of memory".to_owned(), |address| format!("a block at {address}"))
}

fn unknown(id: u64) -> Mismatch {
    (format!("block {id}"), "no such block".to_owned())
}

fn refused<E: std::error::Error>(result: Result<(), E>) -> Result<(), Mismatch> {
    result.map_err(|error| ("success".to_owned(), error.to_string()))
}
