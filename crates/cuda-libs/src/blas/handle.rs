//! The library on one device.

use std::ffi::c_void;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use lru::LruCache;
use tonnage_device::cuda::Launcher;
use tonnage_events::{Address, StreamId};

use super::plan::{Key, Plan, alignment, scalar};
use super::product::Product;
use super::sys::{Handle, Table, product};
use super::{CUBLASLT, workspace};
use crate::find::Search;
use crate::{Error, PLANS, Result};

/// cuBLASLt on one device, with the plans of the shapes that it has seen.
pub struct Blas {
    table: Arc<Table>,
    handle: Handle,
    launcher: Launcher,
    path: PathBuf,
    bound: u64,
    /// Those used last: a program whose shapes never end keeps so many.
    plans: Mutex<LruCache<Key, Arc<Mutex<Plan>>>>,
}

/// Where a product's matrices lie.
#[derive(Clone, Copy, Debug)]
pub struct Operands {
    /// A.
    pub a: Address,
    /// B.
    pub b: Address,
    /// C, which is read if `beta` is not zero; it may be D.
    pub c: Address,
    /// D.
    pub d: Address,
    /// The bias, or where sums are stored, as the epilogue has it.
    pub vector: Option<Address>,
    /// The mask or what is saved, as the epilogue has it.
    pub aside: Option<Address>,
    /// Factor of the product.
    pub alpha: f64,
    /// Factor of C.
    pub beta: f64,
    /// Memory of [`workspace`] bytes that nobody else uses meanwhile.
    pub workspace: Address,
}

impl fmt::Debug for Blas {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Blas").field("path", &self.path).finish_non_exhaustive()
    }
}

impl Blas {
    /// Loads the library and starts it on a device.
    ///
    /// # Errors
    ///
    /// If it is nowhere, or does not start.
    pub fn load(launcher: Launcher, search: &Search) -> Result<Self> {
        let found = search.open(&CUBLASLT)?;
        let table = Arc::new(Table::resolve(&found)?);
        let path = found.keep();
        let mut handle = Handle::NULL;
        let entered = launcher.enter()?;
        // SAFETY: `handle` is a place for one handle, destroyed with `self`; the device's context is current.
        let status = unsafe { (table.create)(&mut handle) };
        drop(entered);
        table.check("cublasLtCreate", status, &path.display())?;
        let bound = workspace(launcher.properties().compute_capability.into());
        Ok(Self { table, handle, launcher, path, bound, plans: Mutex::new(LruCache::new(PLANS)) })
    }

    /// Its version: 130100 is 13.1.0.
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

    /// Bytes of workspace that every product gets.
    #[must_use]
    pub fn workspace(&self) -> u64 {
        self.bound
    }

    /// Chooses the algorithm of a product, if that was not done yet: what takes long of the first of its shape. Queues
    /// nothing.
    ///
    /// # Errors
    ///
    /// As for [`multiply`](Self::multiply).
    pub fn prepare(&self, wanted: &Product, operands: &Operands) -> Result<()> {
        check(wanted, operands)?;
        self.plan(wanted, operands).map(drop)
    }

    /// Queues a product on `stream`.
    ///
    /// # Errors
    ///
    /// If the product makes no sense, if the library has no algorithm for it within the workspace, or if it fails; the
    /// error names the shape.
    ///
    /// # Safety
    ///
    /// 1. The addresses are of device memory that has room for what [`Product`] says, and the workspace for
    ///    [`workspace`](Self::workspace) bytes.
    /// 2. Until what is queued is done it stays the caller's, and nobody uses it in a way that the stream does not order.
    pub unsafe fn multiply(
        &self,
        wanted: &Product,
        operands: &Operands,
        stream: StreamId,
    ) -> Result<()> {
        check(wanted, operands)?;
        let Operands { vector, aside, .. } = *operands;
        self.launcher.with_stream(stream, |stream| {
            let plan = self.plan(wanted, operands)?;
            // The descriptor has the addresses of one call at a time.
            let plan = plan.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(vector) = vector {
                plan.descriptor.set(product::BIAS_POINTER, &vector.0.to_ne_bytes(), wanted)?;
            }
            if let Some(aside) = aside {
                plan.descriptor.set(
                    product::EPILOGUE_AUX_POINTER,
                    &aside.0.to_ne_bytes(),
                    wanted,
                )?;
            }
            // SAFETY: the caller's promise, for the plan of this product.
            unsafe { self.queue(&plan, wanted, operands, stream) }
        })
    }

    /// # Safety
    ///
    /// As for [`multiply`](Self::multiply), where the plan is the product's, and the context is current.
    unsafe fn queue(
        &self,
        plan: &Plan,
        wanted: &Product,
        operands: &Operands,
        stream: *mut c_void,
    ) -> Result<()> {
        let [left, right, result] = plan.layouts.each_ref().map(|it| it.handle);
        let (alpha, beta) =
            (scalar(wanted.input, operands.alpha), scalar(wanted.input, operands.beta));
        // SAFETY: descriptors and handle are alive; scalars are of the type that was described; addresses by promise.
        let status = unsafe {
            (self.table.multiply)(
                self.handle,
                plan.descriptor.handle,
                alpha.as_ptr().cast(),
                pointer(operands.b),
                left,
                pointer(operands.a),
                right,
                beta.as_ptr().cast(),
                pointer(operands.c),
                result,
                pointer(operands.d).cast_mut(),
                result,
                &plan.algorithm,
                pointer(operands.workspace).cast_mut(),
                plan.workspace as usize,
                stream,
            )
        };
        self.table.check("cublasLtMatmul", status, wanted)
    }

    fn plan(&self, wanted: &Product, operands: &Operands) -> Result<Arc<Mutex<Plan>>> {
        let of = |address: Option<Address>| address.map_or(256, |it| alignment(it.0));
        let Operands { a, b, c, d, vector, aside, .. } = *operands;
        let alignments =
            [of(Some(a)), of(Some(b)), of(Some(c)), of(Some(d)), of(vector), of(aside)];
        let key = Key { product: *wanted, alignments };
        let plans = || self.plans.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(plan) = plans().get(&key) {
            return Ok(Arc::clone(plan));
        }
        // Others go on meanwhile; two who make the same keep one.
        let _entered = self.launcher.enter()?;
        let plan = Plan::make(&self.table, self.handle, &key, self.bound)?;
        // What falls out is used no more once it is queued: the library copies descriptors.
        Ok(Arc::clone(plans().get_or_insert(key, || Arc::new(Mutex::new(plan)))))
    }
}

impl Drop for Blas {
    fn drop(&mut self) {
        self.plans.get_mut().unwrap_or_else(PoisonError::into_inner).clear();
        let Ok(_entered) = self.launcher.enter() else { return };
        // SAFETY: ours, destroyed once, in its context. Nobody is left to hear of an error.
        unsafe { (self.table.destroy)(self.handle) };
    }
}

/// Refuses a product that makes no sense, or has other operands than it says.
fn check(wanted: &Product, operands: &Operands) -> Result<()> {
    wanted.check()?;
    if wanted.epilogue.has_vector() != operands.vector.is_some()
        || wanted.epilogue.aside().is_some() != operands.aside.is_some()
    {
        let what = "the epilogue has other operands than were given";
        return Err(Error::Misuse(format!("{what}, in {wanted}")));
    }
    Ok(())
}

fn pointer(address: Address) -> *const c_void {
    std::ptr::with_exposed_provenance(address.0 as usize)
}
