//! What is written down while a graph is captured.
//!
//! In:  launches on the captured stream, and numbers that each replay has anew.
//! Out: the work of a host device, the memory that the work uses, and those numbers.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tonnage_memory::StreamId;

use crate::device::Device;
use crate::dtype::DType;
use crate::error::{Call, ErrorKind, Result};
use crate::exec::Written;
use crate::random::{Draw, GeneratorState};
use crate::shape::Shape;
use crate::storage::Storage;
use crate::tensor::Tensor;
use crate::work::QueuedWork;

/// Memory that captured work uses, and whether it writes there.
pub(super) struct Touched<S> {
    pub(super) storage: S,
    pub(super) written: bool,
}

impl Touched<Weak<Storage>> {
    pub(super) fn upgrade(&self) -> Option<Touched<Arc<Storage>>> {
        Some(Touched { storage: self.storage.upgrade()?, written: self.written })
    }
}

/// Numbers for a tensor.
pub(crate) enum Numbers {
    Floats(Vec<f64>),
    Integers(Vec<i64>),
}

/// A tensor that is written before each replay.
pub(crate) struct Refreshed {
    tensor: Tensor,
    /// Whether there will be numbers; if not, why.
    check: Box<dyn Fn() -> Result<(), String> + Send>,
    /// Those of the next replay, which takes place.
    next: Box<dyn FnMut() -> Numbers + Send>,
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

    /// Such a tensor; its numbers can always be had.
    pub(crate) fn new(tensor: Tensor, next: impl FnMut() -> Numbers + Send + 'static) -> Self {
        Self { tensor, check: Box::new(|| Ok(())), next: Box::new(next) }
    }

    /// The same, unless this says why not.
    pub(crate) fn unless(
        mut self,
        check: impl Fn() -> Result<(), String> + Send + 'static,
    ) -> Self {
        self.check = Box::new(check);
        self
    }

    pub(super) fn check(&self) -> Result<(), String> {
        (self.check)()
    }

    pub(super) fn write(&mut self, call: Call) -> Result<()> {
        match (self.next)() {
            Numbers::Floats(numbers) => call.upload(numbers, &self.tensor),
            Numbers::Integers(numbers) => call.upload(numbers, &self.tensor),
        }
    }
}

/// A capture under way.
pub(crate) struct Capturing {
    stream: StreamId,
    /// The number of the first storage that was made since.
    first: u64,
    pub(super) theirs: BTreeMap<u64, Touched<Arc<Storage>>>,
    pub(super) own: BTreeMap<u64, Touched<Weak<Storage>>>,
    pub(super) refreshed: Vec<Refreshed>,
    pub(super) work: QueuedWork,
    /// On a host device, in order.
    pub(super) written: Vec<Arc<Written>>,
    /// Where the generator stands when a replay begins: seed and offset. From the first draw on.
    stands: Option<Tensor>,
    /// Draws so far. A replay moves the generator by all of them.
    drawn: Arc<std::sync::atomic::AtomicU64>,
}

impl Capturing {
    pub(super) fn new(stream: StreamId, first: u64) -> Self {
        Self {
            stream,
            first,
            theirs: BTreeMap::new(),
            own: BTreeMap::new(),
            refreshed: Vec::new(),
            work: QueuedWork::default(),
            written: Vec::new(),
            stands: None,
            drawn: Arc::default(),
        }
    }

    /// Notes that memory is used. What is from before is kept from now on: the caller may drop it before the capture
    /// ends. What comes from the pool is not, so that the pool may hand it out again as it would without a capture.
    fn touch(&mut self, tensor: &Tensor, written: bool) {
        let storage = tensor.storage();
        let Some(block) = storage.block() else { return };
        let id = storage.id();
        if id >= self.first && block.stream() == self.stream {
            let new = || Touched { storage: Arc::downgrade(storage), written };
            self.own.entry(id).or_insert_with(new).written |= written;
        } else {
            let new = || Touched { storage: Arc::clone(storage), written };
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

    pub(crate) fn is_open(&self) -> bool {
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
        self.is_open() && self.lock().as_ref().is_some_and(|it| it.stream == stream)
    }

    /// Refuses what cannot be written down.
    pub(crate) fn refuse(&self, call: Call, stream: StreamId, what: &str) -> Result<()> {
        if !self.has(stream) {
            return Ok(());
        }
        let error = call.error(ErrorKind::Value, what);
        Err(error.help("do it before the capture, or between replays"))
    }

    /// Runs `note` with the capture, if there is one of this stream.
    fn with<T>(&self, stream: StreamId, note: impl FnOnce(&mut Capturing) -> T) -> Option<T> {
        self.lock().as_mut().filter(|it| it.stream == stream).map(note)
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
                self.refresh(
                    stream,
                    Refreshed::new(stands.clone(), move || {
                        let from = generator.skip(drawn.load(Ordering::Relaxed));
                        Numbers::Integers(vec![from.seed as i64, from.offset as i64])
                    }),
                );
                stands
            }
        };
        let offset = self.with(stream, |it| it.drawn.fetch_add(1, Ordering::Relaxed));
        let state = GeneratorState { seed: 0, offset: offset.unwrap_or(0) };
        Ok(Draw { state, from: Some(stands) })
    }
}
