//! The tables: their names, their columns, and what each column means.
//!
//! The guide's description of the schema is checked against this.

use std::fmt;
use std::str::FromStr;

/// A table that a snapshot can be exported as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Table {
    /// One row for each entry of the history.
    Events,
    /// One row for each allocation.
    Allocations,
    /// One row for each segment when the snapshot was taken.
    Segments,
    /// One row for each block when the snapshot was taken.
    Blocks,
}

/// A column of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Column {
    /// Its name.
    pub name: &'static str,
    /// What its values are.
    pub kind: ColumnKind,
    /// Whether values can be missing.
    pub optional: bool,
    /// What it says.
    pub meaning: &'static str,
}

/// What the values of a column are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ColumnKind {
    /// Whole numbers from 0, of 64 bits.
    Integer,
    /// Text.
    Text,
    /// True or false.
    Flag,
}

impl ColumnKind {
    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Integer => "integer",
            Self::Text => "text",
            Self::Flag => "flag",
        }
    }
}

const fn integer(name: &'static str, meaning: &'static str) -> Column {
    Column { name, kind: ColumnKind::Integer, optional: false, meaning }
}

const fn maybe_integer(name: &'static str, meaning: &'static str) -> Column {
    Column { name, kind: ColumnKind::Integer, optional: true, meaning }
}

const fn text(name: &'static str, meaning: &'static str) -> Column {
    Column { name, kind: ColumnKind::Text, optional: false, meaning }
}

const fn maybe_text(name: &'static str, meaning: &'static str) -> Column {
    Column { name, kind: ColumnKind::Text, optional: true, meaning }
}

const fn flag(name: &'static str, meaning: &'static str) -> Column {
    Column { name, kind: ColumnKind::Flag, optional: false, meaning }
}

const DEVICE: Column = integer("device", "the device's ordinal");
const CALL_SITE: Column =
    maybe_text("call_site", "`file:line function` of the innermost call in the user's program");
const STACK: Column = maybe_text("stack", "the calls, one a line, innermost first");

const EVENTS: &[Column] = &[
    DEVICE,
    integer("event", "the entry's number in the device's history, from 0"),
    text("action", "PyTorch's name of what happened"),
    integer("address", "of the block, the segment or the pages; for `oom` the device's free bytes"),
    integer("size", "requested bytes; bytes of the segment or the pages"),
    integer("stream", "the stream's handle"),
    maybe_integer("time_us", "microseconds since 1970"),
    integer("requested", "requested bytes after this entry"),
    integer("allocated", "allocated bytes after this entry"),
    integer("active", "active bytes after this entry"),
    integer("reserved", "reserved bytes after this entry"),
    CALL_SITE,
    STACK,
];

const ALLOCATIONS: &[Column] = &[
    DEVICE,
    integer("address", "where the block begins"),
    integer("requested", "bytes that the caller asked for"),
    integer("size", "bytes of the block: rounded, and with what was not split off"),
    integer("stream", "the stream's handle"),
    maybe_integer(
        "alloc_event",
        "the entry where it was handed out; missing if before the history",
    ),
    maybe_integer("alloc_time_us", "when that was"),
    maybe_integer("free_requested_event", "the entry where its owner gave it back"),
    maybe_integer("free_requested_time_us", "when that was"),
    maybe_integer("free_completed_event", "the entry where it went back to its pool"),
    maybe_integer("free_completed_time_us", "when that was"),
    flag("live_at_peak", "whether it was handed out where most was allocated"),
    flag("live_at_end", "whether it was handed out when the snapshot was taken"),
    CALL_SITE,
    STACK,
];

const SEGMENTS: &[Column] = &[
    DEVICE,
    integer("address", "where the segment begins"),
    integer("size", "its bytes"),
    integer("allocated", "bytes of blocks handed out"),
    integer("active", "bytes of blocks handed out, or freed but in use by a stream"),
    integer("requested", "bytes that callers asked for, of active blocks"),
    integer("stream", "the stream that its blocks belong to"),
    text("kind", "`small` or `large`"),
    text("pool", "the pool that owns it; `(0, 0)` is the default pool"),
    flag("expandable", "whether it can grow in place"),
    integer("blocks", "how many blocks it has"),
    CALL_SITE,
    STACK,
];

const BLOCKS: &[Column] = &[
    DEVICE,
    integer("segment_address", "where its segment begins"),
    integer("address", "where the block begins"),
    integer("size", "its bytes"),
    integer("requested", "bytes that the caller asked for; of a free block, an earlier caller"),
    text("state", "`active_allocated`, `active_pending_free` or `inactive`"),
    integer("stream", "the stream that it belongs to"),
    CALL_SITE,
    STACK,
];

impl Table {
    /// Every table.
    pub const ALL: [Self; 4] = [Self::Events, Self::Allocations, Self::Segments, Self::Blocks];

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Events => "events",
            Self::Allocations => "allocations",
            Self::Segments => "segments",
            Self::Blocks => "blocks",
        }
    }

    /// Its columns, in order.
    #[must_use]
    pub fn columns(self) -> &'static [Column] {
        match self {
            Self::Events => EVENTS,
            Self::Allocations => ALLOCATIONS,
            Self::Segments => SEGMENTS,
            Self::Blocks => BLOCKS,
        }
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Table {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|table| table.name() == name)
            .ok_or_else(|| "tables are `events`, `allocations`, `segments` and `blocks`".to_owned())
    }
}
