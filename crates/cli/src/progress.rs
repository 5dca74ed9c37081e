//! What is shown on a terminal while work goes on: on standard error, and nowhere else.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// Work that is over sooner than a turn of this shows nothing.
const TURN: Duration = Duration::from_millis(120);

/// Something turns until it is dropped.
pub(crate) struct Spinner(ProgressBar);

impl Spinner {
    pub(crate) fn new(doing: &'static str) -> Self {
        let bar = ProgressBar::new_spinner().with_message(doing);
        bar.enable_steady_tick(TURN);
        Self(bar)
    }
}

impl Drop for Spinner {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

/// A bar that fills until it is dropped.
pub(crate) struct Bar(ProgressBar);

impl Bar {
    pub(crate) fn new(doing: &'static str) -> Self {
        let bar = ProgressBar::new(0).with_message(doing);
        let style = ProgressStyle::with_template("{msg} {wide_bar} {pos}/{len}");
        Self(style.map_or_else(|_| bar.clone(), |style| bar.clone().with_style(style)))
    }

    pub(crate) fn set(&self, done: usize, of: usize) {
        self.0.set_length(of as u64);
        self.0.set_position(done as u64);
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
