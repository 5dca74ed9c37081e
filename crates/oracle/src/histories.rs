//! Histories, entry by entry.

use tonnage_events::Action;

use crate::transcript::Entry;

/// Compares, and says whether the order of entries had to be passed over; else the first entry that differs, what
/// PyTorch has there and what the engine.
///
/// Two things are up to the order of a hash table: in which order released pools give back their memory, and, if
/// `frees_in_any_order`, in which order blocks are free that were freed by one command.
pub(crate) fn compare(
    expected: &[Entry],
    got: &[Entry],
    frees_in_any_order: bool,
) -> Result<bool, (usize, String, String)> {
    if expected == got {
        return Ok(false);
    }
    let [expected, got] =
        [expected, got].map(|entries| in_one_order(entries.to_vec(), frees_in_any_order));
    for index in 0..expected.len().max(got.len()) {
        let (expected, got) = (expected.get(index), got.get(index));
        if expected != got {
            let show = |entry: Option<&Entry>| {
                entry.map_or_else(|| "none".to_owned(), |entry| format!("{entry:?}"))
            };
            return Err((index, show(expected), show(got)));
        }
    }
    Ok(true)
}

/// The entries, where any order will do in one of them.
fn in_one_order(mut entries: Vec<Entry>, frees_in_any_order: bool) -> Vec<Entry> {
    for run in entries.chunk_by_mut(|one, next| is_of_released(one) && is_of_released(next)) {
        // Stable: what one pool gives back comes in its own order.
        run.sort_by_key(|entry| entry.pool);
    }
    if frees_in_any_order {
        let is_free = |entry: &Entry| entry.action == Action::FreeCompleted;
        for run in entries.chunk_by_mut(|one, next| is_free(one) && is_free(next)) {
            run.sort_unstable_by_key(|entry| (entry.address, entry.size, entry.stream));
        }
    }
    entries
}

/// Whether a private pool gave back memory: only released ones do.
fn is_of_released(entry: &Entry) -> bool {
    entry.pool != (0, 0) && matches!(entry.action, Action::SegmentFree | Action::SegmentUnmap)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(action: Action, address: u64, pool: u64) -> Entry {
        Entry { action, address, size: 512, stream: 0, pool: (0, pool) }
    }

    #[test]
    fn pools_give_back_in_any_order_and_each_in_its_own() {
        let [a, b] = [1, 2].map(|address| entry(Action::SegmentFree, address, 1));
        let [c, d] = [3, 4].map(|address| entry(Action::SegmentUnmap, address, 2));
        assert_eq!(compare(&[a, b, c, d], &[a, b, c, d], false), Ok(false));
        assert_eq!(compare(&[a, b, c, d], &[c, d, a, b], false), Ok(true));
        assert_eq!(compare(&[a, b, c, d], &[b, a, c, d], false).unwrap_err().0, 0);
        assert_eq!(compare(&[a, b, c, d], &[a, b, c], false).unwrap_err().0, 3);
        let [x, y] = [5, 6].map(|address| entry(Action::SegmentFree, address, 0));
        assert!(compare(&[x, y], &[y, x], true).is_err(), "the default pool has one order");
    }

    #[test]
    fn blocks_are_free_in_any_order_only_if_one_command_freed_several() {
        let [a, b] = [1, 2].map(|address| entry(Action::FreeCompleted, address, 0));
        assert_eq!(compare(&[a, b], &[b, a], true), Ok(true));
        assert!(compare(&[a, b], &[b, a], false).is_err());
        let between = entry(Action::Alloc, 9, 0);
        assert!(compare(&[a, between, b], &[b, between, a], true).is_err());
    }
}
