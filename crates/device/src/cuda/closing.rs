//! The end of a device: what was not given back goes back.

use super::Cuda;
use super::books::Remains;
use super::context::Current;
use super::device::Live;
use crate::DeviceError;

impl Drop for Cuda {
    fn drop(&mut self) {
        // Only what is still out can have work in flight.
        let in_use = self.live() != Live::default();
        let remains = self.books.drain();
        let known = self.queues.streams().handles();
        let streams = self.queues.streams_mut().drain();
        // The first try may return an error that an earlier call has parked.
        let Ok(current) = self.context.enter().or_else(|_| self.context.enter()) else {
            // The driver is going, as it does while the process ends, and takes everything along.
            return;
        };
        // While someone's work is captured in the context, by the streams that may be named here. Those that have ended were
        // waited for.
        let by_streams = || {
            // SAFETY: alive by the books until they are destroyed below; the context is current by type.
            known.iter().try_for_each(|it| unsafe { current.stream_synchronize(*it) })
        };
        let wait = || match current.synchronize_context() {
            Err(DeviceError::Misuse { .. }) => by_streams(),
            waited => waited,
        };
        // Once more if it failed. Memory that work may still use stays: it goes with the context.
        if !in_use || wait().or_else(|_| wait()).is_ok() {
            give_back_memory(&current, &remains);
            self.pinned.close(&current);
        }
        for stream in streams {
            // SAFETY: ours by the books, which no longer name it; the context is current by type.
            ignore(unsafe { current.stream_destroy(stream) });
        }
    }
}

/// Mappings first: a page is released when it is mapped nowhere, a range freed when it is empty.
fn give_back_memory(current: &Current<'_>, remains: &Remains) {
    for mapping in &remains.mappings {
        // SAFETY: whole and ours by the books, which no longer name it; work of the context, or of all streams that may be
        // named here, has been waited for, and the context is current by type.
        ignore(unsafe { current.memory_unmap(mapping.address.0, mapping.size) });
    }
    for &page in &remains.pages {
        // SAFETY: ours, and mapped nowhere since the loop above.
        ignore(unsafe { current.memory_release(page) });
    }
    for &(address, size) in &remains.ranges {
        // SAFETY: ours, whole, and empty since the loop above.
        ignore(unsafe { current.address_free(address.0, size) });
    }
    for address in &remains.segments {
        // SAFETY: ours by the books, which no longer name it; the context is current by type.
        ignore(unsafe { current.memory_free(address.0) });
    }
}

/// Nobody is left to hear of an error, and the rest is to be given back all the same.
fn ignore(result: Result<(), DeviceError>) {
    drop(result);
}
