//! What is written down while a graph is captured.
//!
//! In:  launches on the captured stream, storages that are made there, and numbers that each replay has anew.
//! Out: the work of a host device, the memory that the work uses, and those numbers.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tonnage_memory::StreamId;

use crate::device::Device;
use crate::dtype::DType;
use crate::error::{Call, ErrorKind, Result};
use crate::exec::Written;
use crate::random::{Draw, GeneratorState};
use crate::shape::Shape;
use crate::storage::{Storage, Uses};
use crate::tensor::Tensor;
use crate::work::QueuedWork;

/// Memory from outside that captured work uses.
pub(super) struct Theirs {
    /// Kept: the program may drop it before the capture ends.
    pub(super) storage: Arc<Storage>,
    pub(super) written: bool,
}

impl Theirs {
    pub(super) fn uses(&self) -> &Mutex<Uses> {
        &self.storage.uses
    }
}

/// Memory of the pool. Replays write there whoever has it, since it may have been another's before.
pub(super) struct Own {
    /// Not kept, so that the pool hands it out again as it would without a capture.
    pub(super) storage: Weak<Storage>,
    /// Kept: what reads it on another stream is noted here, and may be queued when the storage is gone.
    pub(super) uses: Arc<Mutex<Uses>>,
}

/// Numbers for a tensor.
pub(crate) enum Numbers {
    Floats(Vec<f64>),
    Integers(Vec<i64>),
}

/// A tensor that is written before each replay.
pub(crate) struct Refreshed {
    tensor: Tensor,
    /// The numbers of the next replay; if there are none, why.
    next: Box<dyn FnMut() -> Result<Numbers, String> + Send>,
    /// That replay is queued.
    done: Box<dyn FnMut() + Send>,
}

impl Refreshed {
    /// Memory for such numbers: none of the pool's, where captured work that comes before may have used it already.
    #[track_caller]
    pub(crate) fn tensor(
        call: Call,
        shape: impl Into<Shape>,
        dtype: DType,
        device: &Device,
    ) -> Result<Tensor> {
        Tensor::uninit_on(call, shape.into(), dtype, (device, StreamId::DEFAULT))
    }

    /// Such a tensor.
    pub(crate) fn new(
        tensor: Tensor,
        next: impl FnMut() -> Result<Numbers, String> + Send + 'static,
    ) -> Self {
        Self { tensor, next: Box::new(next), done: Box::new(|| ()) }
    }

    /// The same, with what to count once a replay is queued.
    pub(crate) fn counting(mut self, done: impl FnMut() + Send + 'static) -> Self {
        self.done = Box::new(done);
        self
    }

    pub(super) fn next(&mut self) -> Result<Numbers, String> {
        (self.next)()
    }

    pub(super) fn write(&self, call: Call, numbers: Numbers) -> Result<()> {
        match numbers {
            Numbers::Floats(numbers) => call.upload(numbers, &self.tensor),
            Numbers::Integers(numbers) => call.upload(numbers, &self.tensor),
        }
    }

    pub(super) fn done(&mut self) {
        (self.done)();
    }
}

/// A capture under way.
pub(crate) struct Capturing {
    id: u64,
    stream: StreamId,
    pub(super) theirs: BTreeMap<u64, Theirs>,
    pub(super) own: BTreeMap<u64, Own>,
    pub(super) refreshed: Vec<Refreshed>,
    pub(super) work: QueuedWork,
    /// On a host device, in order.
    pub(super) written: Vec<Arc<Written>>,
    /// Where the generator stands when a replay begins: seed and offset. From the first draw on.
    stands: Option<Tensor>,
    /// Draws so far. A replay moves the generator by all of them.
    drawn: Arc<AtomicU64>,
}

impl Capturing {
    pub(super) fn new(stream: StreamId) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            stream,
            theirs: BTreeMap::new(),
            own: BTreeMap::new(),
            refreshed: Vec::new(),
            work: QueuedWork::default(),
            written: Vec::new(),
            stands: None,
            drawn: Arc::default(),
        }
    }

    /// Notes that memory is used.
    fn touch(&mut self, tensor: &Tensor, written: bool) {
        let storage = tensor.storage();
        let id = storage.id();
        if storage.block().is_some() && !self.own.contains_key(&id) {
            let new = || Theirs { storage: Arc::clone(storage), written };
            self.theirs.entry(id).or_insert_with(new).written |= written;
        }
    }
}

/// The capture of a device, if one is under way.
#[derive(Default)]
pub(crate) struct Captures {
    /// Whether one is: to know without the lock.
    is_open: AtomicBool,
    open: Mutex<Option<Capturing>>,
}

impl Captures {
    fn lock(&self) -> MutexGuard<'_, Option<Capturing>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_open(&self) -> bool {
        self.is_open.load(Ordering::Acquire)
    }

    /// Begins one, unless another is under way: whether it did.
    pub(super) fn begin(&self, capturing: Capturing) -> bool {
        let mut open = self.lock();
        if open.is_some() {
            return false;
        }
        *open = Some(capturing);
        self.is_open.store(true, Ordering::Release);
        true
    }

    pub(super) fn end(&self) -> Option<Capturing> {
        let mut open = self.lock();
        self.is_open.store(false, Ordering::Release);
        open.take()
    }

    /// Whether work on a stream is written down.
    #[inline]
    pub(crate) fn has(&self, stream: StreamId) -> bool {
        self.id(stream).is_some()
    }

    /// The number of the capture of a stream, if there is one: no other of the process has it.
    #[inline]
    pub(crate) fn id(&self, stream: StreamId) -> Option<u64> {
        if !self.is_open() {
            return None;
        }
        self.with(stream, |capturing| capturing.id)
    }

    /// Refuses what cannot be written down.
    pub(crate) fn refuse(&self, call: Call, stream: StreamId, what: &str) -> Result<()> {
        if !self.has(stream) {
            return Ok(());
        }
        let error = call.error(ErrorKind::Value, what);
        Err(error.help("do it before the capture, or between replays"))
    }

    /// Refuses work outside of the capture on what the capture makes: there are no numbers in it yet.
    pub(crate) fn refuse_own(&self, call: Call, tensors: &[&Tensor]) -> Result<()> {
        if !self.is_open() {
            return Ok(());
        }
        let open = self.lock();
        let Some(capturing) = open.as_ref() else { return Ok(()) };
        let is_own = |it: &&&Tensor| capturing.own.contains_key(&it.storage().id());
        let Some(tensor) = tensors.iter().find(is_own) else { return Ok(()) };
        let what = "memory of a graph that is being captured cannot be used outside of the capture";
        let error = call.error(ErrorKind::Value, what).with_tensor("it", tensor);
        Err(error.help("use it after a replay"))
    }

    /// Runs `note` with the capture, if there is one of this stream.
    fn with<T>(&self, stream: StreamId, note: impl FnOnce(&mut Capturing) -> T) -> Option<T> {
        self.lock().as_mut().filter(|it| it.stream == stream).map(note)
    }

    /// Notes a storage on a stream: if that is captured, it is the pool's.
    #[inline]
    pub(crate) fn made(&self, stream: StreamId, storage: &Arc<Storage>) {
        if self.is_open() {
            let own = Own { storage: Arc::downgrade(storage), uses: Arc::clone(&storage.uses) };
            self.with(stream, |capturing| drop(capturing.own.insert(storage.id(), own)));
        }
    }

    /// Notes a kernel: what it uses, and how much it computes.
    pub(crate) fn note(
        &self,
        stream: StreamId,
        (outputs, inputs): (&[&Tensor], &[&Tensor]),
        work: impl FnOnce(&mut QueuedWork),
    ) {
        self.with(stream, |capturing| {
            outputs.iter().for_each(|it| capturing.touch(it, true));
            inputs.iter().for_each(|it| capturing.touch(it, false));
            work(&mut capturing.work);
        });
    }

    /// What the capture that is under way would compute.
    pub(crate) fn work(&self) -> QueuedWork {
        if !self.is_open() {
            return QueuedWork::default();
        }
        self.lock().as_ref().map(|it| it.work).unwrap_or_default()
    }

    /// Notes work of a host device.
    pub(crate) fn write_down(&self, stream: StreamId, work: Written) {
        self.with(stream, |capturing| capturing.written.push(Arc::new(work)));
    }

    /// Notes numbers that each replay has anew.
    pub(crate) fn refresh(&self, stream: StreamId, refreshed: Refreshed) {
        self.with(stream, |capturing| capturing.refreshed.push(refreshed));
    }

    /// Numbers of one call: behind where the generator stands when a replay begins.
    pub(crate) fn draw(&self, call: Call, device: &Device, stream: StreamId) -> Result<Draw> {
        let known = self.with(stream, |capturing| capturing.stands.clone()).flatten();
        let stands = match known {
            Some(stands) => stands,
            None => {
                let stands = Refreshed::tensor(call, [2], DType::I64, device)?;
                self.with(stream, |capturing| capturing.stands = Some(stands.clone()));
                let drawn = self.with(stream, |it| Arc::clone(&it.drawn)).unwrap_or_default();
                let generator = Arc::clone(device.generator_handle());
                // At once, so that nobody else draws them: those of a replay that fails are never drawn.
                let next = move || {
                    let from = generator.skip(drawn.load(Ordering::Relaxed));
                    Ok(Numbers::Integers(vec![from.seed as i64, from.offset as i64]))
                };
                self.refresh(stream, Refreshed::new(stands.clone(), next));
                stands
            }
        };
        let offset = self.with(stream, |it| it.drawn.fetch_add(1, Ordering::Relaxed));
        let state = GeneratorState { seed: 0, offset: offset.unwrap_or(0) };
        Ok(Draw { state, from: Some(stands) })
    }
}
