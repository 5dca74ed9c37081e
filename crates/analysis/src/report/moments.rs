//! Live bytes after every entry, and the moments that the report is about.
//!
//! In:  a device, its lifetimes and levels.
//! Out: live requested bytes; when most is live, when reserved memory first peaks and when it nearly does.

use std::collections::BTreeMap;

use tonnage_events::{Action, StreamId};

use crate::device_view::DeviceView;
use crate::levels::Levels;
use crate::lifetimes::{Lifetime, Lifetimes, Moment};
use crate::total_bytes::TotalBytes;

/// Live requested bytes after every entry: handed out and not yet given back by their owners.
pub(super) fn live_after(lifetimes: impl Iterator<Item = Lifetime>, entries: usize) -> Vec<u64> {
    let mut changes = vec![0_i64; entries];
    let mut sum = 0_i64;
    for it in lifetimes {
        let bytes = i64::try_from(it.requested).unwrap_or(i64::MAX);
        match (it.allocated, it.free_requested) {
            // Given back before the history, and only not yet unused.
            (Moment::Before, Moment::Before) => continue,
            (Moment::Before, _) => sum = sum.saturating_add(bytes),
            (Moment::Event(event), _) => changes[event] = changes[event].saturating_add(bytes),
            (Moment::After, _) => continue,
        }
        if let Moment::Event(event) = it.free_requested {
            changes[event] = changes[event].saturating_sub(bytes);
        }
    }
    let levels = changes.iter().map(|&change| {
        sum = sum.saturating_add(change);
        u64::try_from(sum).unwrap_or(0)
    });
    levels.collect()
}

/// When most was live, first; without a history, the end.
pub(super) fn live_peak(live: &[u64], lifetimes: &Lifetimes, device: &DeviceView<'_>) -> Moment {
    if device.entries.is_empty() {
        return Moment::Before;
    }
    let before = lifetimes.iter().filter(|it| it.is_live_after(Moment::Before));
    let mut most = before.map(|it| it.requested).total_bytes();
    let mut moment = Moment::Before;
    for (event, &bytes) in live.iter().enumerate() {
        if bytes > most {
            (most, moment) = (bytes, Moment::Event(event));
        }
    }
    moment
}

/// When reserved memory first peaks, at the end of the request that grew it; and the stream that grew. A history
/// that begins with the peak does not show what grew it: where most is live stands for that.
pub(super) fn reserved_peak(
    device: &DeviceView<'_>,
    levels: &Levels,
    live: &[u64],
) -> (Moment, StreamId) {
    let peak = levels.peak(|level| level.reserved);
    let moment = peak.map_or(Moment::Before, |peak| peak.moment);
    if moment == Moment::Before {
        let full =
            |&event: &usize| peak.is_some_and(|peak| levels.after()[event].reserved == peak.bytes);
        let most =
            (0..live.len()).filter(full).max_by_key(|&event| (live[event], usize::MAX - event));
        if let Some(event) = most {
            return (Moment::Event(event), device.entries[event].stream);
        }
    }
    let Moment::Event(event) = moment else {
        // The stream that has most is as good a guess as any.
        let mut by_stream = BTreeMap::<StreamId, u64>::new();
        for segment in &device.segments {
            let bytes = by_stream.entry(segment.stream).or_default();
            *bytes = bytes.saturating_add(segment.total_size);
        }
        let most =
            by_stream.into_iter().max_by_key(|&(stream, bytes)| (bytes, u64::MAX - stream.0));
        return (moment, most.map_or(StreamId::DEFAULT, |(stream, _)| stream));
    };
    let stream = device.entries[event].stream;
    let grows = |action: Action| {
        matches!(
            action,
            Action::SegmentAlloc | Action::SegmentMap | Action::SegmentFree | Action::SegmentUnmap
        )
    };
    let rest = &device.entries[event..];
    let end = event + rest.iter().take_while(|it| grows(it.action)).count();
    let served = device.entries.get(end).is_some_and(|it| it.action == Action::Alloc);
    (Moment::Event(if served { end } else { event }), stream)
}

/// When reserved memory first comes within 2 % of its peak; none if the history does not show that.
pub(super) fn near_peak(levels: &Levels, peak: u64) -> Option<Moment> {
    let near = peak - peak / 50;
    if levels.start.reserved >= near {
        return None;
    }
    let event = levels.after().iter().position(|level| level.reserved >= near);
    // The request that grew it is served by the next entry, or soon after.
    let served = |event: usize| {
        let rest = levels.after()[event..].windows(2);
        event + 1 + rest.take_while(|pair| pair[1].reserved > pair[0].reserved).count()
    };
    event.map(|event| Moment::Event(served(event).min(levels.after().len().saturating_sub(1))))
}
