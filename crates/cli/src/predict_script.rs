//! `tonnage predict -- python train.py`: the memory of a script before a GPU is there.

use std::fmt::{Display, Formatter, Write};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use clap::Args;
use owo_colors::OwoColorize;
use serde_json::{Value, json};
use tonnage::Bytes;
use tonnage::analysis::report::{Report, ReportOptions};
use tonnage::snapshot::OutputFile;
use tonnage_scripts::model::ScriptFile;
use tonnage_scripts::{
    Axis, Card, Elsewhere, Ending, Environment, Failure, Fit, Gpu, Layout, LayoutAxis, MayFail,
    Options, Outcome, Peaks, Phase, Range, Ranks, Written, predict,
};

use crate::Answer;
use crate::ask::Answered;
use crate::output::{
    as_a_word, counted, grouped, is_the_command, note, plain, remove_unfinished_when_stopped,
    with_causes, write_file,
};
use crate::predict_model::{Model, with_facts};
use crate::predict_ranks::{self, Asked, Step};
use crate::predict_search;
use crate::progress::Progress;
use crate::recipe::{self, try_next};
use crate::stopped::say_if_stopped;

/// The GPU if none is named: the one whose data were measured.
const GPU: &str = "h200";

/// Seconds of each run if nobody says: chosen, longer than anyone waits without having said so.
const SECONDS: u64 = 600;

/// GPUs of a host if nobody says.
const PER_HOST: u32 = 8;

/// What CUDA says of a device that is not there.
const NO_SUCH_DEVICE: &str = "invalid device ordinal";

/// Lines of a failed script's output that are shown: chosen, a traceback's end.
const LINES: usize = 12;

/// Guesses that are shown; the JSON has all.
const GUESSES: usize = 8;

/// Files that are shown; the JSON has all.
const FILES: usize = 8;

/// Changes that are shown of the report's.
const CHANGES: usize = 3;

/// What only scripts have.
#[derive(Args)]
pub(crate) struct Script {
    /// The GPU that the script is to meet, by name or as a file with a GPU's data [default: h200]
    #[arg(long, value_name = "NAME", requires = "subject", help_heading = "Scripts")]
    gpu: Option<String>,

    /// How many of that GPU the script's process sees, each with memory of its own [default: 1]
    #[arg(long, value_name = "N", requires = "subject", conflicts_with = "world", help_heading = "Scripts", value_parser = clap::value_parser!(u32).range(1..=64))]
    gpus: Option<u32>,

    /// Seconds that each run of the script may take: there are two, four where memory does not suffice, and four more where masks
    /// are not known that decide how long tensors are [default: 600]
    #[arg(long, value_name = "SECONDS", requires = "subject", help_heading = "Scripts")]
    time: Option<u64>,

    /// Find the largest value that fits, and show every run: `batch=1..512`, for a command with `{batch}` in it. Both ends are
    /// tried; `:8` behind them is a step, `:*2` a factor, commas part single values. With several names, the largest of the first
    /// for each choice of the others
    #[arg(long, value_name = "NAME=VALUES", requires = "subject", help_heading = "Scripts")]
    search: Vec<Axis>,

    /// Ranks of a job of so many: the script runs as one rank, with RANK, WORLD_SIZE and the like in its environment, and the
    /// others are taken to do as it does. `torchrun` runs its script in the same way, whatever its own options
    #[arg(long, value_name = "RANKS", requires = "command", help_heading = "Scripts", value_parser = clap::value_parser!(u32).range(1..))]
    world: Option<u32>,

    /// The ranks that are asked for, each a prediction: `0,31,63`, `0-15`, `all` [default: 0]
    #[arg(
        long,
        value_name = "RANKS",
        requires = "world",
        value_delimiter = ',',
        help_heading = "Scripts"
    )]
    rank: Vec<Ranks>,

    /// GPUs of a host, and so ranks on it [default: 8, or the number of ranks if there are fewer]
    #[arg(long, value_name = "N", requires = "world", help_heading = "Scripts", value_parser = clap::value_parser!(u32).range(1..))]
    per_host: Option<u32>,

    /// The layout of the ranks, outermost first, as `init_device_mesh` takes it: `dp=4,pp=2,tp=2`
    #[arg(
        long,
        value_name = "AXES",
        requires = "world",
        value_delimiter = ',',
        help_heading = "Scripts"
    )]
    layout: Vec<LayoutAxis>,

    /// Axes of the layout along which ranks are alike: `dp,tp`. Of each such set the first and the last are run; if they ask for
    /// the same, those between share the first one's run, and are named as such; if not, each is run
    #[arg(
        long,
        value_name = "AXES",
        requires = "layout",
        value_delimiter = ',',
        help_heading = "Scripts"
    )]
    alike: Vec<String>,

    /// Keep each rank's history and a row for each in a dataset in this folder, as `tonnage fleet report --out` does: a
    /// command that is stopped goes on where it was, and ranks that were run with the same are not run again
    #[arg(long, value_name = "FOLDER", requires = "world", conflicts_with_all = ["save", "search"], help_heading = "Scripts")]
    out: Option<PathBuf>,

    /// Ranks that run at once [default: as many as there are cores, and memory for]
    #[arg(long, value_name = "N", requires = "world", help_heading = "Scripts")]
    jobs: Option<NonZeroUsize>,

    /// Let each rank be a task of this Ray cluster, an address or `auto`: of the Python package alone
    #[arg(long, value_name = "ADDRESS", requires = "out", help_heading = "Scripts")]
    ray: Option<String>,

    #[command(flatten)]
    elsewhere: predict_ranks::Elsewhere,

    /// A PyTorch script instead of a recipe, behind `--`: `python train.py --batch 8`. It really runs, twice or more, and what
    /// it saves are zeros: take a copy of its folder, or another one for its output
    #[arg(
        last = true,
        value_name = "COMMAND",
        group = "subject",
        conflicts_with_all = [
            "recipe", "layers", "width", "batch", "seq", "vocab", "image", "antennas", "users", "subcarriers", "snr",
            "steps", "optimizer", "amp", "tf32", "checkpoint", "accumulate", "offload", "graph", "memory_profile", "seed", "fit",
            "context"
        ]
    )]
    command: Vec<String>,

    #[command(flatten)]
    model: Model,
}

impl Script {
    /// The ranks that are asked for.
    fn asked(&self) -> anyhow::Result<Option<Asked>> {
        let Some(size) = self.world else { return Ok(None) };
        let ranks = if self.rank.is_empty() { &[Ranks::Span(0, 0)][..] } else { &self.rank };
        let (axes, alike) = (self.layout.clone(), self.alike.clone());
        Ok(Some(Asked {
            size,
            per_host: self.per_host.unwrap_or(PER_HOST).min(size),
            ranks: Ranks::of(ranks, size)?,
            layout: (!axes.is_empty()).then(|| Layout::new(axes, alike, size)).transpose()?,
            jobs: self.jobs,
            out: self.out.clone(),
            failures_kept: self.elsewhere.failures_kept,
            key: self.elsewhere.key.clone(),
        }))
    }

    /// Whether there is a script.
    pub(crate) fn is_asked_for(&self) -> bool {
        !self.command.is_empty() || self.model.is_asked_for()
    }
}

/// Prints what is known, also of a script that failed by itself: then that is an error too.
pub(crate) fn run(script: &Script, flags: &recipe::Flags) -> anyhow::Result<Answer> {
    let (answered, failed) = match look(script, flags) {
        Ok(looked) => looked,
        Err(error) => return say_if_stopped(error),
    };
    let answer = answered.print(flags.json)?;
    failed.map_or(Ok(answer), Err)
}

/// What the script would take.
pub(crate) fn answer(script: &Script, flags: &recipe::Flags) -> anyhow::Result<Answered> {
    let (answered, failed) = look(script, flags)?;
    let Some(error) = failed else { return Ok(answered) };
    let text = anstream::adapter::strip_str(&answered.text).to_string();
    Err(ScriptFailed { sentence: with_causes(&error), text }.into())
}

/// A script that failed by itself, so that there is no answer.
#[derive(Debug)]
pub struct ScriptFailed {
    sentence: String,
    /// What is known of it all the same, for people.
    pub text: String,
}

impl Display for ScriptFailed {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.sentence)
    }
}

impl std::error::Error for ScriptFailed {}

fn look(
    script: &Script,
    flags: &recipe::Flags,
) -> anyhow::Result<(Answered, Option<anyhow::Error>)> {
    flags.check_save()?;
    if flags.policy.is_some() {
        anyhow::bail!(
            "a script runs on PyTorch's own allocator: leave out --policy, write its history with --save FILE, \
             then `tonnage replay FILE --policy pages`"
        );
    }
    if script.model.is_shown() {
        return Ok((script.model.shown(flags, &script.search)?, None));
    }
    if script.ray.is_some() {
        bail!(
            "--ray is of the Python package: `pip install tonnage ray`, then the same command as `python -m tonnage predict …`"
        );
    }
    let asked = script.asked()?;
    // With a dataset, what is done is kept.
    if script.out.is_none() {
        remove_unfinished_when_stopped();
    }
    let model = script.model.is_asked_for().then(ScriptFile::new).transpose()?;
    let command = match &model {
        Some(file) => script.model.command(&file.path(), flags, &script.search)?,
        None => script.command.clone(),
    };
    let one = asked.as_ref().and_then(Asked::one);
    let options = Options {
        command,
        gpu: Gpu::find(script.gpu.as_deref().unwrap_or(GPU))?,
        limit: flags.limit.map(|limit| limit.0),
        settings: Some(flags.conf.clone()).filter(|conf| !conf.is_empty()),
        gpus: script.gpus.unwrap_or(1),
        time: Duration::from_secs(script.time.unwrap_or(SECONDS)),
        // Nothing of the user's is touched: what was written is listed.
        world: one,
        // A search has many runs, and tries all guesses where they decide.
        thorough: script.search.is_empty(),
        written: Vec::new(),
    };
    if let (Some(asked), Some(Step::Keep(folder))) = (&asked, script.elsewhere.step()) {
        return Ok((predict_ranks::keep(asked, &options, folder)?, None));
    }
    let environment = Environment::of(&options.command)?;
    if model.is_none() && is_the_command() {
        note(ABOUT_FILES);
    }
    let subject = Subject { options: &options, environment: &environment, model: model.as_ref() };
    let save = flags.save.as_deref();
    match (&script.search[..], asked) {
        ([], Some(asked)) if one.is_none() || script.elsewhere.step().is_some() => {
            return match script.elsewhere.step() {
                Some(Step::Left) => {
                    Ok((predict_ranks::left(asked, &subject, script.gpu.as_deref())?, None))
                }
                Some(Step::One(folder, torch)) => {
                    Ok((predict_ranks::one(&asked, &subject, (folder, torch))?, None))
                }
                _ if save.is_some() => bail!(
                    "--save keeps one run: ask for one rank, as in `--rank {}`, or keep all of them with --out",
                    asked.ranks[0]
                ),
                _ => predict_ranks::look(asked, &subject),
            };
        }
        ([], _) => {}
        (_, Some(_)) if one.is_none() => {
            bail!("--search takes one rank at a time: a largest for each is a search for each")
        }
        (axes, _) => return predict_search::look(axes, &subject, save),
    }
    let outcome = {
        let _progress = Progress::unmeasured("running the script without a GPU");
        predict(&options, &environment)?
    };
    let seen = Seen::new(options, outcome, model.as_ref());
    if let Some(path) = flags.save.as_deref().filter(|_| seen.has_history()) {
        seen.save(path)?;
    }
    let answered = {
        let needs_help = matches!(seen.verdict, Verdict::DoesNotFit);
        let _progress = needs_help.then(|| Progress::unmeasured("looking for what would help"));
        seen.answered(flags.save.as_deref())
    };
    match seen.verdict {
        Verdict::Failed(error) => Ok((answered, Some(error))),
        _ => Ok((answered, None)),
    }
}

/// What is said before a script runs.
const ABOUT_FILES: &str =
    "the script really runs here, more than once; what it writes is written, and is made of zeros";

/// What is run, or searched.
pub(crate) struct Subject<'a> {
    pub(crate) options: &'a Options,
    pub(crate) environment: &'a Environment,
    /// The script of a model.
    pub(crate) model: Option<&'a ScriptFile>,
}

/// A script that has run, and what comes of it.
pub(crate) struct Seen {
    /// With a command that can be read: a script of ours by its name alone.
    options: Options,
    pub(crate) outcome: Outcome,
    pub(crate) verdict: Verdict,
    is_model: bool,
}

impl Seen {
    pub(crate) fn new(mut options: Options, outcome: Outcome, model: Option<&ScriptFile>) -> Self {
        let verdict = Verdict::of(&options, &outcome);
        if let Some(file) = model {
            options.command = file.by_its_name(&options.command);
        }
        Self { options, outcome, verdict, is_model: model.is_some() }
    }

    /// Whether there is something to save.
    pub(crate) fn has_history(&self) -> bool {
        self.outcome.snapshot.is_some()
    }

    /// Keeps the script's history in a file.
    pub(crate) fn save(&self, path: &Path) -> anyhow::Result<()> {
        let Some(snapshot) = &self.outcome.snapshot else {
            bail!("the script left no history to save")
        };
        write_file(&OutputFile::at(path)?, |out| {
            let mut file = std::fs::File::open(snapshot).context("the script's history")?;
            std::io::copy(&mut file, out)?;
            Ok(())
        })
    }

    /// What is said about it, with the file that the history was saved to.
    pub(crate) fn answered(&self, saved: Option<&Path>) -> Answered {
        let Self { options, outcome, verdict, .. } = self;
        let saved = saved.filter(|_| self.has_history());
        let help = match verdict {
            Verdict::DoesNotFit => Help::of(outcome),
            _ => None,
        };
        let answered = Answered {
            text: describe(options, outcome, verdict, help.as_ref(), saved),
            json: to_json(options, outcome, verdict, help.as_ref(), saved).to_string(),
            negative: !matches!(verdict, Verdict::Fits),
        };
        match self.is_model {
            true => with_facts(answered, &outcome.output),
            false => answered,
        }
    }
}

/// What comes of it.
pub(crate) enum Verdict {
    Fits,
    /// It ran to its end, but by another order of addresses a request fails.
    MayNotFit,
    DoesNotFit,
    /// Nothing can be said: for another reason than memory.
    Failed(anyhow::Error),
}

impl Verdict {
    fn of(options: &Options, outcome: &Outcome) -> Self {
        if outcome.starved {
            return Self::DoesNotFit;
        }
        if outcome.ending != Ending::Exit(0) {
            let is_memory = outcome.failure.as_ref().is_some_and(Failure::is_for_memory);
            // A program may catch the exception and end with a status of its own.
            let in_silence = outcome.failure.is_none()
                && matches!(outcome.ending, Ending::Exit(_))
                && outcome.stat("num_ooms").unwrap_or(0) > 0;
            return match is_memory || in_silence {
                true => Self::DoesNotFit,
                false => Self::Failed(why_it_failed(options, outcome)),
            };
        }
        match &outcome.peaks {
            Some(peaks) if !peaks.may_fail.is_empty() => Self::MayNotFit,
            Some(_) => Self::Fits,
            None if outcome.untold.is_some() => Self::Failed(anyhow!(
                "the script ended well, and its allocator tells no figures ({}): only PyTorch's own can be followed",
                outcome.untold.as_deref().unwrap_or_default()
            )),
            None if outcome.silent > 0 => Self::Failed(anyhow!(
                "the script ended well, but {} of it that used the GPU ended before telling how much: let processes end by themselves",
                processes(outcome.silent, "")
            )),
            None if outcome.unheard > 0 => Self::Failed(anyhow!(
                "the script ended well and used the GPU, and nothing told how much: its Python ignores PYTHONPATH (leave out the options -I, -E and -S) or was given \
                 another one (put what is in PYTHONPATH behind it), or it used the GPU without PyTorch"
            )),
            None => Self::Failed(anyhow!("the script ended well, and never used the GPU")),
        }
    }

    /// For programs: nothing where nothing can be said.
    fn fits(&self) -> Option<bool> {
        match self {
            Self::Fits => Some(true),
            Self::MayNotFit | Self::DoesNotFit => Some(false),
            Self::Failed(_) => None,
        }
    }
}

/// What ended a script, if it was not for want of memory.
fn why_it_failed(options: &Options, outcome: &Outcome) -> anyhow::Error {
    let last = outcome.unknown.last().map_or(String::new(), |name| {
        format!("; the last function of CUDA without behaviour here that it called: {name}")
    });
    match (&outcome.failure, outcome.ending) {
        (Some(failure), _) => {
            let more = match failure.message.contains(NO_SUCH_DEVICE) && options.world.is_none() {
                true => {
                    format!("; it sees {}: give it more with --gpus", counted(options.gpus, "GPU"))
                }
                false => String::new(),
            };
            anyhow!(
                "the script failed: {}: {}{last}{more}",
                failure.kind,
                failure.message.trim_end()
            )
        }
        (None, Ending::Exit(code)) => anyhow!("the script ended with status {code}{last}"),
        (None, Ending::Signal(signal)) => {
            anyhow!("the script was ended by signal {signal}{last}")
        }
        (None, Ending::TimeOut) => anyhow!(
            "the script was not done after {} s: let it take fewer steps, or give it more with --time",
            options.time.as_secs()
        ),
        (None, _) => anyhow!("the script did not end as programs do{last}"),
    }
}

/// What the report says of a script that does not fit.
struct Help {
    verdict: String,
    changes: Vec<String>,
}

impl Help {
    fn of(outcome: &Outcome) -> Option<Self> {
        let file = tonnage::snapshot::open(outcome.snapshot.as_ref()?).ok()?;
        let options =
            ReportOptions { ordinal: Some(outcome.device as usize), ..ReportOptions::default() };
        let report = Report::of(&file, &options).ok()?;
        let changes = report.advice.iter().take(CHANGES).map(|advice| advice.in_a_line());
        Some(Self { verdict: report.verdict.text.clone(), changes: changes.collect() })
    }
}

fn to_json(
    options: &Options,
    outcome: &Outcome,
    result: &Verdict,
    help: Option<&Help>,
    saved: Option<&Path>,
) -> Value {
    let range = |range: &Range| json!({ "low": range.low, "high": range.high });
    let peaks = outcome.peaks.as_ref();
    let at = peaks.and_then(|peaks| peaks.at.as_ref());
    let guesses: Vec<_> = outcome
        .guesses
        .iter()
        .map(|guess| json!({ "line": guess.line, "what": guess.what }))
        .collect();
    let card =
        |card: &Card| json!({ "gpu": card.name, "memory": card.memory, "fits": card.fit.name() });
    let cards = |peaks: Option<&Peaks>| -> Vec<Value> {
        peaks.map_or(Vec::new(), |peaks| peaks.cards.iter().map(card).collect())
    };
    let need = outcome.need.as_ref();
    let elsewhere = |it: &Elsewhere| json!({ "device": it.device, "reserved": it.reserved });
    json!({
        "schema": 1,
        "command": options.command,
        "gpu": options.gpu.name,
        "limit": options.limit,
        "rank": options.world.map(|world| world.rank),
        "world": options.world.map(|world| world.size),
        "torch": outcome.torch,
        "requested": peaks.map(|peaks| range(&peaks.requested)),
        "allocated": peaks.map(|peaks| range(&peaks.allocated)),
        "reserved": peaks.map(|peaks| range(&peaks.reserved)),
        "context": options.gpu.context,
        "context_measured": !options.gpu.is_context_estimated(),
        "beside": peaks.map(|peaks| peaks.together.beside),
        "others": peaks.map(|peaks| json!({
            "processes": peaks.together.others,
            "reserved": peaks.together.of_others,
        })),
        "by_guess": peaks.map(|peaks| peaks.by_guess),
        "silent": outcome.silent,
        "gpus": options.world.map_or(options.gpus, |world| world.per_host),
        "device": outcome.device,
        "elsewhere": outcome.elsewhere.iter().map(elsewhere).collect::<Vec<_>>(),
        "peak": at.map(|at| json!({ "phase": at.phase.name(), "line": at.line })),
        "allocations": outcome.stat("allocation.all.allocated"),
        "ooms": outcome.stat("num_ooms"),
        "retries": outcome.stat("num_alloc_retries"),
        "fits": result.fits(),
        "cards": cards(need.or(peaks)),
        "need": need.map(|need| json!({
            "requested": range(&need.requested),
            "allocated": range(&need.allocated),
            "reserved": range(&need.reserved),
        })),
        "error": outcome.failure.as_ref().map(|failure| json!({
            "type": failure.kind,
            "message": failure.message,
            "line": failure.line.as_ref().map(|(file, line, name)| format!("{file}:{line} {name}")),
        })),
        "verdict": help.map(|help| &help.verdict),
        "advice": help.map_or(&[][..], |help| &help.changes),
        "guesses": guesses,
        "unknown": outcome.unknown,
        "files": files_to_json(&outcome.files),
        "seconds": outcome.time.as_secs_f64(),
        "snapshot": saved.map(|path| path.to_string_lossy()),
    })
}

pub(crate) fn files_to_json(files: &[Written]) -> Vec<Value> {
    let path = |file: &Written| file.path.to_string_lossy().into_owned();
    files.iter().map(|file| json!({ "path": path(file), "what": file.what.name() })).collect()
}

/// A range in words: one figure where it is one.
fn show(range: Range, by_guess: bool) -> String {
    let most = Bytes(range.high).to_string();
    let why = if by_guess { "what is guessed" } else { "the order of addresses" };
    match range.low == range.high {
        true => format!("{most:>12}  {} bytes", grouped(range.high)),
        false => {
            format!("{most:>12}  {} to {} bytes, by {why}", grouped(range.low), grouped(range.high))
        }
    }
}

fn phase(phase: Phase) -> &'static str {
    match phase {
        Phase::Backward => "the backward, or on another thread of PyTorch's",
        Phase::Optimizer => "a step of the optimizer",
        _ => "the forward, or what is around it",
    }
}

fn describe(
    options: &Options,
    outcome: &Outcome,
    result: &Verdict,
    help: Option<&Help>,
    saved: Option<&Path>,
) -> String {
    let gpu = &options.gpu;
    let mut text = String::new();
    // Writing to a string cannot fail.
    let rank = options
        .world
        .map_or(String::new(), |world| format!(" as rank {} of {}", world.rank, world.size));
    let _ = writeln!(
        text,
        "{}\nas one {} ({}) and PyTorch {} would run it{rank}",
        plain(&options.command.join(" ")).bold(),
        plain(&gpu.name),
        Bytes(gpu.memory),
        plain(&outcome.torch)
    );
    if !gpu.measured {
        let _ = writeln!(text, "the GPU's data are {}", plain(&gpu.source));
    }
    if let Some(peaks) = &outcome.peaks {
        let until = match result {
            Verdict::Fits | Verdict::MayNotFit => "",
            Verdict::DoesNotFit | Verdict::Failed(_) => ", up to where it failed",
        };
        let _ = writeln!(text, "\npeak{until}");
        for (name, range) in [
            ("requested", peaks.requested),
            ("allocated", peaks.allocated),
            ("reserved", peaks.reserved),
        ] {
            let _ = writeln!(text, "{name:<11}{}", show(range, peaks.by_guess));
        }
        let whose = if options.world.is_some() { " of its host, another rank's" } else { "" };
        if !outcome.elsewhere.is_empty() {
            let _ = writeln!(text, "these are of device {}", outcome.device);
        }
        for Elsewhere { device, reserved } in &outcome.elsewhere {
            let _ = writeln!(text, "device {device}{whose}: {} reserved too", Bytes(*reserved));
        }
        if let Some(at) = &peaks.at {
            let line =
                at.line.as_deref().map_or(String::new(), |line| format!(": {}", plain(line)));
            let _ = writeln!(text, "most is allocated in {}{line}", phase(at.phase));
        }
    }
    text.push('\n');
    describe_fit(&mut text, options, outcome, result);
    describe_failure(&mut text, outcome, result, help);
    describe_need(&mut text, options, outcome);
    describe_guesses(&mut text, outcome);
    describe_files(&mut text, &outcome.files);
    if let Some(path) = saved {
        let path = as_a_word(&path.to_string_lossy());
        let next = [
            (format!("tonnage report {path}"), "what holds the memory, and what to change"),
            (format!("tonnage tune {path}"), "settings, best first"),
            (format!("tonnage view {path}"), "every allocation"),
        ];
        try_next(&mut text, &next);
    }
    text
}

fn describe_fit(text: &mut String, options: &Options, outcome: &Outcome, result: &Verdict) {
    let gpu = &options.gpu;
    let room = match options.limit {
        Some(limit) if limit <= gpu.memory => format!("the limit of {}", Bytes(limit)),
        Some(limit) => {
            format!(
                "the card's {}, which are less than the limit of {}",
                Bytes(gpu.memory),
                Bytes(limit)
            )
        }
        None => format!("the card's {}", Bytes(gpu.memory)),
    };
    let driver = among(options, outcome);
    let _ = match (result, &outcome.peaks) {
        (Verdict::Fits, Some(peaks)) => {
            let needed = Bytes(peaks.reserved.high + peaks.together.taken(gpu.context));
            writeln!(text, "{}: {needed} of {room}, {driver} among them", "fits".green().bold())
        }
        (Verdict::MayNotFit, Some(peaks)) => {
            let needed = peaks.reserved.high + peaks.together.taken(gpu.context);
            let why: Vec<_> = peaks.may_fail.iter().map(|why| in_words(*why, needed)).collect();
            let why = why.join("; ");
            writeln!(
                text,
                "{}: {why}, with {room}, {driver} among them",
                "may not fit".red().bold()
            )
        }
        (Verdict::DoesNotFit, _) => writeln!(
            text,
            "{}: it needs more than {room}, {driver} among them",
            "does not fit".red().bold()
        ),
        _ => Ok(()),
    };
    if !matches!(result, Verdict::Fits | Verdict::MayNotFit) {
        return;
    }
    let stat = |name: &str| outcome.stat(name).unwrap_or(0);
    let (retries, ooms) = (stat("num_alloc_retries"), stat("num_ooms"));
    if retries > 0 {
        let times = counted(retries, "time");
        let _ =
            writeln!(text, "cached memory was given back {times} to serve a request: that is slow");
    }
    if ooms > 0 {
        let _ = writeln!(text, "{} failed, and the script went on", counted(ooms, "request"));
    }
    if let Some(peaks) = &outcome.peaks {
        describe_cards(text, peaks, options);
    }
}

/// Why a request may fail, of a script that needs so many bytes in all.
fn in_words(why: MayFail, needed: u64) -> String {
    match why {
        MayFail::AtOnce => format!("all that is taken at once may come to {}", Bytes(needed)),
        MayFail::Guess => "by one of the guesses a request fails".to_owned(),
        _ => "by one order of addresses a request fails".to_owned(),
    }
}

/// So many processes, of a kind.
fn processes(count: u64, kind: &str) -> String {
    let word = if count == 1 { "process" } else { "processes" };
    format!("{} {kind}{word}", grouped(count))
}

/// What is taken beside the script's own reserved memory.
fn among(options: &Options, outcome: &Outcome) -> String {
    let estimate = if options.gpu.is_context_estimated() { " (an estimate)" } else { "" };
    let driver = format!("the driver's own {}{estimate}", Bytes(options.gpu.context));
    let Some(peaks) = &outcome.peaks else { return driver };
    let mut parts = vec![driver];
    let together = &peaks.together;
    if together.others > 0 {
        parts[0] += " for each process";
        let others = processes(together.others, "other ");
        parts.push(format!("{} that {others} reserved", Bytes(together.of_others)));
    }
    if together.beside > 0 {
        parts.push(format!("{} obtained past PyTorch's allocator", Bytes(together.beside)));
    }
    match &parts[..] {
        [first @ .., last] if !first.is_empty() => format!("{} and {last}", first.join(", ")),
        _ => parts.concat(),
    }
}

/// What a script needs that does not fit, from a run with more memory.
fn describe_need(text: &mut String, options: &Options, outcome: &Outcome) {
    let Some(need) = &outcome.need else { return };
    let needed = need.reserved.high + need.together.taken(options.gpu.context);
    let _ = writeln!(
        text,
        "\n{}: {} in all, {} of them reserved, in a run with as much memory as it asks for",
        "it needs".bold(),
        Bytes(needed),
        Bytes(need.reserved.high)
    );
    describe_cards(text, need, options);
}

/// Other cards by whether they serve the same requests. Under a limit the card itself is one with more.
fn describe_cards(text: &mut String, peaks: &Peaks, options: &Options) {
    let this = options.gpu.total(options.limit);
    let rows = [
        (Fit::Yes, "fits"),
        (Fit::Tight, "fits once cached memory is given back, which is slow"),
        (Fit::Depends, "fits by one order of addresses, by another not"),
        (Fit::Guessed, "fits by one of the guesses, by another not"),
        (Fit::No, "does not fit"),
    ];
    let mut heading = "\nthe same requests on other cards, with the driver's share, an estimate on all but the H200\n";
    for (fit, words) in rows {
        let cards: Vec<_> = peaks
            .cards
            .iter()
            .filter(|card| card.fit == fit && card.memory != this)
            .map(|card| format!("{} ({})", card.name, Bytes(card.memory)))
            .collect();
        if !cards.is_empty() {
            let _ = writeln!(text, "{heading}  {words}: {}", cards.join(", "));
            heading = "";
        }
    }
}

fn describe_failure(text: &mut String, outcome: &Outcome, result: &Verdict, help: Option<&Help>) {
    if let Some(failure) = &outcome.failure {
        let _ = writeln!(text, "{}: {}", plain(&failure.kind).bold(), plain(&failure.message));
        if let Some((file, line, name)) = &failure.line {
            let _ = writeln!(text, "  at {}:{line} {}", plain(file), plain(name));
        }
    }
    if let Some(help) = help {
        let _ = writeln!(text, "\n{}", plain(&help.verdict));
        if !help.changes.is_empty() {
            let _ = writeln!(text, "\n{}", "what would help, as far as the script came:".bold());
        }
        for change in &help.changes {
            let _ = writeln!(text, "  - {}", plain(change));
        }
    } else if matches!(result, Verdict::Failed(_)) && outcome.failure.is_none() {
        show_output(text, outcome);
    }
}

/// The last lines that the script printed.
fn show_output(text: &mut String, outcome: &Outcome) {
    let lines: Vec<_> = outcome.output.lines().collect();
    if lines.is_empty() {
        return;
    }
    let _ = writeln!(text, "\nthe last that the script printed:");
    for line in &lines[lines.len().saturating_sub(LINES)..] {
        let _ = writeln!(text, "  {}", plain(line));
    }
}

/// What the script wrote.
pub(crate) fn describe_files(text: &mut String, files: &[Written]) {
    if files.is_empty() {
        return;
    }
    let _ = writeln!(
        text,
        "\n{} that the script wrote or removed, and folders that it made:",
        "files".bold()
    );
    let here = std::env::current_dir().unwrap_or_default();
    for file in files.iter().take(FILES) {
        let path = file.path.strip_prefix(&here).unwrap_or(&file.path);
        let _ = writeln!(text, "  {}: {}", plain(&path.to_string_lossy()), file.what.name());
    }
    let more = files.len().saturating_sub(FILES);
    if more > 0 {
        let _ = writeln!(text, "  and {} more, in --json", grouped(more));
    }
}

fn describe_guesses(text: &mut String, outcome: &Outcome) {
    if !outcome.guesses.is_empty() {
        let _ =
            writeln!(text, "\n{} what the script looked at and is not known:", "guesses,".bold());
        for guess in outcome.guesses.iter().take(GUESSES) {
            let line =
                guess.line.as_deref().map_or(String::new(), |line| format!("{}: ", plain(line)));
            let _ = writeln!(text, "  {line}{}", plain(&guess.what));
        }
        let more = outcome.guesses.len().saturating_sub(GUESSES);
        if more > 0 {
            let _ = writeln!(text, "  and {} more, in --json", grouped(more));
        }
    }
    if !outcome.unknown.is_empty() {
        let names: Vec<_> = outcome.unknown.iter().map(|name| plain(name)).collect();
        let _ = writeln!(
            text,
            "\n{} functions of CUDA that were called and do nothing here: {}",
            "unknown,".bold(),
            names.join(", ")
        );
    }
}
