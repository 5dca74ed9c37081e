//! The tensor: a storage, a layout, and its place in the graph.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tonnage_memory::{Stream, StreamId, current_stream};

use crate::autograd::Meta;
use crate::device::Device;
use crate::dtype::DType;
use crate::error::{Call, Result};
use crate::live::Role;
use crate::shape::{Layout, Shape};
use crate::storage::Storage;

/// Numbers on a device. Cloning gives another handle to the same tensor, as assignment does in
/// Python; [`copy`](Self::copy) copies the numbers.
///
/// Operations are queued and return at once. They fail at once if shapes, types or memory do not
/// allow them; what goes wrong in queued work is reported by the next call that waits for it:
/// [`Device::synchronize`], [`to_vec`](Self::to_vec), [`item`](Self::item).
///
/// ```
/// use tonnage_tensor::{Device, Tensor};
///
/// let device = Device::host("64 MiB")?;
/// let a = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], [2, 2], &device)?;
/// let b = a.matmul(&a.t()?)?.add(1.0)?;
/// assert_eq!(b.to_vec::<f32>()?, [6.0, 12.0, 12.0, 26.0]);
/// println!("{b}");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Tensor {
    inner: Arc<Inner>,
}

struct Inner {
    storage: Arc<Storage>,
    layout: Layout,
    dtype: DType,
    /// Whether its numbers are the conjugates of those in memory: see [`Tensor::conj`].
    conj: bool,
    /// For views.
    view_of: Option<ViewOf>,
    meta: Mutex<Meta>,
}

/// What a view knows of the tensor that it is a part of.
struct ViewOf {
    /// What the graph had recorded of the storage when the view was taken.
    graph_version: AtomicU64,
    /// The tensor that is a part of no other. The view does not keep it: who has dropped it cannot see
    /// what is written through the view.
    base: Weak<Inner>,
}

impl Tensor {
    /// A new tensor with any contents.
    #[track_caller]
    pub(crate) fn uninit(call: Call, shape: Shape, dtype: DType, device: &Device) -> Result<Self> {
        Self::uninit_on(call, shape, dtype, (device, current_stream(device)))
    }

    /// The same on another stream.
    #[track_caller]
    pub(crate) fn uninit_on(
        call: Call,
        shape: Shape,
        dtype: DType,
        on: (&Device, StreamId),
    ) -> Result<Self> {
        let Some(layout) = Layout::contiguous(shape.clone()) else {
            let error = call.shape_error("more elements than can be counted");
            return Err(error.with("shape", shape));
        };
        let storage = Storage::new(call, on, dtype, layout.numel())?;
        Ok(Self::from_parts(storage, layout, dtype, false, None))
    }

    fn from_parts(
        storage: Arc<Storage>,
        layout: Layout,
        dtype: DType,
        conj: bool,
        view_of: Option<ViewOf>,
    ) -> Self {
        let meta = Mutex::default();
        Self { inner: Arc::new(Inner { storage, layout, dtype, conj, view_of, meta }) }
    }

    /// Another tensor over the same storage, outside the graph.
    pub(crate) fn alias(&self, layout: Layout) -> Self {
        self.alias_as(layout, self.inner.conj)
    }

    /// Another tensor over the same storage, outside the graph, whose numbers are the conjugates.
    pub(crate) fn alias_conj(&self) -> Self {
        self.alias_as(self.inner.layout.clone(), !self.inner.conj)
    }

    fn alias_as(&self, layout: Layout, conj: bool) -> Self {
        let base = self.base().unwrap_or_else(|| self.clone());
        let graph_version = AtomicU64::new(self.storage().graph_version());
        let view_of = Some(ViewOf { graph_version, base: Arc::downgrade(&base.inner) });
        let storage = Arc::clone(&self.inner.storage);
        Self::from_parts(storage, layout, self.inner.dtype, conj, view_of)
    }

    /// The same numbers, outside the graph: it shares the storage, and what is written to one is seen
    /// in the other.
    #[must_use]
    pub fn detach(&self) -> Self {
        let layout = self.inner.layout.clone();
        let storage = Arc::clone(&self.inner.storage);
        Self::from_parts(storage, layout, self.inner.dtype, self.inner.conj, None)
    }

    pub(crate) fn storage(&self) -> &Arc<Storage> {
        &self.inner.storage
    }

    pub(crate) fn layout(&self) -> &Layout {
        &self.inner.layout
    }

    /// For views: what the graph had recorded of the storage when the view was taken.
    pub(crate) fn view_of(&self) -> Option<u64> {
        self.inner.view_of.as_ref().map(|it| it.graph_version.load(Ordering::Acquire))
    }

    /// For views: the tensor that it is a part of, while someone has it.
    pub(crate) fn base(&self) -> Option<Self> {
        let base = self.inner.view_of.as_ref()?.base.upgrade()?;
        Some(Self { inner: base })
    }

    /// For views: takes note that it is up to date with what the graph has recorded.
    pub(crate) fn renew_view(&self) {
        if let Some(view_of) = &self.inner.view_of {
            view_of.graph_version.store(self.storage().graph_version(), Ordering::Release);
        }
    }

    pub(crate) fn meta(&self) -> MutexGuard<'_, Meta> {
        self.inner.meta.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many handles there are to this tensor: PyTorch's `use_count`.
    pub(crate) fn handles(&self) -> usize {
        Arc::strong_count(&self.inner)
    }

    /// What tells this tensor from all others that are alive.
    pub(crate) fn key(&self) -> usize {
        Arc::as_ptr(&self.inner).addr()
    }

    /// Whether nobody but this tensor has the storage.
    pub(crate) fn owns_storage(&self) -> bool {
        Arc::strong_count(&self.inner.storage) == 1
    }

    /// Whether both handles lead to the same tensor.
    #[must_use]
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// Whether both share a storage.
    #[must_use]
    pub fn shares_storage_with(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner.storage, &other.inner.storage)
    }

    /// Whether some memory belongs to both. Says yes if their spans meet, interleaved or not.
    pub(crate) fn overlaps(&self, other: &Self) -> bool {
        if !self.shares_storage_with(other) {
            return false;
        }
        let bytes = |it: &Self| {
            let (span, size) = (it.inner.layout.span(), it.inner.dtype.size());
            span.start * size..span.end * size
        };
        let (a, b) = (bytes(self), bytes(other));
        a.start < b.end && b.start < a.end
    }

    /// The sizes of its axes.
    #[must_use]
    pub fn shape(&self) -> &Shape {
        self.inner.layout.shape()
    }

    /// How many places of the storage lie between neighbours along each axis.
    #[must_use]
    pub fn strides(&self) -> &[usize] {
        self.inner.layout.strides()
    }

    /// The place of its first element in the storage.
    #[must_use]
    pub fn storage_offset(&self) -> usize {
        self.inner.layout.offset()
    }

    /// The number of axes.
    #[must_use]
    pub fn dim(&self) -> usize {
        self.shape().len()
    }

    /// The number of elements.
    #[must_use]
    pub fn numel(&self) -> usize {
        self.inner.layout.numel()
    }

    /// The element type.
    #[must_use]
    pub fn dtype(&self) -> DType {
        self.inner.dtype
    }

    /// Whether its numbers are the conjugates of those in memory: a view made by [`conj`](Self::conj).
    #[must_use]
    pub fn is_conj(&self) -> bool {
        self.inner.conj
    }

    /// Where it lies.
    #[must_use]
    pub fn device(&self) -> &Device {
        self.inner.storage.device()
    }

    /// Whether the elements lie one after the other in the order of their indices.
    #[must_use]
    pub fn is_contiguous(&self) -> bool {
        self.inner.layout.is_contiguous()
    }

    /// How often its storage was changed in place.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.inner.storage.version()
    }

    /// What its storage is for.
    #[must_use]
    pub fn role(&self) -> Role {
        self.inner.storage.role()
    }

    /// Says what its storage is for: what [`Memory::live`](crate::Memory::live) tells.
    pub fn set_role(&self, role: Role) {
        self.inner.storage.set_role(role);
    }

    /// Lets the memory wait for `stream` too before it is handed out again. Operations do this
    /// themselves; it is needed for work that is queued past them.
    pub fn record_stream(&self, stream: &Stream) {
        if let Some(block) = self.inner.storage.block() {
            block.record_stream(stream.id());
        }
    }
}

impl fmt::Debug for Tensor {
    /// Type, shape and device, without waiting for the numbers.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tensor({}{} on {})", self.dtype(), self.shape(), self.device())
    }
}
