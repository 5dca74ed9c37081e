//! States in which PyTorch does what no allocator should follow, and goes on without a word. What differs
//! from there on is explained by it, and the stream is cut.

use std::collections::BTreeMap;

use crate::Subject;
use crate::command::{Command, Stream};
use crate::compare::{Difference, Rules};
use crate::transcript::{DEVICE_FREES, Reply, Segment, State, Transcript};

/// Why a difference is none of the engine's, if it is not.
///
/// # Errors
///
/// If the engine cannot play the stream.
pub(crate) fn explains(
    stream: &Stream,
    difference: &Difference,
    rules: Rules,
    [theirs, ours]: [&Transcript; 2],
    engine: &mut impl Subject,
) -> anyhow::Result<Option<&'static str>> {
    if ours.lost_pool_at.is_some_and(|lost| lost <= difference.at) {
        return Ok(Some("PyTorch destroys a pool with blocks in use"));
    }
    if takes_refused_pages_for_none(theirs, ours, difference.at) {
        return Ok(Some("PyTorch takes pages that the driver refuses for a lack of memory"));
    }
    if gives_back(stream, theirs, difference.at)
        && has_split_oversize(stream, difference.at, engine)?
    {
        return Ok(Some(
            "PyTorch gives back a segment that is in use, after max_split_size changed",
        ));
    }
    if meets_stale_capture_uses(stream, difference.at, rules) {
        return Ok(Some("PyTorch takes a block for an earlier one that was used in a capture"));
    }
    Ok(None)
}

/// Whether a request failed since pages are no multiple of the device's granules (`large_segment_size_mb:19`). The
/// engine says so in every release; 2.11 and 2.12 take the driver's *invalid argument* for out of memory once they
/// have mapped a page.
fn takes_refused_pages_for_none(theirs: &Transcript, ours: &Transcript, at: usize) -> bool {
    let reply = |of: &Transcript| of.answers.get(at).map(|answer| answer.reply.clone());
    matches!(reply(theirs), Some(Reply::OutOfMemory))
        && matches!(reply(ours), Some(Reply::Refused(it)) if it.message.contains("the device maps multiples of"))
}

/// Whether, before a command, a block that was recorded for a stream in a capture was freed outside of one,
/// and a block that waits for a stream was freed in one after that. PyTorch remembers uses in captures by the
/// block's place in the host's memory, and forgets them only of blocks that are freed in a capture: whether a
/// later block has the same place, and is taken for the earlier one, is up to the host's allocator.
fn meets_stale_capture_uses(stream: &Stream, at: usize, rules: Rules) -> bool {
    let mut scopes = 0_u32;
    // Of each capture that has begun, whether it is one here.
    let mut captures = Vec::new();
    // Whether each block was recorded, and whether in a capture.
    let mut recorded = BTreeMap::new();
    let mut stale = false;
    for command in &stream.commands[..at] {
        let capturing =
            if rules.pool_scope_is_capture { scopes > 0 } else { captures.contains(&true) };
        match *command {
            Command::PoolBegin { .. } => scopes += 1,
            Command::PoolEnd { .. } => scopes = scopes.saturating_sub(1),
            Command::CaptureBegin { here } => captures.push(here),
            Command::CaptureEnd => drop(captures.pop()),
            Command::RecordStream { id, .. } => *recorded.entry(id).or_default() |= capturing,
            Command::Free { id } => match (recorded.remove(&id), capturing) {
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

    /// Those of the older releases.
    const RULES: Rules = Rules { order_decides_addresses: false, pool_scope_is_capture: true };

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
            let ours = theirs.clone();
            let mut explained_by = |theirs: &Transcript| {
                explains(&stream, &difference, RULES, [theirs, &ours], &mut engine).unwrap()
            };
            assert_eq!(explained_by(&theirs), None);
            theirs.answers[at].figures[DEVICE_FREES] = Some(1);
            let why = explained_by(&theirs);
            assert_eq!(why.is_some(), explained, "{settings}");
        }
    }

    #[test]
    fn pages_that_no_device_has_explain_an_answer_and_nothing_else() {
        let conf = "large_segment_size_mb:19,expandable_segments:True";
        let stream: Stream = format!("c {conf}\na 1 512 0\na 2 8388608 0").parse().unwrap();
        let mut engine = EngineSubject::new(Release::V2_11);
        let ours = engine.play(&stream).unwrap();
        let mut theirs = ours.clone();
        let what = "the answer".to_owned();
        let difference = Difference { at: 2, what, expected: String::new(), got: String::new() };
        for (reply, explained) in [(Reply::At(512), false), (Reply::OutOfMemory, true)] {
            theirs.answers[2].reply = reply;
            let why = explains(&stream, &difference, RULES, [&theirs, &ours], &mut engine).unwrap();
            assert_eq!(why.is_some(), explained, "{:?}", ours.answers[2].reply);
        }
    }

    #[test]
    fn a_pool_that_pytorch_loses_explains_what_follows_it() {
        // Two runs of one growth go back, and then a block is left that PyTorch does not count.
        let text = "c expandable_segments:True\nb 0 3\na 1 83886080 0\na 2 512 0\nf 1\na 3 20971520 0\n\
                    a 4 20971520 0\na 5 20971520 0\nf 3\nf 5\nx 0 3\nR 0 3\ne 0 0\nf 4";
        let stream: Stream = text.parse().unwrap();
        let mut engine = EngineSubject::new(Release::V2_11);
        let ours = engine.play(&stream).unwrap();
        let emptied = 12;
        assert_eq!(ours.lost_pool_at, Some(emptied));
        for (at, explained) in [(emptied - 1, false), (emptied, true), (emptied + 1, true)] {
            let what = "segment 0".to_owned();
            let difference = Difference { at, what, expected: String::new(), got: String::new() };
            let why = explains(&stream, &difference, RULES, [&ours, &ours], &mut engine).unwrap();
            assert_eq!(why.is_some(), explained, "{at}");
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
        assert!(meets_stale_capture_uses(&stream, at, RULES));
        assert!(!meets_stale_capture_uses(&stream, at - 1, RULES));
        // From 2.13 on captures count, and only those of this thread.
        let newer = Rules { pool_scope_is_capture: false, ..RULES };
        assert!(!meets_stale_capture_uses(&stream, at, newer));
        for here in [true, false] {
            let mut captured = stream.clone();
            for command in &mut captured.commands {
                match command {
                    Command::PoolBegin { .. } => *command = Command::CaptureBegin { here },
                    Command::PoolEnd { .. } => *command = Command::CaptureEnd,
                    _ => {}
                }
            }
            assert_eq!(meets_stale_capture_uses(&captured, at, newer), here);
        }
        let mut kept = stream.clone();
        // Freed while the scope is open: forgotten.
        kept.commands.swap(3, 4);
        assert!(!meets_stale_capture_uses(&kept, at, RULES));
    }
}
