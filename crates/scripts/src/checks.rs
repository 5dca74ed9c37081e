//! Scripts that no recording is there for: what must be said of them.

use std::time::Duration;

use tonnage_scripts::{Elsewhere, Ending, Environment, Gpu, Options, Outcome, World, predict};

use super::{Failed, testdata};

const GIB: u64 = 1 << 30;

/// A script of `testdata/scripts/checks`, as a rank of eight if so, and what must come out.
pub(crate) struct Check {
    pub(crate) name: &'static str,
    rank: Option<u32>,
    expect: fn(&Outcome) -> Result<(), Failed>,
}

pub(crate) const CHECKS: &[Check] = &[
    Check { name: "rank", rank: Some(3), expect: rank },
    Check { name: "forks", rank: None, expect: forks },
    Check { name: "attacks", rank: None, expect: attacks },
];

impl Check {
    /// A sentence about what came out.
    pub(crate) fn run(&self, python: &str, environment: &Environment) -> Result<String, Failed> {
        let script = testdata().join(format!("scripts/checks/{}.py", self.name)).canonicalize()?;
        let options = Options {
            command: vec![python.to_owned(), script.to_string_lossy().into_owned()],
            gpu: Gpu::find("h200")?,
            limit: None,
            settings: None,
            time: Duration::from_secs(300),
            world: self.rank.map(|rank| World { size: 8, rank, per_host: 8 }),
            thorough: false,
        };
        let outcome = predict(&options, environment)?;
        if outcome.ending != Ending::Exit(0) {
            let why = outcome.failure.as_ref().map_or_else(String::new, |it| format!("{it:?}"));
            return Err(format!("{:?}: {why}", outcome.ending).into());
        }
        (self.expect)(&outcome)?;
        Ok(format!("as it must be, {:.0} s", outcome.time.as_secs_f64()))
    }
}

fn must(holds: bool, what: &str, found: &impl std::fmt::Debug) -> Result<(), Failed> {
    if holds { Ok(()) } else { Err(format!("{what}: {found:?}").into()) }
}

/// Whether the guesses are these, each by a word of its own and at a line of the script.
fn guesses(outcome: &Outcome, file: &str, words: &[&str]) -> Result<(), Failed> {
    for word in words {
        let found = outcome.guesses.iter().find(|guess| guess.what.contains(word));
        let here = found.is_some_and(|guess| {
            guess.line.as_ref().is_none_or(|line| line.contains(&format!("/{file}:")))
        });
        must(here, &format!("a guess with {word:?}"), &outcome.guesses)?;
    }
    Ok(())
}

fn rank(outcome: &Outcome) -> Result<(), Failed> {
    let words = [
        "comes from rank 0, which is not there: it stays",
        "comes from rank 2, which is not there: taken to be zeros",
        "comes from rank 0, which is not there: taken to be zeros",
        "'absent' is taken from the store",
        "asks how much memory there is",
    ];
    guesses(outcome, "rank.py", &words)?;
    let elsewhere = [Elsewhere { device: 0, reserved: 100 * GIB }];
    must(outcome.elsewhere == elsewhere, "memory of device 0", &outcome.elsewhere)?;
    let peaks = outcome.peaks.as_ref().ok_or("no figures")?;
    let reserved = 110 * GIB..110 * GIB + (64 << 20);
    must(reserved.contains(&peaks.reserved.low), "reserved", peaks)?;
    must(reserved.contains(&peaks.reserved.high), "reserved", peaks)?;
    must(peaks.together.beside < 64 << 20, "obtained past PyTorch's allocator", peaks)?;
    must(!outcome.output.contains("pure virtual"), "threads of groups", &outcome.output)
}

fn forks(outcome: &Outcome) -> Result<(), Failed> {
    let peaks = outcome.peaks.as_ref().ok_or("a child's memory is not counted")?;
    must(peaks.reserved.high >= GIB, "reserved", peaks)?;
    must(outcome.silent == 1, "processes that could not tell", &outcome.silent)?;
    guesses(outcome, "forks.py", &["were ended before they could tell how much"])
}

fn attacks(outcome: &Outcome) -> Result<(), Failed> {
    let peaks = outcome.peaks.as_ref().ok_or("no figures")?;
    let end = outcome.output.lines().last();
    must(end == Some("the end"), "the last line of the output", &end)?;
    guesses(outcome, "attacks.py", &["nvidia-smi is asked"])?;
    must(peaks.together.beside == 3 * GIB, "obtained past PyTorch's allocator", peaks)?;
    must(peaks.reserved.high >= GIB, "reserved", peaks)
}
