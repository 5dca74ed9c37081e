//! Whether this thread records operations.

use std::cell::Cell;
use std::marker::PhantomData;

thread_local! {
    static MODE: Cell<Mode> = const { Cell::new(Mode { grad: true, inference: false }) };
    static BACKWARDS: Cell<usize> = const { Cell::new(0) };
}

#[derive(Clone, Copy)]
struct Mode {
    grad: bool,
    inference: bool,
}

/// Restores the mode when dropped. It belongs to its thread.
#[derive(Debug)]
#[must_use = "the mode ends when the guard is dropped"]
pub struct Guard {
    before: (bool, bool),
    thread: PhantomData<*const ()>,
}

impl Drop for Guard {
    fn drop(&mut self) {
        MODE.set(Mode { grad: self.before.0, inference: self.before.1 });
    }
}

fn enter(mode: Mode) -> Guard {
    let before = MODE.replace(mode);
    Guard { before: (before.grad, before.inference), thread: PhantomData }
}

/// Counts a backward of this thread until it is dropped.
pub(super) struct Going(PhantomData<*const ()>);

/// A backward begins.
pub(super) fn go_back() -> Going {
    BACKWARDS.set(BACKWARDS.get() + 1);
    Going(PhantomData)
}

impl Drop for Going {
    fn drop(&mut self) {
        BACKWARDS.set(BACKWARDS.get() - 1);
    }
}

/// Whether this thread is inside a backward.
pub(crate) fn is_backward() -> bool {
    BACKWARDS.get() > 0
}

/// Whether this thread records operations.
#[must_use]
pub fn is_grad_enabled() -> bool {
    MODE.get().grad
}

/// Whether this thread is inside [`inference`].
#[must_use]
pub fn is_inference() -> bool {
    MODE.get().inference
}

/// Records, or not, until the guard is dropped.
pub fn set_grad_enabled(on: bool) -> Guard {
    let inference = MODE.get().inference;
    enter(Mode { grad: on && !inference, inference })
}

/// Does not record until the guard is dropped.
pub fn no_grad_guard() -> Guard {
    set_grad_enabled(false)
}

/// Runs `work` without recording: results do not require gradients, and nothing is kept for a
/// backward.
///
/// ```
/// # use tonnage_tensor::{Device, Tensor, autograd::no_grad};
/// # let device = Device::dry("1 GiB")?;
/// let w = Tensor::randn([1000, 1000], &device)?.requires_grad_(true)?;
/// let y = no_grad(|| w.sin())?;
/// assert!(!y.requires_grad());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn no_grad<T>(work: impl FnOnce() -> T) -> T {
    let _guard = no_grad_guard();
    work()
}

/// Until the guard is dropped, nothing is recorded, and [`set_grad_enabled`] cannot change that.
pub fn inference_guard() -> Guard {
    enter(Mode { grad: false, inference: true })
}

/// Runs `work` as [`inference_guard`] says.
pub fn inference<T>(work: impl FnOnce() -> T) -> T {
    let _guard = inference_guard();
    work()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_nest_and_end_with_their_guards() {
        assert!(is_grad_enabled());
        no_grad(|| {
            assert!(!is_grad_enabled());
            let on = set_grad_enabled(true);
            assert!(is_grad_enabled());
            drop(on);
            assert!(!is_grad_enabled());
        });
        inference(|| {
            let _on = set_grad_enabled(true);
            assert!(!is_grad_enabled() && is_inference());
        });
        assert!(is_grad_enabled() && !is_inference());
        std::thread::scope(|scope| {
            let _off = no_grad_guard();
            scope.spawn(|| assert!(is_grad_enabled()));
        });
    }
}
