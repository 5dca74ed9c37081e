//! `GET api/recordings/ID/report`: the `report` of the file in what `tonnage report --json`
//! prints; `report/at-once`: the same without the replay.

use axum::extract::{Path, State};
use axum::response::Response;

use super::{App, json};
use crate::error::ApiError;
use crate::recording::Recording;

pub(super) async fn report(
    State(app): State<App>,
    Path((_, id)): Path<(String, u32)>,
) -> Result<Response, ApiError> {
    let recording = app.recording(id)?;
    app.once(&recording, |it| &it.report, Recording::reported).await.map(json)
}

pub(super) async fn at_once(
    State(app): State<App>,
    Path((_, id)): Path<(String, u32)>,
) -> Result<Response, ApiError> {
    let recording = app.recording(id)?;
    app.once(&recording, |it| &it.report_at_once, Recording::reported_at_once).await.map(json)
}
