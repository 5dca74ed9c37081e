//! `tonnage replay`: a recording through the engine; exact, or the first difference.

use std::fmt::Write;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;
use owo_colors::OwoColorize;
use tonnage::replay::Outcome;
use tonnage::replay::recording::{RecordingOptions, replay_recording};
use tonnage::replay::stream::{Stream, replay_stream};
use tonnage::snapshot::{self, Limits};
use tonnage::{Bytes, Release, Stats};

use crate::Answer;
use crate::output::{grouped, print};

/// What is replayed without a FILE: GPT-2 training with sequences of varying length, PyTorch 2.11 on
/// an H200.
const EMBEDDED: &[u8] = include_bytes!("../recordings/gpt2_varlen.pickle.zst");

/// The name it goes by.
const EMBEDDED_NAME: &str = "gpt2_varlen (embedded)";

/// Replay a PyTorch memory snapshot through the engine
///
/// Every entry that PyTorch recorded must come out again, in order: action, address, size and stream;
/// and at the end every segment and block. Only the requests and the driver's addresses are taken
/// from the recording.
///
/// Exit status: 0 if exact, 1 if not, 2 for bad input.
#[derive(Args)]
pub(crate) struct Arguments {
    /// A snapshot (`.pickle`, also compressed with zstd or gzip) or a command stream (`.jsonl`); `-`
    /// reads standard input. Without it, a recording inside this program is replayed
    file: Option<PathBuf>,

    /// The limit on reserved memory that was in force when it was recorded: bytes, `24GiB`, `24GB`
    #[arg(long, value_name = "SIZE")]
    limit: Option<Bytes>,

    /// The memory of the device it was recorded on. A limit is then read as PyTorch sets it, as a
    /// fraction of this
    #[arg(long, value_name = "SIZE")]
    total: Option<Bytes>,

    /// The release whose rules to follow: 2.9, 2.10 or 2.11. Else it is told from the file
    #[arg(long, value_name = "RELEASE")]
    pytorch: Option<Release>,

    /// The device to replay, if the file has several. Else the one with most entries
    #[arg(long, value_name = "N")]
    ordinal: Option<usize>,

    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// A file that can be replayed.
enum Recording {
    Snapshot(Box<snapshot::SnapshotFile>),
    Stream(Box<Stream>),
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<Answer> {
    let (name, recording) = match &arguments.file {
        None => (EMBEDDED_NAME.to_owned(), read(EMBEDDED)?),
        Some(path) if path == Path::new("-") => {
            let recording = read(std::io::stdin().lock()).context("standard input")?;
            ("standard input".to_owned(), recording)
        }
        Some(path) => {
            let name = path.display().to_string();
            let file = std::fs::File::open(path).with_context(|| format!("cannot open {name}"))?;
            let recording = read(file).with_context(|| name.clone())?;
            (name, recording)
        }
    };
    let started = Instant::now();
    let outcome = replay(&recording, arguments).with_context(|| name.clone())?;
    let took = started.elapsed();
    let text = if arguments.json {
        outcome.to_json(&name) + "\n"
    } else {
        describe(&name, &outcome, took, arguments.file.is_none())
    };
    print(&text)?;
    Ok(if outcome.exact() { Answer::Yes } else { Answer::No })
}

/// Tells the two kinds of file apart by their first byte: a stream is JSON, a pickle is not.
fn read(input: impl Read) -> anyhow::Result<Recording> {
    let mut input = BufReader::new(input);
    let first = input.fill_buf().context("cannot read")?.first().copied();
    Ok(if first == Some(b'{') {
        Recording::Stream(Box::new(Stream::read(input)?))
    } else {
        Recording::Snapshot(Box::new(snapshot::read(input, &Limits::default())?))
    })
}

fn replay(recording: &Recording, arguments: &Arguments) -> anyhow::Result<Outcome> {
    let options = RecordingOptions {
        limit: arguments.limit.map(|limit| limit.0),
        total: arguments.total.map(|total| total.0),
        release: arguments.pytorch,
        ordinal: arguments.ordinal,
    };
    match recording {
        Recording::Snapshot(file) => Ok(replay_recording(file, &options)?),
        Recording::Stream(stream) => {
            if options.limit.is_some() || options.total.is_some() || options.ordinal.is_some() {
                anyhow::bail!(
                    "a command stream has its limit, total and device in its header: leave out --limit, \
                     --total and --ordinal"
                );
            }
            Ok(replay_stream(stream, options.release)?)
        }
    }
}

/// The outcome for people.
fn describe(name: &str, outcome: &Outcome, took: Duration, embedded: bool) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = writeln!(
        text,
        "{}: {} entries, device {}, PyTorch {}",
        name.bold(),
        grouped(outcome.events),
        outcome.device,
        outcome.release
    );
    let conf = if outcome.conf.is_empty() { "defaults" } else { &outcome.conf };
    let _ = write!(text, "settings: {conf}");
    if let Some(limit) = outcome.limit {
        let _ = write!(text, "; limit {limit} bytes ({})", Bytes(limit));
    }
    text.push_str("\n\n");
    match &outcome.difference {
        None => {
            let what = "every entry and every block at the end came out as recorded";
            let _ = writeln!(text, "{}: {what}", "exact".green().bold());
        }
        Some(difference) => {
            let event = difference.event;
            let place = if event == outcome.events {
                "after the last entry".to_owned()
            } else {
                format!("at entry {event}")
            };
            let _ = writeln!(text, "{}: it differs {place}", "not exact".red().bold());
            let _ = writeln!(text, "  recorded: {}", difference.expected);
            let _ = writeln!(text, "  engine:   {}", difference.got);
        }
    }
    text.push('\n');
    describe_stats(&mut text, &outcome.stats);
    if !outcome.inferred.is_empty() {
        let _ = writeln!(text, "\nnot in the file, inferred:");
        for line in &outcome.inferred {
            let _ = writeln!(text, "  - {line}");
        }
    }
    if outcome.exact() {
        let seconds = took.as_secs_f64();
        let rate = outcome.events as f64 / seconds / 1e6;
        let _ = writeln!(
            text,
            "\nreplayed in {:.1} ms ({rate:.1} million entries a second)",
            seconds * 1e3
        );
    }
    if embedded {
        text.push_str(
            "\nYour own: torch.cuda.memory._record_memory_history() before the work, \
             torch.cuda.memory._dump_snapshot(\"snapshot.pickle\") after it,\nthen \
             `tonnage replay snapshot.pickle`.\n",
        );
    }
    text
}

fn describe_stats(text: &mut String, stats: &Stats) {
    let _ = writeln!(text, "{:<11}{:>14}{:>14}", "", "peak", "at the end");
    for (name, stat) in [
        ("requested", stats.requested_bytes.all),
        ("allocated", stats.allocated_bytes.all),
        ("active", stats.active_bytes.all),
        ("reserved", stats.reserved_bytes.all),
    ] {
        let show = |bytes: i64| Bytes(u64::try_from(bytes).unwrap_or(0)).to_string();
        let _ = writeln!(text, "{name:<11}{:>14}{:>14}", show(stat.peak), show(stat.current));
    }
    let floor = stats.requested_bytes.all.peak;
    if floor > 0 {
        let waste = stats.reserved_bytes.all.peak as f64 / floor as f64;
        let _ = writeln!(text, "waste      {waste:>14.2}  (peak reserved ÷ peak requested)");
    }
    let (retries, ooms) = (stats.num_alloc_retries, stats.num_ooms);
    if retries + ooms > 0 {
        let _ =
            writeln!(text, "{retries} retries after giving everything back, {ooms} out of memory");
    }
}
