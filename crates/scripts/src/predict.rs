//! A prediction: runs of the script, and what they tell.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde::Deserialize;
use tonnage_engine::Release;
use tonnage_fake_cudart::notes::{ASKED_FILE, GUESSES_FILE, READS_FILE, UNKNOWN_FILE};

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

/// How far peaks of scripts were off that compile, as a share, rounded up: `torch.compile` chooses by times, and there are none.
const COMPILED: f64 = 0.07;

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
    /// How many devices there are, all alike; as many as a host has if the script is a rank of a job.
    pub gpus: u32,
    /// The rank that the script is, of a job whose others are not there.
    pub world: Option<World>,
    /// Whether other guesses are tried, and what a script needs that does not fit: up to four more runs.
    pub thorough: bool,
    /// What earlier runs of the script wrote, which it may meet.
    pub written: Vec<Written>,
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
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
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
    /// Processes of it that obtained memory and in which nothing ran that could tell how much: a Python that ignores
    /// `PYTHONPATH`, or no Python.
    pub unheard: u64,
    /// Why there are no figures though the script used the device, if that is so.
    pub untold: Option<String>,
    /// Whether memory did not suffice for a process of it, which failed by that, whatever the script made of it.
    pub starved: bool,
    /// Whether other guesses about masks were not tried that decide how long tensors are.
    pub may_differ: bool,
    /// Most bytes of the host's memory that it took: before it used the device, and at all.
    pub host: [u64; 2],
    /// Most bytes of the host's memory that its processes were seen to have together.
    pub host_together: u64,
    /// The first file that the run which counts read as an earlier run had written it.
    pub met: Option<PathBuf>,
    /// How often memory was asked for in the run which counts, and at most in any of the two, if what is compiled does not differ there.
    pub requests: [u64; 2],
    /// The number of the device that peaks are of: the one of which most was reserved.
    pub device: u32,
    /// Memory of other devices of its host: those of other ranks, if the script is one.
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
    } else if options.thorough && tried.ran_out() && started.elapsed() > PATIENCE {
        tried.guesses.push(Guess::new(
            "how much memory the script would need was not tried, since it takes long",
        ));
    } else if options.thorough && tried.ran_out() {
        let gpu = options.gpu.with_memory(PLENTY);
        let plenty = Trial { name: "plenty", gpu: &gpu, limit: None, density: None };
        let mut more = Tried::of(&place, options, &plenty)?;
        if more.mask_guessed && more.fits() {
            more.widen(&place, options, &plenty, started)?;
        }
        tried.also_wrote(std::mem::take(&mut more.done.files));
        tried.guesses.extend(more.guesses.iter().cloned());
        tried.unknown.extend(more.unknown.iter().cloned());
        if more.fits() && !more.asked {
            need = more.peaks.filter(|need| need.reserved.high < A_SHARE);
        }
    }
    let Tried {
        done, answer, peaks, guesses, unknown, mask_guessed, host_together, requests, ..
    } = tried;
    let met = done.journal.met().into_iter().next().map(|(path, _)| path);
    let (mut guesses, unknown) = (once(guesses), once(unknown));
    let (silent, unheard) = (done.silent()?, done.unheard()?);
    let starved = answer.as_ref().is_some_and(|answer| answer.starved);
    let host = answer.as_ref().map_or([0; 2], |answer| answer.host);
    let elsewhere = answer.as_ref().map_or(Vec::new(), |answer| answer.elsewhere.clone());
    let device = answer.as_ref().map_or(0, |answer| answer.device);
    let untold = answer.as_ref().and_then(|answer| answer.untold.clone());
    let (torch, stats, failure, snapshot) = match answer {
        Some(answer) => (answer.torch, answer.stats, answer.error, answer.snapshot),
        None => (environment.torch.clone(), BTreeMap::new(), None, None),
    };
    guesses.extend(untried(&torch).map(Guess::new));
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
        unheard,
        untold,
        starved,
        may_differ: mask_guessed && !options.thorough,
        host,
        host_together,
        met,
        requests,
        device,
        elsewhere,
        files: done.files,
        snapshot,
        time: started.elapsed(),
        _folder: folder,
    })
}

/// Each the first time.
fn once<T: Clone + Ord>(all: Vec<T>) -> Vec<T> {
    let mut told = BTreeSet::new();
    all.into_iter().filter(|it| told.insert(it.clone())).collect()
}

/// What to say of a release of PyTorch that nobody has tried here. One that was never installed may not be told.
fn untried(torch: &str) -> Option<String> {
    if torch.is_empty() || torch.parse::<Release>().is_ok() {
        return None;
    }
    let (oldest, newest) = (Release::OLDEST, Release::NEWEST);
    Some(format!(
        "PyTorch {torch} is none of the releases that are known here, {oldest} to {newest}: what it does otherwise is not known"
    ))
}

/// Two runs: one in which values are computed, and the one that counts.
struct Tried {
    done: Done,
    answer: Option<Answer>,
    peaks: Option<Peaks>,
    guesses: Vec<Guess>,
    /// Functions without behaviour that were called.
    unknown: Vec<String>,
    /// Whether sizes depend on a mask that is not known.
    mask_guessed: bool,
    /// Whether the script asked how much memory there is.
    asked: bool,
    /// Most bytes of the host's memory that processes of either run had together.
    host_together: u64,
    /// Requests of the run which counts, and most of both.
    requests: [u64; 2],
}

/// What to say of the process that counts: of figures that are there though some are not, and of its PyTorch.
fn doubts(answer: &Answer, installed: &str) -> Vec<Guess> {
    let mut doubts = Vec::new();
    if let (Some(why), true) = (&answer.untold, answer.snapshot.is_some()) {
        doubts.push(Guess::new(format!(
            "the allocator of a process tells no figures ({why}): what it held is not counted"
        )));
    }
    // What it was built for stands behind a sign.
    let release = |of: &str| of.split('+').next().unwrap_or_default().to_owned();
    let [ran, known] = [release(&answer.torch), release(installed)];
    if !ran.is_empty() && !known.is_empty() && ran != known {
        doubts.push(Guess::new(format!(
            "the script ran on PyTorch {}, and its CUDA libraries are those of another Python, with PyTorch {installed}: begin the command with the Python that it uses",
            answer.torch
        )));
    }
    doubts
}

/// What to say of files that the run before had written and that the one which counts read.
fn met(done: &Done) -> Vec<Guess> {
    let met = done.journal.met();
    let Some((path, line)) = met.first() else { return Vec::new() };
    let more = match met.len() {
        1 => String::new(),
        count => format!(" and {} more", count - 1),
    };
    vec![Guess {
        line: Some(line.clone()).filter(|line| !line.is_empty()),
        what: format!(
            "{}{more} is read, as an earlier run of the script had written it: if it goes on from there, it asks for less than one that begins",
            path.display()
        ),
    }]
}

/// How often memory was asked for in the run which counts, and at most in either. What compiles asks for less than what is computed
/// step by step, as it is where values are.
fn requests(answer: Option<&Answer>, before: Option<&Answer>) -> [u64; 2] {
    let Some(answer) = answer else { return [0; 2] };
    let before = before.filter(|_| !answer.compiled).map_or(0, Answer::requests);
    [answer.requests(), answer.requests().max(before)]
}

impl Tried {
    fn of(place: &Place<'_>, options: &Options, trial: &Trial<'_>) -> Result<Self, Error> {
        let mut values = place.run(options, trial, Pass::Values)?;
        let wrote = !values.files.is_empty();
        let mut done = place.run(options, trial, Pass::Figures)?;
        done.files = joined(std::mem::take(&mut values.files), done.files);
        let answer = done.answer(trial.gpu.context)?;
        let before = values.answer(trial.gpu.context)?;
        let (mut guesses, mut mask_guessed) = (met(&done), false);
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
            let written = match wrote {
                true => ", and wrote files then that the run which counts may have met",
                false => "",
            };
            guesses.push(Guess::new(format!(
                "the script ended in another way when values were computed{written}"
            )));
        }
        for line in lines(&done.notes.join(READS_FILE))? {
            guesses.push(Guess::new(format!(
                "reads differ from the run in which values were computed: {line}"
            )));
        }
        let mut noted = lines(&done.notes.join(GUESSES_FILE))?;
        noted.extend(lines(&values.notes.join(GUESSES_FILE))?);
        guesses.extend(once(noted).into_iter().map(Guess::new));
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
        if done.unheard()? > 0 && answer.is_some() {
            guesses.push(Guess::new(
                "processes of the script used the GPU in a Python that ignores PYTHONPATH (-I, -E or -S) or was given another one, or without PyTorch: what they held is not counted",
            ));
        }
        if let Some(answer) = &answer {
            guesses.extend(doubts(answer, place.torch()));
        }
        let asked_past = lines(&done.notes.join(ASKED_FILE))?;
        let line = answer.as_ref().and_then(|answer| answer.asked.clone());
        let asked = line.is_some() || !asked_past.is_empty();
        if asked {
            let by = asked_past.first().filter(|_| line.is_none());
            let by = by.map_or(String::new(), |name| format!(" ({name})"));
            let what = format!(
                "the script asks how much memory there is{by}: on another card it may ask for more, or less"
            );
            guesses.push(Guess { line, what });
        }
        let (room, total) = (trial.gpu.room(trial.limit)?, trial.gpu.total(trial.limit));
        let mut peaks = match &answer {
            Some(answer) => answer.peaks(room, total, done.ended.ending, trial.gpu.context)?,
            None => None,
        };
        if let (Some(peaks), Some(answer)) = (&mut peaks, answer.as_ref().filter(|it| it.compiled))
        {
            peaks.widen_by_guess(COMPILED, total, trial.gpu.context, answer.share);
        }
        let ended_alike = values.ended.ending == done.ended.ending;
        // What compiles asks for less than what is computed step by step, as it is where values are.
        if let (Some(answer), Some(before)) =
            (&answer, before.as_ref().filter(|_| wrote && ended_alike))
            && !answer.compiled
            && answer.requests() < before.requests() / 4 * 3
        {
            guesses.push(Guess::new(format!(
                "memory was asked for {} times, and {} times when values were computed: the script may have gone on from what it wrote then, such as a checkpoint. \
                 Run it where it finds none of its own",
                answer.requests(),
                before.requests()
            )));
            if let Some(peaks) = &mut peaks {
                peaks.hold_those_of(before, total, trial.gpu.context);
            }
        }
        if let Some(why) = peaks.as_ref().and_then(|peaks| peaks.one_order.as_ref()) {
            guesses.push(Guess::new(format!(
                "what other orders of addresses come to, and other cards, is not known: {why}"
            )));
        }
        let unknown = lines(&done.notes.join(UNKNOWN_FILE))?;
        let requests = requests(answer.as_ref(), before.as_ref());
        let host_together = values.ended.memory.max(done.ended.memory);
        Ok(Self {
            done,
            answer,
            peaks,
            guesses,
            unknown,
            mask_guessed,
            asked,
            host_together,
            requests,
        })
    }

    fn fits(&self) -> bool {
        let starved = self.answer.as_ref().is_some_and(|answer| answer.starved);
        self.done.ended.ending == Ending::Exit(0) && self.peaks.is_some() && !starved
    }

    fn ran_out(&self) -> bool {
        let failed = self.done.ended.ending != Ending::Exit(0);
        self.answer.as_ref().is_some_and(|it| it.starved || (failed && it.ran_out()))
    }

    /// A later run wrote these.
    fn also_wrote(&mut self, files: Vec<Written>) {
        self.done.files = joined(std::mem::take(&mut self.done.files), files);
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
            let mut other = Self::of(place, options, &trial)?;
            self.also_wrote(std::mem::take(&mut other.done.files));
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

#[cfg(test)]
mod tests {
    use super::{once, untried};

    #[test]
    fn what_two_runs_say_is_said_once() {
        assert_eq!(once(vec!["b", "a", "b", "c", "a"]), ["b", "a", "c"]);
    }

    #[test]
    fn releases_that_are_not_known_are_told() {
        assert_eq!(untried("2.9.1+cu128"), None);
        assert_eq!(untried("2.15.0"), None);
        assert_eq!(untried(""), None);
        for torch in ["2.7.1", "2.16.0a0", "3.0.0"] {
            let told = untried(torch).unwrap();
            assert!(told.contains(torch) && told.contains("2.8 to 2.15"), "{told}");
        }
    }
}
