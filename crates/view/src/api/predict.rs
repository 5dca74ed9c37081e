//! `POST api/predict`: a recipe's step on the engine, without memory.
//!
//! In:  a recipe, its sizes and techniques. Out: the step as asked, and beside it without checkpoints and with √n of
//! them. Each is a run on `dry`, at the same time where there are cores.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::State;
use axum::response::Response;
use serde::{Deserialize, Serialize};
use tonnage_plan::{Checkpoint, Error, Options, Recipe, Size, Timeline, trace};

use super::recipes::range;
use super::{App, broken, in_turn, json, to_json};
use crate::error::ApiError;

/// The most points of a step: about one for each dot of a wide page.
const POINTS: usize = 2_000;

#[derive(Deserialize)]
pub(super) struct Asked {
    recipe: String,
    layers: Option<usize>,
    width: Option<usize>,
    batch: Option<usize>,
    seq: Option<usize>,
    image: Option<usize>,
    antennas: Option<usize>,
    users: Option<usize>,
    subcarriers: Option<usize>,
    accumulate: Option<usize>,
    /// Bytes of the GPU, to ask whether it fits.
    limit: Option<u64>,
    amp: Option<String>,
    checkpoint: Option<String>,
    optimizer: Option<String>,
}

/// What a step does, by points and by events, and how much it queues. Ends are exclusive.
#[derive(Clone, Serialize)]
struct Phase {
    name: &'static str,
    begin: usize,
    end: usize,
    from: u64,
    to: u64,
    operations: f64,
    kernels: u64,
    /// Seconds that it takes at least, by the name of a GPU.
    seconds: BTreeMap<&'static str, f64>,
}

#[derive(Clone, Serialize)]
struct Step {
    checkpoint: String,
    /// Events up to each point.
    events: Vec<u64>,
    allocated: Vec<u64>,
    reserved: Vec<u64>,
    held: Vec<Vec<u64>>,
    purposes: Vec<&'static str>,
    phases: Vec<Phase>,
    peak: Peak,
    parameters: u64,
}

#[derive(Clone, Serialize)]
struct Peak {
    allocated: u64,
    reserved: u64,
    point: usize,
    phase: &'static str,
}

#[derive(Serialize)]
struct Answer {
    /// Whether it runs on a device of the bytes that were asked about.
    fits: Option<bool>,
    step: Step,
    none: Option<Step>,
    sqrt: Option<Step>,
    command: String,
}

pub(super) async fn predict(
    State(app): State<App>,
    Json(asked): Json<Asked>,
) -> Result<Response, ApiError> {
    let options = asked.options()?;
    let limit = asked.limit;
    // A slider that has moved on takes its question back while it waits.
    let answer = in_turn(&app.predictions, move || answer(&options, limit)).await?;
    to_json(&answer).map(json)
}

impl Asked {
    pub(super) fn options(&self) -> Result<Options, ApiError> {
        let recipe: Recipe = self.recipe.parse().map_err(refused)?;
        let mut options = Options::new(recipe);
        for (size, value) in [
            (Size::Layers, self.layers),
            (Size::Width, self.width),
            (Size::Batch, self.batch),
            (Size::Seq, self.seq),
            (Size::Image, self.image),
            (Size::Antennas, self.antennas),
            (Size::Users, self.users),
            (Size::Subcarriers, self.subcarriers),
        ] {
            let Some(value) = value else { continue };
            if let Some(range) = range(recipe, size)
                && !(range.least..=range.most).contains(&value)
            {
                return Err(ApiError::Refused(format!(
                    "{} {value}: the page goes from {} to {}; `tonnage predict` takes more",
                    size.name(),
                    range.least,
                    range.most
                )));
            }
            options = options.with(size, value).map_err(refused)?;
        }
        match self.amp.as_deref() {
            None | Some("none" | "") => {}
            Some(amp) => options.amp = Some(amp.parse().map_err(refused)?),
        }
        if let Some(checkpoint) = &self.checkpoint {
            options.checkpoint = checkpoint.parse().map_err(refused)?;
        }
        if let Some(optimizer) = &self.optimizer {
            options.optimizer = optimizer.parse().map_err(refused)?;
        }
        options.accumulate = self.accumulate.unwrap_or(1);
        options.check().map_err(refused)?;
        Ok(options)
    }

    /// The bytes that were asked about.
    pub(super) fn limit(&self) -> Result<u64, ApiError> {
        let missing = || ApiError::Refused("a limit is missing, in bytes".to_owned());
        self.limit.filter(|&it| it > 0).ok_or_else(missing)
    }
}

pub(super) fn refused(error: Error) -> ApiError {
    ApiError::Refused(error.to_string())
}

/// Whether a run gets through on a device of so many bytes: that of the allocator itself, which gives back what is cached
/// before it fails.
fn fits(options: &Options, limit: u64) -> Result<bool, ApiError> {
    let mut limited = options.clone();
    limited.limit = Some(limit);
    match tonnage_plan::predict(&limited) {
        Ok(_) => Ok(true),
        Err(Error::OutOfMemory { .. }) => Ok(false),
        Err(other) => Err(refused(other)),
    }
}

fn answer(options: &Options, limit: Option<u64>) -> Result<Answer, ApiError> {
    let fits = limit.map(|limit| fits(options, limit)).transpose()?;
    let with = |checkpoint: Checkpoint| {
        let mut options = options.clone();
        options.checkpoint = checkpoint;
        options
    };
    let mut steps = std::thread::scope(|scope| {
        let mut others = Vec::new();
        for checkpoint in [Checkpoint::None, Checkpoint::Sqrt] {
            let other = (checkpoint != options.checkpoint).then(|| with(checkpoint));
            others.push(other.map(|options| scope.spawn(move || step(&options))));
        }
        let own = step(options);
        let joined = others.into_iter().map(|thread| {
            let other = thread.map(|thread| thread.join().unwrap_or_else(|_| Err(broken())));
            other.unwrap_or_else(|| own.clone())
        });
        let mut steps: Vec<_> = joined.collect();
        steps.push(own);
        steps
    });
    let own = steps.pop().unwrap_or_else(|| Err(broken()))?;
    let mut others = steps.into_iter().map(Result::ok);
    let (none, sqrt) = (others.next().flatten(), others.next().flatten());
    let command = format!("tonnage predict {} {}", options.recipe(), options.flags());
    Ok(Answer { fits, step: own, none, sqrt, command: command.trim_end().to_owned() })
}

fn step(options: &Options) -> Result<Step, ApiError> {
    let timeline = trace(options, POINTS).map_err(refused)?;
    Ok(Step::of(options, &timeline))
}

impl Step {
    fn of(options: &Options, timeline: &Timeline) -> Self {
        let points = &timeline.points;
        let outcome = &timeline.outcome;
        // Spans count events, and a point may stand for several.
        let point = |event: u64| points.partition_point(|it| it.event <= event);
        let phases = timeline.spans.iter().map(|span| Phase {
            name: span.phase.name(),
            begin: if span.from == 0 { 0 } else { point(span.from) },
            end: point(span.to),
            from: span.from,
            to: span.to,
            operations: span.work.operations,
            kernels: span.work.kernels,
            seconds: span.seconds().collect(),
        });
        let held = Timeline::ROLES.map(|role| points.iter().map(|it| it.of(role)).collect());
        Self {
            checkpoint: options.checkpoint.to_string(),
            events: points.iter().map(|it| it.event).collect(),
            allocated: points.iter().map(|it| it.allocated()).collect(),
            reserved: points.iter().map(|it| it.reserved).collect(),
            held: held.to_vec(),
            purposes: Timeline::ROLES.map(|role| role.name()).to_vec(),
            // An optimizer that needs no memory of its own is a phase all the same: its span is empty.
            phases: phases.filter(|it| it.begin <= it.end).collect(),
            peak: Peak {
                allocated: outcome.allocated_peak,
                reserved: outcome.reserved_peak,
                point: timeline.peak,
                phase: outcome.peak_phase.map_or("", |phase| phase.name()),
            },
            parameters: outcome.parameters,
        }
    }
}
