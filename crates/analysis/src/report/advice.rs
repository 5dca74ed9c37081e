//! What to change, what it saves, what it costs, and how sure that is.
//!
//! In:  everything found before.
//! Out: [`Advice`], the most useful first: what answers the verdict before the rest, more bytes before
//!      fewer.
//!
//! Settings come from a replay of the job. What a technique saves is estimated from what is live at the
//! peak.

use serde::Serialize;
use tonnage_events::Bytes;
use tonnage_replay::what_if::WasteKind;

use super::Report;
use super::purpose::{Confidence, Purpose};
use super::settings::Tried;
use super::verdict::{Cause, Verdict};

/// Savings below this share of what is reserved are not worth a change.
const WORTHWHILE: f64 = 0.01;

/// Where a saving comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Basis {
    /// The job was served again under the setting.
    Replayed,
    /// Concluded from what is live.
    Estimated,
}

/// A change that helps.
#[derive(Clone, Debug, Serialize)]
pub struct Advice {
    /// What to do.
    pub change: String,
    /// The cause that it does something about.
    pub cause: Cause,
    /// Bytes that it saves at the peak.
    pub bytes: u64,
    /// Where that number comes from.
    pub basis: Basis,
    /// How sure it is.
    pub confidence: Confidence,
    /// What it costs.
    pub cost: String,
    /// Where to do it.
    pub line: Option<String>,
}

/// `trains`: whether anything goes backward, as far as the file tells.
pub(super) fn advise(report: &Report, tried: Option<&Tried>, trains: bool) -> Vec<Advice> {
    let worthwhile = (report.peak.reserved.bytes as f64 * WORTHWHILE) as u64;
    let mut advice = Vec::new();
    advice.extend(tried.filter(|it| it.saving() > 0).map(|it| setting(it, report)));
    advice.extend(report.causes.iter().filter_map(|cause| technique(report, cause)));
    advice.extend(if trains { for_purposes(report) } else { Vec::new() });
    advice.retain(|it| it.bytes > worthwhile);
    let answers = |it: &Advice| {
        it.cause == report.verdict.cause || (it.basis == Basis::Replayed && is_waste(it.cause))
    };
    advice.sort_by_key(|it| (!answers(it), u64::MAX - it.bytes));
    advice
}

fn is_waste(cause: Cause) -> bool {
    !matches!(cause, Cause::Need | Cause::Leak | Cause::LongerInputs | Cause::Outside)
}

fn setting(tried: &Tried, report: &Report) -> Advice {
    // Below a limit a job makes do with less than the replay, which knows none, reserves for it.
    let reserved = tried.recorded.min(report.peak.reserved.bytes);
    let largest = report.waste.kinds.iter().max_by_key(|it| it.bytes).map(|it| it.kind);
    let change = if tried.best.is_empty() {
        "unset PYTORCH_CUDA_ALLOC_CONF".to_owned()
    } else {
        format!("set PYTORCH_CUDA_ALLOC_CONF={}", tried.best)
    };
    Advice {
        change,
        cause: largest.map_or(Cause::Fragmentation, Into::into),
        bytes: reserved.saturating_sub(tried.reserved),
        basis: Basis::Replayed,
        confidence: Confidence::High,
        cost: "none in the program".to_owned(),
        line: None,
    }
}

/// What to do in the program about a cause.
fn technique(report: &Report, cause: &Verdict) -> Option<Advice> {
    let waste = |kind: WasteKind| report.waste.bytes(kind);
    let (change, bytes, confidence, cost) = match cause.cause {
        Cause::Leak => (
            "keep numbers, not tensors: loss.item(), .detach(), or a .clone() of the part of a view that is used",
            report.growth.leak_at_peak,
            Confidence::Medium,
            "item() waits for the device; clone() copies the part",
        ),
        Cause::LongerInputs => (
            "bound the inputs: cut or bucket by length, or make the batch smaller where they are long",
            report.growth.longer_inputs,
            Confidence::Medium,
            "less data in the longest iterations",
        ),
        Cause::Stream => (
            "use one stream for large blocks, or call torch.cuda.empty_cache() once the side stream is done",
            waste(WasteKind::Stream),
            Confidence::Medium,
            "copies overlap less, or segments are obtained again",
        ),
        Cause::Pending => (
            "let the other stream finish before memory is freed: wait for its event, and use fewer blocks ahead",
            waste(WasteKind::Pending),
            Confidence::Medium,
            "the streams overlap less",
        ),
        Cause::PrivatePool => (
            "share one pool between graphs (pool=), capture the largest first, and drop pools that are done",
            waste(WasteKind::PrivatePool),
            Confidence::Low,
            "graphs that share a pool cannot run at the same time",
        ),
        Cause::PinnedSegment => (
            "allocate long-lived blocks before the large ones that come and go",
            waste(WasteKind::PinnedSegment),
            Confidence::Low,
            "none",
        ),
        Cause::Outside => (
            "end the other processes, or choose another device: nvidia-smi lists who holds it",
            cause.bytes,
            Confidence::High,
            "none",
        ),
        Cause::Fragmentation | Cause::Rounding | Cause::Unsplit | Cause::Need => return None,
    };
    Some(Advice {
        change: change.to_owned(),
        cause: cause.cause,
        bytes,
        basis: Basis::Estimated,
        confidence,
        cost: cost.to_owned(),
        line: cause.line.clone(),
    })
}

/// What makes the need of a training itself smaller.
fn for_purposes(report: &Report) -> Vec<Advice> {
    let of = |purpose: Purpose| {
        report.peak.purposes.iter().find(|it| it.purpose == purpose).map_or(0, |it| it.bytes)
    };
    let need = |change: String, bytes: u64, cost: &str, line: Option<String>| Advice {
        change,
        cause: Cause::Need,
        bytes,
        basis: Basis::Estimated,
        confidence: Confidence::Low,
        cost: cost.to_owned(),
        line,
    };
    let activations = of(Purpose::Activations);
    let line = report
        .peak
        .top
        .iter()
        .find(|it| it.purpose == Purpose::Activations)
        .and_then(|it| it.line.clone());
    let optimizer = of(Purpose::Optimizer);
    vec![
        need(
            format!("checkpoint the span that keeps {} of activations", Bytes(activations)),
            activations / 2,
            "about a third more time: the span runs forward twice",
            line,
        ),
        need(
            "half the batch, two steps of accumulation".to_owned(),
            activations / 2,
            "two passes for each step of the optimizer",
            None,
        ),
        need(
            "keep the optimizer's states in host memory".to_owned(),
            optimizer,
            "each step moves them over the bus",
            None,
        ),
    ]
}
