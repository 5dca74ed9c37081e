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
use tonnage_device::cuda::{Arguments, Extent};
use tonnage_memory::current_stream;

use crate::device::Device;
use crate::dtype::{DType, Stored, dispatch};
use crate::error::Call;
use crate::exec::cuda::{Launch, Program, stored};
use crate::exec::{Args, Kernel, Operand, Operands, Output, Plan, for_each_chunk, vectorised};
use crate::math;
use crate::tensor::Tensor;

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

    /// Moves it by so many calls, and says where it stood.
    pub(crate) fn skip(&self, calls: u64) -> GeneratorState {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let drawn = *state;
        state.offset = state.offset.wrapping_add(calls);
        drawn
    }
}

/// Which numbers a call gets.
#[derive(Clone, Debug)]
pub(crate) struct Draw {
    pub(crate) state: GeneratorState,
    /// In a graph, what the state is added to: where the generator stands when a replay begins, seed and offset.
    pub(crate) from: Option<Tensor>,
}

impl Draw {
    /// Numbers for one call on a device: no other call gets the same, unless it runs again.
    #[track_caller]
    pub(crate) fn new(call: Call, device: &Device) -> Result<Self, crate::error::Error> {
        let (generator, stream) = (device.generator(), current_stream(device));
        tape::drawn(generator.id, || match device.captures().has(stream) {
            true => device.captures().draw(call, device, stream),
            false => Ok(Self { state: generator.skip(1), from: None }),
        })
    }

    /// What a kernel that draws reads.
    pub(crate) fn inputs(&self) -> Vec<&Tensor> {
        self.from.iter().collect()
    }
}

impl GeneratorState {
    /// The draw itself, of a kernel that was given [`Draw::inputs`].
    pub(crate) fn found(self, args: &Args<'_>) -> Self {
        if args.inputs() == 0 {
            return self;
        }
        let from = args.input(0).to_slice::<i64>();
        Self { seed: from[0] as u64, offset: (from[1] as u64).wrapping_add(self.offset) }
    }

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
        let draw = self.draw.found(args);
        let dtype = args.output_dtype(0);
        match self.distribution {
            Distribution::Integers { low, high } => dispatch!(dtype, T => {
                let is_truth = dtype == DType::Bool;
                let range = high.wrapping_sub(low) as u64;
                fill::<T, 2>(args.take(0), draw, |[a, b, c, d]| {
                    [(a, b), (c, d)].map(|(high, low_bits)| {
                        let bits = u64::from(high) << 32 | u64::from(low_bits);
                        // A product's upper half is even enough: the error is range / 2⁶⁴.
                        let step = ((u128::from(bits) * u128::from(range)) >> 64) as i64;
                        let number = low.wrapping_add(step);
                        T::from_i64(if is_truth { i64::from(number != 0) } else { number })
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

    fn cuda(&self, on: Operands<'_>) -> Plan {
        let dtype = on.outputs[0].dtype;
        let (kind, compute, range) = match (self.distribution, dtype) {
            (Distribution::Uniform, DType::F64) => ("uniform", "double", (0, 0)),
            (Distribution::Uniform, _) => ("uniform", "float", (0, 0)),
            (Distribution::Normal, DType::F64) => ("normal", "double", (0, 0)),
            (Distribution::Normal, DType::Complex64) => ("normal", "complex", (0, 0)),
            (Distribution::Normal, _) => ("normal", "float", (0, 0)),
            (Distribution::Integers { low, high }, _) => {
                ("integers", "i64", (low, high.wrapping_sub(low)))
            }
        };
        drawn(self.draw, (kind, compute), range, on)
    }
}

/// Truths: whether the 24 bits of an element's number are below a bound.
pub(crate) fn keep(draw: GeneratorState, below: i64, on: Operands<'_>) -> Plan {
    drawn(draw, ("keep", "i64"), (0, below), on)
}

/// Threads of a block.
const THREADS: u32 = 256;

/// The function of `random.cu` of this name fills the output, computing in this type; `range` is where integers begin,
/// and how many there are.
fn drawn(
    draw: GeneratorState,
    (kind, compute): (&'static str, &'static str),
    range: (i64, i64),
    on: Operands<'_>,
) -> Plan {
    let output = &on.outputs[0];
    let (layout, numel) = (&output.layout, output.layout.numel());
    if numel == 0 {
        return Plan::nothing();
    }
    // As the host groups them.
    let group = if kind == "keep" || compute == "float" { 4 } else { 2 };
    let in_order = layout.is_contiguous();
    let axes = if in_order { 0 } else { layout.shape().len() };
    let aligned = output.first().is_multiple_of((group * output.dtype.size()) as u64);
    let program = Program::new(
        "random",
        include_str!("random.cu"),
        &[
            ("T", &stored(output.dtype)),
            ("C", &compute),
            ("N", &group),
            ("KIND", &kind),
            ("AXES", &axes),
            ("ALIGNED", &u8::from(aligned)),
        ],
    );
    let mut places = Vec::with_capacity(16 * (axes + 1));
    for words in [&layout.shape()[..axes], &layout.strides()[..axes]] {
        words.iter().for_each(|it| places.extend((*it as u64).to_ne_bytes()));
        places.extend([0; 8]);
    }
    let shape = [draw.seed, draw.offset, range.0 as u64, range.1 as u64];
    let shape: Vec<u8> = shape.iter().flat_map(|it| it.to_ne_bytes()).collect();
    let from = on.inputs.first().map_or(0, Operand::first);
    let mut arguments = Arguments::new().with(output.first()).with(numel as u64).with(from);
    arguments.push_bytes(&shape);
    arguments.push_bytes(&places);
    let threads = numel.div_ceil(group) as u64;
    let blocks = threads.div_ceil(u64::from(THREADS)).min(i32::MAX as u64) as u32;
    Launch::new(program.exact(), Extent::line(blocks, THREADS), arguments).into()
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

#[cfg(test)]
mod tests {
    use crate::testing::conformance;
    use crate::{DType, Tensor, nn};

    conformance!(random_numbers_of_every_type, |device| {
        let mut results = Vec::new();
        for dtype in [DType::F32, DType::F64, DType::Bf16, DType::F16] {
            results.push(Tensor::rand([101, 31], (device, dtype))?);
            results.push(Tensor::randn([101, 33], (device, dtype))?);
            let view = Tensor::zeros([20, 30, 7], (device, dtype))?;
            nn::init::normal_(&view.transpose(0, 2)?.narrow(1, 1, 28)?, 0.0, 1.0)?;
            nn::init::uniform_(&view.view([4200])?.narrow(0, 1, 9)?, -1.0, 1.0)?;
            results.push(view);
        }
        results.push(Tensor::randn([77], (device, DType::Complex64))?);
        for dtype in DType::ALL {
            results.push(Tensor::randint(-3, 120, [51, 3], (device, dtype))?);
        }
        results.push(Tensor::randint(i64::MIN, i64::MAX, [51], device)?);
        Ok(results)
    });
}
