//! A tuning as JSON.

use serde::Serialize;

use super::{Candidate, Tuning};
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
    recorded: &'a str,
    saving: u64,
    need: Option<JsonNeed<'a>>,
    candidates: Vec<JsonCandidate<'a>>,
    inferred: &'a [String],
}

#[derive(Serialize)]
struct JsonNeed<'a> {
    bytes: u64,
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
            ooms: stats.num_ooms,
            driver_calls: candidate.driver_calls(),
        }
    }
}

impl Tuning {
    /// The tuning as one JSON object. `recorded` is the outcome of the job as it was, `inferred` what is
    /// not in the file.
    ///
    /// # Panics
    ///
    /// Never: the fields are numbers and strings.
    #[must_use]
    pub fn to_json(&self, recorded: &Outcome, inferred: &[String], file: &str) -> String {
        let json = Json {
            schema: SCHEMA,
            file,
            device: recorded.device,
            release: recorded.release.name(),
            events: recorded.events,
            floor: self.floor,
            limit: self.limit,
            fits: self.best().is_some(),
            recorded: &self.recorded,
            saving: self.saving(),
            need: self.need.as_ref().map(|need| JsonNeed { bytes: need.bytes, conf: &need.conf }),
            candidates: self.candidates.iter().map(JsonCandidate::of).collect(),
            inferred,
        };
        serde_json::to_string_pretty(&json).expect("numbers and strings can be written")
    }
}
