//! Stage 3: what lies on the machine's stack.
//!
//! A [`Value`] is sixteen bytes, whatever it stands for: texts, rows and stacks are numbers of
//! things kept elsewhere, once. A container is [`Value::Open`] until something takes it in; by
//! then it is complete and becomes what it means (a row, a stack, ...), and its parts are gone.

/// Names a text in [`Strings`](crate::strings::Strings).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct StrId(pub(crate) u32);

/// The tables that dictionaries become rows of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Table {
    Entries,
    Segments,
    Blocks,
    Annotations,
}

/// Neighbouring rows of a table: a list of them, or a part of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) table: Table,
    pub(crate) first: u32,
    pub(crate) len: u32,
}

/// Something of which only the kind is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Bytes,
    Dict,
    Tuple,
    Set,
    List,
    Scalar,
}

/// A value of the pickle machine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Value {
    None,
    Bool(bool),
    /// An integer from zero to 2⁶⁴ − 1.
    Int(u64),
    /// An integer below zero.
    Negative(i64),
    /// An integer beyond 64 bits.
    HugeInt,
    Float(f64),
    Str(StrId),
    /// A pair of unsigned integers, by its number among those.
    Pair(u32),
    /// A list or dictionary that may still change, by its slot.
    Open(u32),
    /// A dictionary that became one row.
    Row(Table, u32),
    /// Neighbouring elements of a list that are all such rows. Stands in lists only.
    Rows(Run),
    /// A list of rows.
    RowList(Run),
    /// A trace entry whose action is not known.
    UnknownAction(StrId),
    /// A call, by its number among the distinct ones.
    Frame(u32),
    /// A list of calls, by its number among the distinct ones.
    Stack(u32),
    /// What an old file says of an allocation in a block, by its number.
    Past(u32),
    /// A list of these, by the number of the first: the latest, and the only one of use.
    PastList(u32),
    /// The allocator's settings, by their number.
    Settings(u32),
    /// The roundup divisions among those, by their number.
    Divisions(u32),
    EmptyList,
    /// Any other list of the above that a snapshot can hold, by its number.
    List(u32),
    /// A list that holds something of no use at an index.
    ForeignList {
        at: u32,
        holds: Kind,
    },
    /// Something of no use.
    Opaque(Kind),
    /// A dictionary or list that should be of use and is not, by the number of the reason.
    Bad(u32),
}

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Bytes => "bytes",
            Self::Dict => "a dictionary of another kind",
            Self::Tuple => "a tuple",
            Self::Set => "a set",
            Self::List => "a list of something else",
            Self::Scalar => "a number or text",
        }
    }
}

impl Value {
    /// What to call it in an error.
    pub(crate) fn describe(self) -> String {
        let name = match self {
            Self::None => "None",
            Self::Bool(_) => "a bool",
            Self::Int(number) => return format!("the integer {number}"),
            Self::Negative(number) => return format!("the integer {number}"),
            Self::HugeInt => "an integer of more than 64 bits",
            Self::Float(number) => return format!("the float {number}"),
            Self::Str(_) => "a text",
            Self::Pair(_) => "a pair",
            Self::Open(_) => "an unfinished container",
            Self::Row(Table::Entries, _) | Self::UnknownAction(_) => "a trace entry",
            Self::Row(Table::Segments, _) => "a segment",
            Self::Row(Table::Blocks, _) => "a block",
            Self::Row(Table::Annotations, _) => "an annotation",
            Self::Rows(run) | Self::RowList(run) => match run.table {
                Table::Entries => "a list of trace entries",
                Table::Segments => "a list of segments",
                Table::Blocks => "a list of blocks",
                Table::Annotations => "a list of annotations",
            },
            Self::Frame(_) => "a stack frame",
            Self::Stack(_) => "a list of stack frames",
            Self::Past(_) => "an allocation of a block's history",
            Self::PastList(_) => "the history of a block",
            Self::Settings(_) => "a dictionary of settings",
            Self::Divisions(_) => "a dictionary of divisions",
            Self::EmptyList => "an empty list",
            Self::List(_) => "a list of several kinds",
            Self::ForeignList { at, holds } => {
                return format!("a list with {} at index {at}", holds.name());
            }
            Self::Opaque(kind) => kind.name(),
            Self::Bad(_) => "something malformed",
        };
        name.to_owned()
    }

    /// Its kind as an element of a list, if a list has no use for it.
    pub(crate) fn foreign(self) -> Option<Kind> {
        match self {
            Self::None
            | Self::Bool(_)
            | Self::Int(_)
            | Self::Negative(_)
            | Self::HugeInt
            | Self::Float(_)
            | Self::Str(_) => Some(Kind::Scalar),
            Self::Pair(_) => Some(Kind::Tuple),
            Self::Frame(_) | Self::Past(_) | Self::Settings(_) | Self::Divisions(_) => {
                Some(Kind::Dict)
            }
            Self::Stack(_) | Self::PastList(_) => Some(Kind::List),
            Self::Opaque(kind) => Some(kind),
            Self::Open(_)
            | Self::Row(..)
            | Self::Rows(_)
            | Self::RowList(_)
            | Self::UnknownAction(_)
            | Self::EmptyList
            | Self::List(_)
            | Self::ForeignList { .. }
            | Self::Bad(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_stays_at_sixteen_bytes() {
        assert_eq!(size_of::<Value>(), 16);
    }
}
