//! Clipping: gradients are scaled so that their norm is bounded, without waiting for the norm.

use tonnage_device::cuda::{Arguments, Extent};

use super::groups::no_float;
use crate::dtype::{DType, Float, Real, dispatch_float};
use crate::error::{Call, ErrorKind, Result};
use crate::exec::cuda::{Elementwise, Launch, MultiTensor, Program, stored, wide};
use crate::exec::{Args, CHUNK, Input, Kernel, Operand, Operands, Plan, for_each_piece};
use crate::tensor::Tensor;

/// PyTorch's guard against a norm of zero.
const EPS: f64 = 1e-6;

/// Blocks of a GPU that sum squares, each of which needs a place for its sum.
const PARTS: usize = 512;

/// Threads of such a block, and tensors of one launch: see `norm.cu`.
const THREADS: u32 = 256;
const MOST: usize = 64;

const NORM: &str = include_str!("norm.cu");

/// `output[0] = √Σ x²` over all inputs. The second output is for the sums of parts.
struct TotalNorm(usize);

impl Kernel for TotalNorm {
    fn host(&self, args: &mut Args<'_>) -> Result<(), String> {
        let squares: f64 = (0..self.0).map(|place| sum_of_squares(args.input(place))).sum();
        args.take::<f32>(0).slice()[0] = squares.sqrt() as f32;
        Ok(())
    }

    fn cuda(&self, on: Operands<'_>) -> Plan {
        let [norm, parts] = [0, 1].map(|it| on.outputs[it].first());
        let gradients = on.inputs.iter().filter(|it| it.layout.numel() > 0).collect::<Vec<_>>();
        // Lists of one type that lie in order; others alone.
        let lists = gradients.chunk_by(|a, b| {
            a.dtype == b.dtype && a.layout.is_contiguous() && b.layout.is_contiguous()
        });
        let mut launches: Vec<Launch> = Vec::new();
        for list in lists.flat_map(|list| list.chunks(MOST)) {
            launches.push(squares(list, parts, launches.is_empty()));
        }
        if launches.is_empty() {
            let zero = Elementwise::new("fill", "float", "y0 = 0;");
            return zero.plan(Operands { outputs: &on.outputs[..1], inputs: &[] });
        }
        let program = Program::new("root", NORM, &[("ROOT", &""), ("AXES", &0)]);
        let arguments = Arguments::new().with(norm).with(parts).with(PARTS as u32);
        launches.push(Launch::new(program, Extent::line(1, THREADS), arguments));
        Plan::Launches(launches)
    }
}

/// Sums the squares of a list, each block into its part; after the first launch, beside what is there.
fn squares(list: &[&Operand], parts: u64, is_first: bool) -> Launch {
    let (dtype, layout) = (list[0].dtype, &list[0].layout);
    let axes = if layout.is_contiguous() { 0 } else { layout.shape().len() };
    let bytes = 16 / dtype.size() * dtype.size();
    let is_aligned = axes == 0 && list.iter().all(|it| it.first().is_multiple_of(bytes as u64));
    let pack = if is_aligned { 16 / dtype.size() } else { 1 };
    let program = Program::new(
        "squares",
        NORM,
        &[("SQUARES", &""), ("T", &stored(dtype)), ("AXES", &axes), ("PACK", &pack)],
    );
    let words = |words: &mut dyn Iterator<Item = u64>, count: usize| -> Vec<u8> {
        let mut bytes: Vec<u8> = words.flat_map(u64::to_ne_bytes).collect();
        bytes.resize(8 * count, 0);
        bytes
    };
    let mut tensors = words(&mut list.iter().map(|it| it.first()), MOST);
    tensors.extend(words(&mut list.iter().map(|it| it.layout.numel() as u64), MOST));
    let of_axes =
        |values: &[usize]| words(&mut values[..axes].iter().map(|it| *it as u64), axes + 1);
    let places = [of_axes(layout.shape()), of_axes(layout.strides())].concat();
    let mut arguments = Arguments::new().with(parts);
    arguments.push_bytes(&tensors);
    arguments.push(list.len() as u32);
    arguments.push(u32::from(is_first));
    arguments.push_bytes(&places);
    Launch::new(program, Extent::line(PARTS as u32, THREADS), arguments)
}

fn sum_of_squares(input: Input<'_>) -> f64 {
    let mut scratch = Vec::new();
    let starts = (0..input.numel()).step_by(CHUNK);
    let pieces = starts.map(|start| {
        let piece = start..input.numel().min(start + CHUNK);
        input.chunk::<f32>(piece, &mut scratch).iter().map(|it| f64::from(*it).powi(2)).sum::<f64>()
    });
    pieces.sum()
}

/// `outputs *= min(1, max / (input + eps))`.
struct ClipBy {
    outputs: usize,
    max: f64,
}

impl Kernel for ClipBy {
    fn host(&self, args: &mut Args<'_>) -> Result<(), String> {
        let norm = f64::from(args.input(0).to_slice::<f32>()[0]);
        let factor = self.max / (norm + EPS);
        // A norm that is no number makes every gradient one, as in PyTorch.
        if factor >= 1.0 {
            return Ok(());
        }
        dispatch_float!(args.output_dtype(0), T => {
            let outputs = (0..self.outputs).map(|place| [args.take::<T>(place)]);
            let by = <<T as Float>::Wide as Real>::n(factor);
            for_each_piece(outputs.collect(), &|_, _, [gradient]| {
                gradient.iter_mut().for_each(|it| *it = T::narrow(it.widen() * by));
            });
        }, else return Err(no_float(args.output_dtype(0))));
        Ok(())
    }

    fn cuda(&self, on: Operands<'_>) -> Plan {
        let Some(first) = on.outputs.first() else { return Plan::nothing() };
        let setup = "double factor = s0 / ((double)*h0 + s1); if (factor >= 1.0) return; const C by = (C)factor;";
        let kernel = MultiTensor::new("clip", wide(first.dtype), "y0 = y0 * by;");
        let kernel = kernel.around(setup, "").numbers(&[self.max, EPS]);
        let tensors: Vec<_> = on.outputs.iter().map(|it| [it]).collect();
        kernel.launches(&tensors, 1, &[&on.inputs[0]]).into()
    }
}

/// Scales all gradients so that their norm, as one vector, is at most `max`. The norm before is
/// returned; nobody waits for it.
///
/// # Errors
///
/// If `max` is negative or no number, if gradients lie on several devices, or if there is no memory.
#[track_caller]
pub fn clip_grad_norm_(parameters: &[Tensor], max: f64) -> Result<Option<Tensor>> {
    let call = Call::here("clip_grad_norm_");
    if max.is_nan() || max < 0.0 {
        return Err(call.error(ErrorKind::Value, "no norm is this small").with("max", max));
    }
    let gradients: Vec<Tensor> = parameters.iter().filter_map(Tensor::grad).collect();
    let Some(first) = gradients.first() else { return Ok(None) };
    let _off = crate::autograd::no_grad_guard();
    let norm = Tensor::uninit(call, ().into(), DType::F32, first.device())?;
    let parts = Tensor::uninit(call, [PARTS].into(), DType::F64, first.device())?;
    let inputs: Vec<&Tensor> = gradients.iter().collect();
    call.launch(TotalNorm(inputs.len()), &[&norm, &parts], &inputs)?;
    drop(parts);
    for dtype in DType::ALL {
        let these: Vec<&Tensor> = gradients.iter().filter(|it| it.dtype() == dtype).collect();
        for chunk in these.chunks(64) {
            call.launch(ClipBy { outputs: chunk.len(), max }, chunk, &[&norm])?;
            chunk.iter().for_each(|it| it.storage().written_by(call));
        }
    }
    Ok(Some(norm))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Device;
    use crate::testing::conformance;

    #[test]
    fn gradients_are_scaled_together_and_only_if_they_are_too_long() -> Result<()> {
        let device = Device::host("64 MiB").unwrap();
        let x = Tensor::zeros([1], &device)?.requires_grad_(true)?;
        let y = Tensor::zeros([1], (&device, DType::Bf16))?.requires_grad_(true)?;
        x.set_grad(Some(Tensor::full([1], 3.0, &device)?))?;
        y.set_grad(Some(Tensor::full([1], 4.0, (&device, DType::Bf16))?))?;
        let all = [x.clone(), y.clone(), Tensor::zeros([1], &device)?];
        let grads =
            || -> Result<[f64; 2]> { Ok([x.grad().unwrap().item()?, y.grad().unwrap().item()?]) };
        assert_eq!(clip_grad_norm_(&all, 10.0)?.unwrap().item::<f32>()?, 5.0);
        assert_eq!(grads()?, [3.0, 4.0]);
        assert_eq!(clip_grad_norm_(&all, 2.5)?.unwrap().item::<f32>()?, 5.0);
        let [x, y] = grads()?;
        assert!((x - 1.5).abs() < 1e-5 && (y - 2.0).abs() < 0.01, "{x} {y}");
        assert!(clip_grad_norm_(&all, -1.0).is_err());
        assert!(clip_grad_norm_(&[], 1.0)?.is_none());
        Ok(())
    }

    conformance!(clipping, |device| {
        let x = Tensor::ones([100, 100], device)?.requires_grad_(true)?;
        x.sum()?.backward()?;
        Ok(vec![clip_grad_norm_(&[x], 1.0)?.unwrap()])
    });

    conformance!(clipping_of_every_type_and_layout, |device| {
        let mut all = Vec::new();
        for dtype in [DType::F32, DType::Bf16, DType::F64, DType::F16] {
            for size in [1, 5, 1000, 70_001] {
                let x = Tensor::zeros([size], (device, dtype))?.requires_grad_(true)?;
                x.set_grad(Some(Tensor::randn([size], (device, dtype))?))?;
                all.push(x);
            }
        }
        // Gradients that do not lie in order, between others that do.
        for dtype in [DType::F32, DType::Bf16] {
            let x = Tensor::zeros([70, 90], (device, dtype))?.requires_grad_(true)?;
            x.set_grad(Some(Tensor::randn([90, 70], (device, dtype))?.transpose(0, 1)?))?;
            all.push(x);
        }
        let norm = clip_grad_norm_(&all, 3.0)?.unwrap();
        let again = clip_grad_norm_(&all, 100.0)?.unwrap();
        Ok([norm, again].into_iter().chain(all.iter().map(|it| it.grad().unwrap())).collect())
    });
}
