//! Training steps on a GPU, from weights and inputs that PyTorch has saved, to be compared with its own.
//!
//! `throughput CASE WEIGHTS INPUTS [--graph] [--profile]`: `benches/pytorch/throughput.py` makes the files, runs both sides in turns
//! and writes the table. Prints one line of JSON: milliseconds for a step, peaks in bytes as predicted without a GPU and as they were, the losses. With `--graph`
//! the step is captured once and replayed; with `--profile` the time of each kind of work goes to standard error, and measuring
//! slows the steps.

use std::time::{Duration, Instant};

use tonnage_tensor::amp::autocast;
use tonnage_tensor::checkpoint::Placement;
use tonnage_tensor::models::{Gpt2, Gpt2Config, ResNet, ResNetConfig};
use tonnage_tensor::nn::{Linear, Module, Relu, Sequential, Visitor};
use tonnage_tensor::optim::{Adam, AdamW, Optimizer, Sgd};
use tonnage_tensor::safetensors::File;
use tonnage_tensor::{DType, Device, Graph, MemoryProfile, Result, Tensor};

/// Steps before the clock starts: kernels are compiled, memory is taken.
const FIRST: usize = 5;

/// Steps of which the mean is told.
const MEASURED: usize = 20;

/// Blocks that add to what goes through them.
struct Residual {
    blocks: Sequential,
}

impl Residual {
    fn new(device: &Device) -> Result<Self> {
        let layer = || Linear::new(4096, 4096, device);
        let block = || Ok(Sequential::new().then(layer()?).then(Relu).then(layer()?).then(Relu));
        Ok(Self { blocks: (0..20).map(|_| block()).collect::<Result<_>>()? })
    }
}

impl Module for Residual {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.blocks.modules().iter().try_fold(x.clone(), |x, block| block.forward(&x)?.add(&x))
    }

    fn visit(&self, visitor: &mut Visitor<'_>) {
        self.blocks.visit(visitor);
    }
}

/// What is trained, and how.
struct Case {
    model: Box<dyn Module>,
    optimizer: Box<dyn Optimizer>,
    loss: Box<dyn Fn() -> Result<Tensor>>,
}

fn gpt2(device: &Device, files: [&File; 2], placement: Placement) -> Result<Case> {
    let config = Gpt2Config::small().vocabulary(50_304).dropout(0.0);
    let model = Gpt2::new(config, device)?.checkpointed(placement);
    files[0].load_into(&model)?;
    let optimizer = Box::new(AdamW::new(model.parameters(), AdamW::options().lr(1e-4))?);
    let tokens = files[1].tensor("x", device)?;
    let loss = {
        let model = model.clone();
        move || autocast(DType::Bf16, || model.loss(&tokens, &tokens))
    };
    Ok(Case { model: Box::new(model), optimizer, loss: Box::new(loss) })
}

fn resnet(device: &Device, files: [&File; 2], bf16: bool) -> Result<Case> {
    // As PyTorch's convolutions do unless they are told otherwise.
    device.allow_tf32(true);
    let model = ResNet::new(ResNetConfig::resnet50(), device)?;
    files[0].load_into(&model)?;
    let options = Sgd::options(0.001).momentum(0.9);
    let optimizer = Box::new(Sgd::new(model.parameters(), options)?);
    let [x, y] = ["x", "y"].map(|name| files[1].tensor(name, device));
    let (x, y) = (x?, y?);
    let loss = {
        let model = model.clone();
        let loss = move || model.forward(&x)?.cross_entropy(&y);
        move || if bf16 { autocast(DType::Bf16, &loss) } else { loss() }
    };
    Ok(Case { model: Box::new(model), optimizer, loss: Box::new(loss) })
}

fn residual(device: &Device, files: [&File; 2]) -> Result<Case> {
    let model = Residual::new(device)?;
    files[0].load_into(&model)?;
    let optimizer = Box::new(Adam::new(model.parameters(), Adam::options())?);
    let x = files[1].tensor("x", device)?;
    let again = Residual { blocks: model.blocks.clone() };
    let loss = move || again.forward(&x)?.square()?.mean();
    Ok(Case { model: Box::new(model), optimizer, loss: Box::new(loss) })
}

fn case(device: &Device, name: &str, files: [&File; 2]) -> Result<Option<Case>> {
    Ok(Some(match name {
        "gpt2" => gpt2(device, files, Placement::Keep)?,
        "gpt2-checkpoint" => gpt2(device, files, Placement::Each)?,
        "resnet50" => resnet(device, files, false)?,
        "resnet50-bf16" => resnet(device, files, true)?,
        "residual" => residual(device, files)?,
        _ => return Ok(None),
    }))
}

/// How steps are run.
#[derive(Clone, Copy)]
struct How {
    is_graph: bool,
    is_profiled: bool,
}

/// What the steps took.
struct Taken {
    /// Milliseconds of a step, and until it was queued.
    step: f64,
    queued: f64,
    allocated: u64,
    reserved: u64,
    parameters: usize,
    /// None on a device that does not compute.
    losses: Vec<f32>,
}

fn run(device: &Device, name: &str, files: [&File; 2], how: How) -> Result<Option<Taken>> {
    let Some(mut case) = case(device, name, files)? else { return Ok(None) };
    let mut step = || {
        let loss = (case.loss)()?;
        loss.backward()?;
        case.optimizer.step()?;
        case.optimizer.zero_grad(true)?;
        Ok(loss.detach())
    };
    let mut losses = (0..FIRST).map(|_| step()).collect::<Result<Vec<Tensor>>>()?;
    device.synchronize()?;
    device.memory().reset_peak_stats();
    let graph = if how.is_graph { Some(Graph::capture(device, &mut step)?) } else { None };
    if how.is_profiled {
        device.start_profile();
    }
    let start = Instant::now();
    for _ in 0..MEASURED {
        losses.push(match &graph {
            Some((graph, loss)) => {
                graph.replay()?;
                loss.add(0.0)?
            }
            None => step()?,
        });
    }
    let queued = start.elapsed();
    device.synchronize()?;
    let each = |time: Duration| time.as_secs_f64() * 1e3 / MEASURED as f64;
    let (step, queued) = (each(start.elapsed()), each(queued));
    for it in device.take_profile()? {
        let count = it.count as f64 / MEASURED as f64;
        eprintln!("{:9.3} ms {count:6} × {}", each(it.time), it.name);
    }
    let losses = match device.computes() {
        true => losses.iter().map(Tensor::item::<f32>).collect::<Result<_>>()?,
        false => Vec::new(),
    };
    let (allocated, reserved) = (device.memory().max_allocated(), device.memory().max_reserved());
    let parameters = case.model.num_parameters();
    Ok(Some(Taken { step, queued, allocated, reserved, parameters, losses }))
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let mut arguments: Vec<_> = std::env::args().skip(1).collect();
    let mut has = |flag: &str| {
        let before = arguments.len();
        arguments.retain(|it| it != flag);
        arguments.len() < before
    };
    let how = How { is_graph: has("--graph"), is_profiled: has("--profile") };
    let [name, weights, inputs] = &arguments[..] else {
        return Err("throughput CASE WEIGHTS INPUTS [--graph] [--profile]".into());
    };
    let files = [&File::open(weights)?, &File::open(inputs)?];
    let dry = Device::dry("1 TiB")?;
    dry.set_memory_profile(MemoryProfile::Tonnage);
    let Some(predicted) = run(&dry, name, files, How { is_profiled: false, ..how })? else {
        return Err(format!("`{name}` is no case: see the file").into());
    };
    eprintln!("predicted: {} allocated, {} reserved", predicted.allocated, predicted.reserved);
    let Some(it) = run(&Device::cuda(0)?, name, files, how)? else { return Ok(()) };
    println!(
        "{{\"ms\": {:.3}, \"queued_ms\": {:.3}, \"allocated\": {}, \"reserved\": {}, \"predicted_allocated\": {}, \"predicted_reserved\": {}, \"parameters\": {}, \"losses\": {:?}}}",
        it.step,
        it.queued,
        it.allocated,
        it.reserved,
        predicted.allocated,
        predicted.reserved,
        it.parameters,
        it.losses
    );
    Ok(())
}
