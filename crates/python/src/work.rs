//! Work that takes long: without the interpreter's lock, and given up when someone presses Ctrl-C.
//!
//! In:  work that needs nothing of Python's. Out: its result, or what a signal handler raised meanwhile.
//!
//! Work runs in a thread of its own, so that this one can look for signals, which Python handles in the main
//! thread alone. Reading, and scripts that run, stop when they are told to; other work is left to end by itself, unheard, but for work
//! that has to put something in order first: whoever presses Ctrl-C waits for its end, and whoever presses it again does not.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use pyo3::prelude::*;
use tonnage::replay::Until;

use crate::errors::internal;

/// How often it is looked whether someone pressed Ctrl-C.
const LOOK: Duration = Duration::from_millis(20);

/// Whether work is still wanted.
#[derive(Clone)]
pub(crate) struct Stop(Until);

impl Stop {
    /// Whether no one waits for the result any more.
    pub(crate) fn is_asked(&self) -> bool {
        self.0.is_over()
    }

    /// The same for Rust's own work.
    pub(crate) fn until(&self) -> &Until {
        &self.0
    }
}

/// Does the work elsewhere and waits for it.
pub(crate) fn run<T: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce(&Stop) -> T + Send + 'static,
) -> PyResult<T> {
    run_for(py, Patience::None, work)
}

/// The same of work that stops when it is told to, and is waited for then.
pub(crate) fn run_to_its_end<T: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce(&Stop) -> T + Send + 'static,
) -> PyResult<T> {
    run_for(py, Patience::Once, work)
}

/// How often someone may press Ctrl-C until nobody waits any more.
#[derive(PartialEq, Eq)]
enum Patience {
    None,
    Once,
}

fn run_for<T: Send + 'static>(
    py: Python<'_>,
    patience: Patience,
    work: impl FnOnce(&Stop) -> T + Send + 'static,
) -> PyResult<T> {
    let (sender, mut receiver) = channel();
    let (until, stop) = Until::told();
    let stopped = Stop(until);
    let mut first = None;
    let thread = std::thread::Builder::new().name("tonnage".to_owned()).spawn(move || {
        // What a panic leaves behind is this closure's own.
        let result = catch_unwind(AssertUnwindSafe(|| work(&stopped)));
        // Who does not wait any more needs no answer.
        let _ = sender.send(result);
    });
    thread.map_err(|error| internal(&format!("cannot start a thread: {error}")))?;
    loop {
        let waiting = &mut receiver;
        let received = py.detach(move || waiting.recv_timeout(LOOK));
        match received {
            Ok(Ok(result)) => return first.map_or(Ok(result), Err),
            Ok(Err(panic)) => return Err(internal(&what_it_said(&*panic))),
            Err(RecvTimeoutError::Disconnected) => return Err(internal("the work got lost")),
            Err(RecvTimeoutError::Timeout) => {
                if let Err(raised) = py.check_signals() {
                    stop.now();
                    if patience == Patience::None || first.is_some() {
                        return Err(raised);
                    }
                    first = Some(raised);
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
