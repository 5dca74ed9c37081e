//! Streams that come and go leave nothing behind.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use tonnage_memory::Device;

/// The system's allocator, counting what each thread has of it: other tests run meanwhile.
struct Counting;

thread_local! {
    static HELD: Cell<isize> = const { Cell::new(0) };
}

fn count(bytes: isize) {
    // A thread that is ending counts no more.
    let _ = HELD.try_with(|held| held.set(held.get() + bytes));
}

// SAFETY: every call is passed on unchanged to the system's allocator; counting neither allocates nor
// panics.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size().cast_signed());
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        count(-layout.size().cast_signed());
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

#[test]
fn twenty_thousand_streams_leave_next_to_nothing_behind() {
    for device in [Device::dry("4 GiB").unwrap(), Device::host("4 GiB").unwrap()] {
        let before = HELD.get();
        for number in 0..20_000 {
            let stream = device.create_stream().unwrap();
            drop(device.allocate_on(1_000, stream.id()).unwrap());
            if number % 500 == 499 {
                device.memory().empty_cache().unwrap();
            }
        }
        assert_eq!(device.memory().reserved(), 0);
        let left = HELD.get() - before;
        assert!(left < 64 << 10, "{left} bytes on {device:?}");
    }
}
