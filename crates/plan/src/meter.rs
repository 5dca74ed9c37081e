//! Memory by phase: what a program does, and the bytes while it does that.
//!
//! In:  a device, and pieces of work with their phase.
//! Out: peaks over the whole run and for each phase; where phases began in what is recorded. The device's own peaks begin again with each piece.

use std::fmt;

use tonnage_engine::Stats;
use tonnage_tensor::{Device, Levels, Peak, QueuedWork};

use crate::error::{Error, Result};

/// What a training program does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Phase {
    /// The model is made.
    Model,
    /// A batch is put on the device.
    Data,
    /// The loss is computed.
    Forward,
    /// Gradients are computed.
    Backward,
    /// Parameters are changed.
    Step,
    /// Gradients are dropped.
    ZeroGrad,
    /// A captured step is done as a whole.
    Replay,
    /// Symbols are sent and detected.
    Simulate,
}

impl Phase {
    /// What it goes by in a recorded history: an optimizer's work as in PyTorch's.
    fn scope(self) -> &'static str {
        match self {
            Self::Step => "Optimizer.step",
            Self::ZeroGrad => "Optimizer.zero_grad",
            other => other.name(),
        }
    }

    /// Every one, in the order of a step.
    pub const ALL: [Self; 8] = [
        Self::Model,
        Self::Data,
        Self::Forward,
        Self::Backward,
        Self::Step,
        Self::ZeroGrad,
        Self::Replay,
        Self::Simulate,
    ];

    /// A word for it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Model => "model",
            Self::Data => "data",
            Self::Forward => "forward",
            Self::Backward => "backward",
            Self::Step => "step",
            Self::ZeroGrad => "zero_grad",
            Self::Replay => "replay",
            Self::Simulate => "simulate",
        }
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The memory of a phase, over all steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PhaseMemory {
    /// The phase.
    pub phase: Phase,
    /// The most bytes that were allocated while it ran.
    pub allocated_peak: u64,
    /// Bytes that were allocated when it ended, the last time.
    pub allocated_end: u64,
}

/// Measures pieces of work.
pub(crate) struct Meter<'a> {
    device: &'a Device,
    pub(crate) step: usize,
    /// What runs now, or ran last.
    phase: Phase,
    pub(crate) allocated_peak: u64,
    pub(crate) reserved_peak: u64,
    pub(crate) requested_peak: u64,
    pub(crate) phases: Vec<PhaseMemory>,
    /// The phase of the peak, once there is one.
    pub(crate) peak: Option<(Phase, Peak)>,
    /// How many points of the step are recorded, if any still are.
    pub(crate) points: Option<usize>,
    /// The step that was recorded.
    pub(crate) recorded: usize,
    /// Where in what is recorded each piece of work began, and what had been queued by then.
    pub(crate) starts: Vec<(Phase, u64, QueuedWork)>,
    /// What was recorded of that step.
    pub(crate) levels: Levels,
    /// What had been queued when it ended.
    pub(crate) work: QueuedWork,
}

impl<'a> Meter<'a> {
    pub(crate) fn new(device: &'a Device) -> Self {
        Self {
            device,
            step: 1,
            phase: Phase::Model,
            allocated_peak: 0,
            reserved_peak: 0,
            requested_peak: 0,
            phases: Vec::new(),
            peak: None,
            points: None,
            recorded: 1,
            starts: Vec::new(),
            levels: Levels::default(),
            work: QueuedWork::default(),
        }
    }

    /// One that also lets the device record the last step, or that which is captured, in so many points.
    pub(crate) fn recording(device: &'a Device, points: usize) -> Self {
        Self { points: Some(points), ..Self::new(device) }
    }

    /// A step begins, counted from 1: what was recorded of the one before is forgotten.
    pub(crate) fn begin(&mut self, step: usize) {
        self.step = step;
        if let Some(points) = self.points {
            self.recorded = step;
            self.device.record_levels(points);
            self.starts.clear();
        }
    }

    /// The step that is looked at has ended, and nothing of it is dropped yet: later ones are not recorded.
    pub(crate) fn end(&mut self) {
        if self.points.take().is_some() {
            self.levels = self.device.take_levels();
            self.work = self.device.work();
        }
    }

    /// Runs a piece of work of this phase.
    pub(crate) fn run<T>(
        &mut self,
        phase: Phase,
        work: impl FnOnce() -> tonnage_tensor::Result<T>,
    ) -> Result<T> {
        self.measure(phase, work).map_err(|error| self.during(error))
    }

    /// An error of the phase that runs now, or ran last.
    pub(crate) fn during(&self, error: tonnage_tensor::Error) -> Error {
        Error::during(error, self.step, self.phase)
    }

    /// The same as [`run`](Self::run), for work inside of other work: an error says nothing of the phase.
    pub(crate) fn measure<T>(
        &mut self,
        phase: Phase,
        work: impl FnOnce() -> tonnage_tensor::Result<T>,
    ) -> tonnage_tensor::Result<T> {
        self.phase = phase;
        self.device.memory().reset_peak_stats();
        if self.points.is_some() {
            let (events, work) = (self.device.recorded_events(), self.device.work());
            self.starts.push((phase, events, work));
        }
        self.device.memory().begin_scope(phase.scope());
        let done = work()?;
        self.device.memory().end_scope(phase.scope());
        self.count(phase, &self.device.memory().stats());
        Ok(done)
    }

    fn count(&mut self, phase: Phase, stats: &Stats) {
        let peak = |stat: i64| u64::try_from(stat).unwrap_or(0);
        let allocated_peak = stats.max_memory_allocated();
        self.reserved_peak = self.reserved_peak.max(stats.max_memory_reserved());
        self.requested_peak = self.requested_peak.max(peak(stats.requested_bytes.all.peak));
        if allocated_peak > self.allocated_peak {
            self.allocated_peak = allocated_peak;
            self.peak = self.device.peak().map(|peak| (phase, peak));
        }
        let allocated_end = stats.memory_allocated();
        match self.phases.iter_mut().find(|it| it.phase == phase) {
            Some(known) => {
                known.allocated_peak = known.allocated_peak.max(allocated_peak);
                known.allocated_end = allocated_end;
            }
            None => self.phases.push(PhaseMemory { phase, allocated_peak, allocated_end }),
        }
    }
}
