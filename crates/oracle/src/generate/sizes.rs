//! Sizes of requests: near the places where rules change, and often the same again.

use crate::command::Start;
use crate::random::Random;

const MIB: u64 = 1 << 20;

/// Where rules change: granule, small and large, sizes of segments and pages.
const EDGES: [u64; 9] = [512, 1024, MIB / 2, MIB, 2 * MIB, 10 * MIB, 20 * MIB, 32 * MIB, 40 * MIB];

/// The sizes of a stream.
#[derive(Debug)]
pub(super) struct Sizes {
    /// Sizes that come again and again: equal blocks make ties.
    favourites: Vec<u64>,
    capacity: u64,
    total: u64,
    /// Shares of tiny, small, medium and large sizes, of an edge, of part of the device, and of more than
    /// the device.
    shares: [u64; 7],
}

impl Sizes {
    pub(super) fn new(random: &mut Random, start: &Start) -> Self {
        let beyond = if random.percent(30) { random.between(1, 4) } else { 0 };
        let shares = [
            random.below(30),
            random.between(5, 40),
            random.between(5, 40),
            random.below(25),
            random.between(2, 20),
            random.below(8),
            beyond,
        ];
        let mut sizes =
            Self { favourites: Vec::new(), capacity: start.capacity, total: start.total, shares };
        let count = random.between(1, 6);
        sizes.favourites = (0..count).map(|_| sizes.fresh(random)).collect();
        sizes
    }

    pub(super) fn next(&mut self, random: &mut Random) -> u64 {
        if random.percent(45) { *random.pick(&self.favourites) } else { self.fresh(random) }
    }

    fn fresh(&self, random: &mut Random) -> u64 {
        let sum: u64 = self.shares.iter().sum();
        let mut place = random.below(sum);
        let kind = self.shares.iter().position(|&share| {
            let here = place < share;
            place = place.saturating_sub(share);
            here
        });
        match kind {
            Some(0) => random.between(1, 2048),
            Some(1) => random.between(512, MIB),
            Some(2) => random.between(MIB, 12 * MIB),
            Some(3) => random.between(10 * MIB, 120 * MIB),
            Some(4) => {
                let edge = *random.pick(&EDGES) * random.between(1, 2);
                (edge + random.below(4) * 511).saturating_sub(random.below(3) * 512).max(1)
            }
            Some(5) => random.between(1, self.capacity / 2 + 1),
            _ => match random.below(4) {
                0 => random.between(self.capacity, self.total + MIB),
                // Around an expandable range, which has 9/8 of the device.
                1 => self.total / 8 * 9 + random.below(44 * MIB) - 22 * MIB,
                2 => random.between(self.total, 3 * self.total),
                _ => 1 << random.between(34, 58),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_never_zero_and_reach_beyond_the_device() {
        let start = Start { total: 40 * MIB, capacity: 30 * MIB, environment: Vec::new() };
        let mut random = Random::new(1);
        let mut beyond = 0;
        for _ in 0..300 {
            let mut sizes = Sizes::new(&mut random, &start);
            for _ in 0..100 {
                let size = sizes.next(&mut random);
                assert!(size > 0 && size < 1 << 60, "{size}");
                beyond += u64::from(size > start.total / 8 * 9);
            }
        }
        assert!(beyond > 100, "{beyond}");
    }
}
