//! Recordings and predictions as a local web page.
//!
//! In:  snapshot files, a run that goes on, or a fleet ([`Recordings`]).
//! Out: a [`Server`] on this machine's own address: the page, and what it asks for.
//!
//! ```no_run
//! use tonnage_view::{Recordings, Server, ViewOptions};
//!
//! let recordings = Recordings::new(ViewOptions::default());
//! recordings.open("run.pickle", tonnage_snapshot::open("run.pickle".as_ref())?);
//! let server = Server::bind(recordings, None)?;
//! println!("{}", server.url());
//! server.start()?.wait();
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # The way of a request
//!
//! | stage | in → out | lives in |
//! | --- | --- | --- |
//! | 1 gate | request → the same, or a refusal | `serve.rs`, `connections.rs`, `gate.rs`, `token.rs` |
//! | 2 page | path → an embedded file | `assets.rs` |
//! | 3 route | path, JSON → question | `api/`, one file each |
//! | 4 recordings | id → file, what was computed of it | `recordings.rs`, `recording.rs`, `run.rs`; of a fleet, number → file: `fleet.rs` |
//! | 5 answers | file → figures | `tonnage_analysis`, `tonnage_replay`, `tonnage_plan` |
//! | 6 timeline | file → columns → bytes | `timeline/`, `encode.rs` |
//!
//! The page draws; nothing is drawn here, and no figure is made here. What takes long runs apart from the
//! connections, a few at a time, and once for each recording, however often it is asked for.
//!
//! # Who may ask
//!
//! Only programs on this machine reach the address, and only those that know its token are answered. Pages of other
//! sites are kept out by the `Host` and `Origin` headers, so a name that points here does not help them. What files
//! say is sent as data; the page's policy allows no script but its own.

#![forbid(unsafe_code)]

// 1. Who may ask.
mod token;

mod gate;

mod serve;

mod connections;

// 2. The page.
mod assets;

// 3. What it asks for.
mod api;

mod error;

// 4. What is open.
mod recordings;

mod recording;

mod run;

mod fleet;

// 6. Recordings as columns.
mod timeline;

mod encode;

pub use connections::Patience;
pub use fleet::FleetPage;
pub use recordings::{Recordings, ViewOptions};
pub use run::{LiveRun, RunProgress};
pub use serve::{PORT, Running, ServeError, Server, Stopper};
