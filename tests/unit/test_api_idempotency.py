"""Idempotency-Key: the same request twice, at once, after a crash; another request; another day."""

import asyncio
from collections.abc import AsyncGenerator
from datetime import datetime, timedelta

import httpx
import pytest

from api.services import now
from batchwright.contracts.batch import BatchOrder
from batchwright.contracts.openai import BatchStatus, Usage
from batchwright.contracts.retention import Kind
from batchwright.database.rows import Outcome
from batchwright.temporal import TemporalUnavailable
from tests.activities.retained import Runs
from tests.fakes.api import LINE, House, error_of, open_house

BATCH: dict[str, object] = {
    "input_file_id": "file-" + "0" * 32,
    "endpoint": "/v1/chat/completions",
    "completion_window": "24h",
}
UPLOAD: dict[str, object] = {
    "filename": "a",
    "purpose": "batch",
    "bytes": 9,
    "mime_type": "application/jsonl",
}


@pytest.fixture
async def house() -> AsyncGenerator[House]:
    async with open_house() as house:
        yield house


async def post(
    house: House, path: str, body: dict[str, object], key: str = "k", tenant: str = "default"
) -> httpx.Response:
    headers = {"Idempotency-Key": key, "X-Tenant": tenant}
    return await house.http.post(f"/v1/{path}", json=body, headers=headers)


async def send(house: House, content: bytes = LINE, name: str = "a", key: str = "k") -> httpx.Response:
    return await house.http.post(
        "/v1/files",
        files={"file": (name, content)},
        data={"purpose": "batch"},
        headers={"Idempotency-Key": key},
    )


def made(house: House) -> tuple[int, int, int]:
    """Batches, uploads and files there are; every file has one object."""
    rows = house.database.rows
    assert len(rows.files) == len(house.storage.objects)
    return len(rows.batches), len(rows.uploads), len(rows.files)


async def test_the_same_request_gets_the_first_answer_and_makes_nothing(house: House) -> None:
    batches = [await post(house, "batches", body) for body in (BATCH, dict(reversed(BATCH.items())))]
    uploads = [await post(house, "uploads", UPLOAD) for _ in range(2)]
    files = [await send(house) for _ in range(2)]
    for first, second in (batches, uploads, files):
        assert (first.status_code, second.status_code) == (200, 200)
        assert first.content == second.content
    assert made(house) == (1, 1, 1)
    assert len(house.temporal.orders) == 1


async def test_the_first_answer_comes_also_when_the_batch_has_moved_on(house: House) -> None:
    first = await post(house, "batches", BATCH)
    outcome = Outcome(status=BatchStatus.COMPLETED, completed=1, failed=0, usage=Usage())
    await house.database.batches.finish("default", first.json()["id"], outcome, now())
    house.temporal.orders.clear()  # the run has ended and is forgotten
    assert (await post(house, "batches", BATCH)).content == first.content
    assert house.temporal.orders == {}


async def test_another_request_with_the_key_is_refused_for_good(house: House) -> None:
    await post(house, "batches", BATCH)
    await post(house, "uploads", UPLOAD)
    await send(house)
    answers = [
        await post(house, "batches", {**BATCH, "metadata": {"a": "b"}}),
        await post(house, "uploads", {**UPLOAD, "bytes": 10}),
        await send(house, LINE * 2),
        await send(house, name="b"),
    ]
    for answer in answers:
        assert (answer.status_code, error_of(answer).code) == (409, "idempotency_key_reused")
        assert error_of(answer).param == "Idempotency-Key"
        assert answer.headers["x-should-retry"] == "false"
    assert made(house) == (1, 1, 1)


async def test_requests_at_the_same_instant_make_one_thing(house: House) -> None:
    batches = await asyncio.gather(*(post(house, "batches", BATCH) for _ in range(8)))
    uploads = await asyncio.gather(*(post(house, "uploads", UPLOAD) for _ in range(8)))
    files = await asyncio.gather(*(send(house) for _ in range(8)))
    for answers in (batches, uploads, files):
        assert len({answer.content for answer in answers}) == 1
    assert made(house) == (1, 1, 1)


async def test_a_create_that_broke_off_before_its_run_goes_on(house: House) -> None:
    house.temporal.failing = TemporalUnavailable("down")
    assert (await post(house, "batches", BATCH)).status_code == 503
    house.temporal.failing = None
    answer = await post(house, "batches", BATCH)
    assert list(house.temporal.orders) == [answer.json()["id"]]
    assert made(house) == (1, 0, 0)


async def test_a_create_that_broke_off_after_its_run_makes_no_second(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = house.temporal.start

    async def start_and_die(order: BatchOrder) -> None:
        await start(order)
        raise TemporalUnavailable("the answer was lost")

    with monkeypatch.context() as broken:
        broken.setattr(house.temporal, "start", start_and_die)
        assert (await post(house, "batches", BATCH)).status_code == 503
    answer = await post(house, "batches", BATCH)
    assert list(house.temporal.orders) == [answer.json()["id"]]


async def test_a_refused_request_holds_no_key(house: House) -> None:
    assert (await post(house, "batches", {**BATCH, "endpoint": "/x"})).status_code == 400
    assert (await send(house, b"no json")).status_code == 400
    assert (await post(house, "batches", BATCH)).status_code == 200
    assert (await send(house)).status_code == 200


async def test_keys_of_other_tenants_and_other_requests_are_others(house: House) -> None:
    answers = [await post(house, "batches", BATCH, tenant=tenant) for tenant in ("red", "blue")]
    assert answers[0].json()["id"] != answers[1].json()["id"]
    assert (await post(house, "uploads", UPLOAD, tenant="red")).status_code == 200


async def test_a_key_is_free_again_after_a_day(house: House) -> None:
    first = await post(house, "batches", BATCH)
    age(house, timedelta(hours=24))
    assert (await post(house, "batches", BATCH)).json()["id"] != first.json()["id"]


async def test_old_keys_are_swept(house: House) -> None:
    await post(house, "batches", BATCH)
    retention = Runs(house.database, house.storage)
    assert (await retention.run(Kind.KEYS, now())).count == 0
    assert (await retention.run(Kind.KEYS, now() + timedelta(hours=25))).count == 1
    assert house.database.rows.claims == {}


@pytest.mark.parametrize("key", ["", " ", "a b", "x" * 256, "é"])
async def test_a_key_that_cannot_be_is_refused(house: House, key: str) -> None:
    headers = [(b"Idempotency-Key", key.encode("latin-1"))]
    answer = await house.http.post("/v1/batches", json=BATCH, headers=headers)
    assert (answer.status_code, error_of(answer).param) == (400, "Idempotency-Key")


async def test_a_file_made_with_a_key_and_deleted_stays_deleted(house: House) -> None:
    first = (await send(house)).json()["id"]
    await house.http.delete(f"/v1/files/{first}")
    assert (await send(house)).json()["id"] == first
    assert (await house.http.get(f"/v1/files/{first}")).status_code == 404


def age(house: House, by: timedelta) -> None:
    claims = house.database.rows.claims
    for key, claim in list(claims.items()):
        earlier: datetime = claim.created_at - by
        claims[key] = claim.model_copy(update={"created_at": earlier})
