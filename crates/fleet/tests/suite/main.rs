//! Fleets that are made of a real recording, with planted differences.

#[path = "../../examples/make_fleet/maker.rs"]
mod maker;

mod dataset;

mod planted;

#[cfg(feature = "storage")]
mod server;

#[cfg(feature = "storage")]
mod storage;
