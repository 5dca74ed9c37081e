//! Stage 4: the trace entries, of which there are most.
//!
//! In:  entries, in the order they stand in the file.
//! Out: the list of each device, without a second copy of it if that can be helped.

use tonnage_events::TraceEntry;

use crate::rows::{grows, taken};
use crate::value::Run;

/// Trace entries in the order they were read, in pieces.
///
/// The list of a device's entries is nearly always exactly one piece, and leaves the reader without
/// being copied.
#[derive(Default)]
pub(crate) struct Entries {
    pieces: Vec<Piece>,
    /// The last piece, and its first number.
    latest: Piece,
    /// Bytes of the pieces before the last.
    taken: usize,
}

#[derive(Default)]
struct Piece {
    first: u32,
    entries: Vec<TraceEntry>,
}

/// Entries that may be moved to begin a piece: those of one batch, of which Python makes a
/// thousand. Without a bound, a file could have the same entries moved again and again.
const MOVED: usize = 1024;

impl Entries {
    pub(crate) fn len(&self) -> usize {
        self.latest.first as usize + self.latest.entries.len()
    }

    /// Bytes held.
    pub(crate) fn memory(&self) -> u64 {
        let entries = &self.latest.entries;
        // They grow by a quarter.
        let growth = match grows(entries.len(), entries.capacity()) {
            true => entries.capacity() / 4 * 5 + MOVED,
            false => 0,
        };
        let latest = (entries.capacity() + growth) * size_of::<TraceEntry>();
        (self.taken + taken(&self.pieces) + latest) as u64
    }

    /// Adds an entry and returns its number.
    #[inline]
    pub(crate) fn push(&mut self, entry: TraceEntry) -> u32 {
        let number = self.len() as u32;
        let entries = &mut self.latest.entries;
        if entries.len() == entries.capacity() {
            // By a quarter, not to the double: most of what a file costs is in here.
            entries.reserve_exact((entries.len() / 4).max(MOVED));
        }
        entries.push(entry);
        number
    }

    /// Notes that a list begins with this entry: if it is among the latest, a piece begins there.
    pub(crate) fn begin_list(&mut self, number: u32) {
        let latest = &mut self.latest;
        let Some(at) = number.checked_sub(latest.first).map(|at| at as usize) else { return };
        if at > 0 && at < latest.entries.len() && latest.entries.len() - at <= MOVED {
            let entries = latest.entries.split_off(at);
            self.taken += latest.entries.capacity() * size_of::<TraceEntry>();
            self.pieces.push(std::mem::replace(latest, Piece { first: number, entries }));
        }
    }

    /// The entries of each list of runs. What no other list has, and is exactly a piece, is moved;
    /// the rest is copied.
    pub(crate) fn take(mut self, lists: &[Vec<Run>]) -> Vec<Vec<TraceEntry>> {
        self.pieces.push(std::mem::take(&mut self.latest));
        let mut wanted = vec![0_u32; self.pieces.len()];
        for run in lists.iter().flatten() {
            for piece in self.pieces_of(*run) {
                wanted[piece] += 1;
            }
        }
        let mut moved: Vec<Option<Vec<TraceEntry>>> = Vec::new();
        for runs in lists {
            moved.push(match **runs {
                [run] => {
                    let piece = self.pieces_of(run).start;
                    let whole = self.pieces[piece].first == run.first
                        && self.pieces[piece].entries.len() == run.len as usize;
                    (whole && wanted[piece] == 1)
                        .then(|| std::mem::take(&mut self.pieces[piece].entries))
                }
                _ => None,
            });
        }
        let filled = lists.iter().zip(moved).map(|(runs, moved)| {
            moved.unwrap_or_else(|| runs.iter().flat_map(|&run| self.copy(run)).collect())
        });
        filled
            .map(|mut entries| {
                entries.shrink_to_fit();
                entries
            })
            .collect()
    }

    /// Bytes of the entries that the lists name more than once.
    pub(crate) fn memory_to_repeat(&self, lists: &[Vec<Run>]) -> u64 {
        let named: u64 = lists.iter().flatten().map(|run| u64::from(run.len)).sum();
        named.saturating_sub(self.len() as u64).saturating_mul(size_of::<TraceEntry>() as u64)
    }

    fn copy(&self, run: Run) -> impl Iterator<Item = TraceEntry> + '_ {
        let end = u64::from(run.first) + u64::from(run.len);
        self.pieces_of(run).flat_map(move |index| {
            let piece = &self.pieces[index];
            let first = u64::from(piece.first);
            let from = u64::from(run.first).saturating_sub(first) as usize;
            let to = (end - first).min(piece.entries.len() as u64) as usize;
            piece.entries[from..to].iter().copied()
        })
    }

    /// The pieces that hold a run, which is never empty.
    fn pieces_of(&self, run: Run) -> std::ops::Range<usize> {
        let end = u64::from(run.first) + u64::from(run.len);
        let after =
            |number: u64| self.pieces.partition_point(|piece| u64::from(piece.first) < number);
        after(u64::from(run.first) + 1) - 1..after(end)
    }
}
