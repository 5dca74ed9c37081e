//! `tonnage replay`: a recording through the engine, as it was or under other settings.

use std::fmt::Write;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;
use owo_colors::OwoColorize;
use tonnage::engine::config::Nearest;
use tonnage::replay::Outcome;
use tonnage::replay::recording::replay_recording;
use tonnage::replay::stream::{Stream, replay_stream};
use tonnage::snapshot::SnapshotFile;
use tonnage::{Bytes, Policy, Stats};

use crate::ask::Answered;
use crate::outcome_text::{describe_inferred, heading, shown};
use crate::output::plain;
use crate::progress::Progress;
use crate::recording::{Recording, Source};
use crate::size::memory_size;
use crate::{Answer, what_if};

/// Replay a PyTorch memory snapshot through the engine
///
/// Every entry that PyTorch recorded must come out again, in order: action, address, size and stream;
/// and at the end every segment and block. Only the requests and the driver's addresses are taken
/// from the recording.
///
/// With --conf or --policy it is a what-if: the same requests under other settings, and what the job
/// would have reserved. Addresses of new segments then follow what NVIDIA's driver was seen to do.
///
/// With --as it is a what-if across releases: the peaks and failures by the rules of the recording's own
/// release and by those of another.
///
/// Exit status: 0 if exact or a what-if, 1 if not exact, 2 for bad input.
#[derive(Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    pub(crate) source: Source,

    /// The limit on reserved memory: the one that was in force when it was recorded, or the one to ask
    /// about. Bytes, `24GiB`, `24GB`
    #[arg(long, value_name = "SIZE", value_parser = memory_size)]
    pub(crate) limit: Option<Bytes>,

    /// What if these settings had been in PYTORCH_CUDA_ALLOC_CONF? They replace all that were recorded;
    /// `""` is PyTorch's defaults
    #[arg(long, value_name = "SETTINGS")]
    pub(crate) conf: Option<String>,

    /// What if these placement rules had been followed? `pytorch`; or `pages`, where physical pages go where they are
    /// needed, perhaps with how much may lie free before they do: `pages,slack:0.02`
    #[arg(long, value_name = "POLICY")]
    pub(crate) policy: Option<Policy>,

    /// Play a what-if this often on one allocator, freeing what is left in between: what the driver's calls about pages
    /// cost once everything has been there before
    #[arg(long, value_name = "TIMES", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=100))]
    pub(crate) repeat: u8,

    /// What would an upgrade do to this job? The same requests by the rules of another release, beside
    /// those of the release that recorded them
    #[arg(long = "as", value_name = "RELEASE")]
    pub(crate) other: Option<Nearest>,

    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<Answer> {
    let (name, recording) = arguments.source.read()?;
    let answered = match &recording {
        Recording::Snapshot(file) => answer(arguments, &name, file)?,
        Recording::Stream(stream) => {
            let replayed = Replayed::of(|| replay_commands(stream, arguments));
            replayed.with_context(|| name.clone())?.answered(arguments, &name)
        }
    };
    answered.print(arguments.json)
}

/// A snapshot as it was, or under other settings.
pub(crate) fn answer(
    arguments: &Arguments,
    name: &str,
    file: &SnapshotFile,
) -> anyhow::Result<Answered> {
    if arguments.is_what_if() {
        return what_if::answer(arguments, name, file).with_context(|| name.to_owned());
    }
    let options = arguments.source.options(arguments.limit.map(|limit| limit.0));
    let replayed = Replayed::of(|| Ok(replay_recording(file, &options)?));
    Ok(replayed.with_context(|| name.to_owned())?.answered(arguments, name))
}

impl Arguments {
    fn is_what_if(&self) -> bool {
        self.conf.is_some() || self.policy.is_some() || self.other.is_some()
    }
}

fn replay_commands(stream: &Stream, arguments: &Arguments) -> anyhow::Result<Outcome> {
    if arguments.is_what_if() {
        anyhow::bail!(
            "a command stream has its settings and release in its header: --conf, --policy and --as need a snapshot"
        );
    }
    let options = arguments.source.options(arguments.limit.map(|limit| limit.0));
    if options.limit.is_some() || options.total.is_some() || options.ordinal.is_some() {
        anyhow::bail!(
            "a command stream has its limit, total and device in its header: leave out --limit, \
             --total and --ordinal"
        );
    }
    Ok(replay_stream(stream, options.release)?)
}

/// What a replay gave, and how long it took.
struct Replayed {
    outcome: Outcome,
    took: Duration,
}

impl Replayed {
    fn of(replay: impl FnOnce() -> anyhow::Result<Outcome>) -> anyhow::Result<Self> {
        let _progress = Progress::unmeasured("replaying");
        let started = Instant::now();
        let outcome = replay()?;
        Ok(Self { outcome, took: started.elapsed() })
    }

    fn answered(&self, arguments: &Arguments, name: &str) -> Answered {
        let Self { outcome, took } = self;
        Answered {
            text: describe(name, outcome, *took, arguments.source.file.is_none()),
            json: outcome.to_json(name),
            negative: !outcome.exact(),
        }
    }
}

/// The outcome for people.
fn describe(name: &str, outcome: &Outcome, took: Duration, embedded: bool) -> String {
    let mut text = heading(name, outcome);
    // Writing to a string cannot fail.
    let _ = write!(text, "settings: {}", shown(&outcome.conf));
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
            let _ = writeln!(text, "  recorded: {}", plain(&difference.expected));
            let _ = writeln!(text, "  engine:   {}", plain(&difference.got));
        }
    }
    text.push('\n');
    describe_stats(&mut text, &outcome.stats);
    describe_inferred(&mut text, &outcome.inferred);
    if outcome.exact() {
        let seconds = took.as_secs_f64();
        let rate = match outcome.events as f64 / seconds {
            rate if rate < 1e3 => format!("{rate:.0}"),
            rate if rate < 999_500.0 => format!("{:.0} thousand", rate / 1e3),
            rate => format!("{:.1} million", rate / 1e6),
        };
        let took = seconds * 1e3;
        let _ = writeln!(text, "\nreplayed in {took:.1} ms ({rate} entries a second)");
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
    let (retries, ooms) = (stats.num_alloc_retries, stats.failed_requests());
    if retries + ooms > 0 {
        let _ =
            writeln!(text, "{retries} retries after giving everything back, {ooms} out of memory");
    }
}
