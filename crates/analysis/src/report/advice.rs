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
    /// Lines to copy, for a shell or a program, with where they go; empty where nothing fits every program.
    pub code: Vec<String>,
}

impl Advice {
    /// What to do and what it saves, as half a sentence.
    #[must_use]
    pub fn in_a_line(&self) -> String {
        let at = self.line.as_ref().map_or(String::new(), |line| format!(" ({line})"));
        let (change, bytes, basis) = (&self.change, Bytes(self.bytes), self.basis.words());
        format!("{change}{at}; saves {bytes} at the peak, {basis}")
    }
}

/// `trains`: whether anything goes backward, as far as the file tells.
pub(super) fn advise(report: &Report, tried: Option<&Tried>, trains: bool) -> Vec<Advice> {
    let share = |bytes: u64| bytes as f64 / report.peak.reserved.bytes.max(1) as f64;
    let mut advice = Vec::new();
    advice.extend(tried.filter(|it| it.saving() > 0).map(|it| setting(it, report)));
    advice.extend(report.causes.iter().filter_map(|cause| technique(report, cause)));
    if tried.is_none() {
        advice.extend(untried_setting(report));
    }
    advice.extend(if trains { for_purposes(report) } else { Vec::new() });
    advice.retain(|it| match it.basis {
        Basis::Replayed => share(it.bytes) > WORTHWHILE,
        Basis::Estimated => share(it.bytes) > WORTH_WORK,
    });
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
    let (change, code) = to_set(&tried.best);
    Advice {
        change,
        cause: largest.map_or(Cause::Fragmentation, Into::into),
        bytes: reserved.saturating_sub(tried.reserved),
        basis: Basis::Replayed,
        confidence: Confidence::High,
        cost: "none in the program".to_owned(),
        line: None,
        code,
    }
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
        change,
        cause,
        bytes: report.verdict.bytes.min(most),
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
    let (change, bytes, confidence, cost, code): (_, _, _, _, &[&str]) = match cause.cause {
        Cause::Leak => (
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
            "bound the inputs: cut or bucket by length, or make the batch smaller where they are long",
            report.growth.longer_inputs,
            Confidence::Medium,
            "less data in the longest iterations",
            &["batch = batch[:, :longest]    # where batches are made"],
        ),
        Cause::Stream => (
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
            "let the other stream finish before memory is freed: wait for its event, and use fewer blocks ahead",
            waste(WasteKind::Pending),
            Confidence::Medium,
            "the streams overlap less",
            &["side.synchronize()    # before the tensors it uses are dropped, every few batches"],
        ),
        Cause::PrivatePool => (
            "share one pool between graphs (pool=), capture the largest first, and drop pools that are done",
            waste(WasteKind::PrivatePool),
            Confidence::Low,
            "graphs that share a pool cannot run at the same time",
            &[
                "with torch.cuda.graph(graph, pool=largest_graph.pool()):    # where graphs are captured",
            ],
        ),
        Cause::PinnedSegment => (
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
            "end the other processes, or choose another device: nvidia-smi lists who holds it",
            cause.bytes,
            Confidence::High,
            "none",
            &["nvidia-smi --query-compute-apps=pid,name,used_memory --format=csv"],
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
        code: code.iter().map(ToString::to_string).collect(),
    })
}

/// What makes the need of a training itself smaller.
fn for_purposes(report: &Report) -> Vec<Advice> {
    let of = |purpose: Purpose| {
        report.peak.purposes.iter().find(|it| it.purpose == purpose).map_or(0, |it| it.bytes)
    };
    let need =
        |change: String, bytes: u64, cost: &str, line: Option<String>, code: &[&str]| Advice {
            change,
            cause: Cause::Need,
            bytes,
            basis: Basis::Estimated,
            confidence: Confidence::Low,
            cost: cost.to_owned(),
            line,
            code: code.iter().map(ToString::to_string).collect(),
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
            line.clone(),
            &[
                "from torch.utils.checkpoint import checkpoint",
                "x = checkpoint(span, x, use_reentrant=False)    # in forward, instead of x = span(x)",
            ],
        ),
        need(
            "half the batch, two steps of accumulation".to_owned(),
            activations / 2,
            "two passes for each step of the optimizer",
            None,
            &[
                "for half in batch.chunk(2):    # in the training loop, instead of one pass",
                "    (loss_of(half) / 2).backward()",
                "optimizer.step()",
            ],
        ),
        need(
            "keep activations in host memory until the way back needs them".to_owned(),
            activations / 2,
            "all of them cross the bus twice in each step",
            line,
            &[
                "with torch.autograd.graph.save_on_cpu(pin_memory=True):    # around the forward",
                "    loss = model(batch)",
            ],
        ),
        need(
            "keep the optimizer's states in host memory".to_owned(),
            optimizer,
            "each step moves them over the bus",
            None,
            &[
                "def states_to(device):    # around optimizer.step(): states_to(\"cuda\"), step, states_to(\"cpu\")",
                "    for state in optimizer.state.values():",
                "        state.update({k: v.to(device) for k, v in state.items() if torch.is_tensor(v)})",
            ],
        ),
    ]
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
