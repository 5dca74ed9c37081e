//! The tables of a dataset: their columns, and what each means. The guide's description is checked against this.
//!
//! In:  rows. Out: columns of `files`, `held` and `iterations`.

use std::sync::Arc;

use tonnage_export::{Column, ColumnKind, Values};

use crate::facts::{Facts, Row, Seen};

/// A table of a dataset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FleetTable {
    /// One row for each file.
    Files,
    /// One row for each purpose, phase and line that holds memory at a file's peak, and for each kind of waste.
    Held,
    /// One row for each iteration of a file.
    Iterations,
}

const fn column(
    name: &'static str,
    kind: ColumnKind,
    optional: bool,
    meaning: &'static str,
) -> Column {
    Column { name, kind, optional, meaning }
}

const fn integer(name: &'static str, meaning: &'static str) -> Column {
    column(name, ColumnKind::Integer, false, meaning)
}

const fn maybe_integer(name: &'static str, meaning: &'static str) -> Column {
    column(name, ColumnKind::Integer, true, meaning)
}

const fn text(name: &'static str, meaning: &'static str) -> Column {
    column(name, ColumnKind::Text, false, meaning)
}

const fn maybe_text(name: &'static str, meaning: &'static str) -> Column {
    column(name, ColumnKind::Text, true, meaning)
}

const ADDRESS: Column = text("address", "the file's address");
const RANK: Column = maybe_integer("rank", "the rank, by the file's name");

const FILES: &[Column] = &[
    ADDRESS,
    maybe_integer("size", "bytes of the file"),
    text("version", "what tells this version of the file from another"),
    text("analysis", "the program's version and what was asked"),
    RANK,
    maybe_integer("node", "the machine, by the file's name"),
    maybe_integer("pp", "the pipeline's stage, by the file's name"),
    maybe_integer("tp", "the place among those that share tensors, by the file's name"),
    maybe_integer("dp", "the place among copies of the model, by the file's name"),
    maybe_integer("step", "the step of the snapshot, by the file's name"),
    maybe_text("same_as", "the address of the row whose run this rank shares; missing for files"),
    maybe_text(
        "error",
        "why it could not be read; missing if it could, and else all that follow are",
    ),
    maybe_integer("device", "the device's ordinal"),
    maybe_integer("events", "entries of the history"),
    maybe_text("history", "how far back it goes: `whole`, `partial` or `none`"),
    maybe_text("conf", "the settings string; empty for the defaults"),
    maybe_integer("reserved", "most bytes reserved"),
    maybe_integer("requested", "of these, requested and live then"),
    maybe_integer("live", "most requested bytes live at once"),
    maybe_integer("limit", "bytes that could be reserved at least, where a request failed"),
    maybe_text("cause", "what limits the job, in a word"),
    maybe_integer("cause_bytes", "bytes of that"),
    maybe_text("cause_line", "the line to blame"),
    maybe_text("verdict", "the verdict of `tonnage report`"),
    maybe_integer("failed_requests", "how many requests failed"),
    maybe_integer("failed_bytes", "bytes of the last of them"),
    maybe_text("failed_line", "who asked for them"),
    maybe_text(
        "growth",
        "what grows: `leak`, `longer_inputs`, `growing_tensor`, `fragmentation`, `steady` or `unknown`",
    ),
    maybe_integer("growth_bytes", "bytes of that, in all"),
    maybe_integer("leak_per_iteration", "bytes that leak in each iteration"),
    maybe_text("growth_line", "the line that grows most"),
    maybe_integer("iterations", "how many iterations there are"),
    text("row", "all that is kept of the file, as JSON: what a later run goes on from"),
];

const HELD: &[Column] = &[
    ADDRESS,
    RANK,
    text(
        "family",
        "`purpose`, `phase` or `site`: what live bytes are divided by at the peak; `waste`: reserved bytes of no use at theirs",
    ),
    text("name", "which purpose, phase, line of the program or kind of waste"),
    integer("bytes", "its bytes"),
];

const ITERATIONS: &[Column] = &[
    ADDRESS,
    RANK,
    integer("iteration", "its number, from 0; the middle of long loops is left out"),
    integer("live", "most live requested bytes in it"),
    integer("reserved", "most reserved bytes in it"),
];

/// The column that rows are read back from.
pub(crate) const ROW: &str = "row";

impl FleetTable {
    /// Every table; `files` is written last, and what is not in it does not count.
    pub const ALL: [Self; 3] = [Self::Held, Self::Iterations, Self::Files];

    /// Its name, and that of its folder.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Files => "files",
            Self::Held => "held",
            Self::Iterations => "iterations",
        }
    }

    /// Its columns, in order.
    #[must_use]
    pub fn columns(self) -> &'static [Column] {
        match self {
            Self::Files => FILES,
            Self::Held => HELD,
            Self::Iterations => ITERATIONS,
        }
    }

    /// The values of rows, column by column.
    pub(crate) fn values(self, rows: &[Row]) -> Vec<Values> {
        let mut values = Filling::new(self.columns());
        for row in rows {
            match self {
                Self::Files => values.file(row),
                Self::Held => values.held(row),
                Self::Iterations => values.iterations(row),
            }
        }
        values.columns
    }
}

/// Columns that are being filled, row by row.
struct Filling {
    columns: Vec<Values>,
    next: usize,
}

impl Filling {
    fn new(columns: &[Column]) -> Self {
        let empty = |column: &Column| match column.kind {
            ColumnKind::Integer => Values::Integer(Vec::new()),
            ColumnKind::Text => Values::Text(Vec::new()),
            ColumnKind::Flag => Values::Flag(Vec::new()),
        };
        Self { columns: columns.iter().map(empty).collect(), next: 0 }
    }

    fn place(&mut self) -> &mut Values {
        let place = self.next;
        self.next = (place + 1) % self.columns.len();
        &mut self.columns[place]
    }

    fn integer(&mut self, value: Option<u64>) {
        if let Values::Integer(values) = self.place() {
            values.push(value);
        }
    }

    fn text(&mut self, value: Option<&str>) {
        if let Values::Text(values) = self.place() {
            values.push(value.map(Arc::from));
        }
    }

    fn file(&mut self, row: &Row) {
        self.text(Some(&row.address));
        self.integer(row.size);
        self.text(Some(&row.version));
        self.text(Some(&row.analysis));
        let place = &row.place;
        for part in [place.rank, place.node, place.pp, place.tp, place.dp, place.step] {
            self.integer(part);
        }
        self.text(row.same_as.as_deref());
        self.text(match &row.seen {
            Seen::Unreadable(why) => Some(why),
            Seen::Facts(_) => None,
        });
        self.facts(row.facts());
        let json = serde_json::to_string(row).unwrap_or_default();
        self.text(Some(&json));
    }

    fn facts(&mut self, facts: Option<&Facts>) {
        let failed = facts.and_then(|it| it.failed.as_ref());
        let growth = facts.map(|it| &it.growth);
        self.integer(facts.map(|it| u64::from(it.device)));
        self.integer(facts.map(|it| it.events));
        self.text(facts.map(|it| &*it.history));
        self.text(facts.map(|it| &*it.conf));
        self.integer(facts.map(|it| it.reserved));
        self.integer(facts.map(|it| it.requested));
        self.integer(facts.map(|it| it.live));
        self.integer(facts.and_then(|it| it.limit).map(|it| it.bytes));
        self.text(facts.map(|it| &*it.cause));
        self.integer(facts.map(|it| it.cause_bytes));
        self.text(facts.and_then(|it| it.cause_line.as_deref()));
        self.text(facts.map(|it| &*it.verdict));
        self.integer(facts.map(|it| it.failed_requests));
        self.integer(failed.map(|it| it.bytes));
        self.text(failed.and_then(|it| it.line.as_deref()));
        self.text(growth.map(|it| &*it.kind));
        self.integer(growth.map(|it| it.bytes));
        self.integer(growth.map(|it| it.leak_per_iteration));
        self.text(growth.and_then(|it| it.line.as_deref()));
        self.integer(growth.map(|it| it.iterations));
    }

    fn held(&mut self, row: &Row) {
        let Some(facts) = row.facts() else { return };
        let families = [
            ("purpose", &facts.purposes),
            ("phase", &facts.phases),
            ("site", &facts.sites),
            ("waste", &facts.waste),
        ];
        for (family, shares) in families {
            for share in shares {
                self.text(Some(&row.address));
                self.integer(row.place.rank);
                self.text(Some(family));
                self.text(Some(&share.name));
                self.integer(Some(share.bytes));
            }
        }
    }

    fn iterations(&mut self, row: &Row) {
        for it in row.facts().map_or(&[][..], |facts| &facts.iterations) {
            self.text(Some(&row.address));
            self.integer(row.place.rank);
            self.integer(Some(it.number));
            self.integer(Some(it.live));
            self.integer(Some(it.reserved));
        }
    }
}
