//! The engine behind its lock, and the blocks that are dropped while someone has it.
//!
//! In:  whoever wants the engine; blocks that were dropped.
//! Out: the engine, with every block back that was dropped before.
//!
//! A drop never waits for the lock. Whoever has it may be giving memory back to the device, which waits for all
//! work; and that work may be what drops the block, itself or on a thread that it waits for. So a block that is
//! dropped meanwhile is left on a list. Whoever takes the engine next takes the blocks of the list back before
//! anything else, and whoever lets go of it looks once more. What that last look overlooks, since it is not ordered
//! behind the letting go, the next user finds: nobody can tell the difference, as figures are asked with the lock too.
//!
//! *A flag says whether the list has blocks; both change together.* So the engine costs two plain loads more.
//!
//! | lock | guards | held for |
//! | --- | --- | --- |
//! | `engine` | the allocator and its device | calls of the engine |
//! | `returned` | the list | a push or a take; inside of `engine` or alone |
//! | `untold` | the first failure nobody was told of | a look; inside of `engine` or alone |
//!
//! With a history of stacks, a block that was left on the list has the stack of who took it back.

use std::mem;
use std::ops::{Deref, DerefMut};

use tonnage_device::DeviceError;
use tonnage_engine::{Allocation, Engine, FreeError, RecordOptions};

use crate::any_device::AnyDevice;
use crate::sync::{AtomicBool, Mutex, MutexGuard, Ordering, lock, try_lock};

/// The engine of a device, for any thread.
pub(crate) struct SharedEngine {
    engine: Mutex<Engine<AnyDevice>>,
    /// Blocks that were dropped while another thread had the engine.
    returned: Mutex<Vec<Allocation>>,
    /// Whether there are any. Changed with the list's lock only.
    any_returned: AtomicBool,
    /// What went wrong where nobody could be told, until someone can.
    untold: Mutex<Option<DeviceError>>,
    /// Whether a history is recorded: to know without the lock.
    records: AtomicBool,
}

impl SharedEngine {
    pub(crate) fn new(engine: Engine<AnyDevice>) -> Self {
        Self {
            engine: Mutex::new(engine),
            returned: Mutex::default(),
            any_returned: AtomicBool::new(false),
            untold: Mutex::default(),
            records: AtomicBool::new(false),
        }
    }

    /// Takes the engine; everything that was dropped before is back in it.
    #[inline]
    pub(crate) fn lock(&self) -> EngineGuard<'_> {
        self.hold(lock(&self.engine))
    }

    /// Begins to record history, or goes on with other options; with `None`, stops and forgets it.
    pub(crate) fn record_history(&self, options: Option<RecordOptions>) {
        let mut engine = self.lock();
        self.records.store(options.is_some(), Ordering::Relaxed);
        engine.record_history(options);
    }

    /// The engine, if it records a history. Who is wrong since that has just changed says too much or too little, and the
    /// engine knows.
    #[inline]
    pub(crate) fn recording(&self) -> Option<EngineGuard<'_>> {
        self.records.load(Ordering::Relaxed).then(|| self.lock())
    }

    /// Gives a dropped block back, or leaves it to whoever has the engine. There is nobody to tell of a failure: it
    /// is kept for who asks next.
    #[inline]
    pub(crate) fn give_back(&self, allocation: &Allocation) {
        match try_lock(&self.engine) {
            Some(engine) => self.free(&mut self.hold(engine), allocation),
            None => self.leave(*allocation),
        }
    }

    /// Keeps a failure that nobody can be told of now. The first is kept: others follow from it.
    #[cold]
    pub(crate) fn keep_untold(&self, error: DeviceError) {
        lock(&self.untold).get_or_insert(error);
    }

    /// Reports what was kept, once.
    pub(crate) fn take_untold(&self) -> Result<(), DeviceError> {
        lock(&self.untold).take().map_or(Ok(()), Err)
    }

    #[inline]
    fn hold<'a>(&'a self, engine: MutexGuard<'a, Engine<AnyDevice>>) -> EngineGuard<'a> {
        let mut guard = EngineGuard { engine, _then: LookOnceMore(self) };
        if self.any_returned.load(Ordering::Relaxed) {
            self.take_back(&mut guard.engine);
        }
        guard
    }

    #[cold]
    fn leave(&self, allocation: Allocation) {
        {
            let mut returned = lock(&self.returned);
            returned.push(allocation);
            self.any_returned.store(true, Ordering::Relaxed);
        }
        // The engine may have been let go of in the meantime.
        self.look_once_more();
    }

    #[cold]
    fn take_back(&self, engine: &mut Engine<AnyDevice>) {
        let returned = {
            let mut returned = lock(&self.returned);
            self.any_returned.store(false, Ordering::Relaxed);
            mem::take(&mut *returned)
        };
        returned.iter().for_each(|allocation| self.free(engine, allocation));
    }

    /// Takes back what was left, unless someone has the engine: who has it will.
    #[cold]
    fn look_once_more(&self) {
        // A broken engine has said so; a second panic would end the program.
        while self.any_returned.load(Ordering::Relaxed) && !std::thread::panicking() {
            let Some(mut engine) = try_lock(&self.engine) else { return };
            self.take_back(&mut engine);
        }
    }

    #[inline]
    fn free(&self, engine: &mut Engine<AnyDevice>, allocation: &Allocation) {
        match engine.free(allocation) {
            Ok(()) => {}
            Err(FreeError::Device(error)) => self.keep_untold(error),
            // A block is given back once, by its own drop: anything else is a bug here.
            Err(error) => debug_assert!(false, "{error}"),
        }
    }
}

/// The engine, until dropped.
pub(crate) struct EngineGuard<'a> {
    engine: MutexGuard<'a, Engine<AnyDevice>>,
    /// Dropped after the guard above, as fields are in order.
    _then: LookOnceMore<'a>,
}

impl Deref for EngineGuard<'_> {
    type Target = Engine<AnyDevice>;

    #[inline]
    fn deref(&self) -> &Engine<AnyDevice> {
        &self.engine
    }
}

impl DerefMut for EngineGuard<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Engine<AnyDevice> {
        &mut self.engine
    }
}

struct LookOnceMore<'a>(&'a SharedEngine);

impl Drop for LookOnceMore<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.0.any_returned.load(Ordering::Relaxed) {
            self.0.look_once_more();
        }
    }
}
