//! Work on this machine's threads.
//!
//! In:  kernels with their tensors, from any thread.
//! Out: each kernel run on its stream's thread, in the order of *exec*; what failed kept until the
//!      next synchronisation asks.
//!
//! Queued work holds addresses, not references to blocks. A block that is dropped meanwhile goes
//! back to the engine at once, as on a GPU: whoever gets its memory next queues behind, on any stream
//! (order 3 of *exec*). Were the
//! work to hold the last reference, the stream's thread would call the engine, in an order that
//! depends on timing, and could meet a thread that waits for the stream while it holds the engine.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc;
use std::sync::{Arc, Mutex};

use tonnage_device::DeviceError;
use tonnage_device::host::Streams;
use tonnage_memory::StreamId;

use super::args::Args;
use super::cores;
use super::order::{Order, lock};
use super::{Kernel, Operand, Used, operands};
use crate::error::{Call, ErrorKind, Result};
use crate::storage::Uses;

/// The queue of one host device.
pub(crate) struct HostQueue {
    order: Order<Streams>,
    failures: Arc<Mutex<Vec<Failure>>>,
}

/// Queued work that failed, and who queued it.
struct Failure {
    call: Call,
    message: String,
}

/// A kernel with its memory, written down to be run as often as wanted.
pub(crate) struct Written {
    call: Call,
    /// Kernels may be sent, not shared: whoever runs one has it alone.
    kernel: Mutex<Box<dyn Kernel>>,
    outputs: Vec<Operand>,
    inputs: Vec<Operand>,
}

impl Written {
    pub(crate) fn new(
        call: Call,
        kernel: Box<dyn Kernel>,
        outputs: &[Used<'_>],
        inputs: &[Used<'_>],
    ) -> Self {
        let [outputs, inputs] = [outputs, inputs].map(operands);
        Self { call, kernel: Mutex::new(kernel), outputs, inputs }
    }

    /// Runs it.
    ///
    /// # Safety
    ///
    /// As for [`run`].
    unsafe fn run(&self) -> Result<(), String> {
        let mut kernel = lock(&self.kernel);
        let kernel: &mut Box<dyn Kernel> = &mut kernel;
        // SAFETY: the caller's promise.
        unsafe { run(move |args| kernel.host(args), &self.outputs, &self.inputs) }
    }
}

impl HostQueue {
    pub(super) fn new(streams: Streams) -> Self {
        Self { order: Order::new(streams), failures: Arc::default() }
    }

    pub(super) fn launch(
        &self,
        call: Call,
        stream: StreamId,
        kernel: Box<dyn Kernel>,
        outputs: &[Used<'_>],
        inputs: &[Used<'_>],
    ) -> Result<()> {
        self.work(call, stream, outputs, inputs, move |args| kernel.host(args))
    }

    /// Queues work on memory.
    pub(super) fn work(
        &self,
        call: Call,
        stream: StreamId,
        outputs: &[Used<'_>],
        inputs: &[Used<'_>],
        work: impl FnOnce(&mut Args<'_>) -> Result<(), String> + Send + 'static,
    ) -> Result<()> {
        let [to, from] = [outputs, inputs].map(operands);
        // SAFETY: queued behind whatever else uses the operands.
        let work = move || unsafe { run(work, &to, &from) };
        self.queue(call, stream, outputs, inputs, work)
    }

    /// Queues work behind everything it depends on.
    fn queue(
        &self,
        call: Call,
        stream: StreamId,
        written: &[Used<'_>],
        read: &[Used<'_>],
        work: impl FnOnce() -> Result<(), String> + Send + 'static,
    ) -> Result<()> {
        let work = self.noting_failure(call, work);
        let queued =
            self.order.queue(stream, written, read, |streams| streams.launch(stream, work));
        queued.map_err(|error: DeviceError| call.driver(error))
    }

    /// The work, whose failure is kept with the call that queued it.
    fn noting_failure(
        &self,
        call: Call,
        work: impl FnOnce() -> Result<(), String> + Send + 'static,
    ) -> impl FnOnce() + Send + 'static {
        let failures = Arc::clone(&self.failures);
        move || {
            let message = match catch_unwind(AssertUnwindSafe(work)) {
                Ok(Ok(())) => return,
                Ok(Err(message)) => message,
                Err(panic) => format!("panicked: {}", text_of(&*panic)),
            };
            lock(&failures).push(Failure { call, message });
        }
    }

    /// From now on kernels on `stream` come as [`Written`] work, until [`end_capture`](Self::end_capture).
    pub(crate) fn begin_capture(&self, call: Call, stream: StreamId) -> Result<()> {
        let begun = self.order.begin_capture(stream, |_| Ok(()));
        begun.map_err(|error| call.driver(error))
    }

    pub(crate) fn end_capture(&self) {
        self.order.end_capture(|| ());
    }

    /// Queues work that was written down, piece by piece, behind everything that uses the same memory.
    ///
    /// # Safety
    ///
    /// 1. All memory that the work uses stays until it is done.
    /// 2. `written` and `read` have the notes of all of it, or nobody else uses it.
    pub(crate) unsafe fn replay<'a>(
        &self,
        call: Call,
        stream: StreamId,
        work: &[Arc<Written>],
        written: impl Iterator<Item = &'a Mutex<Uses>>,
        read: impl Iterator<Item = &'a Mutex<Uses>>,
    ) -> Result<()> {
        let queued = self.order.queue_using(stream, written, read, |streams| {
            work.iter().try_for_each(|piece| {
                let again = Arc::clone(piece);
                // SAFETY: promise 1; by promise 2 the pieces are as a whole behind whatever else uses their memory, and they
                // are on one stream, in the order in which they were written down.
                let again = move || unsafe { again.run() };
                streams.launch(stream, self.noting_failure(piece.call, again))
            })
        });
        queued.map_err(|error: DeviceError| call.driver(error))
    }

    /// Waits until no queued work uses some memory. Failures are left for the next synchronisation.
    pub(crate) fn settle(&self, call: Call, uses: &Mutex<Uses>) -> Result<()> {
        self.order.settle(uses).map_err(|error| call.driver(error))
    }

    /// Waits for all work.
    pub(super) fn wait_for_all(&self, call: Call) -> Result<()> {
        self.order.streams.synchronize_all().map_err(|error| call.driver(error))
    }

    /// Waits for all work, and reports the first that failed.
    pub(super) fn synchronize(&self, call: Call) -> Result<()> {
        let reached = self.wait_for_all(call);
        self.report()?;
        reached
    }

    /// Waits for one stream, and reports the first work that failed.
    pub(crate) fn synchronize_stream(&self, call: Call, stream: StreamId) -> Result<()> {
        let reached = self.order.streams.synchronize(stream).map_err(|error| call.driver(error));
        self.report()?;
        reached
    }

    fn report(&self) -> Result<()> {
        let failures = std::mem::take(&mut *lock(&self.failures));
        let Some(Failure { call, message }) = failures.first() else { return Ok(()) };
        let error = call.error(ErrorKind::Queued, message.clone());
        Err(match failures.len() - 1 {
            0 => error,
            more => error.with("and", format_args!("{more} more that were queued later")),
        })
    }

    /// Queues work that uses memory of two devices: it runs when both streams have come to it, and
    /// both go on when it is done.
    pub(super) fn launch_across(
        call: Call,
        kernel: Box<dyn Kernel>,
        (here, stream, output): (&Self, StreamId, &Used<'_>),
        (there, other, input): (&Self, StreamId, &Used<'_>),
    ) -> Result<()> {
        let (ready, is_ready) = mpsc::channel::<()>();
        let (done, is_done) = mpsc::channel::<()>();
        let (to, from) = ([output.operand.clone()], [input.operand.clone()]);
        let _across = cores::turn_across();
        there.queue(call, other, &[], std::slice::from_ref(input), move || {
            // If the other half was never queued its ends are gone, and there is nothing to wait for.
            let _ = ready.send(());
            let _ = is_done.recv();
            Ok(())
        })?;
        here.queue(call, stream, std::slice::from_ref(output), &[], move || {
            let _done = done;
            let _ = is_ready.recv();
            // SAFETY: queued behind what else uses the output; the other stream has come to its half,
            // which is queued behind what writes the input, and stands there until this is done.
            unsafe { run(move |args| kernel.host(args), &to, &from) }
        })
    }
}

/// Runs work on its memory.
///
/// # Safety
///
/// It is called from work that is queued, by orders 1 and 2 of *exec*, behind other work that writes
/// the inputs or uses the outputs, and before any that comes later.
unsafe fn run(
    work: impl FnOnce(&mut Args<'_>) -> Result<(), String> + Send,
    to: &[Operand],
    from: &[Operand],
) -> Result<(), String> {
    // SAFETY:
    // 1. Blocks, pinned or not, are mapped and aligned to 512 bytes or more, and layouts lie inside
    //    them. Mapped they stay until this work is done: the device drains or synchronises the
    //    stream before it gives memory back, and pinned memory waits for recorded streams.
    // 2. Other work is ordered by this function's promise. Work of a next owner of the memory is
    //    behind as well, on whichever stream: order 3. The caller's threads reach device memory through queued work only, and
    //    settle before they touch pinned memory.
    // 3. Checked by `Call::launch`: order 4. Pinned memory and blocks never overlap.
    let mut args = unsafe { Args::new(to, from) };
    // The work alone: what waits for another stream must not do so where kernels look for threads.
    cores::run(move || work(&mut args))
}

fn text_of(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("with no text")
}
