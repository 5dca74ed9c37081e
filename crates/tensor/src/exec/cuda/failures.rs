//! What goes wrong inside kernels on a GPU: one pinned word that all of them share.
//!
//! In:  launches that can meet wrong values, each with the sentence about one.
//! Out: the first complaint, with the call that queued the work, when someone synchronises.

use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Mutex, OnceLock};

use tonnage_device::cuda::Arguments;
use tonnage_memory::{PinnedBlock, StreamId};

use super::plan::Complaint;
use crate::device::Device;
use crate::error::{Call, ErrorKind, Result};
use crate::exec::order::lock;

/// Bytes of a word, as in the prelude: who took it, who has written the value too, the value.
const WORD: u64 = 16;

/// The word of a device, in pinned memory: kernels write it, this machine reads and clears it.
struct Fields<'a> {
    words: *mut u32,
    block: PhantomData<&'a PinnedBlock>,
}

impl<'a> Fields<'a> {
    const TAKEN: usize = 0;
    const READY: usize = 1;

    fn of(block: &'a PinnedBlock) -> Self {
        assert!(block.len() as u64 >= WORD, "a block has room for a word");
        Self { words: block.pointer().cast(), block: PhantomData }
    }

    fn read(&self, field: usize) -> u32 {
        assert!(field < 4, "a word has four parts");
        // SAFETY: four parts lie in the block, which is borrowed, at the alignment of pinned memory. Kernels write parts
        // at once, and nobody else does; volatile, since they do so unseen.
        unsafe { self.words.wrapping_add(field).read_volatile() }
    }

    fn clear(&self, field: usize) {
        assert!(field < 4, "a word has four parts");
        // SAFETY: as in `read`.
        unsafe { self.words.wrapping_add(field).write_volatile(0) }
    }

    /// What the kernel met: its lower half first.
    fn value(&self) -> i64 {
        (u64::from(self.read(3)) << 32 | u64::from(self.read(2))) as i64
    }
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
    /// Of graphs: they may complain at each replay.
    captured: BTreeMap<u32, (Call, Complaint)>,
}

impl Failures {
    /// Gives a launch what it needs to complain: its ticket, which a captured one has until it is
    /// [given up](Self::give_up).
    pub(super) fn attach(
        &self,
        call: Call,
        (device, stream, captured): (&Device, StreamId, bool),
        complaint: Complaint,
        arguments: &mut Arguments,
    ) -> Result<u32> {
        let word = match self.word.get() {
            Some(word) => word,
            None => {
                let mut block =
                    device.pinned().allocate(WORD).map_err(|error| call.pinned(error))?;
                block.try_as_mut_slice().map_err(|error| call.pinned(error))?.fill(0);
                self.word.get_or_init(|| block)
            }
        };
        // The kernel may write the word until it is done, whoever drops it meanwhile. A graph keeps all of this.
        if !captured {
            word.record_stream(stream);
        }
        let mut tickets = lock(&self.tickets);
        // Zero is nobody's.
        tickets.last = tickets.last.checked_add(1).unwrap_or(1);
        let ticket = tickets.last;
        let kept = if captured { &mut tickets.captured } else { &mut tickets.queued };
        kept.insert(ticket, (call, complaint));
        while tickets.queued.len() > REMEMBERED {
            tickets.queued.pop_first();
        }
        drop(tickets);
        arguments.push(word.pointer().cast::<u8>().expose_provenance() as u64);
        arguments.push(ticket);
        Ok(ticket)
    }

    /// The graph of these tickets is gone.
    pub(super) fn give_up(&self, given: &[u32]) {
        let mut tickets = lock(&self.tickets);
        given.iter().for_each(|ticket| drop(tickets.captured.remove(ticket)));
    }

    /// The complaint that came first since the last look, after the work that may have made it is done.
    pub(super) fn report(&self) -> Result<()> {
        let Some(word) = self.word.get() else { return Ok(()) };
        let word = Fields::of(word);
        // One reader at a time: the word is read and cleared at once.
        let mut tickets = lock(&self.tickets);
        let ready = word.read(Fields::READY);
        if ready == 0 {
            return Ok(());
        }
        // Behind the mark, the value is whole.
        fence(Ordering::Acquire);
        let value = word.value();
        let sentence = |(call, complaint): &(Call, Complaint)| (*call, complaint(value));
        let complaint = tickets.queued.remove(&ready).as_ref().map(sentence);
        let complaint = complaint.or_else(|| tickets.captured.get(&ready).map(sentence));
        // Last the field by which kernels take the word.
        word.clear(Fields::READY);
        word.clear(Fields::TAKEN);
        drop(tickets);
        Err(match complaint {
            Some((call, sentence)) => call.error(ErrorKind::Queued, sentence),
            None => Call::here("synchronize")
                .error(ErrorKind::Queued, format!("a kernel met the wrong value {value}")),
        })
    }
}
