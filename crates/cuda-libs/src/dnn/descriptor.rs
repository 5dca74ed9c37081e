//! The library's descriptors: made, filled, finished, asked.

use std::ffi::c_void;
use std::sync::Arc;

use super::convolution::Convolution;
use super::sys::{Descriptor, Handle, Status, Table, of};
use crate::Result;

/// A descriptor that goes when dropped.
pub(super) struct Owned {
    pub(super) handle: Descriptor,
    table: Arc<Table>,
}

impl Owned {
    /// An empty one of a kind.
    pub(super) fn new(table: &Arc<Table>, kind: i32, what: &Convolution) -> Result<Self> {
        let mut handle = Descriptor(std::ptr::null_mut());
        // SAFETY: `handle` is a place for one handle, which is destroyed with its owner.
        let status = unsafe { (table.descriptor_create)(kind, &mut handle) };
        table.check("cudnnBackendCreateDescriptor", status, what)?;
        Ok(Self { handle, table: Arc::clone(table) })
    }

    /// # Safety
    ///
    /// `T` is the C type of values of this kind, and pointers in them are good.
    unsafe fn set_raw<T>(
        &self,
        name: i32,
        kind: i32,
        values: &[T],
        what: &Convolution,
    ) -> Result<()> {
        let (count, values) = (values.len() as i64, values.as_ptr().cast::<c_void>());
        // SAFETY: alive as long as `self`; there are as many values, of the type by promise.
        let status = unsafe { (self.table.descriptor_set)(self.handle, name, kind, count, values) };
        self.table.check("cudnnBackendSetAttribute", status, what)
    }

    pub(super) fn set_numbers(&self, name: i32, values: &[i64], what: &Convolution) -> Result<()> {
        // SAFETY: numbers of 64 bits.
        unsafe { self.set_raw(name, of::INT64, values, what) }
    }

    /// A value of one of the library's enumerations.
    pub(super) fn set_choice(
        &self,
        name: i32,
        kind: i32,
        value: i32,
        what: &Convolution,
    ) -> Result<()> {
        // SAFETY: enumerations have 32 bits.
        unsafe { self.set_raw(name, kind, &[value], what) }
    }

    /// A factor, as `f32`, or as `f64` where sums are.
    pub(super) fn set_factor(
        &self,
        name: i32,
        value: f64,
        is_double: bool,
        what: &Convolution,
    ) -> Result<()> {
        if is_double {
            // SAFETY: one number of that type.
            unsafe { self.set_raw(name, of::DOUBLE, &[value], what) }
        } else {
            // SAFETY: one number of that type.
            unsafe { self.set_raw(name, of::FLOAT, &[value as f32], what) }
        }
    }

    /// Another descriptor, which the library copies from or refers to: the caller keeps it as long as this one.
    pub(super) fn set_descriptor(&self, name: i32, other: &Self, what: &Convolution) -> Result<()> {
        // SAFETY: one handle, alive.
        unsafe { self.set_raw(name, of::DESCRIPTOR, &[other.handle], what) }
    }

    pub(super) fn set_handle(&self, name: i32, handle: Handle, what: &Convolution) -> Result<()> {
        // SAFETY: one handle, alive.
        unsafe { self.set_raw(name, of::HANDLE, &[handle], what) }
    }

    /// Addresses of the device, which are not looked behind here.
    pub(super) fn set_addresses(
        &self,
        name: i32,
        values: &[u64],
        what: &Convolution,
    ) -> Result<()> {
        // SAFETY: addresses have 64 bits.
        unsafe { self.set_raw(name, of::POINTER, values, what) }
    }

    pub(super) fn finish(&self, what: &Convolution) -> Result<()> {
        let status = self.try_finish();
        self.table.check("cudnnBackendFinalize", status, what)
    }

    /// The same, where a refusal is an answer.
    pub(super) fn try_finish(&self) -> Status {
        // SAFETY: alive as long as `self`.
        unsafe { (self.table.descriptor_finalize)(self.handle) }
    }

    /// # Safety
    ///
    /// `T` is the C type of values of this kind.
    unsafe fn get_raw<T>(
        &self,
        name: i32,
        kind: i32,
        into: &mut [T],
        what: &Convolution,
    ) -> Result<usize> {
        let (mut count, wanted) = (0, into.len() as i64);
        let place = if into.is_empty() { std::ptr::null_mut() } else { into.as_mut_ptr().cast() };
        // SAFETY: alive as long as `self`; there is room for as many values, of the type by promise.
        let status = unsafe {
            (self.table.descriptor_get)(self.handle, name, kind, wanted, &mut count, place)
        };
        self.table.check("cudnnBackendGetAttribute", status, what)?;
        Ok(usize::try_from(count).unwrap_or(0))
    }

    pub(super) fn get_number(&self, name: i32, what: &Convolution) -> Result<i64> {
        let mut value = [0i64];
        // SAFETY: one number of 64 bits.
        unsafe { self.get_raw(name, of::INT64, &mut value, what) }?;
        Ok(value[0])
    }

    /// Values of one of the library's enumerations.
    pub(super) fn get_choices(
        &self,
        name: i32,
        kind: i32,
        most: usize,
        what: &Convolution,
    ) -> Result<Vec<i32>> {
        let mut values = vec![0i32; most];
        // SAFETY: enumerations have 32 bits.
        let count = unsafe { self.get_raw(name, kind, &mut values, what) }?;
        values.truncate(count);
        Ok(values)
    }

    /// Descriptors of a kind: empty ones are made, which the library fills.
    pub(super) fn get_descriptors(
        &self,
        name: i32,
        kind: i32,
        most: Option<usize>,
        what: &Convolution,
    ) -> Result<Vec<Self>> {
        let most = match most {
            Some(most) => most,
            // SAFETY: nothing is written: how many there are is asked.
            None => unsafe { self.get_raw::<Descriptor>(name, of::DESCRIPTOR, &mut [], what) }?,
        };
        let mut list =
            (0..most).map(|_| Self::new(&self.table, kind, what)).collect::<Result<Vec<_>>>()?;
        if list.is_empty() {
            return Ok(list);
        }
        let mut handles: Vec<_> = list.iter().map(|it| it.handle).collect();
        // SAFETY: handles of descriptors of that kind, alive; the library fills them and leaves the handles as they are.
        let count = unsafe { self.get_raw(name, of::DESCRIPTOR, &mut handles, what) }?;
        list.truncate(count);
        Ok(list)
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: ours, destroyed once. Nobody is left to hear of an error.
        unsafe { (self.table.descriptor_destroy)(self.handle) };
    }
}
