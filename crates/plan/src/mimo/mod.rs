//! The uplink of a massive-MIMO cell: users send symbols at once, a base station with many antennas
//! tells them apart.
//!
//! In:  how many antennas, users and subcarriers there are, and how loud the noise is.
//! Out: how many symbols were detected wrongly, beside what theory says.
//!
//! On each subcarrier `y = H·s + n`: channels `H` are i.i.d. Rayleigh (complex normal, variance 1), symbols `s`
//! are QPSK of power 1, noise `n` has variance `N₀ = 1/SNR`, so that the SNR is that of one user at one
//! antenna. The detector knows `H` and `N₀` and solves `(Hᴴ·H + N₀·I)·x = Hᴴ·y`, which has the least mean
//! square error; the point nearest to `x` is taken for the symbol. `x` is `s` scaled by less than one,
//! which does not matter to QPSK: its decisions are quadrants.
//!
//! Everything on the device is complex64 and drawn anew in each step. On `dry` the requests are the same
//! and there are no figures.

#[cfg(test)]
mod channel;

mod interval;

mod theory;

use tonnage_tensor::{Complex64, DType, Device, Error, Result, Tensor};

use interval::Tally;

/// More antennas or users than any simulation has, and few enough that theory takes a moment.
const MOST: usize = 8192;

/// Beyond this many decibels, either way, nothing changes any more in 32 bits.
const LOUDEST: f64 = 100.0;

/// What is simulated.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct MimoOptions {
    /// Antennas of the base station.
    pub antennas: usize,
    /// Users, with one antenna each.
    pub users: usize,
    /// Subcarriers, each with a channel of its own.
    pub subcarriers: usize,
    /// Symbols that each user sends on each subcarrier in a step.
    pub batch: usize,
    /// How often all that is done.
    pub steps: usize,
    /// Power of one user at one antenna over that of the noise, in decibels.
    pub snr_db: f64,
    /// Where the random numbers begin.
    pub seed: u64,
}

/// Document 003's cell: 64 antennas, 16 users, 1,000 subcarriers.
impl Default for MimoOptions {
    fn default() -> Self {
        Self {
            antennas: 64,
            users: 16,
            subcarriers: 1000,
            batch: 1,
            steps: 10,
            // About one symbol of a hundred is wrong: enough to count in a few steps.
            snr_db: -9.0,
            seed: 0,
        }
    }
}

impl MimoOptions {
    /// Refuses what cannot be simulated, in a sentence that says what can.
    pub(crate) fn check(&self) -> Result<(), String> {
        for (count, what) in [(self.antennas, "antennas"), (self.users, "users")] {
            if !(1..=MOST).contains(&count) {
                return Err(format!("{count} {what} cannot be simulated; say 1 to {MOST}"));
            }
        }
        for (count, what) in
            [(self.subcarriers, "subcarriers"), (self.batch, "batch"), (self.steps, "steps")]
        {
            if count == 0 {
                return Err(format!("{what}: there is nothing to simulate; say at least 1"));
            }
        }
        if !(-LOUDEST..=LOUDEST).contains(&self.snr_db) {
            let snr = self.snr_db;
            return Err(format!("an SNR of {snr} dB is not one; say {} to {LOUDEST}", -LOUDEST));
        }
        Ok(())
    }

    /// The variance of the noise.
    fn noise(&self) -> f64 {
        10f64.powf(-self.snr_db / 10.0)
    }

    /// Symbols of one step.
    fn symbols(&self) -> u64 {
        [self.batch, self.subcarriers, self.users]
            .iter()
            .fold(1, |product: u64, it| product.saturating_mul(*it as u64))
    }
}

/// How far the simulation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MimoStep {
    /// Steps done, from 1.
    pub step: usize,
    /// Symbols sent so far.
    pub symbols: u64,
    /// How many of them were detected wrongly; unknown on `dry`.
    pub errors: Option<u64>,
}

/// What came out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct MimoResult {
    /// Symbols sent.
    pub symbols: u64,
    /// What was counted; nothing on `dry`.
    pub measured: Option<Measured>,
    /// The symbol error rate that theory says.
    pub theory: f64,
}

/// Symbols that were detected wrongly.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Measured {
    /// How many.
    pub errors: u64,
    /// The symbol error rate: errors for each symbol.
    pub ser: f64,
    /// The lowest and highest rate that fit what was counted, with a confidence of 99 %.
    pub interval: (f64, f64),
}

/// Simulates, and tells how far it is after each step. Ends with the first error, its own or the caller's.
pub(crate) fn run<E: From<Error>>(
    device: &Device,
    options: &MimoOptions,
    each: &mut dyn FnMut(MimoStep) -> Result<(), E>,
) -> Result<MimoResult, E> {
    device.manual_seed(options.seed);
    let cell = Cell::new(device, options)?;
    let mut tally = Tally::new(options.users);
    let mut symbols = 0u64;
    for step in 1..=options.steps {
        let wrong = cell.step()?;
        // Without numbers there is nothing to count, and perhaps no memory for so many zeros.
        if device.computes() {
            wrong.to_vec::<i64>()?.iter().for_each(|errors| tally.add(errors.unsigned_abs()));
        }
        drop(wrong);
        symbols = symbols.saturating_add(options.symbols());
        let errors = device.computes().then(|| tally.errors());
        each(MimoStep { step, symbols, errors })?;
    }
    let theory = theory::symbol_error_rate(options.antennas, options.users, options.noise());
    let measured = device.computes().then(|| Measured {
        errors: tally.errors(),
        ser: tally.rate(),
        interval: tally.interval(),
    });
    Ok(MimoResult { symbols, measured, theory })
}

/// A cell, and what stays the same from step to step.
struct Cell<'a> {
    device: &'a Device,
    options: &'a MimoOptions,
    /// The four points of QPSK.
    points: Tensor,
    /// `N₀·I`
    ridge: Tensor,
}

impl<'a> Cell<'a> {
    fn new(device: &'a Device, options: &'a MimoOptions) -> Result<Self> {
        let half = std::f32::consts::FRAC_1_SQRT_2;
        let points = [(half, half), (-half, half), (-half, -half), (half, -half)]
            .map(|(re, im)| Complex64::new(re, im));
        let points = Tensor::from_slice(&points, [4], device)?;
        let diagonal =
            Tensor::arange(0, options.users as i64, 1, device)?.one_hot(options.users)?;
        let ridge = diagonal.to(DType::Complex64)?.mul(options.noise())?;
        Ok(Self { device, options, points, ridge })
    }

    /// Sends and detects: how many users' symbols were wrong, `[batch, subcarriers]`.
    fn step(&self) -> Result<Tensor> {
        let MimoOptions { antennas, users, subcarriers, batch, .. } = *self.options;
        let complex = (self.device, DType::Complex64);
        let channels = Tensor::randn([batch, subcarriers, antennas, users], complex)?;
        let sent = Tensor::randint(0, 4, [batch, subcarriers, users], self.device)?;
        let symbols = self.points.index_select(0, &sent.flatten(0, -1)?)?;
        let symbols = symbols.view([batch, subcarriers, users, 1])?;
        let received = channels.matmul(&symbols)?;
        let noise = Tensor::randn([batch, subcarriers, antennas, 1], complex)?;
        received.add_scaled_(&noise, self.options.noise().sqrt())?;
        drop((symbols, noise));
        let estimate = self.detect(&channels, &received)?;
        drop((channels, received));
        let nearest = estimate.sub(&self.points)?.abs()?.argmin(-1, false)?;
        nearest.ne(&sent)?.sum_dim(&[-1], false)
    }

    /// The estimate of the symbols with the least mean square error, `[batch, subcarriers, users, 1]`.
    fn detect(&self, channels: &Tensor, received: &Tensor) -> Result<Tensor> {
        let adjoint = channels.conj()?.transpose(-1, -2)?;
        let gram = adjoint.matmul(channels)?;
        gram.add_(&self.ridge)?;
        gram.solve_hermitian(&adjoint.matmul(received)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tonnage_tensor::testing::check_conformance;

    fn cell(antennas: usize, users: usize, snr_db: f64) -> MimoOptions {
        MimoOptions { antennas, users, snr_db, subcarriers: 500, batch: 4, ..Default::default() }
    }

    fn simulate(options: &MimoOptions) -> MimoResult {
        let device = Device::host("1 GiB").unwrap();
        run::<Error>(&device, options, &mut |_| Ok(())).unwrap()
    }

    #[test]
    fn the_symbol_error_rate_is_that_of_theory_within_its_confidence() {
        for (antennas, users) in [(8, 2), (16, 4), (24, 8)] {
            for (seed, snr_db) in [-9.0, -6.0, -3.0, 0.0].into_iter().enumerate() {
                let options = MimoOptions { seed: seed as u64, ..cell(antennas, users, snr_db) };
                let result = simulate(&options);
                let measured = result.measured.unwrap();
                let (low, high) = measured.interval;
                assert_eq!(result.symbols, 20_000 * users as u64);
                assert!(
                    (low..=high).contains(&result.theory),
                    "{antennas} antennas, {users} users, {snr_db} dB: {result:?}"
                );
            }
        }
    }

    #[test]
    fn document_003_s_cell_has_the_rate_of_theory() {
        let result = simulate(&MimoOptions::default());
        let measured = result.measured.unwrap();
        let (low, high) = measured.interval;
        assert!((low..=high).contains(&result.theory), "{result:?}");
        assert!((0.011..0.015).contains(&result.theory), "{result:?}");
        assert!(high - low < 0.002, "{result:?}");
    }

    #[test]
    fn host_and_dry_make_the_same_requests() {
        check_conformance(|device| {
            let options = MimoOptions { steps: 2, ..cell(16, 4, 0.0) };
            run::<Error>(device, &options, &mut |_| Ok(()))?;
            Ok(Vec::new())
        });
    }

    #[test]
    fn dry_counts_symbols_and_knows_no_errors() {
        let device = Device::dry("1 GiB").unwrap();
        let mut steps = Vec::new();
        let result = run::<Error>(&device, &MimoOptions::default(), &mut |step| {
            steps.push(step);
            Ok(())
        })
        .unwrap();
        assert_eq!(result.symbols, 160_000);
        assert_eq!(result.measured, None);
        assert_eq!(steps[9], MimoStep { step: 10, symbols: 160_000, errors: None });
        assert_eq!(steps.len(), 10);
    }

    #[test]
    fn channels_set_the_peak_and_a_batch_of_them_is_eight_megabytes() {
        let device = Device::dry("1 GiB").unwrap();
        run::<Error>(&device, &MimoOptions::default(), &mut |_| Ok(())).unwrap();
        let channels = 1000 * 64 * 16 * 8;
        let peak = device.memory().max_allocated();
        assert!(peak > channels && peak < 2 * channels, "{peak}");
        assert_eq!(device.memory().allocated(), 0);
    }

    #[test]
    fn the_same_seed_counts_the_same_errors() {
        let options = cell(8, 4, -3.0);
        assert_eq!(simulate(&options), simulate(&options));
        assert_ne!(simulate(&options), simulate(&MimoOptions { seed: 1, ..options }));
    }

    #[test]
    fn the_first_error_of_the_caller_ends_it() {
        let device = Device::dry("1 GiB").unwrap();
        let mut calls = 0;
        let result = run(&device, &MimoOptions::default(), &mut |_| {
            calls += 1;
            Err(Error::interrupt())
        });
        assert!(result.is_err());
        assert_eq!(calls, 1);
    }

    #[test]
    fn what_cannot_be_simulated_is_refused_with_what_can() {
        let good = MimoOptions::default();
        assert_eq!(good.check(), Ok(()));
        for (options, says) in [
            (MimoOptions { antennas: 0, ..good }, "say 1 to 8192"),
            (MimoOptions { users: 8193, ..good }, "8193 users"),
            (MimoOptions { subcarriers: 0, ..good }, "at least 1"),
            (MimoOptions { steps: 0, ..good }, "steps"),
            (MimoOptions { snr_db: f64::NAN, ..good }, "say -100 to 100"),
        ] {
            let error = options.check().unwrap_err();
            assert!(error.contains(says), "{error}");
        }
    }
}
