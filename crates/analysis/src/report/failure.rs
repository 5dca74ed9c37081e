//! What replay says of a failed request: whether a setting serves it.
//!
//! In:  a device, its job, the limit that the request ran into.
//! Out: a [`FailureAnswer`]. `report`, `tune` and `view` ask here, so that they agree.
//!
//! Where the limit is concluded, it is known from below and from above. A setting that serves the request within the least
//! serves it. Where none does, the most is asked too: only if none serves it there either, none does.

use serde::Serialize;
use tonnage_engine::Release;
use tonnage_events::{Action, Bytes};
use tonnage_replay::job::Job;
use tonnage_replay::tune::{Conditions, Effort, Lead, Tuning, try_settings};
use tonnage_replay::{Outcome, Reach};

use super::limit::LimitInForce;
use crate::device_view::DeviceView;
use crate::levels::Levels;
use crate::lifetimes::{Lifetimes, Moment};
use crate::total_bytes::TotalBytes;

/// What replay says of a failed request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// A setting serves it.
    Served,
    /// So do the recorded settings: the limit is not the one that it ran into.
    ServedAsRecorded,
    /// It and what was live have no room within the limit: nothing but asking for less helps.
    TooMuch,
    /// None of the settings that were tried serves it.
    NoneServes,
    /// None does within the least limit that explains the recording, one does within the most.
    DependsOnLimit,
    /// No replay was made, or there was no time to try enough.
    NotTried,
}

/// A failed request, and what replay says of it.
#[derive(Clone, Debug, Serialize)]
pub struct FailureAnswer {
    /// The entry of the request.
    pub event: usize,
    /// Its bytes, rounded.
    pub bytes: u64,
    /// How many requests failed; this is the last.
    pub failures: usize,
    /// Live requested bytes then.
    pub live: u64,
    /// The limit that it ran into.
    pub limit: LimitInForce,
    /// What replay says.
    pub answer: Answer,
    /// The setting that serves it.
    pub conf: Option<String>,
    /// The release from which on that setting exists, where the recording may be of an older one.
    pub needs_release: Option<String>,
    /// How many settings were tried.
    pub tried: usize,
    /// How many there was no time for.
    pub untried: usize,
    /// How far it is known that the job gets through.
    pub known: Reach,
}

/// The last failed request of a device, before anything is replayed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LastFailure {
    event: usize,
    bytes: u64,
    failures: usize,
    live: u64,
    pub(crate) limit: LimitInForce,
}

impl LastFailure {
    pub(crate) fn of(
        device: &DeviceView<'_>,
        lifetimes: &Lifetimes,
        levels: &Levels,
        given: Option<u64>,
    ) -> Option<Self> {
        let event = device.entries.iter().rposition(|entry| entry.action == Action::Oom)?;
        let live = lifetimes.iter().filter(|it| it.is_live_after(Moment::Event(event)));
        Some(Self {
            event,
            bytes: device.entries[event].size,
            failures: device.entries.iter().filter(|it| it.action == Action::Oom).count(),
            live: live.map(|it| it.requested).total_bytes(),
            limit: LimitInForce::of(device, levels, given)?,
        })
    }

    /// Whether no allocator can serve it: what is live and the request are more than the limit.
    fn is_too_much(&self) -> bool {
        self.live.saturating_add(self.bytes) > self.limit.at_most
    }

    /// What is known without a replay.
    pub(crate) fn untried(&self) -> FailureAnswer {
        let Self { event, bytes, failures, live, limit } = *self;
        FailureAnswer {
            event,
            bytes,
            failures,
            live,
            limit,
            answer: if self.is_too_much() { Answer::TooMuch } else { Answer::NotTried },
            conf: None,
            needs_release: None,
            tried: 0,
            untried: 0,
            known: Reach::default(),
        }
    }

    /// What the settings that were tried within the least limit say; `at_most` tries them within the most.
    fn answer(
        &self,
        tuning: &Tuning,
        releases: &[Release],
        at_most: impl FnOnce() -> Tuning,
    ) -> FailureAnswer {
        let known = tuning.reach;
        let (tried, untried) = (tuning.settings().count(), tuning.untried);
        let base = FailureAnswer { tried, untried, known, ..self.untried() };
        if base.answer == Answer::TooMuch {
            return base;
        }
        if serves_as_recorded(tuning) {
            return FailureAnswer { answer: Answer::ServedAsRecorded, ..base };
        }
        let with = |answer: Answer, lead: Lead<'_>| FailureAnswer {
            answer,
            conf: Some(lead.candidate.conf.clone()),
            needs_release: lead.needs.map(|release| release.name().to_owned()),
            ..base.clone()
        };
        if let Some(lead) = serving(tuning, releases) {
            return with(Answer::Served, lead);
        }
        if tuning.untried > 0 {
            return FailureAnswer { answer: Answer::NotTried, ..base };
        }
        if self.limit.at_most > self.limit.bytes {
            let wider = at_most();
            if let Some(lead) = serving(&wider, releases) {
                return with(Answer::DependsOnLimit, lead);
            }
            if wider.untried > 0 {
                return FailureAnswer { answer: Answer::NotTried, ..base };
            }
        }
        FailureAnswer { answer: Answer::NoneServes, ..base }
    }
}

/// The settings to name first, if the failed request is served under them.
fn serving<'a>(tuning: &'a Tuning, releases: &[Release]) -> Option<Lead<'a>> {
    tuning.lead(releases).filter(|lead| serves(tuning, lead.candidate))
}

/// A request at which the job died stops it; one that it survived counts as a failure.
fn serves(tuning: &Tuning, it: &tonnage_replay::tune::Candidate) -> bool {
    it.prediction.fits() && (tuning.reach.died || it.prediction.stats.failed_requests() == 0)
}

fn serves_as_recorded(tuning: &Tuning) -> bool {
    tuning.recorded().is_some_and(|now| serves(tuning, now))
}

/// The settings of a job that were tried under the limit that it ran into, and what they say of its last failed request.
#[derive(Clone, Debug)]
pub struct Tuned {
    /// The settings.
    pub tuning: Tuning,
    /// The limit that they were tried under; none without one.
    pub limit: Option<LimitInForce>,
    /// What they say of the request that failed last; none if none did.
    pub failure: Option<FailureAnswer>,
}

/// What a file does not say, and is asked about.
#[derive(Clone, Copy, Debug, Default)]
pub struct Asked {
    /// The limit on reserved bytes; concluded from a failed request if none.
    pub limit: Option<u64>,
    /// Bytes of the device, if known.
    pub total: Option<u64>,
}

impl Tuned {
    /// Tries settings with `try_them` (`tune`, or less), under the limit that the job ran into.
    #[must_use]
    pub fn of(
        device: &DeviceView<'_>,
        recorded: &Outcome,
        job: &Job,
        asked: Asked,
        try_them: impl FnOnce(&Job, &Conditions) -> Tuning,
    ) -> Self {
        let lifetimes = Lifetimes::of(device);
        let levels = Levels::of(device, &lifetimes);
        let last = LastFailure::of(device, &lifetimes, &levels, asked.limit);
        Self::after(last.as_ref(), recorded, job, asked, Effort::default(), try_them)
    }

    pub(crate) fn after(
        last: Option<&LastFailure>,
        recorded: &Outcome,
        job: &Job,
        asked: Asked,
        effort: Effort<'_>,
        try_them: impl FnOnce(&Job, &Conditions) -> Tuning,
    ) -> Self {
        let conditions = Conditions {
            release: recorded.release,
            recorded: recorded.conf.clone(),
            limit: asked.limit.or(last.map(|it| it.limit.bytes)),
            total: asked.total,
        };
        let tuning = try_them(job, &conditions);
        let failure = last.map(|last| {
            last.answer(&tuning, &recorded.candidates, || {
                let limit = Some(last.limit.at_most);
                try_settings(job, &Conditions { limit, ..conditions.clone() }, effort, &|_, _| {})
            })
        });
        let given = || {
            let source = super::limit::LimitSource::Given;
            asked.limit.map(|bytes| LimitInForce { bytes, at_most: bytes, source })
        };
        Self { tuning, limit: last.map(|it| it.limit).or_else(given), failure }
    }
}

impl Tuned {
    /// The tuning as one JSON object, with the limit that was concluded and what it says of the failed request.
    /// `recorded` is the outcome of the job as it was, `inferred` what is not in the file.
    ///
    /// # Panics
    ///
    /// Never: the fields are numbers and strings.
    #[must_use]
    pub fn to_json(&self, recorded: &Outcome, inferred: &[String], file: &str) -> String {
        #[derive(Serialize)]
        struct Json<'a, T> {
            #[serde(flatten)]
            tuning: T,
            limit_in_force: &'a Option<LimitInForce>,
            failure: &'a Option<FailureAnswer>,
            lead: Option<JsonLead<'a>>,
        }
        #[derive(Serialize)]
        struct JsonLead<'a> {
            conf: &'a str,
            needs_release: Option<&'static str>,
        }
        let lead = self.tuning.lead(&recorded.candidates).map(|lead| JsonLead {
            conf: &lead.candidate.conf,
            needs_release: lead.needs.map(Release::name),
        });
        let tuning = self.tuning.fields(recorded, inferred, file);
        let json = Json { tuning, limit_in_force: &self.limit, failure: &self.failure, lead };
        serde_json::to_string_pretty(&json).expect("numbers and strings can be written")
    }
}

impl FailureAnswer {
    /// The answer as a sentence or two.
    #[must_use]
    pub fn sentence(&self) -> String {
        let (asked, live, limit) = (Bytes(self.bytes), Bytes(self.live), self.limit.words());
        let conf = self.conf.as_deref().map_or("the defaults".to_owned(), |conf| match conf {
            "" => "PyTorch's defaults (no PYTORCH_CUDA_ALLOC_CONF)".to_owned(),
            conf => format!("PYTORCH_CUDA_ALLOC_CONF={conf}"),
        });
        let is_setting = self.conf.as_deref().is_some_and(|conf| !conf.is_empty());
        let (serves, does) = if is_setting { ("serves", "does") } else { ("serve", "do") };
        let failed = if self.failures > 1 { "failed last" } else { "failed" };
        let needs = self.needs_release.as_ref();
        let needs = needs.map_or(String::new(), |release| format!(" (needs PyTorch {release})"));
        match self.answer {
            Answer::Served => format!(
                "{conf}{needs} {serves} the {asked} that {failed} within {limit}: by replay{}.",
                self.known.words()
            ),
            Answer::ServedAsRecorded => format!(
                "Within {limit} the {asked} that {failed} are served under the recorded settings too: by replay{}.",
                self.known.words()
            ),
            Answer::TooMuch => format!(
                "{live} were live when {asked} more were asked for: together they are more than {limit}, so no \
                 setting serves that."
            ),
            Answer::NoneServes => format!(
                "None of {} settings tried serves the {asked} that {failed} within {limit}: by replay.",
                self.tried
            ),
            Answer::DependsOnLimit => format!(
                "None of {} settings tried serves the {asked} that {failed} within {limit}; {conf}{needs} {does} within {}, \
                 the most that it leaves open: --limit SIZE tells which.",
                self.tried,
                Bytes(self.limit.at_most)
            ),
            Answer::NotTried if self.tried == 0 => format!(
                "{asked} failed while {live} were live, which together have room within {limit}: whether a setting \
                 serves them was not tried."
            ),
            Answer::NotTried => format!(
                "{asked} failed while {live} were live, which together have room within {limit}: {} settings were tried \
                 and do not serve them, others were not tried.",
                self.tried
            ),
        }
    }
}
