//! Fitting: the largest batch for a number of bytes, what each technique buys, and what to do when
//! memory does not suffice. Every answer is a dry run.

use crate::error::{Error, Result};
use crate::options::Options;
use crate::outcome::Outcome;
use crate::predict::predict;
use crate::recipe::Size;
use crate::technique::Technique;

/// How many sizes above the first that does not fit are tried before that is believed: an allocator
/// may serve a larger request where a smaller one left a gap.
const BEYOND: usize = 2;

/// What fits into a number of bytes.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Fit {
    /// The bytes.
    pub limit: u64,
    /// The largest batch that fits; 0 if none does.
    pub batch: usize,
    /// What a run with it takes, if the device has exactly these bytes.
    pub outcome: Option<Outcome>,
    /// The batch at which techniques are compared: near that one, and divisible into eight parts.
    pub compared_at: usize,
    /// What each technique buys.
    pub gains: Vec<Gain>,
}

/// What a technique buys.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Gain {
    /// The technique.
    pub technique: Technique,
    /// Bytes that it saves of what is reserved at the peak; below 0 if it costs some.
    pub saved: i64,
    /// Operations that each step computes once more, counted by their results.
    pub recomputed: u64,
    /// The largest batch that fits with it.
    pub batch: usize,
}

/// Finds the largest batch that fits into `limit` bytes, and what each technique buys.
///
/// # Errors
///
/// If options do not fit together.
pub fn fit(options: &Options, limit: u64) -> Result<Fit> {
    let (batch, outcome) = largest_batch(options, limit)?;
    // What a technique saves is compared where nothing is scarce.
    let compared_at = aligned(batch, options);
    let mut reference = options.clone().with(Size::Batch, compared_at)?;
    reference.limit = None;
    let without = predict(&reference)?;
    let mut gains = Vec::new();
    for technique in Technique::ALL {
        let Some(with) = technique.apply(&reference) else { continue };
        let outcome = predict(&with)?;
        let saved = without.reserved_peak.cast_signed() - outcome.reserved_peak.cast_signed();
        let recomputed = match technique.recomputes() {
            true => outcome.requests.saturating_sub(without.requests),
            false => 0,
        };
        let (batch, _) = largest_batch(&with, limit)?;
        gains.push(Gain { technique, saved, recomputed, batch });
    }
    Ok(Fit { limit, batch, outcome, compared_at, gains })
}

/// A batch near this one that splits into the parts that techniques make of it.
fn aligned(batch: usize, options: &Options) -> usize {
    let parts = 8 * options.accumulate;
    if batch < parts { parts } else { batch - batch % parts }
}

/// The largest batch with which the options fit into `limit` bytes, and what that takes.
fn largest_batch(options: &Options, limit: u64) -> Result<(usize, Option<Outcome>)> {
    let part = options.accumulate;
    let most = options.recipe().most_of(Size::Batch).unwrap_or(1) / part;
    let mut best = (0, None);
    let mut fits = |parts: usize| -> Result<bool> {
        let mut options = options.clone().with(Size::Batch, parts * part)?;
        options.limit = Some(limit);
        match predict(&options) {
            Ok(outcome) => {
                best = (parts * part, Some(outcome));
                Ok(true)
            }
            Err(Error::OutOfMemory { .. }) => Ok(false),
            Err(other) => Err(other),
        }
    };
    let (mut below, mut above) = (0, 1);
    loop {
        while above <= most && fits(above)? {
            (below, above) = (above, above * 2);
        }
        above = above.min(most + 1);
        while above - below > 1 {
            let middle = below.midpoint(above);
            if fits(middle)? { below = middle } else { above = middle }
        }
        let mut further = above + 1..=(above + BEYOND).min(most);
        let Some(larger) = further.try_fold(None, |found, parts| {
            Ok::<_, Error>(if fits(parts)? { Some(parts) } else { found })
        })?
        else {
            return Ok(best);
        };
        (below, above) = (larger, larger + 1);
    }
}

/// Options that fit where others did not.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Suggestion {
    /// The options, limit included.
    pub options: Options,
    /// What a run with them takes.
    pub outcome: Outcome,
}

/// Techniques together, where one alone is not enough: those that cost least first.
const TOGETHER: [&[Technique]; 5] = [
    &[Technique::ExpandableSegments, Technique::Accumulate(8)],
    &[Technique::ExpandableSegments, Technique::Amp],
    &[Technique::ExpandableSegments, Technique::Accumulate(8), Technique::Amp],
    &[
        Technique::ExpandableSegments,
        Technique::Accumulate(8),
        Technique::Amp,
        Technique::CheckpointSqrt,
    ],
    &[
        Technique::ExpandableSegments,
        Technique::Accumulate(8),
        Technique::CheckpointEach,
        Technique::Offload,
    ],
];

/// What to change so that options fit into their limit: a technique, several, or a smaller batch;
/// none if nothing helps. Each suggestion was run on `dry`.
///
/// # Errors
///
/// If options do not fit together.
pub fn suggest(options: &Options) -> Result<Option<Suggestion>> {
    let alone = Technique::ALL.iter().map(std::slice::from_ref);
    for techniques in alone.chain(TOGETHER) {
        // What is in force already, or does not fit, is left out.
        let with = techniques.iter().fold(options.clone(), |options, technique| {
            technique.apply(&options).unwrap_or(options)
        });
        if with == *options {
            continue;
        }
        match predict(&with) {
            Ok(outcome) => return Ok(Some(Suggestion { options: with, outcome })),
            Err(Error::OutOfMemory { .. }) => {}
            Err(other) => return Err(other),
        }
    }
    let Some(limit) = options.limit else { return Ok(None) };
    let (_, outcome) = largest_batch(options, limit)?;
    Ok(outcome.map(|outcome| Suggestion { options: outcome.options.clone(), outcome }))
}
