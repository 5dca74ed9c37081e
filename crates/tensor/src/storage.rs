//! A tensor's memory: a block of the engine, shared by views, given back at the last reference.
//!
//! In:  bytes, a device, the call that wants them.
//! Out: a [`Storage`]: its block, how often it was written, which streams use it; and its [`Facts`], for onlookers.
//!
//! Only tensors have references to a storage, and graphs to those from outside that they use. Who looks on has its facts: were
//! it to have the storage, memory would be given back later, and gradients be copied that a leaf could have taken over,
//! whenever someone happens to look.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use smallvec::SmallVec;
use tonnage_memory::{Block, StreamId};

use crate::autograd::Node;
use crate::device::Device;
use crate::dtype::DType;
use crate::error::{Call, Result};
use crate::live::{Live, Role, RoleCell};

/// Memory of a device that tensors share.
///
/// | field | changed by | read by |
/// | --- | --- | --- |
/// | `version`, `last_write` | operations in place | saved tensors, before they are used |
/// | `graph_version` | operations in place that the graph records | views, before they are differentiated |
/// | `uses` | the queue, under its own lock | the same |
pub(crate) struct Storage {
    facts: Arc<Facts>,
    device: Device,
    /// None for no bytes.
    block: Option<Block>,
    version: AtomicU64,
    graph_version: AtomicU64,
    last_write: Mutex<Option<Call>>,
    /// Graphs that write the memory keep the notes on, when nobody has the storage any more.
    pub(crate) uses: Arc<Mutex<Uses>>,
}

/// What is known of a storage, for those who do not keep it.
///
/// | field | changed by | read by |
/// | --- | --- | --- |
/// | `role`, `saved`, `saved_by` | autograd, modules, optimizers | `live` |
/// | `producer` | the graph | the growth watch |
pub(crate) struct Facts {
    id: u64,
    /// Bytes that were asked for.
    bytes: u64,
    dtype: DType,
    call: Call,
    role: RoleCell,
    saved: AtomicUsize,
    saved_by: Mutex<Option<Call>>,
    /// The operation in the graph that made its contents.
    producer: Mutex<Weak<Node>>,
}

/// The streams whose queued work uses some memory: who wrote last, and who read since.
///
/// *Whatever else is queued and touches the memory comes before the work of these streams.*
#[derive(Debug, Default)]
pub(crate) struct Uses {
    pub(crate) writer: Option<StreamId>,
    pub(crate) readers: SmallVec<[StreamId; 2]>,
}

impl Uses {
    /// Of memory that the engine has just handed out. Whoever had it before may have left work on the
    /// block's own stream, and there alone: memory that other streams used is not handed out before they
    /// are done. So that stream counts as the last writer, and a first use on another waits for it.
    fn of_fresh(block: &Block) -> Self {
        Self { writer: Some(block.stream()), readers: SmallVec::new() }
    }
}

impl Storage {
    /// Allocates on a stream.
    #[track_caller]
    pub(crate) fn new(
        call: Call,
        (device, stream): (&Device, StreamId),
        dtype: DType,
        numel: usize,
    ) -> Result<Arc<Self>> {
        // What does not fit into 64 bits is far more than the engine allows.
        let bytes = (numel as u64).saturating_mul(dtype.size() as u64);
        let block = match bytes {
            0 => None,
            _ => Some(device.allocate_on(bytes, stream).map_err(|error| call.memory(error))?),
        };
        let uses = block.as_ref().map(Uses::of_fresh).unwrap_or_default();
        let registry = device.registry();
        let facts = Arc::new(Facts {
            id: registry.next_id(),
            bytes: block.as_ref().map_or(0, Block::requested),
            dtype,
            call,
            role: RoleCell::new(Role::Temporary),
            saved: AtomicUsize::new(0),
            saved_by: Mutex::new(None),
            producer: Mutex::default(),
        });
        let storage = Arc::new(Self {
            facts: Arc::clone(&facts),
            device: device.clone(),
            block,
            version: AtomicU64::new(0),
            graph_version: AtomicU64::new(0),
            last_write: Mutex::new(None),
            uses: Arc::new(Mutex::new(uses)),
        });
        let reserved = registry.records().then(|| device.memory().reserved());
        registry.add(facts, Arc::downgrade(&storage), storage.size(), reserved);
        device.captures().made(stream, &storage);
        storage.say_role(Role::Temporary);
        Ok(storage)
    }

    /// What it is for.
    pub(crate) fn role(&self) -> Role {
        self.facts.role.get()
    }

    /// It is for this from now on.
    pub(crate) fn set_role(&self, role: Role) {
        let before = self.facts.role.set(role);
        if before != role {
            self.device.registry().change_role(before, role, self.size());
            self.say_role(role);
        }
    }

    /// Tells the history, if there is one.
    fn say_role(&self, role: Role) {
        if let Some(block) = &self.block {
            block.say_purpose(role.name());
        }
    }

    /// Bytes of its block.
    fn size(&self) -> u64 {
        self.block.as_ref().map_or(0, Block::size)
    }

    /// Its number among the storages of its device.
    pub(crate) fn id(&self) -> u64 {
        self.facts.id
    }

    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    pub(crate) fn block(&self) -> Option<&Block> {
        self.block.as_ref()
    }

    /// How often its contents were changed in place.
    pub(crate) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// How often the graph recorded such a change.
    pub(crate) fn graph_version(&self) -> u64 {
        self.graph_version.load(Ordering::Acquire)
    }

    /// Notes a change in place.
    pub(crate) fn written_by(&self, call: Call) {
        *self.last_write.lock().unwrap_or_else(PoisonError::into_inner) = Some(call);
        self.version.fetch_add(1, Ordering::AcqRel);
    }

    /// Notes that the graph knows of the change.
    pub(crate) fn recorded(&self) {
        self.graph_version.fetch_add(1, Ordering::AcqRel);
    }

    /// Who changed it last.
    pub(crate) fn last_write(&self) -> Option<Call> {
        *self.last_write.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An operation keeps it for its backward.
    pub(crate) fn save(&self, call: Call) {
        *self.facts.saved_by.lock().unwrap_or_else(PoisonError::into_inner) = Some(call);
        self.facts.saved.fetch_add(1, Ordering::Relaxed);
        if self.role() == Role::Temporary {
            self.set_role(Role::Activations);
        }
    }

    /// An operation keeps it no longer.
    pub(crate) fn unsave(&self) {
        self.facts.saved.fetch_sub(1, Ordering::Relaxed);
    }

    /// Notes which operation in the graph made its contents.
    pub(crate) fn produced_by(&self, node: &Arc<Node>) {
        let mut producer = self.facts.producer.lock().unwrap_or_else(PoisonError::into_inner);
        *producer = Arc::downgrade(node);
    }
}

impl Facts {
    /// The number of its storage among those of the device.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// The call that made its storage.
    pub(crate) fn call(&self) -> Call {
        self.call
    }

    /// The operation in the graph that made the contents, as long as something leads to it.
    pub(crate) fn producer(&self) -> Option<Arc<Node>> {
        self.producer.lock().unwrap_or_else(PoisonError::into_inner).upgrade()
    }

    /// The storage as it is now, which so many tensors share.
    pub(crate) fn live(&self, tensors: usize) -> Live {
        let saved_by = *self.saved_by.lock().unwrap_or_else(PoisonError::into_inner);
        Live {
            id: self.id,
            bytes: self.bytes,
            dtype: self.dtype,
            operation: self.call.name,
            site: self.call.site,
            role: self.role.get(),
            tensors,
            saved: self.saved.load(Ordering::Relaxed),
            saved_by: saved_by.map(|call| (call.name, call.site)),
        }
    }
}

impl Drop for Storage {
    fn drop(&mut self) {
        self.device.registry().remove(self.id(), self.role(), self.size());
    }
}
