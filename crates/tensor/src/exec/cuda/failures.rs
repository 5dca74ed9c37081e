//! What goes wrong inside kernels on a GPU: one pinned word that all of them share.
//!
//! In:  launches that can meet wrong values, each with the sentence about one.
//! Out: the first complaint, with the call that queued the work, when someone synchronises.

use std::collections::BTreeMap;
use std::ptr;
use std::sync::{Mutex, OnceLock};

use tonnage_device::cuda::Arguments;
use tonnage_memory::PinnedBlock;

use super::plan::Complaint;
use crate::device::Device;
use crate::error::{Call, ErrorKind, Result};
use crate::exec::order::lock;

/// As in the prelude: who took the word, who has written the value too, the value.
#[repr(C)]
struct Word {
    taken: u32,
    ready: u32,
    value: i64,
}

/// Launches that are remembered: more than are ever queued at once. What is older is done.
const REMEMBERED: usize = 1 << 16;

/// The complaints of one device.
#[derive(Default)]
pub(super) struct Failures {
    /// From the first launch on that can complain.
    word: OnceLock<PinnedBlock>,
    tickets: Mutex<Tickets>,
}

#[derive(Default)]
struct Tickets {
    last: u32,
    queued: BTreeMap<u32, (Call, Complaint)>,
}

impl Failures {
    /// Gives a launch what it needs to complain.
    pub(super) fn attach(
        &self,
        call: Call,
        device: &Device,
        complaint: Complaint,
        arguments: &mut Arguments,
    ) -> Result<()> {
        let word = match self.word.get() {
            Some(word) => word,
            None => {
                let mut block = device
                    .pinned()
                    .allocate(size_of::<Word>() as u64)
                    .map_err(|error| call.pinned(error))?;
                block.try_as_mut_slice().map_err(|error| call.pinned(error))?.fill(0);
                self.word.get_or_init(|| block)
            }
        };
        let mut tickets = lock(&self.tickets);
        // Zero is nobody's.
        tickets.last = tickets.last.checked_add(1).unwrap_or(1);
        let ticket = tickets.last;
        tickets.queued.insert(ticket, (call, complaint));
        while tickets.queued.len() > REMEMBERED {
            tickets.queued.pop_first();
        }
        drop(tickets);
        arguments.push(word.pointer().cast::<u8>().expose_provenance() as u64);
        arguments.push(ticket);
        Ok(())
    }

    /// The complaint that came first since the last look, after the work that may have made it is done.
    pub(super) fn report(&self) -> Result<()> {
        let Some(word) = self.word.get() else { return Ok(()) };
        let word = word.pointer().cast::<Word>();
        // SAFETY: the block has room for a word, at the alignment of pinned memory, and lives as long as `self`; only
        // kernels and this function touch it, kernels with atomic operations, so each field is read and written at once.
        let (ready, value) = unsafe {
            let ready = ptr::read_volatile(&raw const (*word).ready);
            (ready, ptr::read_volatile(&raw const (*word).value))
        };
        if ready == 0 {
            return Ok(());
        }
        let complaint = lock(&self.tickets).queued.remove(&ready);
        // SAFETY: as above. Last the field by which kernels take the word.
        unsafe {
            ptr::write_volatile(&raw mut (*word).ready, 0);
            ptr::write_volatile(&raw mut (*word).taken, 0);
        }
        Err(match complaint {
            Some((call, complaint)) => call.error(ErrorKind::Queued, complaint(value)),
            None => Call::here("synchronize")
                .error(ErrorKind::Queued, format!("a kernel met the wrong value {value}")),
        })
    }
}
