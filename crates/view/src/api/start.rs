//! `GET api/start`: what is open.

use axum::extract::State;
use axum::response::Response;
use serde::Serialize;

use super::{App, json, to_json};
use crate::error::ApiError;
use crate::recording::Info;
use crate::recordings::Refused;

#[derive(Serialize)]
struct Start {
    version: &'static str,
    recordings: Vec<Info>,
    refused: Vec<Refused>,
    run: bool,
    fleet: bool,
}

pub(super) async fn start(State(app): State<App>) -> Result<Response, ApiError> {
    let start = Start {
        version: env!("CARGO_PKG_VERSION"),
        recordings: app.recordings.infos(),
        refused: app.recordings.refused(),
        run: app.recordings.live().is_some(),
        fleet: app.recordings.fleet().is_some(),
    };
    to_json(&start).map(json)
}
