//! Recipes that train, and their memory before they run.
//!
//! ```
//! use tonnage_plan::{Options, Recipe, Size, predict};
//!
//! let options = Options::new(Recipe::EMBEDDED).with(Size::Layers, 12)?.with(Size::Width, 768)?;
//! let outcome = predict(&options)?;
//! println!("{} bytes reserved at the most", outcome.reserved_peak);
//! # assert!(outcome.reserved_peak > 16 * outcome.parameters);
//! # Ok::<(), tonnage_plan::Error>(())
//! ```
//!
//! # The way of a prediction
//!
//! ```text
//! Recipe ─ Options ─ DeviceKind::open ─ train ─────────────────────────────── Outcome
//!          (checked)  host | dry        build, batch, forward, backward, step  peaks, breakdown, phases
//! ```
//!
//! [`predict()`] is [`train()`] on `dry`: the same code, the same requests, no numbers. So a prediction
//! equals the run to the byte, reserved bytes included. That holds as long as no request depends on
//! timing: a recipe uses one stream, copies of `offload` included, and waits at fixed places.
//!
//! | file | what |
//! | --- | --- |
//! | `recipe.rs`, `options.rs`, `device_kind.rs` | what runs, how, where |
//! | `program.rs`, `random.rs` | models, batches, losses |
//! | `mimo/`, `simulate.rs` | a massive-MIMO uplink, and its run |
//! | `train.rs`, `predict.rs` | the loop; the loop without numbers |
//! | `meter.rs`, `outcome.rs` | memory by phase; what came out |
//! | `timeline.rs` | the memory of one step, event by event |
//! | `formula.rs` | what the textbook says, and how far it is off |
//! | `technique.rs`, `fit.rs` | what saves memory; what fits, and what to change where it does not |

#![forbid(unsafe_code)]

// What runs,
mod recipe;

// how,
mod options;

// where,
mod device_kind;

// what can go wrong.
mod error;

// The programs,
mod program;

mod random;

mod mimo;

// the loop,
mod train;

mod simulate;

mod predict;

mod host_speed;

// what it took.
mod meter;

mod outcome;

mod timeline;

mod formula;

// What to change.
mod technique;

mod fit;

pub use device_kind::DeviceKind;
pub use error::{Error, Result};
pub use fit::{Fit, Gain, Suggestion, Together, fit, suggest};
pub use formula::Formula;
pub use host_speed::host_speed;
pub use meter::{Phase, PhaseMemory};
pub use options::{Amp, Checkpoint, OptimizerKind, Options, spelled};
pub use outcome::{Outcome, Symbols};
pub use predict::predict;
pub use recipe::{Gpt2Size, Recipe, Size};
pub use technique::Technique;
pub use timeline::{Span, Timeline, trace};
pub use train::{Progress, train};
