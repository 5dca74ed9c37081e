//! What limits the job, in one paragraph.
//!
//! In:  the waste, the growth, the peak, the failures.
//! Out: the causes, largest first, and the [`Verdict`].
//!
//! # Note \[The rule\]
//!
//! Every cause has bytes. `need` is what was live at the peak; it is never avoidable. Of the others,
//!
//! 1. a leak of at least 3 % of what is reserved at the peak is the verdict, unless another cause is twice as
//!    large and iterations add to it: a leak grows with every iteration, what settles does not;
//! 2. else the largest of at least 15 % of what is reserved; memory that others hold counts only where
//!    the device itself was full, longer inputs only if most is live in the longest iteration. Waste must have been as much when reserved memory first came within 2 % of
//!    its peak: a last small segment may be obtained when most is free, and is not why so much is reserved. And it
//!    must stay of no use: what is live at once later takes most of what was free for a moment. Where it takes
//!    more than half, what is left must be 25 % of what is reserved. Every caching allocator has some
//!    fragmentation, and a first iteration that tries out algorithms leaves more: where the iterations after it reserve
//!    no more than they have live, half of what is reserved must be left; and where there are no iterations, a quarter of
//!    it must never be live at once;
//! 3. else what kept the request from being served that ended the job, if all that is live and the request would have
//!    fitted together: the largest waste of that moment, from 15 % on;
//! 4. else `need`.
//!
//! Where a request failed, replay is asked before anything is called `need`, `longer_inputs` or `growing_tensor`: if a setting serves it, the
//! verdict is the largest waste of that moment; if that was not tried, it is `unknown`, unless the request and what was
//! live have no room within the limit together.

use serde::Serialize;
use tonnage_engine::{WASTE_SHARE, WasteKind};
use tonnage_events::{Bytes, counted};

use super::failure::{Answer, FailureAnswer};
use super::growth::{Growth, GrowthKind};
use super::oom::OomReport;
use super::peak::{PeakReport, ReservedPeak};
use super::waste::WasteReport;

/// Shares of reserved memory from which on a cause is the verdict. Chosen: below, allocators that work
/// well waste as much.
const LEAK_SHARE: f64 = 0.03;
const LEFT_SHARE: f64 = 0.25;
/// The same for fragmentation that iterations do not add to, and from which share on they do.
const SETTLED_SHARE: f64 = 0.5;
const ADDED_SHARE: f64 = 0.1;

/// What happens around the peak of reserved memory: it tells whether waste is why so much is reserved.
#[derive(Clone, Copy, Debug)]
pub(super) struct PeakContext<'a> {
    /// The waste when reserved memory had nearly reached its peak.
    pub(super) near: &'a WasteReport,
    /// Reserved bytes at the peak.
    pub(super) reserved: u64,
    /// The most live requested bytes from there on.
    pub(super) live_later: u64,
    /// What iterations do over time.
    pub(super) growth: &'a Growth,
}

/// Why a job needs as much as it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// What was live at the peak.
    Need,
    /// Blocks that every iteration adds and none frees.
    Leak,
    /// Iterations that ask for more than the first.
    LongerInputs,
    /// A tensor that a loop makes longer by concatenation.
    GrowingTensor,
    /// Free where it did not fit.
    Fragmentation,
    /// Cached for another stream.
    Stream,
    /// Freed, an event still outstanding.
    Pending,
    /// Free in a private pool.
    PrivatePool,
    /// Free in segments that one live block keeps.
    PinnedSegment,
    /// Rounded up.
    Rounding,
    /// Handed out beyond the rounded size.
    Unsplit,
    /// Held by other processes, or by this one outside the allocator.
    Outside,
    /// What is there does not tell.
    Unknown,
}

impl Cause {
    /// Its name in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Need => "need",
            Self::Leak => "leak",
            Self::LongerInputs => "longer_inputs",
            Self::GrowingTensor => "growing_tensor",
            Self::Fragmentation => "fragmentation",
            Self::Stream => "stream",
            Self::Pending => "pending",
            Self::PrivatePool => "private_pool",
            Self::PinnedSegment => "pinned_segment",
            Self::Rounding => "rounding",
            Self::Unsplit => "unsplit",
            Self::Outside => "outside",
            Self::Unknown => "unknown",
        }
    }
}

impl From<WasteKind> for Cause {
    fn from(kind: WasteKind) -> Self {
        match kind {
            WasteKind::Pending => Self::Pending,
            WasteKind::PrivatePool => Self::PrivatePool,
            WasteKind::Stream => Self::Stream,
            WasteKind::PinnedSegment => Self::PinnedSegment,
            WasteKind::Fragmentation => Self::Fragmentation,
            WasteKind::Unsplit => Self::Unsplit,
            WasteKind::Rounding => Self::Rounding,
        }
    }
}

/// A cause with its bytes, the line to blame and a sentence.
#[derive(Clone, Debug, Serialize)]
pub struct Verdict {
    /// The cause.
    pub cause: Cause,
    /// Its bytes.
    pub bytes: u64,
    /// The line to blame, as `file:line`; none without stacks.
    pub line: Option<String>,
    /// What it means.
    pub text: String,
}

/// What is live at once, which no allocator can avoid.
pub(super) fn need(peak: &PeakReport) -> Verdict {
    let line = peak.sites.first().and_then(|it| it.line.clone());
    Verdict {
        cause: Cause::Need,
        bytes: peak.requested,
        text: format!(
            "{} were live at once in {}{}; no allocator can do with less.",
            Bytes(peak.requested),
            counted(peak.blocks, "block"),
            line.as_ref().map_or(String::new(), |it| format!(", most of them from {it}"))
        ),
        line,
    }
}

/// Every other cause that has bytes.
pub(super) fn avoidable(
    waste: &WasteReport,
    growth: &Growth,
    peak: &PeakReport,
    ooms: &[OomReport],
) -> Vec<Verdict> {
    let at = |line: &Option<String>| line.as_ref().map_or(String::new(), |it| format!(" at {it}"));
    let mut causes = Vec::new();
    // The way back runs on threads without a Python stack: the largest line that is known speaks for it.
    let grown = |kind: GrowthKind| {
        let mut lines = growth.lines.iter().filter(|it| it.kind == kind);
        lines.find_map(|it| it.line.clone())
    };
    if growth.leak > 0 {
        let line = grown(GrowthKind::Leak);
        causes.push(Verdict {
            cause: Cause::Leak,
            bytes: growth.leak,
            text: format!(
                "Each of {} iterations kept {} for good{}: {} in all{}, and more with every iteration.",
                growth.iterations,
                Bytes(growth.leak_per_iteration),
                at(&line),
                Bytes(growth.leak),
                // A leak now and then adds up to the same; one that the history begins with does not.
                if growth.leak / 2 > growth.leak_per_iteration.saturating_mul(growth.iterations as u64) {
                    ", most of it from before the history"
                } else {
                    ""
                }
            ),
            line,
        });
    }
    if growth.longer_inputs > 0 {
        let line = grown(GrowthKind::LongerInputs);
        causes.push(Verdict {
            cause: Cause::LongerInputs,
            bytes: growth.longer_inputs,
            text: format!(
                "Iteration {} asked for {} more than iteration {}{}: its inputs were larger.",
                growth.longest,
                Bytes(growth.longer_inputs),
                growth.steady,
                at(&line)
            ),
            line,
        });
    }
    if growth.growing_tensor > 0 {
        let line = grown(GrowthKind::GrowingTensor);
        causes.push(Verdict {
            cause: Cause::GrowingTensor,
            bytes: growth.growing_tensor,
            text: format!(
                "Iteration {} asked for {} more than iteration {}{}: a tensor grew there by concatenation, and was there \
                 twice each time.",
                growth.longest,
                Bytes(growth.growing_tensor),
                growth.steady,
                at(&line)
            ),
            line,
        });
    }
    for kind in waste.kinds.iter().filter(|it| it.bytes > 0) {
        let line = kind.lines.first().and_then(|it| it.line.clone());
        causes.push(Verdict {
            cause: kind.kind.into(),
            bytes: kind.bytes,
            text: waste_text(kind.kind, kind.bytes, peak.reserved.bytes, &at(&line)),
            line,
        });
    }
    let full = |it: &&OomReport| !it.by_limit;
    let most = ooms.iter().filter(full).max_by_key(|it| it.outside);
    if let Some(oom) = most
        && let Some(bytes) = oom.outside.filter(|&bytes| bytes > 0)
    {
        causes.push(Verdict {
            cause: Cause::Outside,
            bytes,
            line: None,
            text: format!(
                "{}{} of the device were held by other processes, or by this one outside the allocator.",
                if oom.outside_at_least { "At least " } else { "" },
                Bytes(bytes)
            ),
        });
    }
    causes
}

/// The verdict first, then the largest.
pub(super) fn sort(causes: &mut [Verdict], verdict: Cause) {
    causes.sort_by_key(|it| (it.cause != verdict, u64::MAX - it.bytes, it.cause));
}

/// What a state without a history tells: what is cached may be waste, or what the next iteration uses again.
pub(super) fn of_a_state(reserved: &ReservedPeak) -> Verdict {
    let cached = reserved.bytes.saturating_sub(reserved.requested);
    Verdict {
        cause: Cause::Unknown,
        bytes: cached,
        line: None,
        text: format!("{} were reserved and not live when the snapshot was taken.", Bytes(cached)),
    }
}

/// What replay makes of a verdict where a request failed, if it refutes it or could: see Note \[The rule\].
pub(super) fn of_failure(
    verdict: Cause,
    answer: &FailureAnswer,
    waste: impl FnOnce() -> WasteReport,
) -> Option<Verdict> {
    if !matches!(verdict, Cause::Need | Cause::LongerInputs | Cause::GrowingTensor) {
        return None;
    }
    match answer.answer {
        Answer::Served => {
            let waste = waste();
            let largest = waste.kinds.iter().max_by_key(|it| it.bytes)?;
            let line = largest.lines.first().and_then(|it| it.line.clone());
            let at = line.as_ref().map_or(String::new(), |it| format!(" at {it}"));
            let reserved = waste.total().saturating_add(answer.live);
            Some(Verdict {
                cause: largest.kind.into(),
                bytes: largest.bytes,
                text: format!(
                    "When the request failed, {}",
                    waste_text(largest.kind, largest.bytes, reserved, &at)
                ),
                line,
            })
        }
        Answer::NotTried | Answer::DependsOnLimit => Some(Verdict {
            cause: Cause::Unknown,
            bytes: answer.bytes,
            line: None,
            text: answer.sentence(),
        }),
        Answer::ServedAsRecorded | Answer::TooMuch | Answer::NoneServes => None,
    }
}

/// Everything that a recording tells is told as what happened.
fn waste_text(kind: WasteKind, bytes: u64, reserved: u64, at: &str) -> String {
    let share = bytes as f64 / reserved.max(1) as f64 * 100.0;
    let at = if at.is_empty() { " at a line that was not recorded" } else { at };
    let share = if share < 0.5 { "less than 1".to_owned() } else { format!("{share:.0}") };
    let of = format!("{} ({share} % of reserved)", Bytes(bytes));
    match kind {
        WasteKind::Pending => format!(
            "{of} were freed, but waited for another stream to finish with them; mostly asked for{at}."
        ),
        WasteKind::PrivatePool => {
            format!(
                "{of} were free inside private pools, obtained{at}, where no one else might use them."
            )
        }
        WasteKind::Stream => {
            format!(
                "{of} were cached for other streams than the one that needed memory, obtained{at}."
            )
        }
        WasteKind::PinnedSegment => {
            format!("{of} were free in segments that a single live block kept, asked for{at}.")
        }
        WasteKind::Fragmentation => {
            format!("{of} were free, but in pieces that did not fit; they had been obtained{at}.")
        }
        WasteKind::Unsplit => {
            format!("{of} were handed out beyond what was asked for, too small to split off{at}.")
        }
        WasteKind::Rounding => format!("{of} were sizes rounded up, mostly{at}."),
    }
}

/// The waste of the moment when a request ended the job, if that is why it did: rule 3 of Note \[The rule\]. `capacity` is
/// what could be reserved.
pub(super) fn at_the_end(oom: &OomReport, waste: &WasteReport, capacity: u64) -> Option<Verdict> {
    let fits = oom.requested.saturating_add(oom.bytes) <= capacity;
    let largest = waste.kinds.iter().max_by_key(|it| it.bytes).filter(|_| fits)?;
    let share = largest.bytes as f64 / oom.reserved.max(1) as f64;
    let line = largest.lines.first().and_then(|it| it.line.clone());
    let at = line.as_ref().map_or(String::new(), |it| format!(" at {it}"));
    (share >= WASTE_SHARE).then(|| Verdict {
        cause: largest.kind.into(),
        bytes: largest.bytes,
        text: format!(
            "At the last request, of {}: {}",
            Bytes(oom.bytes),
            waste_text(largest.kind, largest.bytes, oom.reserved, &at)
        ),
        line,
    })
}

/// The cause that limits the job: see Note \[The rule\].
pub(super) fn choose<'a>(
    need: &'a Verdict,
    avoidable: &'a [Verdict],
    context: &PeakContext<'_>,
) -> &'a Verdict {
    let reserved = context.reserved;
    let share = |bytes: u64| bytes as f64 / reserved.max(1) as f64;
    let left = reserved.saturating_sub(context.live_later);
    let never_live = reserved.saturating_sub(need.bytes);
    let settled =
        context.growth.iterations > 0 && share(context.growth.fragmentation) < ADDED_SHARE;
    let mattered = |it: &&Verdict| {
        if it.cause == Cause::Fragmentation && settled && share(left.min(it.bytes)) < SETTLED_SHARE
        {
            return false;
        }
        if it.cause == Cause::Fragmentation
            && context.growth.iterations == 0
            && share(never_live) < LEFT_SHARE
        {
            return false;
        }
        if matches!(it.cause, Cause::LongerInputs | Cause::GrowingTensor)
            && !context.growth.longest_is_largest
        {
            return false;
        }
        let then = context.near.kinds.iter().find(|kind| Cause::from(kind.kind) == it.cause);
        let stays = left >= it.bytes / 2 || share(left) >= LEFT_SHARE;
        then.is_none_or(|kind| share(kind.bytes) >= WASTE_SHARE && stays)
    };
    let settles =
        |it: &Verdict| settled && matches!(it.cause, Cause::Fragmentation | Cause::PinnedSegment);
    let limiting = || avoidable.iter().filter(mattered);
    let largest = limiting().max_by_key(|it| it.bytes).filter(|it| share(it.bytes) >= WASTE_SHARE);
    let leak = limiting().find(|it| it.cause == Cause::Leak && share(it.bytes) >= LEAK_SHARE);
    match (leak, largest) {
        (Some(leak), Some(other)) if other.bytes / 2 > leak.bytes && !settles(other) => other,
        (Some(leak), _) => leak,
        (None, Some(other)) => other,
        (None, None) => need,
    }
}
