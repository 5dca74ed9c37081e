//! Stage 5: where blocks are cut from.
//!
//! A segment is either *fixed*, one piece of device memory of one size, or *expandable*, a reserved
//! range of addresses into which pages are mapped as they are needed. A fixed segment has no data of
//! its own: it is the chain of its blocks.

mod range;

pub(crate) use range::{Places, RangeId, Ranges, Role};
