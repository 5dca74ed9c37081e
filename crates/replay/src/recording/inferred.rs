//! What was concluded on the way, in words.

use tonnage_events::{Action, Address, Bytes, SnapshotSegment, TraceEntry, counted};

use super::player::{Notes, Player, gives_back};
use super::search::Attempt;

/// What a replay concluded, in words.
pub(super) fn describe(attempt: &Attempt, limit: Option<u64>, inferred: &mut Vec<String>) {
    describe_calls(&attempt.player.notes, &attempt.player, limit, inferred);
    if attempt.pools_concluded > 0 {
        inferred.push(format!(
            "pools: segments gone by the end that fit a private pool only: {}",
            attempt.pools_concluded
        ));
    }
    if attempt.ties_learnt > 0 {
        inferred.push(format!(
            "ages: what was there before the first entry is taken to be as old as its addresses are low, and where the \
             entries take equal blocks in another order, as old as that tells; ties that the first guess decided \
             otherwise: {}",
            attempt.ties_learnt
        ));
    }
    if attempt.parting.is_some() && attempt.pools_tried {
        inferred.push(
            "pools: private ones that are gone by the end were tried, and none found that fit; which segments \
             shared a pool is not in the file, so that a reading that fits may have been missed"
                .to_owned(),
        );
    }
    if attempt.gave_up {
        inferred.push(
            "search: it gave up before it had tried every reading; there may be one that fits"
                .to_owned(),
        );
    }
}

/// What there was before the first entry, in words, and what is not known of it. `collects` says whether
/// garbage is collected.
pub(super) fn describe_start(
    attempt: &Attempt,
    entries: &[TraceEntry],
    collects: bool,
    inferred: &mut Vec<String>,
) {
    let start = &attempt.player.reading.start;
    let held = Bytes(start.iter().map(|it| it.total_size).sum());
    inferred.push(format!(
        "history: it does not go back to the beginning; {held} in {} were there before its first \
         entry",
        counted(start.len(), "segment")
    ));
    let from = attempt.player.from;
    if from > 0 {
        inferred.push(format!(
            "history: it begins inside a call; how many entries belong to that and are not compared: {from}"
        ));
    }
    if let [only] = &start[..]
        && only.active_size == 0
        && let Some(entry) = entries.iter().position(|it| reaches_into(it, only))
    {
        inferred.push(format!(
            "history: nothing but an unused segment was there, first used by entry {entry}; if the entry that \
             obtained it is missing before that one, it looks the same"
        ));
    }
    let aged = attempt.parting.as_ref().is_some_and(|parting| {
        let got = parting.got.map(|got| got.action);
        [parting.recorded, got].into_iter().flatten().any(gives_back)
    });
    if collects && aged {
        inferred.push(
            "garbage collection: how long blocks had been free before the first entry is not known, and \
             decides what goes back; the difference may be no more than that"
                .to_owned(),
        );
    }
}

/// Whether an entry is about memory of the segment: a block may begin before it.
fn reaches_into(entry: &TraceEntry, segment: &SnapshotSegment) -> bool {
    let end = |address: Address, size: u64| address.0.saturating_add(size);
    entry.action != Action::Oom
        && entry.address.0 < end(segment.address, segment.total_size)
        && segment.address.0 < end(entry.address, entry.size)
}

fn describe_calls(notes: &Notes, player: &Player, limit: Option<u64>, inferred: &mut Vec<String>) {
    if notes.refused > 0 {
        let refusals = &player.engine.device().refusals;
        let below =
            refusals.iter().map(|it| it.granted.saturating_add(it.asked)).min().unwrap_or(0);
        let most = player.granted_peak();
        let mut text = format!(
            "limit: requests that gave cached memory back or failed are read as refused by the driver: {}",
            notes.refused
        );
        if limit.is_none() && most < below {
            text += &format!("; a limit from {most} to {} bytes explains them too", below - 1);
        }
        if notes.or_emptied > 0 {
            text += &format!(
                "; an empty_cache before the request explains as well: {}",
                notes.or_emptied
            );
        }
        inferred.push(text);
    }
    if notes.emptied > 0 {
        inferred.push(format!(
            "empty_cache: calls that released memory: {}; calls that released nothing leave no trace",
            notes.emptied
        ));
    }
    let captured = player.reading.captured.len();
    if captured > 0 {
        inferred.push(format!(
            "captures: calls that gave back less than they would outside of a capture, and are read as inside one: {captured}"
        ));
    }
    if notes.pending > 0 {
        inferred.push(format!(
            "record_stream: blocks freed while another stream could use them: {}; which stream is not in \
             the file",
            notes.pending
        ));
    }
}
