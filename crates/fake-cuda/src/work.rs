//! A piece of work of a stream: done when it is queued, or written down and done when its graph is launched.

use crate::codes::Code;
use crate::host_memory::{copy, fill};
use crate::launches::Launch;
use crate::state::State;

/// A place that work reads or writes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Place {
    /// Memory of the fake.
    Device(u64),
    /// Memory of the caller, who vouches for it until the work is done.
    Host(u64),
}

#[derive(Clone, Debug)]
pub(crate) enum Work {
    Copy {
        to: Place,
        from: Place,
        size: u64,
    },
    /// `count` times so many bytes of `word`.
    Fill {
        to: u64,
        word: [u8; 4],
        width: u64,
        count: u64,
    },
    Launch(Launch),
}

impl State {
    /// Queues work on a stream of the current context.
    ///
    /// # Safety
    ///
    /// Memory of the caller's that the work names is good until it is done, or until its graph is destroyed.
    pub(crate) unsafe fn submit(&mut self, stream: u64, work: Work) -> Result<(), Code> {
        let device = self.current()?;
        let queue = self.queues.key(stream, device)?;
        self.check(&work)?;
        if let Some(work) = self.captures.take(queue, work) {
            // SAFETY: the caller's promise; the fake's memory was looked up above.
            unsafe { self.perform(work) };
            self.queues.push(queue);
        }
        Ok(())
    }

    /// Queues the work of a graph.
    ///
    /// # Safety
    ///
    /// As for [`submit`](Self::submit), for each piece.
    pub(crate) unsafe fn submit_graph(&mut self, stream: u64, exec: u64) -> Result<(), Code> {
        for work in self.captures.work(exec)? {
            // SAFETY: the caller's promise.
            unsafe { self.submit(stream, work) }?;
        }
        Ok(())
    }

    /// Refuses work on memory that is not there.
    fn check(&self, work: &Work) -> Result<(), Code> {
        let check = |place: &Place, size, write| match *place {
            Place::Device(address) => self.memory.check_access(address, size, write),
            Place::Host(0) => Err(Code::INVALID_VALUE),
            Place::Host(_) => Ok(()),
        };
        match work {
            Work::Copy { to, from, size } => {
                check(from, *size, false)?;
                check(to, *size, true)
            }
            Work::Fill { to, width, count, .. } => {
                if !to.is_multiple_of(*width) {
                    return Err(Code::INVALID_VALUE);
                }
                let size = width.checked_mul(*count).ok_or(Code::INVALID_VALUE)?;
                check(&Place::Device(*to), size, true)
            }
            Work::Launch(_) => Ok(()),
        }
    }

    /// Does work now; only its completion is late.
    ///
    /// # Safety
    ///
    /// Memory that the work names can be read or written.
    unsafe fn perform(&mut self, work: Work) {
        match work {
            // SAFETY: the caller's promise.
            Work::Copy { to, from, size } => unsafe { copy(pointer(to), pointer(from), size) },
            Work::Fill { to, word, width: 1, count } => {
                // SAFETY: the caller's promise.
                unsafe { fill(pointer(Place::Device(to)), word[0], count) };
            }
            Work::Fill { to, word, width, count } => {
                for index in 0..count * width {
                    let at = pointer(Place::Device(to + index));
                    // SAFETY: the caller's promise.
                    unsafe { fill(at, word[(index % width) as usize], 1) };
                }
            }
            Work::Launch(launch) => self.launches.run(launch),
        }
    }
}

fn pointer(place: Place) -> *mut u8 {
    let (Place::Device(address) | Place::Host(address)) = place;
    std::ptr::with_exposed_provenance_mut(address as usize)
}
