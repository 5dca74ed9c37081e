//! A tuning as JSON.

use serde::Serialize;

use super::{Candidate, Tuning};
use crate::Reach;
use crate::outcome::{Outcome, SCHEMA};

#[derive(Serialize)]
struct Json<'a> {
    schema: u32,
    file: &'a str,
    device: u32,
    release: &'static str,
    events: usize,
    floor: u64,
    limit: Option<u64>,
    fits: bool,
    known: Reach,
    recorded: &'a str,
    saving: u64,
    need: Option<JsonNeed<'a>>,
    candidates: Vec<JsonCandidate<'a>>,
    inferred: &'a [String],
}

#[derive(Serialize)]
struct JsonNeed<'a> {
    bytes: u64,
    /// Whether the job may need more than its recording shows.
    at_least: bool,
    conf: &'a str,
}

#[derive(Serialize)]
struct JsonCandidate<'a> {
    conf: &'a str,
    policy: &'static str,
    reserved_peak: u64,
    allocated_peak: u64,
    retries: i64,
    ooms: i64,
    driver_calls: i64,
    /// What the calls about pages take.
    driver_ns: u64,
}

impl<'a> JsonCandidate<'a> {
    fn of(candidate: &'a Candidate) -> Self {
        let stats = &candidate.prediction.stats;
        Self {
            conf: &candidate.conf,
            policy: candidate.policy.name(),
            reserved_peak: candidate.reserved_peak(),
            allocated_peak: stats.max_memory_allocated(),
            retries: stats.num_alloc_retries,
            ooms: stats.failed_requests(),
            driver_calls: candidate.driver_calls(),
            driver_ns: candidate.page_ns(),
        }
    }
}

impl Tuning {
    /// The fields of the tuning as JSON. `recorded` is the outcome of the job as it was, `inferred` what is
    /// not in the file.
    #[must_use]
    pub fn fields<'a>(
        &'a self,
        recorded: &'a Outcome,
        inferred: &'a [String],
        file: &'a str,
    ) -> impl Serialize + 'a {
        Json {
            schema: SCHEMA,
            file,
            device: recorded.device,
            release: recorded.release.name(),
            events: recorded.events,
            floor: self.floor,
            limit: self.limit,
            fits: self.best().is_some(),
            known: self.reach,
            recorded: &self.recorded,
            saving: self.saving(),
            need: self.need.as_ref().map(|need| JsonNeed {
                bytes: need.bytes,
                at_least: !self.reach.is_whole(),
                conf: &need.conf,
            }),
            candidates: self.candidates.iter().map(JsonCandidate::of).collect(),
            inferred,
        }
    }
}
