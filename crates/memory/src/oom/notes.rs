//! What a failed request's message says beyond the moment: the verdict of its history, and where the
//! snapshot is.

use std::fmt;
use std::path::PathBuf;

use tonnage_engine::OomNote;
use tonnage_events::plain;

/// The verdict that `tonnage report` reaches on the snapshot of the moment, from the history up to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnosis {
    /// The cause, by the name that the report's JSON has for it.
    pub cause: &'static str,
    /// Its bytes.
    pub bytes: u64,
    /// The line to blame, as `file:line`; none unless stacks are recorded.
    pub line: Option<String>,
    /// What it means: one sentence.
    pub text: String,
    /// The change that helps most, if there is one, and what it saves.
    pub advice: Option<String>,
}

/// Two lines at most.
impl fmt::Display for Diagnosis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Verdict: {}: {}", self.cause, plain(&self.text))?;
        match &self.advice {
            Some(advice) => write!(f, "\n  what helps most: {}", plain(advice)),
            None => Ok(()),
        }
    }
}

impl OomNote for Diagnosis {
    fn is_verdict(&self) -> bool {
        true
    }
}

/// That the history was not looked at, since failures before have taken all the time that there is for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotLookedAt;

/// One line.
impl fmt::Display for NotLookedAt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "Verdict: unknown: failures before have taken the time that there is to look into the history; other \
             settings were not tried.",
        )
    }
}

impl OomNote for NotLookedAt {
    fn is_verdict(&self) -> bool {
        true
    }
}

/// The file that a snapshot of the moment was written to, or why there is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotOnOom {
    /// The file, or why it could not be written.
    pub saved: Result<PathBuf, String>,
    /// What `tonnage report` has to be told besides: bytes of the device, which the file does not say.
    pub total: Option<u64>,
}

/// One line.
impl fmt::Display for SnapshotOnOom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.saved {
            Ok(path) => {
                let path = path.display().to_string();
                let total = self.total.map_or_else(String::new, |it| format!(" --total {it}"));
                write!(
                    f,
                    "A snapshot of this moment is in {0}: `tonnage report {0}{total}` says more.",
                    plain(&path)
                )
            }
            Err(why) => {
                write!(f, "A snapshot of this moment could not be written: {}", plain(why))
            }
        }
    }
}

impl OomNote for SnapshotOnOom {}
