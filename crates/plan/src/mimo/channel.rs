//! Channels drawn and solved in plain 64-bit arithmetic with random numbers of another kind: what theory
//! and simulation are tested against. Used by tests only.

/// A complex number.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Complex(f64, f64);

impl Complex {
    fn times(self, other: Self) -> Self {
        Self(self.0 * other.0 - self.1 * other.1, self.0 * other.1 + self.1 * other.0)
    }

    fn minus(self, other: Self) -> Self {
        Self(self.0 - other.0, self.1 - other.1)
    }

    fn plus(self, other: Self) -> Self {
        Self(self.0 + other.0, self.1 + other.1)
    }

    fn conjugate(self) -> Self {
        Self(self.0, -self.1)
    }

    fn power(self) -> f64 {
        self.0 * self.0 + self.1 * self.1
    }

    fn inverse(self) -> Self {
        Self(self.0 / self.power(), -self.1 / self.power())
    }
}

/// SplitMix64.
#[derive(Debug)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// 0 < x ≤ 1
    fn unit(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((bits ^ bits >> 31) >> 11) as f64 / (1u64 << 53) as f64 + f64::EPSILON / 2.0
    }

    /// Complex normal, of variance 1.
    fn normal(&mut self) -> Complex {
        let (radius, turn) = ((-self.unit().ln()).sqrt(), std::f64::consts::TAU * self.unit());
        Complex(radius * turn.cos(), radius * turn.sin())
    }
}

/// What the MMSE detector makes of a channel: `x = G·s` and noise.
#[derive(Debug)]
pub(super) struct Channel {
    users: usize,
    /// `G`
    gains: Vec<Complex>,
    /// The variance of each user's noise.
    noise: Vec<f64>,
}

impl Channel {
    /// A Rayleigh channel and its detector.
    pub(super) fn draw(antennas: usize, users: usize, noise: f64, random: &mut Random) -> Self {
        let h: Vec<Complex> = (0..antennas * users).map(|_| random.normal()).collect();
        let cells = || (0..users).flat_map(|row| (0..users).map(move |column| (row, column)));
        let product = |(row, column): (usize, usize)| {
            (0..antennas).fold(Complex::default(), |sum, antenna| {
                let (a, b) = (h[antenna * users + row], h[antenna * users + column]);
                sum.plus(a.conjugate().times(b))
            })
        };
        let gram: Vec<Complex> = cells().map(product).collect();
        let mut a = gram.clone();
        (0..users).for_each(|it| a[it * users + it].0 += noise);
        let inverse = inverse(a, users);
        // G = A⁻¹·HᴴH; the noise of user k is N₀·(G·A⁻¹)ₖₖ.
        let gains = multiply(&inverse, &gram, users);
        let through = multiply(&gains, &inverse, users);
        let noise = (0..users).map(|it| noise * through[it * users + it].0).collect();
        Self { users, gains, noise }
    }

    /// A user's power over that of the noise and of what the others leave.
    pub(super) fn sinr(&self, user: usize) -> f64 {
        let row = &self.gains[user * self.users..][..self.users];
        let all: f64 = row.iter().map(|it| it.power()).sum();
        row[user].power() / (all - row[user].power() + self.noise[user])
    }

    /// The chance that the first user's symbol is detected wrongly: the mean over every combination of
    /// the others' symbols.
    pub(super) fn exact_rate(&self) -> f64 {
        let half = std::f64::consts::FRAC_1_SQRT_2;
        let point = |index: usize| {
            let sign = |bit: usize| if index >> bit & 1 == 0 { half } else { -half };
            Complex(sign(0), sign(1))
        };
        // In each of two directions the noise has half its variance.
        let deviation = (self.noise[0] / 2.0).sqrt();
        let combinations = 1usize << (2 * (self.users - 1));
        let wrong = (0..combinations).map(|others| {
            // All points are alike; the first is sent.
            let mut x = self.gains[0].times(point(0));
            for other in 1..self.users {
                let symbol = point(others >> (2 * (other - 1)) & 3);
                x = x.plus(self.gains[other].times(symbol));
            }
            let [a, b] = [x.0, x.1].map(|it| tail(it / deviation));
            a + b - a * b
        });
        wrong.sum::<f64>() / combinations as f64
    }
}

/// `P(N > x)` for a normal variable: the integral of its density, by Simpson's rule over eight
/// deviations on the nearer side.
fn tail(x: f64) -> f64 {
    if x < 0.0 {
        return 1.0 - tail(-x);
    }
    let (pieces, length) = (48, 8.0);
    let width = length / f64::from(pieces);
    let density = |t: f64| (-0.5 * t * t).exp() / std::f64::consts::TAU.sqrt();
    let piece = |place: i32| {
        let start = x + f64::from(place) * width;
        width / 6.0 * (density(start) + 4.0 * density(start + width / 2.0) + density(start + width))
    };
    (0..pieces).map(piece).sum()
}

fn multiply(a: &[Complex], b: &[Complex], size: usize) -> Vec<Complex> {
    let cells = (0..size).flat_map(|row| (0..size).map(move |column| (row, column)));
    let product = |(row, column): (usize, usize)| {
        (0..size).fold(Complex::default(), |sum, it| {
            sum.plus(a[row * size + it].times(b[it * size + column]))
        })
    };
    cells.map(product).collect()
}

/// By Gauss and Jordan; pivots of positive definite matrices need no exchange.
fn inverse(mut a: Vec<Complex>, size: usize) -> Vec<Complex> {
    let mut inverse = vec![Complex::default(); size * size];
    (0..size).for_each(|it| inverse[it * size + it].0 = 1.0);
    for pivot in 0..size {
        let scale = a[pivot * size + pivot].inverse();
        for matrix in [&mut a, &mut inverse] {
            let row = &mut matrix[pivot * size..][..size];
            row.iter_mut().for_each(|it| *it = it.times(scale));
        }
        for row in (0..size).filter(|row| *row != pivot) {
            let factor = a[row * size + pivot];
            for matrix in [&mut a, &mut inverse] {
                for column in 0..size {
                    let off = factor.times(matrix[pivot * size + column]);
                    matrix[row * size + column] = matrix[row * size + column].minus(off);
                }
            }
        }
    }
    inverse
}
