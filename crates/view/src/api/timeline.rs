//! `GET api/recordings/ID/timeline`: a recording as columns.

use axum::extract::{Path, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};

use super::App;
use crate::error::ApiError;
use crate::recording::Recording;

pub(super) async fn timeline(
    State(app): State<App>,
    Path((_, id)): Path<(String, u32)>,
) -> Result<Response, ApiError> {
    let recording = app.recording(id)?;
    let bytes = app.once_whole(&recording, |it| &it.timeline, Recording::encoded).await?;
    Ok(([(header::CONTENT_TYPE, "application/octet-stream")], bytes).into_response())
}
