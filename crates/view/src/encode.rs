//! Columns as the page takes them.
//!
//! In: a [`Timeline`], [`StackTable`]s, or a fleet's figures. Out: their bytes, all little-endian:
//!
//! ```text
//! "TNV1" | u32 length of the head | head: JSON, padded with blanks | columns
//! ```
//!
//! The head lists the columns with their types, lengths and offsets. Each offset is counted from the end of the
//! head and a multiple of eight, as the head's end is: a page lays typed arrays over the bytes without copying.

use serde::Serialize;

use crate::fleet::{FleetColumns, FleetHead};
use crate::timeline::{StackTable, Timeline};

const MAGIC: &[u8; 4] = b"TNV1";

/// Where columns begin.
const ALIGNMENT: usize = 8;

#[derive(Clone, Copy)]
enum Values<'a> {
    U8(&'a [u8]),
    U16(&'a [u16]),
    U32(&'a [u32]),
    F64(&'a [f64]),
}

impl Values<'_> {
    fn name(self) -> &'static str {
        match self {
            Self::U8(_) => "u8",
            Self::U16(_) => "u16",
            Self::U32(_) => "u32",
            Self::F64(_) => "f64",
        }
    }

    fn length(self) -> usize {
        match self {
            Self::U8(values) => values.len(),
            Self::U16(values) => values.len(),
            Self::U32(values) => values.len(),
            Self::F64(values) => values.len(),
        }
    }

    fn bytes(self) -> usize {
        let width = match self {
            Self::U8(_) => 1,
            Self::U16(_) => 2,
            Self::U32(_) => 4,
            Self::F64(_) => 8,
        };
        width * self.length()
    }

    fn write(self, out: &mut Vec<u8>) {
        match self {
            Self::U8(values) => out.extend_from_slice(values),
            Self::U16(values) => values.iter().for_each(|it| out.extend(it.to_le_bytes())),
            Self::U32(values) => values.iter().for_each(|it| out.extend(it.to_le_bytes())),
            Self::F64(values) => values.iter().for_each(|it| out.extend(it.to_le_bytes())),
        }
    }
}

#[derive(Serialize)]
struct Column {
    name: &'static str,
    #[serde(rename = "type")]
    kind: &'static str,
    length: usize,
    offset: usize,
}

#[derive(Serialize)]
struct WholeHead<'a, H> {
    columns: Vec<Column>,
    #[serde(flatten)]
    head: &'a H,
}

/// The bytes of a timeline.
///
/// # Errors
///
/// If the head is longer than its length can say.
pub(crate) fn encode(timeline: &Timeline) -> Result<Vec<u8>, String> {
    encoded(&timeline.head, &columns(timeline))
}

/// The bytes of all stacks.
///
/// # Errors
///
/// If the head is longer than its length can say.
pub(crate) fn encode_stacks(stacks: &StackTable) -> Result<Vec<u8>, String> {
    let columns = [
        ("starts", Values::U32(&stacks.starts)),
        ("frames", Values::U32(&stacks.frames)),
        ("moduleStarts", Values::U32(&stacks.module_starts)),
        ("moduleFrames", Values::U32(&stacks.module_frames)),
        ("modules", Values::U32(&stacks.modules)),
    ];
    encoded(&stacks.head, &columns)
}

/// The bytes of a fleet.
///
/// # Errors
///
/// If the head is longer than its length can say.
pub(crate) fn encode_fleet(head: &FleetHead<'_>, of: &FleetColumns) -> Result<Vec<u8>, String> {
    let columns = [
        ("live", Values::F64(&of.live)),
        ("reserved", Values::F64(&of.reserved)),
        ("iterations", Values::F64(&of.iterations)),
        ("starts", Values::U32(&of.starts)),
        ("steps.number", Values::F64(&of.number)),
        ("steps.live", Values::F64(&of.live_in)),
        ("steps.reserved", Values::F64(&of.reserved_in)),
    ];
    encoded(head, &columns)
}

fn encoded(
    head: &impl Serialize,
    columns: &[(&'static str, Values<'_>)],
) -> Result<Vec<u8>, String> {
    let mut listed = Vec::with_capacity(columns.len());
    let mut offset = 0;
    for &(name, values) in columns {
        listed.push(Column { name, kind: values.name(), length: values.length(), offset });
        offset = (offset + values.bytes()).next_multiple_of(ALIGNMENT);
    }
    let head = WholeHead { columns: listed, head };
    let head = serde_json::to_vec(&head).map_err(|error| error.to_string())?;
    let length = head.len().next_multiple_of(ALIGNMENT);
    let counted = u32::try_from(length).map_err(|_| "its texts alone take over 4 GiB")?;
    let start = MAGIC.len() + size_of::<u32>() + length;
    let mut out = Vec::with_capacity(start + offset);
    out.extend_from_slice(MAGIC);
    out.extend(counted.to_le_bytes());
    out.extend_from_slice(&head);
    out.resize(start, b' ');
    for &(_, values) in columns {
        values.write(&mut out);
        out.resize(out.len().next_multiple_of(ALIGNMENT), 0);
    }
    Ok(out)
}

fn columns(timeline: &Timeline) -> [(&'static str, Values<'_>); 20] {
    use Values::{F64, U8, U16, U32};
    let (allocations, segments) = (&timeline.allocations, &timeline.segments);
    [
        ("time", F64(&timeline.time)),
        ("allocated", F64(&timeline.allocated)),
        ("reserved", F64(&timeline.reserved)),
        ("allocations.address", F64(&allocations.address)),
        ("allocations.requested", F64(&allocations.requested)),
        ("allocations.size", F64(&allocations.size)),
        ("allocations.begin", U32(&allocations.begin)),
        ("allocations.end", U32(&allocations.end)),
        ("allocations.done", U32(&allocations.done)),
        ("allocations.stream", U16(&allocations.stream)),
        ("allocations.site", U32(&allocations.site)),
        ("allocations.stack", U32(&allocations.stack)),
        ("allocations.purpose", U8(&allocations.purpose)),
        ("allocations.segment", U32(&allocations.segment)),
        ("segments.address", F64(&segments.address)),
        ("segments.size", F64(&segments.size)),
        ("segments.begin", U32(&segments.begin)),
        ("segments.end", U32(&segments.end)),
        ("segments.stream", U16(&segments.stream)),
        ("segments.pool", U16(&segments.pool)),
    ]
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn columns_lie_where_the_head_says() {
        let mut timeline = Timeline { time: vec![0.0, 2.5, 3.0], ..Timeline::default() };
        timeline.allocations.purpose = vec![3, 1, 2];
        timeline.allocations.segment = vec![7, 0, 9];
        let bytes = encode(&timeline).unwrap();
        assert_eq!(&bytes[..4], MAGIC);
        let length = u32::from_le_bytes(bytes[4..8].try_into().unwrap()) as usize;
        let head: Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
        let start = 8 + length;
        assert!(start.is_multiple_of(ALIGNMENT));
        let place = |name: &str| {
            let columns = head["columns"].as_array().unwrap();
            let column = columns.iter().find(|it| it["name"] == name).unwrap();
            assert_eq!(column["length"], 3, "{name}");
            let offset = column["offset"].as_u64().unwrap() as usize;
            assert!(offset.is_multiple_of(ALIGNMENT), "{name}");
            start + offset
        };
        let time = place("time");
        assert_eq!(bytes[time + 8..time + 16], 2.5_f64.to_le_bytes());
        let purpose = place("allocations.purpose");
        assert_eq!(bytes[purpose..purpose + 3], [3, 1, 2]);
        let segment = place("allocations.segment");
        assert_eq!(bytes[segment + 8..segment + 12], 9_u32.to_le_bytes());
    }
}
