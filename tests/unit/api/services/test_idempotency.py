"""The header Idempotency-Key: what a second request with the same key gets.

It may come at the same time, later, after a crash, a day later, or differ from the first one.
"""

import asyncio
from collections.abc import AsyncGenerator
from datetime import datetime, timedelta

import httpx
import pytest

from batchwright.api.dependencies import now
from batchwright.contracts.temporal_payloads.batch import BatchOrder
from batchwright.contracts.temporal_payloads.retention import RetentionKind
from batchwright.contracts.terms import BatchStatus, Usage
from batchwright.database.records import BatchOutcome, IdempotencyClaim
from batchwright.temporal import TemporalUnavailable
from tests.activities.retention.runner import RetentionRunner
from tests.fakes.api import LINE, ApiFixture, error_of, open_api

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
async def api() -> AsyncGenerator[ApiFixture]:
    async with open_api() as api:
        yield api


async def post(
    api: ApiFixture, path: str, body: dict[str, object], key: str = "k", tenant: str = "default"
) -> httpx.Response:
    headers = {"Idempotency-Key": key, "X-Tenant": tenant}
    return await api.http.post(f"/v1/{path}", json=body, headers=headers)


async def send(api: ApiFixture, content: bytes = LINE, name: str = "a", key: str = "k") -> httpx.Response:
    return await api.http.post(
        "/v1/files",
        files={"file": (name, content)},
        data={"purpose": "batch"},
        headers={"Idempotency-Key": key},
    )


def object_counts(api: ApiFixture) -> tuple[int, int, int]:
    """Return the numbers of batches, uploads and files. Every file must have one object."""
    rows = api.database.rows
    assert len(rows.files) == len(api.storage.objects)
    return len(rows.batches), len(rows.uploads), len(rows.files)


async def test_a_repeated_request_gets_the_first_response_and_creates_nothing(api: ApiFixture) -> None:
    batches = [await post(api, "batches", body) for body in (BATCH, dict(reversed(BATCH.items())))]
    uploads = [await post(api, "uploads", UPLOAD) for _ in range(2)]
    files = [await send(api) for _ in range(2)]
    for first, second in (batches, uploads, files):
        assert (first.status_code, second.status_code) == (200, 200)
        assert first.content == second.content
    assert object_counts(api) == (1, 1, 1)
    assert len(api.temporal.orders) == 1


async def test_the_first_answer_is_returned_even_if_the_batch_has_changed(api: ApiFixture) -> None:
    first = await post(api, "batches", BATCH)
    outcome = BatchOutcome(status=BatchStatus.COMPLETED, completed=1, failed=0, usage=Usage())
    await api.database.batch_ends.finish("default", first.json()["id"], outcome, now())
    api.temporal.orders.clear()  # the workflow has ended and its history was deleted
    assert (await post(api, "batches", BATCH)).content == first.content
    assert api.temporal.orders == {}


async def test_another_request_with_the_key_is_refused_for_good(api: ApiFixture) -> None:
    await post(api, "batches", BATCH)
    await post(api, "uploads", UPLOAD)
    await send(api)
    answers = [
        await post(api, "batches", {**BATCH, "metadata": {"a": "b"}}),
        await post(api, "uploads", {**UPLOAD, "bytes": 10}),
        await send(api, LINE * 2),
        await send(api, name="b"),
    ]
    for answer in answers:
        assert (answer.status_code, error_of(answer).code) == (409, "idempotency_key_reused")
        assert error_of(answer).param == "Idempotency-Key"
        assert answer.headers["x-should-retry"] == "false"
    assert object_counts(api) == (1, 1, 1)


async def test_concurrent_requests_with_one_key_create_one_object(api: ApiFixture) -> None:
    batches = await asyncio.gather(*(post(api, "batches", BATCH) for _ in range(8)))
    uploads = await asyncio.gather(*(post(api, "uploads", UPLOAD) for _ in range(8)))
    files = await asyncio.gather(*(send(api) for _ in range(8)))
    for answers in (batches, uploads, files):
        assert len({answer.content for answer in answers}) == 1
    assert object_counts(api) == (1, 1, 1)


async def test_a_request_gets_the_batch_of_its_key_if_that_batch_took_the_last_place_of_a_quota(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another request with the same key begins and ends after the first request has searched for the key."""
    async with open_api(max_live_batches=1) as api:
        find, others = api.database.idempotency.find, list[httpx.Response]()

        async def find_before_the_other_request(
            tenant: str, operation: str, key: str, since: datetime
        ) -> IdempotencyClaim | None:
            found = await find(tenant, operation, key, since)
            monkeypatch.setattr(api.database.idempotency, "find", find)
            others.append(await post(api, "batches", BATCH))
            return found

        monkeypatch.setattr(api.database.idempotency, "find", find_before_the_other_request)
        answer = await post(api, "batches", BATCH)
        assert (answer.status_code, answer.content) == (200, others[0].content)
        refused = await post(api, "batches", BATCH, key="another")
        assert refused.status_code == 429
        assert object_counts(api) == (1, 0, 0)


async def test_a_request_whose_key_is_not_stored_yet_takes_no_place_from_another_with_the_same_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with open_api(max_live_batches=1) as api:
        claims, others = api.database.idempotency, list[httpx.Response]()

        async def claim_after_the_other_request(
            claim: IdempotencyClaim, *args: object, **more: object
        ) -> IdempotencyClaim | None:
            monkeypatch.undo()
            others.append(await post(api, "batches", BATCH))
            return await claims.claim(claim, *args, **more)  # pyright: ignore[reportArgumentType]

        monkeypatch.setattr(claims, "claim", claim_after_the_other_request)
        answer = await post(api, "batches", BATCH)
        assert [answer.status_code, others[0].status_code] == [200, 200]
        assert answer.content == others[0].content


async def test_a_create_interrupted_before_its_run_is_continued(api: ApiFixture) -> None:
    api.temporal.failing = TemporalUnavailable("down")
    assert (await post(api, "batches", BATCH)).status_code == 503
    api.temporal.failing = None
    answer = await post(api, "batches", BATCH)
    assert list(api.temporal.orders) == [answer.json()["id"]]
    assert object_counts(api) == (1, 0, 0)


async def test_a_create_that_continues_hours_later_has_its_whole_window(api: ApiFixture) -> None:
    api.temporal.failing = TemporalUnavailable("down")
    assert (await post(api, "batches", BATCH)).status_code == 503
    api.temporal.failing = None
    [(key, claim)] = api.database.rows.claims.items()
    order, age = BatchOrder.model_validate_json(claim.made), timedelta(hours=4)
    times = {"created_at": order.created_at - age, "deadline": order.deadline - age}
    made = order.model_copy(update=times).model_dump_json()
    api.database.rows.claims[key] = claim.model_copy(update={"made": made})
    before = now()
    answers = [(await post(api, "batches", BATCH)).json() for _ in range(2)]
    started = api.order(order.batch_id)
    assert started.created_at >= before
    assert started.deadline - started.created_at == order.deadline - order.created_at
    shown = started.created_at.timestamp(), started.deadline.timestamp()
    assert [(answer["created_at"], answer["expires_at"]) for answer in answers] == [shown, shown]


async def test_interrupted_creates_that_continue_do_not_exceed_the_quota() -> None:
    async with open_api(max_live_batches=1) as api:
        api.temporal.failing = TemporalUnavailable("down")
        interrupted = [await post(api, "batches", BATCH, key=f"k{number}") for number in range(3)]
        assert {answer.status_code for answer in interrupted} == {503}
        api.temporal.failing = None
        answers = [await post(api, "batches", BATCH, key=f"k{number}") for number in range(3)]
        assert [answer.status_code for answer in answers] == [200, 429, 429]
        assert object_counts(api) == (1, 0, 0)


async def test_a_create_interrupted_after_its_run_starts_no_second_run(
    api: ApiFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = api.temporal.start

    async def start_and_die(order: BatchOrder) -> bool:
        await start(order)
        raise TemporalUnavailable("the answer was lost")

    with monkeypatch.context() as broken:
        broken.setattr(api.temporal, "start", start_and_die)
        assert (await post(api, "batches", BATCH)).status_code == 503
    answer = await post(api, "batches", BATCH)
    assert list(api.temporal.orders) == [answer.json()["id"]]


async def test_a_refused_request_holds_no_key(api: ApiFixture) -> None:
    assert (await post(api, "batches", {**BATCH, "endpoint": "/x"})).status_code == 400
    assert (await send(api, b"no json")).status_code == 400
    assert (await post(api, "batches", BATCH)).status_code == 200
    assert (await send(api)).status_code == 200


async def test_keys_are_separate_for_each_tenant_and_kind_of_request(api: ApiFixture) -> None:
    answers = [await post(api, "batches", BATCH, tenant=tenant) for tenant in ("red", "blue")]
    assert answers[0].json()["id"] != answers[1].json()["id"]
    assert (await post(api, "uploads", UPLOAD, tenant="red")).status_code == 200


async def test_a_key_is_free_again_after_a_day(api: ApiFixture) -> None:
    first = await post(api, "batches", BATCH)
    age(api, timedelta(hours=24))
    assert (await post(api, "batches", BATCH)).json()["id"] != first.json()["id"]


async def test_old_keys_are_swept(api: ApiFixture) -> None:
    await post(api, "batches", BATCH)
    retention = RetentionRunner(api.database, api.storage)
    assert (await retention.run(RetentionKind.KEYS, now())).count == 0
    assert (await retention.run(RetentionKind.KEYS, now() + timedelta(hours=25))).count == 1
    assert api.database.rows.claims == {}


@pytest.mark.parametrize("key", ["", " ", "a b", "x" * 256, "é"])
async def test_an_invalid_key_is_refused(api: ApiFixture, key: str) -> None:
    headers = [(b"Idempotency-Key", key.encode("latin-1"))]
    answer = await api.http.post("/v1/batches", json=BATCH, headers=headers)
    assert (answer.status_code, error_of(answer).param) == (400, "Idempotency-Key")


async def test_a_deleted_file_is_not_created_again_by_its_key(api: ApiFixture) -> None:
    first = (await send(api)).json()["id"]
    await api.http.delete(f"/v1/files/{first}")
    assert (await send(api)).json()["id"] == first
    assert (await api.http.get(f"/v1/files/{first}")).status_code == 404


def age(api: ApiFixture, by: timedelta) -> None:
    claims = api.database.rows.claims
    for key, claim in list(claims.items()):
        earlier: datetime = claim.created_at - by
        claims[key] = claim.model_copy(update={"created_at": earlier})
