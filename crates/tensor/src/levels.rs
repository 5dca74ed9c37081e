//! How memory went: the bytes of each role after every event, in a bounded number of points.
//!
//! In:  the sums, before each storage that comes or goes; the bytes reserved, after each that came.
//! Out: [`Levels`]. An event is an allocation or a free.
//!
//! A result is claimed after it is allocated, so a level is written down late, when the next event
//! comes. Where there are more events than points, two neighbours become one, which has the higher of
//! both: the highest level is among the points, however few there are.

use crate::live::Role;
use crate::peak::{Sums, total};

/// The memory of a device after an event; of several in a row, after that with most allocated bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LevelPoint {
    /// Events before: 0 is where recording began.
    pub event: u64,
    /// Bytes obtained from the device; of several events in a row, the most.
    pub reserved: u64,
    sums: Sums,
}

impl LevelPoint {
    /// Bytes of the blocks that were handed out.
    #[must_use]
    pub fn allocated(&self) -> u64 {
        total(&self.sums)
    }

    /// Those of them that were for this.
    #[must_use]
    pub fn of(&self, role: Role) -> u64 {
        self.sums[role as usize]
    }

    /// What stands for both; `later` comes after this.
    fn joined(self, later: Self) -> Self {
        let reserved = self.reserved.max(later.reserved);
        let higher = if later.allocated() > self.allocated() { later } else { self };
        Self { reserved, ..higher }
    }
}

/// Levels in the order of their events.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Levels {
    /// How many events there were.
    pub events: u64,
    /// The levels: of every event, or of as many as were asked for.
    pub points: Vec<LevelPoint>,
}

/// Writes levels down.
pub(crate) struct LevelRecorder {
    /// The most points, even.
    most: usize,
    events: u64,
    reserved: u64,
    points: Vec<LevelPoint>,
    /// How many levels a point stands for.
    stride: u64,
    /// The point that does not stand for as many yet, and for how many it does.
    open: Option<(LevelPoint, u64)>,
}

impl LevelRecorder {
    /// At most `most` points, rounded up to an even number and at least two.
    pub(crate) fn new(most: usize, reserved: u64) -> Self {
        let most = most.max(2).next_multiple_of(2);
        Self { most, events: 0, reserved, points: Vec::new(), stride: 1, open: None }
    }

    pub(crate) fn events(&self) -> u64 {
        self.events
    }

    /// The next event is about to change these sums; after it, so much is reserved.
    pub(crate) fn next(&mut self, sums: &Sums, reserved: Option<u64>) {
        self.write_down(sums);
        self.events += 1;
        self.reserved = reserved.unwrap_or(self.reserved);
    }

    fn write_down(&mut self, sums: &Sums) {
        let level = LevelPoint { event: self.events, reserved: self.reserved, sums: *sums };
        let (point, levels) = match self.open.take() {
            Some((point, levels)) => (point.joined(level), levels + 1),
            None => (level, 1),
        };
        if levels < self.stride {
            self.open = Some((point, levels));
            return;
        }
        if self.points.len() == self.most {
            self.halve();
            // The first half of a point that is now twice as long.
            self.open = Some((point, levels));
            return;
        }
        self.points.push(point);
    }

    fn halve(&mut self) {
        let pairs = self.points.chunks_exact(2).map(|pair| pair[0].joined(pair[1]));
        self.points = pairs.collect();
        self.stride *= 2;
    }

    /// The levels until now, these sums the last.
    pub(crate) fn finish(mut self, sums: &Sums) -> Levels {
        self.write_down(sums);
        if let Some((point, _)) = self.open {
            if self.points.len() == self.most {
                self.halve();
            }
            self.points.push(point);
        }
        Levels { events: self.events, points: self.points }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Levels that go up and down, 1,000 the highest, recorded in at most so many points.
    fn recorded(events: u64, most: usize) -> Levels {
        let mut recorder = LevelRecorder::new(most, 0);
        let sums = |event: u64| {
            let mut sums = Sums::default();
            sums[Role::Gradients as usize] = if event == 77 { 1_000 } else { event * 37 % 100 };
            sums
        };
        for event in 0..events {
            recorder.next(&sums(event), Some(event));
        }
        recorder.finish(&sums(events))
    }

    #[test]
    fn few_events_are_all_kept() {
        let levels = recorded(100, 102);
        assert_eq!((levels.events, levels.points.len()), (100, 101));
        for (event, level) in (0..).zip(&levels.points) {
            assert_eq!((level.event, level.of(Role::Gradients)), (event, level.allocated()));
            assert_eq!(level.reserved, event.saturating_sub(1));
        }
    }

    #[test]
    fn many_events_keep_their_order_and_their_maxima() {
        for most in [0, 2, 3, 10, 64, 100] {
            for events in [100, 127, 128, 129, 1_000, 12_345] {
                let Levels { events: counted, points } = recorded(events, most);
                let which = format!("{events} events in {most} points");
                assert_eq!(counted, events, "{which}");
                assert!(points.len() <= most.max(2).next_multiple_of(2), "{which}");
                assert!(points.len() >= most.min(100) / 2, "{which}: {}", points.len());
                assert!(points.is_sorted_by(|a, b| a.event < b.event), "{which}");
                let highest = points.iter().max_by_key(|it| it.allocated()).unwrap();
                assert_eq!((highest.event, highest.allocated()), (77, 1_000), "{which}");
                let reserved = points.iter().map(|it| it.reserved).max();
                assert_eq!(reserved, Some(events - 1), "{which}");
            }
        }
    }
}
