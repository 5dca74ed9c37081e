//! All that there is to say about a prediction, for people and as JSON.

use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};
use tonnage_device::PageCalls;
use tonnage_engine::{Policy, Stats};
use tonnage_events::{BlockState, TraceEntry};

use super::{FirstOom, Pass, Prediction, Waste, WhatIf};
use crate::Reach;
use crate::job::Job;
use crate::outcome::{HistoryKind, Outcome, SCHEMA, serialize_stats};

/// A prediction, and what it means.
#[derive(Clone, Debug)]
pub struct Report {
    /// The settings, as a string.
    pub conf: String,
    /// The placement rules.
    pub policy: Policy,
    /// The prediction itself.
    pub prediction: Prediction,
    /// The moment when reserved memory first was at its peak.
    pub at_peak: AtPeak,
    /// What the first failure means, in sentences; none if nothing fails.
    pub oom_means: Option<String>,
    /// What the recording does not say and was concluded instead, and what is not known.
    pub inferred: Vec<String>,
    /// What of the job the recording has: so far it is known how it goes.
    pub reach: Reach,
    /// The driver's calls about pages, each time that the job is played.
    pub passes: Vec<Pass>,
    /// How long the job took when it was recorded.
    pub recorded: RecordedTimes,
}

/// How long a job took when it was recorded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordedTimes {
    /// Microseconds, from its first entry to its last.
    pub us: u64,
    /// The first entry of each iteration, and the microseconds from there to the next one.
    pub iterations: Vec<(usize, u64)>,
}

impl RecordedTimes {
    /// Those of a history whose iterations begin with the entries `starts`, in order.
    #[must_use]
    pub fn of(entries: &[TraceEntry], starts: &[usize]) -> Self {
        let Some(last) = entries.last() else { return Self::default() };
        let time = |start: usize| entries.get(start).map_or(last.time_us, |entry| entry.time_us);
        let ends = starts.iter().skip(1).map(|&start| time(start)).chain([last.time_us]);
        let iterations = starts.iter().zip(ends);
        Self {
            us: last.time_us.saturating_sub(entries[0].time_us),
            iterations: iterations
                .map(|(&start, end)| (start, end.saturating_sub(time(start))))
                .collect(),
        }
    }
}

/// Reserved memory when it first was at its peak. *Requested + waste = reserved.*
#[derive(Clone, Copy, Debug, Default)]
pub struct AtPeak {
    /// The entry of the recording that ends the request which grew it.
    pub event: usize,
    /// Bytes reserved.
    pub reserved: u64,
    /// Bytes requested, of live blocks.
    pub requested: u64,
    /// The rest, by kind.
    pub waste: Waste,
}

impl Report {
    /// Predicts how the job goes, and explains it. `recorded` is the outcome of the job as it was.
    #[must_use]
    pub fn new(recorded: &Outcome, job: &Job, what_if: &WhatIf) -> Self {
        let prediction = what_if.predict(job);
        let at_peak = at_peak(job, what_if, &prediction);
        let conf = match what_if.config.last_settings() {
            "" => what_if.config.to_conf_string(),
            conf => conf.to_owned(),
        };
        let mut inferred = recorded.inferred.clone();
        inferred.extend_from_slice(job.notes());
        inferred.extend(prediction.unknown(job));
        if what_if.config.garbage_collection_threshold() > 0.0 && prediction.limit.is_none() {
            inferred.push("garbage_collection_threshold does nothing without a limit".to_owned());
        }
        let pass = Pass { calls: prediction.page_calls, iterations: Vec::new() };
        let oom_means = prediction.oom.map(|oom| meaning(&oom, job, &prediction));
        Self {
            conf,
            policy: what_if.policy,
            prediction,
            at_peak,
            oom_means,
            inferred,
            reach: job.reach(),
            passes: vec![pass],
            recorded: RecordedTimes::default(),
        }
    }

    /// The same with the driver's calls of each of `times` times that the job is played on one allocator, and of each iteration, beside
    /// how long these took when they were recorded.
    #[must_use]
    pub fn with_passes(
        self,
        job: &Job,
        what_if: &WhatIf,
        times: usize,
        recorded: RecordedTimes,
    ) -> Self {
        let starts: Vec<_> = recorded.iterations.iter().map(|&(start, _)| start).collect();
        let passes = if self.prediction.page_calls == PageCalls::default() {
            // There are no pages: to play it again would tell nothing.
            vec![
                Pass { iterations: vec![PageCalls::default(); starts.len()], ..Pass::default() };
                times
            ]
        } else {
            what_if.predict_passes(job, times, &starts)
        };
        Self { passes, recorded, ..self }
    }

    /// Peak reserved ÷ the most that is live at once; none if nothing ever is.
    #[must_use]
    pub fn waste_ratio(&self) -> Option<f64> {
        let Prediction { stats, floor, .. } = &self.prediction;
        (*floor > 0).then(|| stats.max_memory_reserved() as f64 / *floor as f64)
    }

    /// What the driver takes for pages in a pass, in percent of the time that the recorded job took; none if that is not known.
    #[must_use]
    pub fn driver_percent(&self, pass: &Pass) -> Option<f64> {
        percent_of(&pass.calls, self.recorded.us)
    }
}

/// What the driver's calls take, in percent of so many microseconds; none of none.
fn percent_of(calls: &PageCalls, us: u64) -> Option<f64> {
    (us > 0).then(|| calls.nanoseconds() as f64 / (us as f64 * 1e3) * 100.0)
}

fn at_peak(job: &Job, what_if: &WhatIf, prediction: &Prediction) -> AtPeak {
    let moment = what_if.peak(job, prediction);
    let blocks = moment.segments.iter().flat_map(|segment| &segment.blocks);
    let live = blocks.filter(|block| block.state == BlockState::ActiveAllocated);
    AtPeak {
        event: moment.entry,
        reserved: moment.segments.iter().map(|segment| segment.total_size).sum(),
        requested: live.map(|block| block.requested_size).sum(),
        waste: moment.waste(&what_if.config),
    }
}

impl Prediction {
    /// Where the recording does not tell how the job goes on, in sentences.
    #[must_use]
    pub fn unknown(&self, job: &Job) -> Option<String> {
        let served = self.served_after_all;
        let held = match job.died_at() {
            Some(_) if !self.stopped() => {
                "the one at which it died is held to the end, any other is freed at once"
            }
            _ => "each is freed at once",
        };
        (served > 0).then(|| {
            format!(
                "requests that failed when this was recorded and are served now: {served}. How the job would \
                 have gone on is not known; {held}"
            )
        })
    }
}

/// What the first failure means for the job.
fn meaning(oom: &FirstOom, job: &Job, prediction: &Prediction) -> String {
    let went_on = job.survived_failures();
    match (oom.recorded, prediction.stopped()) {
        (false, _) if went_on > 0 => format!(
            "the recording has no failure here. An error that no one catches ends the job, so the figures \
             stop here; but this job did go on after failures ({went_on} in the recording), so it may here too"
        ),
        (false, _) => "the recording has no failure here. An error that no one catches ends the job, so the \
             figures stop here; libraries that catch it and ask for less would go on, and how is not known"
            .to_owned(),
        (true, _) if job.died_at() == Some(oom.event) => {
            "the recorded job died at this request".to_owned()
        }
        (true, true) => "the recorded request failed too, and the job went on as it does here; it \
             ends at a later failure"
            .to_owned(),
        (true, false) => {
            "the recorded request failed too, and the job went on as it does here".to_owned()
        }
    }
}

#[derive(Serialize)]
struct Json<'a> {
    schema: u32,
    kind: &'static str,
    file: &'a str,
    device: u32,
    release: &'static str,
    events: usize,
    history: HistoryKind,
    conf: &'a str,
    policy: &'static str,
    limit: Option<u64>,
    /// There is no recording under these settings to be exact about.
    exact: Option<bool>,
    difference: Option<()>,
    peaks: Peaks,
    floor: u64,
    at_peak: JsonAtPeak,
    #[serde(serialize_with = "serialize_waste")]
    waste: Waste,
    /// Peak reserved ÷ floor.
    waste_ratio: Option<f64>,
    driver_ns: JsonDriver,
    large_blocks: JsonLargeBlocks,
    oom: Option<JsonOom>,
    oom_means: Option<&'a str>,
    known: Reach,
    inferred: &'a [String],
    #[serde(serialize_with = "serialize_stats")]
    stats: &'a Stats,
}

#[derive(Serialize)]
struct Peaks {
    reserved: i64,
    allocated: i64,
    active: i64,
    requested: i64,
}

#[derive(Serialize)]
struct JsonAtPeak {
    event: usize,
    reserved: u64,
    requested: u64,
}

/// What the driver's calls about pages take: all, what of it made memory grow, and for each time that the job is played.
#[derive(Serialize)]
struct JsonDriver {
    total: u64,
    growth: u64,
    recorded: u64,
    passes: Vec<JsonPass>,
}

#[derive(Serialize)]
struct JsonPass {
    total: u64,
    growth: u64,
    percent: Option<f64>,
    created: u64,
    mapped: u64,
    unmapped: u64,
    destroyed: u64,
    iterations: Vec<JsonIteration>,
}

/// One iteration of the recorded loop.
#[derive(Serialize)]
struct JsonIteration {
    event: usize,
    total: u64,
    growth: u64,
    recorded: u64,
    percent: Option<f64>,
}

#[derive(Serialize)]
struct JsonLargeBlocks {
    bytes: u64,
    in_small_pages: u64,
}

#[derive(Serialize)]
struct JsonOom {
    event: usize,
    request: u64,
    bytes: u64,
    stream: u64,
}

fn serialize_waste<S: Serializer>(waste: &Waste, serializer: S) -> Result<S::Ok, S::Error> {
    let mut map = serializer.serialize_map(None)?;
    for (kind, bytes) in waste.iter() {
        map.serialize_entry(kind.name(), &bytes)?;
    }
    map.end()
}

impl Report {
    /// The report as one JSON object.
    ///
    /// # Panics
    ///
    /// Never: the fields are numbers and strings.
    #[must_use]
    pub fn to_json(&self, recorded: &Outcome, file: &str) -> String {
        let Prediction { stats, floor, limit, oom, .. } = &self.prediction;
        let json = Json {
            schema: SCHEMA,
            kind: "what_if",
            file,
            device: recorded.device,
            release: recorded.release.name(),
            events: recorded.events,
            history: recorded.history,
            conf: &self.conf,
            policy: self.policy.name(),
            limit: *limit,
            exact: None,
            difference: None,
            peaks: Peaks {
                reserved: stats.reserved_bytes.all.peak,
                allocated: stats.allocated_bytes.all.peak,
                active: stats.active_bytes.all.peak,
                requested: stats.requested_bytes.all.peak,
            },
            floor: *floor,
            at_peak: JsonAtPeak {
                event: self.at_peak.event,
                reserved: self.at_peak.reserved,
                requested: self.at_peak.requested,
            },
            waste: self.at_peak.waste,
            waste_ratio: self.waste_ratio(),
            driver_ns: self.driver_json(),
            large_blocks: JsonLargeBlocks {
                bytes: self.prediction.large_blocks.bytes,
                in_small_pages: self.prediction.large_blocks.in_small_pages,
            },
            oom: oom.map(|oom| JsonOom {
                event: oom.event,
                request: oom.request,
                bytes: oom.bytes,
                stream: oom.stream.0,
            }),
            oom_means: self.oom_means.as_deref(),
            known: self.reach,
            inferred: &self.inferred,
            stats,
        };
        serde_json::to_string_pretty(&json).expect("numbers and strings can be written")
    }

    fn driver_json(&self) -> JsonDriver {
        let passes: Vec<_> = self
            .passes
            .iter()
            .map(|pass| JsonPass {
                total: pass.calls.nanoseconds(),
                growth: pass.calls.growth_nanoseconds(),
                percent: self.driver_percent(pass),
                created: pass.calls.created,
                mapped: pass.calls.mapped,
                unmapped: pass.calls.unmapped,
                destroyed: pass.calls.destroyed,
                iterations: self.iterations_json(pass),
            })
            .collect();
        JsonDriver {
            total: passes.iter().map(|pass| pass.total).sum(),
            growth: passes.iter().map(|pass| pass.growth).sum(),
            recorded: self.recorded.us * 1000,
            passes,
        }
    }

    fn iterations_json(&self, pass: &Pass) -> Vec<JsonIteration> {
        let iterations = pass.iterations.iter().zip(&self.recorded.iterations);
        iterations
            .map(|(calls, &(event, us))| JsonIteration {
                event,
                total: calls.nanoseconds(),
                growth: calls.growth_nanoseconds(),
                recorded: us * 1000,
                percent: percent_of(calls, us),
            })
            .collect()
    }
}
