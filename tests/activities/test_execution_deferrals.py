"""A model that takes nothing: its slices are put off, and the batch is told why."""

from datetime import UTC, datetime, timedelta

import httpx
import pytest
from temporalio.exceptions import ApplicationErrorCategory

from batchwright.contracts.errors import Failure
from batchwright.contracts.execution import SliceResult
from batchwright.rules.segments import Kind, Record
from tests.activities.execution_house import (
    BATCH,
    MODEL,
    House,
    line_of,
    ok,
    plan_slice,
    request,
)


async def test_a_slice_nobody_serves_is_deferred_and_keeps_its_counts() -> None:
    house = House(ok)
    house.backends.is_served = False
    (offset,) = await plan_slice(house.storage, [line_of(0)])
    await house.store(Record(Kind.SETTLED, offset, b"{}", True))
    error = await house.failure(request())
    await house.tools.progress.send()
    await house.tools.waiting.settle()
    assert (error.type, error.category) == (Failure.DEFERRED, ApplicationErrorCategory.BENIGN)
    assert [(batch, told.model, told.reason) for batch, told in house.told] == [
        (BATCH, MODEL, "no backend serves this model")
    ]
    assert house.progress.upserts[0][0].completed == 1
    assert house.counted("batchwright_errors_total", error_type="no_backend", model=MODEL) == 1
    assert house.counted("batchwright_model_group_deferrals_total", model=MODEL, reason="no_backend") == 1
    assert (
        house.counted("batchwright_model_group_deferral_seconds_count", model=MODEL, reason="no_backend") == 1
    )


async def test_deferrals_grow_from_five_seconds_to_a_minute() -> None:
    house = House(ok)
    house.backends.is_served = False
    delays: list[float] = []
    for _ in range(6):
        error = await house.failure(request())
        assert error.next_retry_delay is not None
        delays.append(error.next_retry_delay.total_seconds())
        house.next_attempt()
    assert delays == [5, 10, 20, 40, 60, 60]


async def test_a_deferral_never_passes_the_window() -> None:
    house = House(ok)
    house.backends.is_served = False
    error = await house.failure(request(closes_at=datetime.now(UTC) + timedelta(seconds=2)))
    assert error.next_retry_delay is not None
    assert error.next_retry_delay <= timedelta(seconds=2)


async def test_the_reason_is_taken_back_when_the_slice_moves_again() -> None:
    house = House(ok)
    house.backends.is_served = False
    await plan_slice(house.storage, [line_of(0)])
    await house.failure(request())
    house.next_attempt()
    house.backends.is_served = True
    assert await house.run(request()) == SliceResult(finished=True, completed=1)
    await house.tools.waiting.settle()
    assert [told.reason for _, told in house.told] == ["no backend serves this model", ""]


async def test_one_models_outage_leaves_the_others_alone() -> None:
    house = House(lambda content: httpx.Response(503))
    house.hurry()
    await plan_slice(house.storage, [line_of(n) for n in range(20)])
    assert (await house.failure(request())).type == Failure.DEFERRED
    assert not house.circuit("another").is_open
    assert house.tools.permits.used == 0


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (httpx.Response(503), "the backend takes nothing now: it answered 503"),
        (httpx.ConnectError("refused"), "the backend takes nothing now: it could not be reached: refused"),
        (
            httpx.RemoteProtocolError("no"),
            "the backend takes nothing now: what the backend sent is not HTTP: no",
        ),
        (
            httpx.Response(401),
            "the backend does not know our key (401): check BATCHWRIGHT_BACKEND_API_KEY, or the registry's",
        ),
        (
            httpx.Response(403),
            "the backend knows our key and refuses it this model (403): let it, or use another key",
        ),
    ],
)
async def test_the_reason_of_a_wait_is_one_sentence_that_does_not_name_the_model_again(
    reply: httpx.Response | httpx.HTTPError, reason: str
) -> None:
    def answer(content: str) -> httpx.Response:
        if isinstance(reply, httpx.Response):
            return httpx.Response(reply.status_code)
        raise reply

    house = House(answer)
    house.hurry()
    await plan_slice(house.storage, [line_of(n) for n in range(20)])
    assert (await house.failure(request())).message == reason
    await house.tools.waiting.settle()
    assert [(told.model, told.reason) for _, told in house.told] == [(MODEL, reason)]


async def test_a_worker_that_misses_what_slices_need_puts_them_back_untouched() -> None:
    house = House(ok)
    await plan_slice(house.storage, [line_of(1)])
    house.tools.missing = lambda: "storage: The bucket 'b' refuses writes."
    error = await house.failure(request())
    assert (error.type, error.category) == (Failure.DEFERRED, ApplicationErrorCategory.BENIGN)
    assert "The bucket 'b' refuses writes." in error.message
    assert (house.sent, await house.segment_names()) == ([], [])
    await house.tools.waiting.settle()
    assert [reason.reason for _, reason in house.told] == [error.message]
    house.tools.missing = lambda: ""
    assert (await house.run(request())).finished
