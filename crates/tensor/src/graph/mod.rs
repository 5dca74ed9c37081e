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
//! Whoever reads a tensor of the pool on another stream is in its notes, which the graph keeps: a replay waits for that also
//! when the tensor is gone.
//!
//! # What differs from one replay to the next
//!
//! Arguments of kernels are written down with them. What must not be, such as an optimizer's learning rate and step or
//! where a generator stands, lies in memory instead, and is written there before each replay: see [`Refreshed`].

mod capturing;

#[cfg(test)]
mod tests;

use std::sync::{Arc, Mutex, PoisonError};

pub(crate) use capturing::{Captures, Numbers, Refreshed};
use capturing::{Capturing, Own, Theirs};
use tonnage_memory::{CapturePool, Stream, current_stream, with_stream};

use crate::amp::copies_apart;
use crate::device::Device;
use crate::error::{Call, ErrorKind, Result};
use crate::exec::{CudaGraph, Queue, Written};
use crate::storage::Uses;
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
    recorded: Recorded,
    /// Memory from before, or of other streams.
    theirs: Vec<Theirs>,
    /// Tensors of the pool that were there when the capture ended.
    own: Vec<Own>,
    /// Written before each replay. Held until it is queued: replays take turns.
    refreshed: Mutex<Vec<Refreshed>>,
    work: QueuedWork,
    /// Of all memory of the pool.
    uses: Mutex<Uses>,
    // In this order: what products on the stream use lies in the pool, and the device's libraries have the code.
    _stream: Stream,
    pool: CapturePool,
    device: Device,
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
    /// From here on no other may begin. Nothing is written down yet.
    fn claim(call: Call, device: &'a Device, stream: &Stream) -> Result<Self> {
        if device.captures().begin(Capturing::new(stream.id())) {
            return Ok(Self { device, has_ended: false });
        }
        let what = format!("a graph of {device} is being captured already");
        Err(call.error(ErrorKind::Value, what).help("one at a time: finish that first"))
    }

    fn begin(&self, call: Call, stream: &Stream) -> Result<()> {
        match self.device.queue() {
            Queue::Dry => Ok(()),
            Queue::Host(queue) => queue.begin_capture(call, stream.id()),
            Queue::Cuda(queue) => queue.begin_capture(call, stream.id()),
        }
    }

    /// Nothing is written down from now on: the work. That of a host device is still to come.
    fn end_work(&self, call: Call) -> Result<Recorded> {
        Ok(match self.device.queue() {
            Queue::Dry => Recorded::Dry,
            Queue::Host(queue) => {
                queue.end_capture();
                Recorded::Host(Vec::new())
            }
            Queue::Cuda(queue) => Recorded::Cuda(queue.end_capture(call)?),
        })
    }

    /// Ends it: what was noted. From here on another may begin.
    fn end(mut self) -> Option<Capturing> {
        self.has_ended = true;
        self.device.captures().end()
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
    /// Before, the device is waited for and cached memory goes back, as in PyTorch, since the graph's pool shares none; nor do
    /// graphs share pools. Run `step` once or more before capturing: what it makes on its first run only, such as an
    /// optimizer's states, must be there. Within it, on this device:
    ///
    /// - Work is on the thread's current stream; another stream's is done as always, and cannot use what the capture makes.
    /// - Numbers cannot come or go: `from_slice`, `to_vec`, `item`, pinned memory, other devices. Make tensors for them
    ///   before, and [`copy_`](crate::Tensor::copy_) into these before each replay.
    /// - What the program decides is decided once: replays do the same work. An optimizer's options and steps and random
    ///   numbers go on as if the step were run; a seed is set once, when the step is captured.
    ///
    /// If `step` fails behind a backward, gradients are left that were never computed: drop them.
    ///
    /// # Errors
    ///
    /// Those of `step`; and if another graph of the device is being captured, or if the device cannot capture something.
    #[track_caller]
    pub fn capture<T>(device: &Device, step: impl FnOnce() -> Result<T>) -> Result<(Self, T)> {
        let call = Call::here("capture");
        let stream = device.create_stream().map_err(|error| call.driver(error))?;
        // Dropped after the claim: the allocator knows of the capture until the driver has ended it.
        let mut pool;
        let open = Open::claim(call, device, &stream)?;
        device.queue().synchronize(call)?;
        device.memory().empty_cache()?;
        pool = CapturePool::open(&stream)
            .map_err(|error| call.error(ErrorKind::Value, error.to_string()))?;
        open.begin(call, &stream)?;
        let result = with_stream(&stream, || {
            let _apart = copies_apart();
            step()
        })?;
        let recorded = open.end_work(call)?;
        pool.close();
        let Some(Capturing { theirs, own, refreshed, work, written, .. }) = open.end() else {
            return Err(call.error(ErrorKind::Value, "the capture has ended already"));
        };
        let graph = Self {
            recorded: match recorded {
                Recorded::Host(_) => Recorded::Host(written),
                other => other,
            },
            theirs: theirs.into_values().collect(),
            own: own.into_values().filter(|it| it.storage.strong_count() > 0).collect(),
            refreshed: Mutex::new(refreshed),
            work,
            uses: Mutex::default(),
            _stream: stream,
            pool,
            device: device.clone(),
        };
        Ok((graph, result))
    }

    /// Queues the captured work on the thread's current stream, behind what uses the same memory. The caller goes on.
    ///
    /// # Errors
    ///
    /// If an optimizer has stepped some of its parameters alone since, if there is no pinned memory, or if the device fails.
    /// The optimizer has then not stepped; what random numbers the replay would have had nobody gets.
    #[track_caller]
    pub fn replay(&self) -> Result<()> {
        let call = Call::here("replay");
        let device = &self.device;
        let stream = current_stream(device);
        device.captures().refuse(call, stream, "a graph cannot be captured into another one")?;
        let mut refreshed = self.refreshed.lock().unwrap_or_else(PoisonError::into_inner);
        let numbers = refreshed.iter_mut().map(Refreshed::next).collect::<Result<Vec<_>, _>>();
        let numbers = numbers.map_err(|what| {
            call.error(ErrorKind::Value, what).help("capture the step again, as it is now")
        })?;
        refreshed.iter().zip(numbers).try_for_each(|(it, numbers)| it.write(call, numbers))?;
        let theirs = self.theirs.iter().filter(|it| it.written).map(Theirs::uses);
        let own = self.own.iter().map(|it| &*it.uses);
        let written = theirs.chain(own).chain([&self.uses]);
        let read = self.theirs.iter().filter(|it| !it.written).map(Theirs::uses);
        match (device.queue(), &self.recorded) {
            (Queue::Host(queue), Recorded::Host(work)) => {
                // SAFETY: this graph keeps its pool and all memory from outside that the work uses, and waits for its last
                // replay when it is dropped; `written` and `read` are the notes of all of it.
                unsafe { queue.replay(call, stream, work, written, read) }?;
            }
            (Queue::Cuda(queue), Recorded::Cuda(graph)) => {
                // SAFETY: as above; the graph is of this device.
                unsafe { queue.replay(call, stream, graph, written, read) }?;
            }
            _ => {}
        }
        refreshed.iter_mut().for_each(Refreshed::done);
        let theirs = self.theirs.iter().filter(|it| it.written).map(|it| &it.storage);
        theirs.for_each(|it| it.written_by(call));
        let own = self.own.iter().filter_map(|it| it.storage.upgrade());
        own.for_each(|it| it.written_by(call));
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

/// Waits for the last replay: what it uses goes now.
impl Drop for Graph {
    fn drop(&mut self) {
        let (call, queue) = (Call::here("drop"), self.device.queue());
        // Each of them asks the driver in its own way; one call of it may fail alone.
        let settled = queue.settle(call, &self.uses).or_else(|_| queue.settle(call, &self.uses));
        // What failed inside of kernels is not for this one to report, and is no reason to wait no longer.
        let settled = settled.is_ok() || queue.wait_for_all(call).is_ok();
        if !settled {
            // The work may still run: its memory is nobody's from now on.
            std::mem::forget(std::mem::take(&mut self.theirs));
            self.pool.leak();
        }
    }
}

impl std::fmt::Debug for Graph {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Graph").field("device", &self.device).field("nodes", &self.nodes()).finish()
    }
}
