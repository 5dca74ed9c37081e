//! A tensor that a loop makes longer and longer by concatenation.
//!
//! In:  lifetimes, the stack whose requests grow.
//! Out: whether each request is as large as the one before it, which is still there, and another block that is live, together.
//!
//! Longer inputs look alike: a line asks for more each time. But what they ask for is no sum of what is there.

use tonnage_events::StackId;

use crate::lifetimes::{Lifetime, Lifetimes};

/// Times that it has grown.
const GROWN: usize = 3;

/// How many of the last requests are looked at.
const LOOKED_AT: usize = 12;

/// What sizes may differ by: parts may have been rounded.
const ROUNDED: u64 = 512;

/// Whether the requests of a stack are a tensor and what is put behind it, again and again.
pub(super) fn grows_by_concatenation(lifetimes: &Lifetimes, stack: Option<StackId>) -> bool {
    if stack.is_none() {
        return false;
    }
    let own = lifetimes.iter().filter(|it| it.stack == stack && it.requested > 0);
    let own: Vec<Lifetime> = own.collect();
    let last = &own[own.len().saturating_sub(LOOKED_AT)..];
    let is_put_behind = |pair: &[Lifetime]| {
        let [before, now] = [&pair[0], &pair[1]];
        let Some(more) = now.requested.checked_sub(before.requested).filter(|&it| it > 0) else {
            return false;
        };
        let is_part = |it: Lifetime| {
            it.stack != stack
                && it.requested.abs_diff(more) < ROUNDED
                && it.is_live_after(now.allocated)
                && it.allocated > before.allocated
        };
        before.is_live_after(now.allocated) && lifetimes.iter().any(is_part)
    };
    last.len() > GROWN && last.windows(2).all(is_put_behind)
}
