//! Scripts that no recording is there for: what must be said of them.

use std::time::Duration;

use tonnage_scripts::{
    Elsewhere, Ending, Environment, Gpu, Guess, Options, Outcome, Range, World, predict,
};

use super::{Failed, last_line, testdata};

const GIB: u64 = 1 << 30;

/// A script of `testdata/scripts/checks`, and what must come out.
#[derive(Clone, Copy)]
pub(crate) struct Check {
    pub(crate) name: &'static str,
    /// The file, if it has another name.
    script: Option<&'static str>,
    arguments: &'static [&'static str],
    /// Whether it is among the light ones.
    pub(crate) light: bool,
    gpus: u32,
    world: Option<World>,
    /// Seconds of each run.
    time: u64,
    ending: Ending,
    expect: fn(&Outcome) -> Result<(), Failed>,
}

const fn check(name: &'static str, expect: fn(&Outcome) -> Result<(), Failed>) -> Check {
    let (script, world, ending) = (None, None, Ending::Exit(0));
    Check { name, script, arguments: &[], light: true, gpus: 1, world, time: 300, ending, expect }
}

const fn heavy(check: Check) -> Check {
    Check { light: false, ..check }
}

const fn rank_of(size: u32, rank: u32, check: Check) -> Check {
    Check { world: Some(World { size, rank, per_host: 8 }), ..check }
}

/// The script that ends by itself in some way.
const fn ends(
    name: &'static str,
    how: &'static [&'static str],
    ending: Ending,
    expect: fn(&Outcome) -> Result<(), Failed>,
) -> Check {
    Check { script: Some("endings"), arguments: how, ending, ..check(name, expect) }
}

/// A script whose child fails in some way, and that does not mind.
const fn child(
    name: &'static str,
    how: &'static [&'static str],
    expect: fn(&Outcome) -> Result<(), Failed>,
) -> Check {
    Check { script: Some("child_fails"), arguments: how, ..check(name, expect) }
}

/// The script of `tonnage predict --model`, told a small Llama's config and these words.
const fn model(
    name: &'static str,
    arguments: &'static [&'static str],
    expect: fn(&Outcome) -> Result<(), Failed>,
) -> Check {
    let script = Some("../../../crates/scripts/src/model/model");
    heavy(Check { script, arguments, ..check(name, expect) })
}

/// Where its config is, as the program is started in the repository.
const CONFIG: &str = "testdata/scripts/checks/model";

pub(crate) const CHECKS: &[Check] = &[
    rank_of(8, 3, check("rank", rank)),
    check("forks", forks),
    check("attacks", attacks),
    check("unseen_writes", unseen_writes),
    check("spawned", spawned),
    child("child_fails_unseen", &["unseen"], child_fails_unseen),
    child("child_fails_by_itself", &["got_over"], child_fails_by_itself),
    heavy(child("pytorchs_child_fails_by_itself", &["pytorchs"], pytorchs_child_fails_by_itself)),
    check("tools", tools),
    Check { gpus: 2, ..check("two_gpus", two_gpus) },
    ends("crashes", &["crash"], Ending::Signal(11), nothing),
    ends("leaves", &["leave"], Ending::Exit(0), holds),
    heavy(ends("aborts", &["abort"], Ending::Signal(6), nothing)),
    heavy(ends("has_a_status", &["status"], Ending::Exit(3), holds)),
    heavy(Check { time: 20, ..ends("loops", &["loop"], Ending::TimeOut, nothing) }),
    heavy(Check { ending: Ending::Exit(1), ..check("child_fails", child_fails) }),
    heavy(check("own_allocator", own_allocator)),
    heavy(Check { time: 1200, ..check("compiled_graphs", compiled_graphs) }),
    heavy(check("extension", extension)),
    heavy(check("llama_7b", llama_7b)),
    heavy(check("llama_70b", llama_70b)),
    heavy(Check {
        script: Some("../fsdp_world"),
        ..rank_of(1024, 1023, check("rank_of_1024", one_of_many))
    }),
    heavy(rank_of(16, 9, check("copies", copies))),
    heavy(rank_of(4, 0, check("stages", stages))),
    model("model_trains", &[CONFIG, "--batch=2", "--dtype=bf16"], model_trains),
    model(
        "model_with_adapters",
        &[CONFIG, "--batch=2", "--dtype=bf16", "--lora=16", "--checkpoint"],
        model_with_adapters,
    ),
    model("model_generates", &[CONFIG, "--generate=32", "--requests=4"], model_generates),
    rank_of(8, 1, model("model_in_parts", &[CONFIG, "--dtype=bf16"], model_in_parts)),
];

impl Check {
    /// A sentence about what came out.
    pub(crate) fn run(&self, python: &str, environment: &Environment) -> Result<String, Failed> {
        let script = self.script.unwrap_or(self.name);
        let script = testdata().join(format!("scripts/checks/{script}.py")).canonicalize()?;
        let mut command = vec![python.to_owned(), script.to_string_lossy().into_owned()];
        command.extend(self.arguments.iter().map(|it| (*it).to_owned()));
        let options = Options {
            command,
            gpu: Gpu::find("h200")?,
            limit: None,
            settings: None,
            time: Duration::from_secs(self.time),
            gpus: self.gpus,
            world: self.world,
            thorough: false,
            written: Vec::new(),
        };
        let outcome = predict(&options, environment)?;
        if outcome.ending != self.ending {
            let why = outcome.failure.as_ref().map_or_else(String::new, |it| format!("{it:?}"));
            return Err(format!("{:?}: {why} {}", outcome.ending, last_line(&outcome)).into());
        }
        (self.expect)(&outcome)?;
        let [before, most] = outcome.host.map(|bytes| bytes >> 20);
        let seconds = outcome.time.as_secs_f64();
        Ok(format!(
            "as it must be, {seconds:.0} s, {most} MiB of host memory, {before} before the GPU"
        ))
    }
}

fn must(holds: bool, what: &str, found: &impl std::fmt::Debug) -> Result<(), Failed> {
    if holds { Ok(()) } else { Err(format!("{what}: {found:?}").into()) }
}

/// Whether the guesses are these, each by a word of its own and at a line of the script.
fn guesses(outcome: &Outcome, file: &str, words: &[&str]) -> Result<(), Failed> {
    let at = format!("/{file}:");
    told(outcome, words, |line| line.is_some_and(|line| line.contains(&at)))
}

/// Whether these are among the guesses, of no line.
fn guesses_at_large(outcome: &Outcome, words: &[&str]) -> Result<(), Failed> {
    told(outcome, words, |line| line.is_none())
}

fn told(
    outcome: &Outcome,
    words: &[&str],
    here: impl Fn(Option<&str>) -> bool,
) -> Result<(), Failed> {
    for word in words {
        let is_it = |guess: &Guess| guess.what.contains(word) && here(guess.line.as_deref());
        let found = outcome.guesses.iter().any(is_it);
        must(found, &format!("a guess with {word:?}, where it belongs"), &outcome.guesses)?;
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
    guesses_at_large(outcome, &["were ended before they could tell how much"])
}

fn attacks(outcome: &Outcome) -> Result<(), Failed> {
    let peaks = outcome.peaks.as_ref().ok_or("no figures")?;
    let end = outcome.output.lines().last();
    must(end == Some("the end"), "the last line of the output", &end)?;
    let asked = "how much memory there is (nvmlDeviceGetMemoryInfo)";
    guesses_at_large(outcome, &["nvidia-smi is asked", asked])?;
    must(peaks.together.beside == 3 * GIB, "obtained past PyTorch's allocator", peaks)?;
    must(peaks.reserved.high >= GIB, "reserved", peaks)
}

fn tools(outcome: &Outcome) -> Result<(), Failed> {
    let peaks = outcome.peaks.as_ref().ok_or("no figures")?;
    must((GIB..GIB + (256 << 20)).contains(&peaks.allocated.low), "allocated", peaks)?;
    // Whoever switches a history off that is not his own loses none of it: the last request is there too.
    let path = outcome.snapshot.as_ref().ok_or("no history")?;
    let entries = super::entries(path)?;
    let big = entries.iter().any(|entry| entry.size >= GIB);
    must(big, "the history of so many entries has the last request", &entries.len())?;
    must(outcome.silent == 0, "processes that could not tell", &outcome.silent)
}

fn two_gpus(outcome: &Outcome) -> Result<(), Failed> {
    let peaks = outcome.peaks.as_ref().ok_or("no figures")?;
    must(outcome.device == 1, "the device of which most was reserved", &outcome.device)?;
    must((100 * GIB..101 * GIB).contains(&peaks.reserved.high), "reserved", peaks)?;
    let [other] = &outcome.elsewhere[..] else {
        return Err(format!("one other device: {:?}", outcome.elsewhere).into());
    };
    must(other.device == 0 && (90 * GIB..91 * GIB).contains(&other.reserved), "the other", other)
}

/// It did not live to tell.
fn nothing(outcome: &Outcome) -> Result<(), Failed> {
    must(outcome.peaks.is_none(), "figures of a script that was ended", &outcome.peaks)
}

/// It told what it held.
fn holds(outcome: &Outcome) -> Result<(), Failed> {
    let peaks = outcome.peaks.as_ref().ok_or("no figures")?;
    must(peaks.allocated == Range::exactly(GIB), "allocated", peaks)
}

/// It holds no more than the same one of 8 does, and takes no more of the host.
fn one_of_many(outcome: &Outcome) -> Result<(), Failed> {
    let peaks = outcome.peaks.as_ref().ok_or("no figures")?;
    // `fsdp_rank` was recorded as rank 0 of 8.
    must(peaks.reserved.high <= 1_111_490_560, "reserved", peaks)?;
    little_of_the_host(outcome)
}

/// Four layers, their gradients, and an eighth of what two states of the optimizer take in 32 bits.
fn extension(outcome: &Outcome) -> Result<(), Failed> {
    let peaks = outcome.peaks.as_ref().ok_or("no figures")?;
    must((640 << 20..760 << 20).contains(&peaks.allocated.low), "allocated", peaks)
}

fn child_fails(outcome: &Outcome) -> Result<(), Failed> {
    let ooms = outcome.stat("num_ooms");
    must(ooms == Some(1), "requests that failed", &ooms)
}

/// Whoever started it did not look.
fn child_fails_unseen(outcome: &Outcome) -> Result<(), Failed> {
    must(outcome.starved, "a process that failed for want of memory", &outcome.silent)?;
    child_fails(outcome)
}

/// It got over a request that failed, and what ended it was not that.
fn child_fails_by_itself(outcome: &Outcome) -> Result<(), Failed> {
    must(!outcome.starved, "no process that failed for want of memory", &outcome.failure)
}

/// The same, where nobody else used the device.
fn pytorchs_child_fails_by_itself(outcome: &Outcome) -> Result<(), Failed> {
    child_fails_by_itself(outcome)?;
    let by_itself = outcome.failure.as_ref().is_some_and(|it| it.message == "by itself");
    must(by_itself, "the exception that ended the child", &outcome.failure)?;
    child_fails(outcome)
}

fn unseen_writes(outcome: &Outcome) -> Result<(), Failed> {
    let peaks = outcome.peaks.as_ref().ok_or("no figures")?;
    must(peaks.allocated.low >= 4 * GIB, "a step of the optimizer, allocated", peaks)?;
    let words = [
        "a int16 is read that follows from values that an operator which is not PyTorch's",
        "a int32 is read that follows from values that a CUDA graph writes",
        "a int8 is read, and taken to be zeros",
        "a bool is read that follows from numbers taken to be finite",
        "a float16 is read, and taken to be 1",
        "a uint8 is read, and taken to be zeros",
        "a bool is read that follows from values that a kernel which PyTorch did not launch",
        "the script asks how much memory there is",
    ];
    guesses(outcome, "unseen_writes.py", &words)?;
    let known = |guess: &&Guess| ["int64", "float64"].iter().any(|it| guess.what.contains(it));
    let wrong: Vec<_> = outcome.guesses.iter().filter(known).collect();
    must(wrong.is_empty(), "guesses about what nothing has written", &wrong)
}

fn spawned(outcome: &Outcome) -> Result<(), Failed> {
    let peaks = outcome.peaks.as_ref().ok_or("no figures")?;
    must((5 * GIB..5 * GIB + (64 << 20)).contains(&peaks.allocated.high), "allocated", peaks)?;
    must(outcome.guesses.is_empty(), "guesses", &outcome.guesses)
}

fn own_allocator(outcome: &Outcome) -> Result<(), Failed> {
    must(outcome.peaks.is_none(), "figures", &outcome.peaks)?;
    must(outcome.untold.is_some(), "why there are none", &outcome.untold)
}

fn compiled_graphs(outcome: &Outcome) -> Result<(), Failed> {
    let peaks = outcome.peaks.as_ref().ok_or("no figures")?;
    must(peaks.by_guess && peaks.reserved.low < peaks.reserved.high, "a range", peaks)?;
    guesses_at_large(outcome, &["torch.compile chooses"])
}

/// A copy, its gradients, and buckets for these, twice when PyTorch makes them anew after the first backward.
fn copies(outcome: &Outcome) -> Result<(), Failed> {
    let peaks = outcome.peaks.as_ref().ok_or("no figures")?;
    let model = 4 * 4096 * 4096 * 4;
    must((4 * model..5 * model).contains(&peaks.allocated.low), "allocated", peaks)
}

/// A stage, its gradients, and what eight parts of the batch leave for the way back.
fn stages(outcome: &Outcome) -> Result<(), Failed> {
    let peaks = outcome.peaks.as_ref().ok_or("no figures")?;
    let (stage, parts) = (4 * 2048 * 2048 * 4, 8 * 512 * 2048 * 4);
    must(
        (stage + 4 * parts..2 * stage + 9 * parts).contains(&peaks.allocated.low),
        "allocated",
        peaks,
    )
}

/// What the script of a model tells of it, and its peak.
fn facts(outcome: &Outcome) -> Result<(impl Fn(&str) -> u64, u64), Failed> {
    let told = outcome.output.lines().find_map(|line| line.strip_prefix("tonnage-model "));
    let told: serde_json::Value = serde_json::from_str(told.ok_or("no facts of the model")?)?;
    let peaks = outcome.peaks.as_ref().ok_or("no figures")?;
    Ok((move |name: &str| told[name].as_u64().unwrap_or(0), peaks.allocated.low))
}

/// Weights, gradients and two states of the optimizer, and what a step leaves for the way back.
fn model_trains(outcome: &Outcome) -> Result<(), Failed> {
    let (fact, allocated) = facts(outcome)?;
    must(fact("weights") == 2 * fact("parameters"), "weights of 16 bits", &fact("weights"))?;
    must(fact("trained") == fact("parameters"), "trained", &fact("trained"))?;
    must((4 * fact("weights")..GIB).contains(&allocated), "allocated", &allocated)
}

fn model_with_adapters(outcome: &Outcome) -> Result<(), Failed> {
    let (fact, allocated) = facts(outcome)?;
    must(
        0 < fact("trained") && 10 * fact("trained") < fact("parameters"),
        "trained",
        &fact("trained"),
    )?;
    must((fact("weights")..GIB).contains(&allocated), "allocated", &allocated)
}

fn model_generates(outcome: &Outcome) -> Result<(), Failed> {
    let (fact, allocated) = facts(outcome)?;
    // Keys and values of 4 heads of 64 in 4 layers, for 512 tokens and what was generated but for the last, in 32 bits.
    let cache = 2 * 4 * 4 * 64 * 4 * (512 + 31) * 4;
    must(fact("cache") == cache, "the cache", &fact("cache"))?;
    must(allocated > fact("weights") + cache, "allocated", &allocated)
}

/// An eighth of the weights stays with the rank.
fn model_in_parts(outcome: &Outcome) -> Result<(), Failed> {
    let (fact, _) = facts(outcome)?;
    let whole = 2 * fact("parameters");
    must((whole / 8..whole / 7).contains(&fact("weights")), "weights of the rank", &fact("weights"))
}

/// As an H200 did with PyTorch 2.11; and in little memory of the host.
fn llama_7b(outcome: &Outcome) -> Result<(), Failed> {
    let peaks = outcome.peaks.as_ref().ok_or("no figures")?;
    if outcome.torch.starts_with("2.11.") {
        let requests = outcome.stat("allocation.all.allocated");
        must(requests == Some(15_897), "requests", &requests)?;
        let allocated = outcome.stat("allocated_bytes.all.peak");
        must(allocated == Some(54_410_334_720), "allocated", &allocated)?;
        let reserved = peaks.reserved;
        must((reserved.low..=reserved.high).contains(&56_459_526_144), "reserved", &reserved)?;
    }
    little_of_the_host(outcome)
}

fn llama_70b(outcome: &Outcome) -> Result<(), Failed> {
    let peaks = outcome.peaks.as_ref().ok_or("no figures")?;
    must(peaks.requested.low > 128 * GIB, "requested", peaks)?;
    little_of_the_host(outcome)
}

fn little_of_the_host(outcome: &Outcome) -> Result<(), Failed> {
    let [before, most] = outcome.host;
    must(most - before <= GIB, "host memory", &outcome.host)
}
