//! The table of events as Arrow arrays: column by column, since there may be millions of rows.
//!
//! In:  a file. Out: a record batch for each device with a history; the same values as [`crate::rows`] gives row by row,
//! which a test compares.
//!
//! Each stack is looked at once, and nothing is kept twice: what is worked out for a column is the column.

use std::sync::Arc;

use arrow_array::{ArrayRef, Int32Array, RecordBatch, UInt64Array};
use tonnage_analysis::{CallSites, DeviceView, Levels, Lifetimes, devices};
use tonnage_events::{StackId, TraceEntry};
use tonnage_snapshot::SnapshotFile;

use crate::arrow::{Texts, arrow_schema};
use crate::error::ExportError;
use crate::rows::{LONGEST_STACK, time_of};
use crate::table::Table;

/// All events.
pub(crate) fn event_batches(file: &SnapshotFile) -> Result<Vec<RecordBatch>, ExportError> {
    let mut words = Words::new(file);
    let mut parts = Vec::new();
    for device in devices(file).iter().filter(|it| !it.entries.is_empty()) {
        parts.push(Part::of(device, &mut words)?);
    }
    let Words { actions, sites, stacks, .. } = words;
    let [actions, sites, stacks] = [actions, sites, stacks].map(|it| it.dictionary());
    let schema = arrow_schema(Table::Events);
    let batch = |part: Part| {
        let [device, event, address, size, stream] = part.numbers;
        let [requested, allocated, active, reserved] = part.levels;
        let columns = vec![
            device,
            event,
            Texts::column(part.actions, &actions)?,
            address,
            size,
            stream,
            part.times,
            requested,
            allocated,
            active,
            reserved,
            Texts::column(part.sites, &sites)?,
            Texts::column(part.stacks, &stacks)?,
        ];
        Ok(RecordBatch::try_new(Arc::clone(&schema), columns)?)
    };
    parts.into_iter().map(batch).collect()
}

/// The columns of one device.
struct Part {
    /// Device, event, address, size, stream.
    numbers: [ArrayRef; 5],
    times: ArrayRef,
    /// Requested, allocated, active, reserved.
    levels: [ArrayRef; 4],
    actions: Int32Array,
    sites: Int32Array,
    stacks: Int32Array,
}

impl Part {
    fn of(device: &DeviceView<'_>, words: &mut Words<'_>) -> Result<Self, ExportError> {
        let entries = device.entries;
        // First, since it takes most while it is worked out.
        let levels = levels(device);
        let numbers = |of: &dyn Fn(&TraceEntry) -> u64| column(entries.iter().map(of).collect());
        let times: Option<Vec<u64>> = entries.iter().map(time_of).collect();
        let times = times.map_or_else(|| entries.iter().map(time_of).collect(), UInt64Array::from);
        let mut actions = Vec::with_capacity(entries.len());
        let mut sites = Vec::with_capacity(entries.len());
        let mut stacks = Vec::with_capacity(entries.len());
        for entry in entries {
            actions.push(words.action(entry)?);
            let (site, stack) = words.stack(entry.stack)?;
            sites.push(site);
            stacks.push(stack);
        }
        Ok(Self {
            numbers: [
                numbers(&|_| u64::from(device.device.0)),
                column((0..entries.len() as u64).collect()),
                numbers(&|it| it.address.0),
                numbers(&|it| it.size),
                numbers(&|it| it.stream.0),
            ],
            times: Arc::new(times),
            levels,
            actions: actions.into(),
            sites: keys(sites),
            stacks: keys(stacks),
        })
    }
}

fn column(values: Vec<u64>) -> ArrayRef {
    Arc::new(UInt64Array::from(values))
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

/// The number of no text.
const NONE: i32 = -1;

/// Numbers of texts, where [`NONE`] is missing.
fn keys(keys: Vec<i32>) -> Int32Array {
    match keys.contains(&NONE) {
        false => keys.into(),
        true => keys.into_iter().map(|key| (key != NONE).then_some(key)).collect(),
    }
}

/// The texts of all devices, by number.
struct Words<'a> {
    actions: Texts,
    sites: Texts,
    stacks: Texts,
    from: CallSites<'a>,
    /// Of each action and each stack that was seen, by their own numbers.
    known_actions: Vec<(&'static str, i32)>,
    known_stacks: Vec<Option<(i32, i32)>>,
}

impl<'a> Words<'a> {
    fn new(file: &'a SnapshotFile) -> Self {
        Self {
            actions: Texts::default(),
            sites: Texts::default(),
            stacks: Texts::default(),
            from: CallSites::new(&file.stacks),
            known_actions: Vec::new(),
            known_stacks: vec![None; file.stacks.len()],
        }
    }

    fn action(&mut self, entry: &TraceEntry) -> Result<i32, ExportError> {
        let name = entry.action.name();
        // There are a dozen, each at a place of its own.
        if let Some(known) = self.known_actions.iter().find(|it| std::ptr::eq(it.0, name)) {
            return Ok(known.1);
        }
        let number = self.actions.number(&Arc::from(name))?;
        self.known_actions.push((name, number));
        Ok(number)
    }

    fn stack(&mut self, stack: Option<StackId>) -> Result<(i32, i32), ExportError> {
        let Some(stack) = stack else { return Ok((NONE, NONE)) };
        let place = stack.number() as usize;
        if let Some(Some(known)) = self.known_stacks.get(place) {
            return Ok(*known);
        }
        let site = self.from.get(Some(stack));
        let site = site.map_or(Ok(NONE), |site| self.sites.number(&site))?;
        let text = self.from.stack(stack, LONGEST_STACK);
        let text = text.map_or(Ok(NONE), |text| self.stacks.number(&text.into()))?;
        if let Some(known) = self.known_stacks.get_mut(place) {
            *known = Some((site, text));
        }
        Ok((site, text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arrow::row_batches;

    #[test]
    fn columns_have_the_values_of_the_rows() {
        for name in ["mlp_seed.default.stacks", "mlp_seed.expandable", "gpt2_varlen.default"] {
            let path =
                format!("{}/../../testdata/traces/{name}.pickle.zst", env!("CARGO_MANIFEST_DIR"));
            let mut file = tonnage_snapshot::open(path.as_ref()).unwrap();
            // A second device, entries without a time or a stack.
            let mut other = file.traces[0].clone();
            other.truncate(100);
            other[7].time_us = 0;
            other[9].stack = None;
            file.traces.push(other);
            let by_rows = row_batches(&file, Table::Events).unwrap();
            let by_columns = event_batches(&file).unwrap();
            let rows =
                |batches: &[RecordBatch]| batches.iter().map(RecordBatch::num_rows).sum::<usize>();
            assert_eq!(rows(&by_rows), rows(&by_columns), "{name}");
            for column in 0..by_rows[0].num_columns() {
                assert_eq!(texts(&by_rows, column), texts(&by_columns, column), "{name}: {column}");
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
