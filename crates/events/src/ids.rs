//! Names of devices, streams and pools, and addresses on a device.
//!
//! Newtypes, so that a stream handle is never taken for an address. An [`Address`] is a plain
//! number: nothing above the device layer reads what lies there.

use std::fmt;

/// An address on a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address(pub u64);

impl Address {
    /// The address `bytes` further up.
    ///
    /// # Panics
    ///
    /// If the sum leaves the address space: no block lies there.
    #[must_use]
    pub fn offset(self, bytes: u64) -> Self {
        Self(self.0.checked_add(bytes).expect("an address stays inside the address space"))
    }

    /// Bytes from `base` up to this address.
    ///
    /// # Panics
    ///
    /// If `base` lies above.
    #[must_use]
    pub fn distance_from(self, base: Self) -> u64 {
        self.0.checked_sub(base.0).expect("the base lies below the address")
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// A device's ordinal, as in `cuda:0`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceId(pub u32);

impl DeviceId {
    /// Not a device: the host, whose pinned memory has an allocator of its own. PyTorch's number for it is −1.
    pub const HOST: Self = Self(u32::MAX);
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::HOST {
            return f.write_str("host");
        }
        self.0.fmt(f)
    }
}

/// A stream's handle. Pools order streams by this number, as PyTorch does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub u64);

impl StreamId {
    /// The stream that work goes to when none is named.
    pub const DEFAULT: Self = Self(0);
}

impl fmt::Display for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A memory pool's id: PyTorch's pair.
///
/// (0, 0) is the default pool. Pools that users make have a zero first; pools that a graph capture
/// makes for itself have a zero second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PoolId(pub u64, pub u64);

impl PoolId {
    /// The pool that requests go to when no diversion is active.
    pub const DEFAULT: Self = Self(0, 0);

    /// Whether this is the default pool.
    #[must_use]
    pub fn is_default(self) -> bool {
        self == Self::DEFAULT
    }
}

impl fmt::Display for PoolId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "({}, {})", self.0, self.1)
    }
}

/// Which half of a pool: blocks up to 1 MiB, or larger ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PoolKind {
    /// Rounded sizes up to 1 MiB, cut from segments of 2 MiB.
    Small,
    /// Everything larger.
    Large,
}

impl PoolKind {
    /// PyTorch's word: `small` or `large`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Small => "small",
            Self::Large => "large",
        }
    }
}

impl fmt::Display for PoolKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
