//! NCCL without other ranks: each is taken to hold what this one holds.

use std::ffi::{c_char, c_int, c_void};

use tonnage_cuda_codes::Code;

use crate::devices::current;
use crate::entry::library_entry as entry;
use crate::notes;
use crate::state::{State, put};

/// The release that is told: 2.28.9.
const VERSION: c_int = 22809;

/// What ranks find each other by.
#[derive(Clone, Copy)]
#[repr(C)]
struct UniqueId([u8; 128]);

/// Ranks that work together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Communicator {
    ranks: c_int,
    rank: c_int,
}

/// Bytes of an element, by NCCL's number of its type.
fn element(kind: c_int) -> usize {
    const BYTES: [usize; 12] = [1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1];
    usize::try_from(kind).ok().and_then(|kind| BYTES.get(kind).copied()).unwrap_or(4)
}

/// Moves what is known, if both lie on the device.
fn copy(state: &mut State, to: usize, from: usize, bytes: usize) {
    if to != from && state.on_device(to) && state.on_device(from) {
        state.shadow.copy(to as u64, from as u64, bytes);
    }
}

/// A new communicator.
///
/// # Safety
///
/// `place` is null, which is refused, or can be written.
unsafe fn create(
    state: &mut State,
    place: *mut u64,
    ranks: c_int,
    rank: c_int,
) -> Result<(), Code> {
    if ranks > 1 {
        notes::note(
            notes::GUESSES_FILE,
            "NCCL keeps buffers of its own on the device, which are not known and not counted",
        );
    }
    let handle = state.next_handle();
    state.communicators.insert(handle, Communicator { ranks, rank });
    // SAFETY: the caller's promise.
    unsafe { put(place, handle) }
}

fn communicator(state: &State, handle: u64) -> Result<Communicator, Code> {
    state.communicators.get(&handle).copied().ok_or(Code::INVALID_VALUE)
}

entry! {
    /// The release.
    fn ncclGetVersion(version: *mut c_int) |_| {
        // SAFETY: the caller's promise.
        unsafe { put(version, VERSION) }
    }

    /// Nobody has to be found.
    fn ncclGetUniqueId(id: *mut UniqueId) |_| {
        // SAFETY: the caller's promise.
        unsafe { put(id, UniqueId([0; 128])) }
    }

    /// All ranks are there.
    fn ncclCommInitRank(place: *mut u64, ranks: c_int, _id: UniqueId, rank: c_int) |state| {
        // SAFETY: the caller's promise.
        unsafe { create(state, place, ranks, rank) }
    }

    /// All ranks are there.
    fn ncclCommInitRankConfig(
        place: *mut u64,
        ranks: c_int,
        _id: UniqueId,
        rank: c_int,
        _configuration: *mut c_void,
    ) |state| {
        // SAFETY: the caller's promise.
        unsafe { create(state, place, ranks, rank) }
    }

    /// All ranks are there.
    fn ncclCommInitRankScalable(
        place: *mut u64,
        ranks: c_int,
        rank: c_int,
        _count: c_int,
        _ids: *mut UniqueId,
        _configuration: *mut c_void,
    ) |state| {
        // SAFETY: the caller's promise.
        unsafe { create(state, place, ranks, rank) }
    }

    /// A part of the ranks. How many is not told here: only what is this rank's own then counts as known.
    fn ncclCommSplit(
        from: u64,
        _color: c_int,
        _key: c_int,
        place: *mut u64,
        _configuration: *mut c_void,
    ) |state| {
        communicator(state, from)?;
        // SAFETY: the caller's promise.
        unsafe { create(state, place, 1, 0) }
    }

    /// Nothing is left of it.
    fn ncclCommDestroy(handle: u64) |state| {
        state.communicators.remove(&handle);
        Ok(())
    }

    /// Nothing is left of it.
    fn ncclCommAbort(handle: u64) |state| {
        state.communicators.remove(&handle);
        Ok(())
    }

    /// How many.
    fn ncclCommCount(handle: u64, count: *mut c_int) |state| {
        // SAFETY: the caller's promise.
        unsafe { put(count, communicator(state, handle)?.ranks) }
    }

    /// Which one.
    fn ncclCommUserRank(handle: u64, rank: *mut c_int) |state| {
        // SAFETY: the caller's promise.
        unsafe { put(rank, communicator(state, handle)?.rank) }
    }

    /// On the thread's device.
    fn ncclCommCuDevice(_handle: u64, device: *mut c_int) |_| {
        // SAFETY: the caller's promise.
        unsafe { put(device, current()) }
    }

    /// Nothing went wrong.
    fn ncclCommGetAsyncError(_handle: u64, error: *mut c_int) |_| {
        // SAFETY: the caller's promise.
        unsafe { put(error, 0) }
    }

    /// Every rank has what this one has.
    fn ncclAllGather(
        from: *const c_void,
        to: *mut c_void,
        count: usize,
        kind: c_int,
        handle: u64,
        stream: u64,
    ) |state| {
        state.captures.add_node(stream);
        let bytes = count * element(kind);
        for rank in 0..communicator(state, handle)?.ranks {
            copy(state, to.addr() + rank as usize * bytes, from.addr(), bytes);
        }
        Ok(())
    }

    /// The sum is taken to be what this rank has.
    fn ncclAllReduce(
        from: *const c_void,
        to: *mut c_void,
        count: usize,
        kind: c_int,
        _operation: c_int,
        _handle: u64,
        stream: u64,
    ) |state| {
        state.captures.add_node(stream);
        copy(state, to.addr(), from.addr(), count * element(kind));
        Ok(())
    }

    /// The root is taken to have what this rank has.
    fn ncclBroadcast(
        from: *const c_void,
        to: *mut c_void,
        count: usize,
        kind: c_int,
        _root: c_int,
        _handle: u64,
        stream: u64,
    ) |state| {
        state.captures.add_node(stream);
        copy(state, to.addr(), from.addr(), count * element(kind));
        Ok(())
    }

    /// What another rank would send is not known.
    fn ncclRecv(
        to: *mut c_void,
        count: usize,
        kind: c_int,
        _peer: c_int,
        _handle: u64,
        stream: u64,
    ) |state| {
        state.captures.add_node(stream);
        state.shadow.forget(to.addr() as u64, count * element(kind));
        Ok(())
    }

    /// The sum is taken to be what this rank has, of which it gets its part.
    fn ncclReduceScatter(
        from: *const c_void,
        to: *mut c_void,
        count: usize,
        kind: c_int,
        _operation: c_int,
        handle: u64,
        stream: u64,
    ) |state| {
        state.captures.add_node(stream);
        let bytes = count * element(kind);
        let rank = communicator(state, handle)?.rank as usize;
        copy(state, to.addr(), from.addr() + rank * bytes, bytes);
        Ok(())
    }
}

/// No result is in words here.
#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "the library's name")]
extern "C" fn ncclGetErrorString(_result: c_int) -> *const c_char {
    c"a result of the fake NCCL".as_ptr()
}

/// Nothing went wrong.
#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "the library's name")]
extern "C" fn ncclGetLastError(_handle: u64) -> *const c_char {
    c"".as_ptr()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::with_state;

    #[test]
    fn every_rank_has_what_this_one_has() {
        let mut handle = 0;
        // SAFETY: the place can be written.
        assert_eq!(unsafe { ncclCommInitRank(&raw mut handle, 3, UniqueId([0; 128]), 1) }, 0);
        let (from, to) = (1_usize << 46, (1_usize << 46) + 4096);
        with_state(|state| state.shadow.write(from as u64, &[1, 2, 3, 4, 5, 6, 7, 8]));
        let at = std::ptr::without_provenance_mut;
        // SAFETY: addresses of the device are not followed.
        assert_eq!(unsafe { ncclAllGather(at(from), at(to), 2, 2, handle, 0) }, 0);
        let read = |address| {
            let mut bytes = [0; 24];
            with_state(|state| state.shadow.read(address, &mut bytes));
            bytes
        };
        assert_eq!(read(to as u64), [1, 2, 3, 4, 5, 6, 7, 8].repeat(3)[..]);
        // SAFETY: as above.
        assert_eq!(unsafe { ncclReduceScatter(at(from), at(to), 1, 2, 0, handle, 0) }, 0);
        assert_eq!(read(to as u64)[..5], [5, 6, 7, 8, 5]);
        // SAFETY: the handle is refused once it is gone.
        assert_eq!(unsafe { ncclCommDestroy(handle) }, 0);
        let mut count = 0;
        // SAFETY: the place can be written.
        assert_eq!(unsafe { ncclCommCount(handle, &raw mut count) }, Code::INVALID_VALUE.0);
    }
}
