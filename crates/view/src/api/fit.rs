//! `POST api/fit`: the largest batch for a GPU, as asked and with each technique. What `tonnage predict --fit` says.

use axum::Json;
use axum::extract::State;
use axum::response::Response;
use serde::Serialize;

use super::predict::{Asked, refused};
use super::{App, json, to_json};
use crate::error::ApiError;

#[derive(Serialize)]
struct Answer {
    limit: u64,
    /// 0 if none fits.
    batch: usize,
    techniques: Vec<With>,
}

#[derive(Serialize)]
struct With {
    flags: String,
    batch: usize,
}

pub(super) async fn fit(
    State(app): State<App>,
    Json(asked): Json<Asked>,
) -> Result<Response, ApiError> {
    let (options, limit) = (asked.options()?, asked.limit()?);
    let found = app.apart(move || tonnage_plan::fit(&options, limit).map_err(refused)).await?;
    let with = |it: &tonnage_plan::Gain| With { flags: it.technique.flags(), batch: it.batch };
    let mut techniques: Vec<_> = found.gains.iter().map(with).collect();
    techniques.extend(found.together.iter().map(|it| {
        let flags: Vec<_> = it.techniques.iter().map(|technique| technique.flags()).collect();
        With { flags: flags.join(" "), batch: it.batch }
    }));
    to_json(&Answer { limit, batch: found.batch, techniques }).map(json)
}
