//! What samples of a device add up to: how often it hands out, and how its level went.
//!
//! In:  samples, each with its time.
//! Out: blocks per second over the last second, and the most allocated bytes of each span.

use std::collections::VecDeque;

use tonnage_monitor::MOST_POINTS;

/// How far back the rate looks.
const WINDOW_US: u64 = 1_000_000;

/// A point of the past: short enough to show steps of a job, long enough for a minute in one sheet.
pub(super) const SPAN_US: u64 = 500_000;

/// The samples of one device.
#[derive(Default)]
pub(super) struct Past {
    /// When, and how many blocks had been handed out: those of the last second, and one before.
    counts: VecDeque<(u64, u64)>,
    /// The number of the span that the last point is of.
    span: u64,
    /// The most allocated bytes of each span, oldest first.
    points: VecDeque<u64>,
}

impl Past {
    /// One more sample.
    pub(super) fn add(&mut self, now_us: u64, allocations: u64, allocated: u64) {
        if self.counts.back().is_some_and(|&(_, before)| before > allocations) {
            // The process lets its counts begin again.
            self.counts.clear();
        }
        self.counts.push_back((now_us, allocations));
        while self.counts.get(1).is_some_and(|&(then, _)| now_us.saturating_sub(then) >= WINDOW_US)
        {
            self.counts.pop_front();
        }
        let span = now_us / SPAN_US;
        match self.points.back_mut() {
            Some(point) if span == self.span => *point = allocated.max(*point),
            last => {
                // Spans without a sample, since the process was stopped: nothing changed in them.
                let level = last.map(|it| *it);
                let missed = span.saturating_sub(self.span + 1).min(MOST_POINTS as u64);
                if let Some(level) = level {
                    self.points.extend((0..missed).map(|_| level));
                }
                self.points.push_back(allocated);
                self.span = span;
            }
        }
        let too_many = self.points.len().saturating_sub(MOST_POINTS);
        self.points.drain(..too_many);
    }

    /// Blocks handed out per second.
    pub(super) fn rate(&self) -> f64 {
        match (self.counts.front(), self.counts.back()) {
            (Some(&(begin, first)), Some(&(end, last))) if end > begin => {
                last.saturating_sub(first) as f64 * 1e6 / (end - begin) as f64
            }
            _ => 0.0,
        }
    }

    pub(super) fn points(&self) -> Vec<u64> {
        self.points.iter().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_that_of_the_last_second() {
        let mut past = Past::default();
        assert!(past.rate().abs() < f64::EPSILON);
        // A thousand a second for three seconds, then none.
        for tick in 0..30_u64 {
            past.add(tick * 100_000, tick * 100, 0);
        }
        assert!((past.rate() - 1_000.0).abs() < 1e-9, "{}", past.rate());
        for tick in 30..41 {
            past.add(tick * 100_000, 2_900, 0);
        }
        assert!(past.rate().abs() < f64::EPSILON, "{}", past.rate());
        assert!(past.counts.len() <= 11);
    }

    #[test]
    fn counts_that_begin_again_are_no_rate_below_zero() {
        let mut past = Past::default();
        past.add(0, 500, 0);
        past.add(100_000, 3, 0);
        assert!(past.rate().abs() < f64::EPSILON);
        past.add(200_000, 13, 0);
        assert!((past.rate() - 100.0).abs() < 1e-9);
    }

    #[test]
    fn a_point_is_the_most_of_its_span_and_the_oldest_go() {
        let mut past = Past::default();
        for (tick, allocated) in [5, 9, 2, 1, 0, 7, 3].into_iter().enumerate() {
            past.add(tick as u64 * 100_000, 0, allocated);
        }
        assert_eq!(past.points(), [9, 7]);
        // A process that was stopped for two spans.
        past.add(2_000_000, 0, 4);
        assert_eq!(past.points(), [9, 7, 7, 7, 4]);
        past.add(u64::MAX, 0, 1);
        assert_eq!(past.points().len(), MOST_POINTS);
        assert_eq!(past.points().last(), Some(&1));
    }
}
