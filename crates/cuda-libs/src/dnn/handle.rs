//! The library on one device.

use std::collections::HashSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use lru::LruCache;
use tonnage_device::cuda::Launcher;
use tonnage_events::{Address, StreamId};

use super::CUDNN;
use super::convolution::Convolution;
use super::descriptor::Owned;
use super::plan::{IDS, Key, Plan, alignment};
use super::sys::{Handle, Table, attribute, kind};
use crate::find::Search;
use crate::{Error, PLANS, Result};

/// cuDNN on one device, with the plans of the shapes that it has seen.
pub struct Dnn {
    table: Arc<Table>,
    launcher: Launcher,
    path: PathBuf,
    /// The library's handle is used by one thread at a time, and so are plans.
    state: Mutex<State>,
}

struct State {
    handle: Handle,
    /// Those used last; none for a shape that the library has no engine for.
    plans: LruCache<Key, Option<Plan>>,
    /// Those that graphs may use. They stay for good: a plan has code on the device.
    captured: HashSet<Key>,
}

/// Where a convolution's tensors lie.
#[derive(Clone, Copy, Debug)]
pub struct Operands {
    /// The input, or its gradient.
    pub input: Address,
    /// The filter, or its gradient.
    pub filter: Address,
    /// The output, or its gradient.
    pub output: Address,
    /// Memory of [`Convolution::workspace`] bytes that nobody else uses meanwhile.
    pub workspace: Address,
}

impl fmt::Debug for Dnn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dnn").field("path", &self.path).finish_non_exhaustive()
    }
}

impl Dnn {
    /// Loads the library and starts it on a device.
    ///
    /// # Errors
    ///
    /// If it is nowhere, or does not start.
    pub fn load(launcher: Launcher, search: &Search) -> Result<Self> {
        let found = search.open(&CUDNN)?;
        let table = Arc::new(Table::resolve(&found)?);
        let path = found.keep();
        let mut handle = Handle(std::ptr::null_mut());
        let entered = launcher.enter()?;
        // SAFETY: `handle` is a place for one handle, destroyed with `self`; the device's context is current.
        let status = unsafe { (table.create)(&mut handle) };
        drop(entered);
        table.check("cudnnCreate", status, &path.display())?;
        let state =
            Mutex::new(State { handle, plans: LruCache::new(PLANS), captured: HashSet::new() });
        Ok(Self { table, launcher, path, state })
    }

    /// Its version: 91900 is 9.19.0.
    #[must_use]
    pub fn version(&self) -> usize {
        // SAFETY: takes nothing.
        unsafe { (self.table.version)() }
    }

    /// Where it was found.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Chooses the engine of a convolution, if that was not done yet: what takes long of the first of its shape. Queues
    /// nothing. False if the library has none that keeps what was asked, within the workspace.
    ///
    /// # Errors
    ///
    /// If the convolution makes no sense, or if the library fails; the error names the shape.
    pub fn prepare(&self, wanted: &Convolution, operands: &Operands) -> Result<bool> {
        wanted.check()?;
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(self.plan(&mut state, &key(wanted, operands))?.is_some())
    }

    /// Queues a convolution, or a gradient of it, on `stream`.
    ///
    /// # Errors
    ///
    /// If the convolution makes no sense, if the library has no plan for it within the workspace, or if it fails; the error
    /// names the shape.
    ///
    /// # Safety
    ///
    /// 1. The addresses are of device memory that has room for what [`Convolution`] says, and the workspace for its bytes.
    /// 2. Until what is queued is done it stays the caller's, and nobody uses it in a way that the stream does not order.
    pub unsafe fn convolve(
        &self,
        wanted: &Convolution,
        operands: &Operands,
        stream: StreamId,
    ) -> Result<()> {
        wanted.check()?;
        let addresses = [operands.input, operands.filter, operands.output].map(|it| it.0);
        let is_captured = self.launcher.has_captured(stream);
        self.launcher.with_stream(stream, |stream| {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            let handle = state.handle;
            // SAFETY: the handle is alive, and this thread's alone; the stream does not end meanwhile.
            let status = unsafe { (self.table.set_stream)(handle, stream) };
            self.table.check("cudnnSetStream", status, wanted)?;
            let key = key(wanted, operands);
            if is_captured {
                state.captured.insert(key);
            }
            let Some(plan) = self.plan(&mut state, &key)? else {
                return Err(Error::Refused {
                    library: "cuDNN",
                    call: "cudnnBackendFinalize",
                    status: "no plan".into(),
                    what: wanted.to_string(),
                });
            };
            let pack = self.pack(wanted, &addresses, operands.workspace)?;
            // SAFETY: handle, plan and pack are alive; addresses by the caller's promise.
            let status = unsafe { (self.table.execute)(handle, plan.plan.handle, pack.handle) };
            self.table.check("cudnnBackendExecute", status, wanted)
        })
    }

    /// The plan of a shape, if the library has one.
    fn plan<'a>(&self, state: &'a mut State, key: &Key) -> Result<Option<&'a Plan>> {
        if !state.plans.contains(key) {
            let _entered = self.launcher.enter()?;
            let plan = Plan::make(&self.table, state.handle, key)?;
            let cap = state.plans.cap();
            if state.plans.len() == cap.get() {
                let oldest = state.plans.iter().rev().map(|(key, _)| *key);
                let oldest = oldest.into_iter().find(|it| !state.captured.contains(it));
                // A plan has code on the device: what falls out may still be queued. By the context, since streams must not be
                // asked for with the state held. That is refused while someone captures.
                match oldest.filter(|_| self.launcher.synchronize_context().is_ok()) {
                    Some(oldest) => drop(state.plans.pop(&oldest)),
                    None => state.plans.resize(cap.saturating_add(1)),
                }
            }
            state.plans.put(*key, plan);
        }
        Ok(state.plans.get(key).and_then(Option::as_ref))
    }

    /// The addresses of one call.
    fn pack(
        &self,
        wanted: &Convolution,
        addresses: &[u64; 3],
        workspace: Address,
    ) -> Result<Owned> {
        let pack = Owned::new(&self.table, kind::VARIANT_PACK, wanted)?;
        pack.set_numbers(attribute::PACK_UNIQUE_IDS, &IDS, wanted)?;
        pack.set_addresses(attribute::PACK_DATA_POINTERS, addresses, wanted)?;
        pack.set_addresses(attribute::PACK_WORKSPACE, &[workspace.0], wanted)?;
        pack.finish(wanted)?;
        Ok(pack)
    }
}

/// What decides the plan of a convolution that lies there.
fn key(wanted: &Convolution, operands: &Operands) -> Key {
    let addresses = [operands.input, operands.filter, operands.output];
    Key { convolution: *wanted, alignments: addresses.map(|it| alignment(it.0)) }
}

impl Drop for Dnn {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        let Ok(_entered) = self.launcher.enter() else { return };
        state.plans.clear();
        // SAFETY: ours, destroyed once, in its context. Nobody is left to hear of an error.
        unsafe { (self.table.destroy)(state.handle) };
    }
}
