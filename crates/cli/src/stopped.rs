//! Work that Ctrl-C ends with what is done kept: the same command goes on from there.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::Answer;
use crate::output::{end_at_once, grouped, is_the_command, note};

/// What shells say of a program that Ctrl-C ended.
const STOPPED: u8 = 130;

/// Someone pressed Ctrl-C; what was done by then is kept.
#[derive(Debug)]
pub(crate) struct StoppedEarly {
    pub(crate) done: usize,
    /// 0 if that is not known yet.
    pub(crate) of: usize,
    /// Of what: `files`.
    pub(crate) what: &'static str,
}

impl std::fmt::Display for StoppedEarly {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // It was not known yet how much there is to do.
        if self.of == 0 {
            return f.write_str("stopped: nothing was looked at yet");
        }
        let (done, of, what) = (grouped(self.done), grouped(self.of), self.what);
        write!(
            f,
            "stopped: {done} of {of} {what} are done and kept; the same command goes on from there"
        )
    }
}

impl std::error::Error for StoppedEarly {}

/// Says so, and with what status the program ends, if that is why it does.
pub(crate) fn say_if_stopped(error: anyhow::Error) -> anyhow::Result<Answer> {
    match error.downcast_ref::<StoppedEarly>() {
        Some(stopped) => {
            note(&stopped.to_string());
            Ok(Answer::Passed(STOPPED))
        }
        None => Err(error),
    }
}

/// Lets Ctrl-C stop work; whoever presses it again does not wait for what is under way. Inside another program nothing is
/// done: signals are its own.
pub(crate) fn on_ctrl_c(stop: impl Fn() + Send + 'static) {
    if !is_the_command() {
        return;
    }
    let pressed = AtomicBool::new(false);
    // Where no handler can be set, Ctrl-C ends the program, and what is kept by then is kept.
    let _ = ctrlc::set_handler(move || {
        if pressed.swap(true, Ordering::Relaxed) {
            end_at_once();
        }
        stop();
    });
}
