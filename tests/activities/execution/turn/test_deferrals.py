"""Slices are deferred while none of their model's backends accepts requests. The batch shows the reason."""

from datetime import UTC, datetime, timedelta

import httpx
import pytest
from temporalio.exceptions import ApplicationErrorCategory

from batchwright.contracts.errors import Failure
from batchwright.contracts.temporal_payloads.execution import SliceResult
from batchwright.rules.results.segment_format import RecordKind, SegmentRecord
from tests.activities.execution.fixture import (
    BATCH,
    MODEL,
    ExecutionFixture,
    line_of,
    ok,
    plan_slice,
    request,
)
from tests.background_tasks import reasons_published


async def test_a_slice_of_an_unserved_model_is_deferred_and_keeps_its_counts() -> None:
    execution = ExecutionFixture(ok)
    execution.backends.is_served = False
    (offset,) = await plan_slice(execution.storage, [line_of(0)])
    await execution.store(SegmentRecord(RecordKind.SETTLED, offset, b"{}", True))
    error = await execution.failure(request())
    await execution.context.progress.send()
    await reasons_published()
    assert (error.type, error.category) == (Failure.DEFERRED, ApplicationErrorCategory.BENIGN)
    assert [(batch, reported.model, reported.reason) for batch, reported in execution.reported_reasons] == [
        (BATCH, MODEL, "no backend serves this model")
    ]
    assert execution.progress.upserts[0][0].completed == 1
    assert execution.counted("batchwright_errors_total", error_type="no_backend", model=MODEL) == 1
    assert execution.counted("batchwright_model_group_deferrals_total", model=MODEL, reason="no_backend") == 1
    assert (
        execution.counted("batchwright_model_group_deferral_seconds_count", model=MODEL, reason="no_backend")
        == 1
    )


async def test_deferrals_grow_from_five_seconds_to_a_minute() -> None:
    execution = ExecutionFixture(ok)
    execution.backends.is_served = False
    delays: list[float] = []
    for _ in range(6):
        error = await execution.failure(request())
        assert error.next_retry_delay is not None
        delays.append(error.next_retry_delay.total_seconds())
        execution.next_attempt()
    assert delays == [5, 10, 20, 40, 60, 60]


async def test_a_deferral_never_passes_the_deadline() -> None:
    execution = ExecutionFixture(ok)
    execution.backends.is_served = False
    error = await execution.failure(request(deadline=datetime.now(UTC) + timedelta(seconds=2)))
    assert error.next_retry_delay is not None
    assert error.next_retry_delay <= timedelta(seconds=2)


async def test_the_waiting_reason_is_cleared_when_the_slice_makes_progress() -> None:
    execution = ExecutionFixture(ok)
    execution.backends.is_served = False
    await plan_slice(execution.storage, [line_of(0)])
    await execution.failure(request())
    execution.next_attempt()
    execution.backends.is_served = True
    assert await execution.run(request()) == SliceResult(finished=True, completed=1)
    await reasons_published()
    assert [reported.reason for _, reported in execution.reported_reasons] == [
        "no backend serves this model",
        "",
    ]


async def test_an_outage_of_one_model_does_not_affect_the_others() -> None:
    execution = ExecutionFixture(lambda content: httpx.Response(503))
    execution.hurry()
    await plan_slice(execution.storage, [line_of(n) for n in range(20)])
    assert (await execution.failure(request())).type == Failure.DEFERRED
    assert not execution.circuit("another").is_open
    assert execution.context.permits.used == 0


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (httpx.Response(503), "the backend accepts no requests now: it answered 503"),
        (httpx.ConnectError("refused"), "the backend accepts no requests now: it could not be reached"),
        (
            httpx.RemoteProtocolError("no"),
            "the backend accepts no requests now: the backend's response is not HTTP",
        ),
        (
            httpx.Response(401),
            "the backend rejects Batchwright's API key (401): check BATCHWRIGHT_BACKEND_API_KEY, "
            "or the key in the registry",
        ),
        (
            httpx.Response(403),
            "the backend forbids Batchwright's API key to use this model (403): allow it there, or set "
            "another key",
        ),
    ],
)
async def test_the_waiting_reason_is_one_sentence_that_does_not_repeat_the_model(
    reply: httpx.Response | httpx.HTTPError, reason: str
) -> None:
    def answer(content: str) -> httpx.Response:
        if isinstance(reply, httpx.Response):
            return httpx.Response(reply.status_code)
        raise reply

    execution = ExecutionFixture(answer)
    execution.hurry()
    await plan_slice(execution.storage, [line_of(n) for n in range(20)])
    error = await execution.failure(request())
    assert error.message.startswith(f"{reason} (http://backend: ")  # only operators read it
    await reasons_published()
    assert [(reported.model, reported.reason) for _, reported in execution.reported_reasons] == [
        (MODEL, reason)
    ]


async def test_a_worker_without_a_part_of_the_backends_limit_returns_slices_to_their_queue() -> None:
    execution = ExecutionFixture(ok)
    await plan_slice(execution.storage, [line_of(1)])
    execution.context.permits.backends.set_shares({"http://backend": 0})
    error = await execution.failure(request())
    assert (error.type, error.category) == (Failure.DEFERRED, ApplicationErrorCategory.BENIGN)
    assert error.message.endswith("raise `in_flight` of http://backend, or run fewer workers")
    assert (execution.sent, await execution.segment_names()) == ([], [])
    await reasons_published()
    [(_, reported)] = execution.reported_reasons
    assert reported.reason.endswith("is divided between the workers, and this one has no part")
    assert execution.counted("batchwright_model_group_deferrals_total", model=MODEL, reason="capacity") == 1
    execution.context.permits.backends.set_shares({"http://backend": 1})
    assert (await execution.run(request())).finished


async def test_a_slice_whose_backend_interactive_calls_use_says_so() -> None:
    execution = ExecutionFixture(ok)
    await plan_slice(execution.storage, [line_of(1)])
    execution.context.permits.backends.set_shares({"http://backend": 0})
    execution.context.is_used_up_by_interactive = lambda url: url == "http://backend"
    error = await execution.failure(request())
    await reasons_published()
    [(_, reported)] = execution.reported_reasons
    assert reported.reason.startswith("interactive calls use the backend, ")
    assert error.message.startswith(reported.reason)


async def test_without_a_part_of_a_limit_a_slice_whose_window_is_over_still_ends() -> None:
    execution = ExecutionFixture(ok)
    await plan_slice(execution.storage, [line_of(1)])
    execution.context.permits.backends.set_shares({"http://backend": 0})
    past = datetime.now(UTC) - timedelta(seconds=1)
    assert not (await execution.run(request(deadline=past))).finished


async def test_a_worker_with_a_missing_dependency_defers_slices_without_starting_them() -> None:
    execution = ExecutionFixture(ok)
    await plan_slice(execution.storage, [line_of(1)])
    execution.context.missing_dependencies = lambda: "storage: The bucket 'b' refuses writes."
    error = await execution.failure(request())
    assert (error.type, error.category) == (Failure.DEFERRED, ApplicationErrorCategory.BENIGN)
    assert "The bucket 'b' refuses writes." in error.message
    assert (execution.sent, await execution.segment_names()) == ([], [])
    await reasons_published()
    [(_, reported)] = execution.reported_reasons
    assert reported.reason == "object storage or the database does not answer the worker"
    execution.context.missing_dependencies = lambda: ""
    assert (await execution.run(request())).finished
