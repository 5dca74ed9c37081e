"""Tables, through Arrow's own interface."""

from __future__ import annotations

import pyarrow
import pyarrow.compute

import tonnage
from conftest import TRACES, recording


def test_a_table_has_the_columns_and_rows_of_the_snapshot(snapshot):
    events = pyarrow.table(snapshot.events())
    assert events.num_rows == len(snapshot.events()) == sum(it.events for it in snapshot.devices)
    assert events.column_names == snapshot.events().columns == list(snapshot.events().describe())
    assert pyarrow.compute.max(events["allocated"]).as_py() == snapshot.peak.allocated
    assert pyarrow.compute.max(events["reserved"]).as_py() == snapshot.peak.reserved
    assert set(events["action"].to_pylist()) >= {"alloc", "segment_alloc", "free_completed"}
    assert any("workloads.py" in (site or "") for site in events["call_site"].to_pylist())
    events.validate(full=True)


def test_tables_are_those_of_the_exported_files(snapshot, python, tmp_path):
    import csv

    for name in ["events", "allocations", "segments", "blocks"]:
        out = tmp_path / f"{name}.csv"
        path = str(recording("mlp_seed.default.stacks"))
        python("-m", "tonnage", "export", "--format", "csv", "--table", name, "--output", str(out), path)
        with out.open(newline="") as file:
            rows = list(csv.DictReader(file))
        table = pyarrow.table(getattr(snapshot, name)())
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
