//! Numbers for generated examples, from a seed and a place: the same on every machine.
//!
//! Not the device's generator: drawing there would allocate and queue work, on every device alike, for
//! what a data loader does on the host.

/// A sequence of numbers.
pub(crate) struct Random(u64);

impl Random {
    /// The sequence of a seed for this draw.
    pub(crate) fn new(seed: u64, draw: u64) -> Self {
        let mut random = Self(seed ^ draw.wrapping_mul(0xd1b5_4a32_d192_ed03));
        random.next();
        random
    }

    /// SplitMix64.
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`, which is small beside 2⁶⁴, so that all are as likely.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        (self.next() % (end.max(1) as u64)) as usize
    }

    /// A number with mean 0 and deviation 1, evenly spread.
    pub(crate) fn number(&mut self) -> f32 {
        let unit = (self.next() >> 40) as f32 / (1u64 << 24) as f32;
        (unit - 0.5) * 12f32.sqrt()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_their_mean_and_deviation_and_depend_on_seed_and_draw() {
        let draw = |seed, draw| -> Vec<f32> {
            let mut random = Random::new(seed, draw);
            (0..10_000).map(|_| random.number()).collect()
        };
        let numbers = draw(1, 1);
        let mean = numbers.iter().sum::<f32>() / 1e4;
        let square = numbers.iter().map(|it| it * it).sum::<f32>() / 1e4;
        assert!(mean.abs() < 0.05 && (square - 1.0).abs() < 0.05, "{mean} {square}");
        assert_eq!(numbers, draw(1, 1));
        assert!(numbers != draw(1, 2) && numbers != draw(2, 1));
    }
}
