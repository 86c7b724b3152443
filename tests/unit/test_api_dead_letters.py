"""/admin/dlq: listed, retried once, deleted."""

import json
from collections.abc import AsyncGenerator, Sequence
from datetime import UTC, datetime

import httpx
import pytest

from api.dead_letters import DeadLetterPage, RetriedPage
from api.objects import BatchObject
from batchwright.contracts.batch import Chance, Origin
from batchwright.contracts.openai import BatchStatus, Usage
from batchwright.database.rows import Outcome
from batchwright.rules.dead_letters import DeadLetter
from batchwright.rules.ids import new_batch_id, request_id
from batchwright.rules.lines import Splitter
from tests.fakes.api import House, error_of, open_house, read

LINES = [f'{{"custom_id": "é{n}",  "body": {{"model": "llama"}}}}'.encode() for n in range(4)]
INPUT = b"\r\n".join(LINES)


@pytest.fixture
async def house() -> AsyncGenerator[House]:
    async with open_house() as house:
        yield house


async def ended(house: House, letters: Sequence[int] = (0, 2), tenant: str = "default") -> str:
    """A completed batch over INPUT whose lines of these numbers are dead letters."""
    file = await house.upload(INPUT, tenant=tenant)
    body = {
        "input_file_id": file.id,
        "endpoint": "/v1/chat/completions",
        "completion_window": "3h",
        "metadata": {"team": "red"},
    }
    batch = read(await house.post(body, tenant), BatchObject)
    splitter = Splitter(1000)
    lines = [*splitter.feed(INPUT), *splitter.finish()]
    outcome = Outcome(
        status=BatchStatus.COMPLETED,
        completed=len(LINES) - len(letters),
        failed=len(letters),
        usage=Usage(),
        dead_letters=[
            DeadLetter(
                id=request_id(batch.id, lines[n].offset),
                offset=lines[n].offset,
                custom_id=f"é{n}",
                model="llama",
                attempts=5,
                failed_at=datetime(2026, 1, 1, 0, 0, n, tzinfo=UTC),
                status=500,
                message="no",
            )
            for n in letters
        ],
    )
    await house.database.batches.finish(tenant, batch.id, outcome, datetime.now(UTC))
    return batch.id


async def listed(house: House, query: str = "") -> DeadLetterPage:
    return read(await house.http.get(f"/admin/dlq{query}"), DeadLetterPage)


async def retry(house: House, letter: str, body: object = None) -> httpx.Response:
    content = None if body is None else json.dumps(body)
    return await house.http.post(f"/admin/dlq/{letter}/retry", content=content)


async def retry_all(house: House, **body: object) -> RetriedPage:
    return read(await house.http.post("/admin/dlq/retry-all", json=body), RetriedPage)


async def content(house: House, batch_id: str) -> bytes:
    file_id, tenant = house.order(batch_id).input_file_id, house.order(batch_id).tenant
    return (await house.http.get(f"/v1/files/{file_id}/content", headers={"X-Tenant": tenant})).content


async def test_a_letter_says_what_became_of_its_line(house: House) -> None:
    batch = await ended(house, [2])
    [found] = (await house.http.get("/admin/dlq")).json()["data"]
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


async def test_they_are_paged_as_other_lists_are(house: House) -> None:
    await ended(house, [0, 1, 2])
    first = await listed(house, "?limit=2")
    assert [letter.custom_id for letter in first.data] == ["é2", "é1"]
    assert (first.first_id, first.last_id, first.has_more) == (first.data[0].id, first.data[1].id, True)
    rest = await listed(house, f"?limit=2&after={first.last_id}")
    assert ([letter.custom_id for letter in rest.data], rest.has_more) == (["é0"], False)
    nothing = await listed(house, "?tenant=red")
    assert (nothing.data, nothing.first_id, nothing.last_id) == ([], None, None)


@pytest.mark.parametrize(
    ("query", "status"),
    [("limit=0", 400), ("limit=101", 400), ("limit=x", 400), ("after=no", 404), ("tenant=%00", 400)],
)
async def test_what_cannot_be_listed_is_refused(query: str, status: int, house: House) -> None:
    answer = await house.http.get(f"/admin/dlq?{query}")
    assert answer.status_code == status
    assert error_of(answer).message


async def test_a_retry_is_a_batch_of_the_line_byte_for_byte_and_is_made_once(house: House) -> None:
    batch = await ended(house, tenant="red")
    letter = (await listed(house, "?tenant=red")).data[0]
    made = [read(await retry(house, letter.id, {"completion_window": "1h"}), BatchObject) for _ in range(2)]
    assert made[0] == made[1]
    assert await content(house, made[0].id) == LINES[2] + b"\r\n"
    order = house.order(made[0].id)
    assert (order.tenant, order.completion_window, order.metadata) == ("red", "1h", {"team": "red"})
    assert order.origin == Origin(batch_id=batch, chance=Chance.RETRY)
    assert (await listed(house, "?tenant=red")).data[0].retried_as == made[0].id
    assert len(house.temporal.orders) == 2


async def test_a_retry_that_broke_off_before_the_start_is_finished_by_the_next_call(house: House) -> None:
    await ended(house, [0, 1])
    letter = (await listed(house)).data[0]
    made = read(await retry(house, letter.id), BatchObject)
    for again in (lambda: retry(house, letter.id), lambda: house.http.post("/admin/dlq/retry-all")):
        del house.database.rows.batches["default", made.id], house.temporal.orders[made.id]
        assert (await again()).status_code == 200
        assert made.id in house.temporal.orders


async def test_all_letters_are_one_batch_for_each_they_were_of(house: House) -> None:
    batches = [await ended(house, [0, 3]), await ended(house, [1], "red")]
    one = (await listed(house, f"?batch_id={batches[0]}")).data[0]
    await retry(house, one.id)
    page = await retry_all(house)
    assert [(made.tenant, made.origin) for made in page.data] == [
        ("default", batches[0]),
        ("red", batches[1]),
    ]
    assert [await content(house, made.batch_id or "") for made in page.data] == [
        LINES[0] + b"\r\n",
        LINES[1] + b"\r\n",
    ]
    assert (await retry_all(house)).data == []


async def test_all_can_be_those_of_a_tenant_or_of_a_batch(house: House) -> None:
    first, second, red = await ended(house), await ended(house), await ended(house, tenant="red")
    assert [made.origin for made in (await retry_all(house, tenant="red")).data] == [red]
    assert [made.origin for made in (await retry_all(house, batch_id=second)).data] == [second]
    assert [made.origin for made in (await retry_all(house, after=new_batch_id())).data] == []
    assert [made.origin for made in (await retry_all(house)).data] == [first]


async def test_all_of_many_batches_come_in_pages() -> None:
    async with open_house(max_live_batches=0) as house:
        batches = [await ended(house, [0]) for _ in range(21)]
        page = await retry_all(house)
        assert (len(page.data), page.last_id, page.has_more) == (20, batches[19], True)
        page = await retry_all(house, after=page.last_id)
        assert ([made.origin for made in page.data], page.has_more) == ([batches[20]], False)


async def test_a_batch_whose_input_is_gone_keeps_no_other_from_its_retry(house: House) -> None:
    gone, there = await ended(house), await ended(house)
    del house.database.rows.files["default", house.order(gone).input_file_id]
    letter = (await listed(house, f"?batch_id={gone}")).data[0]
    refused = await retry(house, letter.id)
    assert (refused.status_code, refused.headers["x-should-retry"]) == (409, "false")
    page = await retry_all(house)
    assert [(made.origin, made.batch_id is None) for made in page.data] == [(gone, True), (there, False)]
    assert "was deleted or expired" in (page.data[0].refused or "")


async def test_a_retry_counts_against_its_tenants_quotas() -> None:
    async with open_house(max_live_batches=1) as house:
        await ended(house)
        await house.create()
        letter = (await listed(house)).data[0]
        assert (await retry(house, letter.id)).status_code == 429
        [made] = (await retry_all(house)).data
        assert made.refused


async def test_a_deleted_letter_is_off_the_list(house: House) -> None:
    await ended(house, [0])
    letter = (await listed(house)).data[0]
    answer = await house.http.delete(f"/admin/dlq/{letter.id}")
    assert answer.json() == {"id": letter.id, "object": "dead_letter", "deleted": True}
    assert (await house.http.delete(f"/admin/dlq/{letter.id}")).status_code == 404
    assert (await retry(house, letter.id)).status_code == 404
    assert (await listed(house)).data == []


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
async def test_a_body_that_says_nonsense_is_refused(body: object, house: House) -> None:
    without = await house.http.post("/admin/dlq/retry-all", json=body)
    await ended(house)
    answer = await house.http.post("/admin/dlq/retry-all", json=body)
    assert (without.status_code, answer.status_code) == (400, 400)
    assert len(house.temporal.orders) == 1
