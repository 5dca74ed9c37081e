//! What the processes of a script told when they ended, joined.
//!
//! In:  a file for each process that used the device, as `hook/sitecustomize.py` writes it.
//! Out: the figures of the one that counts, as ranges; what all of them held at once; which cards would do.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use serde::Deserialize;

use crate::history::{History, PeakAt};
use crate::orders::{Fit, Range};
use crate::place::Done;
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
    /// Whether other cards serve the same requests. None of a script that failed: what it would go on to ask for is not
    /// known.
    pub cards: Vec<Card>,
}

impl Peaks {
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Together {
    /// Bytes that were obtained past PyTorch's allocator.
    pub beside: u64,
    /// Other processes of the script that used the device at the same time.
    pub others: u64,
    /// Bytes that these had reserved, each at its peak.
    pub of_others: u64,
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
        context * (1 + self.others) + self.beside + self.of_others
    }
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

/// The answer of one process.
#[derive(Debug, Deserialize)]
pub(crate) struct Answer {
    process: u32,
    pub(crate) torch: String,
    /// The device that the figures are of.
    #[serde(default)]
    device: u32,
    /// Others of the host that it used too, each with what was reserved there.
    #[serde(default)]
    pub(crate) elsewhere: Vec<Elsewhere>,
    pub(crate) stats: BTreeMap<String, i64>,
    pub(crate) error: Option<Failure>,
    /// The share of the device that the script allowed itself.
    share: f64,
    /// Whether something was compiled by `torch.compile`.
    pub(crate) compiled: bool,
    /// Most bytes of the device that were given out at once.
    #[serde(default)]
    given_out: u64,
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
    pub(crate) snapshot: PathBuf,
    #[serde(skip)]
    together: Together,
}

impl Done {
    /// The answer of the script's process; of several that used the device the one that was started, or else the one
    /// that held most.
    pub(crate) fn answer(&self) -> Result<Option<Answer>, Error> {
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
        Ok(join(answers, self.ended.process))
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
}

/// The answer that counts, with what the others held beside it.
fn join(mut answers: Vec<Answer>, started: u32) -> Option<Answer> {
    answers.sort_by_key(|answer| (answer.process == started, answer.reserved()));
    let mut chosen = answers.pop()?;
    let beside = chosen.given_out.saturating_sub(chosen.reserved());
    // Those that were there when the last of them began were there at once; the worst such moment counts.
    let at_once = answers.iter().map(|last| {
        let there = |it: &&Answer| it.began <= last.began && last.began < it.ended;
        let there = answers.iter().filter(there).filter(|it| it.meets(&chosen));
        let there = there.filter(|it| it.device == chosen.device);
        there
            .fold((0, 0), |(count, bytes), it| (count + 1, bytes + it.given_out.max(it.reserved())))
    });
    let (others, of_others) = at_once.max_by_key(|it| it.1).unwrap_or((0, 0));
    chosen.together = Together { beside, others, of_others };
    Some(chosen)
}

impl Answer {
    fn stat(&self, name: &str) -> Option<u64> {
        self.stats.get(name).and_then(|value| u64::try_from(*value).ok())
    }

    /// Whether a request failed.
    pub(crate) fn ran_out(&self) -> bool {
        self.stat("num_ooms").is_some_and(|ooms| ooms > 0)
    }

    fn reserved(&self) -> u64 {
        self.stat("reserved_bytes.all.peak").unwrap_or(0)
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
        let peak = |kind: &str| self.stat(&format!("{kind}_bytes.all.peak")).map(Range::exactly);
        let (Some(requested), Some(mut allocated), Some(mut reserved)) =
            (peak("requested"), peak("allocated"), peak("reserved"))
        else {
            return Ok(None);
        };
        let history = History::open(&self.snapshot, self.device)?;
        let whole = self.error.is_none() && ending == Ending::Exit(0);
        let orders = if whole { history.orders() } else { None };
        let all_served =
            orders.as_ref().map(|orders| orders.widen(&mut allocated, &mut reserved, room));
        let together = self.together;
        let fit = |gpu: &Gpu| match gpu.memory.saturating_sub(together.taken(gpu.context)) {
            room if reserved.high <= room => Some(Fit::Yes),
            room if requested.low > room => Some(Fit::No),
            room => orders.as_ref()?.fit(room),
        };
        let card = |(name, gpu): (&'static str, Gpu)| {
            fit(&gpu).map(|fit| Card { name, memory: gpu.memory, fit })
        };
        let cards = if whole { Gpu::known().filter_map(card).collect() } else { Vec::new() };
        let too_much = reserved.high + together.taken(context) > total;
        let alone = together == Together::default();
        let reasons = [
            (all_served == Some(false), MayFail::Order),
            (whole && !alone && too_much, MayFail::AtOnce),
        ];
        let may_fail = reasons.into_iter().filter(|it| it.0).map(|it| it.1).collect();
        Ok(Some(Peaks {
            requested,
            allocated,
            reserved,
            at: history.peak(),
            together,
            may_fail,
            by_guess: false,
            cards,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
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
            began,
            ended,
            snapshot: PathBuf::new(),
            together: Together::default(),
        }
    }

    #[test]
    fn processes_that_were_ended_before_they_could_tell_are_counted() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["7.began", "8.began", "8.json", "9.began", "9.part"] {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        let ended = Ended { ending: Ending::Exit(0), output: String::new(), process: 7 };
        let (out, notes) = (folder.path().to_owned(), PathBuf::new());
        let done = Done { ended, out, notes, files: Vec::new() };
        assert_eq!(done.silent().unwrap(), 1);
    }

    #[test]
    fn processes_that_use_the_device_at_once_are_added() {
        let one = join(vec![answer(1, 100, 130, 0.0, 9.0)], 1).unwrap();
        assert_eq!(one.together, Together { beside: 30, others: 0, of_others: 0 });
        let answers = vec![
            answer(1, 10, 10, 0.0, 9.0),
            answer(2, 200, 200, 1.0, 3.0),
            answer(3, 300, 320, 2.0, 4.0),
            answer(4, 400, 400, 5.0, 6.0),
        ];
        let all = join(answers, 1).unwrap();
        assert_eq!((all.process, all.together.others, all.together.of_others), (1, 2, 520));
        assert_eq!(all.together.taken(7), 3 * 7 + 520);
        // The one that was started may never have used the device.
        let answers = vec![answer(2, 200, 200, 1.0, 3.0), answer(3, 300, 300, 4.0, 5.0)];
        let most = join(answers, 1).unwrap();
        assert_eq!((most.process, most.together), (3, Together::default()), "one after the other");
        // On another device of the host they take nothing of this one.
        let other = Answer { device: 3, ..answer(2, 200, 200, 1.0, 3.0) };
        let mine = join(vec![answer(1, 10, 10, 0.0, 9.0), other], 1).unwrap();
        assert_eq!(mine.together, Together::default());
        assert!(join(Vec::new(), 1).is_none());
    }
}
