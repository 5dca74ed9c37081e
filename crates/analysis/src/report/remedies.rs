//! Changes of the program that make its need smaller.
//!
//! In:  a report and the [`Circumstances`] of its peak or its failure.
//! Out: [`Advice`], one for each row of [`REMEDIES`] whose signature is there.
//!
//! A remedy is a row: its name, the signature that tells it from the recording together with the bytes that it would save
//! there, what to do, what that costs, and lines to copy. What a remedy saves cannot be replayed: it is an estimate.

use tonnage_events::Bytes;

use super::Report;
use super::advice::{Advice, Basis};
use super::circumstances::{Circumstances, Learning};
use super::purpose::{Confidence, Purpose};
use super::verdict::Cause;

/// What a signature finds.
pub(super) struct Found {
    /// Bytes that the remedy saves at the peak.
    bytes: u64,
    confidence: Confidence,
    /// Where to apply it.
    line: Option<String>,
}

/// A change of the program.
pub(super) struct Remedy {
    /// Its name in JSON.
    pub(super) name: &'static str,
    /// Looks for its signature.
    signature: fn(&Scene<'_>) -> Option<Found>,
    /// The cause that it does something about.
    cause: Cause,
    /// What to do.
    change: &'static str,
    /// What it costs.
    cost: &'static str,
    /// Lines to copy, with where they go.
    code: &'static [&'static str],
}

/// What signatures look at.
pub(super) struct Scene<'a> {
    pub(super) report: &'a Report,
    pub(super) now: Circumstances,
}

impl Scene<'_> {
    fn bytes_for(&self, purpose: Purpose) -> u64 {
        let purposes = &self.report.peak.purposes;
        purposes.iter().find(|it| it.purpose == purpose).map_or(0, |it| it.bytes)
    }

    fn line_of(&self, purpose: Purpose) -> Option<String> {
        let mut largest = self.report.peak.top.iter().filter(|it| it.purpose == purpose);
        largest.find_map(|it| it.line.clone())
    }

    /// Activations that wait for a way back, where there is one.
    fn activations(&self) -> Option<u64> {
        let waits = self.now.learning != Learning::OnlyForward;
        Some(self.bytes_for(Purpose::Activations)).filter(|&bytes| waits && bytes > 0)
    }
}

/// A share of the activations, by a low or a medium confidence.
fn of_activations(scene: &Scene<'_>, confidence: Confidence) -> Option<Found> {
    let bytes = scene.activations()? / 2;
    Some(Found { bytes, confidence, line: scene.line_of(Purpose::Activations) })
}

/// Every remedy. Among equals, the first comes first.
pub(super) const REMEDIES: [Remedy; 9] = [
    Remedy {
        name: "single_tensor_step",
        signature: |scene| {
            // Temporaries of all parameters at once, instead of those of one.
            let Circumstances { in_step, of_the_step, largest_of_the_step, .. } = scene.now;
            let bytes = of_the_step.saturating_sub(largest_of_the_step);
            let found = Found { bytes, confidence: Confidence::Medium, line: None };
            (in_step && bytes > 0).then_some(found)
        },
        cause: Cause::Need,
        change: "let the optimizer's step make no copies of all parameters at once: fused=True, or foreach=False",
        cost: "none with fused=True; foreach=False takes more launches",
        code: &[
            "optimizer = torch.optim.AdamW(model.parameters(), fused=True)    # or foreach=False",
        ],
    },
    Remedy {
        name: "smaller_batch",
        signature: |scene| {
            let first = scene.now.first_step && scene.report.failure.is_some();
            let sure = if first { Confidence::Medium } else { Confidence::Low };
            let found = of_activations(scene, sure)?;
            Some(Found { line: None, ..found })
        },
        cause: Cause::Need,
        change: "half the batch, two steps of accumulation",
        cost: "two passes for each step of the optimizer",
        code: &[
            "for half in batch.chunk(2):    # in the training loop, instead of one pass",
            "    (loss_of(half) / 2).backward()",
            "optimizer.step()",
        ],
    },
    Remedy {
        name: "no_grad",
        signature: |scene| {
            // Kept for a way back that never comes.
            let kept = scene.now.learning == Learning::KeepsForAWayBack;
            let bytes = scene.activations()?;
            let sure = if scene.now.first_step { Confidence::Low } else { Confidence::Medium };
            let line = scene.line_of(Purpose::Activations);
            // The first layers of a training look the same: there it is one of two readings.
            let bytes = if scene.now.first_step { bytes / 2 } else { bytes - bytes / 10 };
            kept.then_some(Found { bytes, confidence: sure, line })
        },
        cause: Cause::Need,
        change: "if nothing is trained here, keep nothing for a way back: torch.no_grad()",
        cost: "none",
        code: &["with torch.no_grad():    # around the pass", "    output = model(batch)"],
    },
    Remedy {
        name: "loss_in_parts",
        signature: |scene| {
            let (bytes, blocks) = scene.now.of_the_loss;
            // An eighth at a time.
            let bytes = bytes - bytes / 8;
            let line = scene.line_of(Purpose::Activations);
            (blocks >= 2).then_some(Found { bytes, confidence: Confidence::Medium, line })
        },
        cause: Cause::Need,
        change: "compute the loss over all classes in parts of the sequence, so that not all scores are there at once",
        cost: "the last layer runs forward twice",
        code: &[
            "def part(hidden, labels):    # instead of one cross_entropy over all of them",
            "    return F.cross_entropy(head(hidden), labels, reduction=\"sum\")",
            "parts = zip(hidden.flatten(0, 1).chunk(8), labels.flatten().chunk(8))",
            "loss = sum(checkpoint(part, *it, use_reentrant=False) for it in parts) / labels.numel()",
        ],
    },
    Remedy {
        name: "fewer_batches_ahead",
        signature: |scene| {
            let found =
                Found { bytes: scene.now.ahead, confidence: Confidence::Medium, line: None };
            (scene.now.ahead > 0).then_some(found)
        },
        cause: Cause::Need,
        change: "keep fewer batches ahead on the device: one that is used, one that is copied",
        cost: "none, as long as a copy takes less time than a step",
        code: &["queue = collections.deque(maxlen=2)    # where batches are fetched ahead"],
    },
    Remedy {
        name: "backward_for_each_pass",
        signature: |scene| {
            // Each pass keeps its graph, and nothing goes back in between.
            let leaks = scene.report.verdict.cause == Cause::Leak;
            let keeps = scene.now.learning == Learning::KeepsForAWayBack;
            let found = Found {
                bytes: scene.report.growth.leak_at_peak,
                confidence: Confidence::Medium,
                line: scene.report.verdict.line.clone(),
            };
            (leaks && keeps).then_some(found)
        },
        cause: Cause::Leak,
        change: "go back in each pass where losses are summed, or keep no graph: every loss holds the activations of its pass",
        cost: "none",
        code: &["(loss / passes).backward()    # in each pass, instead of one backward of the sum"],
    },
    Remedy {
        name: "checkpoint",
        signature: |scene| {
            let trains = scene.now.learning == Learning::Trains;
            of_activations(scene, Confidence::Low).filter(|_| trains)
        },
        cause: Cause::Need,
        change: "checkpoint the span that keeps most of the activations",
        cost: "about a third more time: the span runs forward twice",
        code: &[
            "from torch.utils.checkpoint import checkpoint",
            "x = checkpoint(span, x, use_reentrant=False)    # in forward, instead of x = span(x)",
        ],
    },
    Remedy {
        name: "activations_in_host_memory",
        signature: |scene| {
            let trains = scene.now.learning == Learning::Trains;
            of_activations(scene, Confidence::Low).filter(|_| trains)
        },
        cause: Cause::Need,
        change: "keep activations in host memory until the way back needs them",
        cost: "all of them cross the bus twice in each step",
        code: &[
            "with torch.autograd.graph.save_on_cpu(pin_memory=True):    # around the forward",
            "    loss = model(batch)",
        ],
    },
    Remedy {
        name: "states_in_host_memory",
        signature: |scene| {
            // Inside the step they are needed where they are.
            let bytes = scene.bytes_for(Purpose::Optimizer);
            let found = Found { bytes, confidence: Confidence::Low, line: None };
            (!scene.now.in_step && bytes > 0).then_some(found)
        },
        cause: Cause::Need,
        change: "keep the optimizer's states in host memory",
        cost: "each step moves them over the bus",
        code: &[
            "def states_to(device):    # around optimizer.step(): states_to(\"cuda\"), step, states_to(\"cpu\")",
            "    for state in optimizer.state.values():",
            "        state.update({k: v.to(device) for k, v in state.items() if torch.is_tensor(v)})",
        ],
    },
];

/// Those whose signatures are there, in the order of the table.
pub(super) fn remedies(scene: &Scene<'_>) -> Vec<Advice> {
    let found = REMEDIES.iter().filter_map(|remedy| Some((remedy, (remedy.signature)(scene)?)));
    let advice = found.map(|(remedy, Found { bytes, confidence, line })| {
        let of = match remedy.name {
            "checkpoint" => {
                format!(" ({} are live)", Bytes(scene.bytes_for(Purpose::Activations)))
            }
            _ => String::new(),
        };
        Advice {
            remedy: Some(remedy.name),
            change: format!("{}{of}", remedy.change),
            cause: remedy.cause,
            bytes,
            serves: None,
            needs_release: None,
            basis: Basis::Estimated,
            confidence,
            cost: remedy.cost.to_owned(),
            line,
            code: remedy.code.iter().map(ToString::to_string).collect(),
        }
    });
    advice.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remedies_have_names_of_their_own() {
        let mut names: Vec<_> = REMEDIES.iter().map(|it| it.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), REMEDIES.len());
    }
}
