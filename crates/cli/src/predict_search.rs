//! `tonnage predict --search batch=1..512 -- python train.py --batch {batch}`: the largest that fits.

use std::fmt::Write;
use std::io::IsTerminal;
use std::path::Path;
use std::time::Duration;

use anyhow::{anyhow, bail};
use owo_colors::OwoColorize;
use serde_json::{Map, Value, json};
use tonnage::Bytes;
use tonnage_scripts::{Axis, Found, Options, Range, Row, Tried, fill, missing, predict, search};

use crate::ask::Answered;
use crate::output::{counted, grouped, is_the_command, note, plain};
use crate::predict_script::{Seen, Subject, Verdict};
use crate::progress::Progress;

/// A run, and what came of it.
struct Run {
    choice: Vec<u64>,
    fits: bool,
    reserved: Option<Range>,
    time: Duration,
}

/// A search that is under way.
struct Searching<'a> {
    axes: &'a [Axis],
    subject: &'a Subject<'a>,
    runs: Vec<Run>,
    /// The run with the largest that fits so far.
    best: Option<Seen>,
}

/// Why a search ends before it has an answer.
enum Ended {
    /// The script failed for another reason than memory.
    Failed(Box<Seen>, anyhow::Error),
    Error(anyhow::Error),
}

/// The largest choices of values that fit; of a script that fails by itself, what is known of that run, and the error.
pub(crate) fn look(
    axes: &[Axis],
    subject: &Subject<'_>,
    save: Option<&Path>,
) -> anyhow::Result<(Answered, Option<anyhow::Error>)> {
    let Subject { options, .. } = subject;
    check(axes, options, save)?;
    let room = options.gpu.room(options.limit)?;
    let mut searching = Searching { axes, subject, runs: Vec::new(), best: None };
    match search(axes, room, |choice| searching.run(choice)) {
        Ok(found) => Ok((searching.answered(&found, save)?, None)),
        Err(Ended::Error(error)) => Err(error),
        Err(Ended::Failed(seen, error)) => {
            let error = error.context("the search ends here");
            Ok((seen.answered(None), Some(error)))
        }
    }
}

/// Refuses what cannot be searched for.
fn check(axes: &[Axis], options: &Options, save: Option<&Path>) -> anyhow::Result<()> {
    if let Some(axis) = missing(&options.command, axes) {
        bail!(
            "--search {}: `{}` is nowhere in the command, so that every run would be the same: write it where the number goes, \
             as in `--{0} {1}`",
            axis.name(),
            axis.place()
        );
    }
    let twice = axes
        .iter()
        .enumerate()
        .find(|(i, axis)| axes[..*i].iter().any(|earlier| earlier.name() == axis.name()));
    if let Some((_, axis)) = twice {
        bail!(
            "--search {0}: `{0}` is searched for twice: write all its values together, as in `{0}=1..8,16`",
            axis.name()
        );
    }
    if axes.len() > 1 && save.is_some() {
        bail!(
            "--save keeps one run: with several names to search for, there is a largest for each choice of the later ones"
        );
    }
    Ok(())
}

impl Searching<'_> {
    /// The command with the names in it, as it can be read.
    fn command(&self) -> Vec<String> {
        let Subject { options, model, .. } = *self.subject;
        model.map_or_else(|| options.command.clone(), |file| file.by_its_name(&options.command))
    }

    /// `batch=8 seq=128`.
    fn spell(&self, choice: &[u64]) -> String {
        let pairs: Vec<_> = self
            .axes
            .iter()
            .zip(choice)
            .map(|(axis, value)| format!("{}={value}", axis.name()))
            .collect();
        pairs.join(" ")
    }

    fn run(&mut self, choice: &[u64]) -> Result<Tried, Ended> {
        let spelled = self.spell(choice);
        let Subject { options, environment, model } = *self.subject;
        let options =
            Options { command: fill(&options.command, self.axes, choice), ..options.clone() };
        let outcome = {
            let so_far = counted(self.runs.len(), "run");
            let _progress =
                Progress::unmeasured(format!("{spelled}: running the script, after {so_far}"));
            predict(&options, environment).map_err(|error| Ended::Error(error.into()))?
        };
        let seen = Seen::new(options, outcome, model);
        let reserved = seen.outcome.peaks.as_ref().map(|peaks| peaks.reserved);
        let fits = match &seen.verdict {
            Verdict::Fits => true,
            Verdict::MayNotFit | Verdict::DoesNotFit => false,
            Verdict::Failed(error) => {
                let error = anyhow!("{spelled}: {error}");
                return Err(Ended::Failed(Box::new(seen), error));
            }
        };
        let run = Run { choice: choice.to_vec(), fits, reserved, time: seen.outcome.time };
        // A terminal has seen it turning.
        if is_the_command() && !std::io::stderr().is_terminal() {
            note(&format!("{spelled}: {}", run.in_words()));
        }
        self.runs.push(run);
        if fits {
            // Along one name each that fits is larger than the one before.
            self.best = Some(seen);
        }
        Ok(match (fits, reserved) {
            (true, Some(reserved)) => Tried::Fits(reserved.high),
            _ => Tried::DoesNotFit,
        })
    }

    fn answered(&self, found: &Found, save: Option<&Path>) -> anyhow::Result<Answered> {
        let best = self.best.as_ref().filter(|_| self.axes.len() == 1);
        if let (Some(best), Some(path)) = (best, save) {
            best.save(path)?;
        }
        let best = best.map(|best| best.answered(save));
        Ok(Answered {
            text: self.describe(found, best.as_ref()),
            json: self.to_json(found, best.as_ref()).to_string(),
            negative: found.rows.iter().all(|row| row.largest.is_none()),
        })
    }

    fn to_json(&self, found: &Found, best: Option<&Answered>) -> Value {
        let names = |choice: &[u64]| -> Map<String, Value> {
            let pairs = self.axes.iter().zip(choice);
            pairs.map(|(axis, value)| (axis.name().to_owned(), (*value).into())).collect()
        };
        let whole = |first: Option<u64>, row: &Row| {
            first.map(|first| names(&[&[first], &row.later[..]].concat()))
        };
        let rows: Vec<_> = found
            .rows
            .iter()
            .map(|row| json!({ "largest": whole(row.largest, row), "next": whole(row.next, row) }))
            .collect();
        let runs: Vec<_> = self
            .runs
            .iter()
            .map(|run| {
                json!({
                    "values": names(&run.choice),
                    "fits": run.fits,
                    "reserved": run.reserved.map(|it| json!({ "low": it.low, "high": it.high })),
                    "seconds": run.time.as_secs_f64(),
                })
            })
            .collect();
        let odd: Vec<_> = found
            .odd
            .iter()
            .map(|(small, large)| json!({ "smaller": names(small), "larger": names(large) }))
            .collect();
        json!({
            "schema": 1,
            "command": self.command(),
            "gpu": self.subject.options.gpu.name,
            "limit": self.subject.options.limit,
            "search": rows,
            "runs": runs,
            "odd": odd,
            "best": best.and_then(|best| serde_json::from_str::<Value>(&best.json).ok()),
        })
    }

    fn describe(&self, found: &Found, best: Option<&Answered>) -> String {
        let gpu = &self.subject.options.gpu;
        let mut text = String::new();
        let limit = match self.subject.options.limit {
            Some(limit) => format!(", of which {} may be used", Bytes(gpu.total(Some(limit)))),
            None => String::new(),
        };
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "{}\non one {} ({}){limit}\n",
            plain(&self.command().join(" ")).bold(),
            plain(&gpu.name),
            Bytes(gpu.memory)
        );
        match &found.rows[..] {
            [row] if self.axes.len() == 1 => self.describe_one(&mut text, row),
            rows => self.describe_rows(&mut text, rows),
        }
        for (small, large) in &found.odd {
            let _ = writeln!(
                text,
                "{} does not fit while {} does: more does not always need more here, so that larger ones may fit too",
                self.spell(small),
                self.spell(large)
            );
        }
        self.describe_runs(&mut text);
        if let Some(best) = best {
            let _ = write!(text, "\n{}", best.text);
        }
        text
    }

    /// The answer for one name.
    fn describe_one(&self, text: &mut String, row: &Row) {
        let name = self.axes[0].name();
        let _ = match (row.largest, row.next) {
            (Some(largest), Some(next)) => writeln!(
                text,
                "{}: {name}={largest}; {next}, the next, was run too and does not fit",
                "the largest that fits".green().bold()
            ),
            (Some(largest), None) => writeln!(
                text,
                "{}: {name}={largest}, the last that was asked for; whether more would is not known",
                "all fit".green().bold()
            ),
            (None, _) => writeln!(
                text,
                "{}: not even {name}={}, the least that was asked for",
                "nothing fits".red().bold(),
                self.axes[0].values()[0]
            ),
        };
    }

    /// The answers for several names, a row for each choice of the later ones.
    fn describe_rows(&self, text: &mut String, rows: &[Row]) {
        let (first, later) = (self.axes[0].name(), &self.axes[1..]);
        let _ = writeln!(
            text,
            "{} of {first}; the next was run too, and does not fit",
            "the largest that fits".bold()
        );
        let width = |axis: &Axis| {
            let longest = axis.values().last().map_or(0, |it| it.to_string().len());
            longest.max(axis.name().len())
        };
        for axis in later {
            let _ = write!(text, "{:>1$}  ", axis.name(), width(axis));
        }
        let _ = writeln!(text, "{:>1$}  next", first, width(&self.axes[0]).max("none".len()));
        for row in rows {
            for (axis, value) in later.iter().zip(&row.later) {
                let _ = write!(text, "{value:>0$}  ", width(axis));
            }
            let width = width(&self.axes[0]).max("none".len());
            let largest = row.largest.map_or_else(|| "none".to_owned(), |it| it.to_string());
            let next = row.next.map_or_else(|| "was not asked for".to_owned(), |it| it.to_string());
            let _ = writeln!(text, "{largest:>width$}  {next}");
        }
    }

    /// Every run, in the order of its values.
    fn describe_runs(&self, text: &mut String) {
        let mut runs: Vec<&Run> = self.runs.iter().collect();
        runs.sort_by(|a, b| (&a.choice[1..], a.choice[0]).cmp(&(&b.choice[1..], b.choice[0])));
        let time: Duration = runs.iter().map(|run| run.time).sum();
        let _ = writeln!(
            text,
            "\n{} in {:.0} s",
            counted(self.runs.len(), "run").bold(),
            time.as_secs_f64()
        );
        let width = runs.iter().map(|run| self.spell(&run.choice).len()).max().unwrap_or(0);
        for run in runs {
            let _ = writeln!(text, "  {:<width$}  {}", self.spell(&run.choice), run.in_words());
        }
    }
}

impl Run {
    /// What came of it.
    fn in_words(&self) -> String {
        match (self.fits, self.reserved) {
            (true, Some(reserved)) => {
                format!(
                    "fits, {} reserved ({} bytes)",
                    Bytes(reserved.high),
                    grouped(reserved.high)
                )
            }
            _ => "does not fit".to_owned(),
        }
    }
}
