//! Scripts and workloads whose truth was recorded on an H200, predicted and compared, event by event:
//! `cargo xtask scripts`.
//!
//! In:  a Python with PyTorch built for CUDA; `testdata/scripts` and `testdata/traces`.
//! Out: a table; the exit status is 1 if a case came out worse than it must.
//!
//! Recordings are of PyTorch 2.11: other releases ask for other bytes in places, so that their difference from the recording
//! is shown and not judged. Of every release the engine must agree with PyTorch's own allocator, entry by entry.

#![forbid(unsafe_code)]

mod checks;

mod layouts;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use serde::Deserialize;
use tonnage_engine::Release;
use tonnage_events::{Action, StreamId, TraceEntry};
use tonnage_replay::recording::{RecordingOptions, replay_recording};
use tonnage_scripts::{Environment, Gpu, Guess, Options, Outcome, Range, World, predict};

/// How alike a prediction and the recording must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Alike {
    /// Nothing but a figure, whatever it is.
    Figure,
    /// Every request, in order: sizes and streams.
    Requests,
    /// Every entry: requests, frees, segments.
    Entries,
}

/// A program with its truth.
struct Case {
    name: &'static str,
    /// The settings' name, of a workload.
    setting: Option<&'static str>,
    must: Alike,
    /// Most that peak reserved may be off, in percent.
    percent: f64,
    light: bool,
    /// The case whose recording it is compared with, as rank 0 of 8; its own if not given.
    rank_like: Option<&'static str>,
}

const fn script(name: &'static str, must: Alike, percent: f64) -> Case {
    Case { name, setting: None, must, percent, light: false, rank_like: None }
}

const fn workload(name: &'static str, must: Alike, percent: f64) -> Case {
    Case { name, setting: Some("default"), must, percent, light: false, rank_like: None }
}

const fn light(case: Case) -> Case {
    Case { light: true, ..case }
}

const fn rank_like(recorded: &'static str, case: Case) -> Case {
    Case { rank_like: Some(recorded), ..case }
}

const fn under(setting: &'static str, case: Case) -> Case {
    Case { setting: Some(setting), ..case }
}

use Alike::{Entries, Figure, Requests};

/// What must come out. The order of some frees differs from run to run on the H200 too; which of equal blocks is taken
/// depends on addresses.
const CASES: &[Case] = &[
    light(script("seed_mlp", Requests, 0.0)),
    light(under("expandable", workload("mlp_seed", Entries, 0.0))),
    light(under("tight", workload("mlp_seed", Entries, 0.0))),
    light(workload("deepnet_ckpt", Entries, 0.0)),
    light(workload("multistream", Entries, 0.0)),
    light(workload("cudagraph", Entries, 0.0)),
    light(script("small_gpt", Requests, 1.0)),
    light(script("small_cnn", Entries, 0.0)),
    light(script("fsdp_rank", Requests, 1.0)),
    light(rank_like("fsdp_rank", script("fsdp_world", Requests, 1.0))),
    light(script("compile_mlp", Figure, 7.0)),
    workload("mlp_seed", Entries, 0.0),
    under("gc60", workload("mlp_seed", Entries, 0.0)),
    under("round8", workload("mlp_seed", Entries, 0.0)),
    under("split128", workload("mlp_seed", Entries, 0.0)),
    workload("deepnet_plain", Requests, 3.0),
    under("tight", workload("cudagraph", Entries, 0.0)),
    under("tight", workload("deepnet_ckpt", Entries, 0.0)),
    under("tight", workload("multistream", Requests, 0.0)),
    under("tight", workload("bert_dynpad", Entries, 0.0)),
    under("tight", workload("gpt2_varlen", Requests, 0.0)),
    under("tight", workload("llama_ckpt_accum", Requests, 0.0)),
    under("tight", workload("gpt2_generate", Requests, 0.0)),
    under("tight", workload("resnet50", Requests, 0.5)),
    under("tight", workload("deeplab_varres", Figure, 0.5)),
    under("expandable", workload("multistream", Requests, 0.0)),
    under("expandable", workload("cudagraph", Entries, 0.0)),
    under("expandable", workload("bert_dynpad", Entries, 0.0)),
    under("expandable", workload("gpt2_varlen", Requests, 1.0)),
    under("expandable", workload("llama_ckpt_accum", Requests, 1.0)),
    under("expandable", workload("gpt2_generate", Requests, 1.0)),
    under("expandable", workload("resnet50", Requests, 0.5)),
    under("gc60", workload("gpt2_varlen", Requests, 1.0)),
    under("round8", workload("bert_dynpad", Entries, 0.0)),
    under("split128", workload("resnet50", Requests, 0.5)),
    workload("bert_dynpad", Entries, 0.0),
    workload("gpt2_varlen", Requests, 1.0),
    workload("llama_ckpt_accum", Requests, 1.0),
    workload("gpt2_generate", Requests, 1.0),
    workload("resnet50", Requests, 0.5),
    // Workspaces of filters of 1 x 1 that were not measured.
    workload("deeplab_varres", Figure, 0.5),
    script("accelerate_t5", Requests, 2.0),
    script("compile_gpt", Figure, 5.0),
    script("fsdp_llama", Requests, 1.0),
    script("gnn_products", Requests, 1.0),
    script("hf_trainer_bert", Requests, 1.0),
    script("lightning_resnet", Requests, 1.0),
    script("lora_llama", Requests, 1.0),
    script("lstm_lm", Requests, 1.0),
    script("serve_batches", Requests, 1.0),
    script("unet_diffusion", Requests, 0.5),
    script("vit_train", Requests, 1.0),
    script("dcgan", Requests, 0.5),
    script("video_r3d", Requests, 0.5),
    script("unet3d_vae", Requests, 0.5),
    script("audio_spec", Requests, 0.5),
    script("efficientnet_serve", Figure, 0.5),
    script("whisper_train", Figure, 0.5),
    script("convnext_swin", Figure, 1.0),
    script("gru_packed", Requests, 1.0),
    script("shampoo_svd", Requests, 1.0),
];

/// The release whose recordings they are.
const RECORDED: Release = Release::V2_11;

/// Figures of a recording.
#[derive(Clone, Copy, Deserialize)]
struct Truth {
    allocated: u64,
    reserved: u64,
    allocations: u64,
}

/// The figures of a workload's recording, in its own file.
#[derive(Deserialize)]
struct Recorded {
    conf: String,
    limit: Option<u64>,
    stats: BTreeMap<String, i64>,
}

/// What a GPU did.
struct Recording {
    truth: Truth,
    conf: String,
    limit: Option<u64>,
    entries: Vec<TraceEntry>,
}

type Failed = Box<dyn std::error::Error>;

fn testdata() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata")
}

impl Case {
    fn title(&self) -> String {
        match self.setting {
            Some(setting) => format!("{}.{setting}", self.name),
            None => self.name.to_owned(),
        }
    }

    /// Figures, settings, limit and history of the recording.
    fn truth(&self) -> Result<Recording, Failed> {
        let title = self.rank_like.map_or_else(|| self.title(), str::to_owned);
        let (truth, conf, limit, path) = if self.setting.is_some() {
            let folder = testdata().join("traces");
            let text = std::fs::read_to_string(folder.join(format!("{title}.json")))?;
            let Recorded { conf, limit, stats } = serde_json::from_str(&text)?;
            let stat = |name: &str| stats.get(name).map_or(0, |value| value.unsigned_abs());
            let truth = Truth {
                allocated: stat("allocated_bytes.all.peak"),
                reserved: stat("reserved_bytes.all.peak"),
                allocations: stat("allocation.all.allocated"),
            };
            let limit = limit.filter(|limit| *limit > 0);
            (truth, conf, limit, folder.join(format!("{title}.pickle.zst")))
        } else {
            let folder = testdata().join("scripts");
            let text = std::fs::read_to_string(folder.join("truths.json"))?;
            let truths: BTreeMap<String, Truth> = serde_json::from_str(&text)?;
            let truth = *truths.get(&title).ok_or("no truth of this script")?;
            (truth, String::new(), None, folder.join(format!("{title}.pickle.xz")))
        };
        Ok(Recording { truth, conf, limit, entries: entries(&path)? })
    }

    fn run(&self, python: &str, environment: &Environment) -> Result<Row, Failed> {
        let Recording { truth, conf, limit, entries: recorded } = self.truth()?;
        let run = testdata().join("scripts/run.py").canonicalize()?;
        let mut command =
            vec![python.to_owned(), run.to_string_lossy().into_owned(), self.name.to_owned()];
        command.extend(limit.map(|limit| limit.to_string()));
        let options = Options {
            command,
            gpu: Gpu::find("h200")?,
            limit: None,
            settings: Some(conf).filter(|conf| !conf.is_empty()),
            time: Duration::from_secs(1200),
            gpus: 1,
            world: self.rank_like.map(|_| World { size: 8, rank: 0, per_host: 8 }),
            // Each case is compared as it is.
            thorough: false,
            written: Vec::new(),
        };
        let outcome = predict(&options, environment)?;
        let Some(path) = &outcome.snapshot else {
            return Err(format!("{:?}: {}", outcome.ending, last_line(&outcome)).into());
        };
        let engine = differs_from_engine(path, limit, environment)?;
        Ok(Row::new(truth, &recorded, &entries(path)?, &outcome, engine))
    }
}

/// Where the engine, by the rules of that release, does something else than PyTorch's own allocator did; nothing if nowhere.
fn differs_from_engine(
    path: &Path,
    limit: Option<u64>,
    environment: &Environment,
) -> Result<Option<String>, Failed> {
    let release = environment.torch.parse().ok();
    let file = tonnage_snapshot::open(path)?;
    let options = RecordingOptions { limit, release, ..Default::default() };
    let difference = replay_recording(&file, &options)?.difference;
    Ok(difference.map(|it| format!("{it:?}")))
}

fn last_line(outcome: &Outcome) -> &str {
    outcome
        .output
        .lines()
        .rev()
        .find(|line| !line.trim().is_empty())
        .unwrap_or("it printed nothing")
}

/// The history of a file, up to the request that failed, if one did: what comes after it, as a program ends, is no one's.
fn entries(path: &Path) -> Result<Vec<TraceEntry>, Failed> {
    let file =
        tonnage_snapshot::open(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let mut entries = file.traces.into_iter().next().unwrap_or_default();
    if let Some(failure) = entries.iter().position(|entry| entry.action == Action::Oom) {
        entries.truncate(failure + 1);
    }
    Ok(entries)
}

/// An entry as far as it can be compared: streams by the order in which they appear.
type Comparable = (Action, u64, usize);

fn comparable(entries: &[TraceEntry], only: Option<Action>) -> Vec<Comparable> {
    let mut streams: Vec<StreamId> = Vec::new();
    let kept = entries.iter().filter(|entry| only.is_none_or(|only| entry.action == only));
    kept.map(|entry| {
        let known = streams.iter().position(|stream| *stream == entry.stream);
        let stream = known.unwrap_or_else(|| {
            streams.push(entry.stream);
            streams.len() - 1
        });
        (entry.action, entry.size, stream)
    })
    .collect()
}

/// The first place at which two differ.
fn first_difference(one: &[Comparable], other: &[Comparable]) -> Option<usize> {
    let differs = one.iter().zip(other).position(|(one, other)| one != other);
    differs.or_else(|| (one.len() != other.len()).then_some(one.len().min(other.len())))
}

/// What came out.
struct Row {
    alike: Alike,
    percent: f64,
    /// How far the range of what is allocated at its peak is from what was recorded, in percent.
    allocated_off: f64,
    /// Whether the stated range holds the recorded figure.
    inside: bool,
    /// Whether it is that in a range of a hundredth at most.
    narrow: bool,
    /// Whether a guess is told that bytes rest on.
    excused: bool,
    /// Whether it compiles something.
    compiles: bool,
    /// Where the engine does something else.
    engine: Option<String>,
    text: String,
}

/// A figure that is off by more, in percent, must be in a range or rest on a guess that is told.
const SAID_ABOVE: f64 = 1.0;

/// Where requests are alike, the most that the peak of what is allocated may be off, in percent.
const ALLOCATED_OFF: f64 = 0.3;

/// Whether a range is a hundredth wide at most.
fn is_narrow(range: Range) -> bool {
    (range.high - range.low) * 100 <= range.low
}

/// Words of guesses that bytes rest on. That a loss was taken to be 1 is no excuse.
const ABOUT_BYTES: [&str; 4] = ["not counted", "of a mask", "torch.compile", "workspaces"];

impl Row {
    fn new(
        truth: Truth,
        recorded: &[TraceEntry],
        predicted: &[TraceEntry],
        outcome: &Outcome,
        engine: Option<String>,
    ) -> Self {
        let all = first_difference(&comparable(predicted, None), &comparable(recorded, None));
        let [ours, theirs] = [predicted, recorded].map(|it| comparable(it, Some(Action::Alloc)));
        let requests = first_difference(&ours, &theirs);
        let alike = match (all, requests) {
            (None, _) => Entries,
            (_, None) => Requests,
            _ => Figure,
        };
        let first = match (all, requests) {
            (None, _) => String::new(),
            (Some(entry), None) => format!("entry {entry}"),
            (_, Some(request)) => {
                let show = |of: &[Comparable]| {
                    of.get(request).map_or("none".to_owned(), |it| it.1.to_string())
                };
                format!("request {request}: {} instead of {}", show(&ours), show(&theirs))
            }
        };
        let stat = |name: &str| outcome.stat(name).unwrap_or(0);
        let (allocated, reserved) =
            (stat("allocated_bytes.all.peak"), stat("reserved_bytes.all.peak"));
        let off = |ours: u64, theirs: u64| (ours as f64 / theirs.max(1) as f64 - 1.0) * 100.0;
        let range = outcome.peaks.as_ref().map(|peaks| peaks.reserved);
        let inside = range.is_some_and(|range| (range.low..=range.high).contains(&truth.reserved));
        let range = range.map_or(String::new(), |range| format!("{}–{}", range.low, range.high));
        let exact = if engine.is_none() { "exact" } else { "**differs**" };
        let text = format!(
            "{} | {exact} | {allocated} ({:+.3} %) | {reserved} ({:+.3} %) | {range} {} | {} of {} | {first} | {} | {} MiB, {} | {:.0} s",
            match alike {
                Entries => "entries",
                Requests => "requests",
                Figure => "differs",
            },
            off(allocated, truth.allocated),
            off(reserved, truth.reserved),
            if inside { "holds it" } else { "misses it" },
            stat("allocation.all.allocated"),
            truth.allocations,
            outcome.guesses.len(),
            outcome.host[1] >> 20,
            outcome.host[0] >> 20,
            outcome.time.as_secs_f64()
        );
        let percent = off(reserved, truth.reserved).abs();
        let about_bytes = |guess: &Guess| ABOUT_BYTES.iter().any(|it| guess.what.contains(it));
        let excused = outcome.guesses.iter().any(about_bytes);
        let compiles = outcome.guesses.iter().any(|guess| guess.what.contains("torch.compile"));
        // Under one of the orders of addresses that are tried it is as recorded, or as near as that.
        let exactly = Range::exactly(allocated);
        let stated = outcome.peaks.as_ref().map_or(exactly, |peaks| peaks.allocated);
        let nearest = truth.allocated.clamp(stated.low, stated.high);
        // A range that is wide holds anything.
        let allocated_off = match is_narrow(stated) {
            true => off(nearest, truth.allocated).abs(),
            false => off(allocated, truth.allocated).abs(),
        };
        let narrow =
            outcome.peaks.as_ref().is_some_and(|peaks| inside && is_narrow(peaks.reserved));
        Self { alike, percent, allocated_off, inside, narrow, excused, compiles, engine, text }
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let Some((python, rest)) = arguments.split_first() else {
        eprintln!(
            "tonnage-scripts PYTHON [--light] [NAME…]: `cargo xtask scripts` says which Python"
        );
        return ExitCode::from(2);
    };
    let environment = match Environment::of(std::slice::from_ref(python)) {
        Ok(environment) => environment,
        Err(error) => {
            eprintln!("error: {error}");
            return ExitCode::from(2);
        }
    };
    let (flags, names): (Vec<_>, Vec<_>) = rest.iter().partition(|word| word.starts_with("--"));
    let only_light = flags.iter().any(|flag| *flag == "--light");
    println!("PyTorch {} on {}\n", environment.torch, environment.python.display());
    println!(
        "| case | alike | engine | peak allocated | peak reserved | range | requests | first difference | guesses | host memory, of it before the GPU | time |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |");
    let recorded = environment.torch.parse() == Ok(RECORDED);
    let (mut worse, mut stated, mut narrow) = (0, 0, 0);
    for case in CASES {
        let wanted = names.is_empty()
            || names.iter().any(|name| **name == case.title() || *name == case.name);
        if !wanted || (only_light && !case.light) {
            continue;
        }
        match case.run(python, &environment) {
            Ok(row) => {
                let in_silence = row.percent > SAID_ABOVE && !row.excused && !row.inside;
                // Addresses decide what is left unsplit.
                let allocates_otherwise =
                    row.alike >= Requests && row.allocated_off > ALLOCATED_OFF;
                let unlike = row.alike < case.must
                    || row.percent > case.percent
                    || allocates_otherwise
                    || in_silence;
                // Those that compile are given as so much more or less.
                stated += usize::from(!row.compiles);
                narrow += usize::from(row.narrow && !row.compiles);
                let bad = (recorded && unlike) || row.engine.is_some();
                worse += usize::from(bad);
                println!(
                    "| {} | {} |{}",
                    case.title(),
                    row.text,
                    if bad { " **worse than it must be**" } else { "" }
                );
                if let Some(difference) = row.engine {
                    eprintln!("{}: the engine differs: {difference}", case.title());
                }
            }
            Err(error) => {
                worse += 1;
                println!("| {} | **no answer**: {error} |", case.title());
            }
        }
    }
    if recorded && stated > 0 {
        println!(
            "\nThe recorded peak lies in a range of at most a hundredth: {narrow} of {stated} that compile nothing."
        );
        // Of all of them; of some it says little.
        if names.is_empty() && !only_light && narrow * 10 < stated * 9 {
            worse += 1;
            eprintln!("fewer than nine of ten ranges hold the recorded peak and are narrow");
        }
    }
    println!("\n| check | |\n| --- | --- |");
    for check in checks::CHECKS {
        let wanted = names.is_empty() || names.iter().any(|name| *name == check.name);
        if !wanted || (only_light && !check.light) {
            continue;
        }
        let said = check.run(python, &environment).unwrap_or_else(|error| {
            worse += 1;
            format!("**wrong**: {error}")
        });
        println!("| {} | {said} |", check.name);
    }
    for check in layouts::LAYOUTS {
        // Sixteen ranks take minutes.
        let wanted = names.is_empty() || names.iter().any(|name| *name == check.name);
        if !wanted || only_light {
            continue;
        }
        let said = check.run(python, &environment).unwrap_or_else(|error| {
            worse += 1;
            format!("**wrong**: {error}")
        });
        println!("| {} | {said} |", check.name);
    }
    if worse > 0 {
        eprintln!("{worse} cases came out worse than they must");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
