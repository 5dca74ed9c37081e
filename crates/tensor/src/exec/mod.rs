//! The execution seam: how an operation's arithmetic gets onto a device.
//!
//! In:  a [`Kernel`], a description as plain data, with the tensors it writes and reads.
//! Out: on `host`, the kernel queued on the current stream, the caller goes on; on `dry`, nothing.
//!
//! An operation never asks on which device it runs: it checks shapes, allocates its outputs and
//! calls [`Call::launch`]. A [`Kernel`] says how each kind of device computes it: [`Kernel::host`] does so, on slices;
//! [`Kernel::cuda`] gives a plan, as data, so that it can be looked at and compiled without a GPU.
//!
//! Numbers from and to the caller are no kernels: [`Call::upload`], [`Call::download`].
//!
//! # Order, and why nothing here can race
//!
//! 1. Work on one stream runs in the order in which it was queued.
//! 2. Before work on a stream reads memory that another stream wrote last, or writes memory that
//!    another stream uses, the stream waits for the other ([`Storage::uses`](crate::storage::Storage)).
//!    One lock per device makes "look, queue, note" one step.
//! 3. Memory that a stream other than its own uses is recorded for it, so that the engine does not
//!    hand it out again before that stream is done. What is still queued on its own stream when it
//!    is handed out again is behind by order 1 for work on that stream, and by order 2 for work on
//!    any other: to its next owner, a block's own stream is the one that wrote last.
//! 4. Within one kernel, outputs overlap neither each other nor inputs: checked here.
//!
//! Work of a stream whose work is captured is in nobody's notes, since it is not done. A replay is one piece of work that
//! uses all that its pieces use, and orders 1 to 3 hold for it as a whole: see *graph*.

mod args;

mod cores;

pub(crate) mod cuda;

mod host;

mod order;

mod parallel;

mod product;

use std::any::Any;
use std::sync::{Mutex, mpsc};

pub(crate) use args::{Args, Input, Output};
pub use cores::after_fork;
pub(crate) use cuda::{CudaGraph, CudaQueue, Operands, Plan};
pub(crate) use host::{HostQueue, Written};
pub(crate) use parallel::{
    CHUNK, fill_with, for_each_chunk, for_each_piece, map1, map2, map3, rows, slices, update1,
    update2, vectorised,
};
pub(crate) use product::{Matrix, Product, product};
use tonnage_device::host::Streams;
use tonnage_memory::{StreamId, current_stream};

use crate::dtype::{DType, Stored, dispatch};
use crate::error::{Call, ErrorKind, Result};
use crate::shape::Layout;
use crate::storage::Uses;
use crate::tensor::Tensor;
use crate::transfer::Pinned;
use crate::work::{QueuedWork, bytes_of, numbers};

/// Arithmetic as data: which function with which numbers. What it works on comes with the launch.
pub(crate) trait Kernel: Any + Send {
    /// Computes, on this machine. Runs on a stream's thread.
    ///
    /// # Errors
    ///
    /// If values are wrong, such as an index that is too large: what was wrong, for the caller to
    /// read at the next synchronisation.
    fn host(&self, args: &mut Args<'_>) -> Result<(), String>;

    /// How a GPU computes it.
    fn cuda(&self, on: Operands<'_>) -> Plan;

    /// How much arithmetic that is: see [`QueuedWork`].
    fn operations(&self, outputs: &[&Tensor]) -> f64 {
        outputs.iter().map(|it| numbers(it.shape())).sum()
    }

    /// How many bytes it reads and writes. What updates its outputs in place reads them too, and says so.
    fn bytes(&self, outputs: &[&Tensor], inputs: &[&Tensor]) -> f64 {
        bytes_of(outputs) + bytes_of(inputs)
    }
}

/// Where a device's work goes.
pub(crate) enum Queue {
    /// Nowhere: shapes and allocations are all that happens.
    Dry,
    /// To threads of this machine.
    Host(HostQueue),
    /// To the streams of a GPU.
    Cuda(Box<CudaQueue>),
}

/// Memory that a kernel uses: the elements of one tensor.
#[derive(Clone, Debug)]
pub(crate) struct Operand {
    pub(crate) dtype: DType,
    pub(crate) layout: Layout,
    /// Whether the numbers are the conjugates of those in memory; of inputs only.
    pub(crate) conj: bool,
    /// Where element 0 of the storage lies; 0 if there is none.
    pub(crate) address: u64,
}

/// An operand, and the note of who uses its memory.
pub(crate) struct Used<'a> {
    pub(crate) operand: Operand,
    pub(crate) uses: &'a Mutex<Uses>,
}

impl<'a> Used<'a> {
    pub(crate) fn tensor(tensor: &'a Tensor) -> Self {
        let storage = tensor.storage();
        let address = storage.block().map_or(0, |block| block.address().0);
        let (dtype, layout, conj) = (tensor.dtype(), tensor.layout().clone(), tensor.is_conj());
        Self { operand: Operand { dtype, layout, conj, address }, uses: &storage.uses }
    }

    fn tensors(tensors: &[&'a Tensor]) -> Vec<Self> {
        tensors.iter().map(|tensor| Self::tensor(tensor)).collect()
    }
}

fn operands(used: &[Used<'_>]) -> Vec<Operand> {
    used.iter().map(|used| used.operand.clone()).collect()
}

impl Queue {
    pub(crate) fn host(streams: Streams) -> Self {
        Self::Host(HostQueue::new(streams))
    }

    /// Waits for all work, and reports what failed.
    pub(crate) fn synchronize(&self, call: Call) -> Result<()> {
        match self {
            Self::Dry => Ok(()),
            Self::Host(queue) => queue.synchronize(call),
            Self::Cuda(queue) => queue.synchronize(call),
        }
    }

    /// Waits for all work, whatever became of it.
    pub(crate) fn wait_for_all(&self, call: Call) -> Result<()> {
        match self {
            Self::Dry => Ok(()),
            Self::Host(queue) => queue.wait_for_all(call),
            Self::Cuda(queue) => queue.wait_for_all(call),
        }
    }

    /// Waits until no queued work uses some memory. Failures are left for the next synchronisation.
    pub(crate) fn settle(&self, call: Call, uses: &Mutex<Uses>) -> Result<()> {
        match self {
            Self::Dry => Ok(()),
            Self::Host(queue) => queue.settle(call, uses),
            Self::Cuda(queue) => queue.settle(call, uses),
        }
    }
}

impl Call {
    /// Queues a kernel on the current stream of the outputs' device.
    ///
    /// Outputs may be read as well, by kernels that update in place. Inputs must not overlap them:
    /// see [`Tensor::apart_from`].
    pub(crate) fn launch(
        self,
        kernel: impl Kernel,
        outputs: &[&Tensor],
        inputs: &[&Tensor],
    ) -> Result<()> {
        let Some(first) = outputs.iter().chain(inputs).next() else { return Ok(()) };
        let device = first.device();
        for tensor in outputs.iter().chain(inputs) {
            if tensor.device() != device {
                return Err(self.devices_differ(first, tensor));
            }
        }
        self.check_overlap(outputs, inputs)?;
        let stream = current_stream(device);
        let is_half = |it: &&Tensor| matches!(it.dtype(), DType::Bf16 | DType::F16);
        let is_half = inputs.iter().chain(outputs).next().is_some_and(is_half);
        let (operations, bytes) = (kernel.operations(outputs), kernel.bytes(outputs, inputs));
        let captured = device.captures().has(stream);
        if captured {
            // The graph keeps what it uses; its work counts when it is replayed.
            let count = |work: &mut QueuedWork| work.add(operations, bytes, is_half);
            device.captures().note(stream, (outputs, inputs), count);
        } else {
            device.captures().refuse_own(self, outputs)?;
            device.captures().refuse_own(self, inputs)?;
            record_streams(stream, outputs);
            record_streams(stream, inputs);
            device.count_work(operations, bytes, is_half);
        }
        if device.programs().is_recording() {
            let [outputs, inputs] =
                [outputs, inputs].map(|tensors| operands(&Used::tensors(tensors)));
            device.programs().see(&kernel, &outputs, &inputs);
        }
        match device.queue() {
            Queue::Dry => Ok(()),
            Queue::Host(queue) => {
                let (outputs, inputs) = (Used::tensors(outputs), Used::tensors(inputs));
                if captured {
                    let work = Written::new(self, Box::new(kernel), &outputs, &inputs);
                    device.captures().write_down(stream, work);
                    return Ok(());
                }
                queue.launch(self, stream, Box::new(kernel), &outputs, &inputs)
            }
            Queue::Cuda(queue) => {
                let (outputs, inputs) = (Used::tensors(outputs), Used::tensors(inputs));
                queue.launch(self, (device, stream), &kernel, &outputs, &inputs)
            }
        }
    }

    /// Queues the writing of given numbers to a new tensor.
    pub(crate) fn upload<T: Stored>(self, numbers: Vec<T>, to: &Tensor) -> Result<()> {
        let device = to.device();
        let stream = current_stream(device);
        let what = "numbers of the program cannot be captured into a graph";
        device.captures().refuse(self, stream, what)?;
        record_streams(stream, &[to]);
        match device.queue() {
            Queue::Dry => Ok(()),
            Queue::Host(queue) => queue.work(self, stream, &[Used::tensor(to)], &[], move |args| {
                args.take::<T>(0).slice().copy_from_slice(&numbers);
                Ok(())
            }),
            Queue::Cuda(queue) => {
                let mut bytes = vec![0; size_of::<T>() * numbers.len()];
                let places = bytes.chunks_exact_mut(size_of::<T>());
                places.zip(&numbers).for_each(|(place, number)| number.to_bytes(place));
                queue.upload(self, (device, stream), &bytes, &Used::tensor(to))
            }
        }
    }

    /// The numbers of a tensor, converted, when they are computed. None on `dry`, where there are none.
    pub(crate) fn download<T: Stored>(self, from: &Tensor) -> Result<Option<Vec<T>>> {
        let device = from.device();
        let stream = current_stream(device);
        let what = "captured work is written down and not done: there are no numbers yet";
        device.captures().refuse(self, stream, what)?;
        record_streams(stream, &[from]);
        let used = Used::tensor(from);
        match device.queue() {
            Queue::Dry => Ok(None),
            Queue::Host(queue) => {
                let (sender, numbers) = mpsc::channel();
                queue.work(self, stream, &[], &[used], move |args| {
                    // A caller that no longer waits needs nothing.
                    let _ = sender.send(args.input(0).to_slice::<T>().into_owned());
                    Ok(())
                })?;
                let numbers = numbers.recv();
                queue.synchronize_stream(self, stream)?;
                // Sent, unless the work failed, which was reported just now.
                Ok(Some(numbers.unwrap_or_default()))
            }
            Queue::Cuda(queue) => {
                let bytes = queue.download(self, (device, stream), &used)?;
                Ok(Some(args::numbers_in(&bytes, &used.operand)))
            }
        }
    }

    /// Queues a kernel that writes memory of one device and reads memory of another. Both current
    /// streams wait for each other there.
    pub(crate) fn launch_across(
        self,
        kernel: impl Kernel,
        output: &Tensor,
        input: &Tensor,
    ) -> Result<()> {
        let [here, there] = [output, input].map(|tensor| current_stream(tensor.device()));
        for (tensor, stream) in [(output, here), (input, there)] {
            let what = "a copy between devices cannot be captured into a graph";
            tensor.device().captures().refuse(self, stream, what)?;
        }
        record_streams(here, &[output]);
        record_streams(there, &[input]);
        let queues = (output.device().queue(), input.device().queue());
        if let (Queue::Cuda(to), Queue::Cuda(from)) = queues {
            let (output, input) = (Used::tensor(output), Used::tensor(input));
            if to.copy_across(self, (here, &output), (from, there, &input))? {
                return Ok(());
            }
        }
        match queues {
            (Queue::Host(to), Queue::Host(from)) => {
                let (output, input) = (Used::tensor(output), Used::tensor(input));
                let (to, from) = ((to, here, &output), (from, there, &input));
                HostQueue::launch_across(self, Box::new(kernel), to, from)
            }
            (Queue::Dry, _) => Ok(()),
            (Queue::Host(_) | Queue::Cuda(_), Queue::Dry) => Err(self
                .error(ErrorKind::Device, "a dry device has no numbers to copy")
                .with_tensor("self", input)
                .help("make the tensor on the device that computes")),
            // By way of this machine's memory, and waited for.
            (Queue::Host(_) | Queue::Cuda(_), Queue::Host(_) | Queue::Cuda(_)) => {
                dispatch!(output.dtype(), T => match self.download::<T>(input)? {
                    Some(numbers) => self.upload(numbers, output),
                    None => Ok(()),
                })
            }
        }
    }

    /// Queues a copy between a tensor and pinned memory of its device.
    pub(crate) fn launch_pinned(
        self,
        kernel: impl Kernel,
        tensor: &Tensor,
        pinned: &Pinned,
        to_pinned: bool,
    ) -> Result<()> {
        let stream = current_stream(tensor.device());
        let what = "a copy between a device and pinned memory cannot be captured into a graph";
        tensor.device().captures().refuse(self, stream, what)?;
        record_streams(stream, &[tensor]);
        pinned.record_stream(stream);
        match tensor.device().queue() {
            Queue::Dry => Ok(()),
            Queue::Host(queue) => {
                let (mut outputs, mut inputs) = (vec![Used::tensor(tensor)], vec![pinned.used()]);
                if to_pinned {
                    std::mem::swap(&mut outputs, &mut inputs);
                }
                queue.launch(self, stream, Box::new(kernel), &outputs, &inputs)
            }
            Queue::Cuda(queue) => {
                let (tensor_used, pinned_used) = (Used::tensor(tensor), pinned.used());
                let pair = if to_pinned {
                    (&pinned_used, &tensor_used)
                } else {
                    (&tensor_used, &pinned_used)
                };
                let on = (tensor.device(), stream);
                queue.copy_pinned(self, on, &kernel, pair, to_pinned)
            }
        }
    }

    pub(crate) fn devices_differ(self, a: &Tensor, b: &Tensor) -> crate::error::Error {
        self.error(ErrorKind::Device, "tensors lie on different devices")
            .with("one", format_args!("{}{} on {}", a.dtype(), a.shape(), a.device()))
            .with("other", format_args!("{}{} on {}", b.dtype(), b.shape(), b.device()))
            .help("copy one of them with to_device")
    }

    fn check_overlap(self, outputs: &[&Tensor], inputs: &[&Tensor]) -> Result<()> {
        for (place, output) in outputs.iter().enumerate() {
            if output.is_conj() {
                return Err(self
                    .error(ErrorKind::Value, "a view of conjugates cannot be written")
                    .with_tensor("output", output)
                    .help("copy it first"));
            }
            if output.layout().overlaps_itself() {
                return Err(self
                    .error(
                        ErrorKind::Value,
                        "several elements of the output are one place in memory",
                    )
                    .with_tensor("output", output)
                    .help("an expanded tensor cannot be written; clone it first"));
            }
            if let Some(other) =
                outputs[place + 1..].iter().chain(inputs).find(|it| it.overlaps(output))
            {
                return Err(self
                    .error(ErrorKind::Value, "what is written overlaps what else is used")
                    .with_tensor("written", output)
                    .with_tensor("other", other)
                    .help("clone one of them first"));
            }
        }
        Ok(())
    }
}

/// Lets the engine wait for `stream` before memory of other streams is handed out again.
fn record_streams(stream: StreamId, tensors: &[&Tensor]) {
    for block in tensors.iter().filter_map(|tensor| tensor.storage().block()) {
        if block.stream() != stream {
            block.record_stream(stream);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Device;

    /// Fails in one way or another.
    struct Fails(bool);

    impl Kernel for Fails {
        fn host(&self, _: &mut Args<'_>) -> Result<(), String> {
            assert!(!self.0, "a bug");
            Err("index 7 is out of range".to_owned())
        }

        fn cuda(&self, _: Operands<'_>) -> Plan {
            Plan::nothing()
        }
    }

    #[test]
    fn what_fails_later_is_reported_with_the_call_that_queued_it() -> Result<()> {
        let device = Device::host("64 MiB").unwrap();
        let x = Tensor::zeros([3], &device)?;
        let call = Call::here("gather");
        call.launch(Fails(false), &[&x], &[])?;
        let y = x.add(1.0)?;
        let error = y.to_vec::<f32>().unwrap_err();
        assert_eq!((error.kind(), error.operation()), (&ErrorKind::Queued, "gather"));
        assert_eq!(error.site().line(), call.site.line());
        assert!(error.to_string().contains("index 7"), "{error}");
        assert_eq!(y.to_vec::<f32>()?, [1.0; 3], "reported once");
        call.launch(Fails(true), &[&x], &[])?;
        assert!(device.synchronize().unwrap_err().to_string().contains("panicked: a bug"));
        device.synchronize()
    }

    #[test]
    fn writing_what_is_read_is_refused() -> Result<()> {
        let device = Device::dry("1 GiB").unwrap();
        let x = Tensor::zeros([4], &device)?;
        let call = Call::here("test");
        assert!(call.launch(Fails(false), &[&x.narrow(0, 0, 2)?], &[&x]).is_err());
        assert!(call.launch(Fails(false), &[&x.narrow(0, 0, 1)?.expand([3])?], &[]).is_err());
        call.launch(Fails(false), &[&x.narrow(0, 0, 2)?], &[&x.narrow(0, 2, 2)?])
    }
}
