"""With what is heavy to install: run by `cargo xtask python-full`."""

from __future__ import annotations

import http.server
import pathlib
import shutil
import subprocess
import threading

import pytest

import stand_in
from conftest import recording

pytestmark = pytest.mark.full


def test_polars_takes_the_tables_as_they_are(snapshot):
    import polars

    frame = polars.DataFrame(snapshot.events(levels=True))
    assert frame.height == polars.DataFrame(snapshot.events()).height == 459
    assert frame["reserved"].max() == snapshot.peak.reserved
    sites = frame.group_by("call_site").agg(polars.col("size").sum())
    assert sites.height > 3
    assert snapshot.allocations().to_polars().filter("live_at_peak")["size"].sum() == snapshot.peak.allocated


def test_pandas_takes_the_tables(snapshot):
    import pandas

    frame = pandas.DataFrame.from_arrow(snapshot.allocations())
    assert frame[frame.live_at_peak]["size"].sum() == snapshot.peak.allocated
    assert (snapshot.events().to_pandas()["action"] == "alloc").sum() > 100


def test_duckdb_reads_the_tables(snapshot):
    import duckdb

    allocations = snapshot.allocations().to_arrow()
    found = duckdb.sql(
        "SELECT call_site, sum(size) AS held FROM allocations WHERE live_at_peak GROUP BY 1 ORDER BY 2 DESC"
    ).fetchall()
    assert sum(held for _, held in found) == snapshot.peak.allocated
    assert any(site and "workloads.py:12" in site for site, _ in found)
    del allocations


def test_pictures_are_objects_of_drawing_libraries_when_asked(snapshot, tmp_path):
    import matplotlib

    matplotlib.use("agg")
    plot = snapshot.plot(limit="220MiB")
    axes = plot.to_matplotlib()
    assert axes.get_ylabel() == "bytes"
    (reserved,) = [it for it in axes.get_lines() if it.get_label() == "reserved"]
    assert max(reserved.get_ydata()) == snapshot.peak.reserved
    assert [it.get_label() for it in axes.collections] == plot.groups
    assert {"limit", "forward", "backward", "optimizer"} <= {it.get_text() for it in axes.get_legend().get_texts()}
    axes.figure.savefig(tmp_path / "mine.png")
    area, line, limit, iterations, phases = plot.to_altair().to_dict()["layer"]
    assert limit["data"]["values"] == [{"limit": 220 << 20}]
    assert [it["event"] for it in iterations["data"]["values"]] == plot.iterations
    assert {it["phase"] for it in phases["data"]["values"]} == {"forward", "backward", "optimizer"}
    assert (area["mark"]["type"], line["mark"]["type"]) == ("area", "line")
    levels: dict[int, int] = {}
    for it in area["data"]["values"]:
        levels[it["event"]] = levels.get(it["event"], 0) + it["bytes"]
    assert max(levels.values()) == snapshot.peak.allocated
    assert max(it["reserved"] for it in line["data"]["values"]) == snapshot.peak.reserved


@pytest.fixture
def notebook(tmp_path, plain, monkeypatch):
    """Runs cells in a real kernel, and gives what each of them shows; the kernel goes on until the test has ended."""
    import nbclient
    import nbformat

    stand_in.install(tmp_path)
    monkeypatch.setenv("STAND_IN_SNAPSHOT", str(plain("mlp_seed.default.stacks")))
    clients = []

    def run(*cells: str):
        book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
        client = nbclient.NotebookClient(book, timeout=600, kernel_name="python3")
        client.create_kernel_manager()
        client.start_new_kernel()
        client.start_new_kernel_client()
        clients.append(client)
        for place, cell in enumerate(book.cells):
            client.execute_cell(cell, place)
        return book

    yield run
    for client in clients:
        client._cleanup_kernel()


def shown(cell) -> dict:
    data = [it["data"] for it in cell.outputs if "data" in it]
    assert data, cell.outputs
    return data[-1]


def test_a_notebook_shows_reports_pictures_and_the_page(notebook, tmp_path):
    book = notebook(
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n%load_ext tonnage",
        "%%tonnage 1GiB\nimport torch\ntorch.empty(1, device='cuda')\nx = 5",
        f"import tonnage\nsnapshot = tonnage.read({str(recording('mlp_seed.default.stacks'))!r})\nassert x == 5\nsnapshot",
        "snapshot.plot()",
        "page = snapshot.view()\npage",
    )
    assert "srcdoc" in shown(book.cells[1])["text/html"]
    assert "186.47 MiB" in shown(book.cells[2])["text/html"]
    assert shown(book.cells[3])["image/svg+xml"].startswith("<svg")
    frame = shown(book.cells[4])["text/html"]
    assert "http://127.0.0.1:" in frame
    assert_a_browser_shows(frame, tmp_path)


def test_a_page_that_may_not_be_in_a_frame_is_noticed(tmp_path):
    """The check itself: a browser says what it refuses."""
    with pytest.raises(AssertionError, match="frame-ancestors"):
        assert_a_browser_shows("<iframe src='/refused'></iframe>", tmp_path)


def assert_a_browser_shows(html: str, folder: pathlib.Path) -> None:
    """Opens it as a notebook's page would be, on another port of this machine, and looks at what the browser says."""

    class Notebook(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            if self.path == "/refused":
                self.send_header("Content-Security-Policy", "frame-ancestors 'none'")
            self.end_headers()
            self.wfile.write(f"<!doctype html><body>{html}</body>".encode())

        def log_message(self, *words: object) -> None:
            pass

    browser = next(filter(None, map(shutil.which, ["chromium-headless-shell", "chromium"])))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Notebook) as server:
        threading.Thread(target=server.serve_forever).start()
        try:
            done = subprocess.run(
                [browser, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--window-size=1200,900",
                 f"--user-data-dir={folder / 'browser'}", f"--screenshot={folder / 'shown.png'}", "--timeout=20000",
                 f"http://localhost:{server.server_port}/"],
                capture_output=True, text=True, timeout=600,
            )
        finally:
            server.shutdown()
    assert (folder / "shown.png").stat().st_size > 0
    refused = [it for it in done.stderr.splitlines() if "CONSOLE" in it and ("refused" in it.lower() or "framing" in it.lower())]
    assert not refused, "\n".join(refused)
