"""Files with unusual text, from ingestion with a real PostgreSQL to finalization."""

import asyncio
import json
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import NamedTuple

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from temporalio.testing import ActivityEnvironment

from batchwright.activities.finalization.activity import Finalization
from batchwright.activities.ingestion.activity import Ingestion
from batchwright.activities.ingestion.served_models import ServedModels
from batchwright.contracts.temporal_payloads.batch import BatchOrder, BatchPolicy
from batchwright.contracts.temporal_payloads.execution import ModelRun, SliceRequest
from batchwright.contracts.temporal_payloads.finalization import FinalizeRequest
from batchwright.contracts.temporal_payloads.ingestion import IngestResult, ModelShare
from batchwright.contracts.terms import BatchStatus, Endpoint
from batchwright.database.database import Database
from batchwright.database.postgres import open_database
from batchwright.database.records import BatchRow, FileRow
from batchwright.rules.ids import new_batch_id, request_id
from batchwright.rules.input.line_parser import read_request
from batchwright.rules.planning.plan_format import walk_entries
from batchwright.rules.results.dead_letters import FinalAttempt
from batchwright.rules.results.output_lines import result_line
from batchwright.rules.results.segment_format import RecordKind, SegmentRecord, SegmentWriter
from batchwright.rules.stored_objects import object_keys
from batchwright.telemetry.metrics import Metrics
from tests.activities.execution.fixture import ExecutionFixture, status
from tests.activities.ingestion.fresh_batch import FakeModels
from tests.fakes.rates import FixedRates
from tests.fakes.routers import NoRouters
from tests.fakes.settings import load
from tests.fakes.storage import MemoryStorage

pytestmark = pytest.mark.integration
TENANT = "acme"
GOOD = b'{"custom_id":"good","body":{"model":"m","messages":[{"role":"user","content":"hi"}]}}'
_NUMBERS = count()


class Ended(NamedTuple):
    """A batch after finalization, or after a failed validation."""

    row: BatchRow
    output: list[bytes]
    error: list[bytes]
    written: list[str]  # keys of objects below the batch


class Run:
    """One batch from its input to its files. Half of its planned lines succeed, the other half fail."""

    def __init__(
        self, database: Database, answer: bytes = b"{}", execution: ExecutionFixture | None = None
    ) -> None:
        """Create the batch. If `execution` is given, its backend answers the lines."""
        self._database, self._answer, self._execution = database, answer, execution
        self._storage = execution.storage if execution else MemoryStorage()
        self._metrics, self._settings = Metrics(CollectorRegistry()), load()
        now = datetime.now(UTC).replace(microsecond=0)
        self._order = BatchOrder(
            batch_id=new_batch_id(),
            tenant=TENANT,
            input_file_id=f"file-{next(_NUMBERS)}",
            endpoint=Endpoint.CHAT_COMPLETIONS,
            completion_window="24h",
            created_at=now,
            deadline=now + timedelta(days=1),
            policy=BatchPolicy(deduplicate=True),
        )

    async def __call__(self, data: bytes) -> Ended:
        order = self._order
        self._storage.objects["input"] = data
        file = FileRow(
            id=order.input_file_id,
            tenant=TENANT,
            purpose="batch",
            filename="in\x00\ud800.jsonl",
            bytes=len(data),
            created_at=order.created_at,
            storage_key="input",
        )
        await self._database.files.insert(file)
        models = ServedModels(FakeModels(frozenset({"m"})), FixedRates())
        ingestion = Ingestion(self._database, self._storage, models, self._settings, self._metrics)
        ingested = await ActivityEnvironment().run(ingestion.ingest, order)
        if not ingested.failed:
            for share in ingested.models:
                await (self._send(ingested, share) if self._execution else self._settle(ingested, share))
            await self._finalize(ingested)
        return await self._ended()

    async def _send(self, ingested: IngestResult, share: ModelShare) -> None:
        assert self._execution
        run = ModelRun.of(self._order, share, ingested.ingest_prefix)
        for number in range(share.slices):
            await self._execution.run(SliceRequest.of(run, number))

    async def _settle(self, ingested: IngestResult, share: ModelShare) -> None:
        shard = self._storage.objects[object_keys.shard(ingested.ingest_prefix, share.safe_model)]
        plan = walk_entries(self._storage.objects[object_keys.plan(ingested.ingest_prefix, share.safe_model)])
        writer, at = SegmentWriter(), 0
        for number, (offset, length, _) in enumerate(plan):
            custom_id, _ = read_request(shard[at : at + length])
            at += length
            for record in self._result(offset, custom_id, share.model, is_success=number % 2 == 0):
                writer.add(record)
        folder = object_keys.slice_results(TENANT, self._order.batch_id, share.safe_model, 0)
        await self._storage.put(object_keys.segment(folder, 0, 1, "n", 0), writer.finish())

    def _result(self, offset: int, custom_id: str, model: str, *, is_success: bool) -> list[SegmentRecord]:
        id = request_id(self._order.batch_id, offset)
        status = 200 if is_success else 500
        line = result_line(id, custom_id, status_code=status, backend_request_id="r\x00", body=self._answer)
        settled = SegmentRecord(RecordKind.SETTLED, offset, line, is_success)
        if is_success:
            return [settled]
        last = FinalAttempt(
            count=5, failed_at=1.0, custom_id=custom_id, model=model, status=500, error="\x00 \ud800"
        )
        return [
            SegmentRecord(RecordKind.ATTEMPT, offset, last.model_dump_json().encode(), final=True),
            settled,
        ]

    async def _finalize(self, ingested: IngestResult) -> None:
        finalization = Finalization(self._database, self._storage, self._settings, self._metrics, NoRouters())
        request = FinalizeRequest(
            order=self._order,
            ingest_prefix=ingested.ingest_prefix,
            models=ingested.models,
            total=ingested.total,
            status=BatchStatus.COMPLETED,
        )
        await ActivityEnvironment().run(finalization.finalize, request)

    async def _ended(self) -> Ended:
        row = await self._database.batches.get(TENANT, self._order.batch_id)
        assert row is not None
        below = object_keys.batch_root(TENANT, row.order.batch_id)
        written = [key for key in self._storage.objects if key.startswith(below)]
        return Ended(
            row, await self._lines(row.output_file_id), await self._lines(row.error_file_id), written
        )

    async def _lines(self, file_id: str | None) -> list[bytes]:
        file = file_id and await self._database.files.get(TENANT, file_id)
        return self._storage.objects[file.storage_key].splitlines() if file else []


def custom_ids(lines: list[bytes]) -> list[str]:
    return [json.loads(line)["custom_id"] for line in lines]


@pytest.mark.parametrize("name", ["a\\u0000b", "\\u0000", "\\ufffd", "m" * 300, "m" * 5_000_000])
async def test_a_line_whose_model_has_an_impossible_name_fails_alone(database: Database, name: str) -> None:
    bad = GOOD.replace(b'"m"', f'"{name}"'.encode()).replace(b"good", b"bad")
    ended = await Run(database)(bad + b"\n" + GOOD + b"\n")
    assert ended.row.status == BatchStatus.COMPLETED
    assert (custom_ids(ended.output), custom_ids(ended.error)) == (["good"], ["bad"])
    assert json.loads(ended.error[0])["error"]["code"] == "model_not_found"
    assert sorted(model.lines for model in ended.row.models) == [1, 1]
    assert ended.written == []


async def test_text_in_lists_is_replaced_like_any_other(database: Database) -> None:
    url, at = "http://odd\x00", datetime.now(UTC)
    await database.models.replace_models(url, ["a\x00b", "\ud800"], at)
    found = await database.models.served([url])
    assert {(model.name, model.backend_url) for model in found} == {
        ("a\ufffdb", "http://odd\ufffd"),
        ("\ufffd", "http://odd\ufffd"),
    }
    await database.models.replace_models(url, [], at)


_TEXTS = st.sampled_from(
    [
        '"a\\u0000"',
        '"\\ud800"',
        '"a \\udfff\\ud83d\\ude00\\uD800 b"',
        '"\\uffff\\ufdd0"',
        '"\u0000"',
        '"\ufeff\u202e"',
        '"' + "x" * 5_000 + '"',
        "1" * 400,
        "1e999",
        "-0",
        "[" * 300 + "]" * 300,
        '{"a":' * 300 + "1" + "}" * 300,
        "null",
        '""',
        '"m"',
    ]
)
_PARTS = st.fixed_dictionaries(
    {"custom_id": _TEXTS, "model": st.just('"m"') | _TEXTS, "content": _TEXTS, "extra": _TEXTS}
)


def line_of(number: int, parts: dict[str, str], *, is_named: bool) -> bytes:
    custom_id = f'"{number}"' if is_named else parts["custom_id"]
    message = f'{{"role":"user","content":{parts["content"]}}}'
    body = f'{{"model":{parts["model"]},"messages":[{message}],"metadata":{parts["extra"]}}}'
    return f'{{"custom_id":{custom_id},"body":{body}}}'.encode()


def has_json_syntax(line: bytes) -> bool:
    """Return True if the standard library can parse the line as JSON."""
    try:
        json.loads(line)
    except ValueError:
        return False
    return True


async def assert_clear_end(database_url: str, data: bytes) -> None:
    """Check that the batch completes with each line in one of its files, or that its errors name lines."""
    database = await open_database(load(database_url=database_url))
    try:
        ended = await Run(database, answer=b'{"text":"\\u0000"}')(data)
    finally:
        await database.close()
    assert ended.row.status.is_terminal
    if ended.row.status == BatchStatus.FAILED:
        refused = {error.line for error in ended.row.errors if error.code == "invalid_json_line"}
        assert ended.row.errors
        assert refused == {
            number for number, line in enumerate(data.splitlines(), 1) if not has_json_syntax(line)
        }
        return
    assert ended.row.status == BatchStatus.COMPLETED
    assert len(ended.output) + len(ended.error) == ended.row.total == len(data.splitlines())
    assert len(set(custom_ids(ended.output + ended.error))) == ended.row.total
    assert ended.written == []


async def test_files_with_unusual_text_end_with_a_clear_result(database_url: str) -> None:
    @settings(max_examples=40, deadline=None)
    @given(lines=st.lists(_PARTS, min_size=1, max_size=6), is_named=st.booleans())
    def check(lines: list[dict[str, str]], is_named: bool) -> None:
        texts = [line_of(number, parts, is_named=is_named) for number, parts in enumerate(lines)]
        asyncio.run(assert_clear_end(database_url, b"\n".join(texts)))

    await asyncio.to_thread(check)


def echo(text: str) -> httpx.Response:
    return httpx.Response(200, content=json.dumps({"echo": text}))


def half_line(custom_id: bytes, text: bytes) -> bytes:
    message = rb'{"role":"user","content":"%b"}' % text
    return rb'{"custom_id":"%b","body":{"model":"m", "messages":[%b],"user":"\ud800"}}' % (custom_id, message)


async def test_lines_with_half_a_surrogate_pair_are_sent_as_they_are(database: Database) -> None:
    texts = [rb"\ud800", rb"\udc00", rb"\ud800", rb"\uD83D!", rb"fails \udfff", rb"fails \udfff"]
    names = [rb"a\ud800", rb"a\udc00", rb"a\ufffd", rb"\udbff", rb"\ud801", rb"\ud802"]
    lines = [half_line(*one) for one in zip(names, texts, strict=True)]
    execution = ExecutionFixture(lambda text: status(500) if text.startswith("fails") else echo(text))
    ended = await Run(database, execution=execution)(b"\n".join(lines))
    assert ended.row.status == BatchStatus.COMPLETED
    sent = {read_request(line)[1] for line in lines}  # equal lines are sent once
    assert {request.content for request in execution.requests} == sent
    found = [json.loads(line) for line in ended.output]
    decoded = [json.loads(b'"%b"' % text) for text in texts]
    assert [one["response"]["body"]["echo"] for one in found] == decoded[:4]
    assert custom_ids(ended.output + ended.error) == [json.loads(b'"%b"' % name) for name in names]
    for line, name in zip(ended.output + ended.error, names, strict=True):
        assert b'"custom_id":"%b"' % name in line


async def test_a_repeated_custom_id_with_half_a_surrogate_pair_is_refused(database: Database) -> None:
    lines = [half_line(rb"\ud800", b"a"), half_line(rb"\ud801", b"b"), half_line(rb"\uD800", b"c")]
    ended = await Run(database)(b"\n".join(lines))
    assert ended.row.status == BatchStatus.FAILED
    assert [(error.code, error.line) for error in ended.row.errors] == [("duplicate_custom_id", 3)]


@pytest.mark.parametrize(
    "content",
    ["x" * 10_000_000, "\\u0000" * 1_500_000, "\\\\" * 4_000_000],
    ids=["letters", "NULs", "backslashes"],
)
async def test_a_string_of_ten_megabytes_ends_with_a_clear_result(database_url: str, content: str) -> None:
    line = GOOD.replace(b"hi", content.encode())
    await assert_clear_end(database_url, line + b"\n" + GOOD.replace(b"good", b"other"))
