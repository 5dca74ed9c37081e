//! Allocated memory over time, by what it is for or who asked for it; small enough to draw.
//!
//! In:  a device. Out: [`Strata`]: columns, each at its moment of most allocated memory, with the bytes of each group
//!      then. Groups add up to what is allocated; reserved memory stands beside them.

use rustc_hash::FxHashMap;
use tonnage_events::{Action, StackId};

use crate::device_view::DeviceView;
use crate::levels::Levels;
use crate::lifetimes::{Lifetime, Lifetimes, Moment};
use crate::module_path::{module_path, show_module_path};
use crate::phases::{Phase, Phases};
use crate::report::{HistoryPurposes, Purpose};

/// By what memory is told apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GroupBy {
    /// What it is for.
    #[default]
    Purpose,
    /// The modules whose `forward` asked for it, the largest by name.
    Module,
}

/// Modules that are told apart; the rest is one group. Chosen: more colours than these are not.
const MODULES: usize = 9;

/// Memory over time by groups.
#[derive(Clone, Debug, Default)]
pub struct Strata {
    /// The groups, lowest first; one without a byte anywhere is left out.
    pub groups: Vec<String>,
    /// The columns, in order; none without a history.
    pub columns: Vec<Stratum>,
    /// Entries, all columns together.
    pub events: usize,
    /// First entries of iterations; empty if none were found.
    pub iterations: Vec<usize>,
    /// Requests that failed.
    pub failed: Vec<usize>,
}

/// Consecutive entries.
#[derive(Clone, Debug, Default)]
pub struct Stratum {
    /// The entry of most allocated memory among them.
    pub event: usize,
    /// Bytes of each group then, in the order of the groups.
    pub bytes: Vec<u64>,
    /// The most reserved bytes among them.
    pub reserved: u64,
    /// What the program was doing at that entry, if that is known.
    pub phase: Option<Phase>,
}

impl Strata {
    /// Looks at one device, in at most so many columns.
    #[must_use]
    pub fn of(device: &DeviceView<'_>, by: GroupBy, columns: usize) -> Self {
        let entries = device.entries;
        if entries.is_empty() {
            return Self::default();
        }
        let lifetimes = Lifetimes::of(device);
        let levels = Levels::of(device, &lifetimes);
        let known = HistoryPurposes::of(device, &lifetimes, &levels);
        let (names, group_of) = match by {
            GroupBy::Purpose => {
                let place = |purpose| Purpose::ALL.iter().position(|&it| it == purpose);
                let groups = known.purposes.iter().map(|&it| place(it).unwrap_or(0)).collect();
                (Purpose::ALL.map(|it| it.name().to_owned()).to_vec(), groups)
            }
            GroupBy::Module => by_module(device, &lifetimes),
        };
        let wide = entries.len().div_ceil(columns.max(1));
        let mut columns = sweep(&lifetimes, &levels, &group_of, names.len(), wide);
        let phases = Phases::of(device);
        for column in &mut columns {
            column.phase = phases.at(column.event);
        }
        let failed = entries.iter().enumerate().filter(|(_, it)| it.action == Action::Oom);
        let strata = Self {
            groups: names,
            columns,
            events: entries.len(),
            iterations: known.iterations,
            failed: failed.map(|(event, _)| event).collect(),
        };
        strata.without_empty_groups()
    }

    fn without_empty_groups(mut self) -> Self {
        let used: Vec<bool> = (0..self.groups.len())
            .map(|group| self.columns.iter().any(|column| column.bytes[group] > 0))
            .collect();
        let mut keep = used.iter();
        self.groups.retain(|_| keep.next() == Some(&true));
        for column in &mut self.columns {
            let mut keep = used.iter();
            column.bytes.retain(|_| keep.next() == Some(&true));
        }
        self
    }
}

/// Goes through the history once, and keeps of each column its fullest moment.
fn sweep(
    lifetimes: &Lifetimes,
    levels: &Levels,
    group_of: &[usize],
    groups: usize,
    wide: usize,
) -> Vec<Stratum> {
    let mut live = vec![0_u64; groups];
    // What changes at each entry: the group, its bytes, and whether they come.
    let mut changes: Vec<(usize, usize, u64, bool)> = Vec::with_capacity(2 * lifetimes.len());
    for (it, &group) in lifetimes.iter().zip(group_of) {
        match it.allocated {
            Moment::Before => live[group] = live[group].saturating_add(it.size),
            Moment::Event(event) => changes.push((event, group, it.size, true)),
            Moment::After => continue,
        }
        if let Moment::Event(event) = it.free_requested {
            changes.push((event, group, it.size, false));
        }
    }
    changes.sort_unstable();
    let mut changes = changes.into_iter().peekable();
    let mut columns = Vec::new();
    for (place, levels) in levels.after().chunks(wide).enumerate() {
        let mut column = Stratum::default();
        let mut most = None;
        for (within, level) in levels.iter().enumerate() {
            let event = place * wide + within;
            while let Some((_, group, bytes, comes)) = changes.next_if(|it| it.0 == event) {
                live[group] = match comes {
                    true => live[group].saturating_add(bytes),
                    false => live[group].saturating_sub(bytes),
                };
            }
            column.reserved = column.reserved.max(level.reserved);
            if most.is_none_or(|most| level.allocated > most) {
                most = Some(level.allocated);
                column.event = event;
                column.bytes.clone_from(&live);
            }
        }
        columns.push(column);
    }
    columns
}

/// The group of each allocation by its modules, and their names: the largest first, then what has none, then the rest.
fn by_module(device: &DeviceView<'_>, lifetimes: &Lifetimes) -> (Vec<String>, Vec<usize>) {
    let mut paths: FxHashMap<StackId, Option<String>> = FxHashMap::default();
    let stacks = &device.file.stacks;
    let mut path_of = |it: &Lifetime| {
        let path = |stack| show_module_path(&module_path(stacks.frames(stack)));
        it.stack.and_then(|stack| paths.entry(stack).or_insert_with(|| path(stack)).clone())
    };
    let named: Vec<Option<String>> = lifetimes.iter().map(|it| path_of(&it)).collect();
    let mut sums: FxHashMap<&str, u64> = FxHashMap::default();
    for (it, name) in lifetimes.iter().zip(&named) {
        if let Some(name) = name {
            let sum = sums.entry(name).or_default();
            *sum = sum.saturating_add(it.size);
        }
    }
    let mut largest: Vec<_> = sums.into_iter().collect();
    largest.sort_unstable_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(b.0)));
    largest.truncate(MODULES);
    let places: FxHashMap<&str, usize> =
        largest.iter().enumerate().map(|(place, it)| (it.0, place)).collect();
    let (none, rest) = (largest.len(), largest.len() + 1);
    let groups = named.iter().map(|name| match name {
        None => none,
        Some(name) => places.get(name.as_str()).copied().unwrap_or(rest),
    });
    let groups = groups.collect();
    let mut names: Vec<_> = largest.iter().map(|it| it.0.to_owned()).collect();
    names.extend(["(no module)".to_owned(), "(other modules)".to_owned()]);
    (names, groups)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::devices;

    #[test]
    fn groups_add_up_to_what_is_allocated_and_columns_reach_the_peaks() {
        for name in ["mlp_seed.default.stacks", "mlp_seed.tight", "gpt2_varlen.default"] {
            let path =
                format!("{}/../../testdata/traces/{name}.pickle.zst", env!("CARGO_MANIFEST_DIR"));
            let file = tonnage_snapshot::open(path.as_ref()).unwrap();
            for device in &devices(&file) {
                let levels = Levels::of(device, &Lifetimes::of(device));
                for (by, columns) in [(GroupBy::Purpose, 100), (GroupBy::Module, 7)] {
                    let strata = Strata::of(device, by, columns);
                    assert!((1..=columns).contains(&strata.columns.len()), "{name}");
                    for column in &strata.columns {
                        let sum: u64 = column.bytes.iter().sum();
                        assert_eq!(sum, levels.after()[column.event].allocated, "{name} {by:?}");
                        assert_eq!(column.bytes.len(), strata.groups.len());
                    }
                    let most = |of: fn(&Stratum) -> u64| strata.columns.iter().map(of).max();
                    let peak = levels.after().iter().map(|it| it.allocated).max();
                    assert_eq!(most(|it| it.bytes.iter().sum()), peak, "{name}");
                    let peak = levels.after().iter().map(|it| it.reserved).max();
                    assert_eq!(most(|it| it.reserved), peak, "{name}");
                }
            }
        }
    }
}
