//! `tonnage predict --world 64 --rank 0,31,63 -- python train.py`: ranks of a job, each by itself, side by side.

use std::fmt::Write;
use std::path::Path;

use anyhow::{anyhow, bail};
use owo_colors::OwoColorize;
use serde_json::{Value, json};
use tonnage::Bytes;
use tonnage_scripts::{Options, Range, World, predict};

use crate::ask::Answered;
use crate::output::{counted, plain};
use crate::predict_script::{Seen, Subject, Verdict};
use crate::progress::Progress;

/// Ranks of one job.
pub(crate) fn look(
    worlds: &[World],
    subject: &Subject<'_>,
    save: Option<&Path>,
) -> anyhow::Result<(Answered, Option<anyhow::Error>)> {
    let Subject { options, environment, model } = *subject;
    if save.is_some() {
        bail!("--save keeps one run: ask for one rank, as in `--rank {}`", worlds[0].rank);
    }
    let mut seen: Vec<(World, Seen)> = Vec::new();
    for &world in worlds {
        let options = Options { world: Some(world), ..options.clone() };
        let outcome = {
            let title = format!("rank {} of {}: running the script", world.rank, world.size);
            let _progress = Progress::unmeasured(title);
            predict(&options, environment)?
        };
        let mut rank = Seen::new(options, outcome, model);
        if let Verdict::Failed(error) = &mut rank.verdict {
            let error = anyhow!("rank {}: {error}", world.rank);
            return Ok((rank.answered(None), Some(error)));
        }
        seen.push((world, rank));
    }
    Ok((answered(options, &seen), None))
}

/// What is said of all of them, and then of the one that reserves most.
fn answered(options: &Options, ranks: &[(World, Seen)]) -> Answered {
    let reserved = |seen: &Seen| seen.outcome.peaks.as_ref().map_or(0, |peaks| peaks.reserved.high);
    let details: Vec<_> =
        ranks.iter().map(|(world, seen)| (world, seen, seen.answered(None))).collect();
    let worst = details.iter().max_by_key(|(_, seen, _)| (!seen.fits(), reserved(seen)));
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = writeln!(text, "{}", plain(&options.command.join(" ")).bold());
    if let Some((world, ..)) = details.first() {
        let _ = writeln!(
            text,
            "{} of a job of {}, {} on each host, each by itself: the others are taken to do as it does\n",
            counted(ranks.len(), "rank"),
            world.size,
            world.per_host
        );
    }
    let _ = writeln!(
        text,
        "{:>6}  {:>12}  {:>12}  {:>12}",
        "rank", "requested", "allocated", "reserved"
    );
    for (world, seen, _) in &details {
        let _ = write!(text, "{:>6}", world.rank);
        if let Some(peaks) = &seen.outcome.peaks {
            for range in [peaks.requested, peaks.allocated, peaks.reserved] {
                let _ = write!(text, "  {:>12}", Bytes(range.high).to_string());
            }
        }
        let fits = match seen.verdict {
            Verdict::Fits => "fits".green().to_string(),
            Verdict::MayNotFit => "may not fit".red().to_string(),
            _ => "does not fit".red().to_string(),
        };
        let _ = writeln!(text, "  {fits}");
    }
    if let Some((world, _, answered)) = worst {
        let _ = write!(text, "\n{}\n{}", format!("rank {}", world.rank).bold(), answered.text);
    }
    let one = |(world, _, answered): &(&World, &Seen, Answered)| {
        let whole = serde_json::from_str::<Value>(&answered.json).unwrap_or_default();
        json!({ "rank": world.rank, "prediction": whole })
    };
    let range = |of: fn(&tonnage_scripts::Peaks) -> Range| {
        let highs = ranks.iter().filter_map(|(_, seen)| Some(of(seen.outcome.peaks.as_ref()?)));
        highs.reduce(|a, b| Range { low: a.low.max(b.low), high: a.high.max(b.high) })
    };
    let most = |of| range(of).map(|it| json!({ "low": it.low, "high": it.high }));
    let fits = ranks.iter().all(|(_, seen)| seen.fits());
    let json = json!({
        "schema": 1,
        "command": options.command,
        "gpu": options.gpu.name,
        "limit": options.limit,
        "world": ranks.first().map(|(world, _)| world.size),
        "per_host": ranks.first().map(|(world, _)| world.per_host),
        "requested": most(|peaks| peaks.requested),
        "allocated": most(|peaks| peaks.allocated),
        "reserved": most(|peaks| peaks.reserved),
        "fits": fits,
        "ranks": details.iter().map(one).collect::<Vec<_>>(),
    });
    Answered { text, json: json.to_string(), negative: !fits }
}
