//! Random numbers: a generator per device, and the kernel that fills tensors from it.
//!
//! In:  a seed.
//! Out: for each call that wants numbers an offset of its own; number i of that call depends on seed,
//!      offset and i alone. So the same seed gives the same numbers on every device, with any number
//!      of threads, and again when a state is restored for recomputation.

mod philox;

mod tape;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

pub(crate) use philox::philox;
pub(crate) use tape::Tape;

use crate::dtype::{DType, Stored, dispatch};
use crate::exec::{Args, Kernel, Operands, Output, Plan, for_each_chunk, vectorised};
use crate::math;

/// Where a generator stands: what recomputation saves and restores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GeneratorState {
    /// The seed.
    pub seed: u64,
    /// How many calls have drawn from it.
    pub offset: u64,
}

/// The seed of a device to which none was given: PyTorch's default too.
const DEFAULT_SEED: u64 = 67_280_421_310_721;

/// A device's source of random numbers.
#[derive(Debug)]
pub struct Generator {
    /// Tells it from all others of the process.
    id: u64,
    state: Mutex<GeneratorState>,
}

impl Default for Generator {
    fn default() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        Self { id, state: Mutex::new(GeneratorState { seed: DEFAULT_SEED, offset: 0 }) }
    }
}

impl Generator {
    /// Begins again from `seed`; see [`set_state`](Self::set_state).
    pub fn manual_seed(&self, seed: u64) {
        self.set_state(GeneratorState { seed, offset: 0 });
    }

    /// Where it stands.
    #[must_use]
    pub fn state(&self) -> GeneratorState {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts it where it stood. Not in the second run of a [checkpoint](crate::checkpoint), whose numbers
    /// are those of the first, seeds included.
    pub fn set_state(&self, state: GeneratorState) {
        if tape::replays() {
            return;
        }
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) = state;
    }

    /// Numbers for one call: no other call gets the same, unless it runs again.
    pub(crate) fn draw(&self) -> GeneratorState {
        tape::drawn(self.id, || {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            let drawn = *state;
            state.offset = state.offset.wrapping_add(1);
            drawn
        })
    }
}

impl GeneratorState {
    /// The `place`-th four numbers of this draw.
    #[inline(always)]
    pub(crate) fn four(self, place: usize) -> [u32; 4] {
        philox(self.seed, place as u128 | u128::from(self.offset) << 64)
    }
}

/// 0 ≤ x < 1, in the 24 bits that an `f32` has.
#[inline(always)]
pub(crate) fn unit_f32(bits: u32) -> f32 {
    (bits >> 8) as f32 / (1u32 << 24) as f32
}

/// 0 ≤ x < 1, in the 53 bits that an `f64` has.
#[inline]
fn unit_f64(high: u32, low: u32) -> f64 {
    let bits = u64::from(high) << 32 | u64::from(low);
    (bits >> 11) as f64 / (1u64 << 53) as f64
}

/// Two normal numbers from two uniform ones, by Box and Muller. `1 - u` is never zero.
#[inline(always)]
fn normal_f32(a: u32, b: u32) -> [f32; 2] {
    let radius = (-2.0 * math::ln_normal(1.0 - unit_f32(a))).sqrt();
    let (sin, cos) = math::sin_cos_turn(unit_f32(b));
    [radius * cos, radius * sin]
}

#[inline]
fn normal_f64(a: f64, b: f64) -> [f64; 2] {
    let radius = (-2.0 * (1.0 - a).ln()).sqrt();
    let (sin, cos) = (std::f64::consts::TAU * b).sin_cos();
    [radius * cos, radius * sin]
}

/// How numbers are spread.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Distribution {
    /// Evenly over 0 ≤ x < 1.
    Uniform,
    /// Mean 0, variance 1. Complex numbers have half of it in each part.
    Normal,
    /// Evenly over the integers `low..high`.
    Integers { low: i64, high: i64 },
}

/// Fills a tensor with random numbers.
pub(crate) struct Random {
    pub(crate) draw: GeneratorState,
    pub(crate) distribution: Distribution,
}

impl Kernel for Random {
    fn host(&self, args: &mut Args<'_>) -> Result<(), String> {
        let draw = self.draw;
        let dtype = args.output_dtype(0);
        match self.distribution {
            Distribution::Integers { low, high } => dispatch!(dtype, T => {
                let range = high.wrapping_sub(low) as u64;
                fill::<T, 2>(args.take(0), draw, |[a, b, c, d]| {
                    [(a, b), (c, d)].map(|(high, low_bits)| {
                        let bits = u64::from(high) << 32 | u64::from(low_bits);
                        // A product's upper half is even enough: the error is range / 2⁶⁴.
                        let step = ((u128::from(bits) * u128::from(range)) >> 64) as i64;
                        T::from_i64(low.wrapping_add(step))
                    })
                });
            }),
            Distribution::Uniform if dtype == DType::F64 => {
                fill::<f64, 2>(args.take(0), draw, |[a, b, c, d]| [unit_f64(a, b), unit_f64(c, d)]);
            }
            Distribution::Normal if dtype == DType::F64 => {
                fill::<f64, 2>(args.take(0), draw, |[a, b, c, d]| {
                    normal_f64(unit_f64(a, b), unit_f64(c, d))
                });
            }
            Distribution::Normal if dtype == DType::F32 => {
                fill_normal(args.take(0), draw);
            }
            Distribution::Normal if dtype == DType::Complex64 => {
                use crate::number::Complex64;
                let half = std::f32::consts::FRAC_1_SQRT_2;
                fill::<Complex64, 2>(args.take(0), draw, |[a, b, c, d]| {
                    [normal_f32(a, b), normal_f32(c, d)]
                        .map(|[re, im]| Complex64::new(re * half, im * half))
                });
            }
            Distribution::Uniform => dispatch!(dtype, T => {
                fill::<T, 4>(args.take(0), draw, |bits| {
                    bits.map(|bits| T::from_f64(f64::from(unit_f32(bits))))
                });
            }),
            Distribution::Normal => dispatch!(dtype, T => {
                fill::<T, 4>(args.take(0), draw, |[a, b, c, d]| {
                    let ([a, b], [c, d]) = (normal_f32(a, b), normal_f32(c, d));
                    [a, b, c, d].map(|it| T::from_f64(f64::from(it)))
                });
            }),
        }
        Ok(())
    }

    fn cuda(&self, _: Operands<'_>) -> Plan {
        Plan::Unwritten
    }
}

/// Groups of four that are computed side by side, one step after the other, in vectors.
const LANES: usize = 64;

/// Normal numbers as `f32`: the same as by [`fill`], several times faster.
fn fill_normal(output: Output<'_, f32>, draw: GeneratorState) {
    for_each_chunk(output, &|indices, chunk| {
        vectorised(
            #[inline(always)]
            || {
                for (block, places) in chunk.chunks_mut(4 * LANES).enumerate() {
                    let first = indices.start / 4 + block * LANES;
                    let mut bits = [[0; 4]; LANES];
                    for (lane, bits) in bits.iter_mut().enumerate() {
                        *bits = draw.four(first + lane);
                    }
                    let mut numbers = [[0.0; 4]; LANES];
                    for (numbers, [a, b, c, d]) in numbers.iter_mut().zip(bits) {
                        let ([a, b], [c, d]) = (normal_f32(a, b), normal_f32(c, d));
                        *numbers = [a, b, c, d];
                    }
                    places.copy_from_slice(&numbers.as_flattened()[..places.len()]);
                }
            },
        );
    });
}

/// Fills in groups of `N`, which divides a chunk, so that groups never cross threads.
fn fill<T: Stored, const N: usize>(
    output: Output<'_, T>,
    draw: GeneratorState,
    numbers: impl Fn([u32; 4]) -> [T; N] + Sync,
) {
    for_each_chunk(output, &|indices, chunk| {
        for (group, places) in chunk.chunks_mut(N).enumerate() {
            let from = numbers(draw.four(indices.start / N + group));
            places.copy_from_slice(&from[..places.len()]);
        }
    });
}
