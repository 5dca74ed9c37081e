//! What a program asked for, whatever the allocator made of it.
//!
//! In: the entries of a history and how they were read. Out: a [`Job`], the calls that ask any
//! allocator for the same again, each with the entry that it comes from. Where segments lay, when
//! memory went back by itself and what was cached is the recorded allocator's business and not here.

mod build;

mod pending;

use tonnage_engine::{PoolId, StreamId};
use tonnage_events::TraceEntry;
use tonnage_snapshot::SnapshotFile;

use crate::recording::{Reading, RecordingError, RecordingOptions, read_recording_until};
use crate::{Outcome, Reach, Until};

/// A program's calls to its allocator, in order.
///
/// ```
/// use tonnage_replay::job::Job;
/// use tonnage_replay::recording::RecordingOptions;
///
/// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/traces/mlp_seed.default.pickle.zst");
/// let file = tonnage_snapshot::open(path.as_ref())?;
/// let (outcome, job) = Job::read(&file, &RecordingOptions::default())?;
/// assert!(outcome.exact());
/// // Live requested bytes at their most: no allocator can do with less.
/// assert_eq!(job.floor(), 195_526_856);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Job {
    steps: Vec<Step>,
    events: usize,
    blocks: usize,
    floor: u64,
    /// Whether memory was in use before the first entry.
    begins_late: bool,
    notes: Vec<String>,
}

/// One call, and where it comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// The entry that shows it: for a request the one that ends it. What the history begins with
    /// comes at entry 0.
    pub entry: usize,
    /// The call.
    pub call: Call,
}

/// A call to the allocator. Blocks are numbered by the order of their allocation; failed requests
/// have no number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// Allocate: the next block.
    Allocate(Request),
    /// A request that the recorded allocator did not serve.
    FailedAllocate {
        /// The request; its bytes are rounded, since the history keeps nothing else.
        request: Request,
        /// Whether it was the last one: the error ended the job.
        fatal: bool,
    },
    /// Another stream uses a block too.
    RecordStream {
        /// The block.
        block: usize,
        /// The stream; not the recorded one, which a history does not name. Blocks that may share
        /// a stream do, since they were found unused in the order of their frees.
        stream: StreamId,
    },
    /// Free a block.
    Free {
        /// The block.
        block: usize,
        /// The entry where it was found unused by other streams; none if it never was.
        complete: Option<usize>,
    },
    /// Give back what is cached: of the default pool and those without uses, or of one pool.
    EmptyCache(PoolId),
    /// Take the last use from a private pool.
    ReleasePool(PoolId),
    /// Begin a graph capture: the next call was read as inside one.
    BeginCapture,
    /// End it.
    EndCapture,
}

/// Bytes for a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// How many.
    pub bytes: u64,
    /// On which stream.
    pub stream: StreamId,
    /// From which pool.
    pub pool: PoolId,
}

impl Job {
    /// The job that the entries show, read in this way.
    #[must_use]
    pub fn new(entries: &[TraceEntry], reading: &Reading) -> Self {
        build::build(entries, reading)
    }

    /// Reads the job of one device from its history, beside the outcome of replaying it as it was.
    ///
    /// # Errors
    ///
    /// If the file has no history of the device.
    pub fn read(
        file: &SnapshotFile,
        options: &RecordingOptions,
    ) -> Result<(Outcome, Self), RecordingError> {
        Self::read_until(file, options, &Until::default())
    }

    /// The same, unless it is to end before: see [`read_recording_until`].
    ///
    /// # Errors
    ///
    /// If the file has no history of the device.
    pub fn read_until(
        file: &SnapshotFile,
        options: &RecordingOptions,
        until: &Until,
    ) -> Result<(Outcome, Self), RecordingError> {
        let (outcome, reading) = read_recording_until(file, options, until)?;
        let entries = file.traces.get(outcome.device as usize);
        let mut job = Self::new(entries.map_or(&[], Vec::as_slice), &reading);
        if let Some(difference) = &outcome.difference
            && difference.event < outcome.events
        {
            job.notes.push(format!(
                "the recording was understood up to entry {}: calls of empty_cache and requests to private \
                 pools behind it are not known",
                difference.event
            ));
        }
        Ok((outcome, job))
    }

    /// The calls, in order.
    #[must_use]
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// Entries of the history.
    #[must_use]
    pub fn events(&self) -> usize {
        self.events
    }

    /// Blocks that are allocated in all.
    #[must_use]
    pub fn blocks(&self) -> usize {
        self.blocks
    }

    /// Most requested bytes that were live at once: no allocator can do with less. A request at which
    /// the job died counts too.
    #[must_use]
    pub fn floor(&self) -> u64 {
        self.floor
    }

    /// Requests that failed when the job was recorded, and after which it went on.
    #[must_use]
    pub fn survived_failures(&self) -> usize {
        self.failures().filter(|&(_, fatal)| !fatal).count()
    }

    /// The entry of the failed request that ended the job, if one did.
    #[must_use]
    pub fn died_at(&self) -> Option<usize> {
        self.failures().find_map(|(entry, fatal)| fatal.then_some(entry))
    }

    /// What of the job the recording has.
    #[must_use]
    pub fn reach(&self) -> Reach {
        Reach { died: self.died_at().is_some(), lost_beginning: self.begins_late }
    }

    /// Whether some of its requests went to private pools.
    #[must_use]
    pub fn uses_private_pools(&self) -> bool {
        self.steps.iter().any(|step| match step.call {
            Call::Allocate(request) | Call::FailedAllocate { request, .. } => {
                !request.pool.is_default()
            }
            _ => false,
        })
    }

    fn failures(&self) -> impl Iterator<Item = (usize, bool)> + '_ {
        self.steps.iter().filter_map(|step| match step.call {
            Call::FailedAllocate { fatal, .. } => Some((step.entry, fatal)),
            _ => None,
        })
    }

    /// What the history does not say about the job.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.notes
    }
}
