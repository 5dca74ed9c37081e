//! Many threads on one poisoned device: what a block holds is what its owner wrote.
//!
//! Ten seconds here; `TONNAGE_SOAK_SECONDS` makes it longer.

use std::time::{Duration, Instant};

use tonnage_memory::{AllocError, Block, Config, Device, DeviceOptions, Policy, Release};

const THREADS: u64 = 16;

/// Bytes that may be reserved: few enough that threads run out of memory now and then.
const LIMIT: u64 = 192 << 20;

/// Bytes at each end of a block that are written and checked.
const MARK: usize = 64;

struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

/// A block with what its owner wrote into both its ends.
struct Marked {
    block: Block,
    mark: [u8; MARK],
}

impl Marked {
    fn new(block: Block, number: u64) -> Self {
        let mut mark = [0; MARK];
        for (index, byte) in mark.iter_mut().enumerate() {
            *byte = (number >> (index % 8 * 8)) as u8 ^ index as u8;
        }
        block.write(0, &mark).unwrap();
        block.write(block.size() - MARK as u64, &mark).unwrap();
        Self { block, mark }
    }

    fn check(&self, who: &str) {
        let mut found = [0; MARK];
        for offset in [0, self.block.size() - MARK as u64] {
            self.block.read(offset, &mut found).unwrap();
            assert_eq!(found, self.mark, "{who}: {:?} at {offset}", self.block);
        }
    }
}

fn work(device: &Device, thread: u64, until: Instant) -> u64 {
    let mut random = Random(thread + 1);
    let streams: Vec<_> = (0..2).map(|_| device.create_stream().unwrap()).collect();
    let mut held: Vec<Marked> = Vec::new();
    let mut served = 0;
    while Instant::now() < until {
        let who = format!("thread {thread}, allocation {served}");
        if held.len() < 12 && random.below(5) < 3 {
            let power = 1 << (9 + random.below(15));
            let stream = &streams[random.below(2) as usize];
            match device.allocate_on(power + random.below(power), stream.id()) {
                Ok(block) => {
                    served += 1;
                    held.push(Marked::new(block, thread << 40 | served));
                }
                Err(AllocError::OutOfMemory(_)) => held.truncate(held.len() / 2),
                Err(error) => panic!("{who}: {error}"),
            }
        } else if !held.is_empty() {
            let at = random.below(held.len() as u64) as usize;
            let marked = held.swap_remove(at);
            marked.check(&who);
            if random.below(3) == 0 {
                let other = &streams[random.below(2) as usize];
                if device.kind() == "host" {
                    other.launch(std::thread::yield_now).unwrap();
                }
                marked.block.record_stream(other.id());
            }
        }
        if random.below(500) == 0 {
            device.memory().empty_cache().unwrap();
        }
    }
    for marked in held {
        marked.check("at the end");
    }
    served
}

/// PyTorch's settings, or a policy.
fn options(conf: &str) -> DeviceOptions {
    let (conf, policy) = match conf.starts_with("policy:") {
        true => ("", Policy::from_conf(conf).unwrap()),
        false => (conf, Policy::Pytorch),
    };
    let config = Config::parse(conf, Release::default()).unwrap();
    DeviceOptions { config, policy: Some(policy), poison: true, ..DeviceOptions::default() }
}

const CONFS: [&str; 3] = ["", "expandable_segments:True", "policy:pages,slack:0"];

fn soak(device: Device, conf: &str) {
    let seconds = std::env::var("TONNAGE_SOAK_SECONDS").ok().and_then(|text| text.parse().ok());
    let until = Instant::now() + Duration::from_secs(seconds.unwrap_or(10)) / CONFS.len() as u32;
    let free_before = device.memory().mem_get_info().unwrap().free;
    device.memory().set_limit(Some(LIMIT));
    let served: u64 = std::thread::scope(|scope| {
        let device = &device;
        let workers: Vec<_> =
            (0..THREADS).map(|thread| scope.spawn(move || work(device, thread, until))).collect();
        workers.into_iter().map(|worker| worker.join().unwrap()).sum()
    });
    let stats = device.memory().stats();
    assert_eq!(stats.allocation.all.allocated.cast_unsigned(), served, "{conf}");
    assert_eq!(stats.allocation.all.current, 0, "{conf}");
    device.memory().check_invariants().unwrap();
    device.memory().empty_cache().unwrap();
    assert_eq!(device.memory().reserved(), 0, "{conf}");
    if device.kind() == "host" {
        assert_eq!(device.memory().mem_get_info().unwrap().free, free_before, "{conf}");
    }
}

#[test]
fn sixteen_threads_never_see_each_others_bytes() {
    for conf in CONFS {
        soak(Device::host_with("1 GiB", options(conf)).unwrap(), conf);
    }
}

#[test]
fn nor_do_they_on_a_gpu() {
    if std::env::var("TONNAGE_TEST_CUDA").is_err() {
        println!("skipped: TONNAGE_TEST_CUDA is not set");
        return;
    }
    for conf in CONFS {
        soak(Device::cuda_with(0, options(conf)).unwrap(), conf);
    }
}
