//! The smallest stream that still differs.

use crate::command::{Command, Start, Stream};

/// Most candidates that are tried.
const MOST_TRIALS: usize = 20_000;

/// Makes a stream smaller as long as `differs` says that it still does. The result differs, if `stream`
/// does, and loses that with any single command taken away (unless trials ran out).
pub fn shrink(stream: &Stream, differs: &mut dyn FnMut(&Stream) -> bool) -> Stream {
    let mut shrinker = Shrinker { best: stream.clone(), differs, trials: 0 };
    loop {
        let before = shrinker.best.clone();
        shrinker.remove_commands();
        shrinker.simplify_start();
        shrinker.simplify_commands();
        if shrinker.best == before || shrinker.trials >= MOST_TRIALS {
            return shrinker.best;
        }
    }
}

struct Shrinker<'a> {
    best: Stream,
    differs: &'a mut dyn FnMut(&Stream) -> bool,
    trials: usize,
}

impl Shrinker<'_> {
    /// Takes a candidate over if it is another one and still differs.
    fn accept(&mut self, candidate: Stream) -> bool {
        if candidate == self.best || self.trials >= MOST_TRIALS {
            return false;
        }
        self.trials += 1;
        let differs = (self.differs)(&candidate);
        if differs {
            self.best = candidate;
        }
        differs
    }

    /// Takes away runs of commands, long ones first, until no single one can go.
    fn remove_commands(&mut self) {
        let mut length = self.best.commands.len().next_power_of_two() / 2;
        while length > 0 {
            let mut at = 0;
            let mut removed = false;
            while at < self.best.commands.len() {
                let end = (at + length).min(self.best.commands.len());
                let mut candidate = self.best.clone();
                candidate.commands.drain(at..end);
                if self.accept(candidate) {
                    removed = true;
                } else {
                    at = end;
                }
            }
            if !removed || length > 1 {
                length /= 2;
            }
        }
    }

    fn simplify_start(&mut self) {
        self.accept(Stream { start: Start::plain(), ..self.best.clone() });
        let mut all = self.best.clone();
        all.start.capacity = all.start.total;
        self.accept(all);
        let mut bare = self.best.clone();
        bare.start.environment.clear();
        self.accept(bare);
        for place in 0..self.best.start.environment.len() {
            for settings in fewer_settings(&self.best.start.environment[place].1) {
                let mut candidate = self.best.clone();
                candidate.start.environment[place].1 = settings;
                if self.accept(candidate) {
                    break;
                }
            }
        }
    }

    fn simplify_commands(&mut self) {
        for at in 0..self.best.commands.len() {
            for simpler in simpler_commands(&self.best.commands[at]) {
                let mut candidate = self.best.clone();
                candidate.commands[at] = simpler;
                if self.accept(candidate) {
                    break;
                }
            }
        }
    }
}

/// Simpler ones first.
fn simpler_commands(command: &Command) -> Vec<Command> {
    match *command {
        Command::Allocate { id, size, stream } => {
            let mut simpler = Vec::new();
            if stream != 0 {
                simpler.push(Command::Allocate { id, size, stream: 0 });
            }
            let sizes = round_sizes(size).into_iter();
            simpler.extend(sizes.map(|size| Command::Allocate { id, size, stream }));
            simpler
        }
        Command::PoolBegin { pool, only: Some(_) } => vec![Command::PoolBegin { pool, only: None }],
        Command::Configure(ref settings) => {
            fewer_settings(settings).into_iter().map(Command::Configure).collect()
        }
        Command::Fraction(share) => {
            let tenths = (share * 10.0).round() / 10.0;
            let halves = (share * 2.0).round() / 2.0;
            let rounder = [halves, tenths].into_iter().filter(|&it| it != share && it > 0.0);
            rounder.map(Command::Fraction).collect()
        }
        _ => Vec::new(),
    }
}

/// Rounder sizes: fewer digits set, and not larger by more than that.
fn round_sizes(size: u64) -> Vec<u64> {
    const MIB: u64 = 1 << 20;
    let candidates = [
        512,
        MIB,
        size.next_power_of_two() / 2,
        size / MIB * MIB,
        size / 512 * 512,
        size / 1024 * 1024,
    ];
    let rounder = |&other: &u64| {
        let simple = [512, MIB].contains(&other) || other.trailing_zeros() > size.trailing_zeros();
        (1..size).contains(&other) && simple
    };
    candidates.into_iter().filter(rounder).collect()
}

/// The string without one of its settings.
fn fewer_settings(settings: &str) -> Vec<String> {
    if settings.is_empty() {
        return Vec::new();
    }
    let parts: Vec<&str> = settings.split(',').collect();
    let without = |place: usize| {
        let kept = parts.iter().enumerate().filter(|(other, _)| *other != place);
        kept.map(|(_, part)| *part).collect::<Vec<_>>().join(",")
    };
    let mut fewer = vec![String::new()];
    fewer.extend((0..parts.len()).map(without).filter(|text| !text.is_empty()));
    fewer
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allocations(stream: &Stream) -> Vec<u64> {
        let sizes = stream.commands.iter().filter_map(|command| match command {
            Command::Allocate { size, .. } => Some(*size),
            _ => None,
        });
        sizes.collect()
    }

    #[test]
    fn what_does_not_matter_goes() {
        let commands = (1..=300).map(|id| Command::Allocate { id, size: id * 1000, stream: 4096 });
        let stream = Stream {
            start: Start { total: 1 << 28, capacity: 1 << 27, environment: Vec::new() },
            commands: commands.collect(),
        };
        // Differs while two of three sizes are there, whatever else.
        let mut trials = 0;
        let small = shrink(&stream, &mut |candidate| {
            trials += 1;
            let sizes = allocations(candidate);
            [17_000, 170_000, 299_000].iter().filter(|size| sizes.contains(size)).count() >= 2
        });
        assert_eq!(allocations(&small).len(), 2, "{small}");
        assert_eq!(small.start, Start::plain());
        assert!(trials < 500, "{trials}");
    }

    #[test]
    fn settings_are_taken_apart_and_sizes_rounded() {
        let text = "max_split_size_mb:40,expandable_segments:True,garbage_collection_threshold:0.5";
        let stream = Stream {
            start: Start::plain(),
            commands: vec![
                Command::Configure(text.to_owned()),
                Command::Allocate { id: 1, size: 33_333_333, stream: 8192 },
            ],
        };
        let small = shrink(&stream, &mut |candidate| {
            let shown = candidate.to_string();
            shown.contains("expandable_segments:True")
                && allocations(candidate).iter().any(|&size| size > 30_000_000)
        });
        let expected = [
            Command::Configure("expandable_segments:True".to_owned()),
            Command::Allocate { id: 1, size: 31 << 20, stream: 0 },
        ];
        assert_eq!(small.commands, expected);
    }

    #[test]
    fn a_stream_that_does_not_get_smaller_stays() {
        let stream = Stream { start: Start::plain(), commands: vec![Command::Snapshot] };
        assert_eq!(shrink(&stream, &mut |_| false), stream);
    }
}
