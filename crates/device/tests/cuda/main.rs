//! The `cuda` device on the fake driver. Each test loads a driver of its own.

// What all of them need.
mod support;

mod context;
mod failures;
mod fake;
mod launch;
mod loading;
