//! Activation offload: what the forward saves goes to host memory, and comes back for the backward.
//!
//! In:  a function whose saved values are to be kept elsewhere.
//! Out: its result. Copies run on a stream of their own, beside the computation, in both directions;
//!      the way back begins before the values are needed.
//!
//! ```
//! use tonnage_tensor::offload::Offload;
//! use tonnage_tensor::{Device, Tensor};
//!
//! let device = Device::host("64 MiB")?;
//! let x = Tensor::randn([1024, 256], &device)?.requires_grad_(true)?;
//! let offload = Offload::new(&device)?;
//! let loss = offload.run(|| x.sin()?.exp()?.sum())?;
//! loss.backward()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Parameters stay, since they are there anyway; so do values smaller than
//! [`min_bytes`](Offload::min_bytes). A value that several operations save is copied once.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tonnage_memory::{Stream, with_stream};

use crate::autograd::{Packed, SavedTensorHooks, saved_tensors_hooks};
use crate::device::Device;
use crate::dtype::DType;
use crate::error::{Call, ErrorKind, Result};
use crate::live::Role;
use crate::shape::Layout;
use crate::tensor::Tensor;
use crate::transfer::Pinned;

/// Values smaller than this stay: the copy would cost more than it frees.
const MIN_BYTES: u64 = 1 << 20;

/// How many values are fetched before they are needed: one is in use, one is on its way.
const AHEAD: usize = 2;

/// Keeps saved values in host memory.
#[derive(Clone, Debug)]
pub struct Offload {
    device: Device,
    /// Where copies run; none for the stream of the computation.
    side: Option<Arc<Stream>>,
    min_bytes: u64,
    ahead: usize,
}

/// What one `run` has sent away, in order.
#[derive(Default)]
struct Trip {
    sent: Vec<Weak<Away>>,
    /// The place of a value among them.
    known: HashMap<Numbers, usize>,
}

/// Everything that decides which numbers a tensor of the device shows: two that agree in it are one
/// value, and are copied once.
#[derive(PartialEq, Eq, Hash)]
struct Numbers {
    storage: u64,
    version: u64,
    layout: Layout,
    dtype: DType,
    conj: bool,
}

impl Numbers {
    fn of(tensor: &Tensor) -> Self {
        let storage = tensor.storage();
        Self {
            storage: storage.id(),
            version: storage.version(),
            layout: tensor.layout().clone(),
            dtype: tensor.dtype(),
            conj: tensor.is_conj(),
        }
    }
}

/// A value in host memory, and on its way back.
struct Away {
    pinned: Pinned,
    place: usize,
    back: Mutex<Option<Tensor>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Offload {
    /// Of values on `device`, with a stream of its own.
    ///
    /// # Errors
    ///
    /// If the device has no further stream.
    #[track_caller]
    pub fn new(device: &Device) -> Result<Self> {
        let call = Call::here("Offload");
        let side = device.create_stream().map_err(|error| call.driver(error))?;
        let (min_bytes, ahead) = (MIN_BYTES, AHEAD);
        Ok(Self { device: device.clone(), side: Some(Arc::new(side)), min_bytes, ahead })
    }

    /// Of values on `device`, with copies on the stream of the computation itself. Nothing runs beside
    /// it; in return no memory waits for another stream, so that how much is reserved depends on the
    /// program alone and a dry run predicts it.
    #[must_use]
    pub fn in_order(device: &Device) -> Self {
        Self { device: device.clone(), side: None, min_bytes: MIN_BYTES, ahead: 0 }
    }

    /// Runs a copy on the stream for it.
    fn copy<T>(&self, work: impl FnOnce() -> T) -> T {
        match &self.side {
            Some(side) => with_stream(side, work),
            None => work(),
        }
    }

    /// Values of fewer bytes stay.
    #[must_use]
    pub fn min_bytes(mut self, bytes: u64) -> Self {
        self.min_bytes = bytes;
        self
    }

    /// How many values are fetched before they are needed.
    #[must_use]
    pub fn ahead(mut self, values: usize) -> Self {
        self.ahead = values;
        self
    }

    /// Runs `work`; what it saves for the backward goes to host memory.
    pub fn run<T>(&self, work: impl FnOnce() -> T) -> T {
        let trip = Arc::new(Mutex::new(Trip::default()));
        let (out, home) = ((self.clone(), Arc::clone(&trip)), (self.clone(), trip));
        let hooks = SavedTensorHooks::new(
            move |tensor| out.0.send(&out.1, tensor),
            move |packed| home.0.fetch(&home.1, packed),
        );
        saved_tensors_hooks(&hooks, work)
    }

    fn stays(&self, tensor: &Tensor) -> bool {
        let bytes = (tensor.numel() as u64).saturating_mul(tensor.dtype().size() as u64);
        bytes < self.min_bytes
            || tensor.device() != &self.device
            || matches!(tensor.role(), Role::Parameters | Role::Cache)
    }

    fn send(&self, trip: &Mutex<Trip>, tensor: Tensor) -> Result<Packed> {
        if self.stays(&tensor) {
            return Ok(Box::new(tensor));
        }
        let numbers = Numbers::of(&tensor);
        let mut trip = lock(trip);
        let known = trip.known.get(&numbers).and_then(|place| trip.sent[*place].upgrade());
        if let Some(away) = known {
            return Ok(Box::new(away));
        }
        // The copy waits for what computes the value; its memory waits for the copy.
        let pinned = self.copy(|| tensor.to_pinned())?;
        let place = trip.sent.len();
        let away = Arc::new(Away { pinned, place, back: Mutex::default() });
        trip.sent.push(Arc::downgrade(&away));
        trip.known.insert(numbers, place);
        Ok(Box::new(away))
    }

    fn fetch(&self, trip: &Mutex<Trip>, packed: &Packed) -> Result<Tensor> {
        if let Some(tensor) = packed.downcast_ref::<Tensor>() {
            return Ok(tensor.clone());
        }
        let Some(away) = packed.downcast_ref::<Arc<Away>>() else {
            let what = "a saved value was packed by someone else";
            return Err(Call::here("offload").error(ErrorKind::Autograd, what));
        };
        let value = self.bring(away)?;
        // The way back goes from the last to the first.
        let next: Vec<_> = {
            let trip = lock(trip);
            let before = trip.sent[..away.place].iter().rev().filter_map(Weak::upgrade);
            before.take(self.ahead).collect()
        };
        next.iter().try_for_each(|away| self.bring(away).map(drop))?;
        Ok(value)
    }

    /// Starts the way back, once. The value stays until the last operation that saved it has run.
    fn bring(&self, away: &Away) -> Result<Tensor> {
        let mut back = lock(&away.back);
        if let Some(tensor) = &*back {
            return Ok(tensor.clone());
        }
        let tensor = self.copy(|| Tensor::from_pinned(&away.pinned))?;
        tensor.set_role(Role::Activations);
        *back = Some(tensor.clone());
        Ok(tensor)
    }
}
