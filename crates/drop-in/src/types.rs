//! What crosses the interface: numbers, and pointers to them. `shim/tonnage.h` says the same in C.

use std::ffi::{c_char, c_void};

/// How a call went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum Status {
    /// As it should.
    Ok = 0,
    /// Nothing cached serves the request: run what frees memory elsewhere, then go on with it.
    NotCached = 1,
    /// There is not enough memory.
    OutOfMemory = 2,
    /// Something was wrong with the call, or the device failed: [`Interface::failure`](crate::Interface) says what.
    Failed = 3,
    /// An earlier call broke the allocator. Nothing is served any more.
    Broken = 4,
}

/// How the allocators are set up.
#[derive(Debug)]
#[repr(C)]
pub struct Options {
    /// `cuda`, `host` or `dry`.
    pub device: *const c_char,
    /// Devices.
    pub devices: u32,
    /// Bytes of a `host` or `dry` device.
    pub capacity: u64,
    /// The placement rules, as `TONNAGE_CONF` names them; null for what that says.
    pub policy: *const c_char,
    /// PyTorch's settings; null for what the environment says.
    pub settings: *const c_char,
    /// PyTorch's release, such as `2.11.0`.
    pub release: *const c_char,
    /// Most bytes to obtain from each device; 0 for no limit.
    pub limit: u64,
    /// Whether `tonnage top` shows the devices.
    pub publish: u8,
}

/// The name of a private pool; both 0 for the default one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct PoolName {
    /// PyTorch's first number.
    pub first: u64,
    /// Its second.
    pub second: u64,
}

/// Which changes have stacks: PyTorch's `RecordContext`.
pub type ContextLevel = u32;

/// A figure over time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Quantity {
    /// Now.
    pub current: i64,
    /// The most it was.
    pub peak: i64,
    /// All increases.
    pub allocated: i64,
    /// All decreases.
    pub freed: i64,
}

/// What a failed request found.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Failure {
    /// The sentence; as long as the thread makes no other call.
    pub text: *const c_char,
    /// For requests without enough memory: what the device was asked for,
    pub asked: u64,
    /// what it has,
    pub total: u64,
    /// what of it is free,
    pub free: u64,
    /// and what was allocated,
    pub allocated: u64,
    /// and reserved;
    pub reserved: u64,
    /// the block that was looked for.
    pub rounded: u64,
    /// Whether the request was refused before the device was asked, by a setting.
    pub rejected: u8,
}

/// No stack.
pub(crate) const NO_STACK: u32 = u32::MAX;

/// A segment of a moment.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Segment {
    /// Where it begins.
    pub address: u64,
    /// Its bytes.
    pub total: u64,
    /// Bytes that were asked for.
    pub requested: u64,
    /// Bytes of blocks in their owners' hands.
    pub allocated: u64,
    /// These, and those that streams still use.
    pub active: u64,
    /// Its stream.
    pub stream: u64,
    /// Its pool.
    pub pool: PoolName,
    /// Its first block among all.
    pub first_block: u64,
    /// Its blocks.
    pub blocks: u64,
    /// Who caused it, or the largest number for no one.
    pub stack: u32,
    /// Which one of all segments it is, by the order in which they were obtained.
    pub number: u32,
    /// Whether it is of the large half of its pool.
    pub large: u8,
    /// Whether it grows in place.
    pub expandable: u8,
}

/// A block of a moment.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Block {
    /// Its bytes.
    pub size: u64,
    /// Bytes that were asked for.
    pub requested: u64,
    /// Who allocated it, or the largest number for no one.
    pub stack: u32,
    /// Whether it is in its owner's hands.
    pub allocated: u8,
    /// Whether it is, or a stream still uses it.
    pub active: u8,
}

/// An entry of the history.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Entry {
    /// Where, or for a failed request the device's free bytes.
    pub address: u64,
    /// How many bytes.
    pub size: u64,
    /// On which stream.
    pub stream: u64,
    /// In which pool.
    pub pool: PoolName,
    /// When, in microseconds since 1970.
    pub time_us: u64,
    /// Who asked, or the largest number for no one.
    pub stack: u32,
    /// What happened, by PyTorch's numbers.
    pub action: u32,
}

/// A moment of one device. Given back with [`Interface::forget_moment`](crate::Interface).
#[derive(Debug)]
#[repr(C)]
pub struct Moment {
    /// Segments by address.
    pub segments: *const Segment,
    /// How many.
    pub segment_count: u64,
    /// The blocks of all segments.
    pub blocks: *const Block,
    /// How many.
    pub block_count: u64,
    /// The history, oldest first.
    pub entries: *const Entry,
    /// How many.
    pub entry_count: u64,
    /// What the three lie in.
    pub(crate) owner: *mut c_void,
}

impl Moment {
    /// A place for one.
    #[must_use]
    pub fn none() -> Self {
        Self {
            segments: std::ptr::null(),
            segment_count: 0,
            blocks: std::ptr::null(),
            block_count: 0,
            entries: std::ptr::null(),
            entry_count: 0,
            owner: std::ptr::null_mut(),
        }
    }
}

/// Is given a text.
pub type TextFn = unsafe extern "C" fn(context: *mut c_void, text: *const c_char, length: usize);

/// Is told of each change that a history would show.
pub type TrackerFn = unsafe extern "C" fn(context: *mut c_void, device: u32, entry: *const Entry);
