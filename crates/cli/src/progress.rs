//! Progress of long work: a line on standard error, if that is a terminal, and gone at the end.

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::output::plain;

/// Work that takes no longer than this shows nothing.
const PATIENCE: Duration = Duration::from_millis(300);

/// How far work has come.
#[derive(Debug)]
pub struct Progress {
    bar: ProgressBar,
    started: Instant,
}

impl Progress {
    /// Work that is measured in bytes; without a total only what is done is shown, and something turns, since a
    /// pipe may have nothing to give for a while.
    pub fn bytes(what: impl AsRef<str>, total: Option<u64>) -> Self {
        match total {
            Some(_) => Self::hidden(what, total, "{msg} {wide_bar} {bytes}/{total_bytes} {eta}"),
            None => Self::turning(what, "{spinner} {msg} {bytes}"),
        }
    }

    /// Work that is a number of steps, to be [`set`](Self::set).
    pub fn steps(what: impl AsRef<str>) -> Self {
        Self::hidden(what, Some(0), "{msg} {wide_bar} {pos}/{len}")
    }

    /// The same, with how long it may still take.
    pub fn with_estimate(what: impl AsRef<str>) -> Self {
        Self::hidden(what, Some(0), "{msg} {wide_bar} {pos}/{len} {eta}")
    }

    /// Work that does not say how far it is: something turns.
    pub fn unmeasured(what: impl AsRef<str>) -> Self {
        Self::turning(what, "{spinner} {msg}")
    }

    fn turning(what: impl AsRef<str>, template: &str) -> Self {
        let progress = Self::hidden(what, None, template);
        progress.bar.set_draw_target(ProgressDrawTarget::stderr());
        progress.bar.enable_steady_tick(PATIENCE);
        progress
    }

    fn hidden(what: impl AsRef<str>, total: Option<u64>, template: &str) -> Self {
        let bar = ProgressBar::with_draw_target(total, ProgressDrawTarget::hidden());
        let style = ProgressStyle::with_template(template);
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.set_message(plain(what.as_ref()).into_owned());
        Self { bar, started: Instant::now() }
    }

    /// So many bytes more are done.
    fn advance(&self, bytes: usize) {
        self.show_if_late();
        self.bar.inc(bytes as u64);
    }

    /// So many steps of all are done.
    pub fn set(&self, done: usize, of: usize) {
        self.show_if_late();
        self.bar.set_length(of as u64);
        self.bar.set_position(done as u64);
    }

    /// Says something else beside the bar.
    pub fn say(&self, what: impl AsRef<str>) {
        self.bar.set_message(plain(what.as_ref()).into_owned());
    }

    fn show_if_late(&self) {
        if self.bar.is_hidden() && self.started.elapsed() > PATIENCE {
            // Stays hidden where it is no terminal.
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
        }
    }

    /// Counts what is read through it.
    pub fn reader<R: Read>(&self, inner: R) -> Counted<'_, R> {
        Counted { inner, progress: self }
    }

    /// Counts what is written through it.
    pub fn writer<W: Write>(&self, inner: W) -> Counted<'_, W> {
        Counted { inner, progress: self }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// Counts what passes through.
#[derive(Debug)]
pub struct Counted<'a, T> {
    inner: T,
    progress: &'a Progress,
}

impl<R: Read> Read for Counted<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let bytes = self.inner.read(buffer)?;
        self.progress.advance(bytes);
        Ok(bytes)
    }
}

impl<W: Write> Write for Counted<'_, W> {
    fn write(&mut self, buffer: &[u8]) -> std::io::Result<usize> {
        let bytes = self.inner.write(buffer)?;
        self.progress.advance(bytes);
        Ok(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.inner.flush()
    }
}
