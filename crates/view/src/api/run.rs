//! `GET api/run`: how far a run has come.

use axum::extract::State;
use axum::response::Response;

use super::{App, json, to_json};
use crate::error::ApiError;

pub(super) async fn run(State(app): State<App>) -> Result<Response, ApiError> {
    let run = app.recordings.live();
    let run = run.ok_or_else(|| ApiError::Missing("no run goes on behind this page".to_owned()))?;
    to_json(&run.state()).map(json)
}
