//! What can happen to GPU memory, and what its state is at a moment.
//!
//! Plain data, shared by everything that produces it (the engine, the reader of PyTorch's
//! files) and everything that consumes it (statistics, history, replay, reports). Nothing here
//! decides anything.
//!
//! Words, one for each quantity of bytes:
//!
//! | word | meaning | PyTorch says |
//! | --- | --- | --- |
//! | requested | what callers asked for | `requested_bytes` |
//! | allocated | blocks handed out, after rounding and including what could not be split off | `allocated_bytes` |
//! | active | allocated + freed but still in use by a stream | `active_bytes` |
//! | cached | free in a pool, ready for reuse | reserved − active |
//! | reserved | obtained from the device | `reserved_bytes` |

// Sizes as people write them.
pub mod bytes;

// Names of devices, streams, pools; addresses.
pub mod ids;

// One state change.
pub mod event;

// The entry that PyTorch's history keeps of it, and where it was called.
pub mod trace;

pub mod stacks;

// Of these, the line of the user's program.
mod call_site;

// The state of a moment.
pub mod snapshot;

// Text from strangers.
pub mod text;

pub use bytes::{Bytes, ParseBytesError, counted, grouped};
pub use call_site::{blamed_frame, call_site, source_name};
pub use event::{BlockEvent, Event, SegmentEvent, SplitChange};
pub use ids::{Address, DeviceId, PoolId, PoolKind, StreamId};
pub use snapshot::{BlockState, SnapshotBlock, SnapshotSegment};
pub use stacks::{Frame, StackId, Stacks};
pub use text::{is_hidden, plain};
pub use trace::{Action, TraceEntry};
