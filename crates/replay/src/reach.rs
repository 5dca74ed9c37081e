//! How far what a replay of a recording shows holds for the job itself.

use serde::Serialize;

/// What of a job its recording has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(into = "&'static str")]
pub struct Reach {
    /// The job died at its last request: what it would have asked for next is not known.
    pub died: bool,
    /// The history lost its beginning: what was asked for before is not known, nor whether that was the peak.
    pub lost_beginning: bool,
}

impl Reach {
    /// Whether the recording has the whole job.
    #[must_use]
    pub fn is_whole(self) -> bool {
        self == Self::default()
    }

    /// Its name in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match (self.lost_beginning, self.died) {
            (false, false) => "whole",
            (false, true) => "up_to_the_failure",
            (true, false) => "without_the_beginning",
            (true, true) => "without_the_beginning_up_to_the_failure",
        }
    }

    /// How far it is known that a job gets through, as the end of a sentence; nothing where all of it is.
    #[must_use]
    pub fn words(self) -> &'static str {
        match (self.lost_beginning, self.died) {
            (false, false) => "",
            (false, true) => ", up to where the recording ends",
            (true, false) => ", from where the recording begins",
            (true, true) => ", from where the recording begins up to where it ends",
        }
    }

    /// Why a figure of the recording is the least that the job needs; none where it is what it needs.
    #[must_use]
    pub fn at_least(self) -> Option<&'static str> {
        match (self.lost_beginning, self.died) {
            (false, false) => None,
            (false, true) => {
                Some("the recording ends where the job died, and more may have come after that")
            }
            (true, false) => {
                Some("the recording lost its beginning, and more may have been live before it")
            }
            (true, true) => Some(
                "the recording has neither the beginning of the job nor what would have come after its failure",
            ),
        }
    }
}

impl From<Reach> for &'static str {
    fn from(reach: Reach) -> Self {
        reach.name()
    }
}
