//! Recordings: PyTorch's memory history through the engine, entry by entry.
//!
//! Taken from the recording are the requests (sizes, streams, frees, failed ones), when a pending
//! block was found complete, and the driver's address of each new segment or expandable range.
//! Everything else the engine must come to by itself; what it does is compared with what PyTorch
//! recorded. The journey:
//!
//! 1. `timeline`: which free belongs to which allocation, and when each completed.
//! 2. `script`: a device that answers as the recorded one did, and watches.
//! 3. `player`: reads the entries as calls and makes them; where an entry can be read in several
//!    ways, finds the one that fits.
//! 4. `witness`: entries that contradict others, to blame the right one.
//! 5. `limit`: which limits would explain what no other reading does.

mod calls;

mod final_state;

mod inferred;

mod limit;

mod player;

mod pools;

mod reading;

mod replay;

mod script;

mod search;

mod settings;

mod start;

mod timeline;

mod witness;

pub use calls::{Call, calls_of};
pub use reading::Reading;
pub use replay::{RecordingError, RecordingOptions, read_recording, replay_recording};
pub use start::rebuild_start;
