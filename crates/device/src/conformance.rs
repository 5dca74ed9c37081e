//! The promises of every device, as one suite.

/// Writes a module of tests that hold a device to the promises of
/// [`Device`](crate::Device). The device must be empty and have at least 256 MiB.
///
/// ```
/// # #[cfg(test)]
/// tonnage_device::device_conformance!(dry, tonnage_device::Dry::new(1 << 30));
/// ```
#[macro_export]
macro_rules! device_conformance {
    ($name:ident, $make:expr) => {
        mod $name {
            #[allow(unused_imports, reason = "the expression may name what stands around it")]
            use super::*;
            use $crate::{Device, DeviceError};

            const MIB: u64 = 1 << 20;
            const STREAM: tonnage_events::StreamId = tonnage_events::StreamId(0);

            fn free(device: &mut impl Device) -> u64 {
                device.memory_info().unwrap().free
            }

            fn refused<T: std::fmt::Debug>(result: Result<T, DeviceError>) {
                match result {
                    Err(DeviceError::OutOfMemory { .. }) => panic!("memory is not what it lacks"),
                    Err(error) => assert!(!error.to_string().is_empty()),
                    Ok(value) => panic!("accepted: {value:?}"),
                }
            }

            #[test]
            fn live_segments_do_not_overlap_and_are_aligned() {
                let mut device = $make;
                let sizes = [2 * MIB, 20 * MIB, 2 * MIB, 32 * MIB, 10 * MIB];
                let mut live: Vec<_> =
                    sizes.iter().map(|&size| (device.acquire(size).unwrap().0, size)).collect();
                device.release(tonnage_events::Address(live[1].0)).unwrap();
                live.remove(1);
                live.push((device.acquire(18 * MIB).unwrap().0, 18 * MIB));
                live.sort_unstable();
                for pair in live.windows(2) {
                    assert!(pair[0].0 + pair[0].1 <= pair[1].0, "{live:x?}");
                }
                assert!(live.iter().all(|(address, _)| address % 512 == 0), "{live:x?}");
                for (address, _) in live {
                    device.release(tonnage_events::Address(address)).unwrap();
                }
            }

            #[test]
            fn released_bytes_are_free_again() {
                let mut device = $make;
                let before = free(&mut device);
                let address = device.acquire(20 * MIB).unwrap();
                assert!(free(&mut device) <= before - 20 * MIB);
                device.release(address).unwrap();
                assert_eq!(free(&mut device), before);
            }

            #[test]
            fn more_than_there_is_is_out_of_memory_and_changes_nothing() {
                let mut device = $make;
                let before = free(&mut device);
                let total = device.total();
                for size in [total + 2 * MIB, u64::MAX / 2 / (2 * MIB) * (2 * MIB)] {
                    assert_eq!(
                        device.acquire(size),
                        Err(DeviceError::OutOfMemory { requested: size })
                    );
                    assert_eq!(
                        device.create_page(size),
                        Err(DeviceError::OutOfMemory { requested: size })
                    );
                }
                assert_eq!(free(&mut device), before);
                let address = device.acquire(2 * MIB).unwrap();
                device.release(address).unwrap();
            }

            #[test]
            fn a_segment_is_released_once_and_by_its_first_byte() {
                let mut device = $make;
                let address = device.acquire(20 * MIB).unwrap();
                refused(device.release(address.offset(2 * MIB)));
                device.release(address).unwrap();
                refused(device.release(address));
                refused(device.acquire(0));
            }

            #[test]
            fn reserved_ranges_cost_no_memory_and_do_not_overlap() {
                let mut device = $make;
                let before = free(&mut device);
                let size = device.total() + 128 * MIB;
                let [first, second] = [0, 1].map(|_| device.reserve(size).unwrap());
                assert!(first.0.abs_diff(second.0) >= size);
                assert_eq!(free(&mut device), before);
                device.unreserve(first).unwrap();
                refused(device.unreserve(first));
                device.unreserve(second).unwrap();
            }

            #[test]
            fn pages_are_memory_and_go_where_they_are_put() {
                let mut device = $make;
                let before = free(&mut device);
                let range = device.reserve(128 * MIB).unwrap();
                let [first, second] = [0, 1].map(|_| device.create_page(20 * MIB).unwrap());
                assert!(free(&mut device) <= before - 40 * MIB);
                device.map(first, range).unwrap();
                device.map(second, range.offset(40 * MIB)).unwrap();
                device.unmap(range).unwrap();
                device.map(first, range.offset(20 * MIB)).unwrap();
                device.map(second, range).unwrap();
                for at in [0, 20, 40] {
                    device.unmap(range.offset(at * MIB)).unwrap();
                }
                device.destroy_page(first).unwrap();
                device.destroy_page(second).unwrap();
                device.unreserve(range).unwrap();
                assert_eq!(free(&mut device), before);
            }

            #[test]
            fn a_mapping_that_cannot_be_is_refused() {
                let mut device = $make;
                let range = device.reserve(64 * MIB).unwrap();
                let page = device.create_page(20 * MIB).unwrap();
                let other = device.create_page(2 * MIB).unwrap();
                device.map(page, range.offset(20 * MIB)).unwrap();
                refused(device.map(other, range.offset(38 * MIB)));
                refused(device.map(page, range.offset(2 * MIB)));
                refused(device.map(page, range.offset(46 * MIB)));
                refused(device.map(other, range.offset(MIB)));
                refused(device.unmap(range));
                refused(device.unmap(range.offset(22 * MIB)));
                refused(device.destroy_page(page));
                refused(device.unreserve(range));
                refused(device.create_page(MIB));
                refused(device.create_page(0));
                refused(device.reserve(0));
                device.unmap(range.offset(20 * MIB)).unwrap();
                refused(device.unmap(range.offset(20 * MIB)));
                device.destroy_page(page).unwrap();
                refused(device.destroy_page(page));
                refused(device.map(page, range));
                device.destroy_page(other).unwrap();
                device.unreserve(range).unwrap();
            }

            #[test]
            fn page_sizes_are_whole_granules() {
                let mut device = $make;
                let granule = device.granularity();
                assert!(granule.is_power_of_two());
                let page = device.create_page(granule).unwrap();
                device.destroy_page(page).unwrap();
            }

            #[test]
            fn an_event_that_was_waited_for_can_be_asked_and_forgotten() {
                let mut device = $make;
                let event = device.record_event(STREAM).unwrap();
                device.wait_event(event).unwrap();
                assert_eq!(device.query_event(event), Ok(true));
                device.wait_on(STREAM, event).unwrap();
                device.destroy_event(event).unwrap();
                refused(device.query_event(event));
                refused(device.wait_event(event));
                refused(device.wait_on(STREAM, event));
                refused(device.destroy_event(event));
                device.synchronize(STREAM).unwrap();
            }
        }
    };
}
