//! One device call fails, whichever it is: no operation panics, nothing is lost, and the device goes on.
//!
//! A program that uses streams, views, changes in place, checkpoints, host memory and gradients runs once
//! for every n with the n-th device call failing. Either it does not notice, and then its numbers are
//! right, or it fails with an error that says so. Afterwards all memory goes back, and the program runs
//! again on the same device.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tonnage_device::host::Host;
use tonnage_device::{DeviceError, EventId, FailNth, MemoryInfo, PageId};
use tonnage_engine::Config;
use tonnage_events::{Address, DeviceId, Event, StreamId};
use tonnage_memory::{AnyDevice, DeviceOptions, with_stream};

use crate::autograd::{BackwardOptions, no_grad};
use crate::checkpoint::checkpoint;
use crate::exec::Queue;
use crate::offload::Offload;
use crate::{Device, ErrorKind, Result, Tensor};

/// Numbers of a tensor: two of them fill a segment.
const LENGTH: usize = 200_000;

/// A device that the test can look at while an allocator has it.
#[derive(Clone)]
struct Watched(Arc<Mutex<Behind>>);

struct Behind {
    device: FailNth<Host>,
    /// Events, pages and ranges that it did not take back: they are still there.
    refused: usize,
}

impl Behind {
    /// Notes whether something was not taken back.
    fn back(&mut self, taken: Result<(), DeviceError>) -> Result<(), DeviceError> {
        self.refused += usize::from(taken.is_err());
        taken
    }
}

impl Watched {
    fn lock(&self) -> MutexGuard<'_, Behind> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl tonnage_device::Device for Watched {
    fn id(&self) -> DeviceId {
        self.lock().device.id()
    }
    fn total(&self) -> u64 {
        self.lock().device.total()
    }
    fn memory_info(&mut self) -> Result<MemoryInfo, DeviceError> {
        self.lock().device.memory_info()
    }
    fn acquire(&mut self, size: u64) -> Result<Address, DeviceError> {
        self.lock().device.acquire(size)
    }
    fn release(&mut self, address: Address) -> Result<(), DeviceError> {
        self.lock().device.release(address)
    }
    fn granularity(&self) -> u64 {
        self.lock().device.granularity()
    }
    fn reserve(&mut self, size: u64) -> Result<Address, DeviceError> {
        self.lock().device.reserve(size)
    }
    fn unreserve(&mut self, address: Address) -> Result<(), DeviceError> {
        let mut behind = self.lock();
        let taken = behind.device.unreserve(address);
        behind.back(taken)
    }
    fn create_page(&mut self, size: u64) -> Result<PageId, DeviceError> {
        self.lock().device.create_page(size)
    }
    fn destroy_page(&mut self, page: PageId) -> Result<(), DeviceError> {
        let mut behind = self.lock();
        let taken = behind.device.destroy_page(page);
        behind.back(taken)
    }
    fn map(&mut self, page: PageId, address: Address) -> Result<(), DeviceError> {
        self.lock().device.map(page, address)
    }
    fn unmap(&mut self, address: Address) -> Result<(), DeviceError> {
        let mut behind = self.lock();
        let taken = behind.device.unmap(address);
        behind.back(taken)
    }
    fn record_event(&mut self, stream: StreamId) -> Result<EventId, DeviceError> {
        self.lock().device.record_event(stream)
    }
    fn query_event(&mut self, event: EventId) -> Result<bool, DeviceError> {
        self.lock().device.query_event(event)
    }
    fn wait_event(&mut self, event: EventId) -> Result<(), DeviceError> {
        self.lock().device.wait_event(event)
    }
    fn wait_on(&mut self, stream: StreamId, event: EventId) -> Result<(), DeviceError> {
        self.lock().device.wait_on(stream, event)
    }
    fn destroy_event(&mut self, event: EventId) -> Result<(), DeviceError> {
        let mut behind = self.lock();
        let taken = behind.device.destroy_event(event);
        behind.back(taken)
    }
    fn synchronize(&mut self, stream: StreamId) -> Result<(), DeviceError> {
        self.lock().device.synchronize(stream)
    }
    fn observe(&mut self, event: &Event) {
        self.lock().device.observe(event);
    }
}

/// A device of this machine whose call after `calls` others fails.
fn failing(conf: &str, calls: u64) -> (Device, Watched) {
    let host = Host::new(24 << 20).poison(true);
    let queue = Queue::host(host.streams());
    let watched =
        Watched(Arc::new(Mutex::new(Behind { device: FailNth::new(host, calls), refused: 0 })));
    let config = Config::parse(conf, Default::default()).unwrap();
    let options = DeviceOptions { config, ..DeviceOptions::default() };
    let device = AnyDevice::Other(Box::new(watched.clone()));
    (Device::of(tonnage_memory::Device::of(device, options), queue), watched)
}

/// Sums of what was computed and of the gradient.
fn program(device: &Device) -> Result<[f64; 3]> {
    let side =
        device.create_stream().map_err(|it| crate::error::Call::here("stream").driver(it))?;
    let x = Tensor::full([LENGTH], 2.0, device)?.requires_grad_(true)?;
    // Written on one stream and read on the other, and dropped while both may be at it.
    let noise = with_stream(&side, || Tensor::ones([LENGTH], device))?;
    let mask = noise.add(1.0)?;
    no_grad(|| mask.narrow(0, 0, 1000)?.mul_(0.0))?;
    drop(noise);
    let fresh = Tensor::empty([LENGTH], device)?;
    with_stream(&side, || fresh.fill_(3.0))?;
    let again = mask.clone();
    let forward = || -> Result<Tensor> {
        let y = checkpoint(&[&x], move |x| x[0].mul(&again)?.mul(&x[0]))?;
        y.mul(&fresh)?.sum()
    };
    let loss = Offload::new(device)?.min_bytes(0).run(forward)?;
    loss.backward_with(None, BackwardOptions::default().retain_graph(true))?;
    loss.backward()?;
    device.memory().empty_cache()?;
    let gradient = x.grad().map_or(Ok(0.0), |it| it.sum()?.item())?;
    Ok([loss.item()?, gradient, mask.sum()?.item()?])
}

/// Asks for everything back. What fails once works the second time.
fn give_everything_back(conf: &str, device: &Device, watched: &Watched, which: &str, again: bool) {
    device.synchronize().unwrap_or_else(|error| panic!("{which}: {error}"));
    for _ in 0..3 {
        let _ = device.memory().empty_cache();
        let _ = device.pinned().empty_cache();
    }
    let memory = device.memory();
    assert_eq!((memory.allocated(), memory.reserved()), (0, 0), "{which}");
    let pinned = device.pinned().stats();
    assert_eq!((pinned.in_use.current, pinned.pending), (0, 0), "{which}");
    assert!(memory.live().is_empty(), "{which}");
    let behind = watched.lock();
    let (host, refused) = (&behind.device.inner, behind.refused);
    // A page that the device did not take back serves the next request, and then goes.
    if refused == 0 || again {
        assert_eq!(host.used(), 0, "{which}: bytes that the device did not get back");
    }
    // A range whose first page failed stays, without memory, for the next request of its stream.
    let most = refused + usize::from(conf.contains("expandable"));
    assert!(host.handles() <= most, "{which}: {} ranges, pages, events", host.handles());
}

fn sweep(conf: &str) {
    let expected = {
        let (device, _) = failing(conf, u64::MAX);
        program(&device).unwrap()
    };
    let rest = (LENGTH - 1000) as f64;
    assert_eq!(expected, [2.0 * 2.0 * 2.0 * 3.0 * rest, 2.0 * 24.0 * rest, 2.0 * rest]);
    let mut noticed = 0;
    for calls in 0.. {
        let which = format!("{conf}: call {calls} fails");
        let (device, watched) = failing(conf, calls);
        match program(&device) {
            Ok(numbers) => assert_eq!(numbers, expected, "{which}"),
            Err(error) => {
                let kind = error.kind();
                let is_expected = matches!(
                    kind,
                    ErrorKind::Memory(_) | ErrorKind::Driver(_) | ErrorKind::Pinned(_)
                );
                assert!(is_expected, "{which}: {error}");
                noticed += 1;
            }
        }
        give_everything_back(conf, &device, &watched, &which, false);
        if !watched.lock().device.failed() {
            assert!(noticed > 0 && calls > 20, "{calls} calls, of which {noticed} were noticed");
            return;
        }
        let again = program(&device).unwrap_or_else(|error| panic!("{which}, again: {error}"));
        assert_eq!(again, expected, "{which}, again");
        give_everything_back(conf, &device, &watched, &which, true);
    }
}

#[test]
fn a_failed_device_call_loses_nothing() {
    sweep("");
}

#[test]
fn a_failed_device_call_loses_nothing_with_expandable_segments() {
    sweep("expandable_segments:True");
}
