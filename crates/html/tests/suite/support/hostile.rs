//! A recording whose every text tries to become something else.

use tonnage_events::{Action, Address, Frame, StreamId, TraceEntry};
use tonnage_snapshot::{AllocatorSettings, SnapshotFile};

/// Texts that end up in titles, cells, attributes, drawings and sentences.
pub(crate) const TEXTS: [&str; 9] = [
    "<script>document.title='run'</script>",
    "</title></style></script><script>document.title='run'</script>",
    "\"><img src=x onerror=document.title='run'>",
    "' onmouseover='document.title=1' x='",
    "--><svg onload=document.title='run'>",
    "<![CDATA[<script>document.title='run'</script>]]>",
    "\u{202e}gnp.exe\u{2066}\u{200b}\u{2028}\u{2029}\u{85}\u{0}\u{1b}[2J",
    "javascript:document.title='run'//https://example.com/x.png",
    "&lt;script&gt;&#60;script&#62;${document.title='run'}{{7*7}}",
];

const MIB: u64 = 1 << 20;

/// Iterations that ask, free, and keep a little; a request that fails.
pub(crate) fn recording() -> SnapshotFile {
    let mut file = SnapshotFile::default();
    let long = "é<b>".repeat(1 << 18);
    let stacks: Vec<_> = (0..12)
        .map(|number| {
            let frame = |depth: usize| {
                let text = TEXTS[(number + depth) % TEXTS.len()];
                let name = if depth == 3 { long.as_str() } else { text };
                Frame { name: name.into(), filename: text.into(), line: depth as u32 }
            };
            file.stacks.intern((0..90).map(frame).collect())
        })
        .collect();
    let mut entries = Vec::new();
    let mut next = 0x7f00_0000_0000;
    let mut push = |action, address: u64, size, stack: usize| {
        entries.push(TraceEntry {
            action,
            address: Address(address),
            size,
            stream: StreamId::DEFAULT,
            time_us: 1_000_000 + entries.len() as u64,
            stack: Some(stacks[stack % stacks.len()]),
        });
    };
    for _ in 0..6 {
        let mut kept = Vec::new();
        for number in 0..11 {
            let size = (20 + 2 * number as u64) * MIB;
            push(Action::SegmentAlloc, next, size, number);
            push(Action::Alloc, next, size, number);
            kept.push((next, size, number));
            next += size;
        }
        // The last one stays.
        kept.pop();
        for (address, size, number) in kept.into_iter().rev() {
            push(Action::FreeRequested, address, size, number);
            push(Action::FreeCompleted, address, size, number);
            push(Action::SegmentFree, address, size, number);
        }
    }
    push(Action::Oom, 5 * MIB, 64 * MIB, 1);
    file.traces = vec![entries];
    let conf = format!("{}{}", TEXTS.join(","), "x".repeat(1 << 20));
    file.settings = Some(AllocatorSettings { conf, ..AllocatorSettings::default() });
    file
}
