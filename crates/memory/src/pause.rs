//! Memory back to the device for a while, as programs that share a GPU need.
//!
//! In:  a number of bytes, or a wish to stop and to go on.
//! Out: memory that others can have; later the same blocks at the same addresses, with their contents if they were to be kept.

use std::collections::BTreeMap;

use tonnage_device::{Device as _, DeviceError};
use tonnage_engine::{CacheError, Engine, PauseError, ResumeError};
use tonnage_events::{Address, PoolId, StreamId};

use crate::any_device::AnyDevice;
use crate::copies::{put_back, save, zeros};
use crate::device::Shared;
use crate::sync::lock;
use crate::view::Memory;

/// What becomes of the bytes in blocks while an allocator is paused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contents {
    /// They are copied to this machine's memory, and back.
    Kept,
    /// They are lost: blocks hold whatever the device gives.
    Lost,
}

/// Contents of what is paused.
#[derive(Default)]
pub(crate) struct Kept {
    all: Saved,
    /// Of pools that were paused by themselves.
    pools: BTreeMap<PoolId, Saved>,
    /// Whether copies back to blocks may still be under way.
    copying: bool,
}

/// Contents of blocks, each with its address.
type Saved = Vec<(Address, Vec<u8>)>;

impl Memory<'_> {
    /// Gives cached memory back to the device until `bytes` are gone, or all of it, and returns how many went. Waits for the work that
    /// uses it.
    ///
    /// # Errors
    ///
    /// If the device fails, or failed before where nobody could be told.
    #[track_caller]
    pub fn release(&self, bytes: u64) -> Result<u64, CacheError> {
        let shared = &self.device.shared;
        shared.engine.take_untold()?;
        self.wait_before_release()?;
        Ok(shared.engine.lock().release(bytes)?)
    }

    /// As before the cache is emptied. During a capture nothing is released, and to wait would end that.
    fn wait_before_release(&self) -> Result<(), DeviceError> {
        let shared = &self.device.shared;
        if shared.engine.lock().is_capturing_anywhere() {
            return Ok(());
        }
        shared.wait_before_emptying()
    }

    /// Whether [`pause`](Self::pause), or [`pause_pool`](Self::pause_pool) of this pool, would be refused. Waits for nothing.
    ///
    /// # Errors
    ///
    /// Those of [`PauseError`] that are known beforehand.
    pub fn check_pause(&self, pool: Option<PoolId>) -> Result<(), PauseError> {
        let mut engine = self.device.shared.engine.lock();
        match pool {
            None => engine.check_pause(),
            Some(pool) => engine.check_pause_pool(pool),
        }
    }

    /// Waits for everything that is queued and gives all memory back to the device; every block keeps its address. Returns how many
    /// bytes went. Until [`resume`](Self::resume) nothing is allocated, and no work may use a block: blocks may be dropped.
    ///
    /// Addresses can be kept under the policy `pages` and in expandable segments.
    ///
    /// # Errors
    ///
    /// See [`PauseError`].
    #[track_caller]
    pub fn pause(&self, contents: Contents) -> Result<u64, PauseError> {
        let shared = &self.device.shared;
        shared.engine.take_untold()?;
        let mut kept = lock(&shared.kept);
        let mut engine = shared.engine.lock();
        engine.check_pause()?;
        let saved = saved(&mut engine, contents, Engine::contents)?;
        let paused = engine.pause();
        if engine.is_paused() {
            kept.all = saved;
        }
        paused
    }

    /// Obtains all memory again, at the same addresses, and puts contents back that were kept: when this returns, they are there for
    /// every stream. If not all can be had yet, the allocator stays paused, and the next call goes on.
    ///
    /// # Errors
    ///
    /// [`DeviceError::OutOfMemory`] if others hold the memory now; during a capture, with nothing changed; or if the device fails.
    pub fn resume(&self) -> Result<(), ResumeError> {
        let shared = &self.device.shared;
        let mut kept = lock(&shared.kept);
        {
            let mut engine = shared.engine.lock();
            engine.obtain_again()?;
            let Kept { all, copying, .. } = &mut *kept;
            put_all_back(&engine, all, copying)?;
        }
        shared.wait_for_copies(&mut kept)?;
        shared.engine.lock().resume()
    }

    /// As [`pause`](Self::pause), for one private pool: requests that go there fail meanwhile, and all others go on.
    ///
    /// # Errors
    ///
    /// See [`PauseError`].
    #[track_caller]
    pub fn pause_pool(&self, pool: PoolId, contents: Contents) -> Result<u64, PauseError> {
        let shared = &self.device.shared;
        shared.engine.take_untold()?;
        let mut kept = lock(&shared.kept);
        let mut engine = shared.engine.lock();
        engine.check_pause_pool(pool)?;
        let saved = saved(&mut engine, contents, |engine| engine.contents_of(pool))?;
        let paused = engine.pause_pool(pool);
        if engine.is_pool_paused(pool) {
            kept.pools.insert(pool, saved);
        }
        paused
    }

    /// As [`resume`](Self::resume), for one private pool.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn resume_pool(&self, pool: PoolId) -> Result<(), ResumeError> {
        let shared = &self.device.shared;
        let mut kept = lock(&shared.kept);
        {
            let mut engine = shared.engine.lock();
            engine.obtain_pool_again(pool)?;
            let Kept { pools, copying, .. } = &mut *kept;
            if let Some(of_pool) = pools.get_mut(&pool) {
                put_all_back(&engine, of_pool, copying)?;
            }
        }
        shared.wait_for_copies(&mut kept)?;
        kept.pools.remove(&pool);
        shared.engine.lock().resume_pool(pool)
    }

    /// The private pools that are paused by themselves.
    #[must_use]
    pub fn paused_pools(&self) -> Vec<PoolId> {
        self.device.shared.engine.lock().paused_pools()
    }

    /// Gives back what one private pool caches, though it is in use, and returns how many bytes went. Waits for the work that uses it.
    /// Graphs that were captured with the pool must not be replayed afterwards.
    ///
    /// # Errors
    ///
    /// If the device fails, or failed before where nobody could be told.
    #[track_caller]
    pub fn release_pool_memory(&self, pool: PoolId) -> Result<u64, CacheError> {
        let shared = &self.device.shared;
        shared.engine.take_untold()?;
        self.wait_before_release()?;
        Ok(shared.engine.lock().release_pool_memory(pool)?)
    }

    /// Whether the allocator is paused.
    #[must_use]
    pub fn is_paused(&self) -> bool {
        self.device.shared.engine.lock().is_paused()
    }
}

impl Shared {
    /// Waits until what was copied to blocks is there, which on `cuda` it need not be when a copy returns: the bytes may wait in memory
    /// of the driver's, and streams that do not wait for the default one would come before them. Without the engine's lock.
    fn wait_for_copies(&self, kept: &mut Kept) -> Result<(), DeviceError> {
        // The host copies at once, and its default stream may wait for whoever calls this.
        if kept.copying && self.streams.is_none() {
            self.synchronize(StreamId::DEFAULT)?;
        }
        kept.copying = false;
        Ok(())
    }
}

/// Waits for everything that is queued, and copies what blocks hold, if that is to be kept. Room for it is looked for before.
fn saved(
    engine: &mut Engine<AnyDevice>,
    contents: Contents,
    of: impl Fn(&Engine<AnyDevice>) -> Vec<(Address, u64)>,
) -> Result<Saved, PauseError> {
    let mut saved = match contents {
        Contents::Kept => room_for(&of(engine))?,
        Contents::Lost => Saved::new(),
    };
    for stream in engine.device().known_streams() {
        engine.device_mut().synchronize(stream)?;
    }
    for (address, bytes) in &mut saved {
        save(engine, *address, bytes)?;
    }
    Ok(saved)
}

/// Memory of this machine for contents; or an error that says how much there is to keep.
fn room_for(contents: &[(Address, u64)]) -> Result<Saved, PauseError> {
    let all = contents.iter().map(|it| it.1).sum();
    let none = || PauseError::NoHostMemory(all);
    // Whoever has no room for all of it at once may still find some for each.
    drop(zeros(all).ok_or_else(none)?);
    contents.iter().map(|&(at, size)| Ok((at, zeros(size).ok_or_else(none)?))).collect()
}

/// Puts contents back, from the last on; what is left is not there yet.
fn put_all_back(
    engine: &Engine<AnyDevice>,
    saved: &mut Saved,
    copying: &mut bool,
) -> Result<(), DeviceError> {
    while let Some((address, bytes)) = saved.last() {
        *copying = true;
        put_back(engine, *address, bytes)?;
        saved.pop();
    }
    Ok(())
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    #[test]
    fn what_the_host_has_no_room_for_is_an_error() {
        // More than a process can have addresses for, though not each by itself.
        let many = vec![(Address(0), 1 << 40); 256];
        let refused = room_for(&many).unwrap_err();
        assert_eq!(refused, PauseError::NoHostMemory(256 << 40));
        let text = refused.to_string();
        assert!(text.contains("256.00 TiB") && text.contains("keep=False"), "{text}");
        let room = room_for(&[(Address(1), 3), (Address(9), 0)]).unwrap();
        assert_eq!(room, [(Address(1), vec![0; 3]), (Address(9), Vec::new())]);
    }
}
