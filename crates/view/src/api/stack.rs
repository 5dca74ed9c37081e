//! `GET api/recordings/ID/stacks/NUMBER`: who asked for an allocation, innermost call first;
//! `GET api/recordings/ID/stacks`: all of them, as columns.

use axum::extract::{Path, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use tonnage_events::StackId;

use super::{App, json, to_json};
use crate::error::ApiError;
use crate::recording::Recording;
use crate::timeline::{AnyFrame, Site};

/// The most frames that are sent. Deeper stacks are those of an endless recursion, or of a stranger's file.
const MOST_FRAMES: usize = 1_000;

pub(super) async fn stack(
    State(app): State<App>,
    Path((_, id, stack)): Path<(String, u32, u32)>,
) -> Result<Response, ApiError> {
    let recording = app.recording(id)?;
    let stacks = &recording.file.stacks;
    let known = StackId::new(stack).filter(|_| (stack as usize) < stacks.len());
    let frames = known.map(|stack| stacks.frames(stack)).ok_or_else(|| {
        ApiError::Missing(format!("recording {id} has no stack {stack}, but {}", stacks.len()))
    })?;
    let mut sent: Vec<_> = frames.iter().take(MOST_FRAMES).map(AnyFrame::of).collect();
    if let Some(more) = frames.len().checked_sub(MOST_FRAMES).filter(|&more| more > 0) {
        let function = format!("({more} more)");
        let site = Site { file: String::new(), line: 0, function };
        sent.push(AnyFrame { site, library: true });
    }
    to_json(&sent).map(json)
}

pub(super) async fn stacks(
    State(app): State<App>,
    Path((_, id)): Path<(String, u32)>,
) -> Result<Response, ApiError> {
    let recording = app.recording(id)?;
    let bytes = app.once_whole(&recording, |it| &it.stacks, Recording::stacked).await?;
    Ok(([(header::CONTENT_TYPE, "application/octet-stream")], bytes).into_response())
}
