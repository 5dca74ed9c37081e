//! `tonnage fleet`: the snapshots of a thousand ranks.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use anyhow::{Context, anyhow, bail};
use clap::{Args, Subcommand};
use serde_json::json;
use tonnage::Bytes;
use tonnage::replay::Until;
use tonnage::snapshot::spare_memory;
use tonnage_fleet::{
    Answer as FleetAnswer, AnswerOptions, Card, Crew, Dataset, Found, LookOptions, NamePattern,
    Row, Stopped, compare_outliers, find_until, look_and_tell, place_rows,
};
use tonnage_scripts::Gpu;
use tonnage_view::{FleetPage, Recordings, Stopper, ViewOptions};

use crate::Answer;
use crate::ask::Answered;
use crate::circumstances::Circumstances;
use crate::output::grouped;
use crate::progress::Progress;
use crate::report::layout;
use crate::size::memory_size;
use crate::stopped::{StoppedEarly, on_ctrl_c, say_if_stopped};
use crate::view::ServeOptions;

/// Say which of a thousand ranks differ, and why, or show all of them
#[derive(Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    Report(Box<ReportArguments>),
    View(Box<ViewArguments>),
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

    /// Files that this machine looks at at once: they share its memory
    #[arg(long)]
    jobs: Option<NonZeroUsize>,

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
/// Exit status: 0 if every file was read, 1 if some were not, or folders not looked into (they are named), or a dataset is of a
/// run that did not end, 2 for bad input or if none was.
#[derive(Args)]
struct ReportArguments {
    #[command(flatten)]
    of: Sources,

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

/// Show all ranks of a job as a local web page
///
/// A row for each rank, a column for each step: live bytes, reserved bytes, waste, or how near to the limit, sorted and grouped by
/// the parts of their names; and what `tonnage fleet report` says of them. A click opens a rank as `tonnage view` does, and two
/// are compared. The page is reached from this machine only, by the address that is printed.
///
/// Ends with Ctrl-C. Exit status: 0, or 2 for bad input or if no file could be read.
#[derive(Args)]
struct ViewArguments {
    #[command(flatten)]
    of: Sources,

    #[command(flatten)]
    serve: ServeOptions,
}

/// Which files, and how they are looked at.
#[derive(Args)]
struct Sources {
    /// Folders with snapshots, globs ('runs/**/rank_*.pickle'), lists (@FILE with one on each line, @- for standard input),
    /// files; here or in object storage (s3://BUCKET/…, gs://BUCKET/…, az://CONTAINER/…, abfss://…, https://…), with
    /// credentials and endpoints from AWS_…, GOOGLE_… and AZURE_…. Or one folder that --out has made: what is kept there is
    /// taken as it is, and no file is looked at
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

impl Sources {
    fn crew(&self) -> Crew {
        let usual = Crew::default();
        Crew { workers: self.jobs.unwrap_or(usual.workers), memory: self.max_memory.map(|it| it.0) }
    }

    fn answering(&self, unfinished: bool) -> AnswerOptions {
        let LookOptions { limit, names, .. } = self.asked.looking();
        AnswerOptions { limit, cards: cards(), names, unfinished }
    }

    fn find(&self, until: &Until) -> anyhow::Result<Vec<Found>> {
        let _progress = Progress::unmeasured("looking for files");
        Ok(find_until(&self.source, until)?)
    }

    /// The dataset that is named in the place of files, if one is.
    fn dataset(&self) -> anyhow::Result<Option<Looked>> {
        let [folder] = &self.source[..] else { return Ok(None) };
        let folder = Path::new(folder);
        if !Dataset::is_at(folder) {
            return Ok(None);
        }
        let it = &self.asked.circumstances;
        let of_files = [
            ("--out", self.out.is_some()),
            ("--tune", self.asked.tune),
            ("--total", it.total.is_some()),
            ("--pytorch", it.pytorch.is_some()),
            ("--ordinal", it.ordinal.is_some()),
        ];
        if let Some((flag, _)) = of_files.iter().find(|it| it.1) {
            let folder = folder.display();
            bail!(
                "{flag} is asked of files, and {folder} is a dataset: what is kept there is taken as it is"
            );
        }
        let _progress = Progress::unmeasured("reading the dataset");
        // Rows are more and more: whoever ends it meanwhile has written all of these.
        let unfinished = !Dataset::is_finished(folder);
        let rows = Dataset::read(folder)?;
        if rows.is_empty() {
            bail!("{}: this dataset has no rows", folder.display());
        }
        let asked: BTreeSet<_> = rows.iter().map(|it| &*it.analysis).collect();
        if asked.len() > 1 {
            let (folder, asked) = (folder.display(), Vec::from_iter(asked).join("; "));
            bail!(
                "{folder}: rows of this dataset were made in several ways ({asked}), and cannot be compared: let the command that \
                 made it come to its end"
            );
        }
        Ok(Some(Looked { files: Vec::new(), rows, kept: true, unfinished }))
    }

    /// Looks at all files, but for those that are known already, from the dataset or from `made` elsewhere.
    fn look(&self, made: Option<&Path>, until: &Until) -> anyhow::Result<Looked> {
        if let Some(looked) = self.dataset()? {
            return Ok(looked);
        }
        let files = self.find(until);
        if until.is_over() {
            let of = files.map_or(0, |it| it.len());
            return Err(StoppedEarly { done: 0, of, what: "files" }.into());
        }
        let files = files?;
        let mut dataset = self.out.as_deref().map(Dataset::open).transpose()?;
        let options = self.asked.looking();
        let mut rows = match &dataset {
            Some(dataset) => dataset.known(&files, &options)?,
            None => Vec::new(),
        };
        if let Some(path) = made {
            // A dataset may have them already.
            let known: BTreeSet<_> = rows.iter().map(|it| it.address.clone()).collect();
            let wanted: BTreeSet<_> = files.iter().map(|it| &*it.address).collect();
            let is_new =
                |row: &Row| !known.contains(&row.address) && wanted.contains(&*row.address);
            rows.extend(read_rows(path)?.into_iter().filter(is_new));
        }
        let left = left_of(&files, &rows);
        let looked = look_at(self, &left, rows.len(), dataset.as_mut(), until)?;
        rows.extend(looked);
        place_rows(&mut rows, &options.names);
        if let Some(dataset) = &mut dataset {
            dataset.finish(&rows)?;
        }
        Ok(Looked { files, rows, kept: false, unfinished: false })
    }
}

/// What was looked at.
struct Looked {
    /// Where files lie; none of a dataset.
    files: Vec<Found>,
    rows: Vec<Row>,
    /// Whether the rows are those of a dataset, of whose files nothing is known.
    kept: bool,
    /// Whether the dataset is of a run that did not end.
    unfinished: bool,
}

impl Looked {
    /// What the rows say.
    fn answer(&self, of: &Sources) -> anyhow::Result<FleetAnswer> {
        let answer = FleetAnswer::of(&self.rows, &of.answering(self.unfinished));
        if let (0, Some(first)) = (answer.read, answer.unreadable.first()) {
            let (file, why) = (&first.whose.file, &first.why);
            match answer.files {
                1 => bail!("{file}: {why}"),
                all => bail!("none of {all} files could be read, first {file}: {why}"),
            }
        }
        Ok(answer)
    }
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<Answer> {
    let run = match &arguments.verb {
        Verb::View(arguments) => view(arguments),
        Verb::Report(report) => answer(arguments, None).and_then(|it| it.print(report.json)),
        _ => answer(arguments, None).and_then(|it| it.print(true)),
    };
    run.or_else(say_if_stopped)
}

/// What the verb says. Whoever asks says until when; the command none, for which Ctrl-C does.
pub(crate) fn answer(arguments: &Arguments, until: Option<&Until>) -> anyhow::Result<Answered> {
    match &arguments.verb {
        Verb::Report(arguments) => report(arguments, until),
        Verb::View(_) => {
            bail!("`fleet view` serves a page, and answers nothing: `fleet report` does")
        }
        Verb::Files(arguments) => files(arguments, until),
        Verb::Look(arguments) => look_at_one(arguments),
        Verb::Keep(arguments) => keep(arguments),
    }
}

fn report(arguments: &ReportArguments, until: Option<&Until>) -> anyhow::Result<Answered> {
    if arguments.ray.is_some() {
        bail!(
            "--ray is of the Python package: `pip install tonnage ray`, then the same command as `python -m tonnage fleet \
             report …`"
        );
    }
    if arguments.rows.is_some() && arguments.of.dataset()?.is_some() {
        bail!("--rows is asked of files, not of a dataset");
    }
    let until = match until {
        Some(until) => until.clone(),
        None if arguments.of.out.is_some() => until_ctrl_c().until,
        None => Until::default(),
    };
    let looked = arguments.of.look(arguments.rows.as_deref(), &until)?;
    let answered = answer_of(&arguments.of, &looked, &until)?;
    if until.is_over() {
        let all = looked.rows.len();
        return Err(StoppedEarly { done: all, of: all, what: "files" }.into());
    }
    Ok(answered)
}

fn view(arguments: &ViewArguments) -> anyhow::Result<Answer> {
    let of = &arguments.of;
    // Without a dataset nothing is kept by whoever stops it, and Ctrl-C ends it at once until the page is there.
    let pressed = of.out.as_ref().map(|_| until_ctrl_c());
    let until = pressed.as_ref().map_or_else(Until::default, |it| it.until.clone());
    let looked = of.look(None, &until)?;
    let answer = looked.answer(of)?;
    let mut looking = of.asked.looking();
    looking.memory = of.max_memory.map(|it| it.0);
    let LookOptions { total, release, .. } = looking;
    let limit = looking.limit;
    let recordings = Recordings::new(ViewOptions { limit, total, release, ordinal: None });
    recordings.show_fleet(FleetPage { rows: looked.rows, answer, files: looked.files, looking });
    let out = &mut anstream::stdout();
    let running = match pressed {
        // From now on Ctrl-C ends the page; who pressed it just before meant that too.
        Some(Pressed { until, serving }) => arguments.serve.begin(recordings, out, |stopper| {
            let stopper = serving.get_or_init(|| stopper);
            if until.is_over() {
                stopper.stop();
            }
            Ok(())
        })?,
        None => arguments.serve.serve(recordings, out, Stopper::stop)?,
    };
    running.wait();
    Ok(Answer::Yes)
}

/// Files that no row is about.
fn left_of(files: &[Found], rows: &[Row]) -> Vec<Found> {
    let known: BTreeSet<_> = rows.iter().map(|it| &it.address).collect();
    files.iter().filter(|it| !known.contains(&it.address)).cloned().collect()
}

fn look_at(
    arguments: &Sources,
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
        Err(stopped) => {
            let is_kept = dataset.is_some();
            if let Some(dataset) = dataset {
                dataset.flush()?;
            }
            let (done, of) = (known + done, known + files.len());
            let Stopped::Gone { storage, why } = stopped else {
                return Err(StoppedEarly { done, of, what: "files" }.into());
            };
            let (done, of) = (grouped(done), grouped(of));
            let kept = if is_kept {
                "; what is done is kept, the same command goes on from there"
            } else {
                ""
            };
            bail!("{storage}: {why}; {done} of {of} files were looked at by then{kept}")
        }
    }
}

/// What Ctrl-C ends: the look, and once there is a page, that.
struct Pressed {
    until: Until,
    serving: Arc<OnceLock<Stopper>>,
}

/// Until someone presses Ctrl-C.
fn until_ctrl_c() -> Pressed {
    let serving = Arc::<OnceLock<Stopper>>::default();
    let (until, stop) = Until::told();
    let page = Arc::clone(&serving);
    on_ctrl_c(move || page.get().map_or_else(|| stop.now(), Stopper::stop));
    Pressed { until, serving }
}

/// What rows say, as text and as JSON.
fn answer_of(of: &Sources, looked: &Looked, until: &Until) -> anyhow::Result<Answered> {
    let mut answer = looked.answer(of)?;
    // Of a dataset no file is looked at.
    if !looked.kept {
        let _progress = Progress::unmeasured("comparing those that differ");
        // Two files are there at once.
        let memory = of.max_memory.map(|it| it.0 / 2);
        let looking = LookOptions { memory, ..of.asked.looking() };
        compare_outliers(&mut answer, &looked.files, &looking, until);
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

fn files(arguments: &ReportArguments, until: Option<&Until>) -> anyhow::Result<Answered> {
    let arguments = &arguments.of;
    if arguments.dataset()?.is_some() {
        return Ok(told(&json!({ "dataset": true, "files": 0, "left": [], "words": [] })));
    }
    let files = arguments.find(until.unwrap_or(&Until::default()))?;
    let options = arguments.asked.looking();
    let known = match &arguments.out {
        Some(folder) => Dataset::open(folder)?.known(&files, &options)?,
        None => Vec::new(),
    };
    let analysis = options.analysis();
    let left = left_of(&files, &known);
    // Workers are told names as text.
    if let Some(file) = left.iter().find(|it| it.path.to_str().is_none()) {
        bail!(
            "{}: this name is not UTF-8, and Ray's workers are not told it: rename the file, or leave Ray out",
            file.address
        );
    }
    let left = left.iter().map(|file| {
        // A worker may be in another folder.
        let path = match file.is_in_storage() {
            true => file.path.clone(),
            false => std::path::absolute(&file.path).unwrap_or_else(|_| file.path.clone()),
        };
        json!({
            "path": path.to_string_lossy(),
            "address": file.address,
            "size": file.size,
            "version": file.version,
            "analysis": analysis,
            "place": options.names.place(&file.address),
        })
    });
    let left: Vec<_> = left.collect();
    let words = arguments.asked.words();
    Ok(told(&json!({ "dataset": false, "files": files.len(), "left": left, "words": words })))
}

fn look_at_one(arguments: &LookArguments) -> anyhow::Result<Answered> {
    let file = Found {
        address: arguments.address.clone(),
        path: arguments.path.clone(),
        size: arguments.size,
        version: arguments.version_of.clone(),
    };
    // As of all files that are looked at here.
    let at_once = arguments.jobs.unwrap_or(Crew::default().workers).get() as u64;
    let memory = spare_memory().map(|spare| spare / 2 / at_once);
    let looking = LookOptions { memory, ..arguments.asked.looking() };
    let looked = look_and_tell(&file, &looking, &Until::default()).context("it was stopped")?;
    let mut json = serde_json::to_value(looked.row)?;
    // Not of the row: whoever spreads files learns that others of this storage cannot be read either.
    if let Some(gone) = looked.gone {
        json["gone"] = gone.into();
    }
    Ok(told(&json))
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
pub(crate) fn cards() -> Vec<Card> {
    let card = |(name, gpu): (&str, Gpu)| {
        let room = gpu.room(None).ok()?;
        Some(Card { name: name.to_owned(), room })
    };
    Gpu::known().filter_map(card).collect()
}
