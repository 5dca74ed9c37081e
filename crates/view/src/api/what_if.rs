//! `POST api/recordings/ID/what-if`: the same requests under other settings, as a recording of its own.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use axum::response::Response;
use serde::{Deserialize, Serialize};
use tonnage_engine::{Config, Policy};
use tonnage_events::Bytes;
use tonnage_replay::what_if::WhatIf;

use super::{App, json, to_json};
use crate::error::ApiError;
use crate::recording::{Info, Kind, Made, Question, Recording, Understood};

#[derive(Clone, Deserialize)]
pub(super) struct Asked {
    conf: String,
    policy: String,
    limit: Option<u64>,
}

#[derive(Serialize)]
struct Answer<'a> {
    recording: &'a Info,
    #[serde(flatten)]
    made: &'a Made,
}

pub(super) async fn what_if(
    State(app): State<App>,
    Path((_, id)): Path<(String, u32)>,
    Json(asked): Json<Asked>,
) -> Result<Response, ApiError> {
    let recording = app.origin(id)?;
    let understood = app.once(&recording, |it| &it.understood, Recording::understand).await?;
    let what_if = asked.what_if(&recording, &understood)?;
    let question = asked.question(&recording.info, &what_if);
    let found = match app.recordings.what_if(&question) {
        Some(known) => known,
        None => {
            let (within, name) = (app.clone(), asked.name());
            let answer =
                move || Ok(within.add_what_if(&recording, &understood, &what_if, question, name));
            app.apart(answer).await?
        }
    };
    let made = found.made.as_ref().ok_or_else(|| ApiError::no_recording(found.info.id))?;
    to_json(&Answer { recording: &found.info, made }).map(json)
}

impl App {
    /// The recording that requests come from: a what-if asks for the same as what it was made from.
    pub(super) fn origin(&self, id: u32) -> Result<Arc<Recording>, ApiError> {
        let recording = self.recording(id)?;
        recording.info.of.map_or(Ok(recording), |of| self.recording(of))
    }

    fn add_what_if(
        &self,
        recording: &Recording,
        understood: &Understood,
        what_if: &WhatIf,
        question: Question,
        name: String,
    ) -> Arc<Recording> {
        let Info { id, device, row, .. } = recording.info;
        let (prediction, file) = what_if.record(&understood.job, &recording.file, device);
        let conf = file.settings.as_ref().map_or_else(String::new, |it| it.conf.clone());
        let (policy, limit) = (what_if.policy.name(), question.limit);
        let made = Made {
            reserved_peak: prediction.stats.max_memory_reserved(),
            recorded_peak: understood.reserved_peak,
            oom: prediction
                .oom
                .map(|oom| crate::recording::FirstOom { entry: oom.event, bytes: oom.bytes }),
            page_calls: prediction.page_calls.count(),
            page_ns: prediction.page_calls.nanoseconds(),
            question,
        };
        let kind = Kind::WhatIf;
        let of = Some(id);
        let info = Info { name, kind, device, conf, of, policy, limit, row, ..Info::default() };
        self.recordings.add(info, file.into(), Some(made))
    }
}

impl Asked {
    /// Refuses what a prediction cannot follow.
    fn what_if(&self, recording: &Recording, understood: &Understood) -> Result<WhatIf, ApiError> {
        let config = Config::parse(&self.conf, understood.outcome.release)
            .map_err(|error| ApiError::Refused(error.to_string()))?;
        let policy: Policy = match &*self.policy {
            "" => Policy::default(),
            name => name.parse().map_err(ApiError::Refused)?,
        };
        let total = recording.options.total;
        let limit = self.limit.or(recording.options.limit);
        if limit == Some(0) {
            return Err(ApiError::Refused(
                "nothing fits into no memory: raise the limit".to_owned(),
            ));
        }
        let what_if = WhatIf { policy, limit, total, ..WhatIf::new(config) };
        what_if.refusal().map_or(Ok(what_if), |reason| Err(ApiError::Refused(reason)))
    }

    fn question(&self, of: &Info, what_if: &WhatIf) -> Question {
        Question {
            of: of.id,
            version: of.version,
            conf: self.conf.trim().to_owned(),
            policy: what_if.policy,
            limit: self.limit,
        }
    }

    /// What was asked, in words.
    fn name(&self) -> String {
        let conf = match self.conf.trim() {
            "" => "PyTorch's defaults",
            conf => conf,
        };
        let policy = match &*self.policy {
            "" | "pytorch" => String::new(),
            policy => format!(", policy {policy}"),
        };
        let limit = self.limit.map_or_else(String::new, |it| format!(", limit {}", in_words(it)));
        format!("what if: {conf}{policy}{limit}")
    }
}

/// A limit as people write it; in bytes, where the rounded size would name others too.
fn in_words(limit: u64) -> String {
    let rounded = Bytes(limit).to_string();
    let exact = rounded.parse() == Ok(Bytes(limit)) || rounded == format!("{limit} bytes");
    if exact { rounded } else { format!("{limit} bytes") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_named_so_that_no_other_has_the_name() {
        for (limit, name) in [
            (512, "512 bytes"),
            (1536, "1.50 KiB"),
            (218_103_808, "208.00 MiB"),
            (218_103_807, "218103807 bytes"),
            (24 << 30, "24.00 GiB"),
            ((24 << 30) + 1, "25769803777 bytes"),
            (u64::MAX, "18446744073709551615 bytes"),
        ] {
            assert_eq!(in_words(limit), name);
        }
    }
}
