//! Programs that leave the device to others for a while.

use std::sync::Arc;
use std::time::Duration;

use tonnage_engine::{Capture, StreamFilter};
use tonnage_events::{PoolId, StreamId};
use tonnage_fake_cuda::Fake;
use tonnage_memory::{
    AllocError, Block, Config, Contents, Device, DeviceOptions, PauseError, Policy, Release,
    ResumeError,
};

/// Devices whose blocks can keep their addresses, on `kind`, each with its driver if that is a fake.
fn devices(kind: &str) -> Vec<(Option<Fake>, Device)> {
    let options = [("", "policy:pages"), ("expandable_segments:True", "")].map(|(conf, policy)| {
        let config = Config::parse(conf, Release::default()).unwrap();
        let policy = Some(Policy::from_conf(policy).unwrap());
        DeviceOptions { config, policy, ..DeviceOptions::default() }
    });
    let open = |options| match kind {
        "host" => (None, Device::host_with("512 MiB", options).unwrap()),
        "dry" => (None, Device::dry_with("512 MiB", options).unwrap()),
        "fake" => {
            let (fake, device) = crate::cuda(options);
            (Some(fake), device)
        }
        _ => (None, Device::cuda_with(0, options).unwrap()),
    };
    options.into_iter().map(open).collect()
}

fn kinds() -> Vec<&'static str> {
    let gpu = std::env::var("TONNAGE_TEST_CUDA").is_ok();
    ["host", "dry", "fake"].into_iter().chain(gpu.then_some("cuda")).collect()
}

/// Blocks with their numbers in them, some in pages that two share.
fn numbered(device: &Device) -> Vec<Block> {
    let sizes = [700, 3 << 20, 40 << 20, 9 << 20, 1_500_000];
    let blocks: Vec<_> = sizes.into_iter().map(|size| device.allocate(size).unwrap()).collect();
    for (number, block) in blocks.iter().enumerate() {
        block.write(0, &vec![number as u8 + 1; block.size() as usize]).unwrap();
    }
    blocks
}

fn holds(block: &Block, byte: u8) -> bool {
    let mut bytes = vec![0; block.size() as usize];
    block.read(0, &mut bytes).unwrap();
    bytes.iter().all(|&it| it == byte)
}

#[test]
fn blocks_keep_their_addresses_and_what_was_to_be_kept() {
    for kind in kinds() {
        for (_fake, device) in devices(kind) {
            let mut blocks = numbered(&device);
            drop(blocks.remove(1));
            let before = device.memory().mem_get_info().unwrap();
            let addresses: Vec<_> = blocks.iter().map(Block::address).collect();
            let gone = device.memory().pause(Contents::Kept).unwrap();
            assert!(gone > 0 && device.memory().is_paused());
            let paused = device.memory().mem_get_info().unwrap();
            assert!(paused.free > before.free, "{device:?}");
            if ["host", "dry"].contains(&kind) {
                assert_eq!(paused.free, paused.total, "{device:?}");
            }
            assert!(matches!(device.allocate(1000), Err(AllocError::Paused)));
            assert_eq!(device.memory().pause(Contents::Lost), Err(PauseError::Paused));
            drop(blocks.pop());
            device.memory().resume().unwrap();
            for ((block, address), number) in blocks.iter().zip(addresses).zip([1, 3, 4]) {
                assert_eq!(block.address(), address, "{device:?}");
                assert!(kind == "dry" || holds(block, number), "{device:?}: block {number}");
            }
            device.memory().check_invariants().unwrap();
            drop((blocks, device.allocate(20 << 20).unwrap()));
            device.memory().empty_cache().unwrap();
            assert_eq!(device.memory().reserved(), 0);
        }
    }
}

#[test]
fn what_need_not_be_kept_is_lost() {
    for (_, device) in devices("host") {
        let blocks = numbered(&device);
        device.memory().pause(Contents::Lost).unwrap();
        device.memory().resume().unwrap();
        assert!(blocks.iter().all(|block| holds(block, 0)), "{device:?}");
    }
}

#[test]
fn a_program_gives_back_as_much_as_another_asks_for() {
    for kind in kinds() {
        let pytorch = (None, Device::dry("512 MiB").unwrap());
        for (_fake, device) in devices(kind).into_iter().chain([pytorch]) {
            let blocks = numbered(&device);
            let live = device.memory().allocated();
            drop((device.allocate(60 << 20).unwrap(), device.allocate(60 << 20).unwrap()));
            let before = device.memory().reserved();
            let gone = device.memory().release(30 << 20).unwrap();
            assert!(gone >= 30 << 20, "{device:?}: {gone}");
            assert_eq!(device.memory().reserved(), before - gone, "{device:?}");
            device.memory().release(u64::MAX).unwrap();
            assert!(device.memory().reserved() < live + (64 << 20), "{device:?}");
            drop(blocks);
        }
    }
}

#[test]
fn what_must_be_refused_waits_for_nothing() {
    let device = Device::host("512 MiB").unwrap();
    let stream = device.create_stream().unwrap();
    let block = device.allocate(30 << 20).unwrap();
    let (go, wait) = std::sync::mpsc::channel();
    let (done, ended) = std::sync::mpsc::channel();
    let work = move || {
        let in_time = wait.recv_timeout(Duration::from_secs(60)).is_ok();
        done.send(in_time).unwrap();
    };
    stream.launch(work).unwrap();
    let memory = device.memory();
    assert_eq!(memory.check_pause(None), Err(PauseError::Fixed(30 << 20)));
    assert_eq!(memory.pause(Contents::Kept), Err(PauseError::Fixed(30 << 20)));
    let pool = PoolId(0, 5);
    assert_eq!(memory.check_pause(Some(pool)), Err(PauseError::NoPool(pool)));
    assert_eq!(memory.pause_pool(pool, Contents::Kept), Err(PauseError::NoPool(pool)));
    go.send(()).unwrap();
    assert!(ended.recv().unwrap(), "it waited for the stream's work");
    drop((block, stream));
}

#[test]
fn a_resume_during_a_capture_changes_nothing() {
    for kind in kinds() {
        for (_fake, device) in devices(kind) {
            let mut blocks = numbered(&device);
            let pool = PoolId(0, 5);
            device
                .with_engine(|engine| engine.begin_allocate_to_pool(pool, StreamFilter::Any))
                .unwrap();
            blocks.push(device.allocate(3_000_000).unwrap());
            blocks[5].write(0, &vec![6; blocks[5].size() as usize]).unwrap();
            device.with_engine(|engine| engine.end_allocate_to_pool(pool)).unwrap();
            let memory = device.memory();
            memory.pause_pool(pool, Contents::Kept).unwrap();
            memory.pause(Contents::Kept).unwrap();
            let free = memory.mem_get_info().unwrap().free;
            device.with_engine(|engine| engine.begin_capture(Capture::When(Arc::new(|| false))));
            assert_eq!(memory.resume(), Err(ResumeError::Capturing), "{device:?}");
            assert_eq!(memory.resume_pool(pool), Err(ResumeError::Capturing), "{device:?}");
            assert_eq!(memory.mem_get_info().unwrap().free, free, "{device:?}");
            device.with_engine(|engine| engine.end_capture()).unwrap();
            memory.resume().unwrap();
            memory.resume_pool(pool).unwrap();
            for (block, number) in blocks.iter().zip(1..) {
                assert!(kind == "dry" || holds(block, number), "{device:?}: block {number}");
            }
        }
    }
}

#[test]
fn a_release_during_a_capture_waits_for_nothing() {
    a_release_waits_for_nothing(Release::V2_11);
}

/// Which the release knows of captures of the thread that asks alone.
#[test]
fn nor_does_it_during_a_capture_of_another_thread() {
    a_release_waits_for_nothing(Release::V2_13);
}

fn a_release_waits_for_nothing(release: Release) {
    let config = Config::for_release(release);
    let options = DeviceOptions { config, ..DeviceOptions::default() };
    let device = Device::host_with("512 MiB", options).unwrap();
    let stream = device.create_stream().unwrap();
    let [gone, open] = [5, 6].map(|number| PoolId(0, number));
    device.with_engine(|engine| {
        engine.begin_allocate_to_pool(gone, StreamFilter::Any).unwrap();
        let block = engine.allocate(30 << 20, StreamId::DEFAULT).unwrap();
        engine.free(&block).unwrap();
        engine.end_allocate_to_pool(gone).unwrap();
        // What this pool caches goes with the next that does.
        engine.release_pool(gone).unwrap();
        engine.begin_allocate_to_pool(open, StreamFilter::Any).unwrap();
        engine.begin_capture(Capture::When(Arc::new(|| false)));
    });
    let (go, wait) = std::sync::mpsc::channel();
    let (done, ended) = std::sync::mpsc::channel();
    let work = move || {
        let in_time = wait.recv_timeout(Duration::from_secs(60)).is_ok();
        done.send(in_time).unwrap();
    };
    stream.launch(work).unwrap();
    assert_eq!(device.memory().release(u64::MAX), Ok(0));
    assert_eq!(device.memory().release_pool_memory(gone), Ok(0));
    go.send(()).unwrap();
    assert!(ended.recv().unwrap(), "it waited for the stream's work");
    device.with_engine(|engine| {
        engine.end_capture().unwrap();
        engine.end_allocate_to_pool(open).unwrap();
    });
    assert_eq!(device.memory().release(u64::MAX), Ok(30 << 20));
}
