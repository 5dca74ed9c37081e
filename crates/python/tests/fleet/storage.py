"""The same fleet from other people's storage servers: the same bytes. Run by `cargo xtask fleet`."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest

from servers import ROOT, command, every_way_failed, free_port, node_program, start
from tonnage import fleet

#: Azurite's well-known account.
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


def same(told: fleet.Fleet, base: str, small: pathlib.Path) -> None:
    """What is said is what is said of the files here, but for where they are."""
    here = fleet.report(small)
    assert told._json.replace(f"{base}/", "") == here._json.replace(f"{small}/", "")
    assert told.read > 40


def test_s3(in_s3: str, small: pathlib.Path) -> None:
    same(fleet.report(in_s3), in_s3, small)
    same(fleet.report(f"{in_s3}/*"), in_s3, small)
    one = command("fleet", "report", "s3://nobucket/x")
    assert one.returncode == 2 and "no such bucket" in one.stderr and one.stderr.count("\n") == 1


def test_no_credentials_is_a_sentence_that_comes_soon() -> None:
    # Nobody answers where a machine of the cloud is told its credentials.
    told = command("fleet", "report", "s3://fleet/runs", AWS_METADATA_ENDPOINT=f"http://127.0.0.1:{free_port()}")
    assert told.returncode == 2 and told.stderr.count("\n") == 1, told.stderr
    assert "AWS_ACCESS_KEY_ID" in told.stderr and "s3://fleet/runs" in told.stderr


def test_an_unreliable_s3_says_the_same(unreliable, in_s3: str, small: pathlib.Path, monkeypatch) -> None:
    address, handler = unreliable
    monkeypatch.setenv("AWS_ENDPOINT_URL", address)
    for _ in range(4):
        same(fleet.report(in_s3), in_s3, small)
    assert every_way_failed(handler), handler.asked


def test_azure(small: pathlib.Path, monkeypatch) -> None:
    from azure.storage.blob import BlobServiceClient

    port = free_port()
    server = start(
        port, node_program("azurite-blob"), "--inMemoryPersistence", "--skipApiVersionCheck", "--silent",
        "--disableTelemetry", "--blobHost", "127.0.0.1", "--blobPort", str(port),
    )
    try:
        text = (
            f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={KEY};"
            f"BlobEndpoint=http://127.0.0.1:{port}/{ACCOUNT};"
        )
        client = BlobServiceClient.from_connection_string(text)
        client.create_container("fleet")
        for path in sorted(small.iterdir()):
            client.get_blob_client("fleet", f"runs/{path.name}").upload_blob(path.read_bytes())
        monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", text)
        base = "az://fleet/runs"
        same(fleet.report(base), base, small)
        same(fleet.report(f"{base}/*"), base, small)
        with pytest.raises(fleet.Error, match="no such container"):
            fleet.report("az://none/runs/")
        monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", text.replace("Eby8", "AAAA"))
        with pytest.raises(fleet.Error, match="access is refused"):
            fleet.report(f"{base}/")
    finally:
        server.terminate()


def test_google(small: pathlib.Path, s3: str, monkeypatch) -> None:
    # Names and objects are asked for by the protocol that Google shares with S3, which its emulators hardly speak.
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", s3)
    base = "gs://fleet/runs"
    same(fleet.report(base), base, small)


def test_a_plain_web_server(small: pathlib.Path, tmp_path: pathlib.Path) -> None:
    port = free_port()
    server = start(port, sys.executable, "-m", "http.server", "--bind", "127.0.0.1", "--directory", str(small), str(port))
    try:
        base = f"http://127.0.0.1:{port}"
        files = tmp_path / "list"
        files.write_text("".join(f"{base}/{path.name}\n" for path in sorted(small.iterdir())))
        same(fleet.report(f"@{files}"), base, small)
    finally:
        server.terminate()


def test_other_programs_open_the_dataset_in_a_line(small: pathlib.Path, tmp_path: pathlib.Path, monkeypatch) -> None:
    out = tmp_path / "ranks"
    told = fleet.report(small, out=out)
    import duckdb
    import polars

    # The guide's own lines, where the dataset is called as it is there.
    monkeypatch.chdir(tmp_path)
    chapter = (ROOT / "GUIDE.md").read_text(encoding="utf-8").split("### Going on, and other tools\n")[1]
    by_stage, parameters = [duckdb.sql(it.split("```")[0]).fetchall() for it in chapter.split("```sql\n")[1:3]]
    lines = chapter.split("```text\n")[1].split("```")[0].splitlines()
    of_polars, of_spark = (next(it for it in lines if it.startswith(name)) for name in ("polars", "spark"))
    frame = eval(of_polars)
    assert len(parameters) == 5
    assert sum(row[1] for row in by_stage) == frame.height == told.files
    assert max(row[2] or 0 for row in by_stage) == frame["reserved"].max() == told.imbalance.most.reserved
    held = polars.read_parquet(f"{out}/held/*.parquet")
    parts = held.filter(polars.col("family") == "purpose").group_by("address").agg(polars.col("bytes").sum())
    live = frame.filter(polars.col("error").is_null()).select("address", "live")
    assert parts.join(live, on="address").filter(polars.col("bytes") != polars.col("live")).height == 0
    # Spark is a program of its own, in Java.
    program = (
        "from pyspark.sql import SparkSession\n"
        "spark = SparkSession.builder.master('local[1]').config('spark.ui.enabled', False).getOrCreate()\n"
        f"frame = {of_spark}\n"
        "print('told', frame.count(), frame.agg({'reserved': 'max'}).first()[0])\n"
    )
    spark = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"}, capture_output=True, text=True,
        timeout=600,
    )
    assert f"told {frame.height} {told.imbalance.most.reserved}" in spark.stdout, spark.stderr[-2000:]
