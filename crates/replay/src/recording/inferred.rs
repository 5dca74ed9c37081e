//! What was concluded on the way, in words.

use super::player::{Notes, Player};
use super::search::{Attempt, MOST_WORK};

/// What a replay concluded, in words.
pub(super) fn describe(attempt: &Attempt, limit: Option<u64>, inferred: &mut Vec<String>) {
    describe_calls(&attempt.player.notes, &attempt.player, limit, inferred);
    if attempt.pools_concluded > 0 {
        inferred.push(format!(
            "pools: segments gone by the end that fit a private pool only: {}",
            attempt.pools_concluded
        ));
    }
    if attempt.gave_up {
        inferred.push(format!(
            "pools: the search gave up after playing {MOST_WORK} times the recording; there may be a reading \
             that fits"
        ));
    }
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
    if notes.pending > 0 {
        inferred.push(format!(
            "record_stream: blocks freed while another stream could use them: {}; which stream is not in \
             the file",
            notes.pending
        ));
    }
}
