//! Workspaces of convolutions that the installed library does not tell without a device.
//!
//! In:  an execution plan in the library's own JSON, and what the library answered without a device.
//! Out: the bytes that it needs on a GPU, and whether that is known or a guess.
//!
//! Which engine a convolution gets, and with which choices, is the same with and without a device. A few engines then ask
//! the device how many of their blocks it has at once, or cuBLASLt for an algorithm. Those that go through tiles follow a
//! rule (`tiles`); of those that multiply matrices the nearest layer that was measured answers (`matmuls`), those of common
//! networks among them. `data/README.md` says how they were made, and how well they fit.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use layer::{Engine, Place, Plan};
use matmuls::Matmul;
use tiles::Work;

// Which plans ask, and what a plan says of its layer.
mod layer;

// Engines that go through tiles.
mod tiles;

// Engines that multiply matrices.
mod matmuls;

/// Where the rules were measured.
const MEASURED: Place = Place { version: 91_900, architecture: 900, multiprocessors: 132 };

/// What is known of a plan's workspace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    /// The library's answer holds.
    AsAnswered,
    /// So many bytes, as measured, or by a rule that held wherever it was measured.
    Bytes(u64),
    /// So many bytes, for this reason.
    Guessed(u64, Guess),
}

impl Known {
    /// What of it is known on another GPU than the one that was measured.
    #[must_use]
    pub fn elsewhere(self, answered: u64) -> Self {
        match self {
            Self::AsAnswered => unread(answered),
            Self::Bytes(bytes) => Self::Guessed(bytes, Guess::Elsewhere),
            guessed @ Self::Guessed(..) => guessed,
        }
    }
}

/// Why a workspace is a guess.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guess {
    /// Another GPU, or another version of the library.
    Elsewhere,
    /// Tiles by kernels whose rule is not exact.
    Tiles,
    /// A product of matrices that is unlike the nearest one measured.
    Matmul,
    /// Nothing is known of such layers.
    Unlike,
}

impl Guess {
    /// The reason, for who reads the figures.
    #[must_use]
    pub fn reason(self) -> &'static str {
        match self {
            Self::Elsewhere => {
                "workspaces of convolutions (cuDNN) were compared with a GPU's on an H200 with cuDNN 9.19 alone"
            }
            Self::Tiles => {
                "workspaces of some convolutions (cuDNN) follow a rule that is not exact: one of ten was off by more than 2 MiB"
            }
            Self::Matmul => {
                "workspaces of some convolutions with filters of 1 x 1 (cuDNN) are those of the nearest layers that were measured: of others one of ten was off by more than 400 bytes, of filters' gradients by more than 3 MiB"
            }
            Self::Unlike => {
                "convolutions whose workspace cuDNN tells with a device alone: each may be some MiB more or less"
            }
        }
    }
}

/// What is known of the workspace of a plan of which the library answered so many bytes without a device.
#[must_use]
pub fn known(plan: &str, answered: u64) -> Known {
    let json = serde_json::from_str(plan).ok();
    match json.as_ref().and_then(Plan::of) {
        Some(plan) => by_rule(&plan, answered),
        // Which engines ask the device was measured there alone.
        None if json.as_ref().and_then(Place::of) != Some(MEASURED) => unread(answered),
        None => Known::AsAnswered,
    }
}

/// What is known of a plan that cannot be read.
#[must_use]
pub fn unread(answered: u64) -> Known {
    if answered == 0 { Known::AsAnswered } else { Known::Guessed(answered, Guess::Elsewhere) }
}

/// What the rules say of a plan that asks the device.
fn by_rule(plan: &Plan, answered: u64) -> Known {
    let unlike = Known::Guessed(answered, Guess::Unlike);
    let Some((layer, settings)) = &plan.layer else { return unlike };
    let (bytes, doubt) = match plan.engine {
        Engine::Matmul if settings.workspace == 0 => (answered, None),
        Engine::Matmul => {
            let near = Matmul::of(layer, settings).and_then(|it| it.nearest());
            let Some(near) = near else { return unlike };
            (answered + near.bytes, (!near.same).then_some(Guess::Matmul))
        }
        Engine::Tiles => {
            let Some(work) = Work::of(layer, settings) else { return unlike };
            // The library's answer has the same rule's bytes in it, for a device that it made up.
            let Some(others) = work.others(answered) else { return unlike };
            (others + work.on(plan.place.multiprocessors), (!work.certain).then_some(Guess::Tiles))
        }
    };
    match doubt {
        _ if plan.place != MEASURED => Known::Guessed(bytes, Guess::Elsewhere),
        Some(guess) => Known::Guessed(bytes, guess),
        None => Known::Bytes(bytes),
    }
}

/// Plans that were measured, for `data/`: each with what the library answered without a device, and what a GPU did.
#[derive(Debug, Default)]
pub struct Measurements {
    matmuls: BTreeMap<Matmul, u32>,
    rates: BTreeMap<String, Rate>,
}

/// How well the rules fit plans of one sort.
#[derive(Clone, Debug, Default)]
struct Rate {
    /// How far off each was.
    wrong: Vec<u64>,
    bytes: u64,
}

impl Measurements {
    /// One more; a plan that does not ask the device does not count.
    pub fn add(&mut self, plan: &str, answered: u64, bytes: u64) {
        let Some(plan) = serde_json::from_str(plan).ok().as_ref().and_then(Plan::of) else {
            return;
        };
        let (rule, sort) = match by_rule(&plan, answered) {
            Known::Guessed(rule, guess) => (rule, format!("{guess:?}")),
            Known::Bytes(rule) => (rule, "known".to_owned()),
            Known::AsAnswered => (answered, "answered".to_owned()),
        };
        let rate =
            self.rates.entry(format!("{:?} {:?} {sort}", plan.pass, plan.engine)).or_default();
        rate.wrong.push(rule.abs_diff(bytes));
        rate.bytes += bytes;
        if let (Engine::Matmul, Some((layer, settings))) = (plan.engine, &plan.layer)
            && let Some(matmul) = Matmul::of(layer, settings)
            && let Ok(more) = u32::try_from(bytes.saturating_sub(answered))
        {
            self.matmuls.insert(matmul, more);
        }
    }

    /// `data/matmuls.bin`.
    #[must_use]
    pub fn matmuls(&self) -> Vec<u8> {
        matmuls::to_table(&self.matmuls)
    }

    /// How well the rules fit, a line for each sort of plan.
    #[must_use]
    pub fn rates(&self) -> String {
        let mut text = String::new();
        for (sort, Rate { wrong, bytes }) in &self.rates {
            let mut wrong = wrong.clone();
            wrong.sort_unstable();
            let plans = wrong.len();
            let exact = wrong.iter().filter(|bytes| **bytes == 0).count();
            let all: u64 = wrong.iter().sum();
            let part = |percent: usize| wrong.get(plans * percent / 100).copied().unwrap_or(0);
            let _ = writeln!(
                text,
                "{sort}: {exact} of {plans} exact, {all} of {bytes} bytes wrong; of 100 plans 50 by at most {}, 90 by {}, 99 by {}",
                part(50),
                part(90),
                part(99)
            );
        }
        text
    }
}

#[cfg(test)]
#[path = "workspaces/tests.rs"]
mod tests;
