//! How far a counted error rate can be from the true one.
//!
//! In:  errors of each channel use: of all users on one subcarrier at one time.
//! Out: their rate, and an interval that has the true one with a confidence of 99 %.
//!
//! The users of one channel use share its channels, so that their errors come in bunches, and the usual
//! interval for independent errors would be too narrow. Channel uses are independent of each other: the
//! spread of their counts tells how many independent symbols the counted ones are worth, and Wilson's
//! interval, which also holds for few errors and for none, is taken for that many.

/// The normal deviate of 99 %, two-sided.
const DEVIATE: f64 = 2.575_829_303_548_901;

/// Errors, counted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tally {
    users: usize,
    uses: u64,
    errors: u64,
    /// The sum of the squares of each use's errors.
    squares: u128,
}

impl Tally {
    pub(super) fn new(users: usize) -> Self {
        Self { users, uses: 0, errors: 0, squares: 0 }
    }

    /// A channel use, with so many of its users' symbols wrong.
    pub(super) fn add(&mut self, errors: u64) {
        self.uses += 1;
        self.errors += errors;
        self.squares += u128::from(errors).pow(2);
    }

    pub(super) fn errors(&self) -> u64 {
        self.errors
    }

    fn symbols(&self) -> f64 {
        self.uses as f64 * self.users as f64
    }

    /// Errors for each symbol.
    pub(super) fn rate(&self) -> f64 {
        if self.symbols() == 0.0 { 0.0 } else { self.errors as f64 / self.symbols() }
    }

    /// How many independent symbols are as uncertain as the counted ones: at most as many.
    fn independent(&self) -> f64 {
        let (uses, users, rate) = (self.uses as f64, self.users as f64, self.rate());
        let spread = self.squares as f64 / uses - (self.errors as f64 / uses).powi(2);
        let if_independent = users * rate * (1.0 - rate);
        if if_independent > 0.0 {
            self.symbols() / (spread / if_independent).max(1.0)
        } else {
            self.symbols()
        }
    }

    /// The lowest and the highest rate that fit.
    pub(super) fn interval(&self) -> (f64, f64) {
        if self.symbols() == 0.0 {
            return (0.0, 1.0);
        }
        let (n, rate, z) = (self.independent(), self.rate(), DEVIATE);
        let scale = 1.0 + z * z / n;
        let middle = (rate + z * z / (2.0 * n)) / scale;
        let half = z / scale * (rate * (1.0 - rate) / n + (z / (2.0 * n)).powi(2)).sqrt();
        ((middle - half).max(0.0), (middle + half).min(1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(users: usize, uses: &[u64]) -> Tally {
        let mut tally = Tally::new(users);
        uses.iter().for_each(|errors| tally.add(*errors));
        tally
    }

    #[test]
    fn no_errors_still_leave_room_for_some() {
        let (low, high) = tally(1, &[0; 1000]).interval();
        assert_eq!(low, 0.0);
        // z² / (n + z²)
        assert!((high - 6.6349 / 1006.6349).abs() < 1e-6, "{high}");
        assert_eq!(tally(4, &[]).interval(), (0.0, 1.0));
    }

    #[test]
    fn many_errors_are_a_normal_interval() {
        let uses: Vec<u64> = (0..100_000).map(|it| u64::from(it % 10 == 0)).collect();
        let (low, high) = tally(1, &uses).interval();
        let half = DEVIATE * (0.1f64 * 0.9 / 100_000.0).sqrt();
        assert!((high - low - 2.0 * half).abs() < 1e-6, "{low} {high}");
        assert!(low < 0.1 && 0.1 < high);
    }

    #[test]
    fn errors_in_bunches_widen_the_interval() {
        let spread: Vec<u64> = (0..1000).map(|it| u64::from(it % 2 == 0)).collect();
        let bunched: Vec<u64> = (0..1000).map(|it| 4 * u64::from(it % 8 == 0)).collect();
        let width = |uses: &[u64]| {
            let (low, high) = tally(4, uses).interval();
            high - low
        };
        // Four users that err together are one.
        let ratio = width(&bunched) / width(&spread);
        assert!((ratio - 2.0).abs() < 0.05, "{ratio}");
    }
}
