//! `tonnage top`: running processes that use the engine, live.

mod bars;

mod screen;

mod terminal;

mod text;

mod view;

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use clap::Args;
use tonnage::monitor::{Places, now_us, processes};

use crate::Answer;
use crate::output::{print, print_json};
use screen::Style;
use terminal::{Happening, Terminal};
use view::{Next, View};

/// Show the memory of running processes, live
///
/// A process shows itself if it has TONNAGE_PUBLISH=1 in its environment, or calls `Device::publish`; with
/// TONNAGE_PUBLISH=sites also the lines that hold its memory. Only programs of the same user see it. Where
/// processes and this command do not share a runtime folder, as across containers, name one for both with
/// TONNAGE_MONITOR_DIR.
///
/// Keys: up and down or `j` and `k` choose a row, `s` sorts by the next column, `p` pauses, `?` helps, `q`
/// quits.
///
/// Exit status: 0, or 2 for bad input.
#[derive(Args)]
pub(crate) struct Arguments {
    /// Seconds between two looks
    #[arg(long, value_name = "SECONDS", default_value = "0.5", value_parser = interval)]
    interval: Duration,

    /// Print a table and quit
    #[arg(long)]
    once: bool,

    /// Print one JSON object and quit
    #[arg(long)]
    json: bool,
}

/// From as often as figures are renewed to once an hour.
fn interval(text: &str) -> Result<Duration, String> {
    let seconds: Option<f64> = text.parse().ok().filter(|it| (0.1..=3600.0).contains(it));
    let seconds = seconds.ok_or("write a number of seconds from 0.1 to 3600")?;
    Ok(Duration::from_secs_f64(seconds))
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<Answer> {
    let places = Places::from_env();
    if arguments.json {
        print_json(&text::json(&processes(&places)))?;
    } else if arguments.once {
        let mut view = View::default();
        view.update(processes(&places), now_us());
        print(&text::table(&view))?;
    } else {
        watch(&places, arguments.interval)?;
    }
    Ok(Answer::Yes)
}

fn watch(places: &Places, interval: Duration) -> anyhow::Result<()> {
    if !std::io::stdout().is_terminal() {
        anyhow::bail!(
            "standard output is no terminal: `tonnage top --once` prints a table, `--json` an object"
        );
    }
    let mut terminal = Terminal::take()?;
    let (mut view, style) = (View::default(), Style::from_env());
    let mut look_at = Instant::now();
    loop {
        let now = Instant::now();
        if now >= look_at {
            if !view.paused() {
                view.update(processes(places), now_us());
            }
            look_at = now + interval;
        }
        terminal.draw(|frame| screen::draw(frame, &mut view, style))?;
        loop {
            match terminal.wait(look_at)? {
                Happening::Key(key) => match view.key(key) {
                    Next::Leave => return Ok(()),
                    Next::Draw => break,
                    Next::Nothing => {}
                },
                Happening::Resized | Happening::Time => break,
                // With the terminal as it was.
                Happening::Told => {
                    drop(terminal);
                    std::process::exit(terminal::INTERRUPTED);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_is_a_number_of_seconds_that_makes_sense() {
        assert_eq!(interval("0.5"), Ok(Duration::from_millis(500)));
        assert_eq!(interval("60"), Ok(Duration::from_secs(60)));
        for text in ["", "0", "-1", "nan", "inf", "1e9", "soon"] {
            assert!(interval(text).is_err(), "{text}");
        }
    }
}
