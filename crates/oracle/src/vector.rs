//! A stream with PyTorch's answers, in the format of `testdata/streams`.

use anyhow::{Context, bail};
use serde_json::{Map, Value, json};

use crate::command::{Command, Stream};
use crate::transcript::{End, FIGURES, Reply, Segment, State, Transcript};

/// Figures that the format knows: all but those that came after it.
const KNOWN_FIGURES: usize = 18;

/// Statistics whose peaks and sums are left out if they depend on an order.
const BY_ORDER: [&str; 2] = ["inactive_split", "inactive_split_bytes"];

/// The lines of the file.
///
/// # Errors
///
/// If a command has no place in the format, or PyTorch refused one.
pub fn lines(
    version: &str,
    title: &str,
    stream: &Stream,
    theirs: &Transcript,
    masked: bool,
) -> anyhow::Result<String> {
    let conf = match &stream.start.environment[..] {
        [] => "",
        [(name, conf)] if name == "PYTORCH_CUDA_ALLOC_CONF" => conf,
        _ => bail!("the format has room for PYTORCH_CUDA_ALLOC_CONF alone"),
    };
    let end = theirs.end.as_ref().context("PyTorch did not get to the end")?;
    let mut lines = Vec::new();
    let mut before = [Some(0); FIGURES.len()];
    for (command, answer) in stream.commands.iter().zip(&theirs.answers) {
        // What both sides pass over.
        if answer.reply == Reply::NoSuchBlock {
            continue;
        }
        let mut line = written(command, &answer.reply)?;
        line.insert("i".to_owned(), json!(lines.len()));
        let named = FIGURES.iter().zip(answer.figures.iter().zip(&before)).take(KNOWN_FIGURES);
        let changed: Map<_, _> = named
            .filter(|(_, (now, before))| now != before)
            .map(|(name, (now, _))| ((*name).to_owned(), json!(now)))
            .collect();
        if !changed.is_empty() {
            line.insert("stats".to_owned(), Value::Object(changed));
        }
        if let Some(found) = &answer.segments {
            line.insert("segments".to_owned(), segments(found));
        }
        before = answer.figures;
        lines.push(Value::Object(line));
    }
    let header = json!({
        "format": "allocator-stream",
        "version": 1,
        "library": version,
        "title": title,
        "conf": conf,
        "device_total": stream.start.total,
        "device_capacity": stream.start.capacity,
        "fraction": null,
        "limit": null,
        "commands": lines.len(),
        "masked": if masked { BY_ORDER.to_vec() } else { Vec::new() },
    });
    let stats: Map<_, _> = FIGURES
        .iter()
        .zip(before)
        .take(KNOWN_FIGURES)
        .map(|(name, value)| ((*name).to_owned(), json!(value)))
        .collect();
    let end = json!({
        "end": true,
        "segments": segments(&end.segments),
        "stats": stats,
        "full_stats": full(end, masked),
    });
    let all = std::iter::once(header).chain(lines).chain([end]);
    Ok(all.map(|line| format!("{line}\n")).collect())
}

fn written(command: &Command, reply: &Reply) -> anyhow::Result<Map<String, Value>> {
    let line = match (command, reply) {
        (Command::Configure(_) | Command::Allocate { .. }, Reply::Refused(_))
        | (_, Reply::Refused(_) | Reply::Absent) => {
            bail!("PyTorch refuses `{command}`: {reply:?}")
        }
        (Command::Allocate { id, size, stream }, Reply::At(address)) => {
            json!({ "op": "alloc", "id": id, "size": size, "stream": stream, "address": address })
        }
        (Command::Allocate { id, size, stream }, _) => {
            json!({ "op": "alloc", "id": id, "size": size, "stream": stream, "address": null })
        }
        (Command::Free { id }, _) => json!({ "op": "free", "id": id }),
        (Command::RecordStream { id, stream }, _) => {
            json!({ "op": "record_stream", "id": id, "stream": stream })
        }
        (Command::EmptyCache { pool: (0, 0) }, _) => json!({ "op": "empty_cache" }),
        (Command::EmptyCache { pool }, _) => json!({ "op": "empty_cache", "pool": pool }),
        (Command::Events { complete }, _) => json!({ "op": "events", "complete": complete }),
        (Command::EventsOf { stream }, _) => {
            json!({ "op": "stream_events_complete", "stream": stream })
        }
        (Command::PoolBegin { pool, only: None }, _) => json!({ "op": "pool_begin", "pool": pool }),
        (Command::PoolEnd { pool }, _) => json!({ "op": "pool_end", "pool": pool }),
        (Command::PoolRelease { pool }, _) => json!({ "op": "pool_release", "pool": pool }),
        (Command::PoolNoSplit { pool }, _) => json!({ "op": "pool_no_split", "pool": pool }),
        (Command::PoolUseOnOom { pool, on }, _) => {
            json!({ "op": "pool_use_on_oom", "pool": pool, "on": on })
        }
        (Command::CaptureBegin { here: true }, _) => json!({ "op": "capture_begin" }),
        (Command::CaptureEnd, _) => json!({ "op": "capture_end" }),
        (Command::Fraction(fraction), _) => {
            json!({ "op": "memory_fraction", "fraction": fraction })
        }
        (Command::Configure(conf), _) => json!({ "op": "configure", "conf": conf }),
        (Command::Snapshot, _) => json!({ "op": "snapshot" }),
        _ => bail!("the format has no place for `{command}`"),
    };
    match line {
        Value::Object(line) => Ok(line),
        _ => bail!("a line is an object"),
    }
}

fn segments(segments: &[Segment]) -> Value {
    let segment = |segment: &Segment| {
        let mut offset = 0;
        let blocks = segment.blocks.iter().map(|block| {
            let (state, requested) = match block.state {
                State::Allocated => ("allocated", Some(block.requested)),
                State::Pending => ("pending", Some(block.requested)),
                State::Free => ("free", None),
            };
            let at = offset;
            offset += block.size;
            json!([at, block.size, state, requested])
        });
        let blocks: Vec<_> = blocks.collect();
        json!({
            "address": segment.address,
            "size": segment.size,
            "pool_kind": if segment.large { "large" } else { "small" },
            "stream": segment.stream,
            "pool": segment.pool,
            "expandable": segment.expandable,
            "blocks": blocks,
        })
    };
    Value::Array(segments.iter().map(segment).collect())
}

/// For each statistic three rows: all, small, large.
fn full(end: &End, masked: bool) -> Value {
    let mut full = Map::new();
    for name in end.full.keys().filter_map(|name| name.strip_suffix(".all")) {
        let rows = ["all", "small_pool", "large_pool"].map(|half| {
            let row = end.full.get(&format!("{name}.{half}"));
            row.map(|row| {
                let hidden = masked && BY_ORDER.contains(&name);
                [0, 1, 2, 3].map(|place| (place == 0 || !hidden).then_some(row[place]))
            })
        });
        if rows.iter().all(Option::is_some) {
            full.insert(name.to_owned(), json!(rows));
        }
    }
    Value::Object(full)
}

#[cfg(test)]
mod tests {
    use tonnage_engine::Release;

    use super::*;
    use crate::{EngineSubject, Subject};

    fn written(text: &str) -> anyhow::Result<String> {
        let stream: Stream = text.parse().unwrap();
        let answers = EngineSubject::new(Release::V2_9).play(&stream).unwrap();
        lines("2.9.1", "a title", &stream, &answers, true)
    }

    #[test]
    fn a_vector_has_a_header_a_line_for_each_command_and_an_end() {
        let text = "stream 100000000 50000000\na 1 1000 0\nf 7\no 0 1 1\np 0.5\na 2 60000000 0\n?\nf 1\nend";
        let vector = written(text).unwrap();
        let lines: Vec<Value> =
            vector.lines().map(|it| serde_json::from_str(it).unwrap()).collect();
        assert_eq!(lines.len(), 8, "one block was never there\n{vector}");
        assert_eq!(
            (&lines[0]["commands"], &lines[0]["device_capacity"]),
            (&json!(6), &json!(50_000_000))
        );
        assert_eq!(lines[1]["address"], json!(0x7000_0000_0000_u64));
        assert_eq!(lines[1]["stats"]["reserved"], json!(2 << 20));
        assert_eq!((&lines[4]["i"], &lines[4]["address"]), (&json!(3), &Value::Null));
        assert_eq!(lines[5]["segments"][0]["blocks"][0], json!([0, 1024, "allocated", 1000]));
        assert!(vector.lines().last().unwrap().starts_with("{\"end\":true"), "{vector}");
        assert_eq!(lines[7]["full_stats"]["inactive_split"][0], json!([0, null, null, null]));
        assert_eq!(lines[7]["full_stats"]["segment"][0], json!([1, 1, 1, 0]));
    }

    #[test]
    fn what_has_no_place_is_refused() {
        for text in ["k", "C 0", "b 0 1 4096", "n 0 1", "env PYTORCH_ALLOC_CONF=\na 1 1 0"] {
            assert!(written(text).is_err(), "{text}");
        }
    }
}
