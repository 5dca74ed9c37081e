//! What tests of operations need: gradients against finite differences, `host` against `dry`.

use std::path::PathBuf;

use tonnage_cuda_libs::KernelSource;
use tonnage_engine::{Context, RecordOptions, StackDepth};
use tonnage_events::{Action, StreamId, TraceEntry};

use crate::autograd::no_grad;
use crate::device::Device;
use crate::dtype::DType;
use crate::error::{Call, Error, ErrorKind, Result};
use crate::tensor::Tensor;
use crate::workspace::MemoryProfile;

/// The step of finite differences, in `f64`: the cube root of its precision, where the error of
/// rounding and that of the step are alike.
const STEP: f64 = 6e-6;

/// How far a gradient may be from the difference: relative to the larger of both, or absolute.
const TOLERANCE: f64 = 1e-6;

/// Checks the gradients of `f` against finite differences in `f64`, for random inputs of these
/// shapes. The result is weighted with random numbers, so that no gradient cancels. With `TONNAGE_TEST_CUDA=1` on the first
/// GPU as well.
///
/// ```
/// use tonnage_tensor::testing::gradcheck;
///
/// gradcheck(&[&[2, 3], &[3]], |x| x[0].mul(&x[1])?.sin())?;
/// # Ok::<(), tonnage_tensor::Error>(())
/// ```
///
/// # Errors
///
/// If `f` fails, or if a gradient is wrong: which one, and by how much.
#[track_caller]
pub fn gradcheck(shapes: &[&[usize]], f: impl Fn(&[Tensor]) -> Result<Tensor>) -> Result<()> {
    let call = Call::here("gradcheck");
    let gpu = has_gpu().then(|| Device::cuda(0));
    for device in [Device::host("256 MiB")].into_iter().chain(gpu) {
        let device = device.map_err(|error| call.error(ErrorKind::Value, error.to_string()))?;
        gradcheck_on(call, &device, shapes, &f)?;
    }
    Ok(())
}

fn gradcheck_on(
    call: Call,
    device: &Device,
    shapes: &[&[usize]],
    f: impl Fn(&[Tensor]) -> Result<Tensor>,
) -> Result<()> {
    let options = (device, DType::F64);
    let inputs = shapes
        .iter()
        .map(|shape| Tensor::randn(*shape, options)?.requires_grad_(true))
        .collect::<Result<Vec<_>>>()?;
    let output = f(&inputs)?;
    let weights = Tensor::randn(output.shape(), options)?;
    output.mul(&weights)?.sum()?.backward()?;
    let value =
        |inputs: &[Tensor]| -> Result<f64> { no_grad(|| f(inputs)?.mul(&weights)?.sum()?.item()) };
    for (place, input) in inputs.iter().enumerate() {
        let gradient = match input.grad() {
            Some(gradient) => gradient.to_vec::<f64>()?,
            None => vec![0.0; input.numel()],
        };
        let numbers = input.to_vec::<f64>()?;
        for (index, computed) in gradient.iter().enumerate() {
            let moved = |by: f64| -> Result<f64> {
                let mut numbers = numbers.clone();
                numbers[index] += by;
                let mut inputs: Vec<Tensor> = inputs.iter().map(Tensor::detach).collect();
                inputs[place] = Tensor::from_slice(&numbers, input.shape(), device)?;
                value(&inputs)
            };
            let difference = (moved(STEP)? - moved(-STEP)?) / (2.0 * STEP);
            let scale = computed.abs().max(difference.abs()).max(1.0);
            let close = (computed - difference).abs() <= TOLERANCE * scale;
            if !close {
                return Err(call
                    .error(ErrorKind::Value, "a gradient is not the finite difference")
                    .with("device", device)
                    .with("input", format_args!("{place}, element {index}"))
                    .with("gradient", computed)
                    .with("difference", difference));
            }
        }
    }
    Ok(())
}

/// Checks the gradient of a real function `f` of complex numbers, ∂f/∂re + i·∂f/∂im, against
/// differences over this step, which have few digits in 32 bits.
#[cfg(test)]
pub(crate) fn complex_gradcheck(
    shape: &[usize],
    (step, tolerance): (f32, f32),
    f: impl Fn(&Tensor) -> Result<Tensor>,
) -> Result<()> {
    use crate::number::Complex64;

    let device = Device::host("64 MiB").unwrap();
    let z = Tensor::randn(shape, (&device, DType::Complex64))?.requires_grad_(true)?;
    f(&z)?.backward()?;
    let gradient = z.grad().unwrap().to_vec::<Complex64>()?;
    let numbers = z.to_vec::<Complex64>()?;
    for (index, computed) in gradient.iter().enumerate() {
        let moved = |by: Complex64| -> Result<f32> {
            let mut numbers = numbers.clone();
            numbers[index] = numbers[index] + by;
            f(&Tensor::from_slice(&numbers, shape, &device)?)?.item()
        };
        let [re, im] = [Complex64::new(step, 0.0), Complex64::new(0.0, step)];
        let difference = Complex64::new(moved(re)? - moved(-re)?, moved(im)? - moved(-im)?);
        let difference = difference / Complex64::new(2.0 * step, 0.0);
        assert!((*computed - difference).abs() < tolerance, "{index}: {computed} {difference}");
    }
    Ok(())
}

/// What a program did to the allocator: requests and frees in order, sizes and streams, which are numbered as they come.
#[must_use]
pub fn requests(device: &Device) -> Vec<(Action, u64, u64)> {
    let snapshot = device.memory().snapshot();
    let asked = |entry: &&TraceEntry| {
        matches!(entry.action, Action::Alloc | Action::FreeRequested | Action::FreeCompleted)
    };
    let mut streams = Vec::new();
    let mut number = |stream: StreamId| {
        let known = streams.iter().position(|it| *it == stream);
        known.unwrap_or_else(|| {
            streams.push(stream);
            streams.len() - 1
        }) as u64
    };
    let entry = |entry: &TraceEntry| (entry.action, entry.size, number(entry.stream));
    snapshot.entries.iter().filter(asked).map(entry).collect()
}

/// What a program left and did.
struct Ran {
    /// Shape, strides, element type and place in the graph of each result.
    shapes: Vec<(Vec<usize>, Vec<usize>, DType, bool)>,
    /// The numbers of each result, by parts.
    numbers: Vec<Vec<[f64; 2]>>,
    requests: Vec<(Action, u64, u64)>,
    /// Allocated, most allocated, most reserved.
    figures: (u64, u64, u64),
}

impl Ran {
    fn on(device: &Device, program: impl Fn(&Device) -> Result<Vec<Tensor>>) -> Self {
        let options = RecordOptions {
            context: Context::Never,
            stacks: StackDepth::CallSite,
            clock: || 0,
            ..RecordOptions::default()
        };
        device.memory().record_history(Some(options));
        device.record_programs();
        let failed = |error: Error| -> ! { panic!("on {device}: {error}") };
        let results = program(device).unwrap_or_else(|error| failed(error));
        let shapes = results
            .iter()
            .map(|it| (it.shape().to_vec(), it.strides().to_vec(), it.dtype(), it.requires_grad()))
            .collect();
        device.synchronize().unwrap_or_else(|error| failed(error));
        let numbers = results.iter().map(|it| numbers_of(it).unwrap_or_else(|error| failed(error)));
        let numbers = numbers.collect();
        keep_programs(&device.take_programs());
        drop(results);
        let memory = device.memory();
        let figures = (memory.allocated(), memory.max_allocated(), memory.max_reserved());
        Self { shapes, numbers, requests: requests(device), figures }
    }

    /// The same requests and bytes as on another device.
    fn assert_like(&self, other: &Self) {
        assert_eq!(self.shapes, other.shapes, "shapes, strides and types of the results");
        for (step, (one, other)) in self.requests.iter().zip(&other.requests).enumerate() {
            assert_eq!(one, other, "request {step}");
        }
        assert_eq!(self.requests.len(), other.requests.len(), "number of requests");
        assert_eq!(self.figures, other.figures, "allocated, most allocated, most reserved");
    }

    /// The same numbers as on another device, as far as the element type has digits.
    fn assert_near(&self, other: &Self) {
        for (result, (one, other)) in self.numbers.iter().zip(&other.numbers).enumerate() {
            let dtype = self.shapes[result].2;
            let tolerance = match dtype {
                DType::F64 => 1e-10,
                DType::F32 | DType::Complex64 => 2e-4,
                DType::F16 => 2e-2,
                DType::Bf16 => 1e-1,
                _ => 0.0,
            };
            // Sums of numbers of this size are rounded to digits of this size.
            let scale = one
                .iter()
                .flatten()
                .fold(1.0, |most: f64, it| if it.is_finite() { most.max(it.abs()) } else { most });
            for (index, (one, other)) in one.iter().zip(other).enumerate() {
                for (one, other) in one.iter().zip(other) {
                    let is_near = one.to_bits() == other.to_bits()
                        || (one.is_nan() && other.is_nan())
                        || one == other
                        || (one - other).abs() <= tolerance * scale;
                    assert!(is_near, "result {result}, {dtype}, number {index}: {one} and {other}");
                }
            }
        }
    }
}

/// The numbers of a tensor, by parts; zeros on `dry`.
fn numbers_of(tensor: &Tensor) -> Result<Vec<[f64; 2]>> {
    use crate::number::Complex64;

    let call = Call::here("numbers_of");
    if tensor.dtype() == DType::Complex64 {
        let numbers = call.download::<Complex64>(tensor)?.unwrap_or_default();
        return Ok(numbers.iter().map(|it| [it.re, it.im].map(f64::from)).collect());
    }
    let numbers = call.download::<f64>(tensor)?.unwrap_or_default();
    Ok(numbers.into_iter().map(|it| [it, 0.0]).collect())
}

/// Runs a program on `host` and on `dry`, and compares shapes, types, figures and the sequence of
/// requests; with `TONNAGE_TEST_CUDA=1` on the first GPU as well, whose numbers are compared with the host's. Use it by
/// [`conformance!`](crate::conformance).
///
/// # Panics
///
/// If the program fails, or if the devices differ.
pub fn check_conformance(program: impl Fn(&Device) -> Result<Vec<Tensor>>) {
    let [host, dry] = [Device::host("2 GiB"), Device::dry("2 GiB")]
        .map(|device| Ran::on(&device.unwrap_or_else(|error| panic!("{error}")), &program));
    host.assert_like(&dry);
    assert_eq!(host.figures.0, 0, "everything goes back at the end");
    // Beside a real driver the fake one would be given the real libraries.
    #[cfg(test)]
    if !has_gpu() {
        check_on_fake(&program);
    }
    if has_gpu() {
        let cuda = Device::cuda(0).unwrap_or_else(|error| panic!("TONNAGE_TEST_CUDA=1: {error}"));
        let cuda = Ran::on(&cuda, &program);
        cuda.assert_near(&host);
        let dry = Device::dry("2 GiB").unwrap_or_else(|error| panic!("{error}"));
        dry.set_memory_profile(MemoryProfile::Tonnage);
        cuda.assert_like(&Ran::on(&dry, &program));
    }
}

/// Runs a program on a GPU that does not compute: requests and bytes are those that `dry` predicts, every kernel compiles and
/// takes the arguments that it is given, and everything goes back. Without a compiler there is nothing to run.
#[cfg(test)]
fn check_on_fake(program: &impl Fn(&Device) -> Result<Vec<Tensor>>) {
    use crate::exec::cuda::fake::FakeGpu;

    let Some(gpu) = FakeGpu::start() else { return };
    let cuda = Ran::on(&gpu.device(), program);
    let dry = Device::dry("2 GiB").unwrap_or_else(|error| panic!("{error}"));
    dry.set_memory_profile(MemoryProfile::Tonnage);
    cuda.assert_like(&Ran::on(&dry, program));
    gpu.assert_nothing_left("at the end");
}

/// Whether tests may use the first GPU: `TONNAGE_TEST_CUDA=1`.
#[must_use]
pub fn has_gpu() -> bool {
    std::env::var_os("TONNAGE_TEST_CUDA").is_some_and(|value| value == "1")
}

/// Writes programs for GPUs into the folder that `TONNAGE_KERNELS` names, if it does: for a compiler to try them.
fn keep_programs(programs: &[KernelSource]) {
    use std::hash::{DefaultHasher, Hash, Hasher};

    let Some(folder) = std::env::var_os("TONNAGE_KERNELS").map(PathBuf::from) else { return };
    for program in programs {
        let mut hasher = DefaultHasher::new();
        (&program.text, program.options).hash(&mut hasher);
        let path = folder.join(format!("{}-{:016x}.cu", program.name, hasher.finish()));
        let text = format!("// {}\n{}", program.options.join(" "), program.text);
        std::fs::write(&path, text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }
}

/// A test that a program does the same on `host` and on `dry`: the same shapes, bytes and sequence of
/// requests.
///
/// ```
/// use tonnage_tensor::Tensor;
///
/// tonnage_tensor::conformance!(a_sum, |device| {
///     let x = Tensor::ones([3], device)?.requires_grad_(true)?;
///     x.sum()?.backward()?;
///     Ok(vec![x.grad().unwrap()])
/// });
/// ```
#[macro_export]
macro_rules! conformance {
    ($name:ident, |$device:ident| $program:expr) => {
        #[test]
        fn $name() {
            fn program(
                $device: &$crate::Device,
            ) -> ::std::result::Result<::std::vec::Vec<$crate::Tensor>, $crate::Error> {
                $program
            }
            $crate::testing::check_conformance(program);
        }
    };
}

pub use crate::conformance;
