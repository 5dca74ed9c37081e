//! What a replay found.

use serde::Serialize;
use serde::ser::SerializeMap;
use tonnage_engine::{Release, Stats};

/// A replay's result: exact, or the first difference.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The device's ordinal.
    pub device: u32,
    /// The release of PyTorch whose rules were followed.
    pub release: Release,
    /// The releases that may have made the recording, oldest first: `release` alone where that is known.
    pub candidates: Vec<Release>,
    /// Entries or commands in the recording.
    pub events: usize,
    /// Whether the recording goes back to an empty allocator.
    pub history: HistoryKind,
    /// The settings that were in force, as a string.
    pub conf: String,
    /// The limit on reserved bytes, if one was in force.
    pub limit: Option<u64>,
    /// Where the recording and the engine first part; none if they agree to the end.
    pub difference: Option<Difference>,
    /// What the recording does not say and was concluded instead.
    pub inferred: Vec<String>,
    /// The figures at the end, or at the difference. Of a partial history: current figures are those of
    /// the allocator, peaks are the highest since its first entry, and sums and counts are of what
    /// its entries show.
    pub stats: Stats,
}

/// Whether a history goes back to an empty allocator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum HistoryKind {
    /// It does.
    Whole,
    /// It begins later: there was memory before the first entry.
    Partial,
}

impl Outcome {
    /// Whether everything agrees.
    #[must_use]
    pub fn exact(&self) -> bool {
        self.difference.is_none()
    }
}

/// A point where the recording and the engine part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// The entry or command, from 0; the number of entries if only the final state differs.
    pub event: usize,
    /// What the recording has there.
    pub expected: String,
    /// What the engine did.
    pub got: String,
}

/// The figures as one JSON object under PyTorch's names.
pub(crate) fn serialize_stats<S: serde::Serializer>(
    stats: &Stats,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let figures = stats.memory_stats();
    let mut map = serializer.serialize_map(Some(figures.len()))?;
    for (name, value) in figures {
        map.serialize_entry(&name, &value)?;
    }
    map.end()
}

/// The form of the JSON; counts up when a field changes its meaning or goes.
pub(crate) const SCHEMA: u32 = 1;

/// An outcome with the name of its file, as one JSON object.
#[derive(Serialize)]
struct Report<'a> {
    schema: u32,
    kind: &'static str,
    file: &'a str,
    device: u32,
    release: &'static str,
    release_candidates: Vec<&'static str>,
    events: usize,
    history: HistoryKind,
    conf: &'a str,
    limit: Option<u64>,
    exact: bool,
    difference: Option<&'a Difference>,
    inferred: &'a [String],
    #[serde(serialize_with = "serialize_stats")]
    stats: &'a Stats,
}

impl Outcome {
    /// The outcome as one JSON object.
    ///
    /// # Panics
    ///
    /// Never: the fields are numbers and strings.
    #[must_use]
    pub fn to_json(&self, file: &str) -> String {
        let report = Report {
            schema: SCHEMA,
            kind: "replay",
            file,
            device: self.device,
            release: self.release.name(),
            release_candidates: self.candidates.iter().map(|it| it.name()).collect(),
            events: self.events,
            history: self.history,
            conf: &self.conf,
            limit: self.limit,
            exact: self.exact(),
            difference: self.difference.as_ref(),
            inferred: &self.inferred,
            stats: &self.stats,
        };
        serde_json::to_string_pretty(&report).expect("numbers and strings can be written")
    }
}
