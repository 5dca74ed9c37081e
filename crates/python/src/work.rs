//! Work that takes long: without the interpreter's lock, and given up when someone presses Ctrl-C.
//!
//! In:  work that needs nothing of Python's. Out: its result, or what a signal handler raised meanwhile.
//!
//! Work runs in a thread of its own, so that this one can look for signals, which Python handles in the main
//! thread alone. Reading stops when it is told to; other work is left to end by itself, unheard.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use pyo3::prelude::*;

use crate::errors::internal;

/// How long someone who presses Ctrl-C waits at most.
const PATIENCE: Duration = Duration::from_millis(20);

/// Whether work is still wanted.
#[derive(Clone, Default)]
pub(crate) struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Whether no one waits for the result any more.
    pub(crate) fn is_asked(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Does the work elsewhere and waits for it.
pub(crate) fn run<T: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce(&Stop) -> T + Send + 'static,
) -> PyResult<T> {
    let (sender, mut receiver) = channel();
    let stop = Stop::default();
    let stopped = stop.clone();
    let thread = std::thread::Builder::new().name("tonnage".to_owned()).spawn(move || {
        // What a panic leaves behind is this closure's own.
        let result = catch_unwind(AssertUnwindSafe(|| work(&stopped)));
        // Who does not wait any more needs no answer.
        let _ = sender.send(result);
    });
    thread.map_err(|error| internal(&format!("cannot start a thread: {error}")))?;
    loop {
        let waiting = &mut receiver;
        let received = py.detach(move || waiting.recv_timeout(PATIENCE));
        match received {
            Ok(Ok(result)) => return Ok(result),
            Ok(Err(panic)) => return Err(internal(&what_it_said(&*panic))),
            Err(RecvTimeoutError::Disconnected) => return Err(internal("the work got lost")),
            Err(RecvTimeoutError::Timeout) => {
                if let Err(raised) = py.check_signals() {
                    stop.0.store(true, Ordering::Relaxed);
                    return Err(raised);
                }
            }
        }
    }
}

/// Does short work here, so that a panic becomes an exception that can be caught.
pub(crate) fn guard<T>(work: impl FnOnce() -> T) -> PyResult<T> {
    // What is being worked on is only read, or the caller's own.
    catch_unwind(AssertUnwindSafe(work)).map_err(|panic| internal(&what_it_said(&*panic)))
}

/// What a panic says.
fn what_it_said(panic: &(dyn std::any::Any + Send)) -> String {
    let said = panic.downcast_ref::<&str>().map(|it| (*it).to_owned());
    let said = said.or_else(|| panic.downcast_ref::<String>().cloned());
    format!("this should not happen, please report it: {}", said.as_deref().unwrap_or("a panic"))
}
