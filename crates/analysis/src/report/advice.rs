//! What to change, what it saves, what it costs, and how sure that is.
//!
//! In:  everything found before.
//! Out: [`Advice`], the most useful first: what serves a failed request before all else, what answers the verdict before the
//!      rest, what a replay has shown before estimates, what is surer before the rest, more bytes before fewer.
//!
//! Settings come from a replay of the job. What a technique saves is estimated from what is live at the
//! peak. A state without a history tells neither, and gets no advice.

use std::cmp::Reverse;

use serde::Serialize;
use tonnage_events::Bytes;
use tonnage_replay::what_if::WasteKind;

use super::Report;
use super::circumstances::Circumstances;
use super::failure::{Answer, FailureAnswer};
use super::purpose::Confidence;
use super::remedies::{Scene, remedies};
use super::settings::Tried;
use super::verdict::{Cause, Verdict};
use crate::inspect::HistoryKind;

/// Savings below these shares of what is reserved are not worth a change: of a setting, which a replay is sure of, and
/// of a technique, which costs work and is estimated.
const WORTHWHILE: f64 = 0.01;
const WORTH_WORK: f64 = 0.05;

/// Where a saving comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Basis {
    /// The job was served again under the setting.
    Replayed,
    /// Concluded from what is live.
    Estimated,
}

impl Basis {
    /// Where it comes from, in words.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Self::Replayed => "by replay",
            Self::Estimated => "estimated",
        }
    }
}

/// A change that helps.
#[derive(Clone, Debug, Serialize)]
pub struct Advice {
    /// The remedy of the program, by its name; none for settings, and for what only the allocator's waste calls for.
    pub remedy: Option<&'static str>,
    /// What to do.
    pub change: String,
    /// The cause that it does something about.
    pub cause: Cause,
    /// Bytes that it saves at the peak.
    pub bytes: u64,
    /// Bytes of the failed request that it serves, by replay.
    pub serves: Option<u64>,
    /// The release of PyTorch that it needs, where the recording may be of an older one.
    pub needs_release: Option<String>,
    /// Where that number comes from.
    pub basis: Basis,
    /// How sure it is.
    pub confidence: Confidence,
    /// What it costs.
    pub cost: String,
    /// Where to do it.
    pub line: Option<String>,
    /// Lines to copy, for a shell or a program, with where they go; empty where nothing fits every program.
    pub code: Vec<String>,
}

impl Advice {
    /// What to do and what it saves, as half a sentence.
    #[must_use]
    pub fn in_a_line(&self) -> String {
        let at = self.line.as_ref().map_or(String::new(), |line| format!(" ({line})"));
        format!("{}{at}; {}", self.change, self.effect())
    }

    /// What it does, and how that is known.
    #[must_use]
    pub fn effect(&self) -> String {
        let bytes = Bytes(self.bytes);
        match (self.serves, self.basis) {
            (Some(served), _) => format!("serves the {} that failed, by replay", Bytes(served)),
            (None, Basis::Replayed) => format!("saves {bytes} at the peak, by replay"),
            (None, Basis::Estimated) => format!("saves about {bytes} at the peak, estimated"),
        }
    }
}

pub(super) fn advise(
    report: &Report,
    tried: Option<&Tried>,
    now: Circumstances<'_>,
) -> Vec<Advice> {
    if report.history == HistoryKind::None {
        return Vec::new();
    }
    let share = |bytes: u64| bytes as f64 / report.peak.reserved.bytes.max(1) as f64;
    let mut advice = Vec::new();
    match report.failure.as_ref().map(|it| (it, it.answer)) {
        Some((failure, Answer::Served)) => advice.push(serving(failure, tried, report)),
        // A setting that does not serve what failed is no help, whatever it saves elsewhere.
        Some((_, Answer::TooMuch | Answer::NoneServes | Answer::DependsOnLimit)) => {}
        Some((_, Answer::NotTried)) => advice.extend(untried_setting(report)),
        Some((_, Answer::ServedAsRecorded)) | None => match tried {
            Some(tried) if tried.saving() > 0 => advice.push(setting(tried, report)),
            Some(_) => {}
            None => advice.extend(untried_setting(report)),
        },
    }
    advice.extend(report.causes.iter().filter_map(|cause| technique(report, cause)));
    advice.extend(remedies(&Scene { report, now: &now }));
    advice.retain(|it| match it.basis {
        Basis::Replayed => it.serves.is_some() || share(it.bytes) > WORTHWHILE,
        Basis::Estimated => share(it.bytes) > WORTH_WORK,
    });
    // A setting costs nothing; but what makes a job grow for good no setting stops.
    let grows = matches!(
        report.verdict.cause,
        Cause::Leak | Cause::LongerInputs | Cause::GrowingTensor | Cause::Outside
    );
    // Where a request failed, what the recording shows a remedy for comes before guesses.
    let shown = |it: &Advice| {
        let is_remedy =
            it.remedy.is_some() && matches!(it.cause, Cause::Need | Cause::GrowingTensor);
        report.failure.is_some() && is_remedy && it.confidence > Confidence::Low
    };
    let answers = |it: &Advice| it.cause == report.verdict.cause;
    let place = |it: &Advice| match (it.serves, it.basis) {
        (Some(_), _) => 0,
        (None, Basis::Replayed) if !grows => 1,
        _ if answers(it) || shown(it) => 2,
        (None, Basis::Replayed) => 3,
        _ => 4,
    };
    advice.sort_by_key(|it| {
        (place(it), Reverse(it.confidence), Reverse(answers(it)), Reverse(it.bytes))
    });
    advice
}

fn setting(tried: &Tried, report: &Report) -> Advice {
    // Below a limit a job makes do with less than the replay, which knows none, reserves for it.
    let reserved = tried.recorded.min(report.peak.reserved.bytes);
    let largest = report.waste.kinds.iter().max_by_key(|it| it.bytes).map(|it| it.kind);
    let (change, code) = to_set(&tried.best);
    Advice {
        remedy: None,
        change: change + &needs(tried.needs_release.as_deref()),
        cause: largest.map_or(Cause::Fragmentation, Into::into),
        bytes: reserved.saturating_sub(tried.reserved),
        serves: None,
        needs_release: tried.needs_release.clone(),
        basis: Basis::Replayed,
        confidence: Confidence::High,
        cost: "none in the program".to_owned(),
        line: None,
        code,
    }
}

/// The setting that serves a failed request.
fn serving(failure: &FailureAnswer, tried: Option<&Tried>, report: &Report) -> Advice {
    let (change, code) = to_set(failure.conf.as_deref().unwrap_or_default());
    let saved = tried.map_or(0, |it| report.peak.reserved.bytes.saturating_sub(it.reserved));
    let largest = report.waste.kinds.iter().max_by_key(|it| it.bytes).map(|it| it.kind);
    Advice {
        remedy: None,
        change: change + &needs(failure.needs_release.as_deref()),
        cause: largest.map_or(Cause::Fragmentation, Into::into),
        bytes: saved,
        serves: Some(failure.bytes),
        needs_release: failure.needs_release.clone(),
        basis: Basis::Replayed,
        confidence: Confidence::High,
        cost: "none in the program".to_owned(),
        line: None,
        code,
    }
}

fn needs(release: Option<&str>) -> String {
    release.map_or(String::new(), |release| format!(" (needs PyTorch {release})"))
}

/// A settings string as a change, and as a line for a shell.
fn to_set(conf: &str) -> (String, Vec<String>) {
    if conf.is_empty() {
        let change = "unset PYTORCH_CUDA_ALLOC_CONF".to_owned();
        return (change.clone(), vec![change]);
    }
    let code = is_one_word(conf).then(|| format!("export PYTORCH_CUDA_ALLOC_CONF='{conf}'"));
    (format!("set PYTORCH_CUDA_ALLOC_CONF={conf}"), code.into_iter().collect())
}

/// Whether a setting has only what settings are written with, so that a shell takes it as one word.
fn is_one_word(setting: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_:,.[]>-".contains(c);
    setting.len() < 500 && setting.chars().all(plain)
}

/// The setting that usually answers the verdict, where none was replayed.
fn untried_setting(report: &Report) -> Option<Advice> {
    let cause = report.verdict.cause;
    let without = |key: &str| {
        report
            .conf
            .contains(key)
            .then(|| (format!("take {key} out of PYTORCH_CUDA_ALLOC_CONF"), Vec::new()))
    };
    let (change, code) = match cause {
        Cause::Fragmentation | Cause::PinnedSegment | Cause::Unsplit => {
            let expandable = || {
                let set = report.conf.contains("expandable_segments:True");
                (!set).then(|| to_set("expandable_segments:True"))
            };
            without("max_split_size_mb").or_else(expandable)?
        }
        Cause::Rounding => without("roundup_power2_divisions")?,
        _ => return None,
    };
    // What is live at once at another moment no setting saves; after a request that ended the job nothing is.
    let last = report.ooms.last().filter(|it| it.fatal);
    let at_the_end = last.map_or(0, |it| it.reserved.saturating_sub(it.requested));
    let most = report.peak.reserved.bytes.saturating_sub(report.peak.requested).max(at_the_end);
    Some(Advice {
        remedy: None,
        change,
        cause,
        bytes: report.verdict.bytes.min(most),
        serves: None,
        needs_release: None,
        basis: Basis::Estimated,
        confidence: Confidence::Medium,
        cost: "none in the program".to_owned(),
        line: None,
        code,
    })
}

/// What to do in the program about a cause.
fn technique(report: &Report, cause: &Verdict) -> Option<Advice> {
    let waste = |kind: WasteKind| report.waste.bytes(kind);
    let (remedy, change, bytes, confidence, cost, code): (_, _, _, _, _, &[&str]) = match cause
        .cause
    {
        Cause::Leak => (
            Some("numbers_not_tensors"),
            "keep numbers, not tensors: loss.item(), .detach(), or a .clone() of the part of a view that is used",
            report.growth.leak_at_peak,
            Confidence::Medium,
            "item() waits for the device; clone() copies the part",
            &[
                "total += loss.item()                  # where losses are summed",
                "kept.append(output.detach().cpu())    # where results are kept",
                "kept.append(batch[:, 0].clone())      # where a view is kept",
            ],
        ),
        Cause::LongerInputs => (
            Some("bounded_inputs"),
            "bound the inputs: cut or bucket by length, or make the batch smaller where they are long",
            report.growth.longer_inputs,
            Confidence::Medium,
            "less data in the longest iterations",
            &["batch = batch[:, :longest]    # where batches are made"],
        ),
        Cause::Stream => (
            None,
            "use one stream for large blocks, or call torch.cuda.empty_cache() once the side stream is done",
            waste(WasteKind::Stream),
            Confidence::Medium,
            "copies overlap less, or segments are obtained again",
            &[
                "side.synchronize()          # once the side stream is done",
                "torch.cuda.empty_cache()",
            ],
        ),
        Cause::Pending => (
            None,
            "let the other stream finish before memory is freed: wait for its event, and use fewer blocks ahead",
            waste(WasteKind::Pending),
            Confidence::Medium,
            "the streams overlap less",
            &["side.synchronize()    # before the tensors it uses are dropped, every few batches"],
        ),
        Cause::PrivatePool => (
            Some("shared_graph_pool"),
            "share one pool between graphs (pool=), capture the largest first, and drop pools that are done",
            waste(WasteKind::PrivatePool),
            Confidence::Low,
            "graphs that share a pool cannot run at the same time",
            &[
                "with torch.cuda.graph(graph, pool=largest_graph.pool()):    # where graphs are captured",
            ],
        ),
        Cause::PinnedSegment => (
            None,
            "allocate long-lived blocks before the large ones that come and go",
            waste(WasteKind::PinnedSegment),
            Confidence::Low,
            "none",
            &[
                "kept = torch.empty(shape, device=\"cuda\")    # before the loop",
                "kept.copy_(result)    # in it, instead of keeping result",
            ],
        ),
        Cause::Outside => (
            None,
            "end the other processes, or choose another device: nvidia-smi lists who holds it",
            cause.bytes,
            Confidence::High,
            "none",
            &["nvidia-smi --query-compute-apps=pid,name,used_memory --format=csv"],
        ),
        // What it saves is seen where a request fails: see `remedies/operations.rs`.
        Cause::GrowingTensor
        | Cause::Fragmentation
        | Cause::Rounding
        | Cause::Unsplit
        | Cause::Need
        | Cause::Unknown => {
            return None;
        }
    };
    // What limits the job is something else: this is one of many things that could be smaller.
    let answers = cause.cause == report.verdict.cause;
    let confidence = if answers { confidence } else { Confidence::Low };
    Some(Advice {
        remedy,
        change: change.to_owned(),
        cause: cause.cause,
        bytes,
        serves: None,
        needs_release: None,
        basis: Basis::Estimated,
        confidence,
        cost: cost.to_owned(),
        line: cause.line.clone(),
        code: code.iter().map(ToString::to_string).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_settings_that_a_shell_takes_as_one_word_can_be_copied() {
        assert!(is_one_word("expandable_segments:True,roundup_power2_divisions:[256:1,>:4]"));
        for hostile in ["x'; rm -rf ~; '", "a b", "$(id)", "a\nb", "`id`"] {
            assert!(to_set(hostile).1.is_empty(), "{hostile}");
        }
    }
}
