//! Private pools, as callers see them: whose requests go there, who uses them, what they may do.

use tonnage_device::Device;
use tonnage_events::PoolId;

use crate::engine::Engine;
use crate::pool::{PoolError, PoolSource, StreamFilter};

impl<D: Device> Engine<D> {
    /// Sends the requests that `filter` takes to a private pool, which is made if there is none.
    ///
    /// # Errors
    ///
    /// If requests already go there, or if the pool has no uses left.
    pub fn begin_allocate_to_pool(
        &mut self,
        pool: PoolId,
        filter: StreamFilter,
    ) -> Result<(), PoolError> {
        self.look_at_leftovers();
        self.pools.begin(pool, filter)
    }

    /// Ends what [`begin_allocate_to_pool`](Self::begin_allocate_to_pool) began. The pool keeps its
    /// use until [`release_pool`](Self::release_pool).
    ///
    /// # Errors
    ///
    /// If no requests go there.
    pub fn end_allocate_to_pool(&mut self, pool: PoolId) -> Result<(), PoolError> {
        self.pools.end(pool)
    }

    /// Makes a private pool with one use, or adds a use to it.
    ///
    /// # Errors
    ///
    /// If the pool has no uses left.
    pub fn create_or_use_pool(&mut self, pool: PoolId) -> Result<(), PoolError> {
        self.pools.add_use(pool)
    }

    /// The same for a pool whose segments come from elsewhere. A pool that is there already keeps what it has. The functions are
    /// called while the engine works: they must not call it.
    ///
    /// # Errors
    ///
    /// If the pool has no uses left, or if pages move under the policy.
    pub fn create_or_use_pool_from(
        &mut self,
        pool: PoolId,
        source: PoolSource,
    ) -> Result<(), PoolError> {
        if self.policy.moves_pages() {
            return Err(PoolError::SourceUnderPages(pool));
        }
        self.pools.add_use_from(pool, source)
    }

    /// Notes that a private pool holds what a program allocates under a tag of this name, as long as there is such a pool: requests that
    /// go there are no part of a capture, under any release, and messages name the tag. While another pool of the tag is paused, one
    /// that holds nothing yet is paused with it.
    ///
    /// # Errors
    ///
    /// If there is no such pool.
    pub fn set_pool_tag(&mut self, pool: PoolId, tag: &str) -> Result<(), PoolError> {
        self.pools.set_tag(pool, tag)?;
        self.pause_with_tag(pool, tag);
        Ok(())
    }

    /// Takes one use from a private pool. With none left, its memory goes back to the device the next
    /// time cached memory does.
    ///
    /// # Errors
    ///
    /// If there is no such pool or it has no uses.
    pub fn release_pool(&mut self, pool: PoolId) -> Result<(), PoolError> {
        let loses_no_split = self.config.release().released_pool_loses_no_split();
        if loses_no_split {
            self.settle();
        }
        self.pools.release(pool, loses_no_split)?;
        if self.policy.moves_pages() {
            self.note_release(pool);
        }
        Ok(())
    }

    /// Uses of a private pool; 0 if it has none or does not exist.
    #[must_use]
    pub fn pool_use_count(&self, pool: PoolId) -> u64 {
        self.pools.uses(pool)
    }

    /// Whether a pool without uses still holds memory though PyTorch, once cached memory was given back, takes it for
    /// empty: it counts growths, and one growth may be given back in two parts. It then destroys the pool with blocks in
    /// use, and what it does from there on is undefined. Here the pool stays until its memory is gone.
    #[must_use]
    pub fn outlives_pytorchs_pool(&self) -> bool {
        self.pools.holds_uncounted_memory()
    }

    /// Lets a pool hand out whole free blocks only, never parts of them.
    ///
    /// # Errors
    ///
    /// If the release of PyTorch that is followed knows no such pools.
    pub fn set_pool_no_split(&mut self, pool: PoolId) -> Result<(), PoolError> {
        if !self.config.release().no_split_pools() {
            return Err(PoolError::NoSplitUnsupported);
        }
        self.settle();
        self.pools.set_no_split(pool);
        Ok(())
    }

    /// Keeps all memory of a pool until it has no uses, also where PyTorch gives some back while a graph is captured into it:
    /// with `max_split_size_mb`, free oversize segments go for a request that finds no room, and a kernel that was captured
    /// before may use them at each replay.
    pub fn set_pool_keeps_memory(&mut self, pool: PoolId) {
        self.pools.keep(pool);
    }

    /// Lets the free blocks of a private pool serve other requests rather than fail them, or no
    /// longer.
    pub fn set_pool_use_on_oom(&mut self, pool: PoolId, on: bool) {
        self.pools.set_use_on_oom(pool, on);
    }
}
