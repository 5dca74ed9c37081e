//! How little memory a job gets through with.
//!
//! The peak of reserved memory is not it: under a limit the allocator gives back what is cached before it
//! fails, so a job often gets through with less than it takes when nothing stops it.

use tonnage_engine::Policy;

use super::parallel::predict_all;
use super::{Candidate, Conditions};
use crate::job::Job;

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

/// Closes in on the smallest limit under which the job gets through, under the setting that needs least
/// without one. The limit that is returned was tried.
pub(super) fn least(job: &Job, conditions: &Conditions, candidates: &[Candidate]) -> Option<Need> {
    let (conf, peak) = frugal(job, conditions, candidates)?;
    let config = conditions.accepted(&conf)?;
    let gets_through = |limit| {
        let what_if = conditions.what_if(config.clone(), Policy::default()).with_limit(limit);
        what_if.predict(job).fits()
    };
    let (mut fails, mut fits) = (job.floor() / STEP, peak.div_ceil(STEP));
    // A limit of all that is reserved without one may be too low: the growth of an expandable segment
    // counts there as if it were a segment of its own.
    for _ in 0..MOST_RAISES {
        if gets_through(fits * STEP) {
            break;
        }
        fails = fits;
        fits += fits / 8 + 1;
    }
    while fails + 1 < fits {
        let middle = fails + (fits - fails) / 2;
        if gets_through(middle * STEP) { fits = middle } else { fails = middle }
    }
    let bytes = fits * STEP;
    gets_through(bytes).then_some(Need { bytes, conf })
}

/// The setting under which least is reserved where nothing stops the job, and how much that is.
fn frugal(job: &Job, conditions: &Conditions, candidates: &[Candidate]) -> Option<(String, u64)> {
    let best = candidates.first()?;
    if best.prediction.limit.is_none()
        || (best.prediction.fits() && best.prediction.stats.num_alloc_retries == 0)
    {
        return Some((best.conf.clone(), best.reserved_peak()));
    }
    let unlimited = Conditions { limit: None, ..conditions.clone() };
    let ours = candidates.iter().filter(|it| it.policy == Policy::default());
    let what_if = |it: &Candidate| {
        let config = unlimited.accepted(&it.conf)?;
        Some((it.conf.clone(), unlimited.what_if(config, it.policy)))
    };
    let (confs, what_ifs): (Vec<_>, Vec<_>) = ours.filter_map(what_if).unzip();
    let predictions = predict_all(job, &what_ifs, &|_| {});
    let peaks = predictions.iter().map(|prediction| prediction.stats.max_memory_reserved());
    confs.into_iter().zip(peaks).min_by_key(|&(_, peak)| peak)
}
