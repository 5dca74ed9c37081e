//! `GET api/recordings/ID/tune`: every setting that was tried, best first.

use axum::extract::{Path, State};
use axum::response::Response;
use serde::Serialize;
use tonnage_replay::Until;
use tonnage_replay::tune::{Candidate, Tuning};

use super::{App, json, to_json};
use crate::error::ApiError;
use crate::recording::Recording;

#[derive(Serialize)]
struct Answer<'a> {
    candidates: Vec<Tried<'a>>,
    floor: u64,
    limit: Option<u64>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Tried<'a> {
    conf: &'a str,
    policy: &'static str,
    reserved_peak: u64,
    fits: bool,
    driver_calls: i64,
    /// What calls about pages take.
    driver_ns: u64,
    retries: i64,
    recorded: bool,
}

pub(super) async fn tune(
    State(app): State<App>,
    Path((_, id)): Path<(String, u32)>,
) -> Result<Response, ApiError> {
    let recording = app.origin(id)?;
    let understood = app.once(&recording, |it| &it.understood, Recording::understand).await?;
    let work =
        move |it: &Recording, until: &Until| to_json(&Answer::of(&it.tuned(&understood, until)));
    app.once(&recording, |it| &it.tuning, work).await.map(json)
}

impl<'a> Answer<'a> {
    fn of(tuning: &'a Tuning) -> Self {
        let now = tuning.recorded();
        let tried = |it: &'a Candidate| Tried {
            conf: &it.conf,
            policy: it.policy.name(),
            reserved_peak: it.reserved_peak(),
            fits: it.prediction.fits(),
            driver_calls: it.driver_calls(),
            driver_ns: it.page_ns(),
            retries: it.prediction.stats.num_alloc_retries,
            recorded: now.is_some_and(|now| std::ptr::eq(now, it)),
        };
        let candidates = tuning.candidates.iter().map(tried).collect();
        Self { candidates, floor: tuning.floor, limit: tuning.limit }
    }
}
