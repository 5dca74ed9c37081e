//! What the processes of a script told when they ended, joined.
//!
//! In:  a file for each process that used the device, as `hook/sitecustomize.py` writes it, and one with its exit status.
//! Out: the figures of the one that counts, as ranges; what all of them held at once; which cards would do.
//!
//! The one that counts reserved most, on the device of which most was needed at once; of a script that failed for want of
//! memory, a process whose memory did not suffice.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use tonnage_fake_cudart::notes::USED_FILE;

use serde::Deserialize;

use crate::history::{History, PeakAt};
use crate::orders::{Fit, Range};
use crate::place::{Done, lines};
use crate::{Ending, Error, Gpu};

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

/// What PyTorch calls the exception of memory that does not suffice.
const OUT_OF_MEMORY: &str = "OutOfMemoryError";

impl Failure {
    /// Whether it is for want of memory.
    #[must_use]
    pub fn is_for_memory(&self) -> bool {
        self.kind == OUT_OF_MEMORY
    }
}

/// Most bytes at once. Ranges are one figure where every order of addresses gives it, and every guess.
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
    /// What others than PyTorch's allocator had of the device, and other processes of the script.
    pub together: Together,
    /// Why a request that was served might fail all the same; nothing if none would.
    pub may_fail: Vec<MayFail>,
    /// Whether ranges hold what other guesses give.
    pub by_guess: bool,
    /// Why other orders of addresses were not tried, if they were not.
    pub(crate) one_order: Option<String>,
    /// Whether other cards serve the same requests. None of a script that failed: what it would go on to ask for is not
    /// known.
    pub cards: Vec<Card>,
}

impl Peaks {
    /// They may be so much more or less, a part of what they are, by a guess; then a request may fail, of a device with so much
    /// memory, of which the driver takes `context` for each process and the allocator may take a share.
    pub(crate) fn widen_by_guess(&mut self, part: f64, memory: u64, context: u64, share: f64) {
        for range in [&mut self.requested, &mut self.allocated, &mut self.reserved] {
            *range = range.give_or_take(part);
        }
        self.doubt(memory, context, share);
    }

    /// They may be those of another run too.
    pub(crate) fn hold_those_of(&mut self, other: &Answer, memory: u64, context: u64) {
        let ranges = [
            (&mut self.requested, "requested"),
            (&mut self.allocated, "allocated"),
            (&mut self.reserved, "reserved"),
        ];
        for (range, kind) in ranges {
            *range = range.with(other.peak(kind).unwrap_or(range.high));
        }
        self.doubt(memory, context, other.share);
    }

    /// Ranges hold what a guess gives: whether that fits a device with so much memory, and other cards, is one too.
    fn doubt(&mut self, memory: u64, context: u64, share: f64) {
        self.by_guess = true;
        if self.together.room(memory, context, share).is_none_or(|room| self.reserved.high > room) {
            self.fail_by_guess();
        }
        // A card has room by a guess, or it has none, as far as its room lies among what may be needed.
        let room = |card: &Card| self.together.room(card.memory, card.context, share);
        let decides = self.requested.low..self.reserved.high;
        let among = |card: &Card| room(card).is_some_and(|room| decides.contains(&room));
        let among: Vec<_> = self.cards.iter().map(among).collect();
        for (card, _) in self.cards.iter_mut().zip(among).filter(|it| it.1) {
            card.fit = Fit::Guessed;
        }
    }

    /// By another guess a request fails.
    pub(crate) fn fail_by_guess(&mut self) {
        if !self.may_fail.contains(&MayFail::Guess) {
            self.may_fail.push(MayFail::Guess);
        }
    }
}

/// Why a request may fail that was served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MayFail {
    /// Under another order of addresses.
    Order,
    /// If all that is taken of the device is taken at once.
    AtOnce,
    /// By another guess about what is not known.
    Guess,
}

/// What was taken of the device beside the allocator of the process whose figures count.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Together {
    /// Bytes that were obtained past PyTorch's allocator.
    pub beside: u64,
    /// Other processes of the script that used the device at the same time, at the worst moment of this card.
    pub others: u64,
    /// Bytes that these had reserved, each at its peak.
    pub of_others: u64,
    /// All such moments: on a card whose driver takes more of each process another one is the worst.
    moments: Vec<Moment>,
    /// Those of the other devices of the host, with all processes.
    elsewhere: Vec<Moment>,
}

/// Processes that used a device at once, and bytes that they had reserved of it, each at its peak.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Moment {
    processes: u64,
    bytes: u64,
}

impl Moment {
    /// What they took, on a card whose driver takes so much of each process.
    fn taken(self, context: u64) -> u64 {
        context.saturating_mul(self.processes).saturating_add(self.bytes)
    }
}

/// The worst of some moments.
fn worst(moments: &[Moment], context: u64) -> Moment {
    moments.iter().copied().max_by_key(|it| it.taken(context)).unwrap_or_default()
}

/// Memory of another device of the host, which is another rank's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub struct Elsewhere {
    /// Its number.
    pub device: u32,
    /// Most bytes that were reserved there.
    pub reserved: u64,
}

impl Together {
    /// Everything beside the reserved memory of the process that counts, for a card whose driver takes so much of each process.
    #[must_use]
    pub fn taken(&self, context: u64) -> u64 {
        let others = worst(&self.moments, context).taken(context);
        context.saturating_add(self.beside).saturating_add(others)
    }

    /// Everything that was taken of the other device of which most was.
    fn taken_elsewhere(&self, context: u64) -> u64 {
        worst(&self.elsewhere, context).taken(context)
    }

    /// What is left of a device for the allocator of the process that counts, which may take a share of it; nothing if the
    /// others have more than there is.
    pub(crate) fn room(&self, memory: u64, context: u64, share: f64) -> Option<u64> {
        let room = memory.checked_sub(self.taken(context))?;
        let allowed = (memory as f64 * share.clamp(0.0, 1.0)) as u64;
        (self.taken_elsewhere(context) <= memory).then_some(room.min(allowed))
    }

    /// Whether nothing but the process that counts took anything of its device.
    fn is_nothing(&self) -> bool {
        self.beside == 0 && self.moments.is_empty()
    }
}

/// A card, and whether a script's requests are served by its memory, the driver's share taken away.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Card {
    /// The short name.
    pub name: &'static str,
    /// Bytes, as PyTorch sees them.
    pub memory: u64,
    /// The driver's share of them, for each process.
    pub context: u64,
    /// Whether they are.
    pub fit: Fit,
}

/// The answer of one process.
#[derive(Debug, Deserialize)]
pub(crate) struct Answer {
    process: u32,
    pub(crate) torch: String,
    /// The device that the figures are of.
    #[serde(default)]
    pub(crate) device: u32,
    /// Others of the host that it used too, each with what was reserved there.
    #[serde(default)]
    pub(crate) elsewhere: Vec<Elsewhere>,
    pub(crate) stats: BTreeMap<String, i64>,
    pub(crate) error: Option<Failure>,
    /// The share of the device that the script allowed itself.
    pub(crate) share: f64,
    /// Whether something was compiled by `torch.compile`.
    pub(crate) compiled: bool,
    /// Most bytes of the device that were given out at once.
    #[serde(default)]
    given_out: u64,
    /// The same of each device.
    #[serde(default)]
    given: BTreeMap<u32, u64>,
    /// The line that asked how much memory there is, if one did.
    #[serde(default)]
    pub(crate) asked: Option<String>,
    /// Most bytes of the host's memory: before the device was used, and at all.
    #[serde(default)]
    pub(crate) host: [u64; 2],
    /// When it began to use the device, and when it ended, in seconds.
    #[serde(default)]
    began: f64,
    #[serde(default)]
    ended: f64,
    /// PyTorch's history, if it tells one.
    pub(crate) snapshot: Option<PathBuf>,
    /// Why there are no figures, if there are none.
    #[serde(default)]
    pub(crate) untold: Option<String>,
    /// The status that the process ended with, if it lived to end by itself.
    #[serde(skip)]
    status: Option<i32>,
    #[serde(skip)]
    together: Together,
    /// Whether memory did not suffice for some process of the script, which failed by that.
    #[serde(skip)]
    pub(crate) starved: bool,
}

impl Done {
    /// The answer of the process that counts, on a device whose driver takes so much of each process.
    pub(crate) fn answer(&self, context: u64) -> Result<Option<Answer>, Error> {
        let mut answers = Vec::new();
        for entry in fs::read_dir(&self.out).map_err(Error::of(&self.out))? {
            let path = entry.map_err(Error::of(&self.out))?.path();
            if path.extension().is_some_and(|it| it == "json") {
                let text = fs::read_to_string(&path).map_err(Error::of(&path))?;
                let mut answer: Answer = serde_json::from_str(&text)
                    .map_err(|error| Error::File { path: path.clone(), error: error.into() })?;
                let status = lines(&path.with_extension("status"))?;
                answer.status = status.first().and_then(|line| line.parse().ok());
                answers.push(answer);
            }
        }
        Ok(join(answers, self.ended.process, self.ended.ending, context))
    }

    /// How many processes used the device, and left no answer: they were ended before they could. The script's own is not
    /// among them: how that ended is told.
    pub(crate) fn silent(&self) -> Result<u64, Error> {
        let mut silent = 0;
        for entry in fs::read_dir(&self.out).map_err(Error::of(&self.out))? {
            let path = entry.map_err(Error::of(&self.out))?.path();
            let process = path.file_stem().and_then(|stem| stem.to_str()?.parse::<u32>().ok());
            let began = path.extension().is_some_and(|it| it == "began");
            let told = path.with_extension("json").is_file();
            silent += u64::from(began && !told && process != Some(self.ended.process));
        }
        Ok(silent)
    }

    /// How many processes obtained memory in which nothing of ours ran that could tell how much.
    pub(crate) fn unheard(&self) -> Result<u64, Error> {
        let used: BTreeSet<String> = lines(&self.notes.join(USED_FILE))?.into_iter().collect();
        let heard = |process: &Path| {
            ["began", "json"].iter().any(|it| process.with_extension(it).is_file())
        };
        Ok(used.iter().filter(|process| !heard(&self.out.join(process))).count() as u64)
    }
}

/// The answer that counts, with what the others held beside it.
fn join(mut answers: Vec<Answer>, started: u32, ending: Ending, context: u64) -> Option<Answer> {
    let devices: BTreeSet<u32> = answers.iter().flat_map(Answer::devices).collect();
    let all: Vec<_> = answers.iter().collect();
    let of_device = |device: u32| worst(&moments(&all, device), context).taken(context);
    let fullest = devices.iter().copied().max_by_key(|device| of_device(*device));
    let elsewhere = |own: u32| devices.iter().copied().filter(move |device| *device != own);
    answers.sort_by_key(|answer| {
        let failed = answer.ran_out() && (ending != Ending::Exit(0) || answer.starved());
        let fullest = Some(answer.device) == fullest;
        (failed, fullest, answer.reserved(), answer.process == started)
    });
    let mut chosen = answers.pop()?;
    let starved = chosen.starved() || answers.iter().any(Answer::starved);
    let meeting: Vec<_> = answers.iter().filter(|it| it.meets(&chosen)).collect();
    let at_once = moments(&meeting, chosen.device);
    let everyone: Vec<_> = answers.iter().chain([&chosen]).collect();
    let Moment { processes: others, bytes: of_others } = worst(&at_once, context);
    let together = Together {
        beside: chosen.given_out.saturating_sub(chosen.reserved()),
        others,
        of_others,
        moments: at_once,
        elsewhere: elsewhere(chosen.device).flat_map(|device| moments(&everyone, device)).collect(),
    };
    chosen.together = together;
    chosen.starved = starved;
    for answer in answers {
        let own = Elsewhere { device: answer.device, reserved: answer.reserved() };
        let new = answer.elsewhere.into_iter().chain([own]);
        let device = chosen.device;
        for it in new.filter(|it| it.device != device && it.reserved > 0) {
            chosen.add_elsewhere(it);
        }
        // What one process does rests on the others.
        chosen.compiled |= answer.compiled;
        chosen.asked = chosen.asked.or(answer.asked);
        chosen.untold = chosen.untold.or(answer.untold);
        if answer.process == started && !starved {
            chosen.error = chosen.error.or(answer.error);
        }
    }
    Some(chosen)
}

/// When processes used a device at once, at the worst: those that were there when the last of them began.
fn moments(answers: &[&Answer], device: u32) -> Vec<Moment> {
    let holders: Vec<_> =
        answers.iter().filter_map(|it| it.held_of(device).map(|held| (*it, held))).collect();
    let at = |last: &Answer| {
        let there = |it: &Answer| it.began <= last.began && last.began < it.ended;
        let there = |it: &Answer| std::ptr::eq(it, last) || there(it);
        let held = holders.iter().filter(|(it, _)| there(it)).map(|(_, held)| held);
        held.fold(Moment::default(), |all, held| Moment {
            processes: all.processes + 1,
            bytes: all.bytes.saturating_add(*held),
        })
    };
    holders.iter().map(|(last, _)| at(last)).collect()
}

impl Answer {
    fn stat(&self, name: &str) -> Option<u64> {
        self.stats.get(name).and_then(|value| u64::try_from(*value).ok())
    }

    /// Most bytes of a kind.
    fn peak(&self, kind: &str) -> Option<u64> {
        self.stat(&format!("{kind}_bytes.all.peak"))
    }

    /// How many requests there were.
    pub(crate) fn requests(&self) -> u64 {
        self.stat("allocation.all.allocated").unwrap_or(0)
    }

    /// Whether a request failed.
    pub(crate) fn ran_out(&self) -> bool {
        self.stat("num_ooms").is_some_and(|ooms| ooms > 0)
    }

    /// Whether it failed for want of memory. One that catches the exception and ends with a status of its own did too.
    fn starved(&self) -> bool {
        let by_memory = self.error.as_ref().is_none_or(Failure::is_for_memory);
        self.ran_out() && by_memory && self.status.is_some_and(|status| status != 0)
    }

    /// Devices that it used.
    fn devices(&self) -> impl Iterator<Item = u32> {
        let given = self.given.keys().copied();
        self.elsewhere.iter().map(|it| it.device).chain([self.device]).chain(given)
    }

    fn reserved(&self) -> u64 {
        self.peak("reserved").unwrap_or(0)
    }

    /// What it held of a device, if it used that.
    fn held_of(&self, device: u32) -> Option<u64> {
        if self.device == device {
            return Some(self.given_out.max(self.reserved()));
        }
        let reserved = self.elsewhere.iter().find(|it| it.device == device).map(|it| it.reserved);
        reserved.max(self.given.get(&device).copied())
    }

    /// What another process reserved of another device is added to this one's: they may have held it at once.
    fn add_elsewhere(&mut self, other: Elsewhere) {
        match self.elsewhere.iter_mut().find(|it| it.device == other.device) {
            Some(known) => known.reserved += other.reserved,
            None => self.elsewhere.push(other),
        }
        self.elsewhere.sort_by_key(|it| it.device);
    }

    /// Whether both used the device at some time.
    fn meets(&self, other: &Self) -> bool {
        self.began < other.ended && other.began < self.ended
    }

    /// Peaks with `room` bytes for the process, of a device of `total`.
    pub(crate) fn peaks(
        &self,
        room: u64,
        total: u64,
        ending: Ending,
        context: u64,
    ) -> Result<Option<Peaks>, Error> {
        let room = room.min((total as f64 * self.share.clamp(0.0, 1.0)) as u64);
        let peak = |kind: &str| self.peak(kind).map(Range::exactly);
        let (Some(requested), Some(mut allocated), Some(mut reserved)) =
            (peak("requested"), peak("allocated"), peak("reserved"))
        else {
            return Ok(None);
        };
        let Some(snapshot) = &self.snapshot else { return Ok(None) };
        let history = History::open(snapshot, self.device)?;
        // What a process of it failed by, and the program went on without, has been asked for as it would be again.
        let whole = ending == Ending::Exit(0) && !self.starved;
        let (orders, one_order) = match whole.then(|| history.orders()).flatten() {
            None => (None, None),
            Some(Ok(orders)) => (Some(orders), None),
            Some(Err(why)) => (None, Some(why)),
        };
        let all_served =
            orders.as_ref().map(|orders| orders.widen(&mut allocated, &mut reserved, room));
        let together = self.together.clone();
        let share = self.share.clamp(0.0, 1.0);
        let fit = |gpu: &Gpu| match together.room(gpu.memory, gpu.context, share) {
            None => Some(Fit::No),
            Some(room) if reserved.high <= room => Some(Fit::Yes),
            Some(room) if requested.low > room => Some(Fit::No),
            Some(room) => orders.as_ref()?.fit(room),
        };
        let card = |(name, gpu): (&'static str, Gpu)| {
            fit(&gpu).map(|fit| Card { name, memory: gpu.memory, context: gpu.context, fit })
        };
        let cards = if whole { Gpu::known().filter_map(card).collect() } else { Vec::new() };
        let here = reserved.high.saturating_add(together.taken(context)) > total;
        let too_much =
            (here && !together.is_nothing()) || together.taken_elsewhere(context) > total;
        let reasons =
            [(all_served == Some(false), MayFail::Order), (whole && too_much, MayFail::AtOnce)];
        let may_fail = reasons.into_iter().filter(|it| it.0).map(|it| it.1).collect();
        Ok(Some(Peaks {
            requested,
            allocated,
            reserved,
            at: history.peak(),
            together,
            may_fail,
            by_guess: false,
            one_order,
            cards,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::Journal;
    use crate::process::Ended;

    fn answer(process: u32, reserved: i64, given_out: u64, began: f64, ended: f64) -> Answer {
        Answer {
            process,
            torch: String::new(),
            device: 0,
            elsewhere: Vec::new(),
            asked: None,
            host: [0; 2],
            stats: [("reserved_bytes.all.peak".to_owned(), reserved)].into(),
            error: None,
            share: 1.0,
            compiled: false,
            given_out,
            given: BTreeMap::new(),
            began,
            ended,
            snapshot: None,
            untold: None,
            status: None,
            together: Together::default(),
            starved: false,
        }
    }

    /// What the driver takes of each process.
    const CONTEXT: u64 = 7;

    /// The started process that is told in a script that ended well.
    fn joined(answers: Vec<Answer>, started: u32) -> Answer {
        join(answers, started, Ending::Exit(0), CONTEXT).unwrap()
    }

    #[test]
    fn processes_that_were_ended_before_they_could_tell_are_counted() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["7.began", "8.began", "8.json", "9.began", "9.part"] {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        let ended = Ended { ending: Ending::Exit(0), output: String::new(), process: 7, memory: 0 };
        let (out, notes) = (folder.path().to_owned(), PathBuf::new());
        let journal = Journal::new(&out);
        let done = Done { ended, out, notes, files: Vec::new(), journal };
        assert_eq!(done.silent().unwrap(), 1);
    }

    #[test]
    fn processes_in_which_nothing_of_ours_ran_are_counted() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["7.began", "8.json"] {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        std::fs::write(folder.path().join(USED_FILE), "7\n8\n9\n10\n9\n").unwrap();
        let ended = Ended { ending: Ending::Exit(0), output: String::new(), process: 9, memory: 0 };
        let out = folder.path().to_owned();
        let journal = Journal::new(&out);
        let done = Done { ended, notes: out.clone(), out, files: Vec::new(), journal };
        assert_eq!(done.unheard().unwrap(), 2);
    }

    #[test]
    fn processes_that_use_the_device_at_once_are_added() {
        let one = joined(vec![answer(1, 100, 130, 0.0, 9.0)], 1);
        assert_eq!((one.together.beside, one.together.others), (30, 0));
        assert_eq!(one.together.taken(7), 37);
        let answers = || {
            vec![
                answer(1, 10, 10, 0.0, 9.0),
                answer(2, 200, 200, 1.0, 3.0),
                answer(3, 300, 320, 2.0, 4.0),
                answer(4, 400, 400, 5.0, 6.0),
            ]
        };
        // The one that reserved most counts, whichever was started.
        let all = joined(answers(), 1);
        assert_eq!((all.process, all.together.others, all.together.of_others), (4, 1, 10));
        let mut same = answers();
        same[0].stats.insert("reserved_bytes.all.peak".to_owned(), 400);
        let all = joined(same, 1);
        assert_eq!((all.process, all.together.others, all.together.of_others), (1, 2, 520));
        assert_eq!(all.together.taken(7), 3 * 7 + 520);
        // The one that was started may never have used the device.
        let answers = vec![answer(2, 200, 200, 1.0, 3.0), answer(3, 300, 300, 4.0, 5.0)];
        let most = joined(answers, 1);
        assert_eq!((most.process, most.together), (3, Together::default()), "one after the other");
    }

    #[test]
    fn of_processes_on_several_devices_the_fullest_device_counts() {
        // On another device of the host they take nothing of this one.
        let other = Answer { device: 3, ..answer(2, 200, 200, 1.0, 3.0) };
        let mine = joined(vec![answer(1, 300, 300, 0.0, 9.0), other], 1);
        assert!(mine.together.is_nothing());
        assert_eq!(mine.elsewhere, [Elsewhere { device: 3, reserved: 200 }]);
        // One that used both holds something of each.
        let both = Answer { elsewhere: mine.elsewhere, ..answer(1, 300, 300, 0.0, 9.0) };
        let answers = vec![both, Answer { device: 3, ..answer(2, 150, 150, 1.0, 3.0) }];
        let other = joined(answers, 1);
        assert_eq!((other.device, other.together.of_others), (3, 200), "350 of it, and 300");
        assert_eq!(other.elsewhere, [Elsewhere { device: 0, reserved: 300 }]);
        assert_eq!(other.together.taken_elsewhere(7), 307);
        // Two that are smaller than the largest need more, where it is not.
        let on_one = |process| Answer { device: 1, ..answer(process, 80, 80, 1.0, 3.0) };
        let fullest = joined(vec![answer(1, 100, 100, 0.0, 9.0), on_one(2), on_one(3)], 1);
        assert_eq!((fullest.device, fullest.together.of_others), (1, 80));
        // What was obtained there past PyTorch's allocator counts.
        let beside = Answer { given: [(1, 400)].into(), ..answer(1, 100, 100, 0.0, 9.0) };
        let fullest = joined(vec![beside, on_one(2)], 1);
        assert_eq!((fullest.device, fullest.together.taken(7)), (1, 7 + 407));
        assert!(join(Vec::new(), 1, Ending::Exit(0), CONTEXT).is_none());
    }

    /// Many small processes need more than a large one where the driver takes much of each.
    #[test]
    fn the_worst_moment_depends_on_the_drivers_share() {
        let mut answers = vec![answer(1, 1000, 1000, 0.0, 9.0), answer(2, 300, 300, 1.0, 2.0)];
        answers.extend((3..6).map(|process| answer(process, 80, 80, 5.0, 6.0)));
        let all = joined(answers, 1);
        assert_eq!((all.together.others, all.together.of_others), (1, 300));
        assert_eq!([7, 100].map(|share| all.together.taken(share)), [314, 400 + 240]);
    }

    #[test]
    fn what_other_processes_say_of_themselves_is_not_lost() {
        let mut child = answer(2, 10, 10, 1.0, 2.0);
        child.compiled = true;
        child.asked = Some("x.py:3".to_owned());
        child.untold = Some("an allocator of its own".to_owned());
        let all = joined(vec![answer(1, 20, 20, 0.0, 9.0), child], 1);
        assert_eq!((all.process, all.compiled, all.asked.is_some()), (1, true, true));
        assert!(all.untold.is_some());
    }

    #[test]
    fn a_guess_about_bytes_decides_where_they_decide() {
        const GIB: u64 = 1 << 30;
        let card = |name, memory| Card { name, memory, context: GIB, fit: Fit::Yes };
        let mut peaks = Peaks {
            requested: Range::exactly(10 * GIB),
            allocated: Range::exactly(11 * GIB),
            reserved: Range::exactly(12 * GIB),
            at: None,
            together: Together::default(),
            may_fail: Vec::new(),
            by_guess: false,
            one_order: None,
            cards: vec![card("t4", 14 * GIB), card("l4", 22 * GIB)],
        };
        let before = peaks.clone();
        peaks.widen_by_guess(0.125, 15 * GIB, GIB, 1.0);
        assert_eq!(peaks.reserved, Range { low: 12 * GIB * 7 / 8, high: 12 * GIB * 9 / 8 });
        assert!(peaks.by_guess && peaks.may_fail.is_empty());
        assert_eq!(
            peaks.cards.iter().map(|it| it.fit).collect::<Vec<_>>(),
            [Fit::Guessed, Fit::Yes]
        );
        for (beside, share) in [(2 * GIB, 1.0), (0, 0.8)] {
            let together = Together { beside, ..Together::default() };
            let mut peaks = Peaks { together, ..before.clone() };
            peaks.widen_by_guess(0.125, 15 * GIB, GIB, share);
            assert_eq!(
                peaks.may_fail,
                [MayFail::Guess],
                "{beside} past PyTorch, a share of {share}"
            );
        }
        peaks = before;
        peaks.widen_by_guess(0.125, 14 * GIB, GIB, 1.0);
        assert_eq!(peaks.may_fail, [MayFail::Guess]);
    }

    #[test]
    fn what_does_not_fit_is_told_wherever_it_lies() {
        const GIB: u64 = 1 << 30;
        let traces = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/traces/");
        let ended_by = |error: Option<Failure>, together: Together, share: f64| {
            let mut of = answer(1, 218_103_808, 218_103_808, 0.0, 9.0);
            for kind in ["requested", "allocated"] {
                of.stats.insert(format!("{kind}_bytes.all.peak"), 195_529_216);
            }
            of.snapshot = Some(format!("{traces}mlp_seed.default.pickle.zst").into());
            (of.error, of.together, of.share) = (error, together, share);
            of.peaks(140 * GIB, 141 * GIB, Ending::Exit(0), GIB).unwrap().unwrap()
        };
        let peaks = |together: Together, share: f64| ended_by(None, together, share);
        let on_a_t4 = |peaks: &Peaks| peaks.cards.iter().find(|it| it.name == "t4").unwrap().fit;
        let elsewhere = |processes, bytes| Together {
            elsewhere: vec![Moment { processes, bytes }],
            ..Together::default()
        };
        let fits = peaks(elsewhere(2, 13 * GIB), 1.0);
        assert!(fits.may_fail.is_empty());
        let too_much = peaks(elsewhere(2, 140 * GIB), 1.0);
        assert_eq!((&too_much.may_fail[..], on_a_t4(&too_much)), (&[MayFail::AtOnce][..], Fit::No));
        // So it is where a process failed by itself, and the program went on without.
        let (kind, message) = ("ValueError".to_owned(), String::new());
        let failure = Failure { kind, message, line: None };
        let too_much = ended_by(Some(failure), elsewhere(2, 140 * GIB), 1.0);
        assert_eq!((&too_much.may_fail[..], on_a_t4(&too_much)), (&[MayFail::AtOnce][..], Fit::No));
        // What the driver takes of many processes is more than a small card has.
        let moments = vec![Moment { processes: 40, bytes: 0 }];
        let many = Together { others: 40, moments, ..Together::default() };
        let many = peaks(many, 1.0);
        assert!(many.may_fail.is_empty());
        assert_eq!(on_a_t4(&many), Fit::No);
        // A script that allows itself a share does so on every card.
        let whole = peaks(Together::default(), 1.0);
        assert_eq!(on_a_t4(&whole), Fit::Yes);
        assert_eq!(on_a_t4(&peaks(Together::default(), 0.01)), Fit::No);
    }

    #[test]
    fn a_process_that_failed_for_want_of_memory_counts() {
        let answers = |status| {
            let mut child = answer(2, 200, 200, 1.0, 3.0);
            child.stats.insert("num_ooms".to_owned(), 1);
            child.status = status;
            vec![child, answer(1, 900, 900, 4.0, 9.0)]
        };
        let join = |status, ending| join(answers(status), 1, ending, CONTEXT).unwrap();
        let failed = join(Some(1), Ending::Exit(1));
        assert_eq!((failed.process, failed.starved), (2, true));
        // Whoever started it may not look.
        let failed = join(Some(1), Ending::Exit(0));
        assert_eq!((failed.process, failed.starved), (2, true));
        let got_over = join(Some(0), Ending::Exit(0));
        assert_eq!((got_over.process, got_over.starved), (1, false));
        assert_eq!(join(None, Ending::Exit(1)).process, 2);
        let mut other = answers(Some(1));
        let (kind, message) = ("ValueError".to_owned(), String::new());
        other[0].error = Some(Failure { kind, message, line: None });
        assert!(!joined(other, 1).starved, "it got over that, and failed by itself");
    }
}
