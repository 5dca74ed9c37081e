//! What a route answers when it cannot answer: a status and a sentence.

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};

use crate::recordings::{MOST_DROPPED, MOST_WHAT_IFS};

#[derive(Clone, Debug)]
pub(crate) enum ApiError {
    /// There is no such thing.
    Missing(String),
    /// What was asked cannot be done: the text says what can.
    Refused(String),
    /// The server's own fault.
    Failed(String),
}

impl ApiError {
    pub(crate) fn no_recording(id: u32) -> Self {
        Self::Missing(format!(
            "there is no recording {id}: of what-ifs the last {MOST_WHAT_IFS} are kept, and of files that the page opened \
             the last {MOST_DROPPED}, or fewer where they are large"
        ))
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let (status, text) = match self {
            Self::Missing(text) => (StatusCode::NOT_FOUND, text),
            Self::Refused(text) => (StatusCode::BAD_REQUEST, text),
            Self::Failed(text) => (StatusCode::INTERNAL_SERVER_ERROR, text),
        };
        (status, text).into_response()
    }
}
