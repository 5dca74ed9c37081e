//! `tonnage predict --world 64 --rank all --out DATASET -- python train.py`: ranks of a job, each by itself, side by side.
//!
//! In:  which ranks, their layout, along which of its axes they are said to be alike, what is kept of an earlier run.
//! Out: a run for each rank that needs one, a row for each rank, and what is said of them (`said.rs`).
//!
//! Of each set of ranks that are said to be alike the first and the last are run. If they ask for the same, those between share
//! the first one's run; if not, each is run. Runs are kept in the dataset with what they were run with ([`Key`]), so that
//! a later command takes those that it would make again; those of other ranks stay. `elsewhere.rs` does single steps of this for
//! programs that spread ranks over machines.

mod elsewhere;

mod run;

mod said;

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use anyhow::{anyhow, bail};
use tonnage::replay::Until;
use tonnage::snapshot::spare_memory;
use tonnage_fleet::{Crew, Dataset, DatasetError, Found, LookOptions, NamePattern, Row, Runs};
use tonnage_scripts::{
    Change, Error as ScriptError, Layout, Options, Outcome, World, Written, predict_ranks,
    rank_name, sets, stop_scripts_when, stopping_when,
};

pub(crate) use self::elsewhere::{Elsewhere, Step, keep, left, one};
use self::run::{Key, Run, Word};
use crate::ask::Answered;
use crate::output::is_the_command;
use crate::predict_script::{Seen, Subject};
use crate::progress::Progress;
use crate::stopped::{StoppedEarly, on_ctrl_c};

/// So many ranks stand side by side; of more, groups are told.
const SIDE_BY_SIDE: usize = 16;

/// Which ranks of a job are asked for, and how.
pub(crate) struct Asked {
    /// Ranks of the job.
    pub(crate) size: u32,
    pub(crate) per_host: u32,
    /// Those that are asked for, ascending.
    pub(crate) ranks: Vec<u32>,
    pub(crate) layout: Option<Layout>,
    /// How many run at once.
    pub(crate) jobs: Option<NonZeroUsize>,
    /// The dataset's folder.
    pub(crate) out: Option<PathBuf>,
    /// Whether ranks that failed by themselves are taken as they are, and not tried again.
    pub(crate) failures_kept: bool,
    /// What ranks are run with, where an earlier step has told; else it is told from what is here now.
    pub(crate) key: Option<Key>,
}

impl Asked {
    /// The only rank, if it is to be predicted as any script is: without a dataset.
    pub(crate) fn one(&self) -> Option<World> {
        match self.ranks[..] {
            [rank] if self.out.is_none() => Some(self.world(rank)),
            _ => None,
        }
    }

    fn world(&self, rank: u32) -> World {
        World { size: self.size, rank, per_host: self.per_host }
    }

    fn name(&self, rank: u32) -> String {
        rank_name(self.layout.as_ref(), rank)
    }

    /// The rank of the job that has this name, in this layout.
    fn rank(&self, name: &str) -> Option<u32> {
        let rank = name.rsplit_once('_')?.1.parse().ok()?;
        (rank < self.size && self.name(rank) == name).then_some(rank)
    }

    /// The rank of the job that a row is of.
    fn rank_of(&self, row: &Row) -> Option<u32> {
        self.rank(Path::new(&row.address).file_name()?.to_str()?.split('.').next()?)
    }

    fn is_asked(&self, rank: u32) -> bool {
        self.ranks.binary_search(&rank).is_ok()
    }
}

/// Predicts the ranks; ranks whose scripts failed by themselves are an error beside the answer.
pub(crate) fn look(
    asked: Asked,
    subject: &Subject<'_>,
) -> anyhow::Result<(Answered, Option<anyhow::Error>)> {
    let mut job = Job::new(asked, subject)?;
    // With a dataset, what is done is kept.
    if job.kept.is_some() && is_the_command() {
        job.until = until_ctrl_c();
    }
    let until = job.until.clone();
    stop_scripts_when(&until, || job.work())?;
    job.answered()
}

fn until_ctrl_c() -> Until {
    let (until, stop) = Until::told();
    on_ctrl_c(move || stop.now());
    until
}

/// What rows are made with: limit and memory of the card that is predicted for.
fn looking(options: &Options) -> anyhow::Result<LookOptions> {
    Ok(LookOptions {
        limit: Some(options.gpu.room(options.limit)?),
        total: Some(options.gpu.total(options.limit)),
        names: NamePattern::usual(),
        ..LookOptions::default()
    })
}

/// The dataset that runs and rows go into.
struct Kept {
    dataset: Dataset,
    runs: Runs,
}

impl Kept {
    fn open(folder: &Path) -> anyhow::Result<Self> {
        let dataset = Dataset::open(folder)?;
        let runs = dataset.runs();
        if !runs.are_there() && !Dataset::read(folder)?.is_empty() {
            bail!("{}: this is a dataset of files: name another folder", folder.display());
        }
        Ok(Self { dataset, runs })
    }
}

/// Ranks that are being predicted.
struct Job<'a> {
    asked: Asked,
    subject: &'a Subject<'a>,
    key: Key,
    looking: LookOptions,
    /// Sets of ranks that are said to be alike.
    sets: Vec<Vec<u32>>,
    /// The first of each rank's set.
    firsts: BTreeMap<u32, u32>,
    kept: Option<Kept>,
    /// When all of it is to end.
    until: Until,
    runs: BTreeMap<u32, Run>,
    /// Of ranks with a run of their own; none where nobody needs rows.
    rows: BTreeMap<u32, Row>,
    /// Ranks that are not asked for, and whose runs an earlier command made for the same question.
    others: BTreeSet<u32>,
    /// Ranks that are not asked for, and share the run of another, by what an earlier command found.
    others_shared: BTreeMap<u32, u32>,
    /// Runs that an earlier command made.
    from_before: usize,
    /// What such runs wrote among files.
    written_before: BTreeSet<PathBuf>,
}

impl<'a> Job<'a> {
    fn new(asked: Asked, subject: &'a Subject<'a>) -> anyhow::Result<Self> {
        let of_now = || Key::of(subject.options, subject.environment, &asked);
        let sets = sets(asked.layout.as_ref(), &asked.ranks);
        let firsts = sets.iter().flat_map(|set| set.iter().map(|&rank| (rank, set[0])));
        Ok(Self {
            key: asked.key.clone().unwrap_or_else(of_now),
            looking: looking(subject.options)?,
            firsts: firsts.collect(),
            sets,
            kept: asked.out.as_deref().map(Kept::open).transpose()?,
            until: stopping_when(),
            runs: BTreeMap::new(),
            rows: BTreeMap::new(),
            others: BTreeSet::new(),
            others_shared: BTreeMap::new(),
            from_before: 0,
            written_before: BTreeSet::new(),
            asked,
            subject,
        })
    }

    /// Runs what is left until nothing is.
    fn work(&mut self) -> anyhow::Result<()> {
        self.take_what_is_kept()?;
        loop {
            let left = self.left();
            if left.is_empty() {
                return self.finish();
            }
            self.run(&left)?;
        }
    }

    /// Runs of an earlier command that this one would make again, of all ranks of the job.
    fn take_what_is_kept(&mut self) -> anyhow::Result<()> {
        let Some(kept) = &mut self.kept else { return Ok(()) };
        let mut runs = BTreeMap::new();
        for name in kept.runs.names()? {
            let run = kept.runs.about(&name).and_then(|text| Run::read(&text).ok());
            let run = run.filter(|run| self.key.is_like(&run.key));
            runs.extend(self.asked.rank(&name).zip(run));
        }
        // A file that one rank writes is named in the command of all.
        let written: BTreeSet<PathBuf> = runs.values().flat_map(Run::written).collect();
        runs.retain(|_, run| self.key.is_as_good_as(&run.key, &written));
        self.written_before = written;
        let mut files: BTreeMap<String, (u32, Found)> = BTreeMap::new();
        for (rank, run) in runs {
            let (name, is_asked) = (self.asked.name(rank), self.asked.is_asked(rank));
            if is_asked && run.verdict == Word::Failed && !self.asked.failures_kept {
                // It is tried again.
                kept.runs.forget(&name)?;
                continue;
            }
            if run.history {
                // It was stopped before its history was kept.
                let Some(found) = kept.runs.found(&name) else { continue };
                files.insert(found.address.clone(), (rank, found));
            } else {
                let row = run.row_without_file(&kept.runs.address(&name), &self.looking);
                self.rows.insert(rank, row);
            }
            match is_asked {
                true => drop(self.runs.insert(rank, run)),
                false => drop(self.others.insert(rank)),
            }
        }
        self.from_before = self.runs.len();
        if !self.others.is_empty() {
            self.take_what_others_share()?;
        }
        self.look_at(files)
    }

    /// Ranks that are not asked for, and share a run that is kept.
    fn take_what_others_share(&mut self) -> anyhow::Result<()> {
        let Some(folder) = &self.asked.out else { return Ok(()) };
        let rows = match Dataset::read(folder) {
            // The part is written again, of what is known besides.
            Err(DatasetError::Damaged(_)) => Vec::new(),
            read => read?,
        };
        let own = |rank: &u32| self.runs.contains_key(rank) || self.others.contains(rank);
        let by_address: BTreeMap<_, _> =
            rows.iter().filter_map(|row| Some((&row.address, self.asked.rank_of(row)?))).collect();
        let shared = |row: &Row| {
            let rank =
                self.asked.rank_of(row).filter(|it| !self.asked.is_asked(*it) && !own(it))?;
            let of = by_address.get(row.same_as.as_ref()?).filter(|it| own(it))?;
            Some((rank, *of))
        };
        self.others_shared = rows.iter().filter_map(shared).collect();
        Ok(())
    }

    /// Rows of kept files, each with its rank: those that are known, and those that are made anew.
    fn look_at(&mut self, files: BTreeMap<String, (u32, Found)>) -> anyhow::Result<()> {
        let Some(kept) = &mut self.kept else { return Ok(()) };
        let found: Vec<_> = files.values().map(|it| it.1.clone()).collect();
        let mut rows = kept.dataset.known(&found, &self.looking)?;
        let known: BTreeSet<_> = rows.iter().map(|row| row.address.clone()).collect();
        let left: Vec<_> =
            found.into_iter().filter(|file| !known.contains(&file.address)).collect();
        let add = |_: usize, row: &Row| kept.dataset.add(row);
        let looked = Crew::default().look_at(&left, &self.looking, &self.until, add)?;
        let Ok(looked) = looked else {
            kept.dataset.flush()?;
            return Err(self.stopped().into());
        };
        rows.extend(looked);
        for row in rows {
            if let Some((rank, _)) = files.get(&row.address) {
                self.rows.insert(*rank, row);
            }
        }
        Ok(())
    }

    /// Two ranks of a set that ask for something else: the first that has run, and the first that differs from it.
    fn unlike(&self, set: &[u32]) -> Option<(u32, u32)> {
        let mut known = set.iter().filter_map(|rank| Some((*rank, self.runs.get(rank)?)));
        let (first, run) = known.next()?;
        let odd = known.find(|(_, other)| !run.asks_what(other))?;
        Some((first, odd.0))
    }

    /// Which of a set are to run next: its ends, and then, if these turned out not to be alike, the others.
    fn left_of(&self, set: &[u32]) -> Vec<u32> {
        let missing = |rank: &u32| !self.runs.contains_key(rank);
        let mut ends: Vec<_> = set.first().into_iter().chain(set.last()).copied().collect();
        ends.dedup();
        ends.retain(missing);
        match ends.is_empty() && self.unlike(set).is_some() {
            true => set.iter().copied().filter(missing).collect(),
            false => ends,
        }
    }

    /// Ranks that are to run next, ascending.
    fn left(&self) -> Vec<u32> {
        let mut left: Vec<_> = self.sets.iter().flat_map(|set| self.left_of(set)).collect();
        left.sort_unstable();
        left
    }

    /// How many ranks are done: with a run of their own, or one that they share.
    fn done(&self) -> usize {
        let of_set = |set: &Vec<u32>| match self.left_of(set).is_empty() {
            true => set.len(),
            false => set.iter().filter(|rank| self.runs.contains_key(rank)).count(),
        };
        self.sets.iter().map(of_set).sum()
    }

    fn stopped(&self) -> StoppedEarly {
        StoppedEarly { done: self.done(), of: self.asked.ranks.len(), what: "ranks" }
    }

    /// The rank whose run a rank shares.
    fn same_as(&self, rank: u32) -> Option<u32> {
        if self.runs.contains_key(&rank) {
            return None;
        }
        self.firsts.get(&rank).copied()
    }

    /// Whether rows are made: for a dataset, and where groups are told.
    fn has_rows(&self) -> bool {
        self.kept.is_some() || self.asked.ranks.len() > SIDE_BY_SIDE
    }

    fn run(&mut self, left: &[u32]) -> anyhow::Result<()> {
        let worlds: Vec<_> = left.iter().map(|&rank| self.asked.world(rank)).collect();
        let (asked, key, looking) = (&self.asked, &self.key, &self.looking);
        let Subject { options, environment, model } = *self.subject;
        // One that reads some of it may go on from there.
        let written = self.runs.values().flat_map(Run::written);
        let written = written
            .chain(self.written_before.iter().cloned())
            .map(|path| Written { path, what: Change::New })
            .collect();
        let options = &Options { written, ..options.clone() };
        let runs = self.kept.as_ref().map(|kept| kept.runs.clone());
        let has_rows = self.has_rows();
        let cores = || std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
        let workers = asked.jobs.unwrap_or_else(cores).get().min(left.len()) as u64;
        let make = |world: World, outcome: Outcome| {
            let options = Options { world: Some(world), ..options.clone() };
            let seen = Seen::new(options, outcome, model);
            let run = Run::of(&seen, key);
            let snapshot = seen.outcome.snapshot.as_deref().filter(|_| run.history);
            let name = asked.name(world.rank);
            let (address, found) = match &runs {
                Some(runs) => {
                    runs.keep(&name, &run.to_json(), snapshot)?;
                    (runs.address(&name), runs.found(&name))
                }
                None => {
                    let found = snapshot.and_then(|path| Found::file(path).ok());
                    (name.clone(), found.map(|found| Found { address: name, ..found }))
                }
            };
            let row = has_rows.then(|| {
                // Others look at theirs meanwhile.
                let memory = spare_memory().map(|spare| spare / 2 / workers);
                let looking = LookOptions { memory, ..looking.clone() };
                run.row(&address, found.as_ref(), &looking)
            });
            anyhow::Ok((run, row))
        };
        let progress = Progress::with_estimate("running ranks");
        let (of, mut done) = (left.len(), 0);
        progress.set(done, of);
        let (all_runs, all_rows, kept) = (&mut self.runs, &mut self.rows, &mut self.kept);
        let tell = |world: World, (run, row): (Run, Option<Row>)| {
            done += 1;
            progress.set(done, of);
            all_runs.insert(world.rank, run);
            if let Some(row) = row {
                if let Some(kept) = kept.as_mut() {
                    kept.dataset.add(&row)?;
                }
                all_rows.insert(world.rank, row);
            }
            Ok(())
        };
        let worked = predict_ranks(&worlds, (options, environment), asked.jobs, make, tell);
        drop(progress);
        let Err(error) = worked else { return Ok(()) };
        let Some(kept) = &mut self.kept else { return Err(error) };
        kept.dataset.flush()?;
        match error.downcast_ref::<ScriptError>() {
            Some(ScriptError::Stopped) => Err(self.stopped().into()),
            _ => Err(error),
        }
    }

    /// What the address of a rank's snapshot is, there or not.
    fn address(&self, rank: u32) -> String {
        let name = self.asked.name(rank);
        self.kept.as_ref().map_or_else(|| name.clone(), |kept| kept.runs.address(&name))
    }

    /// A row for each rank that was asked for.
    fn all_rows(&self) -> Vec<Row> {
        let row = |&rank: &u32| match self.same_as(rank) {
            Some(first) => {
                Some(self.rows.get(&first)?.shared_by(&self.address(rank), &self.looking))
            }
            None => self.rows.get(&rank).cloned(),
        };
        self.asked.ranks.iter().filter_map(row).collect()
    }

    /// Puts the dataset in order: from now on it has these ranks, and others of the same question.
    fn finish(&mut self) -> anyhow::Result<()> {
        let mut rows = self.all_rows();
        rows.extend(self.others.iter().filter_map(|rank| self.rows.get(rank)).cloned());
        let shared = |(&rank, of): (&u32, &u32)| {
            Some(self.rows.get(of)?.shared_by(&self.address(rank), &self.looking))
        };
        rows.extend(self.others_shared.iter().filter_map(shared));
        let own = self.runs.keys().chain(&self.others);
        let names = own.map(|&rank| self.asked.name(rank)).collect();
        if let Some(kept) = &mut self.kept {
            kept.dataset.finish(&rows)?;
            kept.runs.leave_only(&names)?;
        }
        Ok(())
    }

    fn answered(&self) -> anyhow::Result<(Answered, Option<anyhow::Error>)> {
        let failed: Vec<u32> =
            self.asked.ranks.iter().copied().filter(|&it| self.failed(it)).collect();
        let why = |rank: &u32| self.of(*rank).and_then(|run| run.why.clone()).unwrap_or_default();
        let error = failed.first().map(|first| match (failed.len(), self.asked.ranks.len()) {
            (1, _) => anyhow!("rank {first}: {}", why(first)),
            (count, all) => {
                let how_many = if count == all { "all".to_owned() } else { count.to_string() };
                anyhow!(
                    "{how_many} of {all} ranks failed by themselves, first rank {first}: {}",
                    why(first)
                )
            }
        });
        let answered = said::answered(self)?;
        if self.until.is_over() {
            return Err(self.stopped().into());
        }
        Ok((answered, error))
    }

    /// The run of a rank: its own, or the one that it shares.
    fn of(&self, rank: u32) -> Option<&Run> {
        self.runs.get(&self.same_as(rank).unwrap_or(rank))
    }

    fn failed(&self, rank: u32) -> bool {
        self.of(rank).is_some_and(|run| run.verdict == Word::Failed)
    }
}
