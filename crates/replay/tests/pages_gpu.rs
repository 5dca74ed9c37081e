//! The policy `pages` on a GPU: a recorded job played for an hour of its time, at full speed. What the driver's calls about
//! pages take beside what `dry` says that they do, and how fast large blocks are copied before and after.
//!
//! `TONNAGE_TEST_CUDA=1` measures a GPU; otherwise a little of it runs on the fake driver, so that it always works.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tonnage_device::cuda::{Cuda, Driver};
use tonnage_device::{Device, DeviceError, EventId, MemoryInfo, PageCalls, PageId};
use tonnage_engine::{Allocation, Config, Engine, Policy, Slack};
use tonnage_events::{Address, DeviceId, StreamId};
use tonnage_fake_cuda::Fake;
use tonnage_replay::job::{Call, Job};
use tonnage_replay::recording::RecordingOptions;

const MIB: u64 = 1 << 20;
const STREAM: StreamId = StreamId::DEFAULT;

/// Blocks whose inside is copied: half of each to its other half.
const COPIED: [u64; 3] = [96 * MIB, 512 * MIB, 2048 * MIB];

/// A device whose calls about pages are counted and timed.
struct Timed {
    cuda: Cuda,
    calls: PageCalls,
    took: Duration,
    sizes: BTreeMap<PageId, u64>,
    /// Sizes of the pages that are mapped, by address.
    mapped: BTreeMap<Address, u64>,
}

impl Timed {
    fn timed<T>(
        &mut self,
        call: impl FnOnce(&mut Cuda) -> Result<T, DeviceError>,
        count: fn(&mut PageCalls) -> &mut u64,
    ) -> Result<T, DeviceError> {
        let started = Instant::now();
        let result = call(&mut self.cuda)?;
        self.took += started.elapsed();
        *count(&mut self.calls) += 1;
        Ok(result)
    }

    /// How many pages lie under a block.
    fn pages_under(&self, block: &Allocation) -> usize {
        self.mapped.range(block.address..block.address.offset(block.size)).count()
    }
}

impl Device for Timed {
    fn id(&self) -> DeviceId {
        self.cuda.id()
    }

    fn total(&self) -> u64 {
        self.cuda.total()
    }

    fn memory_info(&mut self) -> Result<MemoryInfo, DeviceError> {
        self.cuda.memory_info()
    }

    fn acquire(&mut self, size: u64) -> Result<Address, DeviceError> {
        self.cuda.acquire(size)
    }

    fn release(&mut self, address: Address) -> Result<(), DeviceError> {
        self.cuda.release(address)
    }

    fn granularity(&self) -> u64 {
        self.cuda.granularity()
    }

    fn reserve(&mut self, size: u64) -> Result<Address, DeviceError> {
        self.timed(|cuda| cuda.reserve(size), |calls| &mut calls.reserved)
    }

    fn unreserve(&mut self, address: Address) -> Result<(), DeviceError> {
        self.cuda.unreserve(address)
    }

    fn create_page(&mut self, size: u64) -> Result<PageId, DeviceError> {
        let page = self.timed(|cuda| cuda.create_page(size), |calls| &mut calls.created)?;
        self.sizes.insert(page, size);
        Ok(page)
    }

    fn destroy_page(&mut self, page: PageId) -> Result<(), DeviceError> {
        self.timed(|cuda| cuda.destroy_page(page), |calls| &mut calls.destroyed)?;
        self.calls.destroyed_bytes += self.sizes.remove(&page).unwrap_or(0);
        Ok(())
    }

    fn map(&mut self, page: PageId, address: Address) -> Result<(), DeviceError> {
        self.timed(|cuda| cuda.map(page, address), |calls| &mut calls.mapped)?;
        self.mapped.insert(address, self.sizes[&page]);
        Ok(())
    }

    fn unmap(&mut self, address: Address) -> Result<(), DeviceError> {
        self.timed(|cuda| cuda.unmap(address), |calls| &mut calls.unmapped)?;
        self.mapped.remove(&address);
        Ok(())
    }

    fn record_event(&mut self, stream: StreamId) -> Result<EventId, DeviceError> {
        self.cuda.record_event(stream)
    }

    fn query_event(&mut self, event: EventId) -> Result<bool, DeviceError> {
        self.cuda.query_event(event)
    }

    fn wait_event(&mut self, event: EventId) -> Result<(), DeviceError> {
        self.cuda.wait_event(event)
    }

    fn destroy_event(&mut self, event: EventId) -> Result<(), DeviceError> {
        self.cuda.destroy_event(event)
    }

    fn synchronize(&mut self, stream: StreamId) -> Result<(), DeviceError> {
        self.cuda.synchronize(stream)
    }

    fn known_streams(&self) -> Vec<StreamId> {
        Device::known_streams(&self.cuda)
    }
}

/// Serves a job's requests, and frees what is left.
fn play(engine: &mut Engine<Timed>, job: &Job) {
    let mut blocks: Vec<Option<Allocation>> = Vec::new();
    for step in job.steps() {
        match step.call {
            Call::Allocate(request) => {
                blocks.push(Some(engine.allocate(request.bytes, STREAM).unwrap()));
            }
            Call::Free { block, .. } => engine.free(&blocks[block].take().unwrap()).unwrap(),
            _ => {}
        }
    }
    for block in blocks.iter().flatten() {
        engine.free(block).unwrap();
    }
}

/// GB/s, reads and writes counted, of copies inside memory.
fn copy_speed(engine: &mut Engine<Timed>, address: Address, size: u64, times: u32) -> f64 {
    let launcher = engine.device().cuda.launcher();
    let half = size / 2;
    let run = |times: u32| {
        let before = launcher.moment(STREAM).unwrap();
        for _ in 0..times {
            // SAFETY: both halves are of one live block, and do not overlap.
            unsafe { launcher.copy_within(address.offset(half), address, half, STREAM) }.unwrap();
        }
        let after = launcher.moment(STREAM).unwrap();
        after.since(&before).unwrap().as_secs_f64()
    };
    run(times);
    let least = (0..5).map(|_| run(times)).fold(f64::INFINITY, f64::min);
    2.0 * half as f64 * f64::from(times) / least / 1e9
}

/// Copies inside new blocks of each size.
fn copies(engine: &mut Engine<Timed>, sizes: &[u64], times: u32, when: &str) {
    for &size in sizes {
        let block = engine.allocate(size, STREAM).unwrap();
        let pages = engine.device().pages_under(&block);
        let speed = copy_speed(engine, block.address, size, times);
        println!("copy inside {} MiB {when}, {pages} pages: {speed:.0} GB/s", size / MIB);
        engine.free(&block).unwrap();
    }
}

/// An hour of a job, or a part of it.
fn hour(cuda: Cuda, name: &str, passes: u64, sizes: &[u64], times: u32) {
    let folder = std::env::var_os("TONNAGE_TESTDATA").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata"),
        PathBuf::from,
    );
    let file = tonnage_snapshot::open(&folder.join("traces").join(name)).unwrap();
    let (_, job) = Job::read(&file, &RecordingOptions::default()).unwrap();
    let device = Timed {
        cuda,
        calls: PageCalls::default(),
        took: Duration::ZERO,
        sizes: BTreeMap::new(),
        mapped: BTreeMap::new(),
    };
    let policy = Policy::Pages(Slack::DEFAULT);
    let mut engine = Engine::with_policy(device, Config::default(), policy);
    for &size in sizes {
        let segment = engine.device_mut().acquire(size).unwrap();
        let speed = copy_speed(&mut engine, segment, size, times);
        println!("copy inside {} MiB of a segment of the driver's: {speed:.0} GB/s", size / MIB);
        engine.device_mut().release(segment).unwrap();
    }
    copies(&mut engine, sizes, times, "of new pages");
    engine.empty_cache().unwrap();
    let mut took = Vec::new();
    for pass in 0..passes {
        let before = (engine.device().calls, engine.device().took);
        let started = Instant::now();
        play(&mut engine, &job);
        let calls = engine.device().calls - before.0;
        let driver = engine.device().took - before.1;
        took.push((calls, driver, started.elapsed()));
        if pass < 3 || pass + 1 == passes {
            println!(
                "pass {pass}: {} made, {} mapped, {} unmapped: {:.2} ms by the driver, {:.2} ms by the model; {:.0} ms in all",
                calls.created,
                calls.mapped,
                calls.unmapped,
                driver.as_secs_f64() * 1e3,
                calls.nanoseconds() as f64 / 1e6,
                started.elapsed().as_secs_f64() * 1e3
            );
        }
    }
    let mapped: u64 = took.iter().map(|(calls, ..)| calls.mapped).sum();
    let model: u64 = took.iter().map(|(calls, ..)| calls.nanoseconds()).sum();
    let driver: Duration = took.iter().map(|&(_, driver, _)| driver).sum();
    println!(
        "{passes} passes of {name}: {mapped} mappings; {:.1} ms by the driver, {:.1} ms by the model",
        driver.as_secs_f64() * 1e3,
        model as f64 / 1e6
    );
    copies(&mut engine, sizes, times, "after that");
    engine.check_invariants().unwrap();
    engine.empty_cache().unwrap();
    assert_eq!(engine.stats().memory_reserved(), 0);
}

#[test]
fn an_hour_of_a_job_on_a_gpu() {
    if std::env::var_os("TONNAGE_TEST_CUDA").is_none_or(|value| value != "1") {
        println!("skipped: TONNAGE_TEST_CUDA=1 is not set");
        return;
    }
    let open = || Cuda::open(0).expect("TONNAGE_TEST_CUDA=1 promises a device");
    // It was recorded over 5.9 s.
    hour(open(), "gpt2_varlen.default.pickle.zst", 611, &COPIED, 20);
}

#[test]
fn a_little_of_it_on_the_fake_driver() {
    let fake = Fake::start().expect("cargo builds the fake driver with this test");
    fake.set_capacity(0, 512 * MIB);
    // SAFETY: the fake keeps to the driver's interface: that is what it is for.
    let driver = unsafe { Driver::load_from(fake.path()) }.unwrap();
    let cuda = Cuda::open_with(driver, 0).unwrap();
    hour(cuda, "mlp_seed.default.pickle.zst", 2, &[8 * MIB], 1);
}
