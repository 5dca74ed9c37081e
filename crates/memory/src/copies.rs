//! Copies between a program's memory and a block's, without the engine's lock.
//!
//! A copy takes as long as its bytes do, and on `cuda` waits for the default stream; others allocate meanwhile. With
//! the lock it is only looked up where the bytes are. A lock of the device's own lets copies take turns.
//!
//! That is so for requests that the cache serves. NVIDIA's driver makes some of its calls wait for one another: on an
//! H200 (driver 580) another thread's `cuMemAlloc` came back when a copy did, which waited for the default stream.

use std::alloc::{Layout, alloc_zeroed};
use std::ptr;

use tonnage_device::DeviceError;
use tonnage_engine::Engine;
use tonnage_events::Address;

use crate::any_device::{AnyDevice, Reach};
use crate::block::Block;
use crate::sync::lock;

/// Copies to `at`, which with all of the bytes lies in `block`, whose stream was waited for.
pub(crate) fn copy_into(block: &Block, at: Address, bytes: &[u8]) -> Result<(), DeviceError> {
    let shared = &block.device().shared;
    let reach = shared.engine.lock().device().reach("write", at, bytes.len() as u64)?;
    let _turn = lock(&shared.copies);
    match reach {
        Reach::Nothing => Ok(()),
        Reach::Host(place) => {
            // SAFETY:
            // - Mapped: the device checked it; and the block is borrowed, so it is not given back, and the engine
            //   keeps what a live block lies in.
            // - Touched by nobody else meanwhile: other copies wait for their turn; poisoning of this block was queued
            //   on its stream when it was handed out, and is done; work is ordered by its author (`Host`, promise 3).
            // - Apart: `bytes` are a program's, and no safe code borrows a device's.
            unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), place, bytes.len()) };
            Ok(())
        }
        // SAFETY: held until this returns: the block is borrowed, so it is not given back, and the engine keeps what
        // a live block lies in; the engine lives with the device, to which the block has a handle.
        Reach::Cuda(memory) => unsafe { memory.write(bytes) },
    }
}

/// Copies from `at`, as [`copy_into`] does the other way.
pub(crate) fn copy_from(block: &Block, at: Address, into: &mut [u8]) -> Result<(), DeviceError> {
    let shared = &block.device().shared;
    let reach = shared.engine.lock().device().reach("read", at, into.len() as u64)?;
    let _turn = lock(&shared.copies);
    match reach {
        Reach::Nothing => into.fill(0),
        Reach::Host(place) => {
            // SAFETY: as in `copy_into`. Initialised: pages of the system, zero until written.
            unsafe { ptr::copy_nonoverlapping(place, into.as_mut_ptr(), into.len()) };
        }
        // SAFETY: as in `copy_into`.
        Reach::Cuda(memory) => return unsafe { memory.read(into) },
    }
    Ok(())
}

/// So many zeros, or nothing if this machine does not give them. Pages that are not written yet take none of its memory.
pub(crate) fn zeros(size: u64) -> Option<Vec<u8>> {
    let size = usize::try_from(size).ok()?;
    if size == 0 {
        return Some(Vec::new());
    }
    let layout = Layout::array::<u8>(size).ok()?;
    // SAFETY: the layout's size is not zero.
    let start = unsafe { alloc_zeroed(layout) };
    if start.is_null() {
        return None;
    }
    // SAFETY:
    // - From the allocator of `Vec`, with the layout that a vector of this capacity has, and owned by nobody else.
    // - Initialised: zeros; and no more than `isize::MAX` of them, or there were no layout.
    Some(unsafe { Vec::from_raw_parts(start, size, size) })
}

/// Copies the bytes at `address`, which the engine holds, when no work uses them, to where zeros are: where there is no memory, zeros are
/// what is read.
pub(crate) fn save(
    engine: &Engine<AnyDevice>,
    address: Address,
    into: &mut [u8],
) -> Result<(), DeviceError> {
    match engine.device().reach("read", address, into.len() as u64)? {
        Reach::Nothing => {}
        Reach::Host(place) => {
            // SAFETY: mapped, as the device checked, and so until this returns, since the engine is borrowed; apart, since no safe code
            // borrows a device's memory; initialised: pages of the system, zero until written.
            unsafe { ptr::copy_nonoverlapping(place, into.as_mut_ptr(), into.len()) };
        }
        // SAFETY: held until this returns, since the engine is borrowed.
        Reach::Cuda(memory) => return unsafe { memory.read(into) },
    }
    Ok(())
}

/// Copies bytes to `address`, as [`save`] does the other way.
pub(crate) fn put_back(
    engine: &Engine<AnyDevice>,
    address: Address,
    bytes: &[u8],
) -> Result<(), DeviceError> {
    match engine.device().reach("write", address, bytes.len() as u64)? {
        Reach::Nothing => Ok(()),
        Reach::Host(place) => {
            // SAFETY: as in `save`.
            unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), place, bytes.len()) };
            Ok(())
        }
        // SAFETY: as in `save`.
        Reach::Cuda(memory) => unsafe { memory.write(bytes) },
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    use super::*;
    use crate::Device;

    #[test]
    fn others_allocate_while_a_block_is_copied() {
        let device = Device::host("256 MiB").unwrap();
        let block = device.allocate(1_000).unwrap();
        block.write(0, &[3; 1_000]).unwrap();
        // Another copy is under way, for as long as this test wants.
        let turn = lock(&device.shared.copies);
        thread::scope(|scope| {
            let copier = scope.spawn(|| {
                block.write(0, &[5; 500]).unwrap();
                let mut bytes = [0; 1_000];
                block.read(0, &mut bytes).unwrap();
                bytes
            });
            let (done, ended) = mpsc::channel();
            let allocates = scope.spawn({
                let device = device.clone();
                move || {
                    for _ in 0..100 {
                        drop(device.allocate(1 << 20).unwrap());
                        thread::sleep(Duration::from_millis(1));
                    }
                    done.send(()).unwrap();
                }
            });
            let ended = ended.recv_timeout(Duration::from_secs(300));
            drop(turn);
            allocates.join().unwrap();
            assert!(ended.is_ok(), "allocations waited for the copy");
            let bytes = copier.join().unwrap();
            assert!(
                bytes[..500].iter().all(|it| *it == 5) && bytes[500..].iter().all(|it| *it == 3)
            );
        });
    }
}
