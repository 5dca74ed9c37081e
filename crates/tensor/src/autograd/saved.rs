//! Values kept for the backward, and hooks that may keep them elsewhere.
//!
//! In:  a tensor that an operation's backward needs.
//! Out: the same numbers when it runs, or an error that names who overwrote them.
//!
//! While hooks are set, each value goes through `pack` when it is saved and through `unpack` when it
//! is needed: to host memory and back, or to nothing and recomputed.

use std::any::Any;
use std::cell::RefCell;
use std::fmt;
use std::sync::Arc;

use crate::error::{Call, ErrorKind, Result};
use crate::tensor::Tensor;

/// What a `pack` hook made of a tensor.
pub type Packed = Box<dyn Any + Send>;

type Pack = dyn Fn(Tensor) -> Result<Packed> + Send + Sync;
type Unpack = dyn Fn(&Packed) -> Result<Tensor> + Send + Sync;

/// What to do with tensors that are saved for the backward.
#[derive(Clone)]
pub struct SavedTensorHooks {
    pack: Arc<Pack>,
    unpack: Arc<Unpack>,
}

impl SavedTensorHooks {
    /// Hooks of two functions. `unpack` may be called several times if the graph is retained.
    ///
    /// `pack` can end the computation that saves with [`Error::interrupt`](crate::Error::interrupt).
    pub fn new(
        pack: impl Fn(Tensor) -> Result<Packed> + Send + Sync + 'static,
        unpack: impl Fn(&Packed) -> Result<Tensor> + Send + Sync + 'static,
    ) -> Self {
        Self { pack: Arc::new(pack), unpack: Arc::new(unpack) }
    }
}

impl fmt::Debug for SavedTensorHooks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SavedTensorHooks").finish_non_exhaustive()
    }
}

thread_local! {
    static HOOKS: RefCell<Vec<SavedTensorHooks>> = const { RefCell::new(Vec::new()) };
}

/// Runs `work` with these hooks on what it saves. Of nested hooks the innermost counts.
///
/// ```
/// # use std::sync::atomic::{AtomicUsize, Ordering};
/// # use std::sync::Arc;
/// use tonnage_tensor::{Device, Tensor};
/// use tonnage_tensor::autograd::{SavedTensorHooks, saved_tensors_hooks};
///
/// let device = Device::host("64 MiB")?;
/// let saved = Arc::new(AtomicUsize::new(0));
/// let count = Arc::clone(&saved);
/// let hooks = SavedTensorHooks::new(
///     move |tensor| {
///         count.fetch_add(1, Ordering::Relaxed);
///         Ok(Box::new(tensor))
///     },
///     |packed| Ok(packed.downcast_ref::<Tensor>().expect("what was packed").clone()),
/// );
/// let x = Tensor::ones([3], &device)?.requires_grad_(true)?;
/// saved_tensors_hooks(&hooks, || x.sin())?.sum()?.backward()?;
/// assert_eq!(saved.load(Ordering::Relaxed), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn saved_tensors_hooks<T>(hooks: &SavedTensorHooks, work: impl FnOnce() -> T) -> T {
    struct Pop;
    impl Drop for Pop {
        fn drop(&mut self) {
            let hooks = HOOKS.with_borrow_mut(Vec::pop);
            drop(hooks);
        }
    }
    HOOKS.with_borrow_mut(|stack| stack.push(hooks.clone()));
    let _pop = Pop;
    work()
}

/// A value kept for the backward.
pub(crate) struct Saved {
    call: Call,
    content: Content,
}

enum Content {
    /// The tensor itself, and how often its storage had been written.
    Kept { tensor: Tensor, version: u64 },
    /// What a hook made of it.
    Packed { packed: Packed, hooks: SavedTensorHooks },
}

impl Saved {
    /// Keeps an input of the operation.
    pub(crate) fn input(call: Call, tensor: &Tensor) -> Result<Self> {
        Self::keep(call, tensor.clone())
    }

    /// Keeps an output of the operation: without its place in the graph, which leads to the operation
    /// itself.
    pub(crate) fn output(call: Call, tensor: &Tensor) -> Result<Self> {
        Self::keep(call, tensor.detach())
    }

    fn keep(call: Call, tensor: Tensor) -> Result<Self> {
        let hooks = HOOKS.with_borrow(|stack| stack.last().cloned());
        let content = match hooks {
            Some(hooks) => {
                // What the hook itself computes is neither recorded nor packed again.
                let packed = without_hooks(|| super::no_grad(|| (hooks.pack)(tensor)))?;
                Content::Packed { packed, hooks }
            }
            None => {
                tensor.storage().save(call);
                Content::Kept { version: tensor.version(), tensor }
            }
        };
        Ok(Self { call, content })
    }

    /// The value, as it was when it was saved.
    pub(crate) fn unpack(&self) -> Result<Tensor> {
        match &self.content {
            Content::Packed { packed, hooks } => (hooks.unpack)(packed),
            Content::Kept { tensor, version } if tensor.version() == *version => Ok(tensor.clone()),
            Content::Kept { tensor, version } => Err(self.overwritten(tensor, *version)),
        }
    }

    /// Whether nobody but this has the memory of what it [unpacked](Self::unpack): a backward that is not run again may
    /// overwrite it.
    pub(crate) fn is_alone(&self, unpacked: &Tensor) -> bool {
        let own = match &self.content {
            Content::Kept { .. } => 2,
            Content::Packed { .. } => 1,
        };
        unpacked.handles() == own && unpacked.owns_storage()
    }

    fn overwritten(&self, tensor: &Tensor, version: u64) -> crate::error::Error {
        let what = "a value that the backward needs was overwritten";
        let error = self
            .call
            .error(ErrorKind::Autograd, what)
            .with_tensor("value", tensor)
            .with("saved by", format_args!("{} (version {version})", self.call));
        let error = match tensor.storage().last_write() {
            Some(write) => {
                error.with("changed by", format_args!("{write} (version {})", tensor.version()))
            }
            None => error,
        };
        error.help("use the form of the change that makes a new tensor, or copy the value before")
    }
}

impl Drop for Saved {
    fn drop(&mut self) {
        if let Content::Kept { tensor, .. } = &self.content {
            tensor.storage().unsave();
        }
    }
}

/// Runs `work` with no hooks set.
fn without_hooks<T>(work: impl FnOnce() -> T) -> T {
    struct Restore(Vec<SavedTensorHooks>);
    impl Drop for Restore {
        fn drop(&mut self) {
            HOOKS.set(std::mem::take(&mut self.0));
        }
    }
    let _restore = Restore(HOOKS.take());
    work()
}
