//! `tonnage run --view`: the page on a run while it trains.
//!
//! In: the device of a run, and its steps as they end. Out: a page that follows them, and stays behind.
//!
//! The history is kept and copied, which the engine's requests do not depend on: bytes are the same without it.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use tonnage::DeviceId;
use tonnage::memory::{RecordOptions, snapshot_file};
use tonnage::plan::{Error, Options, Progress};
use tonnage::tensor::Device;
use tonnage_view::{LiveRun, Recordings, RunProgress, Running, Stopper, ViewOptions};

use crate::output::{end_at_once, is_the_command};
use crate::view::ServeOptions;

/// Entries of the history that are kept: as many as the page shows at its ease.
const MOST_ENTRIES: NonZeroUsize = NonZeroUsize::new(1_000_000).unwrap();

/// The page is given something new at most so often,
const EVERY: Duration = Duration::from_secs(1);

/// and the run waits for that at most one part in so many of its time.
const SHARE: u32 = 20;

/// Whether to show the run, and how.
#[derive(Args)]
pub(crate) struct Live {
    /// Show the run as a local web page while it trains, and until Ctrl-C
    #[arg(long)]
    view: bool,

    /// With --view: the port of the page. Without it 7266, or any that is free
    #[arg(long, value_name = "N", requires = "view")]
    port: Option<u16>,

    /// With --view: do not open a browser
    #[arg(long, requires = "view")]
    no_open: bool,
}

impl Live {
    /// Whether a page is wanted.
    pub(crate) fn has_page(&self) -> bool {
        self.view
    }

    /// Serves the page, if it is wanted.
    pub(crate) fn begin<'a>(
        &self,
        options: &Options,
        device: &'a Device,
    ) -> anyhow::Result<Shown<'a>> {
        if !self.view {
            return Ok(Shown(None));
        }
        if options.save.is_none() {
            let kept = RecordOptions { max_entries: MOST_ENTRIES, ..RecordOptions::default() };
            device.memory().record_history(Some(kept));
        }
        let recordings =
            Recordings::new(ViewOptions { limit: options.limit, ..ViewOptions::default() });
        let name = format!("{} {}", options.recipe(), options.flags());
        let run = recordings.run(name.trim_end(), &options.conf);
        let options = ServeOptions { port: self.port, no_open: self.no_open };
        let training = Arc::new(AtomicBool::new(true));
        let trains = Arc::clone(&training);
        let on_ctrl_c = move |page: &Stopper| {
            if trains.load(Ordering::Acquire) { end_at_once() } else { page.stop() }
        };
        let running = options.serve(recordings, &mut anstream::stderr(), on_ctrl_c)?;
        Ok(Shown(Some(Follower { device, run, running, training, next: Instant::now() })))
    }
}

/// A run that may be shown.
pub(crate) struct Shown<'a>(Option<Follower<'a>>);

struct Follower<'a> {
    device: &'a Device,
    run: LiveRun,
    running: Running,
    /// Until the last step Ctrl-C ends the run, then the page.
    training: Arc<AtomicBool>,
    /// When the page is given something new.
    next: Instant,
}

impl Shown<'_> {
    /// A step has ended.
    pub(crate) fn step(&mut self, step: &Progress) {
        let Some(follower) = &mut self.0 else { return };
        follower.run.progress(&RunProgress {
            done: step.done,
            of: step.of,
            loss: step.measure,
            allocated_peak: step.allocated_peak,
            reserved: step.reserved_peak,
        });
        if Instant::now() >= follower.next {
            let took = follower.show();
            follower.next = Instant::now() + EVERY.max(took * SHARE);
        }
    }

    /// The run has ended, perhaps because something went wrong.
    pub(crate) fn end(&mut self, error: Option<&Error>) {
        let Some(follower) = &mut self.0 else { return };
        follower.show();
        follower.training.store(false, Ordering::Release);
        follower.run.finish(error.map(ToString::to_string));
    }

    /// The page stays until Ctrl-C; in another program, which that is for, it goes with the run.
    pub(crate) fn wait(self) {
        if let Some(follower) = self.0.filter(|_| is_the_command()) {
            follower.running.wait();
        }
    }
}

impl Follower<'_> {
    /// Shows the memory as it is; says how long that took.
    fn show(&self) -> Duration {
        let began = Instant::now();
        self.run.show(snapshot_file(self.device.memory().snapshot(), DeviceId(0)));
        began.elapsed()
    }
}
