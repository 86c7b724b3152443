"""`x_batchwright.start_at`: a batch that starts later."""

from collections.abc import AsyncGenerator
from datetime import UTC, datetime, timedelta

import pytest

from batchwright.api.errors import invalid_value
from batchwright.api.services.batches import creation as batch_creation
from batchwright.contracts.api_objects.openai import BatchObject, WaitingObject
from batchwright.rules.deadline import MAX_START_DELAY
from tests.fakes.api import ApiFixture, error_of, open_api, read

PARAM = "x_batchwright.start_at"
LATER = (datetime.now(UTC) + timedelta(days=2)).replace(microsecond=0)


@pytest.fixture
async def api() -> AsyncGenerator[ApiFixture]:
    async with open_api() as api:
        yield api


async def refused(api: ApiFixture, start_at: object) -> tuple[str | None, str | None, str]:
    file = await api.upload()
    body = {"input_file_id": file.id, "endpoint": "/v1/chat/completions"}
    answer = await api.post({**body, "x_batchwright": {"start_at": start_at}})
    assert answer.status_code == 400
    error = error_of(answer)
    return error.param, error.code, error.message


async def test_the_completion_window_counts_from_the_start(api: ApiFixture) -> None:
    batch = await api.create(completion_window="6h", x_batchwright={"start_at": LATER.isoformat()})
    assert batch.x_batchwright.start_at == int(LATER.timestamp())
    assert batch.expires_at == int((LATER + timedelta(hours=6)).timestamp())
    order = api.order(batch.id)
    assert (order.start_at, order.deadline) == (LATER, LATER + timedelta(hours=6))
    assert order.created_at < LATER


@pytest.mark.parametrize(
    "text",
    [
        int(LATER.timestamp()),
        f"{LATER:%Y-%m-%dT%H:%M:%SZ}",
        f"{LATER:%Y-%m-%dt%H:%M:%S.25z}",
        f"{LATER + timedelta(hours=2):%Y-%m-%dT%H:%M:%S}+02:00",
    ],
    ids=["unix", "utc", "small letters and fractions", "another zone"],  # equal in all processes
)
async def test_the_time_is_given_in_any_of_these_forms(api: ApiFixture, text: object) -> None:
    batch = await api.create(x_batchwright={"start_at": text})
    assert batch.x_batchwright.start_at == int(LATER.timestamp())


async def test_a_batch_that_waits_for_its_start_says_so_and_can_be_cancelled(api: ApiFixture) -> None:
    batch = await api.create(x_batchwright={"start_at": LATER.isoformat()})
    shown = read(await api.http.get(f"/v1/batches/{batch.id}"), BatchObject)
    assert shown.status == "validating"
    assert shown.waiting == [WaitingObject(model=None, reason="scheduled", since=batch.created_at)]
    cancelled = read(await api.http.post(f"/v1/batches/{batch.id}/cancel"), BatchObject)
    assert cancelled.status == "cancelling"
    assert api.temporal.signals == [(batch.id, "cancel")]


async def test_a_batch_without_it_has_none(api: ApiFixture) -> None:
    batch = await api.create(x_batchwright={"start_at": None})
    assert batch.x_batchwright.start_at is None
    assert api.order(batch.id).starts_at == api.order(batch.id).created_at
    shown = read(await api.http.get(f"/v1/batches/{batch.id}"), BatchObject)
    assert "scheduled" not in [each.reason for each in shown.waiting]


async def test_a_start_in_the_past_or_far_ahead_is_refused(api: ApiFixture) -> None:
    param, code, message = await refused(api, "2020-01-01T00:00:00Z")
    assert (param, code) == (PARAM, "invalid_value")
    assert "2020-01-01T00:00:00Z is in the past" in message
    far = datetime.now(UTC) + MAX_START_DELAY + timedelta(minutes=1)
    param, _, message = await refused(api, int(far.timestamp()))
    assert (param, "more than 30 days ahead" in message) == (PARAM, True)
    assert api.temporal.orders == {}


@pytest.mark.parametrize(
    "value",
    [
        "tomorrow",
        "",
        "2030-01-01",
        "2030-01-01T00:00:00",
        "2030-02-30T00:00:00Z",
        "9999-12-31T23:59:59-14:00",
        "20300101T000000Z",
        2**62,
        -(10**18),
    ],
)
async def test_a_value_that_is_no_time_is_refused(api: ApiFixture, value: object) -> None:
    param, code, message = await refused(api, value)
    assert (param, code) == (PARAM, "invalid_value")
    assert "RFC 3339" in message or "30 days ahead" in message or "in the past" in message


@pytest.mark.parametrize("value", [True, 1.5, [], {}])
async def test_a_value_of_another_type_is_refused(api: ApiFixture, value: object) -> None:
    param, code, _ = await refused(api, value)
    assert (param, code) == (PARAM, "invalid_type")


async def test_a_repeated_request_returns_its_batch_even_after_the_start(api: ApiFixture) -> None:
    file = await api.upload()
    start = int(LATER.timestamp())
    body = {
        "input_file_id": file.id,
        "endpoint": "/v1/chat/completions",
        "x_batchwright": {"start_at": start},
    }
    headers = {"Idempotency-Key": "once"}
    first = read(await api.http.post("/v1/batches", json=body, headers=headers), BatchObject)
    with pytest.MonkeyPatch.context() as patch:
        # Now every start is in the past.
        patch.setattr(batch_creation, "check_start_at", _refuse)
        again = read(await api.http.post("/v1/batches", json=body, headers=headers), BatchObject)
    assert again.id == first.id


def _refuse(start_at: datetime | None, now: datetime) -> None:
    raise invalid_value(PARAM, f"{start_at} is before {now}")


async def test_a_strict_profile_has_no_such_field() -> None:
    async with open_api(profile="strict") as api:
        file = await api.upload()
        body = {"input_file_id": file.id, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
        answer = await api.post({**body, "x_batchwright": {"start_at": 1}})
        assert (answer.status_code, error_of(answer).param) == (400, "x_batchwright")
