//! A step as a whole: captured once, replayed as often as wanted.
//!
//! In:  a function that queues work on one device.
//! Out: what it returned, and a [`Graph`]: the same work on the same memory, queued again by one call.
//!
//! | file | what it is |
//! | --- | --- |
//! | `capturing.rs` | what is written down while a graph is captured |
//!
//! # Memory
//!
//! What the captured work allocates comes from a pool of its own, as in PyTorch, so that no address changes and nobody
//! else is given one. Memory from before that the work uses is the graph's too, from then on: tensors may go, their memory
//! stays while it can be replayed. On `dry` the same is allocated and nothing is replayed, so what a graph takes can be
//! predicted.
//!
//! # What differs from one replay to the next
//!
//! Arguments of kernels are written down with them. What must not be, such as an optimizer's learning rate and step or
//! where a generator stands, lies in memory instead, and is written there before each replay: see [`Refreshed`].

mod capturing;

#[cfg(test)]
mod tests;

use std::sync::{Arc, Mutex, PoisonError, Weak};

use tonnage_memory::{CapturePool, Stream, current_stream, with_stream};

pub(crate) use capturing::{Captures, Numbers, Refreshed};
use capturing::{Capturing, Touched};

use crate::device::Device;
use crate::error::{Call, ErrorKind, Result};
use crate::exec::{CudaGraph, Queue, Written};
use crate::storage::{Storage, Uses};
use crate::work::QueuedWork;

/// Work that was captured, ready to be replayed.
///
/// ```
/// use tonnage_tensor::optim::{Optimizer, Sgd};
/// use tonnage_tensor::{Device, Graph, Reduction, Tensor};
///
/// let device = Device::host("64 MiB")?; // Device::cuda(0)?
/// let weight = Tensor::zeros([4], &device)?.requires_grad_(true)?;
/// let mut sgd = Sgd::new(vec![weight.clone()], Sgd::options(0.5))?;
/// let input = Tensor::ones([4], &device)?;
/// let mut step = || {
///     let loss = weight.mse_loss(&input, Reduction::Sum)?;
///     loss.backward()?;
///     sgd.step()?;
///     sgd.zero_grad(true)?;
///     Ok(loss)
/// };
/// // Once as it is, so that all that stays is there.
/// let first = step()?.item::<f32>()?;
/// let (graph, loss) = Graph::capture(&device, step)?;
/// graph.replay()?;
/// assert_eq!((first, loss.item::<f32>()?), (4.0, 0.0));
/// // Other numbers into the same memory.
/// input.copy_(&Tensor::full([4], 3.0, &device)?)?;
/// graph.replay()?;
/// assert_eq!(loss.item::<f32>()?, 16.0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Graph {
    device: Device,
    recorded: Recorded,
    /// Memory from before, or of other streams.
    theirs: Vec<Touched<Arc<Storage>>>,
    /// Tensors of the pool that were there when the capture ended.
    own: Vec<Touched<Weak<Storage>>>,
    /// Written before each replay. Held until it is queued: replays take turns.
    refreshed: Mutex<Vec<Refreshed>>,
    work: QueuedWork,
    /// Of all memory of the pool.
    uses: Mutex<Uses>,
    // In this order: what products on the stream use lies in the pool.
    _stream: Stream,
    _pool: CapturePool,
}

/// The work, as the device has it.
enum Recorded {
    Dry,
    Host(Vec<Arc<Written>>),
    Cuda(CudaGraph),
}

/// A capture under way. Dropped, what was written down is forgotten.
struct Open<'a> {
    device: &'a Device,
    has_ended: bool,
}

impl<'a> Open<'a> {
    fn begin(call: Call, device: &'a Device, stream: &Stream) -> Result<Self> {
        let stream = stream.id();
        let capturing = Capturing::new(stream, device.registry().peek_id());
        if !device.captures().begin(capturing) {
            return Err(under_way(call, device));
        }
        let open = Self { device, has_ended: false };
        match device.queue() {
            Queue::Dry => {}
            Queue::Host(queue) => queue.begin_capture(call, stream)?,
            Queue::Cuda(queue) => queue.begin_capture(call, stream)?,
        }
        Ok(open)
    }

    /// Ends it: the work, and what it uses.
    fn finish(mut self, call: Call) -> Result<(Recorded, Capturing)> {
        let recorded = match self.device.queue() {
            Queue::Dry => Recorded::Dry,
            Queue::Host(queue) => {
                queue.end_capture();
                Recorded::Host(Vec::new())
            }
            Queue::Cuda(queue) => Recorded::Cuda(queue.end_capture(call)?),
        };
        // From here on another may begin.
        self.has_ended = true;
        let Some(mut capturing) = self.device.captures().end() else {
            return Err(call.error(ErrorKind::Value, "the capture has ended already"));
        };
        Ok(match recorded {
            Recorded::Host(_) => {
                (Recorded::Host(std::mem::take(&mut capturing.written)), capturing)
            }
            other => (other, capturing),
        })
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        if self.has_ended {
            return;
        }
        match self.device.queue() {
            Queue::Dry => {}
            Queue::Host(queue) => queue.end_capture(),
            Queue::Cuda(queue) => queue.abort_capture(),
        }
        // What it kept goes when nothing is locked.
        drop(self.device.captures().end());
    }
}

impl Graph {
    /// Runs `step`, whose work on `device` is not done but written down. What it returns is in memory that each replay
    /// writes anew; until the first, there is nothing in it.
    ///
    /// Before, the device is waited for and cached memory goes back, as in PyTorch, since the graph's pool shares none.
    /// Run `step` once or more before capturing: what it makes on its first run only, such as an optimizer's states, must be
    /// there. Within it, on this device:
    ///
    /// - Work is on the thread's current stream; another stream's is done as always, and knows nothing of this.
    /// - Numbers cannot come or go: `from_slice`, `to_vec`, `item`, pinned memory, other devices. Make tensors for them
    ///   before, and [`copy_`](crate::Tensor::copy_) into these before each replay.
    /// - What the program decides is decided once: replays do the same work. An optimizer's options and steps and random
    ///   numbers go on as if the step were run.
    ///
    /// # Errors
    ///
    /// Those of `step`; and if another graph of the device is being captured, or if the device cannot capture something.
    #[track_caller]
    pub fn capture<T>(device: &Device, step: impl FnOnce() -> Result<T>) -> Result<(Self, T)> {
        let call = Call::here("capture");
        if device.captures().is_open() {
            return Err(under_way(call, device));
        }
        device.queue().synchronize(call)?;
        device.memory().empty_cache()?;
        let stream = device.create_stream().map_err(|error| call.driver(error))?;
        let mut pool = CapturePool::open(&stream)
            .map_err(|error| call.error(ErrorKind::Value, error.to_string()))?;
        let open = Open::begin(call, device, &stream)?;
        let result = with_stream(&stream, step)?;
        let (recorded, capturing) = open.finish(call)?;
        pool.close();
        let Capturing { theirs, own, refreshed, work, .. } = capturing;
        let alive = |it: &Touched<Weak<Storage>>| it.storage.strong_count() > 0;
        let graph = Self {
            device: device.clone(),
            recorded,
            theirs: theirs.into_values().collect(),
            own: own.into_values().filter(alive).collect(),
            refreshed: Mutex::new(refreshed),
            work,
            uses: Mutex::default(),
            _stream: stream,
            _pool: pool,
        };
        Ok((graph, result))
    }

    /// Queues the captured work on the thread's current stream, behind what uses the same memory. The caller goes on.
    ///
    /// # Errors
    ///
    /// If an optimizer has stepped some of its parameters alone since, if there is no pinned memory, or if the device fails.
    #[track_caller]
    pub fn replay(&self) -> Result<()> {
        let call = Call::here("replay");
        let device = &self.device;
        let stream = current_stream(device);
        device.captures().refuse(call, stream, "a graph cannot be captured into another one")?;
        let mut refreshed = self.refreshed.lock().unwrap_or_else(PoisonError::into_inner);
        // All before any: an error has changed nothing.
        let ready = refreshed.iter().try_for_each(|it| it.check());
        ready.map_err(|what| {
            call.error(ErrorKind::Value, what).help("capture the step again, as it is now")
        })?;
        refreshed.iter_mut().try_for_each(|it| it.write(call))?;
        let own: Vec<_> = self.own.iter().filter_map(Touched::upgrade).collect();
        let all = || self.theirs.iter().chain(&own);
        let written = all().filter(|it| it.written).map(|it| &it.storage.uses).chain([&self.uses]);
        let read = all().filter(|it| !it.written).map(|it| &it.storage.uses);
        match (device.queue(), &self.recorded) {
            (Queue::Host(queue), Recorded::Host(work)) => {
                queue.replay(call, stream, work, written, read)?;
            }
            (Queue::Cuda(queue), Recorded::Cuda(graph)) => {
                queue.replay(call, stream, graph, written, read)?;
            }
            _ => {}
        }
        all().filter(|it| it.written).for_each(|it| it.storage.written_by(call));
        device.add_work(self.work);
        Ok(())
    }

    /// How many pieces of work it has. On `dry`, where nothing is written down, as many kernels as there were.
    #[must_use]
    pub fn nodes(&self) -> usize {
        match &self.recorded {
            Recorded::Dry => usize::try_from(self.work.kernels).unwrap_or(usize::MAX),
            Recorded::Host(work) => work.len(),
            Recorded::Cuda(graph) => graph.nodes(),
        }
    }
}

fn under_way(call: Call, device: &Device) -> crate::error::Error {
    call.error(ErrorKind::Value, format!("a graph of {device} is being captured already"))
        .help("one at a time: finish that first")
}

/// Waits for the last replay: what it uses goes now.
impl Drop for Graph {
    fn drop(&mut self) {
        // Where waiting fails the device is lost, and with it the work.
        drop(self.device.queue().settle(Call::here("drop"), &self.uses));
    }
}

impl std::fmt::Debug for Graph {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Graph").field("device", &self.device).field("nodes", &self.nodes()).finish()
    }
}
