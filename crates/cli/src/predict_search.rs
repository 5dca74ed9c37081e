//! `tonnage predict --search batch=1..512 -- python train.py --batch {batch}`: the largest that fits.

use std::fmt::Write;
use std::io::IsTerminal;
use std::path::Path;
use std::time::Duration;

use anyhow::{anyhow, bail};
use owo_colors::OwoColorize;
use serde_json::{Map, Value, json};
use tonnage::Bytes;
use tonnage_scripts::{
    Axis, Found, Options, Outcome, Range, Row, Tried, Written, fill, joined, missing, predict,
    search,
};

use crate::ask::Answered;
use crate::output::{counted, grouped, is_the_command, note, plain};
use crate::predict_script::{Seen, Subject, Verdict, describe_files, files_to_json};
use crate::progress::Progress;

/// A run, and what came of it.
struct Run {
    choice: Vec<u64>,
    came: Came,
    reserved: Option<Range>,
    time: Duration,
    /// Whether guesses about masks decide that were not all tried.
    may_differ: bool,
}

/// What comes of a run.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Came {
    Fits,
    /// By a guess or an order of addresses it does not.
    MayNotFit,
    DoesNotFit,
}

/// A search that is under way.
struct Searching<'a> {
    axes: &'a [Axis],
    subject: &'a Subject<'a>,
    runs: Vec<Run>,
    /// The run with the largest that fits so far, and its values.
    best: Option<(Vec<u64>, Seen)>,
    /// Whether each run tries all guesses.
    thorough: bool,
    /// What all runs wrote among files.
    files: Vec<Written>,
    /// Most requests of a run that went to its end.
    requests: u64,
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
    let mut searching = Searching {
        axes,
        subject,
        runs: Vec::new(),
        best: None,
        thorough: false,
        files: Vec::new(),
        requests: 0,
    };
    match searching.search(room) {
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

    /// The largest that fit whatever is guessed: one of which that is not certain is run with all guesses, as it would be by
    /// itself; should it not fit then, all others are too.
    fn search(&mut self, room: u64) -> Result<Found, Ended> {
        loop {
            let found = search(self.axes, room, |choice| self.tried(choice))?;
            let mut holds = true;
            for row in &found.rows {
                let Some(largest) = row.largest else { continue };
                let choice = [&[largest], &row.later[..]].concat();
                let is_best = self.best.as_ref().is_some_and(|(best, _)| *best == choice);
                let is_certain = self.known(&choice).is_some_and(|run| !run.may_differ);
                if !is_certain || (self.axes.len() == 1 && !is_best) {
                    self.thorough = true;
                    let tried = self.run(&choice)?;
                    holds &= matches!(tried, Tried::Fits(_));
                    // Others are run with all guesses only if that makes a difference.
                    self.thorough = !holds;
                }
            }
            if holds {
                return Ok(found);
            }
        }
    }

    fn known(&self, choice: &[u64]) -> Option<&Run> {
        self.runs.iter().find(|run| run.choice == choice)
    }

    /// What came of a choice, if it was run already and more guesses would not tell more; else what comes of it.
    fn tried(&mut self, choice: &[u64]) -> Result<Tried, Ended> {
        let is_thorough = |run: &&Run| !(self.thorough && run.may_differ && run.came == Came::Fits);
        match self.known(choice).filter(is_thorough) {
            Some(run) => Ok(run.tried()),
            None => self.run(choice),
        }
    }

    fn run(&mut self, choice: &[u64]) -> Result<Tried, Ended> {
        let spelled = self.spell(choice);
        let Subject { options, environment, model } = *self.subject;
        let options = Options {
            command: fill(&options.command, self.axes, choice),
            thorough: self.thorough,
            written: self.files.clone(),
            ..options.clone()
        };
        let mut outcome = {
            let so_far = counted(self.runs.len(), "run");
            let _progress =
                Progress::unmeasured(format!("{spelled}: running the script, after {so_far}"));
            predict(&options, environment).map_err(|error| Ended::Error(error.into()))?
        };
        self.files = joined(std::mem::take(&mut self.files), outcome.files);
        outcome.files = self.files.clone();
        let seen = Seen::new(options, outcome, model);
        let reserved = seen.outcome.peaks.as_ref().map(|peaks| peaks.reserved);
        let came = match &seen.verdict {
            Verdict::Fits => Came::Fits,
            Verdict::MayNotFit => Came::MayNotFit,
            Verdict::DoesNotFit => Came::DoesNotFit,
            Verdict::Failed(error) => {
                let error = anyhow!("{spelled}: {error}");
                return Err(Ended::Failed(Box::new(seen), error));
            }
        };
        if came != Came::DoesNotFit {
            self.check_beginning(&spelled, &seen.outcome).map_err(Ended::Error)?;
        }
        let (time, may_differ) = (seen.outcome.time, seen.outcome.may_differ);
        let run = Run { choice: choice.to_vec(), came, reserved, time, may_differ };
        // A terminal has seen it turning.
        if is_the_command() && !std::io::stderr().is_terminal() {
            note(&format!("{spelled}: {}", run.in_words()));
        }
        let tried = run.tried();
        self.runs.retain(|known| known.choice != choice);
        self.runs.push(run);
        if came == Came::Fits {
            // Along one name each that fits is larger than the one before.
            self.best = Some((choice.to_vec(), seen));
        }
        Ok(tried)
    }

    /// A run that read what an earlier one wrote, and then asked for much less, went on from there: its peaks say nothing of a script
    /// that begins.
    fn check_beginning(&mut self, spelled: &str, outcome: &Outcome) -> anyhow::Result<()> {
        let [requests, of_both] = outcome.requests;
        let most = self.requests.max(of_both);
        self.requests = most;
        match &outcome.met {
            Some(path) if requests < most / 4 * 3 => bail!(
                "{spelled}: the script read {}, which an earlier run wrote, and asked for memory {} where another run did {}: it went on \
                 from there, so that this tells nothing of one that begins. Let it write into a folder that is made anew \
                 (tempfile.mkdtemp()); one named by the value does not help, since each value is run twice or more",
                plain(&path.display().to_string()),
                counted(requests as usize, "time"),
                grouped(most)
            ),
            _ => Ok(()),
        }
    }

    fn answered(&mut self, found: &Found, save: Option<&Path>) -> anyhow::Result<Answered> {
        if let Some((_, best)) = &mut self.best {
            best.outcome.files = self.files.clone();
        }
        // A run that fitted once may not under other guesses: the answer is what the row says.
        let is_answer = |choice: &[u64]| match &found.rows[..] {
            [row] => row.later.is_empty() && row.largest.is_some_and(|largest| choice == [largest]),
            _ => false,
        };
        let best = self.best.as_ref().filter(|(choice, _)| is_answer(choice)).map(|(_, seen)| seen);
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
                    "fits": run.came == Came::Fits,
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
            "files": files_to_json(&self.files),
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
        match best {
            Some(best) => {
                let _ = write!(text, "\n{}", best.text);
            }
            None => describe_files(&mut text, &self.files),
        }
        text
    }

    /// The answer for one name.
    fn describe_one(&self, text: &mut String, row: &Row) {
        let name = self.axes[0].name();
        let _ = match (row.largest, row.next) {
            (Some(largest), Some(next)) => {
                let does = self.known(&[next]).map_or("does not fit", |run| run.came.in_words());
                writeln!(
                    text,
                    "{}: {name}={largest}; {next}, the next, was run too and {does}",
                    "the largest that fits".green().bold()
                )
            }
            (Some(largest), None) => writeln!(
                text,
                "{}: {name}={largest}, the last that was asked for; whether more would is not known",
                "all fit".green().bold()
            ),
            (None, _) => {
                let least = self.axes[0].values()[0];
                let came = self.known(&[least]).map(|run| run.came);
                let (nothing, least) = match came {
                    Some(Came::MayNotFit) => (
                        "nothing fits for sure",
                        format!("{name}={least}, the least that was asked for, may not fit"),
                    ),
                    _ => (
                        "nothing fits",
                        format!("not even {name}={least}, the least that was asked for"),
                    ),
                };
                writeln!(text, "{}: {least}", nothing.red().bold())
            }
        };
    }

    /// The answers for several names, a row for each choice of the later ones.
    fn describe_rows(&self, text: &mut String, rows: &[Row]) {
        let (first, later) = (self.axes[0].name(), &self.axes[1..]);
        let _ = writeln!(
            text,
            "{} of {first}; the next was run too, and {}",
            "the largest that fits".bold(),
            self.of_the_next(rows)
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

    /// What comes of all that are next to the largest.
    fn of_the_next(&self, rows: &[Row]) -> &'static str {
        let next = |row: &Row| Some([&[row.next?], &row.later[..]].concat());
        let came = |row: &Row| Some(self.known(&next(row)?)?.came);
        match rows.iter().filter_map(came).all(|came| came == Came::DoesNotFit) {
            true => Came::DoesNotFit.in_words(),
            false => "does not fit, or may not",
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

impl Came {
    fn in_words(self) -> &'static str {
        match self {
            Self::Fits => "fits",
            Self::MayNotFit => "may not fit",
            Self::DoesNotFit => "does not fit",
        }
    }
}

impl Run {
    fn tried(&self) -> Tried {
        match (self.came, self.reserved) {
            (Came::Fits, Some(reserved)) => Tried::Fits(reserved.high),
            _ => Tried::DoesNotFit,
        }
    }

    /// What came of it.
    fn in_words(&self) -> String {
        match (self.came, self.reserved) {
            (Came::Fits, Some(reserved)) => {
                format!(
                    "fits, {} reserved ({} bytes)",
                    Bytes(reserved.high),
                    grouped(reserved.high)
                )
            }
            (came, _) => came.in_words().to_owned(),
        }
    }
}
