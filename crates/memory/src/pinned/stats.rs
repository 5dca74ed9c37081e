//! Figures of pinned memory.

/// Bytes of pinned memory: how many now, and the most there were.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PinnedBytes {
    /// Now.
    pub current: u64,
    /// The most it has been.
    pub peak: u64,
}

impl PinnedBytes {
    pub(super) fn rise(&mut self, by: u64) {
        self.current += by;
        self.peak = self.peak.max(self.current);
    }

    pub(super) fn fall(&mut self, by: u64) {
        self.current -= by;
    }
}

/// Figures of pinned memory. Blocks count with their capacities.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PinnedStats {
    /// Blocks handed out, ever.
    pub allocations: u64,
    /// Those of them that the cache served.
    pub hits: u64,
    /// Bytes of the blocks handed out.
    pub in_use: PinnedBytes,
    /// Bytes of dropped blocks that a stream may still use, when last asked.
    pub pending: u64,
    /// Bytes obtained and not given back: in use, pending or cached.
    pub reserved: PinnedBytes,
}

impl PinnedStats {
    /// Bytes that wait for a request of their class.
    #[must_use]
    pub fn cached(&self) -> u64 {
        self.reserved.current - self.in_use.current - self.pending
    }
}
