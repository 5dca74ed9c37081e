//! Single steps of a prediction of ranks, for programs that spread ranks over machines.
//!
//! In:  the words of the command, and a step: which ranks are left, one rank, what has come of one.
//! Out: JSON, or files that another step takes.
//!
//! Steps are asked for with the user's own words, so that names, keys and rows are those of a run on this machine alone. The last
//! one is the command itself, which then finds every run in its dataset.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::Args;
use serde_json::json;
use tonnage_fleet::{Found, Row};
use tonnage_scripts::{Options, predict};

use super::run::{Key, Run};
use super::{Asked, Job, Kept, looking};
use crate::ask::Answered;
use crate::predict_script::{Seen, Subject};

/// Files of a step.
const RUN: &str = "run.json";
const ROW: &str = "row.json";
const SNAPSHOT: &str = "run.pickle.zst";

/// Steps of the work.
#[derive(Args)]
pub(crate) struct Elsewhere {
    /// Print which ranks are to run next
    #[arg(long, hide = true, requires = "out")]
    left: bool,

    /// Run the one rank, and put what comes of it into this folder
    #[arg(long, value_name = "FOLDER", hide = true, requires = "key")]
    one: Option<PathBuf>,

    /// What ranks are run with, as told with those that are left
    #[arg(long, hide = true)]
    pub(crate) key: Option<Key>,

    /// The PyTorch that it is to run on
    #[arg(long, hide = true, requires = "one")]
    torch: Option<String>,

    /// Take what is in this folder as the run of the one rank
    #[arg(long, value_name = "FOLDER", hide = true, requires = "out")]
    keep: Option<PathBuf>,

    /// Take ranks that failed by themselves as they are
    #[arg(long, hide = true)]
    pub(crate) failures_kept: bool,
}

/// A step.
pub(crate) enum Step<'a> {
    Left,
    /// Into a folder, and on which PyTorch.
    One(&'a Path, Option<&'a str>),
    Keep(&'a Path),
}

impl Elsewhere {
    /// The step that is asked for.
    pub(crate) fn step(&self) -> Option<Step<'_>> {
        match (&self.one, &self.keep) {
            (Some(folder), _) => Some(Step::One(folder, self.torch.as_deref())),
            (_, Some(folder)) => Some(Step::Keep(folder)),
            _ if self.left => Some(Step::Left),
            _ => None,
        }
    }
}

/// Beginnings of the names of variables that decide what PyTorch does with memory, and so are the same wherever a rank runs.
const SETTINGS: [&str; 6] = ["CUBLAS_", "CUDA_", "NCCL_", "PYTORCH_", "TONNAGE_", "TORCH"];

/// Ends of the names of those that tell where something lies, which is each machine's own.
const PLACES: [&str; 4] = ["_DIR", "_HOME", "_LIBRARIES", "_PATH"];

/// The variables that whoever runs a rank is to have, and which others it is not to have.
fn settings() -> serde_json::Value {
    let is_setting = |name: &str| {
        SETTINGS.iter().any(|it| name.starts_with(it))
            && !PLACES.iter().any(|it| name.ends_with(it))
    };
    let all = std::env::vars_os()
        .map(|(name, value)| (name.to_string_lossy().into_owned(), value))
        .filter(|(name, _)| is_setting(name))
        .map(|(name, value)| (name, value.to_string_lossy().into()));
    let values: serde_json::Map<_, _> = all.collect();
    json!({ "begin": SETTINGS, "places": PLACES, "values": values })
}

/// JSON for programs alone.
fn told(json: &serde_json::Value) -> Answered {
    let json = json.to_string();
    Answered { text: json.clone(), json, negative: false }
}

/// Which ranks are to run next, and with what words and settings; `gpu` as it was given.
pub(crate) fn left(
    asked: Asked,
    subject: &Subject<'_>,
    gpu: Option<&str>,
) -> anyhow::Result<Answered> {
    let mut job = Job::new(asked, subject)?;
    job.take_what_is_kept()?;
    if let Some(kept) = &mut job.kept {
        kept.dataset.flush()?;
    }
    let Options { limit, settings: conf, time, .. } = subject.options;
    let (size, per_host) = (job.asked.size, job.asked.per_host);
    let mut words = vec![format!("--world={size}"), format!("--per-host={per_host}")];
    words.extend(gpu.map(|gpu| format!("--gpu={gpu}")));
    words.extend(limit.map(|limit| format!("--limit={limit}")));
    words.extend(conf.as_ref().map(|conf| format!("--conf={conf}")));
    words.push(format!("--time={}", time.as_secs()));
    // One that was never installed may tell none.
    let torch = Some(&subject.environment.torch).filter(|it| !it.is_empty());
    words.extend(torch.map(|torch| format!("--torch={torch}")));
    Ok(told(&json!({
        "left": job.left(),
        "words": words,
        "key": job.key,
        "settings": settings(),
        "command": subject.options.command,
        "folder": std::env::current_dir().context("the current folder")?.to_string_lossy(),
    })))
}

/// Runs one rank, and leaves what comes of it in a folder.
pub(crate) fn one(
    asked: &Asked,
    subject: &Subject<'_>,
    (folder, torch): (&Path, Option<&str>),
) -> anyhow::Result<Answered> {
    let ([rank], Some(key)) = (&asked.ranks[..], &asked.key) else {
        bail!("one rank at a time, and what it is run with")
    };
    let Subject { options, environment, model } = *subject;
    if let Some(torch) = torch.filter(|torch| *torch != environment.torch) {
        bail!(
            "it has PyTorch {}, and this program {torch}: install the same on every node",
            environment.torch
        );
    }
    let options = Options { world: Some(asked.world(*rank)), ..options.clone() };
    let looking = looking(&options)?;
    let outcome = predict(&options, environment)?;
    let seen = Seen::new(options, outcome, model);
    let run = Run::of(&seen, key);
    let write = |name: &str, text: &str| {
        let path = folder.join(name);
        std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
    };
    if let Some(snapshot) = seen.outcome.snapshot.as_deref().filter(|_| run.history) {
        let path = folder.join(SNAPSHOT);
        tonnage::snapshot::pack(snapshot, &path)?;
        let row = run.row(SNAPSHOT, Found::file(&path).ok().as_ref(), &looking);
        write(ROW, &serde_json::to_string(&row)?)?;
    }
    write(RUN, &run.to_json())?;
    Ok(told(&json!({ "rank": rank })))
}

/// Takes what is in a folder as the run of a rank.
pub(crate) fn keep(asked: &Asked, options: &Options, folder: &Path) -> anyhow::Result<Answered> {
    let ([rank], Some(out)) = (&asked.ranks[..], asked.out.as_deref()) else {
        bail!("one rank at a time, and a dataset")
    };
    let read = |name: &str| {
        let path = folder.join(name);
        std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
    };
    let (text, looking) = (read(RUN)?, looking(options)?);
    let run = Run::read(&text).with_context(|| format!("{RUN}: no run of a rank"))?;
    let snapshot = Some(folder.join(SNAPSHOT)).filter(|path| path.is_file());
    let (mut kept, name) = (Kept::open(out)?, asked.name(*rank));
    kept.runs.keep(&name, &run.to_json(), snapshot.as_deref())?;
    let row = match kept.runs.found(&name) {
        // The same file under the name that it has now.
        Some(Found { address, size, version, .. }) => {
            let row: Row =
                serde_json::from_str(&read(ROW)?).with_context(|| format!("{ROW}: no row"))?;
            let place = looking.names.place(&address);
            Row { address, size, version, place, ..row }
        }
        None => run.row_without_file(&kept.runs.address(&name), &looking),
    };
    kept.dataset.add(&row)?;
    kept.dataset.flush()?;
    Ok(told(&json!({ "kept": 1 })))
}
