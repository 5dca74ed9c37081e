"""With what is heavy to install: run by `cargo xtask python-full`."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.full


def test_polars_takes_the_tables_as_they_are(snapshot):
    import polars

    frame = polars.DataFrame(snapshot.events())
    assert frame.height == 459
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
