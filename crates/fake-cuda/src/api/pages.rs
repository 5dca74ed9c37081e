//! Virtual memory: ranges, pages and mappings.
//!
//! NVIDIA's manual does not say that these calls need a current context; the fake asks for one all
//! the same, so that code which runs here runs there.

use std::ffi::c_int;

use super::{entry, get, put};
use crate::codes::Code;
use crate::host_memory::{Access, GRANULARITY};
use crate::state::State;

/// `CUmemLocation`
#[derive(Clone, Copy)]
#[repr(C)]
struct Location {
    kind: c_int,
    id: c_int,
}

/// `CUmemAllocationProp`
#[derive(Clone, Copy)]
#[repr(C)]
struct Properties {
    kind: c_int,
    handle_types: c_int,
    location: Location,
    windows: usize,
    flags: [u8; 8],
}

/// `CUmemAccessDesc`
#[derive(Clone, Copy)]
#[repr(C)]
struct AccessDescription {
    location: Location,
    flags: c_int,
}

/// The device that a page is asked of.
fn device_of(state: &State, properties: &Properties) -> Result<usize, Code> {
    // Pinned memory of a device, for this process alone: what the allocator asks for.
    if properties.kind != 1 || properties.location.kind != 1 || properties.handle_types != 0 {
        return Err(Code::INVALID_VALUE);
    }
    let device = state.device(properties.location.id)?;
    if state.devices[device].virtual_memory { Ok(device) } else { Err(Code::NOT_SUPPORTED) }
}

/// Which device may do what.
fn allowed(state: &State, description: &AccessDescription) -> Result<(usize, Access), Code> {
    if description.location.kind != 1 {
        return Err(Code::INVALID_VALUE);
    }
    let access = match description.flags {
        0 => Access::None,
        1 => Access::Read,
        3 => Access::ReadWrite,
        _ => return Err(Code::INVALID_VALUE),
    };
    Ok((state.device(description.location.id)?, access))
}

entry! {
    /// The unit of mapping.
    fn cuMemGetAllocationGranularity(
        granularity: *mut usize,
        properties: *const Properties,
        option: c_int,
    ) |state| {
        state.current()?;
        // SAFETY: the caller's promise.
        let properties = unsafe { get(properties) }?;
        device_of(state, &properties)?;
        if !(0..=1).contains(&option) {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: the caller's promise.
        unsafe { put(granularity, GRANULARITY as usize) }
    }
}

entry! {
    /// Reserves addresses.
    fn cuMemAddressReserve(
        address: *mut u64,
        size: usize,
        alignment: usize,
        _wish: u64,
        flags: u64,
    ) |state| {
        state.current()?;
        if address.is_null() || flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        let range = state.memory.reserve(size as u64, alignment as u64)?;
        // SAFETY: the caller's promise.
        unsafe { put(address, range) }
    }
}

entry! {
    /// Gives addresses back.
    fn cuMemAddressFree(address: u64, size: usize) |state| {
        state.current()?;
        state.memory.unreserve(address, size as u64)
    }
}

entry! {
    /// Obtains a page.
    fn cuMemCreate(handle: *mut u64, size: usize, properties: *const Properties, flags: u64)
    |state| {
        state.current()?;
        if handle.is_null() || flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: the caller's promise.
        let properties = unsafe { get(properties) }?;
        let device = device_of(state, &properties)?;
        let page = state.memory.create(device, size as u64)?;
        // SAFETY: the caller's promise.
        unsafe { put(handle, page) }
    }
}

entry! {
    /// Gives a page back.
    fn cuMemRelease(handle: u64) |state| {
        state.current()?;
        state.memory.release(handle)
    }
}

entry! {
    /// Puts a page at an address.
    fn cuMemMap(address: u64, size: usize, offset: usize, handle: u64, flags: u64) |state| {
        state.current()?;
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        state.memory.map(address, size as u64, offset as u64, handle)
    }
}

entry! {
    /// Takes the pages away from a stretch of addresses.
    fn cuMemUnmap(address: u64, size: usize) |state| {
        state.current()?;
        state.memory.unmap(address, size as u64)
    }
}

entry! {
    /// Says what devices may do with a stretch of addresses.
    fn cuMemSetAccess(
        address: u64,
        size: usize,
        access: *const AccessDescription,
        count: usize,
    ) |state| {
        state.current()?;
        if access.is_null() || count == 0 {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: the caller's promise: there are so many descriptions.
        let descriptions = unsafe { std::slice::from_raw_parts(access, count) };
        let allowed = descriptions.iter().map(|description| allowed(state, description));
        for (device, access) in allowed.collect::<Result<Vec<_>, Code>>()? {
            state.memory.set_access(address, size as u64, device, access)?;
        }
        Ok(())
    }
}
