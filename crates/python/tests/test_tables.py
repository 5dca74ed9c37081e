"""Tables, through Arrow's own interface."""

from __future__ import annotations

import pyarrow
import pyarrow.compute

import tonnage
from conftest import TRACES, recording


def test_a_table_has_the_columns_and_rows_of_the_snapshot(snapshot):
    table = snapshot.events(levels=True)
    events = pyarrow.table(table)
    assert events.num_rows == len(table) == sum(it.events for it in snapshot.devices)
    assert events.column_names == table.columns == list(table.describe())
    assert pyarrow.compute.max(events["allocated"]).as_py() == snapshot.peak.allocated
    assert pyarrow.compute.max(events["reserved"]).as_py() == snapshot.peak.reserved
    assert set(events["action"].to_pylist()) >= {"alloc", "segment_alloc", "free_completed"}
    assert any("workloads.py" in (site or "") for site in events["call_site"].to_pylist())
    events.validate(full=True)


def test_levels_are_there_when_they_are_asked_for(snapshot):
    events, with_levels = snapshot.events(), snapshot.events(levels=True)
    levels = ["requested", "allocated", "active", "reserved"]
    assert [name for name in with_levels.columns if name not in levels] == events.columns
    assert not set(levels) & set(events.columns)
    assert with_levels.to_arrow().drop_columns(levels) == events.to_arrow()


def test_tables_and_verbs_may_be_asked_in_any_order():
    def asked(*questions: str) -> list:
        snapshot = tonnage.read(recording("mlp_seed.default.stacks"))
        answers = {
            "events": lambda: snapshot.events().to_arrow(),
            "levels": lambda: snapshot.events(levels=True).to_arrow(),
            "peak": lambda: snapshot.peak.to_dict(),
            "report": lambda: snapshot.report().to_dict(),
        }
        return [(question, answers[question]()) for question in questions]

    first = dict(asked("peak", "report", "levels", "events"))
    for order in [("events", "peak", "events", "report"), ("events", "levels", "events"), ("report", "events", "peak")]:
        for question, answer in asked(*order):
            assert answer == first[question], (order, question)


def test_threads_may_ask_one_snapshot_at_once():
    import threading

    snapshot = tonnage.read(recording("gpt2_varlen.default"))
    answers: list = []
    questions = [lambda: len(snapshot.events()), lambda: snapshot.peak.allocated, lambda: len(snapshot.allocations())] * 4
    threads = [threading.Thread(target=lambda ask=ask: answers.append(ask())) for ask in questions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 12 and len(set(answers)) == 3


def test_tables_are_those_of_the_exported_files(snapshot, python, tmp_path):
    import csv

    for name in ["events", "allocations", "segments", "blocks"]:
        out = tmp_path / f"{name}.csv"
        path = str(recording("mlp_seed.default.stacks"))
        python("-m", "tonnage", "export", "--format", "csv", "--table", name, "--output", str(out), path)
        with out.open(newline="") as file:
            rows = list(csv.DictReader(file))
        table = pyarrow.table(snapshot.events(levels=True) if name == "events" else getattr(snapshot, name)())
        table.validate(full=True)
        assert table.num_rows == len(rows) > 0
        word = {None: "", True: "true", False: "false"}
        for column in table.column_names:
            values = [word.get(it, str(it)) if it is None or isinstance(it, bool) else str(it)
                      for it in table[column].to_pylist()]
            assert values == [row[column] for row in rows], (name, column)


def test_columns_are_shared_and_not_copied(snapshot):
    events = snapshot.events()

    def address() -> int:
        return pyarrow.table(events)["size"].chunk(0).buffers()[1].address

    assert address() == address()


def test_columns_outlive_the_snapshot():
    import gc

    table = pyarrow.table(tonnage.read(recording("mlp_seed.tight")).events())
    gc.collect()
    table.validate(full=True)
    assert table.num_rows > 0


def test_one_dictionary_serves_all_batches():
    path = max(TRACES.glob("*.zst"), key=lambda it: it.stat().st_size)
    table = pyarrow.table(tonnage.read(path).events())
    for name in ["action", "call_site", "stack"]:
        chunks = table[name].chunks
        assert all(chunk.dictionary.equals(chunks[0].dictionary) for chunk in chunks)


def test_an_empty_table_has_its_columns(tmp_path):
    empty = tonnage.read({"segments": [], "device_traces": []})
    table = pyarrow.table(empty.events())
    assert table.num_rows == 0 and table.column_names == empty.events().columns
    assert pyarrow.schema(empty.events()) == table.schema
