//! A prediction: two runs of the script, and what they tell.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::Deserialize;
use tonnage_fake_cudart::notes::{GUESSES_FILE, NOTES_VARIABLE, READS_FILE, UNKNOWN_FILE};
use tonnage_fake_cudart::profile::PROFILE_VARIABLE;
use tonnage_fake_cudart::reads::{READS_IN_VARIABLE, READS_OUT_VARIABLE};

use crate::history::{History, PeakAt};
use crate::libraries::Libraries;
use crate::orders::{Fit, Range};
use crate::process::{Ended, end_all, run};
use crate::{Ending, Environment, Error, Gpu};

/// What runs inside the script.
const HOOK: [(&str, &str); 3] = [
    ("sitecustomize.py", include_str!("hook/sitecustomize.py")),
    ("tonnage_after_import.py", include_str!("hook/tonnage_after_import.py")),
    ("tonnage_values.py", include_str!("hook/tonnage_values.py")),
];

/// Where PyTorch takes its allocator's settings from.
const SETTINGS_VARIABLE: &str = "PYTORCH_CUDA_ALLOC_CONF";

/// Where later releases look first.
const NEWER_SETTINGS_VARIABLE: &str = "PYTORCH_ALLOC_CONF";

/// What is to be predicted.
#[derive(Clone, Debug)]
pub struct Options {
    /// The program and its arguments.
    pub command: Vec<String>,
    /// The device.
    pub gpu: Gpu,
    /// Bytes of the device that can be had, the driver's share among them; all if not given.
    pub limit: Option<u64>,
    /// The allocator's settings; the environment's if not given.
    pub settings: Option<String>,
    /// How long each run may take.
    pub time: Duration,
}

/// Something that figures rest on and that is not known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Guess {
    /// The line of the program, if it is one.
    pub line: Option<String>,
    /// What was taken to be so.
    pub what: String,
}

/// The exception that ended the script.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
pub struct Failure {
    /// Its type: `OutOfMemoryError`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Its words.
    pub message: String,
    /// File, line and function of the program's own innermost line.
    pub line: Option<(String, u64, String)>,
}

/// Most bytes at once. Ranges are one figure where every order of addresses gives it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peaks {
    /// Asked for.
    pub requested: Range,
    /// In blocks that were in use.
    pub allocated: Range,
    /// Obtained from the device.
    pub reserved: Range,
    /// Where most was allocated.
    pub at: Option<PeakAt>,
    /// Whether a request that was served would fail under another order of addresses.
    pub may_fail: bool,
    /// Whether other cards serve the same requests. None of a script that failed: what it would go on to ask for is not
    /// known.
    pub cards: Vec<Card>,
}

/// A card, and whether a script's requests are served by its memory, the driver's share taken away.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Card {
    /// The short name.
    pub name: &'static str,
    /// Bytes, as PyTorch sees them.
    pub memory: u64,
    /// Whether they are.
    pub fit: Fit,
}

/// What the script did.
#[derive(Debug)]
pub struct Outcome {
    /// PyTorch's version.
    pub torch: String,
    /// PyTorch's own figures, `memory_stats()`; empty if it never used the device or did not live to tell.
    pub stats: BTreeMap<String, i64>,
    /// Peaks; nothing where there are no figures.
    pub peaks: Option<Peaks>,
    /// How the script ended.
    pub ending: Ending,
    /// The exception that ended it.
    pub failure: Option<Failure>,
    /// The end of what it printed.
    pub output: String,
    /// What the figures rest on.
    pub guesses: Vec<Guess>,
    /// Functions of CUDA that were called and have no behaviour here.
    pub unknown: Vec<String>,
    /// PyTorch's history of the script, in a folder that goes with this value.
    pub snapshot: Option<PathBuf>,
    /// How long it took, all together.
    pub time: Duration,
    _folder: Folder,
}

impl Outcome {
    /// One of PyTorch's figures.
    #[must_use]
    pub fn stat(&self, name: &str) -> Option<u64> {
        self.stats.get(name).and_then(|value| u64::try_from(*value).ok())
    }
}

/// The answer of the hook.
#[derive(Deserialize)]
struct Answer {
    process: u32,
    torch: String,
    stats: BTreeMap<String, i64>,
    error: Option<Failure>,
    /// The share of the device that the script allowed itself.
    share: f64,
    /// Whether something was compiled by `torch.compile`.
    compiled: bool,
    snapshot: PathBuf,
}

impl Answer {
    fn peaks(&self, room: u64, total: u64) -> Result<Option<Peaks>, Error> {
        let room = room.min((total as f64 * self.share.clamp(0.0, 1.0)) as u64);
        let stat = |name: &str| self.stats.get(name).and_then(|value| u64::try_from(*value).ok());
        let peak = |kind: &str| stat(&format!("{kind}_bytes.all.peak")).map(Range::exactly);
        let (Some(requested), Some(mut allocated), Some(mut reserved)) =
            (peak("requested"), peak("allocated"), peak("reserved"))
        else {
            return Ok(None);
        };
        let history = History::open(&self.snapshot)?;
        let whole = self.error.is_none();
        let orders = if whole { history.orders() } else { None };
        let all_served =
            orders.as_ref().map(|orders| orders.widen(&mut allocated, &mut reserved, room));
        let fit = |gpu: &Gpu| match gpu.memory.saturating_sub(gpu.context) {
            room if reserved.high <= room => Some(Fit::Yes),
            room if requested.low > room => Some(Fit::No),
            room => orders.as_ref()?.fit(room),
        };
        let card = |(name, gpu): (&'static str, Gpu)| {
            fit(&gpu).map(|fit| Card { name, memory: gpu.memory, fit })
        };
        let cards = if whole { Gpu::known().filter_map(card).collect() } else { Vec::new() };
        Ok(Some(Peaks {
            requested,
            allocated,
            reserved,
            at: history.peak(),
            may_fail: all_served == Some(false),
            cards,
        }))
    }
}

/// A line of the values' guesses.
#[derive(Deserialize)]
struct GuessLine {
    line: String,
    what: String,
}

/// Folders in which scripts run.
static FOLDERS: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

fn folders() -> MutexGuard<'static, BTreeSet<PathBuf>> {
    FOLDERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ends scripts that run and removes their folders, for a program that is about to end without coming back here: when
/// someone presses Ctrl-C.
pub fn abandon() {
    end_all();
    for folder in &*folders() {
        // What cannot be removed stays where temporary files are.
        let _ = fs::remove_dir_all(folder);
    }
}

/// A folder that goes with this value.
#[derive(Debug)]
struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Result<Self, Error> {
        let folder = tempfile::Builder::new().prefix("tonnage-").tempdir();
        let folder = folder.map_err(Error::of(&std::env::temp_dir()))?;
        folders().insert(folder.path().to_owned());
        Ok(Self(folder))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        folders().remove(self.0.path());
    }
}

/// Predicts.
///
/// # Errors
///
/// If the script cannot be run. That it fails is an outcome.
pub fn predict(options: &Options, environment: &Environment) -> Result<Outcome, Error> {
    let started = Instant::now();
    let folder = Folder::new()?;
    let place = Place::prepare(folder.0.path(), options, environment)?;
    let first = place.run(options, Pass::Values)?;
    let second = place.run(options, Pass::Figures)?;
    let answer = second.answer()?;
    let mut guesses = place.guesses(&first)?;
    if first.ended.ending != second.ended.ending {
        guesses.push(Guess {
            line: None,
            what: "the script ended in another way when values were computed".to_owned(),
        });
    }
    for line in lines(&second.notes.join(READS_FILE))? {
        let what = format!("reads differ from the run in which values were computed: {line}");
        guesses.push(Guess { line: None, what });
    }
    for line in lines(&second.notes.join(GUESSES_FILE))? {
        guesses.push(Guess { line: None, what: line });
    }
    if answer.as_ref().is_some_and(|answer| answer.compiled) {
        let what = "torch.compile chooses kernels and layouts by how fast they are, which is not known here";
        guesses.push(Guess { line: None, what: what.to_owned() });
    }
    let unknown = lines(&second.notes.join(UNKNOWN_FILE))?;
    let peaks = match &answer {
        Some(answer) => {
            answer.peaks(options.gpu.room(options.limit)?, options.gpu.total(options.limit))?
        }
        None => None,
    };
    let (torch, stats, failure, snapshot) = match answer {
        Some(answer) => (answer.torch, answer.stats, answer.error, Some(answer.snapshot)),
        None => (environment.torch.clone(), BTreeMap::new(), None, None),
    };
    Ok(Outcome {
        torch,
        stats,
        peaks,
        ending: second.ended.ending,
        failure,
        output: second.ended.output,
        guesses,
        unknown,
        snapshot,
        time: started.elapsed(),
        _folder: folder,
    })
}

/// What a run is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pass {
    /// Values are computed beside, and what the script reads is written down.
    Values,
    /// The script is given what it read, and its figures count.
    Figures,
}

impl Pass {
    fn name(self) -> &'static str {
        match self {
            Self::Values => "values",
            Self::Figures => "figures",
        }
    }
}

/// A folder in which scripts run.
struct Place {
    folder: PathBuf,
    libraries: Libraries,
}

/// A run that is over.
struct Done {
    ended: Ended,
    out: PathBuf,
    notes: PathBuf,
}

impl Place {
    fn prepare(folder: &Path, options: &Options, environment: &Environment) -> Result<Self, Error> {
        let version = i32::try_from(environment.cuda).unwrap_or(13) * 1000;
        write(&folder.join("profile"), &options.gpu.profile(options.limit, version)?.to_lines())?;
        let make = |name: &str| {
            let path = folder.join(name);
            fs::create_dir(&path).map_err(Error::of(&path)).map(|()| path)
        };
        let hook = make("hook")?;
        for (name, text) in HOOK {
            write(&hook.join(name), text)?;
        }
        let libraries = Libraries::write(&make("lib")?, &environment.libraries)?;
        Ok(Self { folder: folder.to_owned(), libraries })
    }

    fn run(&self, options: &Options, pass: Pass) -> Result<Done, Error> {
        let make = |name: &str| {
            let path = self.folder.join(pass.name()).join(name);
            fs::create_dir_all(&path).map_err(Error::of(&path)).map(|()| path)
        };
        let (out, notes, caches) = (make("out")?, make("notes")?, make("caches")?);
        let mut words = options.command.iter();
        let mut command = Command::new(words.next().map_or("python3", String::as_str));
        command.args(words);
        let join = |variable: &str, first: String| match std::env::var(variable) {
            Ok(rest) if !rest.is_empty() => format!("{first}:{rest}"),
            _ => first,
        };
        let preload: Vec<_> =
            self.libraries.preload.iter().map(|path| path.to_string_lossy().into_owned()).collect();
        command.env("LD_PRELOAD", join("LD_PRELOAD", preload.join(":")));
        let of_folder = |name: &str| self.folder.join(name).to_string_lossy().into_owned();
        command.env("LD_LIBRARY_PATH", join("LD_LIBRARY_PATH", of_folder("lib")));
        command.env("PYTHONPATH", join("PYTHONPATH", of_folder("hook")));
        command.env(PROFILE_VARIABLE, self.folder.join("profile"));
        command.env(NOTES_VARIABLE, &notes);
        command.env("TONNAGE_CORE", &self.libraries.core);
        command.env("TONNAGE_OUT", &out);
        command.env("TONNAGE_STACKS", if pass == Pass::Figures { "1" } else { "0" });
        // What is compiled for a device that computes nothing, and chosen by times that are none, stays here.
        command.env("TORCHINDUCTOR_CACHE_DIR", caches.join("inductor"));
        command.env("TRITON_CACHE_DIR", caches.join("triton"));
        if let Some(settings) = &options.settings {
            command.env(SETTINGS_VARIABLE, settings).env_remove(NEWER_SETTINGS_VARIABLE);
        }
        let reads = self.folder.join("reads");
        match pass {
            Pass::Values => {
                command.env("TONNAGE_VALUES", "1").env("TONNAGE_GUESSES", self.guess_lines());
                command.env(READS_OUT_VARIABLE, reads);
            }
            Pass::Figures => {
                command.env("TONNAGE_VALUES", "0").env(READS_IN_VARIABLE, reads);
            }
        }
        Ok(Done { ended: run(&mut command, options.time)?, out, notes })
    }

    fn guess_lines(&self) -> PathBuf {
        self.folder.join("guesses")
    }

    /// What values were guessed and looked at.
    fn guesses(&self, first: &Done) -> Result<Vec<Guess>, Error> {
        let mut guesses = Vec::new();
        for line in lines(&self.guess_lines())? {
            if let Ok(GuessLine { line, what }) = serde_json::from_str(&line) {
                guesses.push(Guess { line: Some(line).filter(|line| !line.is_empty()), what });
            }
        }
        if first.ended.ending == Ending::TimeOut {
            let what = "the run in which values are computed took too long: values are zeros from there on";
            guesses.push(Guess { line: None, what: what.to_owned() });
        }
        Ok(guesses)
    }
}

impl Done {
    /// The figures of the script's process; of several that used the device the one that was started, or else the one
    /// that held most.
    fn answer(&self) -> Result<Option<Answer>, Error> {
        let mut answers = Vec::new();
        for entry in fs::read_dir(&self.out).map_err(Error::of(&self.out))? {
            let path = entry.map_err(Error::of(&self.out))?.path();
            if path.extension().is_some_and(|it| it == "json") {
                let text = fs::read_to_string(&path).map_err(Error::of(&path))?;
                let answer: Answer = serde_json::from_str(&text)
                    .map_err(|error| Error::File { path, error: error.into() })?;
                answers.push(answer);
            }
        }
        let held =
            |answer: &Answer| answer.stats.get("reserved_bytes.all.peak").copied().unwrap_or(0);
        answers.sort_by_key(|answer| (answer.process == self.ended.process, held(answer)));
        Ok(answers.pop())
    }
}

fn write(path: &Path, text: &str) -> Result<(), Error> {
    fs::write(path, text).map_err(Error::of(path))
}

/// Lines of a file; none if it is not there.
fn lines(path: &Path) -> Result<Vec<String>, Error> {
    match fs::read(path) {
        Ok(bytes) => Ok(String::from_utf8_lossy(&bytes).lines().map(str::to_owned).collect()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(Error::of(path)(error)),
    }
}
