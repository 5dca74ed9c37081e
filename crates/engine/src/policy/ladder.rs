//! What is tried for a request that its pool cannot serve, as data: each rung costs more than the one before.
//!
//! A policy has a list of rungs; the way up is the same for all (`allocate.rs`).

/// One thing to try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rung {
    /// Lets callbacks free memory, and searches again if one did.
    Callbacks,
    /// Gives old segments back, if the settings ask for it.
    CollectGarbage,
    /// Obtains memory from the device.
    Grow,
    /// Takes from private pools that were set aside for this.
    SparePools,
    /// Gives oversize segments back, and obtains memory if that was enough.
    ReleaseOversize,
    /// Gives everything back that is cached, and obtains memory. Not during a capture.
    Flush,
    /// Takes a free block that another stream is done with.
    Borrow,
    /// Takes a view that was made before and is free.
    View,
    /// Takes what a released pool has left, if no graph can still use it.
    Leftovers,
    /// Makes a view of free pages and free ends of pages, if the limit is near.
    Ends,
    /// Obtains memory from the device, if little of what is there is free.
    GrowWithinSlack,
    /// Makes a view of free pages.
    Stitch,
    /// Takes a free block of the other half of the pool, small blocks' or large ones', rather than fail.
    OtherHalf,
    /// Waits for pending blocks and for other streams, and looks everywhere again. Not during a capture.
    Reclaim,
}
