//! The thread that works through one stream's queue.
//!
//! In:  steps, in the order in which they were queued.
//! Out: each step done, noted on the board, and whoever waits for it woken.
//!
//! Work runs without the lock. A panic ends the work, not the thread.

use std::any::Any;
use std::cell::Cell;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use tonnage_events::StreamId;

use super::queue::{Board, Mark, Next, Step, Work, Worker};

/// What the handles and the workers of one device have in common.
#[derive(Default)]
pub(super) struct Shared {
    board: Mutex<Board>,
    /// Some stream came further. Used only while [`Board::waiting`] is not zero.
    progress: Condvar,
}

thread_local! {
    /// Whose worker this thread is: the address of its [`Shared`], or 0.
    static SERVES: Cell<usize> = const { Cell::new(0) };
}

impl Shared {
    /// Nothing of the caller's runs under this lock, so nothing can leave the board half changed:
    /// a poisoned lock is as good as another.
    pub(super) fn lock(&self) -> MutexGuard<'_, Board> {
        self.board.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until everything before the mark is done.
    pub(super) fn wait_until_reached<'a>(
        &self,
        mut board: MutexGuard<'a, Board>,
        mark: Mark,
    ) -> MutexGuard<'a, Board> {
        if board.reached(mark) {
            return board;
        }
        board.waiting += 1;
        let mut board = self
            .progress
            .wait_while(board, |board| !board.reached(mark))
            .unwrap_or_else(PoisonError::into_inner);
        board.waiting -= 1;
        board
    }

    /// Whether the calling thread is one of this device's workers.
    pub(super) fn is_served_by_this_thread(self: &Arc<Self>) -> bool {
        SERVES.get() == Arc::as_ptr(self).addr()
    }

    /// Starts the worker of a stream, unless it has one.
    pub(super) fn start_worker(
        self: &Arc<Self>,
        board: &mut Board,
        id: StreamId,
    ) -> io::Result<()> {
        let stream = board.stream(id);
        if stream.worker.is_some() {
            return Ok(());
        }
        let wakeup = Arc::new(Condvar::new());
        let (shared, its_wakeup) = (Arc::clone(self), Arc::clone(&wakeup));
        let thread = thread::Builder::new()
            .name(format!("stream {id}"))
            .spawn(move || serve(&shared, id, &its_wakeup))?;
        stream.worker = Some(Worker { thread, wakeup, asleep: false });
        Ok(())
    }
}

/// The life of a worker.
fn serve(shared: &Arc<Shared>, id: StreamId, wakeup: &Arc<Condvar>) {
    SERVES.set(Arc::as_ptr(shared).addr());
    let mut board = shared.lock();
    loop {
        let (number, step) = match board.next_step(id, wakeup) {
            Next::Step(step) => step,
            Next::Sleep => {
                // Woken for nothing, it finds an empty queue and sleeps again.
                board = wakeup.wait(board).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            Next::End => return,
        };
        let panic = match step {
            Step::Run(work) => {
                drop(board);
                let panic = run(work);
                board = shared.lock();
                panic
            }
            Step::WaitFor(mark) => {
                board = shared.wait_until_reached(board, mark);
                None
            }
        };
        board.complete(id, number, panic);
        if board.waiting > 0 {
            shared.progress.notify_all();
        }
    }
}

/// Runs work; returns the panic's message if it panicked.
fn run(work: Work) -> Option<String> {
    // Whatever the work left half changed is its own: nothing of the streams is reachable from it
    // except through the lock, which it does not hold.
    let payload = catch_unwind(AssertUnwindSafe(work)).err()?;
    let message = message_of(&*payload);
    // A payload may panic when dropped. What that panic carries is not dropped any more.
    if let Err(another) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        std::mem::forget(another);
    }
    Some(message)
}

fn message_of(payload: &(dyn Any + Send)) -> String {
    if let Some(text) = payload.downcast_ref::<&str>() {
        (*text).to_owned()
    } else if let Some(text) = payload.downcast_ref::<String>() {
        text.clone()
    } else {
        "with something that is not text".to_owned()
    }
}
