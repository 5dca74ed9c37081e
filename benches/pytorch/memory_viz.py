"""PyTorch's own tools on a snapshot that Tonnage wrote: every plot and table is made, and says what the
snapshot says. Only what needs `torch.cuda._memory_viz` is here; no GPU is touched.

    python3 memory_viz.py snapshot.pickle
"""

import base64
import json
import pickle
import re
import sys

from torch.cuda import _memory_viz as viz


def plotted(html):
    """The snapshot inside a plot: pages carry it as a pickle of their own."""
    files = re.search(r"const local_files = (\[.*\])", html)
    assert files, "the page holds no snapshot"
    return pickle.loads(base64.b64decode(json.loads(files.group(1))[0]["base64"]))


def lines(text):
    """Instead of a flame graph, for which PyTorch downloads a program: what it would be drawn from."""
    return text


def check(path):
    with open(path, "rb") as file:
        snapshot = pickle.load(file)
    events = sum(len(trace) for trace in snapshot["device_traces"])
    assert events > 0, "no history"
    assert plotted(viz.trace_plot(snapshot)) == snapshot
    assert plotted(viz.trace_plot(snapshot, plot_segments=True)) == snapshot
    assert plotted(viz.segment_plot(snapshot)) == snapshot

    total = sum(segment["total_size"] for segment in snapshot["segments"])
    for name in ("memory", "segments"):
        flames = getattr(viz, name)(snapshot, format_flamegraph=lines)
        # Each line ends with its bytes; together they are all that is reserved.
        assert sum(int(line.rsplit(" ", 1)[1]) for line in flames.splitlines()) == total, name
    summary = viz.segsum(snapshot)
    assert f"segments: {len(snapshot['segments'])}\n" in summary, summary
    assert f"total_reserved: {viz.Bytes(total)}\n" in summary, summary
    assert f"{events} entries" in viz.trace(snapshot)
    print(f"{path}: {events} events, {len(snapshot['segments'])} segments: trace_plot, segment_plot, memory, segments, segsum and trace agree")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    for path in sys.argv[1:]:
        check(path)
