"""Pictures of memory over time."""

from __future__ import annotations

import xml.etree.ElementTree as xml

import pytest

import tonnage
from conftest import recording

SVG = "{http://www.w3.org/2000/svg}"


def texts(svg: str) -> list[str]:
    return [it.text or "" for it in xml.fromstring(svg.encode()).iter(f"{SVG}text")]


def test_a_picture_has_its_groups_lines_and_figures(snapshot):
    plot = snapshot.plot(limit="220MiB", title="a <title> & more")
    words = texts(plot.svg)
    assert {"parameters", "gradients", "optimizer", "reserved", "limit", "iterations"} <= set(words)
    assert "a <title> & more" in words
    root = xml.fromstring(plot.svg.encode())
    said = root.find(f"{SVG}title")
    assert said is not None and said.text == (
        "Memory over 459 entries: at most 186.47 MiB allocated, 208.00 MiB reserved"
    )
    assert not list(root.iter(f"{SVG}script"))
    # One area for each purpose that is there, and the line of what is reserved.
    assert len(list(root.iter(f"{SVG}path"))) == 1 + len({"parameters", "gradients", "optimizer", "activations",
                                                          "temporary", "workspace"} & set(words))


def test_what_is_drawn_can_be_had(snapshot):
    plot = snapshot.plot()
    assert {"parameters", "gradients", "optimizer"} <= set(plot.groups) <= set(texts(plot.svg))
    assert max(sum(column) for _, column, _ in plot.columns) == snapshot.peak.allocated
    assert max(reserved for _, _, reserved in plot.columns) == snapshot.peak.reserved
    assert [event for event, _, _ in plot.columns] == sorted(event for event, _, _ in plot.columns)
    assert all(len(column) == len(plot.groups) for _, column, _ in plot.columns)


def test_what_the_program_was_doing_stands_below(snapshot):
    plot = snapshot.plot(limit="220MiB")
    assert {"forward", "backward", "optimizer"} <= set(texts(plot.svg))
    assert len(plot.phases) == len(plot.columns) and plot.limit == 220 << 20
    order = [phase for at, phase in enumerate(plot.phases) if at == 0 or phase != plot.phases[at - 1]]
    step = ["forward", "backward", "optimizer"]
    steps = sum(order[at:at + 3] == step for at in range(len(order)))
    assert steps == len(plot.iterations) >= 3, order
    # One shade for each stretch that is known, and one for each name.
    shades = [it for it in xml.fromstring(plot.svg.encode()).iter(f"{SVG}rect") if it.get("fill-opacity")]
    assert len(shades) == len([phase for phase in order if phase]) + len(step)
    # Where only marks tell, only they are drawn.
    marked = tonnage.read(recording("mlp_seed.default")).plot()
    assert set(marked.phases) == {None, "optimizer"}
    assert "optimizer" in texts(marked.svg) and "backward" not in texts(marked.svg)


def test_the_legend_names_everything_in_as_many_rows_as_it_takes():
    wide = tonnage.read(recording("gpt2_varlen.default.stacks"))
    plot = wide.plot(by="module", limit="12GiB")
    assert len(plot.groups) > 8
    root = xml.fromstring(plot.svg.encode())
    words = [it for it in root.iter(f"{SVG}text")]
    signs = {it.text for it in words if float(it.get("y")) < 240}
    assert {"reserved", "limit", "iterations", "(no module)"} <= signs
    assert len(signs & set(plot.groups)) + sum("…" in it for it in signs) >= len(plot.groups)
    # Rows lie below each other, and above the drawing.
    rows = sorted({float(it.get("y")) for it in words if it.text in signs})
    assert len(rows) > 3 and all(below - above >= 16 for above, below in zip(rows, rows[1:]))
    top = min(float(it.get("y1")) for it in root.iter(f"{SVG}line") if it.get("stroke-opacity") == "0.15")
    legend = max(float(it.get("y")) for it in words if it.text in {"reserved", "iterations"})
    assert legend < top
    # Where there is no room, the rest is counted, and the lines are named.
    small = texts(wide.plot(by="module", limit="12GiB", width=320, height=200).svg)
    assert {"reserved", "limit", "iterations"} <= set(small) and any(it.startswith("and ") for it in small), small


@pytest.mark.parametrize("width", [320, 480, 960, 2400])
def test_words_of_any_width_run_into_nothing(width):
    title = "a title that is much longer than a narrow picture has room for " * 2
    svg = tonnage.read(recording("gpt2_varlen.default.stacks")).plot(title=title, width=width, height=300).svg
    words = list(xml.fromstring(svg.encode()).iter(f"{SVG}text"))
    # The axis across: by its row, the lowest but one.
    row = sorted({float(it.get("y")) for it in words})[-2]
    spans = []
    for it in words:
        if float(it.get("y")) != row:
            continue
        x, wide = float(it.get("x")), 7 * len(it.text)
        start = {"middle": x - wide / 2, "end": x - wide}[it.get("text-anchor")]
        spans.append((start, start + wide))
    assert len(spans) == (3 if width == 320 else 5)
    assert all(left[1] < right[0] for left, right in zip(spans, spans[1:])), spans
    (above,) = [it for it in words if it.get("font-weight") == "bold"]
    assert float(above.get("x")) + 8.5 * len(above.text) < width and above.text.startswith("a title")


def test_a_picture_by_module_names_the_modules(snapshot):
    assert any("nn.linear" in it for it in texts(snapshot.plot(by="module", width=1600).svg))


def test_pictures_are_saved_as_their_ending_says(snapshot, tmp_path, python):
    plot = snapshot.plot(width=400, height=300, dark=True)
    plot.save(tmp_path / "a.svg")
    plot.save(tmp_path / "a.png")
    with pytest.raises(tonnage.ExistingFileError, match="force=True"):
        plot.save(tmp_path / "a.png")
    plot.save(tmp_path / "a.png", force=True)
    assert (tmp_path / "a.svg").read_text() == plot.svg
    data = (tmp_path / "a.png").read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    assert (int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")) == (400, 300)
    with pytest.raises(tonnage.UsageError, match="`.svg` or `.png`"):
        plot.save(tmp_path / "a.gif")
    with pytest.raises(tonnage.FileError):
        plot.save(tmp_path / "nowhere" / "a.svg")
    done = python("-m", "tonnage", "plot", str(recording("mlp_seed.default.stacks")), "-o", "b.svg", "--width", "400",
                  "--height", "300", "--dark")
    assert done.stdout == "wrote b.svg\n", done.stderr
    assert (tmp_path / "b.svg").read_text() == plot.svg


def test_wrong_pictures_are_refused(snapshot):
    for options, words in [({"by": "nonsense"}, "purpose"), ({"width": 3}, "320"), ({"ordinal": 7}, "no such device")]:
        with pytest.raises(tonnage.Error, match=words):
            snapshot.plot(**options)
    with pytest.raises(tonnage.Error, match="no memory history"):
        tonnage.read({"segments": [{"address": 1, "total_size": 2, "blocks": []}], "device_traces": [[]]}).plot()


def test_notebooks_show_the_picture(snapshot):
    assert snapshot.plot()._repr_svg_().startswith("<svg")
    assert repr(snapshot.plot()).startswith("<tonnage plot of ")
    assert repr(snapshot).endswith("1 device, 459 events>")
