//! `tonnage fleet`: the snapshots of a thousand ranks.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, anyhow, bail};
use clap::{Args, Subcommand};
use serde_json::json;
use tonnage::Bytes;
use tonnage::replay::Until;
use tonnage_fleet::{
    Answer as FleetAnswer, AnswerOptions, Card, Crew, Dataset, Found, LookOptions, NamePattern,
    Row, compare_outliers, find, look,
};
use tonnage_scripts::Gpu;

use crate::Answer;
use crate::ask::Answered;
use crate::circumstances::Circumstances;
use crate::output::{end_at_once, grouped, is_the_command, note};
use crate::progress::Progress;
use crate::report::layout;
use crate::size::memory_size;

/// Say which of a thousand ranks differ, and why
#[derive(Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    Report(Box<ReportArguments>),
    /// Which files there are, and which of them are left to do
    #[command(hide = true)]
    Files(Box<ReportArguments>),
    /// One file, as a row of the dataset
    #[command(hide = true)]
    Look(Box<LookArguments>),
    /// Put rows into a dataset
    #[command(hide = true)]
    Keep(KeepArguments),
}

/// For programs that spread files over machines: what is asked of each.
#[derive(Args)]
struct LookArguments {
    /// Where to open it
    path: PathBuf,

    /// What it goes by
    #[arg(long)]
    address: String,

    /// Its bytes
    #[arg(long)]
    size: Option<u64>,

    /// What tells it from another version
    #[arg(long)]
    version_of: String,

    #[command(flatten)]
    asked: Asked,
}

#[derive(Args)]
struct KeepArguments {
    /// Rows, one on each line
    #[arg(long, value_name = "FILE")]
    rows: PathBuf,

    /// The dataset
    #[arg(long, value_name = "FOLDER")]
    out: PathBuf,
}

/// Compare the snapshots of all ranks of a job
///
/// Which ranks are alike, by what holds their memory at the peak; who differs from its group, and in what; whose requests
/// failed, with the verdict of `tonnage report`, and who was near the limit; what grows; how uneven it is.
///
/// Ranks are told by names, such as `rank_12.pickle`, `node3/r0012.pkl` or `pp1_tp0_dp7_rank130.pickle`: see --names.
///
/// Exit status: 0 if every file was read, 1 if some were not, or folders not looked into (they are named), 2 for bad input or if none was.
#[derive(Args)]
struct ReportArguments {
    /// Folders with snapshots, globs ('runs/**/rank_*.pickle'), lists (@FILE with one on each line, @- for standard input),
    /// files
    #[arg(required = true)]
    source: Vec<String>,

    /// Keep what is seen of each file in a dataset in this folder, for a run that goes on where this one stops, and for
    /// other tools: Parquet tables `files`, `held` and `iterations`. What was seen before, of files that did not change, is not
    /// looked at again. At the end it has the rows of this command alone: what was kept of other files, or asked otherwise, as
    /// with --tune, goes. Take a folder for each question
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,

    #[command(flatten)]
    asked: Asked,

    /// Files that are looked at at once. Else as many as there are cores
    #[arg(long, value_name = "N")]
    jobs: Option<NonZeroUsize>,

    /// Memory that reading may take, of all files at once together; what follows may take up to eight times that. Else half
    /// of what the machine, the container and `ulimit` leave. Bytes, `4GiB`, `4GB`
    #[arg(long, value_name = "SIZE", value_parser = memory_size)]
    max_memory: Option<Bytes>,

    /// Let each file be a task of this Ray cluster, an address or `auto`: of the Python package alone
    #[arg(long, value_name = "ADDRESS")]
    ray: Option<String>,

    /// Rows that were made elsewhere, one on each line
    #[arg(long, value_name = "FILE", hide = true)]
    rows: Option<PathBuf>,

    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// What is asked of every file.
#[derive(Args)]
struct Asked {
    /// How names tell whose a file is: a regular expression with groups named `rank`, `node`, `pp`, `tp`, `dp` or `step`, as
    /// in `worker(?<rank>\d+)`. Else by the usual words in front of numbers
    #[arg(long, value_name = "REGEX", value_parser = names)]
    names: Option<NamePattern>,

    #[command(flatten)]
    circumstances: Circumstances,

    /// Find the one setting that is best for all ranks: each is replayed under eight of them, which takes longer than all
    /// the rest
    #[arg(long)]
    tune: bool,
}

fn names(pattern: &str) -> Result<NamePattern, String> {
    NamePattern::parse(pattern).map_err(|error| error.to_string())
}

impl Asked {
    fn looking(&self) -> LookOptions {
        let it = self.circumstances;
        LookOptions {
            limit: it.limit.map(|limit| limit.0),
            total: it.total.map(|total| total.0),
            release: it.pytorch,
            ordinal: it.ordinal,
            tune: self.tune,
            names: self.names.clone().unwrap_or_else(NamePattern::usual),
            memory: None,
        }
    }

    /// The same as words of a command.
    fn words(&self) -> Vec<String> {
        let mut words = Vec::new();
        let mut say = |flag: &str, value: Option<String>| {
            words.extend(value.map(|value| format!("{flag}={value}")));
        };
        say("--limit", self.circumstances.limit.map(|it| it.0.to_string()));
        say("--total", self.circumstances.total.map(|it| it.0.to_string()));
        say("--pytorch", self.circumstances.pytorch.map(|it| it.name().to_owned()));
        say("--ordinal", self.circumstances.ordinal.map(|it| it.to_string()));
        say("--names", self.names.as_ref().and_then(|it| it.text()).map(str::to_owned));
        words.extend(self.tune.then(|| "--tune".to_owned()));
        words
    }
}

impl ReportArguments {
    fn crew(&self) -> Crew {
        let usual = Crew::default();
        Crew { workers: self.jobs.unwrap_or(usual.workers), memory: self.max_memory.map(|it| it.0) }
    }

    fn answering(&self) -> AnswerOptions {
        let LookOptions { limit, names, .. } = self.asked.looking();
        AnswerOptions { limit, cards: cards(), names }
    }

    fn find(&self) -> anyhow::Result<Vec<Found>> {
        let _progress = Progress::unmeasured("looking for files");
        Ok(find(&self.source)?)
    }
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<Answer> {
    let json = match &arguments.verb {
        Verb::Report(report) => report.json,
        _ => true,
    };
    match answer(arguments) {
        Ok(answered) => answered.print(json),
        Err(error) => match error.downcast_ref::<StoppedEarly>() {
            Some(stopped) => {
                note(&stopped.to_string());
                Ok(Answer::Passed(STOPPED))
            }
            None => Err(error),
        },
    }
}

/// What shells say of a program that Ctrl-C ended.
const STOPPED: u8 = 130;

/// Someone pressed Ctrl-C; what was done by then is kept.
#[derive(Debug)]
struct StoppedEarly {
    done: usize,
    of: usize,
}

impl std::fmt::Display for StoppedEarly {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (done, of) = (grouped(self.done), grouped(self.of));
        write!(
            f,
            "stopped: {done} of {of} files are done and kept; the same command goes on from there"
        )
    }
}

impl std::error::Error for StoppedEarly {}

/// What the verb says.
pub(crate) fn answer(arguments: &Arguments) -> anyhow::Result<Answered> {
    match &arguments.verb {
        Verb::Report(arguments) => report(arguments),
        Verb::Files(arguments) => files(arguments),
        Verb::Look(arguments) => look_at_one(arguments),
        Verb::Keep(arguments) => keep(arguments),
    }
}

fn report(arguments: &ReportArguments) -> anyhow::Result<Answered> {
    if arguments.ray.is_some() {
        bail!(
            "--ray is of the Python package: `pip install tonnage ray`, then the same command as `python -m tonnage fleet \
             report …`"
        );
    }
    let files = arguments.find()?;
    let until = if arguments.out.is_some() { until_ctrl_c() } else { Until::default() };
    let mut dataset = arguments.out.as_deref().map(Dataset::open).transpose()?;
    let options = arguments.asked.looking();
    let mut rows = match &dataset {
        Some(dataset) => dataset.known(&files, &options)?,
        None => Vec::new(),
    };
    if let Some(path) = &arguments.rows {
        // A dataset may have them already.
        let known: BTreeSet<_> = rows.iter().map(|it| it.address.clone()).collect();
        rows.extend(read_rows(path)?.into_iter().filter(|row| !known.contains(&row.address)));
    }
    let left = left_of(&files, &rows);
    let looked = look_at(arguments, &left, rows.len(), dataset.as_mut(), &until)?;
    rows.extend(looked);
    if let Some(dataset) = &mut dataset {
        dataset.finish(&rows)?;
    }
    answer_of(arguments, &files, &rows)
}

/// Files that no row is about.
fn left_of(files: &[Found], rows: &[Row]) -> Vec<Found> {
    let known: BTreeSet<_> = rows.iter().map(|it| &it.address).collect();
    files.iter().filter(|it| !known.contains(&it.address)).cloned().collect()
}

fn look_at(
    arguments: &ReportArguments,
    files: &[Found],
    known: usize,
    mut dataset: Option<&mut Dataset>,
    until: &Until,
) -> anyhow::Result<Vec<Row>> {
    let mut done = 0;
    let looked = {
        let progress = Progress::with_estimate("looking at files");
        let tell = |_: usize, row: &Row| {
            done += 1;
            progress.set(done, files.len());
            dataset.as_mut().map_or(anyhow::Ok(()), |it| Ok(it.add(row)?))
        };
        arguments.crew().look_at(files, &arguments.asked.looking(), until, tell)?
    };
    match looked {
        Ok(rows) => Ok(rows),
        Err(_) => {
            if let Some(dataset) = dataset {
                dataset.flush()?;
            }
            Err(StoppedEarly { done: known + done, of: known + files.len() }.into())
        }
    }
}

/// Until someone presses Ctrl-C; whoever presses it again does not wait for files that are being read.
fn until_ctrl_c() -> Until {
    if !is_the_command() {
        return Until::default();
    }
    let (until, stop) = Until::told();
    let pressed = AtomicBool::new(false);
    // Where no handler can be set, Ctrl-C ends the program, and what is kept by then is kept.
    let _ = ctrlc::set_handler(move || {
        if pressed.swap(true, Ordering::Relaxed) {
            end_at_once();
        }
        stop.now();
    });
    until
}

/// What rows say, as text and as JSON.
fn answer_of(
    arguments: &ReportArguments,
    files: &[Found],
    rows: &[Row],
) -> anyhow::Result<Answered> {
    let mut answer = FleetAnswer::of(rows, &arguments.answering());
    if let (0, Some(first)) = (answer.read, answer.unreadable.first()) {
        let (file, why) = (&first.whose.file, &first.why);
        match files.len() {
            1 => bail!("{file}: {why}"),
            all => bail!("none of {all} files could be read, first {file}: {why}"),
        }
    }
    {
        let _progress = Progress::unmeasured("comparing those that differ");
        // Two files are there at once.
        let memory = arguments.max_memory.map(|it| it.0 / 2);
        let looking = LookOptions { memory, ..arguments.asked.looking() };
        compare_outliers(&mut answer, files, &looking);
    }
    Ok(Answered {
        text: answer.to_text_in(layout()),
        json: answer.to_json(),
        negative: answer.is_negative(),
    })
}

/// JSON for programs alone.
fn told(json: &serde_json::Value) -> Answered {
    let json = json.to_string();
    Answered { text: json.clone(), json, negative: false }
}

fn files(arguments: &ReportArguments) -> anyhow::Result<Answered> {
    let (files, options) = (arguments.find()?, arguments.asked.looking());
    let known = match &arguments.out {
        Some(folder) => Dataset::open(folder)?.known(&files, &options)?,
        None => Vec::new(),
    };
    let analysis = options.analysis();
    let left = left_of(&files, &known);
    let left = left.iter().map(|file| {
        json!({
            "address": file.address,
            "size": file.size,
            "version": file.version,
            "analysis": analysis,
            "place": options.names.place(&file.address),
        })
    });
    let left: Vec<_> = left.collect();
    Ok(told(&json!({ "files": files.len(), "left": left, "words": arguments.asked.words() })))
}

fn look_at_one(arguments: &LookArguments) -> anyhow::Result<Answered> {
    let file = Found {
        address: arguments.address.clone(),
        path: arguments.path.clone(),
        size: arguments.size,
        version: arguments.version_of.clone(),
    };
    let row = look(&file, &arguments.asked.looking(), &Until::default());
    Ok(told(&serde_json::to_value(row.context("it was stopped")?)?))
}

fn keep(arguments: &KeepArguments) -> anyhow::Result<Answered> {
    let rows = read_rows(&arguments.rows)?;
    let mut dataset = Dataset::open(&arguments.out)?;
    rows.iter().try_for_each(|row| dataset.add(row))?;
    dataset.flush()?;
    Ok(told(&json!({ "kept": rows.len() })))
}

/// Rows that were made elsewhere.
fn read_rows(path: &Path) -> anyhow::Result<Vec<Row>> {
    let name = path.display();
    let file = std::fs::File::open(path).with_context(|| format!("cannot open {name}"))?;
    let lines = BufReader::new(file).lines();
    let row = |line: std::io::Result<String>| {
        let line = line.with_context(|| format!("cannot read {name}"))?;
        serde_json::from_str(&line).map_err(|error| anyhow!("{name}: no row of a fleet: {error}"))
    };
    lines.map(row).collect()
}

/// Cards that are known here, and what a program can have of each.
fn cards() -> Vec<Card> {
    let card = |(name, gpu): (&str, Gpu)| {
        let room = gpu.room(None).ok()?;
        Some(Card { name: name.to_owned(), room })
    };
    Gpu::known().filter_map(card).collect()
}
