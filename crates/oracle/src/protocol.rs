//! The driver's answers, read. How commands are written is in [`command`](crate::command).

use std::io::BufRead;

use anyhow::{Context, bail};
use tonnage_events::Action;

use crate::command::{Command, Stream};
use crate::transcript::{
    Answer, Block, End, Entry, FIGURES, Figures, Kind, Refusal, Reply, Segment, Settings, State,
    Transcript,
};

/// Reads the answers to one stream.
pub(crate) fn read(input: &mut impl BufRead, stream: &Stream) -> anyhow::Result<Transcript> {
    Reader { input, line: String::new() }.transcript(stream)
}

struct Reader<'a, R> {
    input: &'a mut R,
    line: String,
}

impl<R: BufRead> Reader<'_, R> {
    /// The next line, without its end.
    fn next(&mut self) -> anyhow::Result<&str> {
        self.line.clear();
        if self.input.read_line(&mut self.line)? == 0 {
            bail!("the driver ended before its answers did");
        }
        Ok(self.line.trim_end_matches('\n'))
    }

    fn transcript(mut self, stream: &Stream) -> anyhow::Result<Transcript> {
        let mut transcript = Transcript {
            start: Ok(Settings::default()),
            answers: Vec::new(),
            end: None,
            died: None,
            lost_pool_at: None,
        };
        match self.next()? {
            "ok" => {}
            text if text.starts_with('!') => {
                transcript.start = Err(refusal(text)?);
                let last = self.next()?;
                anyhow::ensure!(last == "end", "after a refused start came `{last}`");
                return Ok(transcript);
            }
            text => {
                let died = died(text)?;
                return self.after_death(transcript, died);
            }
        }
        transcript.start = Ok(settings(self.next()?)?);
        let mut figures: Figures = [Some(0); FIGURES.len()];
        self.next()?;
        for command in &stream.commands {
            if self.line.starts_with("died ") {
                let died = died(self.line.trim_end())?;
                return self.after_death(transcript, died);
            }
            let answer = self.answer(command, &mut figures)?;
            transcript.answers.push(answer);
        }
        if self.line.starts_with("died ") {
            let died = died(self.line.trim_end())?;
            return self.after_death(transcript, died);
        }
        transcript.end = self.end()?;
        if self.line.starts_with("died ") {
            let died = died(self.line.trim_end())?;
            transcript.end = None;
            return self.after_death(transcript, died);
        }
        Ok(transcript)
    }

    fn after_death(
        mut self,
        mut transcript: Transcript,
        died: String,
    ) -> anyhow::Result<Transcript> {
        transcript.died = Some(died);
        let last = self.next()?;
        anyhow::ensure!(last == "end", "after a death came `{last}`");
        Ok(transcript)
    }

    /// The answer that begins with the line just read; the line after it has been read then.
    fn answer(&mut self, command: &Command, figures: &mut Figures) -> anyhow::Result<Answer> {
        let (text, changes) = self
            .line
            .trim_end_matches('\n')
            .rsplit_once('\t')
            .with_context(|| format!("no answer to `{command}`: `{}`", self.line))?;
        let reply = reply(text)?;
        for change in changes.split_ascii_whitespace() {
            let (place, value) = change.split_once('=').context("a change is no pair")?;
            let place: usize = place.parse()?;
            *figures.get_mut(place).context("a figure without a name")? = Some(value.parse()?);
        }
        let mut answer = Answer { reply, figures: *figures, settings: None, segments: None };
        let mut line = self.next()?;
        if matches!(command, Command::Configure(_)) && line.starts_with("conf ") {
            answer.settings = Some(settings(line)?);
            line = self.next()?;
        }
        if matches!(command, Command::Snapshot) {
            let mut segments = Vec::new();
            while line.starts_with("seg ") {
                segments.push(segment(line)?);
                line = self.next()?;
            }
            answer.segments = Some(segments);
        }
        Ok(answer)
    }

    /// The state at the end, from the line just read; none if the process died on the way.
    fn end(&mut self) -> anyhow::Result<Option<End>> {
        let mut end = End::default();
        loop {
            let line = self.line.trim_end_matches('\n');
            if line == "end" || line.starts_with("died ") {
                return Ok(Some(end));
            }
            if let Some(rest) = line.strip_prefix("full ") {
                let mut words = rest.split_ascii_whitespace();
                let name = words.next().context("a statistic without a name")?.to_owned();
                let values: Vec<i64> = words.map(str::parse).collect::<Result<_, _>>()?;
                let values =
                    values.try_into().map_err(|_| anyhow::anyhow!("{name} has four values"))?;
                end.full.insert(name, values);
            } else if let Some(rest) = line.strip_prefix("max_split ") {
                end.max_split = rest.parse()?;
            } else if line.starts_with("seg ") {
                end.segments.push(segment(line)?);
            } else if let Some(rest) = line.strip_prefix("entry ") {
                end.history.push(entry(rest).with_context(|| format!("`{line}` is no entry"))?);
            } else {
                bail!("`{line}` does not belong to the end of a stream");
            }
            self.next()?;
        }
    }
}

fn died(text: &str) -> anyhow::Result<String> {
    let how = text.strip_prefix("died ").with_context(|| format!("`{text}` is no answer"))?;
    Ok(how.to_owned())
}

fn reply(text: &str) -> anyhow::Result<Reply> {
    Ok(match text {
        "" => Reply::Done,
        "oom" => Reply::OutOfMemory,
        "-" => Reply::NoSuchBlock,
        "absent" => Reply::Absent,
        _ if text.starts_with('!') => Reply::Refused(refusal(text)?),
        _ => {
            let address = text.strip_prefix('@').and_then(|text| text.parse().ok());
            Reply::At(address.with_context(|| format!("`{text}` is no answer"))?)
        }
    })
}

fn refusal(text: &str) -> anyhow::Result<Refusal> {
    let (kind, message) = text.split_once(' ').unwrap_or((text, ""));
    let kind = match kind {
        "!value" => Kind::Value,
        "!index" => Kind::Index,
        "!runtime" => Kind::Runtime,
        _ => bail!("`{text}` is no refusal"),
    };
    Ok(Refusal { kind, message: message.to_owned() })
}

fn settings(line: &str) -> anyhow::Result<Settings> {
    let (pairs, last) = line.split_once("\tlast=").context("settings without the last string")?;
    let mut settings = Settings::default();
    for pair in pairs.split_ascii_whitespace().skip(1) {
        let (name, value) = pair.split_once('=').context("a setting is no pair")?;
        settings.put(name, value);
    }
    settings.put_last(last);
    Ok(settings)
}

fn segment(line: &str) -> anyhow::Result<Segment> {
    let mut words = line.split_ascii_whitespace().skip(1);
    let mut number = || -> anyhow::Result<u64> {
        Ok(words.next().context("a segment has ten numbers")?.parse()?)
    };
    let mut segment = Segment {
        address: number()?,
        size: number()?,
        large: number()? != 0,
        stream: number()?,
        pool: (number()?, number()?),
        expandable: number()? != 0,
        sums: [number()?, number()?, number()?],
        blocks: Vec::new(),
    };
    for word in words {
        segment.blocks.push(block(word).with_context(|| format!("`{word}` is no block"))?);
    }
    Ok(segment)
}

/// An entry of the history: the place of its action in PyTorch's list, address, size, stream, pool.
fn entry(text: &str) -> Option<Entry> {
    let numbers = text.split_ascii_whitespace().map(str::parse);
    let numbers: Vec<u64> = numbers.collect::<Result<_, _>>().ok()?;
    let &[action, address, size, stream, first, second] = &numbers[..] else { return None };
    let action = *Action::ALL.get(usize::try_from(action).ok()?)?;
    Some(Entry { action, address, size, stream, pool: (first, second) })
}

/// A block: size, a letter for its state, requested size.
fn block(word: &str) -> Option<Block> {
    let place = word.find(['a', 'p', 'f'])?;
    let (size, rest) = (word[..place].parse().ok()?, &word[place + 1..]);
    let requested = rest.parse().ok()?;
    Some(match &word[place..=place] {
        "a" => Block { size, state: State::Allocated, requested },
        "p" => Block { size, state: State::Pending, requested },
        // A number left over from whoever had the block before.
        _ => Block { size, state: State::Free, requested: 0 },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::Start;

    fn stream(commands: Vec<Command>) -> Stream {
        Stream { start: Start::plain(), commands }
    }

    fn allocate(id: u64) -> Command {
        Command::Allocate { id, size: 1000, stream: 0 }
    }

    #[test]
    fn answers_are_read() {
        let text = "ok\n\
            conf max_split_size=5 roundup_power2_divisions=0,1,\tlast=a:1\n\
            @4096\t0=2097152 1=1024 \n\
            oom\t12=1 \n\
            \t\n\
            seg 4096 2097152 1 8 0 5 1 1024 1024 1000 1024a1000 512p7 2095616f99\n\
            !value no such key\t\n\
            conf max_split_size=6\tlast=\n\
            full segment.all 1 2 3 4\n\
            max_split -1\n\
            entry 0 4096 1000 8 0 0\n\
            entry 8 77 1024 0 0 5\n\
            end\n";
        let commands =
            vec![allocate(1), allocate(2), Command::Snapshot, Command::Configure("x".to_owned())];
        let transcript = read(&mut text.as_bytes(), &stream(commands)).unwrap();
        assert_eq!(transcript.start.unwrap().0["last"], "a:1");
        let [first, second, third, fourth] = &transcript.answers[..] else { panic!() };
        assert_eq!((&first.reply, first.figures[1]), (&Reply::At(4096), Some(1024)));
        assert_eq!((&second.reply, second.figures[1]), (&Reply::OutOfMemory, Some(1024)));
        assert_eq!(second.figures[12], Some(1));
        let segment = &third.segments.as_ref().unwrap()[0];
        assert_eq!((segment.pool, segment.sums), ((0, 5), [1024, 1024, 1000]));
        assert_eq!(segment.blocks[2], Block { size: 2_095_616, state: State::Free, requested: 0 });
        assert!(matches!(&fourth.reply, Reply::Refused(refusal) if refusal.kind == Kind::Value));
        assert_eq!(fourth.settings.as_ref().unwrap().0["max_split_size"], "6");
        let end = transcript.end.unwrap();
        assert_eq!(end.full["segment.all"], [1, 2, 3, 4]);
        let entry =
            Entry { action: Action::Alloc, address: 4096, size: 1000, stream: 8, pool: (0, 0) };
        let failed =
            Entry { action: Action::Oom, address: 77, size: 1024, stream: 0, pool: (0, 5) };
        assert_eq!(end.history, [entry, failed]);
    }

    #[test]
    fn what_was_answered_before_a_death_counts() {
        let text = "ok\nconf a=1\tlast=\n@4096\t\ndied of signal 11\nend\n";
        let transcript =
            read(&mut text.as_bytes(), &stream(vec![allocate(1), allocate(2)])).unwrap();
        assert_eq!(transcript.answers.len(), 1);
        assert_eq!(transcript.died.as_deref(), Some("of signal 11"));
        assert_eq!(transcript.end, None);
    }

    #[test]
    fn answers_that_make_no_sense_are_errors() {
        for text in [
            "",
            "ok\n",
            "what\nend\n",
            "ok\nconf a=1\tlast=\nend\n",
            "ok\nconf a=1\tlast=\n@x\t\nend\n",
            "ok\nconf a=1\tlast=\n@1\t\nentry 0 1 2\nend\n",
            "ok\nconf a=1\tlast=\n@1\t\nentry 99 1 2 3 0 0\nend\n",
        ] {
            assert!(read(&mut text.as_bytes(), &stream(vec![allocate(1)])).is_err(), "{text}");
        }
    }
}
