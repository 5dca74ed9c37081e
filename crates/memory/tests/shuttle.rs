//! Blocks from several threads under a scheduler that tries many interleavings.

use shuttle::{check_random, thread};
use tonnage_memory::Device;

/// Schedules that are tried.
const SCHEDULES: usize = 2_000;

#[test]
fn live_blocks_of_several_threads_never_overlap_and_all_go_back() {
    check_random(
        || {
            let device = Device::dry("64 MiB").unwrap();
            let threads: Vec<_> = (0..3_u64)
                .map(|number| {
                    let device = device.clone();
                    thread::spawn(move || {
                        let first = device.allocate(1_000 + number).unwrap();
                        let second = device.allocate(3 << 20).unwrap();
                        let end = |block: &tonnage_memory::Block| block.address().0 + block.size();
                        assert!(
                            end(&first) <= second.address().0 || end(&second) <= first.address().0
                        );
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
        },
        SCHEDULES,
    );
}

#[test]
fn the_last_free_byte_goes_to_exactly_one_thread() {
    check_random(
        || {
            // Room for one segment of 20 MiB, asked for by two.
            let device = Device::dry("20 MiB").unwrap();
            let threads: Vec<_> = (0..2)
                .map(|_| {
                    let device = device.clone();
                    thread::spawn(move || device.allocate(20 << 20).map(|block| (device, block)))
                })
                .collect();
            let results: Vec<_> = threads.into_iter().map(|it| it.join().unwrap()).collect();
            assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 1);
            assert_eq!(device.memory().stats().num_ooms, 1);
        },
        SCHEDULES,
    );
}
