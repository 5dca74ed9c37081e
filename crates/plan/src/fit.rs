//! Fitting: the largest batch for a number of bytes, what each technique buys, and what to do when
//! memory does not suffice. Every answer is a dry run.

use tonnage_tensor::QueuedWork;

use crate::device_kind::DeviceKind;
use crate::error::{Error, Result};
use crate::options::Options;
use crate::outcome::Outcome;
use crate::predict::predict;
use crate::recipe::Size;
use crate::technique::Technique;

/// How many sizes above the first that does not fit are tried before that is believed: an allocator
/// may serve a larger request where a smaller one left a gap.
const BEYOND: usize = 2;

/// How many dry runs look for techniques that do best together: chosen, a few seconds for the largest recipes.
const BUDGET: usize = 300;

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
    /// Techniques that together let more fit than any one of them, if some do.
    pub together: Option<Together>,
}

/// What a technique buys.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Gain {
    /// The technique.
    pub technique: Technique,
    /// Bytes that it saves of what is reserved at the peak; below 0 if it costs some.
    pub saved: i64,
    /// What each step computes once more: kernels and their arithmetic.
    pub recomputed: QueuedWork,
    /// The same as a share of the arithmetic that a step does without it.
    pub recomputed_share: f64,
    /// The largest batch that fits with it.
    pub batch: usize,
}

/// Techniques in force at once, and what fits with them.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Together {
    /// The options with all of them, limit and largest batch included.
    pub options: Options,
    /// The techniques, in the order in which each bought most.
    pub techniques: Vec<Technique>,
    /// The largest batch that was found to fit with them.
    pub batch: usize,
    /// Dry runs that were made to find it.
    pub runs: usize,
    /// Whether something was left untried when so many were made.
    pub out_of_budget: bool,
}

/// Finds the largest batch that fits into `limit` bytes, what each technique buys, and what they buy together.
///
/// # Errors
///
/// If options do not fit together.
pub fn fit(options: &Options, limit: u64) -> Result<Fit> {
    let options = &unsaved(options);
    let (batch, outcome) = Search::new(options, limit).largest(Size::Batch, 0)?;
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
            true => outcome.work.since(without.work),
            false => QueuedWork::default(),
        };
        let recomputed_share = recomputed.operations / without.work.operations.max(1.0);
        let (batch, _) = Search::new(&with, limit).largest(Size::Batch, 0)?;
        gains.push(Gain { technique, saved, recomputed, recomputed_share, batch });
    }
    let together = together(&reference, limit, &gains)?;
    Ok(Fit { limit, batch, outcome, compared_at, gains, together })
}

/// Adds one technique after the other, each time the one with which most fits, until none helps. Accumulation is not among
/// them: with it any batch fits whose parts do.
fn together(reference: &Options, limit: u64, gains: &[Gain]) -> Result<Option<Together>> {
    let joins = |it: &Technique| !matches!(it, Technique::Accumulate(_));
    let alone = gains.iter().filter(|it| joins(&it.technique)).max_by_key(|it| it.batch);
    let Some(first) = alone.filter(|it| it.batch > 0) else {
        return from_nothing(reference, limit);
    };
    let Some(mut options) = first.technique.apply(reference) else { return Ok(None) };
    let (mut techniques, mut batch) = (vec![first.technique], first.batch);
    let (mut runs, mut out_of_budget) = (0, false);
    loop {
        let mut best = None;
        for technique in Technique::ALL.into_iter().filter(joins) {
            let Some(with) = technique.apply(&options) else { continue };
            if runs >= BUDGET {
                out_of_budget = true;
                break;
            }
            let mut search = Search::new(&with, limit);
            let (larger, _) = search.largest(Size::Batch, batch)?;
            runs += search.runs;
            if larger > batch {
                (batch, best) = (larger, Some((technique, with)));
            }
        }
        let Some((technique, with)) = best else { break };
        techniques.push(technique);
        options = with;
    }
    if techniques.len() < 2 {
        return Ok(None);
    }
    let mut options = options.with(Size::Batch, batch)?;
    options.limit = Some(limit);
    Ok(Some(Together { options, techniques, batch, runs, out_of_budget }))
}

/// Where no technique alone lets anything fit: all that save most.
fn from_nothing(reference: &Options, limit: u64) -> Result<Option<Together>> {
    let with = applied(&SMALLEST, reference);
    let mut search = Search::new(&with, limit);
    let (batch, outcome) = search.largest(Size::Batch, 0)?;
    let Some(outcome) = outcome else { return Ok(None) };
    let techniques = SMALLEST.into_iter().filter(|it| it.apply(reference).is_some()).collect();
    let runs = search.runs;
    Ok(Some(Together { options: outcome.options, techniques, batch, runs, out_of_budget: false }))
}

/// The same, without a snapshot: what is only tried leaves the one alone that a run has written.
fn unsaved(options: &Options) -> Options {
    let mut unsaved = options.clone();
    unsaved.save = None;
    unsaved
}

/// A batch near this one that splits into the parts that techniques make of it.
fn aligned(batch: usize, options: &Options) -> usize {
    let parts = 8 * options.accumulate;
    if batch < parts { parts } else { batch - batch % parts }
}

/// A search for the largest size with which options fit.
struct Search<'a> {
    options: &'a Options,
    limit: u64,
    /// Dry runs so far.
    runs: usize,
}

impl<'a> Search<'a> {
    fn new(options: &'a Options, limit: u64) -> Self {
        Self { options, limit, runs: 0 }
    }

    /// What a run of this size takes; none if it does not fit.
    fn fits(&mut self, size: Size, value: usize) -> Result<Option<Outcome>> {
        let mut options = self.options.clone().with(size, value)?;
        options.limit = Some(self.limit);
        self.runs += 1;
        match predict(&options) {
            Ok(outcome) => Ok(Some(outcome)),
            Err(Error::OutOfMemory { .. }) => Ok(None),
            Err(other) => Err(other),
        }
    }

    /// The largest batch, or another size, above `known` that fits, and what that takes; 0 if none does.
    fn largest(&mut self, size: Size, known: usize) -> Result<(usize, Option<Outcome>)> {
        let part = if size == Size::Batch { self.options.accumulate } else { 1 };
        let most = self.options.recipe().most_of(size).unwrap_or(1) / part;
        let mut best = (0, None);
        let mut fits = |parts: usize| -> Result<bool> {
            let outcome = self.fits(size, parts * part)?;
            let fits = outcome.is_some();
            if fits {
                best = (parts * part, outcome);
            }
            Ok(fits)
        };
        let known = known / part;
        let (mut below, mut above) = (known, known + 1);
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

/// Techniques for a smaller batch, where without them not even one example fits.
const SMALLEST: [Technique; 3] =
    [Technique::ExpandableSegments, Technique::CheckpointEach, Technique::Offload];

/// What to change so that options fit into their limit: a technique, several, a smaller batch, both; of
/// `mimo`, fewer subcarriers. None if nothing helps. Each suggestion was run on `dry`.
///
/// # Errors
///
/// If options do not fit together.
pub fn suggest(options: &Options) -> Result<Option<Suggestion>> {
    let options = &unsaved(options);
    let alone = Technique::ALL.iter().map(std::slice::from_ref);
    for techniques in alone.chain(TOGETHER) {
        let with = applied(techniques, options);
        if with == *options {
            continue;
        }
        match predict(&with) {
            Ok(outcome) => return Ok(Some(Suggestion { options: with, outcome })),
            Err(Error::OutOfMemory { .. }) => {}
            Err(other) => return Err(other),
        }
    }
    let limit = options.limit.unwrap_or(DeviceKind::UNLIMITED);
    let smaller = [
        (Size::Batch, options.clone()),
        (Size::Batch, applied(&SMALLEST, options)),
        (Size::Subcarriers, options.clone()),
    ];
    let has = |size| options.recipe().default_of(size).is_some();
    for (size, options) in smaller.into_iter().filter(|it| has(it.0)) {
        if let (_, Some(outcome)) = Search::new(&options, limit).largest(size, 0)? {
            return Ok(Some(Suggestion { options: outcome.options.clone(), outcome }));
        }
    }
    Ok(None)
}

/// The options with all techniques that are not in force already and fit them.
fn applied(techniques: &[Technique], options: &Options) -> Options {
    techniques
        .iter()
        .fold(options.clone(), |options, technique| technique.apply(&options).unwrap_or(options))
}
