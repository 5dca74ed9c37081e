//! What is said of ranks: side by side if they are few, in groups if they are many.
//!
//! In: a [`Job`] that is done. Out: text and JSON. Every figure is a prediction's or the fleet's.

use std::fmt::Write;

use owo_colors::OwoColorize;
use serde_json::{Value, json};
use tonnage::Bytes;
use tonnage_fleet::{Answer as FleetAnswer, AnswerOptions, Row, compare_outliers, ranges};

use super::run::{Run, Word};
use super::{Job, SIDE_BY_SIDE};
use crate::ask::Answered;
use crate::fleet::cards;
use crate::output::{as_a_word, counted, grouped, plain};
use crate::progress::Progress;
use crate::recipe::try_next;
use crate::report::layout;

const PEAKS: [&str; 3] = ["requested", "allocated", "reserved"];

/// What is said of all of them, and then of the one that reserves most.
pub(super) fn answered(job: &Job<'_>) -> anyhow::Result<Answered> {
    let mut text = String::new();
    describe_job(&mut text, job);
    if job.asked.ranks.len() > SIDE_BY_SIDE {
        describe_verdicts(&mut text, job);
        describe_fleet(&mut text, job)?;
    } else {
        describe_ranks(&mut text, job);
    }
    describe_guesses(&mut text, job);
    describe_worst(&mut text, job);
    let negative = job.runs.values().any(|run| run.verdict != Word::Fits);
    Ok(Answered { text, json: to_json(job).to_string(), negative })
}

/// The command, which ranks, and who shares whose run.
fn describe_job(text: &mut String, job: &Job<'_>) {
    let (asked, options) = (&job.asked, job.subject.options);
    // Writing to a string cannot fail.
    let _ = writeln!(text, "{}", plain(&options.command.join(" ")).bold());
    let _ = writeln!(
        text,
        "{} of a job of {}, {} on each host, each by itself: the others are taken to do as it does",
        counted(asked.ranks.len(), "rank"),
        grouped(asked.size),
        asked.per_host
    );
    if let Some(layout) = &asked.layout {
        let axes: Vec<_> =
            layout.axes().iter().map(|axis| format!("{} {}", axis.name, axis.size)).collect();
        let _ = writeln!(text, "the layout, outermost first: {}", axes.join(", "));
        let along = layout.alike().join(" and ");
        let unlike: Vec<_> =
            job.sets.iter().filter_map(|set| Some((set, job.unlike(set)?))).collect();
        let shared = asked.ranks.len() - job.runs.len();
        if shared > 0 {
            let _ = writeln!(
                text,
                "{} run, and {} the run of one that is alike along {along}: the first and the last of each {} ask for the same",
                were(job.runs.len()),
                if shared == 1 {
                    "1 shares".to_owned()
                } else {
                    format!("{} share", grouped(shared))
                },
                if unlike.is_empty() { "set" } else { "of these sets" },
            );
        }
        for (set, (first, odd)) in unlike {
            let all: Vec<_> = set.iter().map(|&rank| u64::from(rank)).collect();
            let _ = writeln!(
                text,
                "{} not alike along {along}, as rank {first} and rank {odd} tell: each was run",
                if set.len() == 2 {
                    format!("ranks {first} and {odd} are")
                } else {
                    format!("ranks {} are", ranges(&all))
                },
            );
        }
    }
    if job.from_before > 0 {
        let _ = writeln!(text, "{} kept from before", were(job.from_before));
    }
    text.push('\n');
}

/// `1 was`, `8 were`.
fn were(count: usize) -> String {
    let verb = if count == 1 { "was" } else { "were" };
    format!("{} {verb}", grouped(count))
}

/// A line for each rank.
fn describe_ranks(text: &mut String, job: &Job<'_>) {
    let axes = job.asked.layout.as_ref().map_or(&[][..], |layout| layout.axes());
    let width = |name: &str| name.len().max(3) + 2;
    let _ = write!(text, "{:>6}", "rank");
    for axis in axes {
        let _ = write!(text, "{:>1$}", axis.name, width(&axis.name));
    }
    let [requested, allocated, reserved] = PEAKS;
    let _ = writeln!(text, "  {requested:>12}  {allocated:>12}  {reserved:>12}");
    for &rank in &job.asked.ranks {
        let Some(run) = job.of(rank) else { continue };
        let _ = write!(text, "{rank:>6}");
        let places = job.asked.layout.as_ref().map(|layout| layout.coordinates(rank));
        for (place, axis) in places.unwrap_or_default().into_iter().zip(axes) {
            let _ = write!(text, "{place:>0$}", width(&axis.name));
        }
        for peak in PEAKS {
            let bytes = run.most(peak).map_or(String::new(), |it| Bytes(it).to_string());
            let _ = write!(text, "  {bytes:>12}");
        }
        let same = job.same_as(rank).map_or(String::new(), |first| format!(", as rank {first}"));
        let _ = writeln!(text, "  {}{same}", coloured(run.verdict));
    }
}

fn coloured(verdict: Word) -> String {
    match verdict {
        Word::Fits => verdict.words().green().to_string(),
        _ => verdict.words().red().to_string(),
    }
}

/// A line for each verdict: how many ranks, and which.
fn describe_verdicts(text: &mut String, job: &Job<'_>) {
    for verdict in [Word::Fits, Word::MayNotFit, Word::DoesNotFit, Word::Failed] {
        let is = |rank: &&u32| job.of(**rank).is_some_and(|run| run.verdict == verdict);
        let ranks: Vec<u64> = job.asked.ranks.iter().filter(is).map(|&it| it.into()).collect();
        if !ranks.is_empty() {
            let count = counted(ranks.len(), "rank");
            let _ = writeln!(text, "{}: {count} ({})", coloured(verdict), ranges(&ranks));
        }
    }
    text.push('\n');
}

/// Groups, who differs, how uneven it is and which card would do.
fn describe_fleet(text: &mut String, job: &Job<'_>) -> anyhow::Result<()> {
    let rows = job.all_rows();
    let options = AnswerOptions {
        limit: job.looking.limit,
        cards: cards(),
        names: job.looking.names.clone(),
        unfinished: false,
    };
    let mut answer = FleetAnswer::of(&rows, &options);
    if let Some(kept) = &job.kept {
        let _progress = Progress::unmeasured("comparing those that differ");
        let own = |row: &Row| row.same_as.is_none() && row.facts().is_some();
        let names = rows.iter().zip(&job.asked.ranks).filter(|(row, _)| own(row));
        let files: Vec<_> =
            names.filter_map(|(_, &rank)| kept.runs.found(&job.asked.name(rank))).collect();
        compare_outliers(&mut answer, &files, &job.looking, &job.until);
    }
    text.push_str(&answer.to_text_in(layout()));
    Ok(())
}

/// Whose figures rest on guesses: of the rank below they are listed.
fn describe_guesses(text: &mut String, job: &Job<'_>) {
    let guesses = |run: &Run| run.prediction["guesses"].as_array().is_some_and(|it| !it.is_empty());
    let is = |rank: &&u32| job.of(**rank).is_some_and(guesses);
    let ranks: Vec<u64> = job.asked.ranks.iter().filter(is).map(|&it| it.into()).collect();
    if !ranks.is_empty() {
        let count = counted(ranks.len(), "rank");
        let _ = writeln!(
            text,
            "{} what is not known: {count} ({}); --json has what of each",
            "rest on".bold(),
            ranges(&ranks)
        );
    }
}

/// The rank that reserves most, first of those that do not fit.
fn describe_worst(text: &mut String, job: &Job<'_>) {
    let known = job.runs.iter().filter(|(_, run)| run.prediction.is_object());
    // The first of several.
    let worst =
        known.rev().max_by_key(|(_, run)| (run.verdict != Word::Fits, run.most("reserved")));
    let Some((rank, run)) = worst else { return };
    let _ = write!(text, "\n{}\n{}", format!("rank {rank}").bold(), run.text);
    if job.kept.is_some() && run.history {
        let path = job.address(*rank);
        let next = [(
            format!("tonnage report {}", as_a_word(&path)),
            "what holds the memory of this rank, and what to change",
        )];
        try_next(text, &next);
    }
}

fn to_json(job: &Job<'_>) -> Value {
    let (asked, options) = (&job.asked, job.subject.options);
    let most = |peak: &str| {
        let bound = |end: &str| {
            job.runs.values().filter_map(|run| run.prediction[peak][end].as_u64()).max()
        };
        Some(json!({ "low": bound("low")?, "high": bound("high")? }))
    };
    let is = |verdict: Word| job.runs.values().any(|run| run.verdict == verdict);
    let fits = match (is(Word::MayNotFit) || is(Word::DoesNotFit), is(Word::Failed)) {
        (true, _) => Some(false),
        (false, true) => None,
        _ => Some(true),
    };
    let one = |(&rank, run): (&u32, &Run)| {
        let mut prediction = run.prediction.clone();
        let snapshot = job.kept.as_ref().and_then(|kept| kept.runs.found(&asked.name(rank)));
        if let (Some(file), Some(object)) = (snapshot, prediction.as_object_mut()) {
            object.insert("snapshot".to_owned(), file.address.into());
        }
        prediction.is_object().then(|| json!({ "rank": rank, "prediction": prediction }))
    };
    let shared = asked
        .ranks
        .iter()
        .filter_map(|&rank| Some(json!({ "rank": rank, "same_as": job.same_as(rank)? })));
    let failed = job
        .runs
        .iter()
        .filter_map(|(rank, run)| Some(json!({ "rank": rank, "why": run.why.as_ref()? })));
    let layout = asked.layout.as_ref().map(|layout| {
        let axis =
            |axis: &tonnage_scripts::LayoutAxis| json!({ "axis": axis.name, "size": axis.size });
        layout.axes().iter().map(axis).collect::<Vec<_>>()
    });
    let unlike: Vec<_> = job.sets.iter().filter(|set| job.unlike(set).is_some()).collect();
    json!({
        "schema": 1,
        "command": options.command,
        "gpu": options.gpu.name,
        "limit": options.limit,
        "world": asked.size,
        "per_host": asked.per_host,
        "layout": layout,
        "requested": most("requested"),
        "allocated": most("allocated"),
        "reserved": most("reserved"),
        "fits": fits,
        "runs": job.runs.len(),
        "from_before": job.from_before,
        "ranks": job.runs.iter().filter_map(one).collect::<Vec<_>>(),
        "shared": shared.collect::<Vec<_>>(),
        "unlike": unlike,
        "failed": failed.collect::<Vec<_>>(),
        "dataset": asked.out.as_ref().map(|path| path.to_string_lossy()),
    })
}
