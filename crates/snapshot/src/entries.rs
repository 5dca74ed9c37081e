//! Stage 4: the trace entries, of which there are most.
//!
//! In:  entries, in the order they stand in the file.
//! Out: the list of each device, or its columns, without a second copy of them if that can be helped.

use tonnage_events::TraceEntry;

use crate::history_columns::HistoryColumns;
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
    /// Where columns are wanted, all entries but the latest.
    columns: Option<HistoryColumns>,
}

/// What became of the lists.
pub(crate) enum Histories {
    Rows(Vec<Vec<TraceEntry>>),
    Columns(Vec<HistoryColumns>),
}

#[derive(Default)]
struct Piece {
    first: u32,
    entries: Vec<TraceEntry>,
}

/// Entries that may be moved to begin a piece: those of one batch, of which Python makes a
/// thousand. Without a bound, a file could have the same entries moved again and again.
const MOVED: usize = 1024;

/// Entries that go into columns at once. Chosen: as many as a processor keeps near.
const AT_ONCE: usize = 512;

impl Entries {
    /// Entries that are to be columns.
    pub(crate) fn in_columns() -> Self {
        Self { columns: Some(HistoryColumns::default()), ..Self::default() }
    }

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
        // Columns grow by a quarter too, one after the other.
        let columns = self.columns.as_ref().map_or(0, HistoryColumns::capacity);
        let columns = columns / 4 * 5 * HistoryColumns::ROW;
        (self.taken + taken(&self.pieces) + latest + columns) as u64
    }

    /// Adds an entry and returns its number.
    #[inline]
    pub(crate) fn push(&mut self, entry: TraceEntry) -> u32 {
        let number = self.len() as u32;
        if self.columns.is_some() && self.latest.entries.len() == AT_ONCE {
            self.turn_latest();
        }
        let entries = &mut self.latest.entries;
        if entries.len() == entries.capacity() {
            // By a quarter, not to the double: most of what a file costs is in here.
            entries.reserve_exact((entries.len() / 4).max(MOVED));
        }
        entries.push(entry);
        number
    }

    /// Turns the latest entries into columns.
    #[inline(never)]
    fn turn_latest(&mut self) {
        let Some(columns) = &mut self.columns else { return };
        let Piece { first, entries } = &mut self.latest;
        if columns.capacity() - columns.len() < entries.len() {
            columns.reserve((columns.len() / 4).max(32 * AT_ONCE));
        }
        columns.add(entries);
        *first += entries.len() as u32;
        entries.clear();
    }

    /// Notes that a list begins with this entry: if it is among the latest, a piece begins there.
    pub(crate) fn begin_list(&mut self, number: u32) {
        if self.columns.is_some() {
            return;
        }
        let latest = &mut self.latest;
        let Some(at) = number.checked_sub(latest.first).map(|at| at as usize) else { return };
        if at > 0 && at < latest.entries.len() && latest.entries.len() - at <= MOVED {
            let entries = latest.entries.split_off(at);
            self.taken += latest.entries.capacity() * size_of::<TraceEntry>();
            self.pieces.push(std::mem::replace(latest, Piece { first: number, entries }));
        }
    }

    /// The entries of each list of runs, as rows or as columns.
    pub(crate) fn take(mut self, lists: &[Vec<Run>]) -> Histories {
        self.turn_latest();
        match self.columns.take() {
            Some(columns) => Histories::Columns(Self::take_columns(columns, lists)),
            None => Histories::Rows(self.take_rows(lists)),
        }
    }

    /// The columns of each list of runs. One that has everything is moved; the rest is copied.
    fn take_columns(mut columns: HistoryColumns, lists: &[Vec<Run>]) -> Vec<HistoryColumns> {
        columns.shrink();
        let has_all = |runs: &Vec<Run>| is_all(runs, columns.len());
        if let Some(whole) = lists.iter().position(has_all)
            && lists.iter().enumerate().all(|(at, runs)| at == whole || runs.is_empty())
        {
            let mut taken = vec![HistoryColumns::default(); lists.len()];
            taken[whole] = columns;
            return taken;
        }
        let joined = |runs: &Vec<Run>| {
            let mut joined = HistoryColumns::default();
            joined.reserve(runs.iter().map(|run| run.len as usize).sum());
            for run in runs {
                let first = run.first as usize;
                joined.extend(&columns, first..first + run.len as usize);
            }
            joined
        };
        lists.iter().map(joined).collect()
    }

    /// The rows of each list of runs. What no other list has, and is exactly a piece, is moved;
    /// the rest is copied.
    fn take_rows(mut self, lists: &[Vec<Run>]) -> Vec<Vec<TraceEntry>> {
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
        if self.columns.is_some() {
            let is_moved = lists.iter().any(|runs| is_all(runs, self.len()));
            let copies = if is_moved && named == self.len() as u64 { 0 } else { 1 };
            let empty = (lists.len() * size_of::<HistoryColumns>()) as u64;
            return named.saturating_mul(copies * HistoryColumns::ROW as u64).saturating_add(empty);
        }
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

/// Whether a list has these many entries, all of them, in order.
fn is_all(runs: &[Run], len: usize) -> bool {
    matches!(*runs, [run] if run.first == 0 && run.len as usize == len)
}
