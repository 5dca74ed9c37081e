//! What matrix libraries need for themselves: whose bytes a device counts.
//!
//! In:  products, by thread and stream.
//! Out: blocks of the engine, kept from the first product on, by the profile in force.
//!
//! | profile | what a device keeps |
//! | --- | --- |
//! | [`Bare`](MemoryProfile::Bare) | nothing: tensors alone |
//! | [`Tonnage`](MemoryProfile::Tonnage) | for each stream that multiplies, 32 MiB, which products on a GPU use; as much as its three tensors (at most 512 MiB) and 16 MiB while a convolution is queued. Losses of rows of classes keep one number for each row |
//! | [`PyTorch`](MemoryProfile::PyTorch) | what PyTorch keeps: for each thread that multiplies 32 MiB for cuBLAS from its first product on, and 1 MiB for cuBLASLt from its first product with a bias on. Gradients are computed on a thread of their own |

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;

use tonnage_events::Address;
use tonnage_memory::{Block, StreamId, current_stream};

use crate::autograd::is_backward;
use crate::device::Device;
use crate::error::{Call, Result};

/// Whose memory a device takes: scratch beside that of tensors, and what losses keep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MemoryProfile {
    /// None: tensors alone.
    #[default]
    Bare,
    /// What this runtime takes on a GPU.
    Tonnage,
    /// What PyTorch takes on one.
    PyTorch,
}

impl MemoryProfile {
    /// Every profile.
    pub const ALL: [Self; 3] = [Self::Bare, Self::Tonnage, Self::PyTorch];

    /// Its name, as it is typed.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bare => "bare",
            Self::Tonnage => "tonnage",
            Self::PyTorch => "pytorch",
        }
    }
}

impl fmt::Display for MemoryProfile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Bytes of cuBLAS on a Hopper GPU: PyTorch's choice, and ours for every product.
const CUBLAS: u64 = 32 << 20;

/// Bytes of cuBLASLt.
const CUBLAS_LT: u64 = 1 << 20;

/// Who multiplies, where, and with which library.
type Key = (Option<Thread>, StreamId, u64);

/// A thread, ordered by the time of its first product.
type Thread = usize;

/// The workspaces of a device.
#[derive(Default)]
pub(crate) struct Workspaces {
    held: Mutex<Held>,
}

#[derive(Default)]
struct Held {
    profile: MemoryProfile,
    threads: Vec<ThreadId>,
    blocks: BTreeMap<Key, Block>,
}

impl Held {
    /// The thread that PyTorch would multiply on: none for the one of all backwards.
    fn thread(&mut self) -> Option<Thread> {
        if is_backward() {
            return None;
        }
        let this = std::thread::current().id();
        let known = self.threads.iter().position(|&thread| thread == this);
        Some(known.unwrap_or_else(|| {
            self.threads.push(this);
            self.threads.len() - 1
        }))
    }
}

impl Workspaces {
    fn lock(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set_profile(&self, profile: MemoryProfile) {
        self.lock().profile = profile;
    }

    pub(crate) fn profile(&self) -> MemoryProfile {
        self.lock().profile
    }

    /// Allocates what the library needs for its first product on this thread and stream.
    pub(crate) fn for_product(&self, call: Call, device: &Device, has_bias: bool) -> Result<()> {
        let mut held = self.lock();
        let stream = current_stream(device);
        let (thread, bytes) = match held.profile {
            MemoryProfile::Bare => return Ok(()),
            MemoryProfile::Tonnage => (None, CUBLAS),
            MemoryProfile::PyTorch => (held.thread(), if has_bias { CUBLAS_LT } else { CUBLAS }),
        };
        let key = (thread, stream, bytes);
        if held.blocks.contains_key(&key) {
            return Ok(());
        }
        // Whoever explains that there is no room may look at this device.
        drop(held);
        let block = device.allocate_on(bytes, stream).map_err(|error| call.memory(error))?;
        // Of two threads at once on one stream, the first one's is kept; the other's goes back without the lock.
        let mut held = self.lock();
        let spare = match held.blocks.entry(key) {
            Entry::Vacant(place) => {
                place.insert(block);
                None
            }
            Entry::Occupied(_) => Some(block),
        };
        drop(held);
        drop(spare);
        Ok(())
    }

    /// Gives back what a stream that has ended was multiplied with.
    pub(crate) fn forget(&self, stream: StreamId) {
        let mut held = self.lock();
        let (gone, kept) =
            std::mem::take(&mut held.blocks).into_iter().partition(|((_, of, _), _)| *of == stream);
        held.blocks = kept;
        drop(held);
        let gone: BTreeMap<Key, Block> = gone;
        drop(gone);
    }

    /// What a convolution uses while it runs, if it uses any; to be dropped once it is queued.
    pub(crate) fn for_convolution(
        &self,
        call: Call,
        device: &Device,
        bytes: Option<u64>,
    ) -> Result<Option<Block>> {
        let Some(bytes) = bytes.filter(|_| self.profile() == MemoryProfile::Tonnage) else {
            return Ok(None);
        };
        let block = device.allocate_on(bytes, current_stream(device));
        Ok(Some(block.map_err(|error| call.memory(error))?))
    }

    /// The memory that products on a stream of a GPU use.
    pub(crate) fn held(&self, stream: StreamId) -> Option<Address> {
        self.lock().blocks.get(&(None, stream, CUBLAS)).map(Block::address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Tensor;

    #[test]
    fn a_stream_that_ends_leaves_no_workspace() -> Result<()> {
        for device in [Device::dry("8 GiB").unwrap(), Device::host("1 GiB").unwrap()] {
            device.set_memory_profile(MemoryProfile::Tonnage);
            let x = Tensor::zeros([2, 2], &device)?;
            drop(x.matmul(&x)?);
            let one = device.memory().allocated();
            for _ in 0..20 {
                let side = device.create_stream().map_err(|it| Call::here("stream").driver(it))?;
                tonnage_memory::with_stream(&side, || x.matmul(&x).map(drop))?;
                assert_eq!(device.memory().allocated(), one + CUBLAS);
                drop(side);
                assert_eq!(device.memory().allocated(), one, "on {device}");
            }
        }
        Ok(())
    }

    #[test]
    fn each_thread_has_its_own_from_its_first_product_on() -> Result<()> {
        let device = Device::dry("8 GiB").unwrap();
        device.set_memory_profile(MemoryProfile::PyTorch);
        let x = Tensor::zeros([2, 2], &device)?.requires_grad_(true)?;
        let bias = Tensor::zeros([2], &device)?;
        let tensors = device.memory().allocated();
        let held = || device.memory().allocated() - tensors;
        assert_eq!(held(), 0);
        let product = x.matmul(&x)?.sum()?;
        drop(x.detach().matmul(&x.detach())?);
        assert_eq!(held(), CUBLAS + 512, "once, and the sum");
        drop(x.detach().linear(&x.detach(), Some(&bias))?);
        assert_eq!(held(), CUBLAS + CUBLAS_LT + 512);
        product.backward()?;
        drop(product);
        assert_eq!(held(), 2 * CUBLAS + CUBLAS_LT + 512, "and the gradient");
        std::thread::scope(|scope| scope.spawn(|| x.detach().matmul(&x.detach()).map(drop)).join())
            .unwrap()?;
        assert_eq!(held(), 3 * CUBLAS + CUBLAS_LT + 512);
        Ok(())
    }
}
