//! The command streams give the same decisions on every device, under every policy.
//!
//! The engine prefers low addresses, so what it decides depends on where the device puts memory.
//! Here a [`Shadowed`] device decides like the dry one that the streams were made for, and does
//! everything on a real device as well. What the engine is told is the same on all; what happens
//! is real: the bytes of every block are written, and stay until it is given back.

// A real device that follows a dry one.
#[path = "devices/shadowed.rs"]
mod shadowed;

// What a real device offers beyond the trait.
#[path = "devices/real.rs"]
mod real;

// Memory that queued work uses.
#[path = "devices/queued_work.rs"]
mod queued_work;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

use real::{Mark, Real};
use shadowed::{Ruled, Shadowed};
use tonnage_device::cuda::{Cuda, Driver};
use tonnage_device::host::Host;
use tonnage_device::{Arenas, Dry, Placement};
use tonnage_engine::{
    AllocError, Allocation, CacheError, Capture, Config, Engine, Policy, StreamFilter,
};
use tonnage_events::{Address, BlockState, PoolId, StreamId};
use tonnage_fake_cuda::{Fake, Live};
use tonnage_replay::stream::{Command, Header, Stream};

/// The streams that commands name, besides the default stream.
const STREAMS: [StreamId; 2] = [StreamId(4096), StreamId(8192)];

#[test]
fn dry_at_other_addresses_decides_as_pytorch_did() {
    every_stream_on(|header| {
        let elsewhere = Placement::Arenas(Arenas::default());
        Dry::new(header.device_capacity).with_placement(elsewhere)
    });
}

#[test]
fn host_decides_as_pytorch_did_and_keeps_every_byte() {
    every_stream_on(|header| Host::new(header.device_capacity));
}

#[test]
fn cuda_on_the_fake_driver_decides_as_pytorch_did_and_keeps_every_byte() {
    let fake = Fake::start().expect("cargo builds the fake driver with this test");
    every_stream_on(|header| {
        assert_eq!((fake.live(), fake.used(0)), (Live::default(), 0));
        fake.set_capacity(0, header.device_capacity);
        // SAFETY: the fake keeps to the driver's interface: that is what it is for.
        let driver = unsafe { Driver::load_from(fake.path()) }.unwrap();
        Cuda::open_with(driver, 0).unwrap()
    });
    assert_eq!((fake.live(), fake.used(0)), (Live::default(), 0));
}

#[test]
fn cuda_on_a_gpu_decides_as_pytorch_did_and_keeps_every_byte() {
    if std::env::var_os("TONNAGE_TEST_CUDA").is_none_or(|value| value != "1") {
        println!("skipped: TONNAGE_TEST_CUDA=1 is not set");
        return;
    }
    let open = || Cuda::open(0).expect("TONNAGE_TEST_CUDA=1 promises a device");
    // Keeps the context, which takes long to make, from one stream to the next.
    let _context = open();
    every_stream_on(|header| {
        let device = open();
        assert!(device.properties().total > header.device_capacity);
        device
    });
}

fn every_stream_on<R: Real>(mut device: impl FnMut(&Header) -> R) {
    // On a GPU machine the data lie beside the program, not where it was built.
    let folder = std::env::var_os("TONNAGE_TESTDATA").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata"),
        PathBuf::from,
    );
    let folder = folder.join("streams");
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    // Those with a number: the others are about one rule each, and one asks for pages that no real device has.
    let is_numbered = |path: &PathBuf| {
        let number = path.file_stem().and_then(|stem| stem.to_str()?.parse::<u32>().ok());
        path.extension().is_some_and(|it| it == "jsonl") && number.is_some()
    };
    let mut files: Vec<_> = entries.filter(is_numbered).collect();
    files.sort();
    assert_eq!(files.len(), 40);
    for path in files {
        let stream = Stream::read(BufReader::new(File::open(&path).unwrap())).unwrap();
        for policy in Policy::ALL {
            same_decisions(&path, &stream, device(&stream.header), policy);
        }
    }
}

/// Gives every command to an engine on `real` and to one on a dry device, and compares after each
/// one everything the two can be asked. PyTorch's addresses are those of its own policy alone.
fn same_decisions<R: Real>(path: &Path, stream: &Stream, real: R, policy: Policy) {
    let header = &stream.header;
    let (total, capacity) = (header.device_total, header.device_capacity);
    let mut player = Player::new(header, Shadowed::new(total, capacity, real, &STREAMS), policy);
    let mut reference = Player::new(header, Dry::new(total).with_capacity(capacity), policy);
    let mut marks = Marks::default();
    for (step, line) in stream.lines.iter().enumerate() {
        let context = format!("{}, {policy}, command {step}: {:?}", path.display(), line.command);
        let (block, expected) = (player.play(&line.command), reference.play(&line.command));
        assert_eq!(block, expected, "{context}");
        if let (Command::Alloc { address, .. }, Policy::Pytorch) = (&line.command, policy) {
            let address = *address;
            assert_eq!(block.map(|block| block.address.0), address, "{context}");
        }
        assert_eq!(player.engine.stats(), reference.engine.stats(), "{context}");
        assert_eq!(player.engine.segments(), reference.engine.segments(), "{context}");
        if let Some(block) = block {
            marks.put(&mut player.engine, &block);
        }
        marks.check(&mut player.engine, &context);
    }
    player.give_everything_back();
    assert!(player.engine.segments().is_empty(), "{}", path.display());
    assert!(player.engine.device_mut().ends_with_nothing(), "{}", path.display());
}

/// An engine, and what it was asked for.
struct Player<D> {
    engine: Engine<D>,
    policy: Policy,
    blocks: BTreeMap<u64, Allocation>,
    /// Every pool that was diverted to.
    pools: Vec<PoolId>,
}

impl<D: Ruled> Player<D> {
    fn new(header: &Header, device: D, policy: Policy) -> Self {
        let config = Config::parse(&header.conf, header.library.parse().unwrap()).unwrap();
        let mut engine = Engine::with_policy(device, config, policy);
        if let Some(fraction) = header.fraction {
            engine.set_memory_fraction(fraction).unwrap();
        }
        assert_eq!(engine.limit(), header.limit);
        Self { engine, policy, blocks: BTreeMap::new(), pools: Vec::new() }
    }

    /// The new block, if the command asked for one and there was memory.
    fn play(&mut self, command: &Command) -> Option<Allocation> {
        let engine = &mut self.engine;
        match *command {
            Command::Alloc { id, size, stream, .. } => {
                return match engine.allocate(size, StreamId(stream)) {
                    Ok(block) => {
                        assert_eq!(self.blocks.insert(id, block), None);
                        Some(block)
                    }
                    Err(AllocError::OutOfMemory(_) | AllocError::Rejected(_)) => None,
                    Err(error) => panic!("{command:?}: {error}"),
                };
            }
            Command::Free { id } => match self.blocks.remove(&id) {
                Some(block) => engine.free(&block).unwrap(),
                None => self.differs(command),
            },
            Command::RecordStream { id, stream } => match self.blocks.get(&id) {
                Some(block) => engine.record_stream(block.address, StreamId(stream)).unwrap(),
                None => self.differs(command),
            },
            Command::Events { complete: true } => engine.device_mut().rules().complete_events(),
            Command::Events { complete: false } => engine.device_mut().rules().hold_events(),
            Command::StreamEventsComplete { stream } => {
                engine.device_mut().rules().complete_events_of(StreamId(stream));
            }
            Command::EmptyCache { pool } => {
                match engine.empty_cache_of(pool.map_or(PoolId::DEFAULT, pool_id)) {
                    Ok(()) => {}
                    Err(CacheError::Capturing(_)) => self.differs(command),
                    Err(error) => panic!("{command:?}: {error}"),
                }
            }
            Command::PoolBegin { pool } => {
                self.pools.push(pool_id(pool));
                if engine.begin_allocate_to_pool(pool_id(pool), StreamFilter::Any).is_err() {
                    self.differs(command);
                }
            }
            Command::PoolEnd { pool } => {
                if engine.end_allocate_to_pool(pool_id(pool)).is_err() {
                    self.differs(command);
                }
            }
            Command::PoolRelease { pool } => {
                if engine.release_pool(pool_id(pool)).is_err() {
                    self.differs(command);
                }
            }
            Command::PoolNoSplit { pool } => engine.set_pool_no_split(pool_id(pool)).unwrap(),
            Command::PoolUseOnOom { pool, on } => engine.set_pool_use_on_oom(pool_id(pool), on),
            Command::MemoryFraction { fraction } => engine.set_memory_fraction(fraction).unwrap(),
            Command::CaptureBegin => engine.begin_capture(Capture::Everywhere),
            Command::CaptureEnd => engine.end_capture().unwrap(),
            Command::Configure { ref conf } => engine.configure(conf).unwrap(),
            Command::Snapshot { .. } => {}
        }
        None
    }

    /// What PyTorch's policy can do another one need not: it may have failed a request, or keep a pool for longer.
    fn differs(&self, command: &Command) {
        assert_ne!(self.policy, Policy::Pytorch, "{command:?}");
    }

    fn give_everything_back(&mut self) {
        while self.engine.end_capture().is_ok() {}
        for &pool in &self.pools {
            // Not all of them are still diverted to.
            let _ = self.engine.end_allocate_to_pool(pool);
            while self.engine.pool_use_count(pool) > 0 {
                self.engine.release_pool(pool).unwrap();
            }
        }
        for block in std::mem::take(&mut self.blocks).into_values() {
            self.engine.free(&block).unwrap();
        }
        self.engine.empty_cache().unwrap();
    }
}

fn pool_id((first, second): (u64, u64)) -> PoolId {
    PoolId(first, second)
}

/// Bytes at both ends of every block, which nobody else may write.
#[derive(Default)]
struct Marks {
    last: u64,
    /// By the block's address: its size, and the bytes at its two ends.
    written: BTreeMap<Address, (u64, [Mark; 2])>,
}

impl Marks {
    fn put<R: Real>(&mut self, engine: &mut Engine<Shadowed<R>>, block: &Allocation) {
        let marks = [0, 1].map(|_| {
            self.last += 1;
            u128::from(self.last).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835)
        });
        let marks = marks.map(u128::to_le_bytes);
        for (at, mark) in ends(block.address, block.size).into_iter().zip(marks) {
            engine.device_mut().put(at, mark);
        }
        self.written.insert(block.address, (block.size, marks));
    }

    /// Every block that is in use, or freed but waiting for another stream, has its bytes.
    fn check<R: Real>(&mut self, engine: &mut Engine<Shadowed<R>>, context: &str) {
        let mut in_use = BTreeMap::new();
        for block in engine.segments().into_iter().flat_map(|segment| segment.blocks) {
            if block.state != BlockState::Inactive
                && let Some(written) = self.written.remove(&block.address)
            {
                in_use.insert(block.address, written);
            }
        }
        for (address, (size, marks)) in &in_use {
            for (at, mark) in ends(*address, *size).into_iter().zip(*marks) {
                assert!(engine.device_mut().has(at, mark), "bytes at {at} changed: {context}");
            }
        }
        self.written = in_use;
    }
}

fn ends(address: Address, size: u64) -> [Address; 2] {
    [address, address.offset(size - size_of::<Mark>() as u64)]
}
