//! An engine that is broken on purpose is found out, and the smallest stream that shows it is the one that
//! the fault says. No PyTorch is needed: the sound engine is asked instead.

use tonnage_engine::Release;
use tonnage_oracle::campaign::Pair;
use tonnage_oracle::compare::{Rules, Verdict};
use tonnage_oracle::generate::{Features, stream};
use tonnage_oracle::transcript::Reply;
use tonnage_oracle::{Command, EngineSubject, Stream, Subject, Transcript};

const RELEASE: Release = Release::V2_11;

/// The engine with a fault: given a stream, what it answers wrong.
struct Broken(fn(&Stream, &mut Transcript));

impl Subject for Broken {
    fn play(&mut self, stream: &Stream) -> anyhow::Result<Transcript> {
        let mut transcript = EngineSubject::new(RELEASE).play(stream)?;
        (self.0)(stream, &mut transcript);
        Ok(transcript)
    }
}

fn pair(fault: fn(&Stream, &mut Transcript)) -> Pair<EngineSubject, Broken> {
    Pair { theirs: EngineSubject::new(RELEASE), ours: Broken(fault), rules: Rules::of(RELEASE) }
}

/// The smallest of the first streams that show the fault.
fn found(fault: fn(&Stream, &mut Transcript)) -> Stream {
    let mut pair = pair(fault);
    for number in 0..200 {
        let stream = stream(11, number, Features::of(RELEASE));
        if matches!(pair.compare(&stream).unwrap().verdict, Verdict::Different(_)) {
            let (smallest, verdict) = pair.smallest(&stream).unwrap();
            assert!(matches!(verdict, Verdict::Different(_)), "{verdict:?}");
            return smallest;
        }
    }
    panic!("no stream of 200 shows the fault");
}

#[test]
fn a_sound_engine_has_no_differences() {
    let mut pair = pair(|_, _| {});
    for number in 0..60 {
        let stream = stream(11, number, Features::of(RELEASE));
        let verdict = pair.compare(&stream).unwrap().verdict;
        assert!(!matches!(verdict, Verdict::Different(_)), "stream {number}: {verdict:?}");
    }
}

#[test]
fn a_wrong_address_after_empty_cache_needs_two_commands() {
    let smallest = found(|stream, transcript| {
        let mut emptied = false;
        for (command, answer) in stream.commands.iter().zip(&mut transcript.answers) {
            emptied |= matches!(command, Command::EmptyCache { .. });
            if let Reply::At(address) = &mut answer.reply
                && emptied
            {
                *address += 512;
            }
        }
    });
    assert!(
        matches!(smallest.commands[..], [Command::EmptyCache { .. }, Command::Allocate { .. }]),
        "{smallest}"
    );
}

#[test]
fn a_wrong_figure_of_large_blocks_needs_one_command() {
    let smallest = found(|stream, transcript| {
        for (command, answer) in stream.commands.iter().zip(&mut transcript.answers) {
            if matches!(command, Command::Allocate { size, .. } if *size > 10 << 20)
                && matches!(answer.reply, Reply::At(_))
            {
                answer.figures[1] = None;
                answer.figures[0] = answer.figures[0].map(|bytes| bytes - 1);
            }
        }
    });
    assert!(matches!(smallest.commands[..], [Command::Allocate { .. }]), "{smallest}");
}

#[test]
fn a_peak_that_is_wrong_at_the_end_is_found() {
    let smallest = found(|_, transcript| {
        if let Some(end) = &mut transcript.end
            && let Some(values) = end.full.get_mut("reserved_bytes.all")
            && values[1] > 0
        {
            values[1] += 1;
        }
    });
    assert_eq!(smallest.commands.len(), 1, "{smallest}");
}

#[test]
fn a_setting_that_is_read_wrong_is_found_with_no_other_setting_beside_it() {
    let smallest = found(|_, transcript| {
        for answer in &mut transcript.answers {
            if let Some(settings) = &mut answer.settings
                && settings.0.get("expandable_segments").is_some_and(|value| value == "1")
            {
                settings.put("expandable_segments", 0);
            }
        }
    });
    // Whether in the environment or at run time: one setting, and one string that lets it show.
    let shown = smallest.to_string();
    assert_eq!(shown.matches("expandable_segments").count(), 1, "{shown}");
    assert!(smallest.commands.len() <= 2 && !shown.contains("_mb"), "{shown}");
}
