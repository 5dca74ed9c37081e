//! The training loop of every recipe: the same code on every device.
//!
//! In:  a device, options, someone to tell after each step.
//! Out: an [`Outcome`]. The order of requests depends on the options alone: copies run on the stream of
//!      the computation, and the caller waits at fixed places.

use tonnage_engine::Policy;
use tonnage_events::SnapshotSegment;
use tonnage_tensor::amp::{GradScaler, ScalerOptions, autocast};
use tonnage_tensor::nn::Module;
use tonnage_tensor::offload::Offload;
use tonnage_tensor::optim::{Adam, AdamW, Optimizer, Sgd};
use tonnage_tensor::{Device, Graph, QueuedWork, Tensor};

use crate::error::Result;
use crate::meter::{Meter, Phase};
use crate::options::{Amp, OptimizerKind, Options};
use crate::outcome::Outcome;
use crate::program::{Batch, Program, build};
use crate::random::Random;
use crate::recipe::Size;
use crate::simulate::simulate;

/// Saved values of fewer bytes stay on the device: chosen, the copy would cost more than it frees.
const OFFLOAD_FROM: u64 = 1 << 16;

/// The first scale of `f16` losses: chosen so that the gradients of these recipes are finite from the
/// first step on. A skipped step would allocate the optimizer's state later than predicted.
const SCALE: f32 = 1024.0;

/// Adam's learning rate; that of gradient descent is ten times as large. Chosen: every recipe learns.
const RATE: f64 = 1e-3;

/// How far a run is.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Progress {
    /// Steps that are done.
    pub done: usize,
    /// Steps that there are.
    pub of: usize,
    /// The loss of the last one, or the share of wrong symbols so far; none if the device does not
    /// compute.
    pub measure: Option<f64>,
    /// The most bytes allocated so far.
    pub allocated_peak: u64,
    /// The most bytes reserved so far.
    pub reserved_peak: u64,
}

/// Runs a recipe on a device, and says where the memory went. On a device that does not compute, steps end as
/// soon as they only repeat what the one before did.
///
/// ```
/// use tonnage_plan::{DeviceKind, Options, Recipe, Size, predict, train};
///
/// let mut options = Options::new(Recipe::DeepNet).with(Size::Width, 64)?.with(Size::Layers, 3)?;
/// options.steps = 3;
/// let predicted = predict(&options)?;
/// let measured = train(&DeviceKind::Host.open(&options)?, &options, &mut |_| ())?;
/// assert_eq!(measured.allocated_peak, predicted.allocated_peak);
/// assert_eq!(measured.reserved_peak, predicted.reserved_peak);
/// assert!(measured.losses[2] < measured.losses[0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// If options do not fit together, if memory does not suffice, or if the snapshot cannot be written.
pub fn train(
    device: &Device,
    options: &Options,
    each: &mut dyn FnMut(&Progress),
) -> Result<Outcome> {
    run(device, options, &mut Meter::new(device), each)
}

/// The same, measured by this meter.
pub(crate) fn run(
    device: &Device,
    options: &Options,
    meter: &mut Meter<'_>,
    each: &mut dyn FnMut(&Progress),
) -> Result<Outcome> {
    options.check()?;
    device.manual_seed(options.seed);
    let Some(program) = meter.run(Phase::Model, || build(options, device))? else {
        return simulate(device, options, meter, each);
    };
    let mut trainer = Trainer::new(device, options, &*program)?;
    let losses = save_of(device, options, trainer.run(meter, each))?;
    meter.end();
    let parameters = program.model().num_parameters() as u64;
    let Trainer { requests, work, skipped: skipped_steps, .. } = trainer;
    Ok(Outcome {
        parameters,
        requests,
        work,
        losses,
        skipped_steps,
        ..Outcome::new(options, device, meter)
    })
}

/// Saves what was recorded of a run that has ended, if that is wanted; of one that failed too. A request that failed
/// was saved then, with all that was live at the moment.
pub(crate) fn save_of<T>(device: &Device, options: &Options, ended: Result<T>) -> Result<T> {
    let Some(path) = &options.save else { return ended };
    match ended {
        Err(error) if error.out_of_memory().is_some() => Err(error),
        Err(error) => {
            // What went wrong first is what counts.
            let _ = device.memory().dump_snapshot(path);
            Err(error)
        }
        Ok(result) => {
            device.memory().dump_snapshot(path)?;
            Ok(result)
        }
    }
}

/// How often memory was asked for.
pub(crate) fn requests(device: &Device) -> u64 {
    u64::try_from(device.memory().stats().allocation.all.allocated).unwrap_or(0)
}

/// A step that is replayed.
struct Captured {
    graph: Graph,
    /// The numbers of a step go here first.
    batches: Vec<Batch>,
    /// And these come out, one for each part of a batch.
    losses: Vec<Tensor>,
}

/// What a step needs.
struct Trainer<'a> {
    device: &'a Device,
    options: &'a Options,
    program: &'a dyn Program,
    optimizer: Chosen,
    scaler: Option<GradScaler>,
    offload: Option<Offload>,
    /// The step as a graph, once it is captured.
    captured: Option<Captured>,
    /// How often the last step asked for memory.
    requests: u64,
    /// How much it computed.
    work: QueuedWork,
    /// Steps that were left out, since gradients were not finite.
    skipped: usize,
}

impl<'a> Trainer<'a> {
    fn new(device: &'a Device, options: &'a Options, program: &'a dyn Program) -> Result<Self> {
        let optimizer = Chosen::new(options, program.model())?;
        let scaling = options.amp == Some(Amp::F16);
        let scaler = scaling.then(|| GradScaler::new(ScalerOptions::default().scale(SCALE)));
        let offload = options.offload.then(|| Offload::in_order(device).min_bytes(OFFLOAD_FROM));
        let (requests, work, skipped) = (0, QueuedWork::default(), 0);
        let captured = None;
        Ok(Self {
            device,
            options,
            program,
            optimizer,
            scaler,
            offload,
            captured,
            requests,
            work,
            skipped,
        })
    }

    /// All steps: their losses, if the device computes.
    fn run(&mut self, meter: &mut Meter<'_>, each: &mut dyn FnMut(&Progress)) -> Result<Vec<f32>> {
        let (device, of) = (self.device, self.options.steps);
        let mut steady = Steady::new(device, self.options)?;
        let mut losses = Vec::new();
        for step in 0..of {
            meter.begin(step + 1);
            let before = (requests(device), device.work());
            let loss = self.step(meter, step)?;
            losses.extend(loss);
            self.requests = requests(device) - before.0;
            self.work = device.work().since(before.1);
            each(&Progress {
                done: step + 1,
                of,
                measure: loss.map(f64::from),
                allocated_peak: meter.allocated_peak,
                reserved_peak: meter.reserved_peak,
            });
            if steady.repeats() {
                break;
            }
        }
        Ok(losses)
    }

    /// One step: its mean loss, if the device computes.
    fn step(&mut self, meter: &mut Meter<'_>, step: usize) -> Result<Option<f32>> {
        // The first runs as it is: what stays is made there, such as the optimizer's states.
        if self.options.graph && step > 0 {
            return self.replay(meter, step);
        }
        let mut sum = 0.0;
        for part in 0..self.options.accumulate {
            let batch = meter.run(Phase::Data, || self.batch(step, part))?;
            let loss = meter.run(Phase::Forward, || self.loss(&batch))?;
            meter.run(Phase::Backward, || self.backward(&loss))?;
            if self.device.computes() {
                sum += loss.item::<f32>()?;
            }
        }
        meter.run(Phase::Step, || self.change())?;
        meter.run(Phase::ZeroGrad, || self.optimizer.zero_grad(true))?;
        Ok(self.device.computes().then_some(sum))
    }

    /// The same by the graph, which is captured if that was not done yet.
    fn replay(&mut self, meter: &mut Meter<'_>, step: usize) -> Result<Option<f32>> {
        let parts = self.options.accumulate;
        let captured = match self.captured.take() {
            Some(captured) => {
                meter.run(Phase::Data, || {
                    captured.batches.iter().enumerate().try_for_each(|(part, to)| {
                        let from = self.batch(step, part)?;
                        to.iter().zip(&from).try_for_each(|(to, from)| to.copy_(from).map(drop))
                    })
                })?;
                captured
            }
            None => {
                let batches = (0..parts).map(|part| self.batch(step, part));
                let batches: Vec<Batch> = meter.run(Phase::Data, || batches.collect())?;
                let captured = Graph::capture(self.device, || self.parts(meter, &batches));
                let (graph, losses) = captured.map_err(|error| meter.during(error))?;
                Captured { graph, batches, losses }
            }
        };
        meter.run(Phase::Replay, || captured.graph.replay())?;
        let mut sum = 0.0;
        if self.device.computes() {
            for loss in &captured.losses {
                sum += loss.item::<f32>()?;
            }
        }
        self.captured = Some(captured);
        Ok(self.device.computes().then_some(sum))
    }

    /// A step over these batches, without a look at its losses.
    fn parts(
        &mut self,
        meter: &mut Meter<'_>,
        batches: &[Batch],
    ) -> tonnage_tensor::Result<Vec<Tensor>> {
        let mut losses = Vec::new();
        for batch in batches {
            let loss = meter.measure(Phase::Forward, || self.loss(batch))?;
            meter.measure(Phase::Backward, || self.backward(&loss))?;
            losses.push(loss.detach());
        }
        meter.measure(Phase::Step, || self.change())?;
        meter.measure(Phase::ZeroGrad, || self.optimizer.zero_grad(true))?;
        // Whoever looks at one step looks at that whose memory the others use.
        meter.end();
        Ok(losses)
    }

    /// A part of a step's batch.
    fn batch(&self, step: usize, part: usize) -> tonnage_tensor::Result<Batch> {
        let parts = self.options.accumulate;
        let rows = self.options.size(Size::Batch) / parts;
        let random = Random::new(self.options.seed, (step * parts + part) as u64);
        self.program.batch(self.device, rows, random)
    }

    /// The share of a part of the batch in the loss.
    fn loss(&self, batch: &Batch) -> tonnage_tensor::Result<Tensor> {
        let forward = || match self.options.amp {
            Some(amp) => autocast(amp.dtype(), || self.program.loss(batch)),
            None => self.program.loss(batch),
        };
        let loss = match &self.offload {
            Some(offload) => offload.run(forward)?,
            None => forward()?,
        };
        match self.options.accumulate {
            1 => Ok(loss),
            parts => loss.div(parts as f64),
        }
    }

    fn backward(&mut self, loss: &Tensor) -> tonnage_tensor::Result<()> {
        match &mut self.scaler {
            Some(scaler) => scaler.scale(loss)?.backward(),
            None => loss.backward(),
        }
    }

    fn change(&mut self) -> tonnage_tensor::Result<()> {
        let Some(scaler) = &mut self.scaler else { return self.optimizer.step() };
        if !scaler.step(&mut self.optimizer)? {
            self.skipped += 1;
        }
        scaler.update()
    }
}

/// The optimizer that was asked for. No trait object: through one, the line that steps would not be known, and states are shown by it.
enum Chosen {
    Sgd(Sgd),
    Adam(Adam),
    AdamW(AdamW),
}

impl Chosen {
    fn new(options: &Options, model: &dyn Module) -> Result<Self> {
        let parameters = model.parameters();
        Ok(match options.optimizer {
            OptimizerKind::Sgd => {
                Self::Sgd(Sgd::new(parameters, Sgd::options(10.0 * RATE).momentum(0.9))?)
            }
            OptimizerKind::Adam => Self::Adam(Adam::new(parameters, Adam::options().lr(RATE))?),
            OptimizerKind::AdamW => Self::AdamW(AdamW::new(parameters, AdamW::options().lr(RATE))?),
        })
    }

    fn any(&self) -> &dyn Optimizer {
        match self {
            Self::Sgd(it) => it,
            Self::Adam(it) => it,
            Self::AdamW(it) => it,
        }
    }

    fn any_mut(&mut self) -> &mut dyn Optimizer {
        match self {
            Self::Sgd(it) => it,
            Self::Adam(it) => it,
            Self::AdamW(it) => it,
        }
    }
}

impl Optimizer for Chosen {
    #[track_caller]
    fn step(&mut self) -> tonnage_tensor::Result<()> {
        match self {
            Self::Sgd(it) => it.step(),
            Self::Adam(it) => it.step(),
            Self::AdamW(it) => it.step(),
        }
    }

    fn parameters(&self) -> Vec<Tensor> {
        self.any().parameters()
    }

    fn set_lr(&mut self, lr: f64) {
        self.any_mut().set_lr(lr);
    }

    fn named_state(&self) -> Vec<(String, Tensor)> {
        self.any().named_state()
    }
}

/// Tells when a dry run only repeats itself: the allocator is deterministic and every step asks for
/// the same, so once a step leaves memory exactly as it found it, so will all that follow.
struct Steady<'a> {
    /// None if every step has to run.
    device: Option<&'a Device>,
    before: Option<Vec<SnapshotSegment>>,
}

impl<'a> Steady<'a> {
    fn new(device: &'a Device, options: &Options) -> Result<Self> {
        // Garbage collection counts how long blocks are unused, which a snapshot does not show; and a
        // history that is to be saved has every step.
        // What moved before decides where pages go next, and a snapshot does not show that either.
        let is_aged = options.config()?.garbage_collection_threshold() > 0.0;
        let moves = options.policy.is_some_and(|policy| policy != Policy::Pytorch);
        let skips = !device.computes() && options.save.is_none() && !is_aged && !moves;
        Ok(Self { device: skips.then_some(device), before: None })
    }

    fn repeats(&mut self) -> bool {
        let Some(device) = self.device else { return false };
        let now = device.memory().snapshot().segments;
        self.before.replace(now).is_some_and(|before| Some(before) == self.before)
    }
}
