"""Calls (single requests) of a rolling batch: ingestion collects them, and finalization ends those that got
no answer.
"""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import msgspec

from batchwright.contracts.calls import CallStatus, NewCall, RollingBatch
from batchwright.contracts.errors import LineCode
from batchwright.contracts.temporal_payloads.batch import BatchPolicy
from batchwright.contracts.terms import BatchStatus, Endpoint
from batchwright.rules.calls.call_lines import CALLS_PURPOSE
from batchwright.rules.calls.call_results import answers_of, error_of
from batchwright.rules.results.output_lines import result_line
from tests.activities.finalization.finalized import finalized
from tests.activities.ingestion.fresh_batch import TENANT, FreshBatch
from tests.fakes.storage import MemoryStorage, MemoryWriter

GROUP = "group_1"
BODY = b'{"model":"a",\r\n"messages":[]}'


async def collected(*ids: str, body: bytes = BODY, **settings: object) -> FreshBatch:
    """Open a rolling batch (a batch that collects single requests, so-called calls), and store
    calls for it.
    """
    batch = FreshBatch(**settings)  # pyright: ignore[reportArgumentType] - only settings are passed
    policy = BatchPolicy(rolling=RollingBatch(group=GROUP, open_seconds=0))
    batch.order = batch.order.model_copy(update={"policy": policy})
    await batch.database.calls.open(GROUP, batch.order, max_batches=9)
    for id in ids:
        await store(batch, id, body)
    return batch


async def store(batch: FreshBatch, id: str, body: bytes = BODY) -> bool:
    call = NewCall(
        tenant=TENANT,
        id=id,
        group=GROUP,
        endpoint=Endpoint.CHAT_COMPLETIONS,
        model="a",
        request=body,
        notifies=False,
    )
    return await batch.database.calls.insert(call) is not None


async def statuses(batch: FreshBatch, *ids: str) -> list[CallStatus]:
    calls = [await batch.database.calls.get(TENANT, id) for id in ids]
    return [call.status for call in calls if call is not None]


async def test_calls_are_the_lines_of_their_batch() -> None:
    batch = await collected("job_2", "job_1")
    result = await batch.ingest()
    assert (result.total, result.failed) == (2, False)
    [file] = batch.database.rows.files.values()
    assert (file.id, file.purpose) == (batch.order.input_file_id, CALLS_PURPOSE)
    lines = [json.loads(line) for line in batch.storage.objects[file.storage_key].splitlines()]
    url = str(Endpoint.CHAT_COMPLETIONS)
    assert lines == [
        {"custom_id": id, "method": "POST", "url": url, "body": {"model": "a", "messages": []}}
        for id in ("job_1", "job_2")
    ]
    assert not await store(batch, "job_3")
    assert (await batch.ingest()).total == 2


class StuckOnce(MemoryStorage):
    """A storage whose first write waits for the event `go_on`. It sets the event `stuck` when it waits."""

    def __init__(self) -> None:
        super().__init__()
        self.stuck, self.go_on = asyncio.Event(), asyncio.Event()

    @asynccontextmanager
    async def writer(self, key: str) -> AsyncGenerator[MemoryWriter, None]:
        if not self.stuck.is_set():
            self.stuck.set()
            await self.go_on.wait()
        async with super().writer(key) as opened:
            yield opened


async def test_a_late_attempt_does_not_replace_the_input_of_the_attempt_that_planned_the_batch() -> None:
    storage = StuckOnce()
    batch = await collected("job_1", "job_2", storage=storage)
    late = batch.start()
    await storage.stuck.wait()
    assert (await batch.ingest()).total == 2
    [file] = batch.database.rows.files.values()
    await batch.database.calls.cancel(TENANT, "job_1")
    storage.go_on.set()
    await late
    assert list(batch.database.rows.files.values()) == [file]
    assert [key for key in storage.objects if "/files/" in key] == [file.storage_key]


async def test_a_call_that_is_not_valid_fails_alone() -> None:
    batch = await collected("job_1")
    await store(batch, "job_2", b'{"model":"a","messages":[],"stream":true}')
    await store(batch, "job_3", b'{"model":"nobody","messages":[]}')
    result = await batch.ingest()
    assert (result.total, result.unserved, result.failed) == (3, 2, False)


async def test_limits_of_a_whole_input_do_not_fail_calls() -> None:
    batch = await collected("job_1", "job_2", max_lines=1, max_batch_file_bytes=1, strict_models=True)
    await store(batch, "job_3", b'{"model":"nobody","messages":[]}')
    assert (await batch.ingest()).total == 3


async def test_a_batch_whose_calls_were_all_cancelled_is_cancelled() -> None:
    batch = await collected("job_1")
    await batch.database.calls.cancel(TENANT, "job_1")
    result = await batch.ingest()
    assert (result.total, result.failed) == (0, False)
    assert (await batch.row()).status is BatchStatus.CANCELLED
    assert batch.storage.objects == {}


async def test_finalization_answers_the_calls_without_an_answer_and_no_others() -> None:
    batch = await collected("job_1", "job_2")
    await store(batch, "job_3", b'{"model":"nobody","messages":[]}')
    result = await batch.ingest()
    early = result_line("batch_req_" + 32 * "0", "job_1", status_code=200, backend_request_id="", body=b"{}")
    await batch.database.calls.answer(TENANT, answers_of([early]))
    await finalized(batch, result, BatchStatus.EXPIRED, LineCode.BATCH_EXPIRED)
    ids = ("job_1", "job_2", "job_3")
    assert await statuses(batch, *ids) == [CallStatus.COMPLETED, CallStatus.FAILED, CallStatus.FAILED]
    errors: list[str] = []
    for id in ids[1:]:
        call = await batch.database.calls.get(TENANT, id)
        assert call is not None
        errors.append(error_of(call).code)
    assert errors == [LineCode.BATCH_EXPIRED, LineCode.MODEL_NOT_FOUND]
    kept = await batch.database.calls.get(TENANT, "job_1")
    assert kept is not None
    assert kept.answer == early
    assert {file.purpose for file in batch.database.rows.files.values()} == {CALLS_PURPOSE}


async def test_the_calls_of_a_cancelled_batch_are_cancelled() -> None:
    batch = await collected("job_1")
    result = await batch.ingest()
    await finalized(batch, result, BatchStatus.CANCELLED, LineCode.BATCH_CANCELLED)
    assert await statuses(batch, "job_1") == [CallStatus.CANCELLED]


def test_the_answer_of_a_backend_decides_the_status() -> None:
    bodies = {
        b"{}": CallStatus.COMPLETED,
        b"[]": CallStatus.COMPLETED,
        b'{"status":null}': CallStatus.COMPLETED,
        b'{"status":"incomplete"}': CallStatus.INCOMPLETE,
        b'{"status":"failed"}': CallStatus.FAILED,
        b'{"text":"\\ud800"}': CallStatus.COMPLETED,
    }
    lines = [
        result_line("batch_req_" + 32 * "0", "job_1", status_code=200, backend_request_id="", body=body)
        for body in bodies
    ]
    assert [answer.status for answer in answers_of(lines)] == list(bodies.values())
    assert msgspec.json.decode(lines[0])["custom_id"] == "job_1"
