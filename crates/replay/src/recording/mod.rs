//! Recordings: PyTorch's memory history through the engine, entry by entry.
//!
//! Taken from the recording are the requests (sizes, streams, frees, failed ones), when a pending
//! block was found complete, and the driver's address of each new segment or expandable range.
//! Everything else the engine must come to by itself; what it does is compared with what PyTorch
//! recorded. The journey:
//!
//! 1. `release`, `settings`: the release, the settings and the device, as far as the file tells.
//! 2. `timeline`: which free belongs to which allocation, and when each completed.
//! 3. `start`: the state before the first entry, if the history does not go back to the beginning.
//! 4. `script`: a device that answers as the recorded one did, and watches.
//! 5. `player`: reads the entries as calls and makes them.
//! 6. `search`: where the engine does something else, tries another reading from an earlier point.
//! 7. `pools`: which segments cannot be of the same pool, learnt on the way.
//! 8. `order`: what came first, of what was there before the first entry, learnt on the way.
//! 9. `final_state`: what the engine has at the end, and what the file has.
//! 10. `witness`: entries that contradict others, to blame the right one.
//! 11. `missing`: entries that are not there, though others say that they were.
//! 12. `limit`: which limits would explain what no other reading does.
//! 13. `inferred`: what was concluded, in words.
//!
//! `budget` bounds all of that together: no outcome takes more than playing 64 times the recording, long ones fewer times, and 50,000
//! entries for each release that is tried, and where that is not enough the outcome says so.

mod budget;

mod final_state;

mod inferred;

mod limit;

mod missing;

mod order;

mod player;

mod pools;

mod ranges;

mod reading;

mod release;

mod replay;

mod script;

mod search;

mod settings;

mod start;

mod timeline;

mod witness;

pub use reading::Reading;
pub use replay::{
    RecordingError, RecordingOptions, read_recording, read_recording_until, replay_recording,
};
pub use settings::{recorded_config, told_total};
pub use start::{FixedBefore, fixed_before, rebuild_start};
