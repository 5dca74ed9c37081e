//! Blocks from several threads under a scheduler that tries many interleavings.

use shuttle::{check_random, thread};
use tonnage_memory::{Device, DeviceOptions, Policy};

/// Schedules that are tried.
const SCHEDULES: usize = 2_000;

/// A device with these placement rules.
fn with_policy(capacity: &str, policy: Policy) -> Device {
    let options = DeviceOptions { policy: Some(policy), ..DeviceOptions::default() };
    Device::dry_with(capacity, options).unwrap()
}

/// Tries a program under every policy.
fn check_policies(program: impl Fn(Policy) + Copy + Send + Sync + 'static) {
    for policy in Policy::ALL {
        check_random(move || program(policy), SCHEDULES);
    }
}

#[test]
fn live_blocks_of_several_threads_never_overlap_and_all_go_back() {
    check_policies(|policy| {
        let device = with_policy("64 MiB", policy);
        let threads: Vec<_> = (0..3_u64)
            .map(|number| {
                let device = device.clone();
                thread::spawn(move || {
                    let first = device.allocate(1_000 + number).unwrap();
                    let second = device.allocate(3 << 20).unwrap();
                    let end = |block: &tonnage_memory::Block| block.address().0 + block.size();
                    assert!(end(&first) <= second.address().0 || end(&second) <= first.address().0);
                    drop(first);
                    if number == 1 {
                        device.memory().empty_cache().unwrap();
                    }
                    second
                })
            })
            .collect();
        let blocks: Vec<_> = threads.into_iter().map(|it| it.join().unwrap()).collect();
        let mut spans: Vec<_> =
            blocks.iter().map(|it| (it.address().0, it.address().0 + it.size())).collect();
        spans.sort_unstable();
        assert!(spans.windows(2).all(|pair| pair[0].1 <= pair[1].0), "{spans:x?}");
        assert_eq!(device.memory().stats().allocation.all.current, 3);
        drop(blocks);
        device.memory().check_invariants().unwrap();
        device.memory().empty_cache().unwrap();
        assert_eq!(device.memory().reserved(), 0);
    });
}

#[test]
fn a_block_that_is_dropped_while_another_has_the_engine_comes_back_once() {
    check_policies(|policy| {
        let device = with_policy("64 MiB", policy);
        let [first, second, third] = [0, 1, 2].map(|_| device.allocate(3 << 20).unwrap());
        let threads = [
            thread::spawn({
                let device = device.clone();
                move || {
                    drop(first);
                    drop(second);
                    // The third and the one below may still be live; what was dropped here is not.
                    assert!(device.memory().stats().allocation.all.current <= 2);
                }
            }),
            thread::spawn({
                let device = device.clone();
                move || drop(device.allocate(20 << 20).unwrap())
            }),
            thread::spawn({
                let device = device.clone();
                move || {
                    device.memory().empty_cache().unwrap();
                    drop(third);
                }
            }),
        ];
        threads.into_iter().for_each(|it| it.join().unwrap());
        let stats = device.memory().stats().allocation.all;
        assert_eq!((stats.allocated, stats.freed, stats.current), (4, 4, 0));
        device.memory().check_invariants().unwrap();
        device.memory().empty_cache().unwrap();
        assert_eq!(device.memory().reserved(), 0);
    });
}

#[test]
fn whoever_waits_for_a_stream_lets_others_at_the_engine() {
    check_policies(|policy| {
        let device = with_policy("64 MiB", policy);
        let [kept, dropped] = [0, 1].map(|_| device.create_stream().unwrap());
        let stream = kept.id();
        let block = device.allocate_on(1_000, stream).unwrap();
        // An event is recorded, the engine let go, the event waited for, and forgotten: meanwhile
        // others free what that stream used, give memory back, and end streams.
        let threads = [
            thread::spawn(move || {
                kept.synchronize().unwrap();
                block.read(0, &mut [1; 8]).unwrap();
                kept.device().synchronize(stream).unwrap();
            }),
            thread::spawn({
                let device = device.clone();
                move || {
                    let used = device.allocate(3 << 20).unwrap();
                    used.record_stream(stream);
                    drop(used);
                    drop(device.allocate(3 << 20).unwrap());
                }
            }),
            thread::spawn({
                let device = device.clone();
                move || {
                    drop(dropped);
                    device.memory().empty_cache().unwrap();
                }
            }),
        ];
        threads.into_iter().for_each(|it| it.join().unwrap());
        assert_eq!(device.memory().allocated(), 0);
        device.memory().check_invariants().unwrap();
        device.memory().empty_cache().unwrap();
        assert_eq!(device.memory().reserved(), 0);
    });
}

#[test]
fn the_last_free_byte_goes_to_exactly_one_thread() {
    check_policies(|policy| {
        // Room for one segment of 20 MiB, asked for by two.
        let device = with_policy("20 MiB", policy);
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let device = device.clone();
                thread::spawn(move || device.allocate(20 << 20).map(|block| (device, block)))
            })
            .collect();
        let results: Vec<_> = threads.into_iter().map(|it| it.join().unwrap()).collect();
        assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 1);
        assert_eq!(device.memory().stats().num_ooms, 1);
    });
}

/// Pages go from a stream's free blocks to a view, and parts of pages too, while others free, give memory back and look.
#[test]
fn pages_that_move_between_threads_have_one_owner() {
    let policy = Policy::from_conf("policy:pages,slack:0").unwrap();
    check_random(
        move || {
            let device = with_policy("64 MiB", policy);
            device.memory().set_limit(Some(12 << 20));
            let [one, two, three, four] = [0; 4].map(|_| device.allocate(3 << 20).unwrap());
            let threads = [
                thread::spawn({
                    let device = device.clone();
                    move || {
                        drop(two);
                        // It takes pages of both holes, and ends of others, if both are free by then.
                        device.allocate(5 << 20).ok()
                    }
                }),
                thread::spawn({
                    let device = device.clone();
                    move || {
                        drop(four);
                        device.memory().check_invariants().unwrap();
                        device.allocate(3 << 20).ok()
                    }
                }),
                thread::spawn({
                    let device = device.clone();
                    move || {
                        drop(three);
                        device.memory().empty_cache().unwrap();
                        device.allocate(1 << 20).ok()
                    }
                }),
            ];
            let served: Vec<_> =
                threads.into_iter().filter_map(|it| it.join().unwrap()).chain([one]).collect();
            let bytes: u64 = served.iter().map(|block| block.size()).sum();
            device.memory().check_invariants().unwrap();
            assert!(bytes <= device.memory().reserved(), "memory has two owners");
            assert!(device.memory().reserved() <= 12 << 20);
            drop(served);
            device.memory().empty_cache().unwrap();
            assert_eq!(device.memory().reserved(), 0);
        },
        SCHEDULES,
    );
}

#[test]
fn pinned_blocks_of_several_threads_never_share_memory_and_the_figures_add_up() {
    check_random(
        || {
            let device = Device::dry("64 MiB").unwrap();
            let threads: Vec<_> = (0..3_u8)
                .map(|number| {
                    let pinned = device.pinned();
                    thread::spawn(move || {
                        let mut first = pinned.allocate(100).unwrap();
                        first.fill(number);
                        // Goes back while the others ask for the same class.
                        drop(pinned.allocate(100).unwrap());
                        if number == 1 {
                            pinned.empty_cache().unwrap();
                        }
                        let second = pinned.allocate(128).unwrap();
                        assert_ne!(first.as_ptr(), second.as_ptr());
                        assert!(first.iter().all(|&byte| byte == number), "{first:?}");
                        second
                    })
                })
                .collect();
            let blocks: Vec<_> = threads.into_iter().map(|it| it.join().unwrap()).collect();
            let mut places: Vec<_> = blocks.iter().map(|block| block.as_ptr()).collect();
            places.sort_unstable();
            places.dedup();
            assert_eq!(places.len(), 3);
            let pinned = device.pinned();
            let stats = pinned.stats();
            assert_eq!((stats.allocations, stats.in_use.current, stats.pending), (9, 3 * 128, 0));
            assert!(stats.reserved.current >= stats.in_use.current);
            drop(blocks);
            pinned.empty_cache().unwrap();
            assert_eq!(pinned.stats().reserved.current, 0);
        },
        SCHEDULES,
    );
}

#[test]
fn a_pinned_block_that_a_stream_uses_waits_for_it_whoever_asks_first() {
    check_random(
        || {
            let device = Device::dry("64 MiB").unwrap();
            let side = device.create_stream().unwrap();
            let pinned = device.pinned();
            let block = pinned.allocate(100).unwrap();
            block.record_stream(side.id());
            let dropper = thread::spawn(move || drop(block));
            let askers: Vec<_> = (0..2)
                .map(|_| {
                    let pinned = device.pinned();
                    thread::spawn(move || pinned.allocate(100).unwrap())
                })
                .collect();
            dropper.join().unwrap();
            let blocks: Vec<_> = askers.into_iter().map(|it| it.join().unwrap()).collect();
            assert_ne!(blocks[0].as_ptr(), blocks[1].as_ptr());
            let stats = pinned.stats();
            assert_eq!(stats.in_use.current, 2 * 128);
            assert_eq!(stats.cached() + stats.pending + 2 * 128, stats.reserved.current);
        },
        SCHEDULES,
    );
}
