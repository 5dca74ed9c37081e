//! One checkpointed run: what it takes to compute its values again.
//!
//! In:  inputs and a function.
//! Out: its result; in the graph a [`Holder`] in place of each saved value, empty until the first of
//!      them is needed.
//!
//! ```text
//! operation ─ Saved ─ Holder ┐
//! operation ─ Saved ─ Holder ┼─ Frame: function, inputs, random draws, autocast
//! operation ─ Saved ─ Holder ┘
//! ```
//!
//! Holders keep their frame; the frame knows its holders weakly, by their order. The second run saves
//! in the same order. A value lives until its operation has run backward, as without checkpointing.

use std::panic::Location;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::CheckpointOptions;
use crate::amp::Mode;
use crate::autograd::{
    InUse, Packed, Saved, SavedTensorHooks, Turns, saved_tensors_hooks, set_grad_enabled,
};
use crate::dtype::DType;
use crate::entry::{enter, entry};
use crate::error::{Call, Error, ErrorKind, Result};
use crate::live::Role;
use crate::random::Tape;
use crate::shape::Shape;
use crate::tensor::Tensor;

type Segment = dyn Fn(&[Tensor]) -> Result<()> + Send + Sync;

struct Frame {
    call: Call,
    options: CheckpointOptions,
    segment: Arc<Segment>,
    /// Saved as any other values, so that hooks around this checkpoint see them.
    inputs: Turns<Vec<Input>>,
    holders: Mutex<Vec<Weak<Holder>>>,
    /// What the first run draws; none if the second draws anew.
    random: Option<Arc<Tape>>,
    autocast: Mode,
    /// Which line led into the model, if the segment is part of one.
    entry: Option<&'static Location<'static>>,
}

/// An input, and whether gradients flow to it: values that went through a hook have lost their place
/// in the graph, but the second run must record what the first did.
struct Input {
    saved: Saved,
    requires_grad: bool,
}

impl Input {
    fn new(call: Call, tensor: &Tensor) -> Result<Self> {
        let requires_grad = tensor.requires_grad();
        Ok(Self { saved: Saved::input(call, tensor)?, requires_grad })
    }

    fn unpack(&self) -> Result<Tensor> {
        let tensor = self.saved.unpack()?;
        if self.requires_grad && !tensor.requires_grad() {
            return tensor.detach().requires_grad_(true);
        }
        Ok(tensor)
    }
}

/// The place of one saved value.
struct Holder {
    shape: Shape,
    dtype: DType,
    /// None until it is recomputed.
    value: Mutex<Option<Tensor>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) fn run<T>(
    call: Call,
    options: CheckpointOptions,
    inputs: &[Tensor],
    segment: impl Fn(&[Tensor]) -> Result<T> + Send + Sync + 'static,
) -> Result<T> {
    let segment = Arc::new(segment);
    let again = Arc::clone(&segment);
    let random = options.preserve_rng.then(Arc::<Tape>::default);
    let frame = Arc::new(Frame {
        call,
        options,
        segment: Arc::new(move |inputs: &[Tensor]| again(inputs).map(drop)),
        inputs: Turns::new(inputs.iter().map(|it| Input::new(call, it)).collect::<Result<_>>()?),
        holders: Mutex::default(),
        random: random.clone(),
        autocast: Mode::current(),
        entry: entry(),
    });
    let (first, later) = (Arc::clone(&frame), frame);
    let hooks = SavedTensorHooks::new(
        move |tensor| Ok(Box::new(first.hold(&tensor))),
        move |packed| later.value(packed),
    );
    let _random = random.as_ref().map(Tape::record);
    saved_tensors_hooks(&hooks, || segment(inputs))
}

impl Frame {
    /// The first run saves a value: only its place is kept.
    fn hold(&self, tensor: &Tensor) -> Arc<Holder> {
        let (shape, dtype) = (tensor.shape().clone(), tensor.dtype());
        let holder = Arc::new(Holder { shape, dtype, value: Mutex::default() });
        lock(&self.holders).push(Arc::downgrade(&holder));
        holder
    }

    /// The backward needs a value.
    fn value(self: &Arc<Self>, packed: &Packed) -> Result<Tensor> {
        let Some(holder) = packed.downcast_ref::<Arc<Holder>>() else {
            return Err(self.differs("a value of another kind"));
        };
        if let Some(value) = &*lock(&holder.value) {
            return Ok(value.clone());
        }
        self.recompute()?;
        let value = lock(&holder.value).clone();
        value.ok_or_else(|| self.differs("fewer values"))
    }

    fn recompute(self: &Arc<Self>) -> Result<()> {
        let unpack = |inputs: &mut Vec<Input>| inputs.iter().map(Input::unpack).collect();
        let inputs: Result<Vec<Tensor>> =
            self.inputs.with(unpack).map_err(|InUse| self.needs_itself())?;
        let inputs = inputs?;
        let saved = Arc::new(AtomicUsize::new(0));
        let (frame, count) = (Arc::clone(self), Arc::clone(&saved));
        let hooks = SavedTensorHooks::new(
            move |tensor| frame.fill(count.fetch_add(1, Ordering::Relaxed), &tensor),
            |packed| match packed.downcast_ref::<Tensor>() {
                Some(tensor) => Ok(tensor.clone()),
                None => Err(Error::interrupt()),
            },
        );
        let expected = lock(&self.holders).len();
        let result = {
            let _grad = set_grad_enabled(true);
            let _autocast = self.autocast.enter();
            let _entered = enter(self.entry);
            let _random = self.random.as_ref().map(Tape::replay);
            saved_tensors_hooks(&hooks, || (self.segment)(&inputs))
        };
        let reached = saved.load(Ordering::Relaxed);
        match result {
            Err(error) if error.kind() == &ErrorKind::Interrupted && reached == expected => Ok(()),
            Ok(()) if reached < expected => Err(self.differs("fewer values")),
            other => other,
        }
    }

    /// The second run saves its `place`-th value.
    fn fill(&self, place: usize, tensor: &Tensor) -> Result<Packed> {
        let (holder, expected) = {
            let holders = lock(&self.holders);
            (holders.get(place).cloned(), holders.len())
        };
        let Some(holder) = holder else { return Err(self.differs("more values")) };
        // Gone if its operation has run backward, or was never part of a result.
        if let Some(holder) = holder.upgrade() {
            if (tensor.shape(), tensor.dtype()) != (&holder.shape, holder.dtype) {
                return Err(self
                    .differs("another value")
                    .with("first", format_args!("{}{}", holder.dtype, holder.shape))
                    .with_tensor("second", tensor));
            }
            if tensor.role() == Role::Temporary {
                tensor.set_role(Role::Activations);
            }
            // Without its place in the second run's graph, which ends here.
            let _before = lock(&holder.value).replace(tensor.detach());
        }
        if self.options.early_stop && place + 1 == expected {
            return Err(Error::interrupt());
        }
        Ok(Box::new(tensor.detach()))
    }

    fn needs_itself(&self) -> Error {
        let what = "a hook on an input of a checkpoint needs a value that is computed from it";
        self.call
            .error(ErrorKind::Autograd, what)
            .help("compute what the hook needs in a graph of its own")
    }

    fn differs(&self, what: &str) -> Error {
        let what = format!("the second run saved {what} than the first");
        self.call
            .error(ErrorKind::Autograd, what)
            .help("the function must do the same each time, whatever changed meanwhile")
    }
}
