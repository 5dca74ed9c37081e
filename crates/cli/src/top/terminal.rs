//! The terminal while it is ours: another screen, keys without echo; and as it was before, however this
//! ends: by a key, an error, a panic or a signal.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::{DefaultTerminal, Frame};

/// A signal is noticed within this time.
const PATIENCE: Duration = Duration::from_millis(100);

/// So long after a signal the program is over, noticed or not.
const GRACE: Duration = Duration::from_secs(1);

/// What shells say of a program that a signal ended.
pub(super) const INTERRUPTED: i32 = 130;

/// What there was to wait for.
pub(super) enum Happening {
    Key(KeyCode),
    Resized,
    /// The time has come.
    Time,
    /// Someone told the program to stop.
    Told,
}

/// The terminal, until dropped.
pub(super) struct Terminal {
    screen: DefaultTerminal,
    told: Arc<AtomicBool>,
}

impl Terminal {
    pub(super) fn take() -> anyhow::Result<Self> {
        let told = Arc::new(AtomicBool::new(false));
        let handler = {
            let told = Arc::clone(&told);
            move || {
                told.store(true, Ordering::Relaxed);
                // Reading a terminal that has been closed never comes back, so that no one notices: this
                // thread then ends the program.
                std::thread::sleep(GRACE);
                let _ = ratatui::try_restore();
                std::process::exit(INTERRUPTED);
            }
        };
        ctrlc::set_handler(handler).context("cannot listen to signals")?;
        // Sets a hook too that gives the terminal back on a panic, before its message.
        let screen = ratatui::try_init().context("cannot take the terminal");
        match screen {
            Ok(screen) => Ok(Self { screen, told }),
            Err(error) => {
                // It may have been taken half.
                let _ = ratatui::try_restore();
                Err(error)
            }
        }
    }

    pub(super) fn draw(&mut self, draw: impl FnOnce(&mut Frame)) -> anyhow::Result<()> {
        self.screen.draw(draw).context("cannot write to the terminal")?;
        Ok(())
    }

    /// Waits for whatever comes first.
    pub(super) fn wait(&self, until: Instant) -> anyhow::Result<Happening> {
        loop {
            if self.told.load(Ordering::Relaxed) {
                return Ok(Happening::Told);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(Happening::Time);
            }
            if event::poll(left.min(PATIENCE)).context("cannot read from the terminal")? {
                match event::read().context("cannot read from the terminal")? {
                    Event::Key(key) if is_ctrl_c(&key) => return Ok(Happening::Key(KeyCode::Esc)),
                    Event::Key(key) if key.kind != KeyEventKind::Release => {
                        return Ok(Happening::Key(key.code));
                    }
                    Event::Resize(..) => return Ok(Happening::Resized),
                    _ => {}
                }
            }
        }
    }
}

/// Without echo it is a key like any other, and means what it always does.
fn is_ctrl_c(key: &KeyEvent) -> bool {
    key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL)
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // A terminal that is gone needs nothing.
        let _ = self.screen.show_cursor();
        let _ = ratatui::try_restore();
    }
}
