//! A prediction: runs of the script, and what they tell.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde::Deserialize;
use tonnage_fake_cudart::notes::{GUESSES_FILE, READS_FILE, UNKNOWN_FILE};

use crate::answer::{Answer, Elsewhere, Failure, Peaks};
use crate::files::{Written, joined};
use crate::place::{Done, Folder, Pass, Place, Trial, lines};
use crate::{Ending, Environment, Error, Gpu};

/// A script that takes longer is not run again to know more: chosen, what someone waits for without a word.
const PATIENCE: Duration = Duration::from_secs(180);

/// More than any card has, to know what a script needs that does not fit; and what only a script comes to that takes a share
/// of whatever is there.
const PLENTY: u64 = 1 << 42;
const A_SHARE: u64 = PLENTY / 8;

/// The kind of a guess that says how long tensors are, and that others can be made for.
const MASK: &str = "mask";

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
    /// The rank that the script is, of a job whose others are not there.
    pub world: Option<World>,
    /// Whether other guesses are tried, and what a script needs that does not fit: up to four more runs.
    pub thorough: bool,
}

/// A rank of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct World {
    /// How many ranks there are.
    pub size: u32,
    /// Which one.
    pub rank: u32,
    /// How many of them share a host, each with a GPU of its own.
    pub per_host: u32,
}

/// Something that figures rest on and that is not known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Guess {
    /// The line of the program, if it is one.
    pub line: Option<String>,
    /// What was taken to be so.
    pub what: String,
}

impl Guess {
    fn new(what: impl Into<String>) -> Self {
        Self { line: None, what: what.into() }
    }
}

/// What the script did.
#[derive(Debug)]
pub struct Outcome {
    /// PyTorch's version.
    pub torch: String,
    /// PyTorch's own figures, `memory_stats()`, of the whole run; empty if it never used the device or did not live to tell.
    pub stats: BTreeMap<String, i64>,
    /// Peaks; nothing where there are no figures.
    pub peaks: Option<Peaks>,
    /// Its peaks with as much memory as it asks for, if memory did not suffice and that could be found.
    pub need: Option<Peaks>,
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
    /// Processes of it that used the device and were ended before they could tell: what they held is in no figure.
    pub silent: u64,
    /// Most bytes of the host's memory that it took: before it used the device, and at all.
    pub host: [u64; 2],
    /// Memory of other devices of its host: a rank of a job uses one, and the others are other ranks'.
    pub elsewhere: Vec<Elsewhere>,
    /// Files that it wrote or removed.
    pub files: Vec<Written>,
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

/// A line of the values' guesses.
#[derive(Deserialize)]
struct GuessLine {
    line: String,
    what: String,
    kind: Option<String>,
}

/// Predicts.
///
/// # Errors
///
/// If the script cannot be run. That it fails is an outcome.
pub fn predict(options: &Options, environment: &Environment) -> Result<Outcome, Error> {
    let started = Instant::now();
    let folder = Folder::new()?;
    let place = Place::prepare(folder.path(), environment)?;
    let usual = Trial { name: "usual", gpu: &options.gpu, limit: options.limit, density: None };
    let mut tried = Tried::of(&place, options, &usual)?;
    let mut need = None;
    if options.thorough && tried.mask_guessed && tried.fits() {
        tried.widen(&place, options, &usual, started)?;
    } else if options.thorough && tried.ran_out() && started.elapsed() <= PATIENCE {
        let gpu = options.gpu.with_memory(PLENTY);
        let plenty = Trial { name: "plenty", gpu: &gpu, limit: None, density: None };
        let more = Tried::of(&place, options, &plenty)?;
        need = more.peaks.filter(|need| {
            more.done.ended.ending == Ending::Exit(0)
                && more.answer.as_ref().is_none_or(|answer| answer.asked.is_none())
                && need.reserved.high < A_SHARE
        });
    }
    let unknown = lines(&tried.done.notes.join(UNKNOWN_FILE))?;
    let silent = tried.done.silent()?;
    let Tried { done, answer, peaks, guesses, .. } = tried;
    let host = answer.as_ref().map_or([0; 2], |answer| answer.host);
    let elsewhere = answer.as_ref().map_or(Vec::new(), |answer| answer.elsewhere.clone());
    let (torch, stats, failure, snapshot) = match answer {
        Some(answer) => (answer.torch, answer.stats, answer.error, Some(answer.snapshot)),
        None => (environment.torch.clone(), BTreeMap::new(), None, None),
    };
    Ok(Outcome {
        torch,
        stats,
        peaks,
        need,
        ending: done.ended.ending,
        failure,
        output: done.ended.output,
        guesses,
        unknown,
        silent,
        host,
        elsewhere,
        files: done.files,
        snapshot,
        time: started.elapsed(),
        _folder: folder,
    })
}

/// Two runs: one in which values are computed, and the one that counts.
struct Tried {
    done: Done,
    answer: Option<Answer>,
    peaks: Option<Peaks>,
    guesses: Vec<Guess>,
    /// Whether sizes depend on a mask that is not known.
    mask_guessed: bool,
}

impl Tried {
    fn of(place: &Place<'_>, options: &Options, trial: &Trial<'_>) -> Result<Self, Error> {
        let values = place.run(options, trial, Pass::Values)?;
        let mut done = place.run(options, trial, Pass::Figures)?;
        done.files = joined(values.files, done.files);
        let answer = done.answer()?;
        let (mut guesses, mut mask_guessed) = (Vec::new(), false);
        for line in lines(&place.guess_lines(trial))? {
            if let Ok(GuessLine { line, what, kind }) = serde_json::from_str(&line) {
                mask_guessed |= kind.as_deref() == Some(MASK);
                guesses.push(Guess { line: Some(line).filter(|line| !line.is_empty()), what });
            }
        }
        if values.ended.ending == Ending::TimeOut {
            guesses.push(Guess::new(
                "the run in which values are computed took too long: values are zeros from there on",
            ));
        }
        if values.ended.ending != done.ended.ending {
            guesses.push(Guess::new("the script ended in another way when values were computed"));
        }
        for line in lines(&done.notes.join(READS_FILE))? {
            guesses.push(Guess::new(format!(
                "reads differ from the run in which values were computed: {line}"
            )));
        }
        let mut noted = lines(&done.notes.join(GUESSES_FILE))?;
        noted.extend(lines(&values.notes.join(GUESSES_FILE))?);
        let mut told = BTreeSet::new();
        noted.retain(|line| told.insert(line.clone()));
        guesses.extend(noted.into_iter().map(Guess::new));
        if answer.as_ref().is_some_and(|answer| answer.compiled) {
            guesses.push(Guess::new(
                "torch.compile chooses kernels and layouts by how fast they are, which is not known here",
            ));
        }
        if done.silent()? > 0 {
            guesses.push(Guess::new(
                "processes of the script used the GPU and were ended before they could tell how much: what they held is not counted",
            ));
        }
        if let Some(line) = answer.as_ref().and_then(|answer| answer.asked.clone()) {
            guesses.push(Guess {
                line: Some(line),
                what: "the script asks how much memory there is: on another card it may ask for more, or less"
                    .to_owned(),
            });
        }
        let (room, total) = (trial.gpu.room(trial.limit)?, trial.gpu.total(trial.limit));
        let peaks = match &answer {
            Some(answer) => answer.peaks(room, total, done.ended.ending, trial.gpu.context)?,
            None => None,
        };
        Ok(Self { done, answer, peaks, guesses, mask_guessed })
    }

    fn fits(&self) -> bool {
        self.done.ended.ending == Ending::Exit(0) && self.peaks.is_some()
    }

    fn ran_out(&self) -> bool {
        self.done.ended.ending != Ending::Exit(0)
            && self.answer.as_ref().is_some_and(Answer::ran_out)
    }

    /// Widens ranges by what comes of masks that are all false, and all true.
    fn widen(
        &mut self,
        place: &Place<'_>,
        options: &Options,
        usual: &Trial<'_>,
        started: Instant,
    ) -> Result<(), Error> {
        for (name, density, words) in [("none", 0.0, "nothing"), ("all", 1.0, "everything")] {
            if started.elapsed() > PATIENCE {
                self.guesses.push(Guess::new(format!(
                    "what the figures are with {words} true in masks that are not known was not tried, since the script takes long"
                )));
                continue;
            }
            let trial = Trial { name, density: Some(density), ..usual.clone() };
            let other = Self::of(place, options, &trial)?;
            match (other.fits(), &mut self.peaks, other.peaks) {
                (true, Some(ours), Some(theirs)) => {
                    ours.requested = ours.requested.and(theirs.requested);
                    ours.allocated = ours.allocated.and(theirs.allocated);
                    ours.reserved = ours.reserved.and(theirs.reserved);
                    if theirs.may_fail.iter().any(|why| !ours.may_fail.contains(why)) {
                        ours.fail_by_guess();
                    }
                    ours.by_guess = true;
                    for card in &mut ours.cards {
                        let same = theirs.cards.iter().find(|it| it.name == card.name);
                        card.fit = same.map_or(card.fit, |same| card.fit.or(same.fit));
                    }
                }
                (_, Some(ours), _) if other.answer.as_ref().is_some_and(Answer::ran_out) => {
                    ours.fail_by_guess();
                    self.guesses.push(Guess::new(format!(
                        "with {words} true in masks that are not known, memory does not suffice"
                    )));
                }
                _ => self.guesses.push(Guess::new(format!(
                    "with {words} true in masks that are not known the script fails, so that its figures are not known"
                ))),
            }
        }
        Ok(())
    }
}
