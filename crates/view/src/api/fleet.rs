//! `GET api/fleet`: all ranks of a fleet, as columns; `POST api/fleet/open/NUMBER`: the file of one, as a recording.

use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use std::sync::Arc;
use tonnage_replay::Until;

use super::{App, Asker, in_turn, json, to_json};
use crate::error::ApiError;
use crate::fleet::Fleet;

impl App {
    fn fleet(&self) -> Result<Arc<Fleet>, ApiError> {
        let none =
            || ApiError::Missing("no fleet is shown here: `tonnage fleet view` does".to_owned());
        self.recordings.fleet().ok_or_else(none)
    }
}

pub(super) async fn fleet(State(app): State<App>) -> Result<Response, ApiError> {
    let fleet = app.fleet()?;
    let bytes = app.apart(move || fleet.encoded()).await?;
    Ok(([(header::CONTENT_TYPE, "application/octet-stream")], bytes).into_response())
}

pub(super) async fn open(
    State(app): State<App>,
    Path((_, number)): Path<(String, usize)>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    // What a form of another site can send without asking has another type.
    if headers.get(header::CONTENT_TYPE).is_none_or(|it| it != "application/json") {
        let why = "a rank is asked for as application/json";
        return Ok((StatusCode::UNSUPPORTED_MEDIA_TYPE, why).into_response());
    }
    let fleet = app.fleet()?;
    let (until, stop) = Until::told();
    let _asker = Asker(stop);
    let recordings = app.recordings.clone();
    // One after the other, to the end of each reading, also of one that nobody waits for: whoever asks for the same file finds
    // it open, and one reader has the memory.
    let opened = in_turn(&app.opening, move || fleet.open(number, &recordings, &until)).await?;
    to_json(&opened).map(json)
}
