//! Figures of devices for `tonnage top`: published when someone asks for it, read by the same user.
//!
//! In:  [`Device::publish`], or the environment variable `TONNAGE_PUBLISH`.
//! Out: one sheet for the process, renewed ten times a second by a thread of its own.
//!
//! The allocator does nothing for it: the thread copies figures that are there anyway. No lock is held
//! while another is waited for: a callback of an allocator may drop a device, which takes the board's.

mod past;

mod sample;

use std::collections::HashMap;
use std::sync::{Condvar, Mutex, MutexGuard, Once, PoisonError};
use std::time::Duration;

use tonnage_engine::{Context, RecordOptions};
use tonnage_events::Action;
use tonnage_monitor::{FigureSheet, Places, PublishError, Publisher, now_us};

use crate::device::{Device, Shared};
use crate::publish::sample::Sampler;
use crate::sync::{Arc, Weak};

/// Time between two looks at the figures.
const EVERY: Duration = Duration::from_millis(100);

/// What this process publishes.
struct Board {
    /// There while a device is published.
    publisher: Option<Publisher>,
    published: Vec<Published>,
    /// Devices that were ever published, to tell them apart.
    count: u64,
    /// Whether the thread runs that looks at the figures.
    sampling: bool,
}

struct Published {
    number: u64,
    name: String,
    /// Its last handle may be dropped at any time.
    device: Weak<Shared>,
}

static BOARD: Mutex<Board> =
    Mutex::new(Board { publisher: None, published: Vec::new(), count: 0, sampling: false });

/// Rings when a device comes.
static BELL: Condvar = Condvar::new();

fn board() -> MutexGuard<'static, Board> {
    // Nothing that is done under the lock leaves the board half changed.
    BOARD.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Device {
    /// Shows this device's figures to programs of the same user, `tonnage top` above all, until
    /// [`unpublish`](Self::unpublish) or the last handle is dropped.
    ///
    /// The lines that hold the memory are shown while [`record_history`](crate::Memory::record_history)
    /// is on. Without a change to a program, `TONNAGE_PUBLISH=1` in the environment publishes every
    /// device, and `TONNAGE_PUBLISH=sites` records these lines too. The sheet lies in
    /// `$XDG_RUNTIME_DIR`, else in `/dev/shm`, or where `TONNAGE_MONITOR_DIR` says.
    ///
    /// Allocating costs the same; a thread looks at the figures ten times a second.
    ///
    /// # Errors
    ///
    /// If there is no folder that belongs to this user alone, or no file can be made in it.
    pub fn publish(&self) -> Result<(), PublishError> {
        self.publish_in(&Places::from_env())
    }

    fn publish_in(&self, places: &Places) -> Result<(), PublishError> {
        let mut board = board();
        if board.published.iter().any(|it| it.is(self)) {
            return Ok(());
        }
        if board.publisher.is_none() {
            board.publisher = Some(Publisher::create(places)?);
        }
        let number = board.count;
        board.count += 1;
        let device = Arc::downgrade(&self.shared);
        let name = board.name_for(self, number);
        board.published.push(Published { number, name, device });
        if !board.sampling {
            let thread = std::thread::Builder::new().name("tonnage-publish".to_owned());
            if let Err(error) = thread.spawn(sample_for_ever) {
                board.keep(|it| it.number != number);
                return Err(PublishError::Thread(error));
            }
            board.sampling = true;
        }
        BELL.notify_one();
        Ok(())
    }

    /// Shows this device's figures no longer.
    pub fn unpublish(&self) {
        board().keep(|it| !it.is(self));
    }
}

impl Published {
    fn is(&self, device: &Device) -> bool {
        std::ptr::eq(self.device.as_ptr(), Arc::as_ptr(&device.shared))
    }
}

impl Board {
    /// The device's name; with its number if a program gave the same ordinal to several.
    fn name_for(&self, device: &Device, number: u64) -> String {
        let name = format!("{device:?}");
        let taken = self.published.iter().any(|it| it.name == name);
        if taken { format!("{name}#{number}") } else { name }
    }

    /// Forgets the other devices, and removes the sheet if none is left.
    fn keep(&mut self, kept: impl Fn(&Published) -> bool) {
        self.published.retain(kept);
        if self.published.is_empty() {
            self.publisher = None;
        }
    }
}

/// A device is gone: the sheet is not to outlive it.
pub(crate) fn forget_gone_devices() {
    board().keep(|it| it.device.strong_count() > 0);
}

/// Publishes a new device if the environment wants it. Whatever is wrong is told once: it is no reason
/// to stop a job.
pub(crate) fn publish_from_env(device: &Device) {
    static TOLD: Once = Once::new();
    let tell = |problem: &dyn std::fmt::Display| {
        TOLD.call_once(|| eprintln!("tonnage: figures are not published: {problem}"));
    };
    let Some(wish) = std::env::var_os("TONNAGE_PUBLISH") else { return };
    match wish.to_str() {
        Some("" | "0") => return,
        Some("1") => {}
        Some("sites") => device.memory().record_history(Some(live_blocks_only())),
        _ => return tell(&format_args!("TONNAGE_PUBLISH is {wish:?}: write 1, sites or 0")),
    }
    if let Err(error) = device.publish() {
        tell(&error);
    }
}

/// A history that keeps no entries, but the lines of live blocks.
fn live_blocks_only() -> RecordOptions {
    let skip_actions = Action::ALL.to_vec();
    RecordOptions { context: Context::State, skip_actions, ..RecordOptions::default() }
}

/// What the thread does.
fn sample_for_ever() {
    let mut samplers = HashMap::<u64, Sampler>::new();
    let mut sheet = FigureSheet::of_this_process();
    let mut board = board();
    loop {
        if board.published.is_empty() {
            board = BELL.wait(board).unwrap_or_else(PoisonError::into_inner);
            continue;
        }
        let alive: Vec<_> = board
            .published
            .iter()
            .filter_map(|it| Some((it.number, it.name.clone(), it.device.upgrade()?)))
            .collect();
        drop(board);

        sheet.sampled_us = now_us();
        samplers.retain(|number, _| alive.iter().any(|it| it.0 == *number));
        sheet.devices.clear();
        for (number, name, device) in &alive {
            let sampler = samplers.entry(*number).or_default();
            sheet.devices.push(sampler.sample(name, device, sheet.sampled_us));
        }
        if let Some(publisher) = &mut self::board().publisher {
            // What cannot be written now can be in a moment, and no one waits for it.
            let _ = publisher.publish(&sheet);
        }
        // These may have become the last handles; a device that goes takes the board's lock.
        drop(alive);
        board = self::board();
        board = BELL.wait_timeout(board, EVERY).unwrap_or_else(PoisonError::into_inner).0;
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use std::time::Instant;

    use tonnage_events::DeviceId;
    use tonnage_monitor::{DeviceFigures, processes};

    use super::*;
    use crate::DeviceOptions;

    fn seen(places: &Places, until: impl Fn(&[DeviceFigures]) -> bool) -> Vec<DeviceFigures> {
        let begin = Instant::now();
        loop {
            let devices = processes(places).sheets.pop().map_or_else(Vec::new, |it| it.devices);
            if until(&devices) {
                return devices;
            }
            assert!(begin.elapsed() < Duration::from_secs(300), "last seen: {devices:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    // One test, since a process has one sheet.
    #[test]
    fn devices_show_their_figures_while_they_are_published_and_leave_nothing_behind() {
        let folder = tempfile::tempdir().unwrap();
        let places = Places::only(folder.path());
        let named = |id| DeviceOptions { id: DeviceId(id), ..DeviceOptions::default() };
        let (first, second) = (
            Device::dry_with("1 GiB", named(0)).unwrap(),
            Device::dry_with("2 GiB", named(1)).unwrap(),
        );
        first.memory().set_limit(Some(512 << 20));
        let block = first.allocate(1_000).unwrap();
        first.publish_in(&places).unwrap();
        first.publish_in(&places).unwrap();
        second.publish_in(&places).unwrap();

        let devices = seen(&places, |it| it.len() == 2);
        let figures = &devices[0];
        assert_eq!((&*figures.name, &*devices[1].name), ("dry:0", "dry:1"));
        assert_eq!((figures.total, figures.limit), (1 << 30, Some(512 << 20)));
        assert_eq!((figures.requested.now, figures.allocated.now), (1_000, 1_024));
        assert_eq!((figures.reserved.now, figures.reserved.peak), (2 << 20, 2 << 20));
        assert_eq!((figures.blocks, figures.allocations, figures.frees), (1, 1, 0));
        assert_eq!(figures.past.last(), Some(&1_024));
        assert_eq!(figures.call_sites, None, "history is off");

        drop(block);
        first.memory().record_history(Some(live_blocks_only()));
        let large = first.allocate(3 << 20).unwrap();
        let devices = seen(&places, |it| {
            it.first().is_some_and(|it| it.call_sites.as_ref().is_some_and(|it| !it.is_empty()))
        });
        let site = &devices[0].call_sites.as_ref().unwrap()[0];
        assert!(site.line.contains("publish/mod.rs:"), "{}", site.line);
        assert_eq!((site.bytes, site.blocks), (3 << 20, 1));
        assert!(first.memory().snapshot().entries.is_empty());
        // The rate is of the last second: so something is handed out until it is seen.
        seen(&places, |it| {
            drop(first.allocate(512).unwrap());
            it[0].allocations > 2 && it[0].allocations_per_second > 0.0
        });

        let namesake = Device::dry_with("3 GiB", named(0)).unwrap();
        namesake.publish_in(&places).unwrap();
        assert_eq!(seen(&places, |it| it.len() == 3)[2].name, "dry:0#2");
        drop((second, namesake));
        seen(&places, |it| it.len() == 1);
        first.unpublish();
        assert_eq!(folder.path().read_dir().unwrap().count(), 0);
        first.publish_in(&places).unwrap();
        assert_eq!(seen(&places, |it| it.len() == 1)[0].blocks, 1);
        drop((large, first));
        // The thread may have been looking, and then drops the last handle.
        seen(&places, |it| it.is_empty());
        assert_eq!(folder.path().read_dir().unwrap().count(), 0);
    }
}
