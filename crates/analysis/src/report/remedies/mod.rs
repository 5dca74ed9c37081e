//! Changes of the program that make its need smaller.
//!
//! In:  a report and the [`Circumstances`] of its peak or its failure.
//! Out: [`Advice`], one for each row of the tables whose signature is there.
//!
//! A remedy is a row: its name, the signature that tells it from the recording together with the bytes that it would save
//! there, what to do, what that costs, and lines to copy. What a remedy saves cannot be replayed: it is an estimate.
//! Signatures know PyTorch's own functions, sizes and the order of requests, never names of programs.
//!
//! | table | remedies for |
//! | --- | --- |
//! | `training.rs` | batches, activations, graphs |
//! | `losses.rs` | scores of classes |
//! | `optimizer.rs` | steps, states, gradients |
//! | `weights.rs` | models, and copies of them |
//! | `inference.rs` | batches, outputs, caches, streams |
//! | `inputs.rs` | what is given to models |
//! | `operations.rs` | single operations that take more than they need |

mod training;

mod losses;

mod optimizer;

mod weights;

mod inference;

mod inputs;

mod operations;

use tonnage_events::Bytes;

use super::Report;
use super::advice::{Advice, Basis};
use super::circumstances::{Circumstances, Learning};
use super::held::{Block, Held, sum};
use super::origins::Work;
use super::purpose::{Confidence, Purpose};
use super::verdict::Cause;

/// Where something is done in parts, each is one of so many. Chosen: most of what parts can save, by few of them.
const PARTS: u64 = 8;

/// What a signature finds.
struct Found {
    /// Bytes that the remedy saves at the peak.
    bytes: u64,
    confidence: Confidence,
    /// Where to apply it.
    line: Option<String>,
}

impl Found {
    /// None where there is nothing to save.
    fn some(bytes: u64, confidence: Confidence, line: Option<String>) -> Option<Self> {
        (bytes > 0).then_some(Self { bytes, confidence, line })
    }

    /// What is saved by doing without some blocks, at the line of the largest.
    fn all_of<'b>(
        held: &Held<'_>,
        blocks: impl Iterator<Item = &'b Block> + Clone,
        confidence: Confidence,
    ) -> Option<Self> {
        let largest = blocks.clone().max_by_key(|it| it.bytes)?;
        Self::some(sum(blocks), confidence, held.line(largest))
    }
}

/// A change of the program.
struct Remedy {
    /// Its name in JSON.
    name: &'static str,
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
    pub(super) now: &'a Circumstances<'a>,
}

impl Scene<'_> {
    /// What is live, if stacks tell what asked for it.
    fn held(&self) -> Option<&Held<'_>> {
        Some(&self.now.held).filter(|it| it.is_known())
    }

    /// The same, if the program only runs models.
    fn held_in_inference(&self) -> Option<&Held<'_>> {
        self.held().filter(|_| self.now.learning == Learning::OnlyForward)
    }

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
        let bytes = match self.held() {
            Some(held) => sum(kept(held)),
            None => self.bytes_for(Purpose::Activations),
        };
        Some(bytes).filter(|&bytes| waits && bytes > 0)
    }

    /// The line that asks for most of them.
    fn line_of_activations(&self) -> Option<String> {
        match self.held() {
            Some(held) => held.line(kept(held).max_by_key(|it| it.bytes)?),
            None => self.line_of(Purpose::Activations),
        }
    }

    fn leaks(&self) -> bool {
        self.report.verdict.cause == Cause::Leak
    }
}

/// What the pass under way keeps of its way forward.
fn kept<'h>(held: &'h Held<'_>) -> impl Iterator<Item = &'h Block> + Clone {
    let failed = held.asked.map(|it| it.event);
    held.of_the_pass().filter(move |it| !it.is_by(Work::Back) && Some(it.event) != failed)
}

/// Every table. Among equals, the first comes first.
const TABLES: [&[Remedy]; 7] = [
    optimizer::REMEDIES,
    losses::REMEDIES,
    operations::REMEDIES,
    weights::REMEDIES,
    training::REMEDIES,
    inputs::REMEDIES,
    inference::REMEDIES,
];

/// Those whose signatures are there, in the order of the tables.
pub(super) fn remedies(scene: &Scene<'_>) -> Vec<Advice> {
    let all = TABLES.iter().copied().flatten();
    let found = all.filter_map(|remedy| Some((remedy, (remedy.signature)(scene)?)));
    let advice = found.map(|(remedy, Found { bytes, confidence, line })| {
        let of = match remedy.name {
            "checkpoint" => {
                format!(" ({} are live)", Bytes(scene.activations().unwrap_or(0)))
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
        let mut names: Vec<_> = TABLES.iter().copied().flatten().map(|it| it.name).collect();
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all);
    }
}
