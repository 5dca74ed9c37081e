//! How little memory a job gets through with.
//!
//! The peak of reserved memory is not it: under a limit the allocator gives back what is cached before it
//! fails, so a job often gets through with less than it takes when nothing stops it.

use super::{Candidate, Conditions};
use crate::job::Job;
use crate::until::Until;

/// Limits are told apart by this much: segments are whole multiples of it.
const STEP: u64 = 2 << 20;

/// How often a limit that is too low is raised by an eighth.
const MOST_RAISES: usize = 8;

/// The least memory in which a job was found to get through.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Need {
    /// Bytes: the limit.
    pub bytes: u64,
    /// Under these settings.
    pub conf: String,
}

/// Closes in on the smallest limit under which the job gets through, under the setting that reserves least
/// where nothing stops it. The limit that is returned was tried; none if it is to end before one is found.
pub(super) fn least(
    job: &Job,
    conditions: &Conditions,
    frugal: &Candidate,
    until: &Until,
) -> Option<Need> {
    let (conf, peak) = (frugal.conf.clone(), frugal.reserved_peak());
    let config = conditions.accepted(&conf)?;
    let gets_through = |limit| {
        let what_if = conditions.what_if(config.clone(), frugal.policy).with_limit(limit);
        what_if.predict_until(job, until).map(|it| it.fits())
    };
    let (mut fails, mut fits) = (job.floor() / STEP, peak.div_ceil(STEP));
    // A limit of all that is reserved without one may be too low: the growth of an expandable segment
    // counts there as if it were a segment of its own.
    for _ in 0..MOST_RAISES {
        if gets_through(fits * STEP)? {
            break;
        }
        fails = fits;
        fits += fits / 8 + 1;
    }
    while fails + 1 < fits {
        let middle = fails + (fits - fails) / 2;
        if gets_through(middle * STEP)? { fits = middle } else { fails = middle }
    }
    let bytes = fits * STEP;
    gets_through(bytes)?.then_some(Need { bytes, conf })
}
