//! What is alive on a device: each storage, how large, since which line, what for.
//!
//! In:  storages as they come and go.
//! Out: [`Live`] entries, oldest first.
//!
//! A storage registers when it is made and leaves when it is dropped; in between it costs nothing.

use std::collections::BTreeMap;
use std::panic::Location;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::dtype::DType;
use crate::levels::{LevelRecorder, Levels};
use crate::peak::{Peak, PeakWatch};
use crate::storage::{Facts, Storage};

/// What bytes are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Role {
    /// Results that nobody has claimed for anything else.
    Temporary,
    /// Leaves that collect gradients.
    Parameters,
    /// What leaves have collected.
    Gradients,
    /// An optimizer's state.
    Optimizer,
    /// Values that the backward pass needs.
    Activations,
    /// Scratch memory of libraries.
    Workspace,
    /// Values kept to be used again, such as converted weights.
    Cache,
}

impl Role {
    /// Every one, in the order in which they are declared.
    pub const ALL: [Self; 7] = [
        Self::Temporary,
        Self::Parameters,
        Self::Gradients,
        Self::Optimizer,
        Self::Activations,
        Self::Workspace,
        Self::Cache,
    ];

    /// The glossary's word.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Temporary => "temporary",
            Self::Parameters => "parameters",
            Self::Gradients => "gradients",
            Self::Optimizer => "optimizer",
            Self::Activations => "activations",
            Self::Workspace => "workspace",
            Self::Cache => "cache",
        }
    }
}

/// Who keeps a storage alive. If several do, the first of these that does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Holder {
    /// A leaf that collects gradients.
    Leaf,
    /// A leaf, as its gradient.
    Gradient,
    /// An optimizer.
    Optimizer,
    /// The graph, for the backward.
    Graph,
    /// A cache of converted weights.
    Cache,
    /// The program's own variables.
    Caller,
}

impl Holder {
    /// A word for it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Leaf => "leaf",
            Self::Gradient => "gradient",
            Self::Optimizer => "optimizer",
            Self::Graph => "graph",
            Self::Cache => "cache",
            Self::Caller => "caller",
        }
    }
}

/// A role that threads may change.
#[derive(Debug)]
pub(crate) struct RoleCell(AtomicU8);

impl RoleCell {
    pub(crate) fn new(role: Role) -> Self {
        Self(AtomicU8::new(role as u8))
    }

    pub(crate) fn get(&self) -> Role {
        Role::ALL[usize::from(self.0.load(Ordering::Relaxed))]
    }

    /// Returns the role before.
    pub(crate) fn set(&self, role: Role) -> Role {
        Role::ALL[usize::from(self.0.swap(role as u8, Ordering::Relaxed))]
    }
}

/// A storage that is alive.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Live {
    /// Grows with age: the first storage of a device has 0.
    pub id: u64,
    /// Bytes that were asked for.
    pub bytes: u64,
    /// The element type it was made with.
    pub dtype: DType,
    /// The operation that made it.
    pub operation: &'static str,
    /// Where that was called.
    pub site: &'static Location<'static>,
    /// What it is for.
    pub role: Role,
    /// How many tensors share it: views, clones of the graph, the caller's own.
    pub tensors: usize,
    /// How many operations keep it for their backward.
    pub saved: usize,
    /// The last of them, and where it was called.
    pub saved_by: Option<(&'static str, &'static Location<'static>)>,
}

impl Live {
    /// Who keeps it alive.
    #[must_use]
    pub fn holder(&self) -> Holder {
        match self.role {
            Role::Parameters => Holder::Leaf,
            Role::Gradients => Holder::Gradient,
            Role::Optimizer => Holder::Optimizer,
            _ if self.saved > 0 => Holder::Graph,
            Role::Cache => Holder::Cache,
            _ => Holder::Caller,
        }
    }
}

/// The storages of a device.
#[derive(Default)]
pub(crate) struct Registry {
    books: Mutex<Books>,
    /// Whether there is a recorder in the books: to know without the lock.
    records: AtomicBool,
}

#[derive(Default)]
struct Books {
    next: u64,
    storages: BTreeMap<u64, Registered>,
    peak: PeakWatch,
    levels: Option<LevelRecorder>,
}

struct Registered {
    facts: Arc<Facts>,
    /// To count its tensors; nobody but they may keep it.
    storage: Weak<Storage>,
}

impl Books {
    /// A block of so many bytes is about to come or go. Without bytes there is none.
    fn next_event(&mut self, size: u64, reserved: Option<u64>) {
        if let (Some(levels), 1..) = (&mut self.levels, size) {
            levels.next(self.peak.sums(), reserved);
        }
    }
}

impl Registry {
    fn lock(&self) -> std::sync::MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn next_id(&self) -> u64 {
        let mut books = self.lock();
        books.next += 1;
        books.next - 1
    }

    /// The number that the next storage gets.
    pub(crate) fn peek_id(&self) -> u64 {
        self.lock().next
    }

    /// All that are alive, oldest first, and how many tensors share each.
    pub(crate) fn storages(&self) -> Vec<(Arc<Facts>, usize)> {
        let books = self.lock();
        let all = books.storages.values().map(|it| (&it.facts, it.storage.strong_count()));
        // One that nobody has is about to leave.
        all.filter(|it| it.1 > 0).map(|(facts, tensors)| (Arc::clone(facts), tensors)).collect()
    }

    /// Whether levels are recorded.
    pub(crate) fn records(&self) -> bool {
        self.records.load(Ordering::Relaxed)
    }

    /// Begins to record levels, of which the first has so much reserved.
    pub(crate) fn record(&self, points: usize, reserved: u64) {
        self.lock().levels = Some(LevelRecorder::new(points, reserved));
        self.records.store(true, Ordering::Relaxed);
    }

    /// Events that were recorded so far.
    pub(crate) fn recorded(&self) -> u64 {
        self.lock().levels.as_ref().map_or(0, LevelRecorder::events)
    }

    /// Ends recording.
    pub(crate) fn take_levels(&self) -> Levels {
        self.records.store(false, Ordering::Relaxed);
        let mut books = self.lock();
        let recorder = books.levels.take();
        recorder.map_or_else(Levels::default, |it| it.finish(books.peak.sums()))
    }

    /// A storage whose block has `size` bytes is there; so much is reserved since, if levels are
    /// recorded.
    pub(crate) fn add(
        &self,
        facts: Arc<Facts>,
        storage: Weak<Storage>,
        size: u64,
        reserved: Option<u64>,
    ) {
        let (id, call) = (facts.id(), facts.call());
        let mut books = self.lock();
        books.next_event(size, reserved);
        books.storages.insert(id, Registered { facts, storage });
        books.peak.add(Role::Temporary, size, call);
    }

    /// It is for something else from now on.
    pub(crate) fn change_role(&self, from: Role, to: Role, size: u64) {
        self.lock().peak.change(from, to, size);
    }

    /// It is about to go.
    pub(crate) fn remove(&self, id: u64, role: Role, size: u64) {
        let mut books = self.lock();
        books.next_event(size, None);
        books.peak.remove(role, size);
        let gone = books.storages.remove(&id);
        drop(books);
        drop(gone);
    }

    pub(crate) fn peak(&self) -> Option<Peak> {
        self.lock().peak.peak()
    }

    pub(crate) fn live(&self) -> Vec<Live> {
        self.storages().into_iter().map(|(facts, tensors)| facts.live(tensors)).collect()
    }
}
