//! Whether two transcripts of a stream are equal, and how far they can be compared.
//!
//! PyTorch's transcript says what is right. It ends early where PyTorch raises anything but an
//! out-of-memory error (its state is then no one's guess), and where its process dies. Two figures depend
//! on the order of a hash table, and are masked then (see [`Rules`]).

use std::collections::BTreeMap;
use std::fmt;

use tonnage_engine::Release;
use tonnage_engine::config::Tie;

use crate::command::{Command, Stream};
use crate::histories;
use crate::transcript::{ACTIVE_COUNT, Answer, End, FIGURES, Reply, Segment, Settings, Transcript};

/// Statistics whose peak and sums depend on the order in which one poll frees several blocks. PyTorch walks
/// its queues in the order of a hash table.
const BY_ORDER: [&str; 2] = ["inactive_split.", "inactive_split_bytes."];

/// What of a release cannot be compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// The order in which blocks are freed decides later addresses too (2.12: blocks are numbered, and
    /// which of two merged blocks survives depends on it). Such streams are cut, not masked.
    pub order_decides_addresses: bool,
    /// An open pool scope is a capture, and nothing else is.
    pub pool_scope_is_capture: bool,
}

impl Rules {
    /// Those of a release.
    #[must_use]
    pub fn of(release: Release) -> Self {
        Self {
            order_decides_addresses: release.tie() == Tie::Block,
            pool_scope_is_capture: release.pool_scope_is_capture(),
        }
    }
}

/// What came of comparing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Comparison {
    /// Commands whose answers were compared.
    pub compared: usize,
    /// What was let pass.
    pub leeway: Leeway,
    /// Equal, or not.
    pub verdict: Verdict,
}

/// What is up to the order of a hash table, and was not compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Leeway {
    /// One command freed several blocks: peaks and sums that depend on the order were left out.
    pub masked: bool,
    /// The histories are equal but for the order of entries that may come in any.
    pub reordered: bool,
}

/// Equal, or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// To the end.
    Same,
    /// Up to a command that PyTorch has no answer to.
    Cut {
        /// The command.
        at: usize,
        /// Why.
        why: String,
    },
    /// They differ.
    Different(Difference),
}

/// The first thing that differs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// At which command; the number of commands for the state at the end.
    pub at: usize,
    /// What differs.
    pub what: String,
    /// What PyTorch says.
    pub expected: String,
    /// What the engine says.
    pub got: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "command {}: {}: PyTorch {}, engine {}",
            self.at, self.what, self.expected, self.got
        )
    }
}

/// Compares what PyTorch and the engine answered to a stream.
#[must_use]
pub fn compare(
    stream: &Stream,
    theirs: &Transcript,
    ours: &Transcript,
    rules: Rules,
) -> Comparison {
    let mut leeway = Leeway::default();
    let (compared, verdict) = match verdict(stream, theirs, ours, rules, &mut leeway) {
        Ok(()) => (stream.commands.len(), Verdict::Same),
        Err(verdict) => {
            let at = match &verdict {
                Verdict::Same => stream.commands.len(),
                Verdict::Cut { at, .. } => *at,
                Verdict::Different(difference) => difference.at,
            };
            (at, verdict)
        }
    };
    Comparison { compared, leeway, verdict }
}

fn verdict(
    stream: &Stream,
    theirs: &Transcript,
    ours: &Transcript,
    rules: Rules,
    leeway: &mut Leeway,
) -> Result<(), Verdict> {
    started(theirs, ours)?;
    for (at, command) in stream.commands.iter().enumerate() {
        let Some(expected) = theirs.answers.get(at) else { return Err(cut(at, died(theirs))) };
        if let Reply::Refused(refusal) = &expected.reply
            && !matches!(command, Command::Configure(_))
        {
            let both =
                matches!(ours.answers.get(at), Some(Answer { reply: Reply::Refused(_), .. }));
            let who = if both { "both refuse" } else { "PyTorch raises" };
            return Err(cut(at, format!("{who}: {}", gist(&refusal.message))));
        }
        let got = ours.answers.get(at).ok_or_else(|| {
            different(at, "the answer", format!("{:?}", expected.reply), "none".to_owned())
        })?;
        let same = compare_answers(at, expected, got);
        if frees_several(stream, theirs, at) {
            // The block that the command itself asked for may depend on it already.
            if rules.order_decides_addresses {
                let compared = at + usize::from(same.is_ok());
                return Err(cut(compared, "the order of a hash table decides".to_owned()));
            }
            leeway.masked = true;
        }
        same?;
    }
    let at = stream.commands.len();
    match (&theirs.end, &ours.end) {
        (Some(expected), Some(got)) => compare_ends(at, expected, got, leeway),
        (None, _) => Err(cut(at, died(theirs))),
        (Some(_), None) => Err(different(at, "the end", "a state".to_owned(), "none".to_owned())),
    }
}

fn cut(at: usize, why: String) -> Verdict {
    Verdict::Cut { at, why }
}

fn different(at: usize, what: &str, expected: String, got: String) -> Verdict {
    Verdict::Different(Difference { at, what: what.to_owned(), expected, got })
}

fn died(theirs: &Transcript) -> String {
    format!("PyTorch's process died {}", theirs.died.as_deref().unwrap_or("without a word"))
}

/// The beginning of a message, up to where an assertion names its place or advice begins, without its
/// numbers: equal for two of a kind.
fn gist(message: &str) -> String {
    let ends = ["INTERNAL ASSERT FAILED", "Search for", "CUDA kernel errors"];
    let end = ends.iter().filter_map(|end| message.find(end)).min().unwrap_or(message.len());
    let words = message[..end].chars().map(|c| if c.is_ascii_digit() { '#' } else { c });
    words.take(80).collect::<String>().trim().to_owned()
}

fn started(theirs: &Transcript, ours: &Transcript) -> Result<(), Verdict> {
    match (&theirs.start, &ours.start) {
        (Ok(expected), Ok(got)) => compare_settings(0, expected, got),
        (Err(expected), Err(got)) if expected.kind == got.kind => {
            Err(cut(0, "both refuse the environment".to_owned()))
        }
        (expected, got) => {
            let show = |start: &Result<Settings, _>| match start {
                Ok(_) => "takes it".to_owned(),
                Err(refusal) => format!("{refusal:?}"),
            };
            Err(different(0, "the environment", show(expected), show(got)))
        }
    }
}

fn compare_answers(at: usize, expected: &Answer, got: &Answer) -> Result<(), Verdict> {
    let same = match (&expected.reply, &got.reply) {
        (Reply::Refused(expected), Reply::Refused(got)) => expected.kind == got.kind,
        (expected, got) => expected == got,
    };
    if !same {
        let show = |reply: &Reply| format!("{reply:?}");
        return Err(different(at, "the answer", show(&expected.reply), show(&got.reply)));
    }
    for (name, (expected, got)) in FIGURES.iter().zip(expected.figures.iter().zip(got.figures)) {
        if let (Some(expected), Some(got)) = (expected, got)
            && *expected != got
        {
            return Err(different(at, name, expected.to_string(), got.to_string()));
        }
    }
    if let (Some(expected), Some(got)) = (&expected.settings, &got.settings) {
        compare_settings(at, expected, got)?;
    }
    if let (Some(expected), Some(got)) = (&expected.segments, &got.segments) {
        compare_segments(at, expected, got)?;
    }
    Ok(())
}

/// Settings that one side does not have are not compared.
fn compare_settings(at: usize, expected: &Settings, got: &Settings) -> Result<(), Verdict> {
    for (name, expected) in &expected.0 {
        let Some(got) = got.0.get(name) else { continue };
        if got != expected {
            return Err(different(at, name, format!("`{expected}`"), format!("`{got}`")));
        }
    }
    Ok(())
}

fn compare_segments(at: usize, expected: &[Segment], got: &[Segment]) -> Result<(), Verdict> {
    for index in 0..expected.len().max(got.len()) {
        let (expected, got) = (expected.get(index), got.get(index));
        if expected != got {
            let show = |segment: Option<&Segment>| {
                segment.map_or_else(|| "none".to_owned(), |segment| format!("{segment:?}"))
            };
            return Err(different(at, &format!("segment {index}"), show(expected), show(got)));
        }
    }
    Ok(())
}

fn compare_ends(at: usize, expected: &End, got: &End, leeway: &mut Leeway) -> Result<(), Verdict> {
    let by_order = |name: &str| BY_ORDER.iter().any(|prefix| name.starts_with(prefix));
    let metrics = ["current", "peak", "allocated", "freed"];
    for (name, expected) in &expected.full {
        let Some(got) = got.full.get(name) else { continue };
        let compared = if leeway.masked && by_order(name) { 1 } else { metrics.len() };
        for place in 0..compared {
            if expected[place] != got[place] {
                let what = format!("{name}.{}", metrics[place]);
                return Err(different(
                    at,
                    &what,
                    expected[place].to_string(),
                    got[place].to_string(),
                ));
            }
        }
    }
    if expected.max_split != got.max_split {
        let (expected, got) = (expected.max_split.to_string(), got.max_split.to_string());
        return Err(different(at, "max_split_size", expected, got));
    }
    compare_segments(at, &expected.segments, &got.segments)?;
    match histories::compare(&expected.history, &got.history, leeway.masked) {
        Ok(reordered) => {
            leeway.reordered = reordered;
            Ok(())
        }
        Err((entry, expected, got)) => Err(different(at, &format!("entry {entry}"), expected, got)),
    }
}

/// Whether one command freed several blocks that had waited for other streams.
fn frees_several(stream: &Stream, theirs: &Transcript, at: usize) -> bool {
    let count = |at: usize| theirs.answers[at].figures[ACTIVE_COUNT].unwrap_or(0);
    let before = if at == 0 { 0 } else { count(at - 1) };
    let handed_out = i64::from(matches!(theirs.answers[at].reply, Reply::At(_)));
    // A free takes back its own block, and looks after no other.
    let own = matches!(stream.commands[at], Command::Free { .. });
    !own && before + handed_out - count(at) >= 2
}

/// How often streams were cut, by reason, and the number of the first of them.
pub type Cuts = BTreeMap<String, Cut>;

/// Streams cut for one reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// How many.
    pub streams: u64,
    /// The number of the first.
    pub first: u64,
}

impl Cut {
    /// Both together.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self { streams: self.streams + other.streams, first: self.first.min(other.first) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::Start;
    use crate::transcript::{Kind, Refusal};
    use crate::{EngineSubject, Subject};

    fn allocate(id: u64, size: u64) -> Command {
        Command::Allocate { id, size, stream: 0 }
    }

    fn played(commands: Vec<Command>) -> (Stream, Transcript) {
        let stream = Stream { start: Start::plain(), commands };
        let transcript = EngineSubject::new(Release::V2_11).play(&stream).unwrap();
        (stream, transcript)
    }

    fn verdict_of(stream: &Stream, theirs: &Transcript, ours: &Transcript) -> Verdict {
        compare(stream, theirs, ours, Rules::default()).verdict
    }

    #[test]
    fn equal_transcripts_are_the_same() {
        let (stream, ours) = played(vec![allocate(1, 1000), Command::Free { id: 1 }]);
        let comparison = compare(&stream, &ours, &ours, Rules::default());
        assert_eq!(
            comparison,
            Comparison { compared: 2, leeway: Leeway::default(), verdict: Verdict::Same }
        );
    }

    #[test]
    fn every_part_of_an_answer_is_compared() {
        let commands = vec![
            Command::RecordHistory,
            allocate(1, 1000),
            Command::Configure("max_split_size_mb:40".to_owned()),
            Command::Snapshot,
        ];
        let (stream, ours) = played(commands);
        type Change = fn(&mut Transcript);
        let changes: [(Change, usize, &str); 9] = [
            (|it| it.answers[1].reply = Reply::At(512), 1, "the answer"),
            (|it| it.answers[1].figures[3] = Some(7), 1, "requested"),
            (
                |it| it.answers[2].settings.as_mut().unwrap().put("max_split_size", 1),
                2,
                "max_split_size",
            ),
            (|it| it.answers[3].segments.as_mut().unwrap()[0].blocks[0].size += 1, 3, "segment 0"),
            (
                |it| it.end.as_mut().unwrap().full.get_mut("segment.all").unwrap()[2] += 1,
                4,
                "segment.all.allocated",
            ),
            (|it| it.end.as_mut().unwrap().max_split = 5, 4, "max_split_size"),
            (|it| it.end.as_mut().unwrap().segments.clear(), 4, "segment 0"),
            (|it| it.end.as_mut().unwrap().history[1].size += 1, 4, "entry 1"),
            (|it| it.end.as_mut().unwrap().history.truncate(1), 4, "entry 1"),
        ];
        for (change, at, what) in changes {
            let mut theirs = ours.clone();
            change(&mut theirs);
            match verdict_of(&stream, &theirs, &ours) {
                Verdict::Different(found) => assert_eq!((found.at, &*found.what), (at, what)),
                other => panic!("{what}: {other:?}"),
            }
        }
    }

    #[test]
    fn a_stream_is_cut_where_pytorch_raises_or_dies() {
        let (stream, ours) = played(vec![allocate(1, 1000), allocate(2, 1000)]);
        let mut raised = ours.clone();
        let message = "uc >= 0 INTERNAL ASSERT FAILED at line 2945".to_owned();
        raised.answers[1].reply = Reply::Refused(Refusal { kind: Kind::Runtime, message });
        let why = "PyTorch raises: uc >= #".to_owned();
        assert_eq!(verdict_of(&stream, &raised, &ours), Verdict::Cut { at: 1, why });
        let mut dead = ours.clone();
        dead.answers.pop();
        dead.end = None;
        dead.died = Some("of signal 11".to_owned());
        let why = "PyTorch's process died of signal 11".to_owned();
        assert_eq!(verdict_of(&stream, &dead, &ours), Verdict::Cut { at: 1, why });
    }

    #[test]
    fn a_refused_setting_is_an_answer_like_any_other() {
        let (stream, ours) = played(vec![Command::Configure("x:1".to_owned()), allocate(1, 1)]);
        assert_eq!(verdict_of(&stream, &ours, &ours), Verdict::Same);
        let mut theirs = ours.clone();
        let refusal = Refusal { kind: Kind::Runtime, message: String::new() };
        theirs.answers[0].reply = Reply::Refused(refusal);
        assert!(matches!(verdict_of(&stream, &theirs, &ours), Verdict::Different(_)));
    }

    #[test]
    fn peaks_that_depend_on_an_order_are_masked_and_nothing_else() {
        let mut commands = vec![Command::Events { complete: false }];
        for id in 1..=3 {
            commands.push(allocate(id, 3_000_000));
            commands.push(Command::RecordStream { id, stream: 4096 * id });
        }
        commands.extend((1..=3).map(|id| Command::Free { id }));
        commands.push(Command::Events { complete: true });
        commands.push(allocate(4, 100));
        let (stream, ours) = played(commands);
        let mut theirs = ours.clone();
        let full = &mut theirs.end.as_mut().unwrap().full;
        full.get_mut("inactive_split_bytes.all").unwrap()[1] += 512;
        let comparison = compare(&stream, &theirs, &ours, Rules::default());
        assert_eq!((comparison.leeway.masked, comparison.verdict), (true, Verdict::Same));
        theirs.end.as_mut().unwrap().full.get_mut("inactive_split_bytes.all").unwrap()[0] += 512;
        assert!(matches!(verdict_of(&stream, &theirs, &ours), Verdict::Different(_)));
        let cut = compare(&stream, &ours, &ours, Rules::of(Release::V2_12));
        assert!(matches!(cut.verdict, Verdict::Cut { at: 12, .. }), "{cut:?}");
    }
}
