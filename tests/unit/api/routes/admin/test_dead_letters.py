"""/admin/dlq: list dead letters (lines that failed for good), retry them once, and delete them."""

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import httpx
import pytest

from batchwright.contracts.api_objects.openai import BatchObject
from batchwright.contracts.api_objects.operator import DeadLetterPage, DeadLetterRetryPage
from batchwright.contracts.temporal_payloads.batch import RerunKind, SourceBatch
from batchwright.contracts.terms import BatchStatus, Usage
from batchwright.database.records import BatchOutcome
from batchwright.rules.ids import new_batch_id, request_id
from batchwright.rules.input.line_splitter import LineSplitter
from batchwright.rules.results.dead_letters import DeadLetter
from tests.fakes.api import ApiFixture, error_of, open_api, read
from tests.fakes.storage import MemoryWriter
from tests.unit.api.routes.anthropic.message_batch_requests import created, openai_id

LINES = [f'{{"custom_id": "é{n}",  "body": {{"model": "llama"}}}}'.encode() for n in range(4)]
INPUT = b"\r\n".join(LINES)


@pytest.fixture
async def api() -> AsyncGenerator[ApiFixture]:
    async with open_api() as api:
        yield api


async def ended(api: ApiFixture, failed_lines: Sequence[int] = (0, 2), tenant: str = "default") -> str:
    """Create a completed batch with the input INPUT, and return its id.

    The lines with the numbers `failed_lines` are dead letters.
    """
    file = await api.upload(INPUT, tenant=tenant)
    body = {
        "input_file_id": file.id,
        "endpoint": "/v1/chat/completions",
        "completion_window": "3h",
        "metadata": {"team": "red"},
    }
    batch = read(await api.post(body, tenant), BatchObject)
    await end(api, batch.id, INPUT, failed_lines, tenant)
    return batch.id


async def end(
    api: ApiFixture, batch_id: str, content: bytes, failed_lines: Sequence[int], tenant: str = "default"
) -> None:
    """Complete a batch that has the input `content`. Its lines `failed_lines` are dead letters."""
    splitter = LineSplitter(1000)
    lines = [*splitter.feed(content), *splitter.finish()]
    outcome = BatchOutcome(
        status=BatchStatus.COMPLETED,
        completed=len(lines) - len(failed_lines),
        failed=len(failed_lines),
        usage=Usage(),
        dead_letters=[
            DeadLetter(
                id=request_id(batch_id, lines[n].offset),
                offset=lines[n].offset,
                custom_id=f"é{n}",
                model="llama",
                attempts=5,
                failed_at=datetime(2026, 1, 1, 0, 0, n, tzinfo=UTC),
                status=500,
                message="no",
            )
            for n in failed_lines
        ],
    )
    await api.database.batch_ends.finish(tenant, batch_id, outcome, datetime.now(UTC))


async def listed(api: ApiFixture, query: str = "") -> DeadLetterPage:
    return read(await api.http.get(f"/admin/dlq{query}"), DeadLetterPage)


async def retry(api: ApiFixture, dead_letter: str, body: object = None) -> httpx.Response:
    content = None if body is None else json.dumps(body)
    return await api.http.post(f"/admin/dlq/{dead_letter}/retry", content=content)


async def retry_all(api: ApiFixture, **body: object) -> DeadLetterRetryPage:
    return read(await api.http.post("/admin/dlq/retry-all", json=body), DeadLetterRetryPage)


async def content(api: ApiFixture, batch_id: str) -> bytes:
    file_id, tenant = api.order(batch_id).input_file_id, api.order(batch_id).tenant
    return (await api.http.get(f"/v1/files/{file_id}/content", headers={"X-Tenant": tenant})).content


async def test_a_dead_letter_has_the_last_error_of_its_line(api: ApiFixture) -> None:
    batch = await ended(api, [2])
    [found] = (await api.http.get("/admin/dlq")).json()["data"]
    assert found == {
        "id": found["id"],
        "object": "dead_letter",
        "tenant": "default",
        "batch_id": batch,
        "custom_id": "é2",
        "model": "llama",
        "attempts": 5,
        "error": {"status_code": 500, "code": None, "message": "no"},
        "failed_at": 1767225602,
        "retried_as": None,
    }


async def test_dead_letters_are_paged_like_other_lists(api: ApiFixture) -> None:
    await ended(api, [0, 1, 2])
    first = await listed(api, "?limit=2")
    assert [dead_letter.custom_id for dead_letter in first.data] == ["é2", "é1"]
    assert (first.first_id, first.last_id, first.has_more) == (first.data[0].id, first.data[1].id, True)
    rest = await listed(api, f"?limit=2&after={first.last_id}")
    assert ([dead_letter.custom_id for dead_letter in rest.data], rest.has_more) == (["é0"], False)
    nothing = await listed(api, "?tenant=red")
    assert (nothing.data, nothing.first_id, nothing.last_id) == ([], None, None)


@pytest.mark.parametrize(
    ("query", "status"),
    [("limit=0", 400), ("limit=101", 400), ("limit=x", 400), ("after=no", 404), ("tenant=%00", 400)],
)
async def test_an_invalid_list_request_is_refused(query: str, status: int, api: ApiFixture) -> None:
    answer = await api.http.get(f"/admin/dlq?{query}")
    assert answer.status_code == status
    assert error_of(answer).message


async def test_a_retry_is_a_batch_of_the_line_byte_for_byte_and_is_made_once(api: ApiFixture) -> None:
    batch = await ended(api, tenant="red")
    dead_letter = (await listed(api, "?tenant=red")).data[0]
    created = [
        read(await retry(api, dead_letter.id, {"completion_window": "1h"}), BatchObject) for _ in range(2)
    ]
    assert created[0] == created[1]
    assert await content(api, created[0].id) == LINES[2] + b"\r\n"
    order = api.order(created[0].id)
    assert (order.tenant, order.completion_window, order.metadata) == ("red", "1h", {"team": "red"})
    assert order.origin == SourceBatch(batch_id=batch, kind=RerunKind.RETRY)
    assert (await listed(api, "?tenant=red")).data[0].retried_as == created[0].id
    assert len(api.temporal.orders) == 2


async def test_a_retry_of_lines_of_a_message_batch_is_a_message_batch(api: ApiFixture) -> None:
    batch = openai_id(await created(api, "a", "b", "c"))
    [file] = api.storage.objects.values()
    await end(api, batch, file, [0, 2])
    [retried] = (await retry_all(api)).data
    assert api.order(retried.batch_id or "").policy.message_requests == 2


async def test_an_interrupted_retry_is_finished_by_the_next_call(
    api: ApiFixture,
) -> None:
    await ended(api, [0, 1])
    dead_letter = (await listed(api)).data[0]
    created = read(await retry(api, dead_letter.id), BatchObject)
    for again in (lambda: retry(api, dead_letter.id), lambda: api.http.post("/admin/dlq/retry-all")):
        del api.database.rows.batches["default", created.id], api.temporal.orders[created.id]
        assert (await again()).status_code == 200
        assert created.id in api.temporal.orders


async def test_retries_at_the_same_time_copy_few_inputs_at_once(
    api: ApiFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(6):
        await ended(api)
    running = most = 0
    writer = api.storage.writer

    @asynccontextmanager
    async def counted(key: str) -> AsyncGenerator[MemoryWriter]:
        nonlocal running, most
        running += 1
        most = max(most, running)
        async with writer(key) as opened:
            for _ in range(20):  # let the other retries begin
                await asyncio.sleep(0)
            yield opened
        running -= 1

    monkeypatch.setattr(api.storage, "writer", counted)
    letters = (await listed(api, "?limit=100")).data
    answers = await asyncio.gather(*(retry(api, letter.id) for letter in letters))
    assert len({read(answer, BatchObject).id for answer in answers}) == len(letters) == 12
    assert most == 2  # of four, because one tenant gets at most half


async def test_a_retry_that_waited_for_another_one_of_its_line_copies_nothing(
    api: ApiFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    await ended(api)
    letter = (await listed(api)).data[0]
    written, writer = list[str](), api.storage.writer

    @asynccontextmanager
    async def counted(key: str) -> AsyncGenerator[MemoryWriter]:
        written.append(key)
        async with writer(key) as opened:
            for _ in range(20):  # let the other retry begin
                await asyncio.sleep(0)
            yield opened

    monkeypatch.setattr(api.storage, "writer", counted)
    answers = await asyncio.gather(*(retry(api, letter.id) for _ in range(2)))
    assert len({read(answer, BatchObject).id for answer in answers}) == len(written) == 1


async def test_retry_all_creates_one_batch_for_each_original_batch(api: ApiFixture) -> None:
    batches = [await ended(api, [0, 3]), await ended(api, [1], "red")]
    one = (await listed(api, f"?batch_id={batches[0]}")).data[0]
    await retry(api, one.id)
    page = await retry_all(api)
    assert [(created.tenant, created.origin) for created in page.data] == [
        ("default", batches[0]),
        ("red", batches[1]),
    ]
    assert [await content(api, created.batch_id or "") for created in page.data] == [
        LINES[0] + b"\r\n",
        LINES[1] + b"\r\n",
    ]
    assert (await retry_all(api)).data == []


async def test_retry_all_can_be_limited_to_a_tenant_or_a_batch(api: ApiFixture) -> None:
    first, second, red = await ended(api), await ended(api), await ended(api, tenant="red")
    assert [created.origin for created in (await retry_all(api, tenant="red")).data] == [red]
    assert [created.origin for created in (await retry_all(api, batch_id=second)).data] == [second]
    assert [created.origin for created in (await retry_all(api, after=new_batch_id())).data] == []
    assert [created.origin for created in (await retry_all(api)).data] == [first]


async def test_retry_all_of_many_batches_is_paged() -> None:
    async with open_api(max_live_batches=0) as api:
        batches = [await ended(api, [0]) for _ in range(21)]
        page = await retry_all(api)
        assert (len(page.data), page.last_id, page.has_more) == (20, batches[19], True)
        page = await retry_all(api, after=page.last_id)
        assert ([created.origin for created in page.data], page.has_more) == ([batches[20]], False)


async def test_a_batch_without_its_input_does_not_block_the_retry_of_others(api: ApiFixture) -> None:
    gone, there = await ended(api), await ended(api)
    del api.database.rows.files["default", api.order(gone).input_file_id]
    dead_letter = (await listed(api, f"?batch_id={gone}")).data[0]
    refused = await retry(api, dead_letter.id)
    assert (refused.status_code, refused.headers["x-should-retry"]) == (409, "false")
    page = await retry_all(api)
    assert [(created.origin, created.batch_id is None) for created in page.data] == [
        (gone, True),
        (there, False),
    ]
    assert "was deleted or expired" in (page.data[0].refused or "")


async def test_a_retry_counts_against_its_tenants_quotas() -> None:
    async with open_api(max_live_batches=1) as api:
        await ended(api)
        await api.create()
        dead_letter = (await listed(api)).data[0]
        assert (await retry(api, dead_letter.id)).status_code == 429
        [created] = (await retry_all(api)).data
        assert created.refused


async def test_a_deleted_dead_letter_is_not_listed(api: ApiFixture) -> None:
    await ended(api, [0])
    dead_letter = (await listed(api)).data[0]
    answer = await api.http.delete(f"/admin/dlq/{dead_letter.id}")
    assert answer.json() == {"id": dead_letter.id, "object": "dead_letter", "deleted": True}
    assert (await api.http.delete(f"/admin/dlq/{dead_letter.id}")).status_code == 404
    assert (await retry(api, dead_letter.id)).status_code == 404
    assert (await listed(api)).data == []


@pytest.mark.parametrize(
    "body",
    [
        {"window": "1h"},
        {"completion_window": "soon"},
        {"completion_window": {}},
        {"tenant": 1},
        {"after": "\x00"},
        [1],
    ],
)
async def test_an_invalid_body_is_refused(body: object, api: ApiFixture) -> None:
    without = await api.http.post("/admin/dlq/retry-all", json=body)
    await ended(api)
    answer = await api.http.post("/admin/dlq/retry-all", json=body)
    assert (without.status_code, answer.status_code) == (400, 400)
    assert len(api.temporal.orders) == 1
