//! The symbol error rate that theory says: QPSK, channels of i.i.d. Rayleigh fading, MMSE detection.
//!
//! In:  antennas, users, and the variance of the noise, `N₀`, where a user's power is 1.
//! Out: the rate.
//!
//! **The SINR after detection.** One user's symbol stands out of the noise and the other users' by
//! `γ = hᴴ·(Σ gᵢ·gᵢᴴ + N₀·I)⁻¹·h`, with `h` its channel and `gᵢ` those of the others. For Rayleigh channels of
//! equal power H. Gao, P. J. Smith and M. V. Clark ("Theoretical reliability of MMSE linear diversity combining in
//! Rayleigh-fading additive interference channels", IEEE Transactions on Communications 46, 1998) have its
//! distribution in closed form; their sums are those of a Poisson and a binomial variable:
//!
//! ```text
//! P(γ ≤ z) = P(X + B ≥ antennas),   X ~ Poisson(N₀·z),   B ~ Binomial(users − 1, z / (1 + z))
//! ```
//!
//! **The rate.** A QPSK symbol with SINR γ in Gaussian noise is wrong with `2·Q(√γ) − Q(√γ)²`. Its mean over γ,
//! by parts and with `z = t²`, is
//!
//! ```text
//! ∫ 2·Φ(t)·φ(t) · P(γ ≤ t²) dt,   t from 0 to ∞
//! ```
//!
//! What other users leave is not Gaussian, only nearly so. Where antennas are twice as many as users or more
//! that changes the rate by less than a hundredth of it, since the detector removes what it can tell from
//! noise; with as many users as antennas by about a hundredth (both tested), with more users by more.

/// Where the integral begins and ends, as logarithms of t. Below, there is less than 10⁻⁸ of it; above, `φ` is
/// zero in 64 bits.
const RANGE: (f64, f64) = (-18.5, 3.67);

/// Into how many pieces it is cut. With half as many, nine digits stay the same (tested).
const PIECES: usize = 2000;

/// The rate of symbols that are detected wrongly.
pub(super) fn symbol_error_rate(antennas: usize, users: usize, noise: f64) -> f64 {
    integrate(antennas, users, noise, PIECES)
}

/// Sums over pieces that grow with t, so that every strength of noise has enough where the SINR lies; the
/// sum of a smooth function that vanishes at both ends is as good as its integral.
fn integrate(antennas: usize, users: usize, noise: f64, pieces: usize) -> f64 {
    let sinr = Sinr::new(antennas, users, noise);
    let width = (RANGE.1 - RANGE.0) / pieces as f64;
    let mut t = RANGE.0.exp();
    let mut below = 0.5 + t * density(0.0);
    let mut sum = 0.0;
    for piece in 1..=pieces {
        sum += 2.0 * below * density(t) * sinr.at_most(t * t) * t * width;
        let next = (RANGE.0 + piece as f64 * width).exp();
        // Φ, by Simpson's rule.
        let densities = density(t) + 4.0 * density(0.5 * (t + next)) + density(next);
        below += (next - t) / 6.0 * densities;
        t = next;
    }
    sum
}

/// φ: the normal density.
fn density(t: f64) -> f64 {
    (-0.5 * t * t).exp() / std::f64::consts::TAU.sqrt()
}

/// The distribution of the SINR after detection.
struct Sinr {
    antennas: usize,
    others: usize,
    noise: f64,
    /// `ln n!`, as far as it is needed.
    ln_factorials: Vec<f64>,
}

impl Sinr {
    fn new(antennas: usize, users: usize, noise: f64) -> Self {
        let others = users.saturating_sub(1);
        let logarithms = (1..=antennas.max(others)).scan(0.0, |sum, n| {
            *sum += (n as f64).ln();
            Some(*sum)
        });
        let ln_factorials = std::iter::once(0.0).chain(logarithms).collect();
        Self { antennas, others, noise, ln_factorials }
    }

    /// `P(γ ≤ z)`, as a sum of positive terms: small ones keep their digits.
    fn at_most(&self, z: f64) -> f64 {
        if z <= 0.0 {
            return 0.0;
        }
        let mean = self.noise * z;
        let mut at_least = self.poisson_at_least(mean);
        let mut sum = 0.0;
        for hits in 0..=self.others {
            sum += self.binomial(hits, z) * at_least;
            // The Poisson variable may be one less for each that the binomial one is more.
            match self.antennas.checked_sub(hits + 1) {
                Some(count) => at_least += self.poisson(count, mean),
                None => at_least = 1.0,
            }
        }
        sum.min(1.0)
    }

    /// `P(X = count)`
    fn poisson(&self, count: usize, mean: f64) -> f64 {
        (count as f64 * mean.ln() - mean - self.ln_factorials[count]).exp()
    }

    /// `P(X ≥ antennas)`, from the side that has fewer terms and loses no digits.
    fn poisson_at_least(&self, mean: f64) -> f64 {
        if mean > self.antennas as f64 {
            let fewer: f64 = (0..self.antennas).map(|count| self.poisson(count, mean)).sum();
            return (1.0 - fewer).max(0.0);
        }
        let mut term = self.poisson(self.antennas, mean);
        let (mut sum, mut count) = (0.0, self.antennas);
        while term > sum * f64::EPSILON {
            sum += term;
            count += 1;
            term *= mean / count as f64;
        }
        sum
    }

    /// `P(B = hits)`
    fn binomial(&self, hits: usize, z: f64) -> f64 {
        let ln = &self.ln_factorials;
        let ways = ln[self.others] - ln[hits] - ln[self.others - hits];
        (ways + hits as f64 * z.ln() - self.others as f64 * z.ln_1p()).exp()
    }
}

#[cfg(test)]
mod tests {
    use super::super::channel::{Channel, Random};
    use super::*;

    /// `2·Q(√γ) − Q(√γ)²` in Craig's form, which needs no Q:
    /// the mean of `exp(−γ / (2·sin²θ))` over angles up to 3π/4, times 3/4.
    fn given(sinr: f64) -> f64 {
        let pieces = 400;
        let at = |place: usize| {
            let angle = (place as f64 + 0.5) / pieces as f64 * 0.75 * std::f64::consts::PI;
            (-sinr / (2.0 * angle.sin().powi(2))).exp()
        };
        0.75 * (0..pieces).map(at).sum::<f64>() / pieces as f64
    }

    #[test]
    fn one_antenna_and_one_user_have_the_textbook_s_rate() {
        // Rayleigh fading, QPSK: with µ = √(Γ / (2 + Γ)), the two bits' errors and their overlap.
        for snr in [0.1, 1.0, 10.0, 1000.0f64] {
            let mu = (snr / (2.0 + snr)).sqrt();
            let overlap = 0.25 - mu / std::f64::consts::PI * (1.0 / mu).atan();
            let expected = 1.0 - mu - overlap;
            let rate = symbol_error_rate(1, 1, 1.0 / snr);
            assert!((rate / expected - 1.0).abs() < 1e-9, "{snr}: {rate} {expected}");
        }
    }

    #[test]
    fn the_distribution_is_that_of_channels_drawn_and_solved_otherwise() {
        let mut random = Random::new(1);
        for (antennas, users, noise) in [(2, 2, 0.5), (8, 2, 2.0), (4, 4, 0.1), (3, 5, 0.2)] {
            let sinr = Sinr::new(antennas, users, noise);
            let draws = 20_000;
            let mut seen: Vec<f64> = (0..draws)
                .map(|_| Channel::draw(antennas, users, noise, &mut random).sinr(0))
                .collect();
            seen.sort_by(f64::total_cmp);
            // Kolmogorov's and Smirnov's distance; more than 1.95 / √n has a chance of 0.1 %.
            let far = seen.iter().enumerate().map(|(place, z)| {
                let share = (place as f64 + 0.5) / f64::from(draws);
                (sinr.at_most(*z) - share).abs()
            });
            let far = far.fold(0.0, f64::max) * f64::from(draws).sqrt();
            assert!(far < 1.95, "{antennas} antennas, {users} users: {far}");
        }
    }

    #[test]
    fn the_rate_is_the_mean_over_channels_drawn_and_solved_otherwise() {
        let mut random = Random::new(2);
        for (antennas, users, noise) in [(8, 2, 2.0), (16, 4, 4.0), (4, 4, 0.3)] {
            let draws = 5_000;
            let rates: Vec<f64> = (0..draws)
                .map(|_| given(Channel::draw(antennas, users, noise, &mut random).sinr(0)))
                .collect();
            let mean = rates.iter().sum::<f64>() / f64::from(draws);
            let spread = rates.iter().map(|it| (it - mean).powi(2)).sum::<f64>();
            let error = spread.sqrt() / f64::from(draws);
            let rate = symbol_error_rate(antennas, users, noise);
            assert!((rate - mean).abs() < 3.3 * error, "{antennas}x{users}: {rate} {mean} {error}");
        }
    }

    #[test]
    fn what_other_users_leave_may_be_taken_for_gaussian() {
        let mut random = Random::new(3);
        for (antennas, users, noise, bound) in
            [(8, 2, 2.0, 1e-3), (16, 4, 4.0, 1e-3), (8, 4, 0.5, 1e-2), (4, 4, 0.1, 2e-2)]
        {
            // On the same channels, so that their spread does not blur the difference.
            let (mut gaussian, mut exact) = (0.0, 0.0);
            for _ in 0..500 {
                let channel = Channel::draw(antennas, users, noise, &mut random);
                gaussian += given(channel.sinr(0));
                exact += channel.exact_rate();
            }
            let off = gaussian / exact - 1.0;
            assert!(off.abs() < bound, "{antennas}x{users}, noise {noise}: {off}");
        }
    }

    #[test]
    fn finer_pieces_change_nothing_and_small_rates_keep_their_digits() {
        for (antennas, users, noise) in [(64, 16, 8.0), (64, 16, 1e-3), (8, 2, 2.0), (1, 8, 0.1)] {
            let [coarse, fine] =
                [PIECES / 2, PIECES].map(|pieces| integrate(antennas, users, noise, pieces));
            assert!((coarse / fine - 1.0).abs() < 1e-9, "{antennas}x{users}: {coarse} {fine}");
            assert!(fine > 0.0 && fine < 0.75);
        }
    }

    #[test]
    fn more_antennas_help_and_more_users_hurt() {
        for (antennas, users) in [(4, 2), (64, 16), (16, 32)] {
            let rate = symbol_error_rate(antennas, users, 2.0);
            assert!(symbol_error_rate(antennas + 1, users, 2.0) < rate);
            assert!(symbol_error_rate(antennas, users + 1, 2.0) > rate);
            assert!(symbol_error_rate(antennas, users, 2.1) > rate);
        }
        // In noise without end three of four guesses are wrong.
        assert!((symbol_error_rate(4, 2, 1e10) - 0.75).abs() < 1e-4);
    }
}
