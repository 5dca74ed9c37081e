//! The memory of a PyTorch script before a GPU is there.
//!
//! In:  a command such as `python train.py`, a GPU's data, settings, limits.
//! Out: what PyTorch's own allocator asked for, held and kept, and its history, from a run of the unchanged script with
//!      the unchanged PyTorch of the user on libraries that compute nothing (`tonnage-fake-cudart`).
//!
//! # The way of a prediction
//!
//! 1. `environment` finds the Python of the command, and in it PyTorch and the CUDA libraries that it came with.
//! 2. `libraries` writes a library for each of these, with its name, its symbol versions and its exported names
//!    (`stub`), into a folder that is gone afterwards.
//! 3. `gpu` says what the device is.
//! 4. `place` is the folder with all that, in which `process` runs the command, with a time limit and a bound on what is kept
//!    of its output; `hook/`, inside the script, takes figures and history when it ends. `files` lists what it wrote.
//! 5. `predict` does that twice: with values computed beside, to know what the script reads from the device; then
//!    without, given these reads. Figures are those of the second. Where sizes rest on a guess it does so again with others;
//!    where memory does not suffice, once more with all that can be wished for, to know how much that is.
//! 6. `answer` joins what the script's processes tell; `history` tells where the peak was; `orders` replays the second run's
//!    requests under other orders of addresses: where they differ, figures are ranges.
//!
//! `search` asks for many predictions: which values of a command are tried for the largest that fits. So does `many`: of ranks
//! of a job, as many at once as there are cores; `layout` says which ranks there are, and which are said to be alike.

#![forbid(unsafe_code)]

mod answer;

mod capture;

mod environment;

mod error;

mod files;

mod gpu;

mod history;

mod layout;

mod left_group;

mod libraries;

mod many;

pub mod model;

mod orders;

mod place;

mod plain_run;

mod predict;

mod process;

mod search;

mod stub;

pub use answer::{Card, Elsewhere, Failure, MayFail, Peaks, Together};
pub use capture::capture;
pub use environment::Environment;
pub use error::Error;
pub use files::{Change, Written, joined};
pub use gpu::Gpu;
pub use history::{PeakAt, Phase};
pub use layout::{BadLayout, Layout, LayoutAxis, Ranks, rank_name, sets};
pub use libraries::libraries_in;
pub use many::predict_ranks;
pub use orders::{Fit, Range};
pub use place::abandon;
pub use plain_run::{fake_gpu, plain_run};
pub use predict::{Guess, Options, Outcome, World, predict};
pub use process::{Ending, stop_scripts_when, stopping_when};
pub use search::{Axis, BadAxis, Found, Row, Tried, fill, missing, search};
