//! `POST api/open/NAME`: a file that was dropped on the page.

use super::{App, json, to_json};
use crate::error::ApiError;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};

/// Longest name of a file that is shown.
const LONGEST_NAME: usize = 300;

pub(super) async fn open(
    State(app): State<App>,
    Path((_, name)): Path<(String, String)>,
    headers: HeaderMap,
    file: Bytes,
) -> Result<Response, ApiError> {
    // What a form of another site can send without asking has another type.
    let kind = headers.get(header::CONTENT_TYPE);
    if kind.is_none_or(|it| it != "application/octet-stream") {
        let why = "a file is sent as application/octet-stream";
        return Ok((StatusCode::UNSUPPORTED_MEDIA_TYPE, why).into_response());
    }
    let name: String = name.chars().take(LONGEST_NAME).collect();
    let within = app.clone();
    let opened = app.apart(move || {
        let refused = |why: String| ApiError::Refused(format!("{name}: {why}"));
        let file = tonnage_snapshot::parse(&file).map_err(|error| refused(error.to_string()))?;
        within.recordings.dropped(&name, file).map_err(refused)
    });
    to_json(&opened.await?).map(json)
}
