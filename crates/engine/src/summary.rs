//! `torch.cuda.memory_summary()`: the figures as a table, in PyTorch's layout to the character. It is the same in every
//! release from 2.8 to 2.15: newer figures have no row.

use std::fmt::Write;

use tonnage_events::DeviceId;

use crate::stats::{Stat, StatArray, Stats};

/// Characters between the outer bars.
const WIDTH: usize = 75;

/// How a column's numbers are shown.
#[derive(Clone, Copy)]
enum Unit {
    Bytes,
    Count,
}

impl Unit {
    /// Shows `value` in the unit that suits `reference`, which is the row of both pools together,
    /// so that the rows below it can be compared by eye.
    fn show(self, value: i64, reference: i64) -> String {
        let (limit, step, names): (_, _, &[&str]) = match self {
            Self::Bytes => (768 * 1024, 1024, &["B  ", "KiB", "MiB", "GiB", "TiB", "PiB"]),
            Self::Count => (750 * 1000, 1000, &[" ", "K", "M"]),
        };
        let (mut value, mut reference, mut name) = (value, reference, names[0]);
        for &next in &names[1..] {
            if reference < limit {
                break;
            }
            // Python's floor division, for the oversize figures that may lie below zero.
            value = value.div_euclid(step);
            reference = reference.div_euclid(step);
            name = next;
        }
        match self {
            Self::Bytes => format!("{value:>6} {name}"),
            Self::Count => format!("{value:>7} {name} "),
        }
    }
}

impl Stats {
    /// The table that `torch.cuda.memory_summary()` prints. Abbreviated, it leaves out the rows of
    /// the single pools.
    #[must_use]
    pub fn memory_summary(&self, device: DeviceId, abbreviated: bool) -> String {
        let mut table = Table::default();
        table.rule('=');
        table.line(&format!("{:18}PyTorch CUDA memory summary, device ID {:<17} ", "", device.0));
        table.rule('-');
        table.line(&format!(
            "{:12}CUDA OOMs: {:<12} | {:7}cudaMalloc retries: {:<8}  ",
            "", self.num_ooms, "", self.num_alloc_retries
        ));
        table.rule('=');
        table.line("        Metric         | Cur Usage  | Peak Usage | Tot Alloc  | Tot Freed  ");
        let arrays = [
            ("Allocated memory", &self.allocated_bytes, Unit::Bytes),
            ("Active memory", &self.active_bytes, Unit::Bytes),
            ("Requested memory", &self.requested_bytes, Unit::Bytes),
            ("GPU reserved memory", &self.reserved_bytes, Unit::Bytes),
            ("Non-releasable memory", &self.inactive_split_bytes, Unit::Bytes),
            ("Allocations", &self.allocation, Unit::Count),
            ("Active allocs", &self.active, Unit::Count),
            ("GPU reserved segments", &self.segment, Unit::Count),
            ("Non-releasable allocs", &self.inactive_split, Unit::Count),
        ];
        for (name, array, unit) in arrays {
            table.array(name, array, unit, abbreviated);
        }
        for (name, stat) in [
            ("Oversize allocations", self.oversize_allocations),
            ("Oversize GPU segments", self.oversize_segments),
        ] {
            table.rule('-');
            table.row(name, stat, stat, Unit::Count);
        }
        table.rule('=');
        table.text
    }
}

#[derive(Default)]
struct Table {
    text: String,
}

impl Table {
    fn line(&mut self, content: &str) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.text, "|{content}|");
    }

    fn rule(&mut self, with: char) {
        self.line(&with.to_string().repeat(WIDTH));
    }

    fn row(&mut self, name: &str, stat: Stat, reference: Stat, unit: Unit) {
        let columns = [
            (stat.current, reference.current),
            (stat.peak, reference.peak),
            (stat.allocated, reference.allocated),
            (stat.freed, reference.freed),
        ];
        let cells = columns.map(|(value, reference)| unit.show(value, reference));
        self.line(&format!(" {name:<21} | {} ", cells.join(" | ")));
    }

    fn array(&mut self, name: &str, array: &StatArray, unit: Unit, abbreviated: bool) {
        self.rule('-');
        self.row(name, array.all, array.all, unit);
        if !abbreviated {
            self.row("      from large pool", array.large_pool, array.all, unit);
            self.row("      from small pool", array.small_pool, array.all, unit);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_has_the_same_width() {
        for abbreviated in [false, true] {
            let summary = Stats::new(None).memory_summary(DeviceId(0), abbreviated);
            assert!(summary.lines().all(|line| line.len() == WIDTH + 2), "{summary}");
        }
    }

    #[test]
    fn the_unit_is_chosen_by_the_row_of_both_pools() {
        assert_eq!(Unit::Bytes.show(768 * 1024 - 1, 768 * 1024 - 1), "786431 B  ");
        assert_eq!(Unit::Bytes.show(1_023, 768 * 1024), "     0 KiB");
        assert_eq!(Unit::Count.show(749_999, 749_999), " 749999   ");
        assert_eq!(Unit::Count.show(1_500, 750_000), "      1 K ");
        assert_eq!(Unit::Bytes.show(i64::MAX, i64::MAX), "  8191 PiB");
    }
}
