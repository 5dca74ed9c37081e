//! The requests of a script under several orders of addresses.
//!
//! In:  PyTorch's history of the script, and how much memory can be had.
//! Out: ranges of peaks, and whether every request is served.
//!
//! Among equal free blocks the lowest address is taken, and addresses depend on what else a process maps, so that any
//! order may come. One figure holds only where all agree.

use tonnage_device::{Arenas, Downwards, FirstFit, Placement};
use tonnage_events::{Action, TraceEntry};
use tonnage_replay::job::Job;
use tonnage_replay::recording::{RecordingOptions, recorded_config};
use tonnage_replay::what_if::{Prediction, WhatIf};
use tonnage_snapshot::SnapshotFile;

/// Least and most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// Least.
    pub low: u64,
    /// Most.
    pub high: u64,
}

impl Range {
    /// Of one figure.
    #[must_use]
    pub fn exactly(bytes: u64) -> Self {
        Self { low: bytes, high: bytes }
    }

    /// That holds this figure too.
    pub(crate) fn with(self, bytes: u64) -> Self {
        Self { low: self.low.min(bytes), high: self.high.max(bytes) }
    }

    /// That holds so much more and less of itself, a share.
    pub(crate) fn give_or_take(self, share: f64) -> Self {
        let of = |bytes: u64, factor: f64| (bytes as f64 * factor) as u64;
        Self { low: of(self.low, 1.0 - share), high: of(self.high, 1.0 + share) }
    }

    /// That holds another one too.
    pub(crate) fn and(self, other: Self) -> Self {
        self.with(other.low).with(other.high)
    }
}

/// Whether requests are served from so much memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fit {
    /// All of them, with nothing given back.
    Yes,
    /// All of them, once the allocator has given back what it keeps, which takes time.
    Tight,
    /// By one order of addresses, and not by another.
    Depends,
    /// By one guess about the script, and not by another.
    Guessed,
    /// One fails.
    No,
}

impl Fit {
    /// What comes of two guesses.
    pub(crate) fn or(self, other: Self) -> Self {
        match (self, other) {
            (one, other) if one == other => one,
            (Self::Yes, Self::Tight) | (Self::Tight, Self::Yes) => Self::Tight,
            _ => Self::Guessed,
        }
    }

    /// In a word.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Yes => "yes",
            Self::Tight => "tight",
            Self::Depends => "depends",
            Self::Guessed => "guessed",
            Self::No => "no",
        }
    }
}

/// A script's requests, to be served again.
pub(crate) struct Orders {
    job: Job,
    what_if: WhatIf,
    /// Entries of requests that failed when the script ran, which went on all the same.
    failures: Vec<usize>,
}

impl Orders {
    /// Those of one device, or why they cannot be told; nothing where there are none.
    pub(crate) fn of(file: &SnapshotFile, device: u32) -> Option<Result<Self, String>> {
        let entries = file.traces.get(device as usize).map(Vec::as_slice)?;
        (!entries.is_empty()).then(|| Self::read(file, device, entries))
    }

    fn read(file: &SnapshotFile, device: u32, entries: &[TraceEntry]) -> Result<Self, String> {
        let ordinal = Some(device as usize);
        let options = RecordingOptions { ordinal, ..Default::default() };
        let (outcome, job) = Job::read(file, &options).map_err(|error| error.to_string())?;
        // Where only the last state differs all requests were understood.
        if let Some(difference) = outcome.difference.filter(|it| it.event < outcome.events) {
            return Err(format!("the history is understood up to entry {}", difference.event));
        }
        let failures = entries.iter().enumerate().filter(|(_, entry)| entry.action == Action::Oom);
        let failures = failures.map(|(number, _)| number).collect();
        Ok(Self { job, what_if: WhatIf::new(recorded_config(file)), failures })
    }

    /// Whether a request is not served that the script was served, or that it would not get over.
    fn fails(&self, prediction: &Prediction) -> bool {
        prediction.stopped_at.is_some_and(|entry| !self.failures.contains(&entry))
    }

    /// Serves them from so many bytes, by each order.
    fn serve(&self, room: u64) -> impl Iterator<Item = Prediction> {
        let placements = [
            Placement::Arenas(Arenas::default()),
            Placement::FirstFit(FirstFit::default()),
            Placement::Downwards(Downwards::default()),
        ];
        placements.into_iter().filter_map(move |placement| {
            let what_if = WhatIf { placement, total: Some(room), ..self.what_if.clone() };
            what_if.refusal().is_none().then(|| what_if.predict(&self.job))
        })
    }

    /// Widens ranges of allocated and reserved by what each order gives that serves everything; whether all do.
    pub(crate) fn widen(&self, allocated: &mut Range, reserved: &mut Range, room: u64) -> bool {
        let mut all = true;
        for prediction in self.serve(room) {
            if self.fails(&prediction) {
                all = false;
                continue;
            }
            *allocated = allocated.with(prediction.stats.max_memory_allocated());
            *reserved = reserved.with(prediction.stats.max_memory_reserved());
        }
        all
    }

    /// Whether all are served from so many bytes, where some order takes more if it is there.
    pub(crate) fn fit(&self, room: u64) -> Option<Fit> {
        let served: Vec<_> = self.serve(room).map(|it| !self.fails(&it)).collect();
        match (served.contains(&true), served.contains(&false)) {
            (true, false) => Some(Fit::Tight),
            (true, true) => Some(Fit::Depends),
            (false, true) => Some(Fit::No),
            (false, false) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOTAL: u64 = 150_109_880_320;

    fn snapshot(name: &str) -> SnapshotFile {
        let path =
            format!("{}/../../testdata/traces/{name}.pickle.zst", env!("CARGO_MANIFEST_DIR"));
        tonnage_snapshot::open(path.as_ref()).unwrap()
    }

    fn recording(name: &str) -> Orders {
        Orders::of(&snapshot(name), 0).unwrap().unwrap()
    }

    /// A rank of a job has its history at the number of its device; device 0 has another one.
    #[test]
    fn requests_are_those_of_the_device_that_counts() {
        let mut file = snapshot("mlp_seed.default");
        let few = file.traces[0][..2].to_vec();
        file.traces.insert(0, few);
        for segment in &mut file.segments {
            segment.device.0 += 1;
        }
        let peak = |device| {
            let mut ranges = [Range::exactly(0); 2];
            let [allocated, reserved] = &mut ranges;
            Orders::of(&file, device).unwrap().unwrap().widen(allocated, reserved, TOTAL);
            ranges[1].high
        };
        assert_eq!(peak(1), 218_103_808);
        assert!(peak(0) < 218_103_808);
        assert!(Orders::of(&file, 2).is_none());
    }

    #[test]
    fn a_history_that_the_engine_does_not_follow_has_no_other_orders() {
        let mut file = snapshot("mlp_seed.default");
        let entries = &mut file.traces[0];
        let last = entries.iter().rposition(|entry| entry.action == Action::Alloc).unwrap();
        entries[last].address.0 += 512;
        assert!(Orders::of(&file, 0).unwrap().is_err());
    }

    /// One run gave 161,480,704 bytes reserved; by the order of addresses of an H200 it is less, as was measured there.
    #[test]
    fn a_range_holds_what_other_orders_give() {
        let peaks = |name: &str, allocated: u64, reserved: u64| {
            let mut ranges = [allocated, reserved].map(Range::exactly);
            let [allocated, reserved] = &mut ranges;
            assert!(recording(name).widen(allocated, reserved, TOTAL), "{name}");
            ranges
        };
        let [allocated, reserved] = peaks("deepnet_plain.default", 152_994_816, 161_480_704);
        assert_eq!(allocated, Range::exactly(152_994_816));
        assert_eq!(reserved, Range { low: 157_286_400, high: 161_480_704 });
        let [_, reserved] = peaks("mlp_seed.default", 195_529_216, 218_103_808);
        assert_eq!(reserved, Range::exactly(218_103_808));
    }

    /// The recording ends with a request that failed; a script may catch that and end well.
    #[test]
    fn a_last_failure_that_the_script_got_over_is_none() {
        let orders = recording("mlp_seed.tight");
        assert_eq!(orders.failures.len(), 1);
        let mut ranges = [Range::exactly(1 << 30); 2];
        let [allocated, reserved] = &mut ranges;
        assert!(orders.widen(allocated, reserved, 201_326_592));
        assert!(!orders.widen(allocated, reserved, 150_000_000), "an earlier request fails");
    }

    #[test]
    fn two_guesses_that_differ_are_no_order_of_addresses() {
        assert_eq!(Fit::Yes.or(Fit::Yes), Fit::Yes);
        assert_eq!(Fit::Depends.or(Fit::Depends), Fit::Depends);
        assert_eq!(Fit::Yes.or(Fit::Tight), Fit::Tight);
        for (one, other) in [(Fit::Yes, Fit::No), (Fit::No, Fit::Tight), (Fit::Yes, Fit::Depends)] {
            assert_eq!((one.or(other), other.or(one)), (Fit::Guessed, Fit::Guessed));
        }
    }

    #[test]
    fn less_memory_is_enough_or_is_not() {
        let orders = recording("mlp_seed.default");
        let mut ranges = [Range::exactly(1 << 30); 2];
        let [allocated, reserved] = &mut ranges;
        assert!(!orders.widen(allocated, reserved, 195_000_000));
        assert_eq!(ranges, [Range::exactly(1 << 30); 2], "what fails gives no peak");
        assert_eq!(orders.fit(218_103_808), Some(Fit::Tight));
        assert_eq!(orders.fit(195_000_000), Some(Fit::No));
    }
}
