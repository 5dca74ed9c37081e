//! One file of a fleet, looked at.
//!
//! In:  a [`Found`] file and what is asked ([`LookOptions`]).
//! Out: a [`Row`], always: a file that cannot be read is a row that says why.
//!
//! The look is the report of `tonnage report`, with one thing left out: what other settings would save is tried only where a
//! request failed, whose verdict needs it. It takes most of a report's time and decides nothing else.

use std::io::Read;
use std::panic::{AssertUnwindSafe, catch_unwind};

use tonnage_analysis::report::{Report, ReportOptions};
use tonnage_engine::Release;
use tonnage_events::Bytes;
use tonnage_replay::Until;
use tonnage_snapshot::{Limits, SnapshotError, SnapshotFile};

use crate::facts::{Facts, Row, Seen};
use crate::name::NamePattern;
use crate::settings::try_all;
use crate::source::{Closed, Found, Input};
use crate::storage::{StorageError, Trouble};

/// Which version of the look this is: counts up when the same file gives another row.
pub const ANALYSIS: u32 = 2;

/// What is asked of every file.
#[derive(Clone, Debug)]
pub struct LookOptions {
    /// The limit on reserved bytes that was in force.
    pub limit: Option<u64>,
    /// Bytes of the device.
    pub total: Option<u64>,
    /// The release whose rules held; told from the files if none.
    pub release: Option<Release>,
    /// The device, if files have several; else the one with most entries.
    pub ordinal: Option<usize>,
    /// Whether each is replayed under other settings too.
    pub tune: bool,
    /// How names tell whose a file is.
    pub names: NamePattern,
    /// Memory that reading one file may take; if none, what the machine has and the file's size decide.
    pub memory: Option<u64>,
}

impl Default for LookOptions {
    fn default() -> Self {
        Self {
            limit: None,
            total: None,
            release: None,
            ordinal: None,
            tune: false,
            names: NamePattern::usual(),
            memory: None,
        }
    }
}

impl LookOptions {
    /// What is asked, as rows keep it: rows with another text are of no use to this question. Names and memory change
    /// nothing that is kept.
    #[must_use]
    pub fn analysis(&self) -> String {
        let mut text = format!("{} {ANALYSIS}", env!("CARGO_PKG_VERSION"));
        let mut say = |what: &str, value: Option<String>| {
            if let Some(value) = value {
                text += &format!(" {what}={value}");
            }
        };
        say("limit", self.limit.map(|it| it.to_string()));
        say("total", self.total.map(|it| it.to_string()));
        say("release", self.release.map(|it| it.name().to_owned()));
        say("ordinal", self.ordinal.map(|it| it.to_string()));
        if self.tune {
            text += " tune";
        }
        text
    }

    fn report(&self, until: &Until) -> ReportOptions {
        ReportOptions {
            limit: self.limit,
            total: self.total,
            release: self.release,
            ordinal: self.ordinal,
            settings_for_failures: true,
            until: until.clone(),
            ..ReportOptions::default()
        }
    }

    /// Limits of reading a file of this size.
    pub(crate) fn limits(&self, size: Option<u64>) -> Limits {
        let usual = Limits::of_file(size);
        match self.memory {
            Some(memory) if memory < usual.memory => Limits::with_memory(memory),
            _ => usual,
        }
    }
}

/// A file that was looked at.
#[derive(Clone, Debug)]
pub struct Looked {
    /// Its row.
    pub row: Row,
    /// The storage that it lies in (`s3://BUCKET`), if it could not be read for a reason that is the same for all of that.
    pub gone: Option<String>,
}

/// Looks at one file; none if the work is to end before that is done.
#[must_use]
pub fn look(file: &Found, options: &LookOptions, until: &Until) -> Option<Row> {
    Some(look_and_tell(file, options, until)?.row)
}

/// The same, and whether other files of its storage cannot be read either.
#[must_use]
pub fn look_and_tell(file: &Found, options: &LookOptions, until: &Until) -> Option<Looked> {
    // What is wrong with one file is no reason to leave the others.
    let seen = catch_unwind(AssertUnwindSafe(|| see(file, options, until)));
    let mistake = || "looking at it failed: this is a mistake in tonnage".to_owned().into();
    let (read, seen) = seen.unwrap_or_else(|_| (None, Err(mistake())));
    let mut gone = None;
    let seen = match seen {
        Ok(facts) => Seen::Facts(Box::new(facts)),
        Err(Unread { why, trouble }) => {
            gone = file.storage().filter(|_| trouble == Some(Trouble::Storage)).map(str::to_owned);
            Seen::Unreadable(why)
        }
    };
    let place = options.names.place(&file.address);
    let mut row = Row::new(file, &options.analysis(), place, seen);
    if let Some((version, size)) = read {
        (row.version, row.size) = (version, Some(size));
    }
    // A report that was cut short is not the report.
    (!until.is_over()).then_some(Looked { row, gone })
}

/// The version and size of an object as it was read: it may have changed since it was found.
type ReadAs = Option<(String, u64)>;

/// A file that could not be read.
pub(crate) struct Unread {
    pub(crate) why: String,
    /// Of its storage, if it is that.
    trouble: Option<Trouble>,
}

impl From<String> for Unread {
    fn from(why: String) -> Self {
        Self { why, trouble: None }
    }
}

impl From<StorageError> for Unread {
    fn from(error: StorageError) -> Self {
        Self { why: error.to_string(), trouble: Some(error.trouble) }
    }
}

impl From<Closed> for Unread {
    fn from(closed: Closed) -> Self {
        match closed {
            Closed::Object(error) => error.into(),
            Closed::File(_) => closed.to_string().into(),
        }
    }
}

fn see(file: &Found, options: &LookOptions, until: &Until) -> (ReadAs, Result<Facts, Unread>) {
    // A folder is here because it could not be listed.
    if file.in_storage().is_none() && file.path.is_dir() {
        let why = std::fs::read_dir(&file.path).err();
        let why = why.map_or(String::new(), |error| format!(": {error}"));
        return (None, Err(format!("this folder could not be looked into{why}").into()));
    }
    let (version, snapshot) = read_whole(file, options, until);
    let facts = snapshot.and_then(|snapshot| {
        let report = Report::of(&snapshot, &options.report(until));
        let mut facts = Facts::of(&report.map_err(|error| error.to_string())?);
        if options.tune {
            facts.tried = try_all(&snapshot, &facts, options, until);
        }
        Ok(facts)
    });
    (version, facts)
}

/// How often a file is begun again that changed while it was read, or whose connection broke for good.
const BEGUN: usize = 3;

/// Reads a file, wherever it is, and tells which version that was.
pub(crate) fn read_whole(
    file: &Found,
    options: &LookOptions,
    until: &Until,
) -> (ReadAs, Result<SnapshotFile, Unread>) {
    let mut begun = 0;
    loop {
        begun += 1;
        let mut input = match file.input(until) {
            Ok(input) => input,
            Err(closed) => return (None, Err(closed.into())),
        };
        let object = |input: &Input| match input {
            Input::Object(object) => Some((object.version(), object.failed().cloned())),
            Input::File(_) => None,
        };
        let size = object(&input).map(|it| it.0.1).or(file.size);
        let snapshot = read(&mut input, &options.limits(size)).map_err(Unread::from);
        let Some((version, failed)) = object(&input) else { return (None, snapshot) };
        match failed {
            Some(error) if error.trouble == Trouble::Interrupted && begun < BEGUN => {}
            // What the reader makes of it says less.
            Some(error) => return (Some(version), Err(error.into())),
            None => return (Some(version), snapshot),
        }
    }
}

/// Reads a snapshot, and says how to allow more where it takes more than it may.
fn read(input: &mut dyn Read, limits: &Limits) -> Result<SnapshotFile, String> {
    tonnage_snapshot::read(input, limits).map_err(|error| match error {
        SnapshotError::Limit { limit: "memory" | "pickle_bytes", .. } => format!(
            "reading it takes more than the {} of memory that one file may take here: allow more with --max-memory, or \
             fewer at once with --jobs (which do not reach Ray's workers: look at it without)",
            Bytes(limits.memory)
        ),
        other => other.to_string(),
    })
}
