//! Random stream programs against a model of what comes before what.
//!
//! The model is a vector clock for each stream: how many pieces of work of every stream must be done
//! before its next one starts. It is too simple to be wrong, and knows nothing of threads.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use tonnage_device::EventId;
use tonnage_device::host::{Host, Streams};
use tonnage_events::StreamId;

const STREAMS: usize = 5;
const STEPS: usize = 400;

type Clock = [usize; STREAMS];

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (bits ^ (bits >> 31)) as usize % limit
    }
}

/// What the work itself sees: how much is done.
#[derive(Default)]
struct Seen {
    done: [AtomicUsize; STREAMS],
    /// Pieces of work that started before what they depend on was done.
    early: AtomicU64,
    /// Pieces of work that ran.
    ran: AtomicUsize,
}

impl Seen {
    /// Whether everything is done that the clock asks for.
    fn reached(&self, clock: &Clock) -> bool {
        // Relaxed on purpose: that the counts are seen at all is what the streams promise.
        self.done.iter().zip(clock).all(|(done, asked)| done.load(Ordering::Relaxed) >= *asked)
    }
}

struct Program {
    seed: u64,
    random: Random,
    streams: Streams,
    seen: Arc<Seen>,
    clocks: [Clock; STREAMS],
    events: Vec<(EventId, Clock)>,
    launched: usize,
}

impl Program {
    fn new(seed: u64) -> Self {
        Self {
            seed,
            random: Random(seed),
            streams: Host::new(0).streams(),
            seen: Arc::default(),
            clocks: Default::default(),
            events: Vec::new(),
            launched: 0,
        }
    }

    fn step(&mut self, step: usize) {
        let stream = self.random.below(STREAMS);
        let id = StreamId(stream as u64);
        match self.random.below(20) {
            0..=9 => self.launch(stream),
            10..=13 => {
                let event = self.streams.record(id).unwrap();
                self.events.push((event, self.clocks[stream]));
            }
            14..=16 => {
                let Some((event, clock)) = self.any_event() else { return };
                self.streams.wait_on(id, event).unwrap();
                for (own, other) in self.clocks[stream].iter_mut().zip(clock) {
                    *own = (*own).max(other);
                }
            }
            17 => {
                let Some((event, clock)) = self.any_event() else { return };
                if self.random.below(2) == 0 {
                    self.streams.wait(event).unwrap();
                    self.check(step, &clock);
                } else if self.streams.query(event).unwrap() {
                    self.check(step, &clock);
                }
            }
            18 => {
                if !self.events.is_empty() {
                    let index = self.random.below(self.events.len());
                    let (event, _) = self.events.swap_remove(index);
                    self.streams.destroy_event(event).unwrap();
                }
            }
            _ => match self.random.below(8) {
                0 => {
                    self.streams.synchronize_all().unwrap();
                    for clock in self.clocks {
                        self.check(step, &clock);
                    }
                }
                1 if stream > 0 => {
                    // It may never have been used.
                    let _ = self.streams.destroy(id);
                    self.check(step, &self.clocks[stream]);
                }
                _ => {
                    self.streams.synchronize(id).unwrap();
                    self.check(step, &self.clocks[stream]);
                }
            },
        }
    }

    fn launch(&mut self, stream: usize) {
        let (seen, before) = (Arc::clone(&self.seen), self.clocks[stream]);
        let spins = self.random.below(200);
        let work = move || {
            // Exactly as many of its own stream, at least as many of the others.
            let own = seen.done[stream].load(Ordering::Relaxed);
            if !seen.reached(&before) || own != before[stream] {
                seen.early.fetch_add(1, Ordering::Relaxed);
            }
            (0..spins).for_each(|_| std::hint::spin_loop());
            seen.done[stream].store(own + 1, Ordering::Relaxed);
            seen.ran.fetch_add(1, Ordering::Relaxed);
        };
        self.streams.launch(StreamId(stream as u64), work).unwrap();
        self.clocks[stream][stream] += 1;
        self.launched += 1;
    }

    fn any_event(&mut self) -> Option<(EventId, Clock)> {
        let count = self.events.len();
        (count > 0).then(|| self.events[self.random.below(count)])
    }

    fn check(&self, step: usize, clock: &Clock) {
        assert!(self.seen.reached(clock), "seed {}, step {step}: not done {clock:?}", self.seed);
    }
}

#[test]
fn random_programs_keep_the_order_of_the_model() {
    for seed in 0..200 {
        let mut program = Program::new(seed);
        (0..STEPS).for_each(|step| program.step(step));
        let Program { streams, seen, launched, .. } = program;
        drop(streams);
        assert_eq!(seen.ran.load(Ordering::Relaxed), launched, "seed {seed}");
        assert_eq!(seen.early.load(Ordering::Relaxed), 0, "seed {seed}: work started too early");
    }
}
