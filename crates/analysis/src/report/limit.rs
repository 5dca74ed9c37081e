//! The limit that a failed request ran into.
//!
//! In:  a device, its levels, the limit if someone said it.
//! Out: a [`LimitInForce`].
//!
//! No file says the limit. Where a request failed though the device had room for it, a limit was in force: at least all
//! that was ever reserved, and less than what was reserved then with the segment that the request asked for. Where the
//! device was full, what was reserved and what it had free is all that could be had.

use serde::Serialize;
use tonnage_events::{Action, Bytes};

use crate::device_view::DeviceView;
use crate::levels::Levels;

/// Where a limit is known from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LimitSource {
    /// Someone said it.
    Given,
    /// A request failed though the device had room.
    Concluded,
    /// The device was full: what it had free and what was reserved.
    FullDevice,
}

/// Most bytes that could be reserved when a request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct LimitInForce {
    /// At least so many.
    pub bytes: u64,
    /// At most so many.
    pub at_most: u64,
    /// How that is known.
    pub source: LimitSource,
}

impl LimitInForce {
    /// The limit that is given; else the one that the last failed request ran into, if one failed.
    #[must_use]
    pub fn of(device: &DeviceView<'_>, levels: &Levels, given: Option<u64>) -> Option<Self> {
        if let Some(bytes) = given {
            return Some(Self { bytes, at_most: bytes, source: LimitSource::Given });
        }
        let event = device.entries.iter().rposition(|entry| entry.action == Action::Oom)?;
        let (entry, then) = (&device.entries[event], levels.after().get(event)?.reserved);
        let free = entry.address.0;
        let (bytes, source) = if free >= entry.size {
            let ever = levels.peak(|level| level.reserved).map_or(then, |peak| peak.bytes);
            (ever, LimitSource::Concluded)
        } else {
            (then.saturating_add(free), LimitSource::FullDevice)
        };
        let refused = then.saturating_add(segment_of(entry.size, &device.sizing()));
        let at_most = if source == LimitSource::FullDevice { bytes } else { refused - 1 };
        Some(Self { bytes, at_most: at_most.max(bytes), source })
    }

    /// The limit, and how it is known where no one said it.
    #[must_use]
    pub fn words(&self) -> String {
        let bytes = Bytes(self.bytes);
        match self.source {
            LimitSource::Given => format!("the limit of {bytes}"),
            LimitSource::Concluded if self.at_most == self.bytes => {
                format!("a limit of {bytes}, as concluded from the recording")
            }
            LimitSource::Concluded => {
                format!("a limit of {bytes}, the least that the recording leaves open")
            }
            LimitSource::FullDevice => format!("the {bytes} that the device had for it"),
        }
    }

    /// The same for a table's head.
    #[must_use]
    pub fn in_a_line(&self) -> String {
        let Self { bytes, at_most, source } = *self;
        let (least, most) = (Bytes(bytes), Bytes(at_most));
        match source {
            LimitSource::Given => format!("{least} ({} bytes)", tonnage_events::grouped(bytes)),
            LimitSource::Concluded => format!(
                "{least} to {most}, concluded: so much was reserved, and a request that needed more failed"
            ),
            LimitSource::FullDevice => {
                format!("{least}, concluded: reserved and free when the device was full")
            }
        }
    }
}

/// The most that the driver may have been asked for to serve a request of this rounded size.
fn segment_of(size: u64, config: &tonnage_engine::Config) -> u64 {
    const SMALL: u64 = 2 << 20;
    let unit = if config.expandable_segments() { config.large_segment_size() } else { SMALL };
    match size {
        0..=0x10_0000 => SMALL,
        _ if size < 10 << 20 => config.large_segment_size(),
        _ => size.checked_next_multiple_of(unit.max(1)).unwrap_or(size),
    }
}
