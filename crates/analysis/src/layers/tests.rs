//! Made-up histories: which call each request is of.

use tonnage_events::{Address, DeviceId, Frame, StreamId, TraceEntry};
use tonnage_snapshot::SnapshotFile;

use super::*;
use crate::lifetimes::Lifetimes;
use crate::module_path::show_module_path;

/// Requests by their calls, outermost first: `a:3` is line 3 of the `forward` in `a.py`; without a file, the program's.
fn shown(requests: &[&str]) -> Vec<String> {
    let mut file = SnapshotFile::default();
    let frame = |name: &str, filename: &str, line: u32| Frame {
        name: name.into(),
        filename: filename.into(),
        line,
    };
    let mut entries = Vec::new();
    for (number, calls) in requests.iter().enumerate() {
        let mut frames = vec![frame("main", "train.py", 1)];
        for call in calls.split_whitespace() {
            let (file, line) = call.split_once(':').unwrap();
            if file.is_empty() {
                frames = vec![frame("main", "train.py", line.parse().unwrap())];
                continue;
            }
            if file == "again" {
                frames.push(frame("backward", "/x/torch/utils/checkpoint.py", 1));
                continue;
            }
            let name = match file {
                "container" => "/x/torch/nn/modules/container.py".to_owned(),
                _ => format!("/x/{file}.py"),
            };
            frames.push(frame("_call_impl", "/x/torch/nn/modules/module.py", 1));
            frames.push(frame("forward", &name, line.parse().unwrap()));
        }
        frames.reverse();
        let stack = Some(file.stacks.intern(frames));
        let (address, stream) = (Address(0x1000 * (number as u64 + 1)), StreamId::DEFAULT);
        let action = Action::Alloc;
        entries.push(TraceEntry { action, address, size: 512, stream, time_us: 0, stack });
    }
    file.traces = vec![entries];
    let device =
        DeviceView { device: DeviceId(0), file: &file, entries: &file.traces[0], segments: vec![] };
    let mut paths = ModulePaths::of(&device);
    let lifetimes = Lifetimes::of(&device);
    let numbers: Vec<u32> = lifetimes.iter().map(|it| paths.number(&it)).collect();
    let text = |number: &u32| show_module_path(paths.path(*number)).unwrap_or_default();
    numbers.iter().map(text).collect()
}

/// One pass of a model with so many blocks, each of two lines.
fn pass(blocks: usize) -> Vec<&'static str> {
    let mut pass = vec!["net:1 embedding:9"];
    for _ in 0..blocks {
        pass.extend(["net:5 block:2 norm:1", "net:5 block:3 linear:7", "net:5 block:3 linear:7"]);
    }
    pass.push("net:8 linear:7");
    pass
}

#[test]
fn blocks_that_a_line_calls_in_a_loop_have_their_index_in_each_pass() {
    let mut requests = pass(3);
    requests.push(":2");
    requests.extend(pass(3));
    let shown = shown(&requests);
    let one = [
        "net:1 > embedding",
        "net:5[0] > block:2 > norm",
        "net:5[0] > block:3 > linear",
        "net:5[0] > block:3 > linear",
        "net:5[1] > block:2 > norm",
        "net:5[1] > block:3 > linear",
        "net:5[1] > block:3 > linear",
        "net:5[2] > block:2 > norm",
        "net:5[2] > block:3 > linear",
        "net:5[2] > block:3 > linear",
        "net:8 > linear",
    ];
    assert_eq!(shown[..11], one);
    assert_eq!(shown[11], "");
    assert_eq!(shown[12..], one);
}

#[test]
fn passes_with_nothing_in_between_begin_anew() {
    let shown = shown(&[pass(2), pass(2)].concat());
    let last = shown.iter().rposition(|it| it.contains('[')).unwrap();
    assert_eq!(shown[last], "net:5[1] > block:3 > linear");
    assert_eq!(shown.iter().filter(|it| it.contains("[0]")).count(), 6);
}

#[test]
fn a_pass_that_was_cut_in_a_block_has_indices() {
    let shown = shown(&pass(4)[..8]);
    assert_eq!(shown[1], "net:5[0] > block:2 > norm");
    assert_eq!(shown[7], "net:5[2] > block:2 > norm");
}

#[test]
fn what_only_one_block_asks_for_is_its_own() {
    let mut requests = pass(3);
    // A table that the first block makes, behind its lines; and one at a line before those, which may be the next one's.
    requests.insert(4, "net:5 block:4 conv:1");
    requests.insert(8, "net:5 block:1 conv:1");
    let shown = shown(&requests);
    assert_eq!(shown[4], "net:5[0] > block:4 > conv");
    assert_eq!(shown[8], "net:5 > block:1 > conv");
    assert_eq!(shown[9], "net:5[2] > block:2 > norm");
}

#[test]
fn containers_inside_layers_have_indices_of_their_own() {
    let mut requests = vec!["net:1 embedding:9"];
    for _ in 0..2 {
        for _ in 0..2 {
            requests.extend([
                "net:5 stage:1 container:250 block:2 norm:1",
                "net:5 stage:1 container:250 block:3 linear:1",
            ]);
        }
        requests.push("net:5 stage:2 conv:1");
    }
    requests.push("net:8 linear:7");
    let shown = shown(&requests);
    assert_eq!(
        shown[3],
        "net:5[0] > stage:1 > container:250[1] > block:2 > norm"
            .replace("container", "nn.container")
    );
    assert_eq!(shown[6], "net:5[1] > stage:1 > nn.container:250[0] > block:2 > norm");
}

#[test]
fn where_it_cannot_be_told_there_is_no_index() {
    let without = |requests: &[&str]| {
        let shown = shown(requests);
        assert!(shown.iter().all(|it| !it.contains('[')), "{shown:#?}");
    };
    // A loop around a module of one line, or in it.
    let wrapped = ["net:5 wrap:1 block:2 norm:1", "net:5 wrap:1 block:3 linear:1"];
    without(&[&["net:1 a:1"][..], &wrapped, &wrapped, &wrapped, &["net:9 a:1"]].concat());
    // Modules of several files, of which some may ask for nothing.
    let mixed = ["net:5 linear:1", "net:5 act:1", "net:5 linear:1", "net:5 act:1"];
    without(&[&["net:1 a:1"][..], &mixed, &["net:9 a:1"]].concat());
    // The same stack in a row: one call, or several.
    without(&["net:1 a:1", "net:5 linear:1", "net:5 linear:1", "net:9 a:1"]);
    // What is computed again on the way back.
    let again = ["again:0 block:2 norm:1", "again:0 block:3 linear:1"];
    without(&[again, again, again].concat());
}

#[test]
fn passes_of_nothing_but_a_loop_are_told_by_their_number() {
    let layer = ["net:5 layer:1 norm:1", "net:6 act:1"];
    let one = [&layer[..], &layer, &layer, &[":3"]].concat();
    let shown_once = shown(&one);
    assert!(shown_once.iter().all(|it| !it.contains('[')), "{shown_once:?}");
    let shown = shown(&[&one[..], &one, &one].concat());
    assert_eq!(shown[4], "net:5[2] > layer:1 > norm");
    assert_eq!(shown[11], "net:5[2] > layer:1 > norm");
}
