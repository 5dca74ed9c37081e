//! A step as it goes: the memory after every allocation and free, phase by phase.
//!
//! In:  options, and how many points are wanted.
//! Out: a [`Timeline`] of the last step of a prediction, in which memory is as in every later one; of a graph, of the step that is
//!      captured, whose memory the others use.

use serde_json::{Value, json};
use tonnage_tensor::{Gpu, LevelPoint, QueuedWork, Role};

use crate::device_kind::DeviceKind;
use crate::error::Result;
use crate::meter::{Meter, Phase};
use crate::options::Options;
use crate::outcome::{ORDER, Outcome};
use crate::train::run;

/// The memory of one step. Time is counted in events: allocations and frees.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Timeline {
    /// What the whole run takes.
    pub outcome: Outcome,
    /// Which step this is, from 1: the last that had to run, or the one that is captured.
    pub step: usize,
    /// How many events it has.
    pub events: u64,
    /// What it does, in order; the first span begins at event 0.
    pub spans: Vec<Span>,
    /// The memory after events, in order: after each, or after those of several in a row that have
    /// most allocated. Never empty.
    pub points: Vec<LevelPoint>,
    /// Which of the points has most allocated, the first if several do.
    pub peak: usize,
}

/// Events of one phase.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Span {
    /// The phase.
    pub phase: Phase,
    /// The number of events before its first.
    pub from: u64,
    /// The number of events up to its last.
    pub to: u64,
    /// What it queues: a phase without events works too.
    pub work: QueuedWork,
}

impl Span {
    /// Seconds that it takes at least, by the names of GPUs: kernel by kernel, by its arithmetic or the bytes that it moves.
    pub fn seconds(&self) -> impl Iterator<Item = (&'static str, f64)> {
        Gpu::ALL.into_iter().map(Gpu::name).zip(self.work.seconds)
    }
}

impl Timeline {
    /// The phase of the event that reached this point.
    #[must_use]
    pub fn phase_of(&self, point: &LevelPoint) -> Option<Phase> {
        let reached = |it: &&Span| it.from < point.event && point.event <= it.to;
        let span = self.spans.iter().find(reached).or(self.spans.first());
        span.map(|it| it.phase)
    }

    /// The point with most allocated.
    #[must_use]
    pub fn highest(&self) -> Option<&LevelPoint> {
        self.points.get(self.peak)
    }

    /// What each byte is for, in the order in which [`to_json`](Self::to_json) has them.
    pub const ROLES: [Role; Role::ALL.len()] = ORDER;

    /// One JSON object: levels as columns, so that a page draws them as they are.
    #[must_use]
    pub fn to_json(&self) -> String {
        let span = |it: &Span| json!({ "phase": it.phase.name(), "from": it.from, "to": it.to });
        let column =
            |of: &dyn Fn(&LevelPoint) -> u64| self.points.iter().map(of).collect::<Value>();
        let role = |role: Role| (role.name().to_owned(), column(&|it: &LevelPoint| it.of(role)));
        let peak = self.highest().map(|it| {
            json!({
                "point": self.peak,
                "event": it.event,
                "allocated": it.allocated(),
                "phase": self.phase_of(it).map(Phase::name),
            })
        });
        json!({
            "step": self.step,
            "events": self.events,
            "spans": self.spans.iter().map(span).collect::<Value>(),
            "event": column(&|it| it.event),
            "allocated": column(&LevelPoint::allocated),
            "reserved": column(&|it| it.reserved),
            "roles": Value::Object(ORDER.into_iter().map(role).collect()),
            "peak": peak,
        })
        .to_string()
    }
}

/// Predicts a run, and shows the memory of its last step, or of that which is captured, in at most about `points` points.
///
/// ```
/// use tonnage_plan::{Options, Phase, Recipe, trace};
/// use tonnage_tensor::Role;
///
/// let timeline = trace(&Options::new(Recipe::DeepNet), 500)?;
/// let highest = timeline.highest().ok_or("no event")?;
/// assert_eq!(highest.allocated(), timeline.outcome.allocated_peak);
/// assert_eq!(timeline.phase_of(highest), timeline.outcome.peak_phase);
/// for point in &timeline.points {
///     println!("{} {} {}", point.event, point.reserved, point.of(Role::Activations));
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// If options do not fit together, or if memory does not suffice for the limit that they set.
pub fn trace(options: &Options, points: usize) -> Result<Timeline> {
    let device = DeviceKind::Dry.open(options)?;
    let mut meter = Meter::recording(&device, points);
    let outcome = run(&device, options, &mut meter, &mut |_| ())?;
    let levels = meter.levels;
    let ends = meter.starts.iter().skip(1).map(|it| (it.1, it.2));
    let ends = ends.chain([(levels.events, meter.work)]);
    let span =
        |(&(phase, from, before), (to, after)): (&(Phase, u64, QueuedWork), (u64, QueuedWork))| {
            Span { phase, from, to, work: after.since(before) }
        };
    let most = levels.points.iter().map(LevelPoint::allocated).max();
    let is_highest = |it: &LevelPoint| Some(it.allocated()) == most;
    Ok(Timeline {
        step: meter.recorded,
        spans: meter.starts.iter().zip(ends).map(span).collect(),
        peak: levels.points.iter().position(is_highest).unwrap_or(0),
        events: levels.events,
        points: levels.points,
        outcome,
    })
}
