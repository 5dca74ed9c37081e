//! The rows of a table, in batches of columns.
//!
//! In:  a file and a [`Table`].
//! Out: batches of at most [`BATCH`] rows, handed to a writer one after the other.

use std::sync::Arc;

use rustc_hash::FxHashMap;
use tonnage_analysis::{CallSites, DeviceView, Levels, Lifetimes, Moment, devices};
use tonnage_events::{StackId, TraceEntry};
use tonnage_snapshot::SnapshotFile;

use crate::error::ExportError;
use crate::table::{ColumnKind, Table};

/// Rows of a batch. With the next number it bounds what a batch of a file from a stranger can take.
const BATCH: usize = 1 << 15;

/// Bytes after which a stack's text is cut.
pub(crate) const LONGEST_STACK: usize = 8 << 10;

/// The values of a column in a batch.
#[derive(Debug)]
pub enum Values {
    /// Whole numbers.
    Integer(Vec<Option<u64>>),
    /// Texts.
    Text(Vec<Option<Arc<str>>>),
    /// True or false.
    Flag(Vec<bool>),
}

/// Hands all rows of a table to `write`, batch by batch, and counts them. A table without rows has no
/// batch.
pub(crate) fn for_each_batch<W>(
    file: &SnapshotFile,
    table: Table,
    write: W,
) -> Result<u64, ExportError>
where
    W: FnMut(&[Values]) -> Result<(), ExportError>,
{
    let mut rows = Rows::new(file, table, write);
    for device in &devices(file) {
        match table {
            Table::Events => rows.events(device)?,
            Table::Allocations => rows.allocations(device)?,
            Table::Segments => rows.segments(device)?,
            Table::Blocks => rows.blocks(device)?,
        }
    }
    rows.finish()
}

struct Rows<'a, W> {
    table: Table,
    batch: Vec<Values>,
    /// The column that the next value belongs to.
    column: usize,
    rows: u64,
    sites: CallSites<'a>,
    /// Texts of this batch that repeat.
    stacks: FxHashMap<StackId, Option<Arc<str>>>,
    words: FxHashMap<&'static str, Arc<str>>,
    write: W,
}

impl<'a, W> Rows<'a, W>
where
    W: FnMut(&[Values]) -> Result<(), ExportError>,
{
    fn new(file: &'a SnapshotFile, table: Table, write: W) -> Self {
        Self {
            table,
            batch: empty_batch(table),
            column: 0,
            rows: 0,
            sites: CallSites::new(&file.stacks),
            stacks: FxHashMap::default(),
            words: FxHashMap::default(),
            write,
        }
    }

    fn events(&mut self, device: &DeviceView<'_>) -> Result<(), ExportError> {
        let levels = Levels::of(device, &Lifetimes::of(device));
        for (event, (entry, level)) in device.entries.iter().zip(levels.after()).enumerate() {
            self.integer(u64::from(device.device.0));
            self.integer(event as u64);
            self.word(entry.action.name());
            self.integer(entry.address.0);
            self.integer(entry.size);
            self.integer(entry.stream.0);
            self.maybe_integer(time_of(entry));
            self.integer(level.requested);
            self.integer(level.allocated);
            self.integer(level.active);
            self.integer(level.reserved);
            self.stack(entry.stack);
            self.end_row()?;
        }
        Ok(())
    }

    fn allocations(&mut self, device: &DeviceView<'_>) -> Result<(), ExportError> {
        let lifetimes = Lifetimes::of(device);
        let peak = Levels::of(device, &lifetimes).peak(|level| level.allocated);
        for it in lifetimes.iter() {
            self.integer(u64::from(device.device.0));
            self.integer(it.address.0);
            self.integer(it.requested);
            self.integer(it.size);
            self.integer(it.stream.0);
            for moment in [it.allocated, it.free_requested, it.free_completed] {
                self.moment(moment, device.entries);
            }
            self.flag(peak.is_some_and(|peak| it.is_live_after(peak.moment)));
            self.flag(it.is_live_at_end());
            self.stack(it.stack);
            self.end_row()?;
        }
        Ok(())
    }

    fn segments(&mut self, device: &DeviceView<'_>) -> Result<(), ExportError> {
        for it in &device.segments {
            self.integer(u64::from(device.device.0));
            self.integer(it.address.0);
            self.integer(it.total_size);
            self.integer(it.allocated_size);
            self.integer(it.active_size);
            self.integer(it.requested_size);
            self.integer(it.stream.0);
            self.word(it.kind.name());
            self.text(Some(it.pool.to_string().into()));
            self.flag(it.expandable);
            self.integer(it.blocks.len() as u64);
            self.stack(it.stack);
            self.end_row()?;
        }
        Ok(())
    }

    fn blocks(&mut self, device: &DeviceView<'_>) -> Result<(), ExportError> {
        for segment in &device.segments {
            for it in &segment.blocks {
                self.integer(u64::from(device.device.0));
                self.integer(segment.address.0);
                self.integer(it.address.0);
                self.integer(it.size);
                self.integer(it.requested_size);
                self.word(it.state.name());
                self.integer(segment.stream.0);
                self.stack(it.stack);
                self.end_row()?;
            }
        }
        Ok(())
    }

    fn moment(&mut self, moment: Moment, entries: &[TraceEntry]) {
        let event = moment.event();
        self.maybe_integer(event.map(|event| event as u64));
        self.maybe_integer(event.and_then(|event| entries.get(event)).and_then(time_of));
    }

    fn stack(&mut self, stack: Option<StackId>) {
        let site = self.sites.get(stack);
        self.text(site);
        let sites = &self.sites;
        let text = stack.and_then(|stack| {
            let text = || sites.stack(stack, LONGEST_STACK).map(Arc::from);
            self.stacks.entry(stack).or_insert_with(text).clone()
        });
        self.text(text);
    }

    fn integer(&mut self, value: u64) {
        self.maybe_integer(Some(value));
    }

    fn maybe_integer(&mut self, value: Option<u64>) {
        if let Values::Integer(values) = self.next_column() {
            values.push(value);
        }
    }

    fn word(&mut self, word: &'static str) {
        let word = Arc::clone(self.words.entry(word).or_insert_with(|| word.into()));
        self.text(Some(word));
    }

    fn text(&mut self, value: Option<Arc<str>>) {
        if let Values::Text(values) = self.next_column() {
            values.push(value);
        }
    }

    fn flag(&mut self, value: bool) {
        if let Values::Flag(values) = self.next_column() {
            values.push(value);
        }
    }

    fn next_column(&mut self) -> &mut Values {
        self.column += 1;
        &mut self.batch[self.column - 1]
    }

    fn end_row(&mut self) -> Result<(), ExportError> {
        debug_assert_eq!(self.column, self.batch.len(), "a row has a value for each column");
        self.column = 0;
        self.rows += 1;
        if self.rows.is_multiple_of(BATCH as u64) {
            self.hand_over()?;
        }
        Ok(())
    }

    fn hand_over(&mut self) -> Result<(), ExportError> {
        (self.write)(&self.batch)?;
        self.batch = empty_batch(self.table);
        self.stacks.clear();
        Ok(())
    }

    fn finish(mut self) -> Result<u64, ExportError> {
        if !self.rows.is_multiple_of(BATCH as u64) {
            self.hand_over()?;
        }
        Ok(self.rows)
    }
}

/// When it was, if that is known.
fn time_of(entry: &TraceEntry) -> Option<u64> {
    (entry.time_us > 0).then_some(entry.time_us)
}

fn empty_batch(table: Table) -> Vec<Values> {
    let empty = |kind| match kind {
        ColumnKind::Integer => Values::Integer(Vec::new()),
        ColumnKind::Text => Values::Text(Vec::new()),
        ColumnKind::Flag => Values::Flag(Vec::new()),
    };
    table.columns().iter().map(|column| empty(column.kind)).collect()
}
