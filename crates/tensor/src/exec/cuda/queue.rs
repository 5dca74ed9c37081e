//! Plans onto CUDA streams.
//!
//! In:  kernels with their tensors, transfers, from any thread.
//! Out: launches and copies on the current stream, in the order of *exec*; the caller goes on. Nothing here takes the
//!      allocator's lock.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

use tonnage_cuda_libs::blas::{Blas, Math};
use tonnage_cuda_libs::cache::Cache;
use tonnage_cuda_libs::dnn::Dnn;
use tonnage_cuda_libs::find::Search;
use tonnage_cuda_libs::{Error as LibraryError, Kernels};
use tonnage_device::cuda::{Capture, Function, Graph, Launcher};
use tonnage_device::{DeviceError, EventId};
use tonnage_events::Address;
use tonnage_memory::{PinnedBlock, StreamId};

use super::failures::Failures;
use super::plan::{Launch, LibraryConvolution, LibraryProduct, Operands, Plan, Program};
use super::profile::{Profile, WorkTime};
use crate::device::Device;
use crate::error::{Call, Error, ErrorKind, Result};
use crate::exec::order::{Order, lock};
use crate::exec::{Kernel, Operand, Used, cores, operands};
use crate::storage::Uses;

/// Dynamic shared memory that a kernel gets unasked.
const SHARED: u32 = 48 << 10;

/// Pinned memory of one copy from or to the caller's: what is larger goes in parts.
const STAGED: usize = 32 << 20;

/// The queue of one GPU.
pub(crate) struct CudaQueue {
    order: Order<Launcher>,
    search: Search,
    kernels: Kernels,
    /// Functions by what they were compiled from, which is looked up at every launch.
    functions: RwLock<HashMap<Program, Known>>,
    /// Loaded with the first product. One that does not start is tried again: the GPU may have been full.
    blas: OnceLock<Blas>,
    /// Loaded with the first convolution.
    dnn: OnceLock<Dnn>,
    failures: Arc<Failures>,
    profile: Profile,
    /// The capture that is under way, and the tickets of its launches.
    capture: Mutex<Option<(Capture, Vec<u32>)>>,
}

/// Captured work of a GPU.
pub(crate) struct CudaGraph {
    graph: Graph,
    tickets: Vec<u32>,
    failures: Arc<Failures>,
}

impl CudaGraph {
    pub(crate) fn nodes(&self) -> usize {
        self.graph.nodes()
    }
}

impl Drop for CudaGraph {
    fn drop(&mut self) {
        self.failures.give_up(&self.tickets);
    }
}

/// A function, and how much dynamic shared memory its launches may have by now.
struct Known {
    function: Function,
    allowed: Mutex<u32>,
}

impl Known {
    /// The function, once launches with so much shared memory are allowed.
    fn allowing(&self, shared: u32) -> Result<Function, DeviceError> {
        let mut allowed = lock(&self.allowed);
        if shared > *allowed {
            self.function.allow_shared(shared)?;
            *allowed = shared;
        }
        Ok(self.function.clone())
    }
}

/// A mark on a stream, forgotten when dropped.
struct Mark<'a> {
    launcher: &'a Launcher,
    event: EventId,
}

impl Drop for Mark<'_> {
    fn drop(&mut self) {
        // A mark that is not forgotten costs an event until the device goes.
        drop(self.launcher.destroy_event(self.event));
    }
}

/// A launch, ready to be queued.
struct Ready {
    function: Function,
    launch: Launch,
}

impl CudaQueue {
    /// The queue of a GPU, whose compiler and libraries are looked for there and whose kernels are kept there.
    pub(crate) fn new(
        launcher: Launcher,
        search: Search,
        cache: Cache,
    ) -> Result<Self, DeviceError> {
        let search = search.for_driver(launcher.driver().version()?);
        Ok(Self {
            kernels: Kernels::with(launcher.clone(), search.clone(), cache),
            search,
            order: Order::new(launcher),
            functions: RwLock::default(),
            blas: OnceLock::new(),
            dnn: OnceLock::new(),
            failures: Arc::default(),
            profile: Profile::default(),
            capture: Mutex::default(),
        })
    }

    pub(crate) fn launcher(&self) -> &Launcher {
        &self.order.streams
    }

    /// Queues a kernel.
    pub(crate) fn launch(
        &self,
        call: Call,
        (device, stream): (&Device, StreamId),
        kernel: &dyn Kernel,
        outputs: &[Used<'_>],
        inputs: &[Used<'_>],
    ) -> Result<()> {
        let [to, from] = [outputs, inputs].map(operands);
        match kernel.cuda(Operands { outputs: &to, inputs: &from }) {
            Plan::Launches(launches) => {
                self.launch_programs(call, (device, stream), launches, outputs, inputs)
            }
            Plan::Convolution(convolution) => {
                let LibraryConvolution { mut convolution, operands, by_definition, then } =
                    *convolution;
                convolution.math = math(device);
                let dnn = self.dnn(call)?;
                // Chosen before this work's turn: others need not wait for it.
                let has_engine = dnn.prepare(&convolution, &operands);
                if !has_engine.map_err(|error| library(call, error))? {
                    let launches = std::iter::once(by_definition).chain(then).collect();
                    return self.launch_programs(call, (device, stream), launches, outputs, inputs);
                }
                let ready = self.prepare_all(call, (device, stream), then)?;
                let queued = self.order.queue(stream, outputs, inputs, |launcher| {
                    self.profile.measure(
                        launcher,
                        stream,
                        || convolution.to_string(),
                        // SAFETY: the operands are whole tensors of the sizes that the plan took from them, and a workspace
                        // of the bytes that it names, all blocks of this stream or recorded for it; others use them in the
                        // order of *exec*.
                        || unsafe { dnn.convolve(&convolution, &operands, stream) },
                    )?;
                    self.queue_all(launcher, stream, &ready).map_err(LibraryError::from)
                });
                queued.map_err(|error| library(call, error))
            }
            Plan::Product(product) => {
                let LibraryProduct { mut product, mut operands } = *product;
                product.math = math(device);
                let blas = self.blas(call)?;
                let Some(workspace) = device.workspaces().held(stream) else {
                    let what = "a product was queued without its workspace";
                    return Err(call.error(ErrorKind::NoKernel, what));
                };
                operands.workspace = workspace;
                // Chosen before this work's turn: others need not wait for it.
                blas.prepare(&product, &operands).map_err(|error| library(call, error))?;
                let queued = self.order.queue(stream, outputs, inputs, |launcher| {
                    self.profile.measure(
                        launcher,
                        stream,
                        || product.to_string(),
                        // SAFETY: the layouts of the operands lie inside their blocks, which stay until this work is done,
                        // and the plan took sizes and strides from them. The workspace is this stream's, in whose order
                        // products use it.
                        || unsafe { blas.multiply(&product, &operands, stream) },
                    )
                });
                queued.map_err(|error| library(call, error))
            }
        }
    }

    /// Queues launches one after the other.
    fn queue_all(
        &self,
        launcher: &Launcher,
        stream: StreamId,
        ready: &[Ready],
    ) -> Result<(), DeviceError> {
        ready.iter().try_for_each(|Ready { function, launch }| {
            self.profile.measure(
                launcher,
                stream,
                || launch.program.name.to_string(),
                // SAFETY: the function is of this device; its arguments are what the plan gives a program that it wrote
                // itself. They are addresses of blocks and pinned memory, which stay until this work is done (see
                // `exec::host::run`), and others use them in the order of *exec*. The table of functions keeps the module.
                || unsafe { launcher.launch(function, launch.extent, stream, &launch.arguments) },
            )
        })
    }

    /// From now on what is queued on `stream` is captured: until [`end_capture`](Self::end_capture) or
    /// [`abort_capture`](Self::abort_capture).
    pub(crate) fn begin_capture(&self, call: Call, stream: StreamId) -> Result<()> {
        let mut open = lock(&self.capture);
        self.profile.pause(true);
        let begun = self.order.begin_capture(stream, |launcher| launcher.capture(stream));
        let capture = begun.map_err(|error| call.driver(error))?;
        *open = Some((capture, Vec::new()));
        Ok(())
    }

    /// Ends it.
    pub(crate) fn end_capture(&self, call: Call) -> Result<CudaGraph> {
        let Some((ended, tickets)) = self.take_capture(Capture::finish) else {
            return Err(call.error(ErrorKind::Value, "no graph is being captured"));
        };
        match ended {
            Ok(graph) => Ok(CudaGraph { graph, tickets, failures: Arc::clone(&self.failures) }),
            Err(error) => {
                self.failures.give_up(&tickets);
                Err(call.driver(error))
            }
        }
    }

    /// Ends it, and forgets what was captured. Nothing happens if none is under way.
    pub(crate) fn abort_capture(&self) {
        if let Some(((), tickets)) = self.take_capture(drop) {
            self.failures.give_up(&tickets);
        }
    }

    fn take_capture<T>(&self, end: impl FnOnce(Capture) -> T) -> Option<(T, Vec<u32>)> {
        let open = lock(&self.capture).take();
        // Others wait until the driver knows: they must not come to be part of it.
        let ended = self.order.end_capture(|| open.map(|(open, tickets)| (end(open), tickets)));
        self.profile.pause(false);
        ended
    }

    /// Queues captured work behind everything that uses the same memory.
    ///
    /// # Safety
    ///
    /// 1. The graph is of this device, and all memory that it uses stays until the work is done.
    /// 2. `written` and `read` have the notes of all of it, or nobody else uses it.
    pub(crate) unsafe fn replay<'a>(
        &self,
        call: Call,
        stream: StreamId,
        graph: &CudaGraph,
        written: impl Iterator<Item = &'a Mutex<Uses>>,
        read: impl Iterator<Item = &'a Mutex<Uses>>,
    ) -> Result<()> {
        let queued = self.order.queue_using(stream, written, read, |launcher| {
            self.profile.measure(
                launcher,
                stream,
                || "graph".to_owned(),
                // SAFETY: promise 1; by promise 2 others use its memory in the order of *exec*. Our functions stay loaded as
                // long as this queue, cuDNN keeps the plans that were captured, and a graph keeps the device.
                || unsafe { launcher.launch_graph(&graph.graph, stream) },
            )
        });
        queued.map_err(|error: DeviceError| call.driver(error))
    }

    /// Measures how long work takes from now on.
    pub(crate) fn start_profile(&self) {
        self.profile.start();
    }

    /// Ends measuring.
    pub(crate) fn take_profile(&self, call: Call) -> Result<Vec<WorkTime>> {
        self.profile.take().map_err(|error| call.driver(error))
    }

    fn launch_programs(
        &self,
        call: Call,
        (device, stream): (&Device, StreamId),
        launches: Vec<Launch>,
        outputs: &[Used<'_>],
        inputs: &[Used<'_>],
    ) -> Result<()> {
        let ready = self.prepare_all(call, (device, stream), launches)?;
        let queued = self
            .order
            .queue(stream, outputs, inputs, |launcher| self.queue_all(launcher, stream, &ready));
        queued.map_err(|error: DeviceError| call.driver(error))
    }

    fn prepare_all(
        &self,
        call: Call,
        on: (&Device, StreamId),
        launches: Vec<Launch>,
    ) -> Result<Vec<Ready>> {
        launches.into_iter().map(|launch| self.prepare(call, on, launch)).collect()
    }

    fn prepare(&self, call: Call, on: (&Device, StreamId), mut launch: Launch) -> Result<Ready> {
        let function = self.function(call, &launch)?;
        if let Some(complaint) = launch.complaint.take() {
            let mut capture = lock(&self.capture);
            let capture = capture.as_mut().filter(|it| it.0.stream() == on.1);
            let on = (on.0, on.1, capture.is_some());
            let ticket = self.failures.attach(call, on, complaint, &mut launch.arguments)?;
            if let Some((_, tickets)) = capture {
                tickets.push(ticket);
            }
        }
        Ok(Ready { function, launch })
    }

    fn function(&self, call: Call, launch: &Launch) -> Result<Function> {
        let (program, shared) = (&launch.program, launch.extent.shared);
        let functions = self.functions.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = functions.get(program) {
            return known.allowing(shared).map_err(|error| call.driver(error));
        }
        drop(functions);
        let function = self
            .kernels
            .function(&program.source(), &program.function())
            .map_err(|error| library(call, error))?;
        let mut functions = self.functions.write().unwrap_or_else(PoisonError::into_inner);
        let known = functions
            .entry(program.clone())
            .or_insert(Known { function, allowed: Mutex::new(SHARED) });
        known.allowing(shared).map_err(|error| call.driver(error))
    }

    fn blas(&self, call: Call) -> Result<&Blas> {
        self.library(call, &self.blas, Blas::load)
    }

    fn dnn(&self, call: Call) -> Result<&Dnn> {
        self.library(call, &self.dnn, Dnn::load)
    }

    fn library<'a, L>(
        &self,
        call: Call,
        place: &'a OnceLock<L>,
        load: impl FnOnce(Launcher, &Search) -> Result<L, LibraryError>,
    ) -> Result<&'a L> {
        if let Some(loaded) = place.get() {
            return Ok(loaded);
        }
        let loaded = load(self.launcher().clone(), &self.search);
        let loaded = loaded.map_err(|error| library(call, error))?;
        // Two threads at once load two, and one is kept.
        Ok(place.get_or_init(|| loaded))
    }

    /// Queues a copy of numbers to a new tensor, whose elements lie one after the other. Many go in parts, and wait for
    /// the pinned memory of the part before the last.
    pub(crate) fn upload(
        &self,
        call: Call,
        (device, stream): (&Device, StreamId),
        bytes: &[u8],
        to: &Used<'_>,
    ) -> Result<()> {
        let mut marks: VecDeque<Mark<'_>> = VecDeque::new();
        let mut first = Address(to.operand.first());
        for part in bytes.chunks(STAGED) {
            if marks.len() == 2
                && let Some(mark) = marks.pop_front()
            {
                self.launcher().wait(mark.event).map_err(|error| call.driver(error))?;
            }
            let mut staged =
                device.pinned().allocate(part.len() as u64).map_err(|error| call.pinned(error))?;
            staged.try_as_mut_slice().map_err(|error| call.pinned(error))?.copy_from_slice(part);
            staged.record_stream(stream);
            let from = staged.pointer().cast::<u8>();
            let queued = self.order.queue(stream, std::slice::from_ref(to), &[], |launcher| {
                // SAFETY: pinned memory that was written before and waits for the recorded stream; the tensor's elements
                // from there on are at least as many bytes, and others use them in the order of *exec*.
                unsafe { launcher.copy_to_device(first, from, part.len(), stream) }
            });
            queued.map_err(|error: DeviceError| call.driver(error))?;
            if bytes.len() > STAGED {
                marks.push_back(self.mark(call, stream)?);
            }
            first = first.offset(part.len() as u64);
        }
        Ok(())
    }

    fn mark(&self, call: Call, stream: StreamId) -> Result<Mark<'_>> {
        let launcher = self.launcher();
        let event = launcher.record(stream).map_err(|error| call.driver(error))?;
        Ok(Mark { launcher, event })
    }

    /// The memory from a tensor's first element to its last, when it is computed: bytes, by way of pinned memory in parts,
    /// which are copied at one turn, so that nobody writes the tensor between two of them.
    pub(crate) fn download(
        &self,
        call: Call,
        (device, stream): (&Device, StreamId),
        from: &Used<'_>,
    ) -> Result<Vec<u8>> {
        let (span, size) = (from.operand.layout.span(), from.operand.dtype.size());
        let bytes = span.len() * size;
        if bytes == 0 {
            return Ok(Vec::new());
        }
        let sizes = (0..bytes).step_by(STAGED).map(|start| STAGED.min(bytes - start));
        let parts = sizes.map(|size| {
            let staged = device.pinned().allocate(size as u64)?;
            staged.record_stream(stream);
            Ok(staged)
        });
        let parts: Vec<PinnedBlock> =
            parts.collect::<Result<_, _>>().map_err(|error| call.pinned(error))?;
        let first = Address(from.operand.address + (span.start * size) as u64);
        let queued = self.order.queue(stream, &[], std::slice::from_ref(from), |launcher| {
            parts.iter().enumerate().try_for_each(|(place, staged)| {
                let from = first.offset((place * STAGED) as u64);
                // SAFETY: pinned memory of so many bytes that nobody uses and that waits for the recorded stream; the span
                // lies in the tensor's block, and others use it in the order of *exec*.
                unsafe {
                    launcher.copy_to_host(staged.pointer().cast(), from, staged.len(), stream)
                }
            })
        });
        queued.map_err(|error: DeviceError| call.driver(error))?;
        self.synchronize_stream(call, stream)?;
        let mut all = Vec::with_capacity(bytes);
        for staged in parts {
            all.extend_from_slice(staged.try_as_slice().map_err(|error| call.pinned(error))?);
        }
        Ok(all)
    }

    /// Queues a copy between a tensor and pinned memory, if both lie alike; otherwise a kernel does it.
    pub(crate) fn copy_pinned(
        &self,
        call: Call,
        (device, stream): (&Device, StreamId),
        kernel: &dyn Kernel,
        (to, from): (&Used<'_>, &Used<'_>),
        to_pinned: bool,
    ) -> Result<()> {
        let plain = lie_alike(&to.operand, &from.operand);
        let (one, other) = (std::slice::from_ref(to), std::slice::from_ref(from));
        if !plain {
            return self.launch(call, (device, stream), kernel, one, other);
        }
        let bytes = to.operand.layout.numel() * to.operand.dtype.size();
        let (to, from) = (to.operand.first(), from.operand.first());
        let queued = self.order.queue(stream, one, other, |launcher| {
            if to_pinned {
                let to = std::ptr::with_exposed_provenance_mut(to as usize);
                // SAFETY: `to` is pinned memory of so many bytes, which waits for the recorded stream, `from` a block of as
                // many; others use them in the order of *exec*.
                unsafe { launcher.copy_to_host(to, Address(from), bytes, stream) }
            } else {
                let from = std::ptr::with_exposed_provenance(from as usize);
                // SAFETY: the same, the other way.
                unsafe { launcher.copy_to_device(Address(to), from, bytes, stream) }
            }
        });
        queued.map_err(|error: DeviceError| call.driver(error))
    }

    /// Queues a copy from a tensor of another GPU, or of another engine on the same, if both lie alike; says whether it
    /// did. The stream of each waits for that of the other; the caller does not.
    pub(crate) fn copy_across(
        &self,
        call: Call,
        (stream, to): (StreamId, &Used<'_>),
        (there, other, from): (&Self, StreamId, &Used<'_>),
    ) -> Result<bool> {
        if !lie_alike(&to.operand, &from.operand) {
            return Ok(false);
        }
        let bytes = (to.operand.layout.numel() * to.operand.dtype.size()) as u64;
        let (into, first) = (Address(to.operand.first()), Address(from.operand.first()));
        // One after the other, or two in opposite order would wait for each other.
        let _across = cores::turn_across();
        let queued = there.order.queue(other, &[], std::slice::from_ref(from), |theirs| {
            self.order.queue(stream, std::slice::from_ref(to), &[], |launcher| {
                launcher.order_behind_of(stream, (theirs, other))?;
                // SAFETY: the output is a block of this device, which others use in the order of *exec*. The input is one of
                // the other's: the copy is behind what writes it, by the other stream, which is then put behind the copy;
                // meanwhile nobody else queues work there, since this has that device's turn.
                unsafe { launcher.copy_from(into, (theirs, first), bytes, stream) }?;
                // If the other stream cannot be told to wait, the caller does.
                let waits = theirs.order_behind_of(other, (launcher, stream));
                waits.or_else(|_| launcher.synchronize(stream))
            })
        });
        queued.map_err(|error: DeviceError| call.driver(error))?;
        Ok(true)
    }

    /// Waits until no queued work uses some memory. Failures are left for the next synchronisation.
    pub(crate) fn settle(&self, call: Call, uses: &Mutex<Uses>) -> Result<()> {
        self.order.settle(uses).map_err(|error| call.driver(error))
    }

    /// Waits for all work.
    pub(crate) fn wait_for_all(&self, call: Call) -> Result<()> {
        self.launcher().synchronize_all().map_err(|error| call.driver(error))
    }

    /// Waits for all work, and reports what failed.
    pub(crate) fn synchronize(&self, call: Call) -> Result<()> {
        let reached = self.wait_for_all(call);
        self.failures.report()?;
        reached
    }

    /// Waits for one stream, and reports what failed.
    pub(crate) fn synchronize_stream(&self, call: Call, stream: StreamId) -> Result<()> {
        let reached = self.launcher().synchronize(stream).map_err(|error| call.driver(error));
        self.failures.report()?;
        reached
    }
}

/// How products of `f32` are computed.
fn math(device: &Device) -> Math {
    if device.allows_tf32() { Math::Tf32 } else { Math::Full }
}

/// Whether a copy of one to the other is one of bytes.
fn lie_alike(to: &Operand, from: &Operand) -> bool {
    let is_plain = |it: &Operand| it.layout.is_contiguous() && !it.conj;
    to.dtype == from.dtype && is_plain(to) && is_plain(from)
}

/// What a library said, to the caller of an operation.
fn library(call: Call, error: LibraryError) -> Error {
    match error {
        LibraryError::Device(error) => call.driver(error),
        other => call.error(ErrorKind::NoKernel, other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tf32_is_used_only_where_it_is_allowed() {
        let device = Device::dry("1 GiB").unwrap();
        assert_eq!(math(&device), Math::Full);
        device.allow_tf32(true);
        assert_eq!(math(&device), Math::Tf32);
        device.allow_tf32(false);
        assert_eq!(math(&device), Math::Full);
    }
}
