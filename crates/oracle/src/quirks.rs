//! States in which PyTorch does what no allocator should follow, and goes on without a word. What differs
//! from there on is explained by it, and the stream is cut.

use std::collections::BTreeMap;

use crate::Subject;
use crate::command::{Command, Stream};
use crate::compare::Difference;
use crate::transcript::{DEVICE_FREES, Segment, State, Transcript};

/// Why a difference is none of the engine's, if it is not.
///
/// # Errors
///
/// If the engine cannot play the stream.
pub(crate) fn explains(
    stream: &Stream,
    difference: &Difference,
    theirs: &Transcript,
    engine: &mut impl Subject,
) -> anyhow::Result<Option<&'static str>> {
    if gives_back(stream, theirs, difference.at)
        && has_split_oversize(stream, difference.at, engine)?
    {
        return Ok(Some(
            "PyTorch gives back a segment that is in use, after max_split_size changed",
        ));
    }
    if meets_stale_capture_uses(stream, difference.at) {
        return Ok(Some("PyTorch takes a block for an earlier one that was used in a capture"));
    }
    Ok(None)
}

/// Whether, before a command, a block that was recorded for a stream in a capture was freed outside of one,
/// and a block that waits for a stream was freed in one after that. PyTorch remembers uses in captures by the
/// block's place in the host's memory, and forgets them only of blocks that are freed in a capture: whether a
/// later block has the same place, and is taken for the earlier one, is up to the host's allocator. What a
/// capture is (up to 2.12 any pool scope) is not told apart: this looks at nothing but differences.
fn meets_stale_capture_uses(stream: &Stream, at: usize) -> bool {
    let mut open = 0_u32;
    // Whether each block was recorded, and whether in a capture.
    let mut recorded = BTreeMap::new();
    let mut stale = false;
    for command in &stream.commands[..at] {
        match *command {
            Command::PoolBegin { .. } | Command::CaptureBegin => open += 1,
            Command::PoolEnd { .. } | Command::CaptureEnd => open = open.saturating_sub(1),
            Command::RecordStream { id, .. } => *recorded.entry(id).or_default() |= open > 0,
            Command::Free { id } => match (recorded.remove(&id), open > 0) {
                (Some(true), false) => stale = true,
                (Some(_), true) if stale => return true,
                _ => {}
            },
            _ => {}
        }
    }
    false
}

/// Whether PyTorch returned memory to the driver in a request.
fn gives_back(stream: &Stream, theirs: &Transcript, at: usize) -> bool {
    let count = |at: usize| theirs.answers.get(at).and_then(|answer| answer.figures[DEVICE_FREES]);
    let before = at.checked_sub(1).map_or(Some(0), count);
    matches!(stream.commands.get(at), Some(Command::Allocate { .. })) && count(at) > before
}

/// Whether, before a command, a free part of a segment is as large as blocks that are never split. That
/// cannot be while `max_split_size` stays what it is. PyTorch takes such a part for a segment of its own: it
/// hands its address to the driver, which refuses an inner one, and takes all of the segment if it is the
/// first.
fn has_split_oversize(
    stream: &Stream,
    at: usize,
    engine: &mut impl Subject,
) -> anyhow::Result<bool> {
    let mut commands = stream.commands[..at].to_vec();
    commands.push(Command::Snapshot);
    let before = engine.play(&Stream { start: stream.start.clone(), commands })?;
    let configured = before.answers.iter().rev().find_map(|answer| answer.settings.as_ref());
    let settings = configured.or(before.start.as_ref().ok());
    let limit = settings.and_then(|settings| settings.0.get("max_split_size")?.parse::<u64>().ok());
    let segments = before.answers.last().and_then(|answer| answer.segments.as_ref());
    let (Some(limit), Some(segments)) = (limit, segments) else { return Ok(false) };
    let oversize = |segment: &Segment| {
        let mut free = segment.blocks.iter().filter(|block| block.state == State::Free);
        !segment.expandable && segment.blocks.len() > 1 && free.any(|block| block.size >= limit)
    };
    Ok(segments.iter().any(oversize))
}

#[cfg(test)]
mod tests {
    use tonnage_engine::Release;

    use super::*;
    use crate::EngineSubject;
    use crate::command::Start;

    const MIB: u64 = 1 << 20;

    /// A segment of 100 MiB with 40 MiB in use behind, and then `settings`.
    fn stream(settings: &str) -> Stream {
        let allocate = |id, size| Command::Allocate { id, size, stream: 0 };
        let commands = vec![
            allocate(1, 100 * MIB),
            Command::Free { id: 1 },
            allocate(2, 60 * MIB),
            allocate(3, 40 * MIB),
            Command::Free { id: 2 },
            Command::Configure(settings.to_owned()),
            allocate(4, 8 << 30),
        ];
        Stream { start: Start::plain(), commands }
    }

    #[test]
    fn a_part_of_a_segment_that_became_oversize_explains() {
        let mut engine = EngineSubject::new(Release::V2_11);
        let at = 6;
        for (settings, explained) in
            [("max_split_size_mb:50", true), ("max_split_size_mb:70", false), ("", false)]
        {
            let stream = stream(settings);
            let difference = Difference {
                at,
                what: "reserved".to_owned(),
                expected: String::new(),
                got: String::new(),
            };
            let mut theirs = engine.play(&stream).unwrap();
            assert_eq!(explains(&stream, &difference, &theirs, &mut engine).unwrap(), None);
            theirs.answers[at].figures[DEVICE_FREES] = Some(1);
            let why = explains(&stream, &difference, &theirs, &mut engine).unwrap();
            assert_eq!(why.is_some(), explained, "{settings}");
        }
    }

    #[test]
    fn a_stale_use_explains_what_follows_it() {
        let block = |id| {
            let allocate = Command::Allocate { id, size: 3 * MIB, stream: 0 };
            [allocate, Command::RecordStream { id, stream: 4096 }, Command::Free { id }]
        };
        let begin = || Command::PoolBegin { pool: (0, 1), only: None };
        let end = || Command::PoolEnd { pool: (0, 1) };
        let [one, recorded, freed] = block(1);
        let mut commands = vec![one, begin(), recorded, end(), freed, begin()];
        commands.extend(block(2));
        let at = commands.len();
        let stream = Stream { start: Start::plain(), commands };
        assert!(meets_stale_capture_uses(&stream, at));
        assert!(!meets_stale_capture_uses(&stream, at - 1));
        let mut kept = stream.clone();
        // Freed while the scope is open: forgotten.
        kept.commands.swap(3, 4);
        assert!(!meets_stale_capture_uses(&kept, at));
    }
}
