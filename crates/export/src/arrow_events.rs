//! The table of events as Arrow arrays: column by column, since there may be millions of rows.
//!
//! In:  a history, by columns or in a file.
//! Out: [`EventColumns`]: record batches; the same values as [`crate::rows`] gives row by row, which a test compares.
//!
//! Nothing is kept twice: the columns that a history has are the table's, and all batches of a device share the one that
//! is the same in every row.

use std::hash::BuildHasher;
use std::sync::Arc;

use arrow_array::builder::{ArrayBuilder, StringBuilder};
use arrow_array::{Array, ArrayRef, Int32Array, RecordBatch, StringArray, UInt64Array};
use arrow_buffer::{BooleanBuffer, NullBuffer};
use arrow_schema::{Schema, SchemaRef};
use rustc_hash::{FxBuildHasher, FxHashMap};
use tonnage_analysis::{CallSites, DeviceView, Levels, Lifetimes, devices};
use tonnage_events::{Action, StackId};
use tonnage_snapshot::{HistoryColumns, SnapshotFile};

use crate::arrow::{MOST_TEXT, Texts, arrow_schema, too_much_text};
use crate::error::ExportError;
use crate::rows::LONGEST_STACK;
use crate::table::Table;

/// Rows of a batch. Chosen: few batches, and what they share is nothing beside the rest.
const BATCH: usize = 1 << 16;

/// Columns that the file does not have: they are worked out from all of its history.
const LEVELS: [&str; 4] = ["requested", "allocated", "active", "reserved"];

/// The columns of the table of events that the file itself has, as Arrow names them.
#[must_use]
pub fn recorded_events_schema() -> SchemaRef {
    let all = arrow_schema(Table::Events);
    let recorded = all.fields().iter().filter(|it| !LEVELS.contains(&it.name().as_str()));
    Arc::new(Schema::new(recorded.cloned().collect::<Vec<_>>()))
}

/// All events, with the levels after each.
pub(crate) fn event_batches(file: &SnapshotFile) -> Result<Vec<RecordBatch>, ExportError> {
    // First, since it takes most while it is worked out.
    let levels: Vec<_> = devices(file).iter().map(|it| (it.device.0, levels(it))).collect();
    let columns = EventColumns::of(file)?;
    let schema = arrow_schema(Table::Events);
    let mut batches = Vec::new();
    for part in &columns.parts {
        let levels = levels.iter().find(|it| it.0 == part.device).map(|it| &it.1);
        batches.extend(part.batches(&schema, &columns.words, levels)?);
    }
    Ok(batches)
}

fn levels(device: &DeviceView<'_>) -> [ArrayRef; 4] {
    let levels = Levels::of(device, &Lifetimes::of(device));
    let after = levels.after();
    [
        column(after.iter().map(|it| it.requested).collect()),
        column(after.iter().map(|it| it.allocated).collect()),
        column(after.iter().map(|it| it.active).collect()),
        column(after.iter().map(|it| it.reserved).collect()),
    ]
}

fn column(values: Vec<u64>) -> ArrayRef {
    Arc::new(UInt64Array::from(values))
}

/// The histories of all devices, in columns.
#[derive(Debug)]
pub struct EventColumns {
    words: Words,
    /// How many devices there are; those without a history have no part.
    devices: usize,
    parts: Vec<Part>,
}

impl EventColumns {
    /// Those of a file.
    ///
    /// # Errors
    ///
    /// As [`EventColumns::take`].
    pub fn of(file: &SnapshotFile) -> Result<Self, ExportError> {
        let histories = file.traces.iter().map(|entries| HistoryColumns::from(&**entries));
        Self::take(file, &mut histories.collect())
    }

    /// Takes these, of the devices of a file by their ordinals; the file has the stacks.
    ///
    /// # Errors
    ///
    /// If there are more texts than Arrow can number: then nothing is taken.
    pub fn take(
        file: &SnapshotFile,
        histories: &mut Vec<HistoryColumns>,
    ) -> Result<Self, ExportError> {
        let words = Words::of(file)?;
        let devices = histories.len();
        let histories = (0..).zip(std::mem::take(histories)).filter(|it| !it.1.is_empty());
        let parts = histories.map(|(device, history)| Part::new(device, history, &words)).collect();
        Ok(Self { words, devices, parts })
    }

    /// The table's columns that a file itself has, as [`recorded_events_schema`] says.
    ///
    /// # Errors
    ///
    /// None that a caller could cause.
    pub fn batches(&self) -> Result<Vec<RecordBatch>, ExportError> {
        let schema = recorded_events_schema();
        let mut batches = Vec::new();
        for part in &self.parts {
            batches.extend(part.batches(&schema, &self.words, None)?);
        }
        Ok(batches)
    }

    /// The histories as they were.
    #[must_use]
    pub fn histories(&self) -> Vec<HistoryColumns> {
        let mut histories = vec![HistoryColumns::default(); self.devices];
        for part in &self.parts {
            if let Some(history) = histories.get_mut(part.device as usize) {
                *history = part.history();
            }
        }
        histories
    }
}

/// The columns of one device.
#[derive(Debug)]
struct Part {
    device: u32,
    /// The same in every row: as many as a batch has.
    devices: ArrayRef,
    numbers: ArrayRef,
    actions: Int32Array,
    addresses: UInt64Array,
    sizes: UInt64Array,
    streams: UInt64Array,
    times: UInt64Array,
    sites: Int32Array,
    stacks: Int32Array,
    /// The numbers of the stacks, where those of their texts are others.
    stacks_before: Option<Vec<i32>>,
}

impl Part {
    fn new(device: u32, history: HistoryColumns, words: &Words) -> Self {
        let rows = history.len();
        let HistoryColumns { actions, addresses, sizes, streams, times, stacks } = history;
        let are_known = present(&times, |it| *it > 0);
        let of = |numbers: &[i32], stack: i32| {
            let number = usize::try_from(stack).ok().and_then(|stack| numbers.get(stack));
            number.copied().unwrap_or(NONE)
        };
        let site = |stack: &i32| of(&words.sites_of, *stack);
        Self {
            device,
            devices: column(vec![u64::from(device); rows.min(BATCH)]),
            numbers: column((0..rows as u64).collect()),
            actions: actions.into_iter().map(i32::from).collect::<Vec<_>>().into(),
            addresses: addresses.into(),
            sizes: sizes.into(),
            streams: streams.into(),
            times: UInt64Array::new(times.into(), are_known),
            sites: keys(stacks.iter().map(site).collect()),
            stacks: keys(match &words.texts_of {
                Some(texts_of) => stacks.iter().map(|it| of(texts_of, *it)).collect(),
                None => stacks.clone(),
            }),
            stacks_before: words.texts_of.is_some().then_some(stacks),
        }
    }

    fn batches(
        &self,
        schema: &SchemaRef,
        words: &Words,
        levels: Option<&[ArrayRef; 4]>,
    ) -> Result<Vec<RecordBatch>, ExportError> {
        let batch = |first: usize| {
            let rows = BATCH.min(self.actions.len() - first);
            let mut columns = vec![
                self.devices.slice(0, rows),
                self.numbers.slice(first, rows),
                Texts::column(self.actions.slice(first, rows), &words.actions)?,
            ];
            for numbers in [&self.addresses, &self.sizes, &self.streams, &self.times] {
                columns.push(Arc::new(numbers.slice(first, rows)));
            }
            columns.extend(levels.into_iter().flatten().map(|it| it.slice(first, rows)));
            columns.push(Texts::column(self.sites.slice(first, rows), &words.sites)?);
            columns.push(Texts::column(self.stacks.slice(first, rows), &words.stacks)?);
            Ok(RecordBatch::try_new(Arc::clone(schema), columns)?)
        };
        (0..self.actions.len()).step_by(BATCH).map(batch).collect()
    }

    fn history(&self) -> HistoryColumns {
        let stack = |row: usize| match self.stacks.is_valid(row) {
            true => self.stacks.value(row),
            false => HistoryColumns::NO_STACK,
        };
        HistoryColumns {
            // Each was made of one byte.
            actions: self.actions.values().iter().map(|it| *it as u8).collect(),
            addresses: self.addresses.values().to_vec(),
            sizes: self.sizes.values().to_vec(),
            streams: self.streams.values().to_vec(),
            // What is missing has a 0 below, as it had before.
            times: self.times.values().to_vec(),
            stacks: match &self.stacks_before {
                Some(stacks) => stacks.clone(),
                None => (0..self.stacks.len()).map(stack).collect(),
            },
        }
    }
}

/// The number of no text.
const NONE: i32 = HistoryColumns::NO_STACK;

/// Numbers of texts, where [`NONE`] is missing.
fn keys(mut keys: Vec<i32>) -> Int32Array {
    let there = present(&keys, |it| *it != NONE);
    if there.is_some() {
        // Readers may look at what is missing, and must find a number that there is.
        keys.iter_mut().for_each(|it| *it = (*it).max(0));
    }
    Int32Array::new(keys.into(), there)
}

/// Which values there are; nothing, if it is all of them.
fn present<T>(values: &[T], is: impl Fn(&T) -> bool) -> Option<NullBuffer> {
    if values.iter().all(&is) {
        return None;
    }
    Some(NullBuffer::new(BooleanBuffer::collect_bool(values.len(), |row| is(&values[row]))))
}

/// The texts of a file, by number.
#[derive(Debug)]
struct Words {
    /// In the order of [`Action::ALL`].
    actions: ArrayRef,
    sites: ArrayRef,
    stacks: ArrayRef,
    /// The number of each stack's text. Not there if that is the number of the stack: two may have the same text, if it was
    /// cut, and readers want each once.
    texts_of: Option<Vec<i32>>,
    /// The number of each stack's call site.
    sites_of: Vec<i32>,
}

impl Words {
    fn of(file: &SnapshotFile) -> Result<Self, ExportError> {
        let mut from = CallSites::new(&file.stacks);
        let mut sites = Texts::default();
        let mut sites_of = Vec::with_capacity(file.stacks.len());
        let mut stacks = EachOnce::default();
        let mut texts_of = Vec::with_capacity(file.stacks.len());
        for id in (0..file.stacks.len() as u32).map_while(StackId::new) {
            let site = from.get(Some(id)).map_or(Ok(NONE), |site| sites.number(&site))?;
            sites_of.push(site);
            let text = from.stack(id, LONGEST_STACK);
            texts_of.push(text.map_or(Ok(NONE), |text| stacks.number(&text))?);
        }
        let is_own = |(place, number): (usize, &i32)| usize::try_from(*number) == Ok(place);
        let are_own = texts_of.iter().enumerate().all(is_own);
        let actions = StringArray::from_iter_values(Action::ALL.map(Action::name));
        Ok(Self {
            actions: Arc::new(actions),
            sites: sites.dictionary(),
            stacks: Arc::new(stacks.texts.finish()),
            texts_of: (!are_own).then_some(texts_of),
            sites_of,
        })
    }
}

/// Long texts, each once, in the order of their numbers.
#[derive(Default)]
struct EachOnce {
    texts: StringBuilder,
    /// Those that have a hash: the texts themselves are not kept twice.
    by_hash: FxHashMap<u64, Vec<i32>>,
}

impl EachOnce {
    fn number(&mut self, text: &str) -> Result<i32, ExportError> {
        let same = self.by_hash.entry(FxBuildHasher.hash_one(text)).or_default();
        let (offsets, all) = (self.texts.offsets_slice(), self.texts.values_slice());
        let at = |number: i32| {
            let place = usize::try_from(number).ok()?;
            let (from, to) = (*offsets.get(place)?, *offsets.get(place + 1)?);
            all.get(usize::try_from(from).ok()?..usize::try_from(to).ok()?)
        };
        if let Some(known) = same.iter().find(|it| at(**it) == Some(text.as_bytes())) {
            return Ok(*known);
        }
        if all.len() + text.len() > MOST_TEXT {
            return Err(too_much_text());
        }
        let number = i32::try_from(self.texts.len()).map_err(|_| too_much_text())?;
        same.push(number);
        self.texts.append_value(text);
        Ok(number)
    }
}

#[cfg(test)]
mod tests {
    use tonnage_events::Frame;

    use super::*;
    use crate::arrow::row_batches;

    const RECORDINGS: [&str; 3] =
        ["mlp_seed.default.stacks", "mlp_seed.expandable", "gpt2_varlen.default"];

    /// A recording with a third device, without a second, and with entries that have no time or stack.
    fn open(name: &str) -> SnapshotFile {
        let path =
            format!("{}/../../testdata/traces/{name}.pickle.zst", env!("CARGO_MANIFEST_DIR"));
        let mut file = tonnage_snapshot::open(path.as_ref()).unwrap();
        let mut other = file.traces[0].clone();
        other.truncate(100);
        other[7].time_us = 0;
        other[9].stack = None;
        file.traces.extend([Vec::new(), other]);
        file
    }

    #[test]
    fn a_history_comes_back_as_it_was() {
        for name in RECORDINGS {
            let mut file = open(name);
            // Several batches.
            file.traces[0] = file.traces[0].repeat(1 + 3 * BATCH / file.traces[0].len());
            let columns = EventColumns::of(&file).unwrap();
            let rows: usize = columns.batches().unwrap().iter().map(RecordBatch::num_rows).sum();
            assert_eq!(rows, file.traces.iter().flatten().count(), "{name}");
            let again: Vec<_> = columns.histories().iter().map(HistoryColumns::entries).collect();
            assert_eq!(again, file.traces, "{name}");
        }
    }

    #[test]
    fn stacks_whose_texts_are_cut_stay_apart_and_have_one_text() {
        let long = |line| {
            let frame = |line| Frame { name: "f".into(), filename: "f.py".into(), line };
            (0..2000).map(frame).chain([frame(line)]).collect::<Vec<_>>()
        };
        let mut file = open("mlp_seed.default.stacks");
        for (row, line) in [(0, 1), (1, 2)] {
            file.traces[0][row].stack = Some(file.stacks.intern(long(line)));
        }
        let columns = EventColumns::of(&file).unwrap();
        let stack = recorded_events_schema().index_of("stack").unwrap();
        let shown = texts(&columns.batches().unwrap(), stack);
        assert_eq!(shown[0], shown[1]);
        for batch in columns.batches().unwrap() {
            use arrow_array::cast::AsArray;

            let stacks = batch.column(stack).as_dictionary::<arrow_array::types::Int32Type>();
            let texts = stacks.values().as_string::<i32>();
            let each: std::collections::BTreeSet<_> = texts.iter().collect();
            assert!(
                each.len() == texts.len() && !each.contains(&None),
                "each text once, and none missing"
            );
        }
        assert_eq!(columns.histories()[0].entries(), file.traces[0]);
    }

    #[test]
    fn devices_without_a_history_cost_nothing() {
        let mut file = open("mlp_seed.expandable");
        file.traces.resize(100_000, Vec::new());
        let columns = EventColumns::of(&file).unwrap();
        assert_eq!(columns.parts.len(), 2);
        let again: Vec<_> = columns.histories().iter().map(HistoryColumns::entries).collect();
        assert_eq!(again, file.traces);
    }

    #[test]
    fn columns_have_the_values_of_the_rows() {
        for name in RECORDINGS {
            let file = open(name);
            let by_rows = row_batches(&file, Table::Events).unwrap();
            let by_columns = event_batches(&file).unwrap();
            let rows =
                |batches: &[RecordBatch]| batches.iter().map(RecordBatch::num_rows).sum::<usize>();
            assert_eq!(rows(&by_rows), rows(&by_columns), "{name}");
            for column in 0..by_rows[0].num_columns() {
                assert_eq!(texts(&by_rows, column), texts(&by_columns, column), "{name}: {column}");
            }
            // Without the levels the others are the same.
            let recorded = EventColumns::of(&file).unwrap().batches().unwrap();
            for (place, field) in recorded_events_schema().fields().iter().enumerate() {
                let (column, _) = by_rows[0].schema_ref().column_with_name(field.name()).unwrap();
                assert_eq!(texts(&by_rows, column), texts(&recorded, place), "{name}: {field}");
            }
        }
    }

    /// A column of all batches, as text.
    fn texts(batches: &[RecordBatch], column: usize) -> Vec<Option<String>> {
        use arrow_array::cast::AsArray;
        use arrow_array::types::{Int32Type, UInt64Type};

        let mut texts = Vec::new();
        for batch in batches {
            let array = batch.column(column);
            if let Some(array) = array.as_primitive_opt::<UInt64Type>() {
                texts.extend(array.iter().map(|it| it.map(|it| it.to_string())));
                continue;
            }
            let array = array.as_dictionary::<Int32Type>();
            let values = array.values().as_string::<i32>();
            let text = |key: i32| values.value(usize::try_from(key).unwrap()).to_owned();
            texts.extend(array.keys().iter().map(|key| key.map(text)));
        }
        texts
    }
}
