"""Which lines are retried, how often, and how they end."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable

import httpx
import pytest
from temporalio.exceptions import ApplicationError

from batchwright.activities.execution.slice_state.line_queue import LineAttempt
from batchwright.contracts.errors import Failure
from batchwright.contracts.temporal_payloads.execution import SliceResult
from batchwright.rules.results.segment_format import RecordKind, SegmentRecord
from tests.activities.execution.fixture import (
    MODEL,
    ExecutionFixture,
    Reply,
    in_seconds,
    line_of,
    ok,
    plan_slice,
    request,
    status,
)
from tests.background_tasks import reasons_published

pytestmark = pytest.mark.usefixtures("skipped_waits")

LINES = 20
POISON = "3"

Trouble = int | bytes | type[httpx.TransportError]


def poisoned(answer: Callable[[], httpx.Response]) -> Reply:
    return lambda content: answer() if content == POISON else ok(content)


def failing_first(tries: int, answer: Callable[[], httpx.Response]) -> Reply:
    """Return a backend that replies with `answer` to its first `tries` requests, whatever their line is. All
    later requests succeed.
    """
    left = [tries]

    def reply(content: str) -> httpx.Response:
        left[0] -= 1
        return answer() if left[0] >= 0 else ok(content)

    return reply


def trouble(kind: Trouble) -> Callable[[], httpx.Response]:
    """Return a function that returns a response with this status or body, or raises this transport error."""

    def answer() -> httpx.Response:
        if isinstance(kind, int):
            return status(kind)
        if isinstance(kind, bytes):
            return httpx.Response(200, content=kind)
        raise kind("simulated")

    return answer


def trouble_of(kind: Trouble) -> Reply:
    return lambda content: trouble(kind)()


async def settled_line(execution: ExecutionFixture, number: int) -> dict[str, dict[str, object]]:
    """Return the result of the slice's `number`-th line."""
    records = await execution.settled()
    return json.loads(records[sorted(records)[number]].payload)


async def planned(execution: ExecutionFixture, lines: int = LINES) -> list[int]:
    execution.hurry()
    return await plan_slice(execution.storage, [line_of(n) for n in range(lines)])


@pytest.mark.parametrize("code", [408, 409, 425, 500, 507, 599])
async def test_a_poison_line_ends_after_its_attempts_with_its_answer(code: int) -> None:
    execution = ExecutionFixture(poisoned(lambda: status(code)))
    await planned(execution)
    assert await execution.run(request()) == SliceResult(finished=True, completed=LINES - 1, failed=1)
    assert Counter(execution.sent)[POISON] == 5
    assert len(execution.sent) == LINES - 1 + 5
    line = await settled_line(execution, 3)
    assert (line["response"]["status_code"], line["error"]) == (code, None)


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (httpx.ReadTimeout, "request_timeout"),
        (httpx.ReadError, "connection_error"),
        (httpx.RemoteProtocolError, "invalid_response"),
        (b"<html>", "invalid_response"),
    ],
)
async def test_a_line_that_never_gets_an_answer_ends_with_a_code(kind: Trouble, code: str) -> None:
    execution = ExecutionFixture(poisoned(trouble(kind)))
    await planned(execution)
    assert await execution.run(request()) == SliceResult(finished=True, completed=LINES - 1, failed=1)
    assert Counter(execution.sent)[POISON] == 5
    line = await settled_line(execution, 3)
    assert (line["response"], line["error"]["code"]) == (None, code)


@pytest.mark.parametrize("code", [400, 402, 404, 413, 422, 501, 505])
async def test_a_refused_request_is_final_at_once_with_its_answer(code: int) -> None:
    execution = ExecutionFixture(lambda content: status(code))
    await planned(execution, lines=1)
    assert await execution.run(request()) == SliceResult(finished=True, failed=1)
    assert execution.sent == ["0"]
    line = await settled_line(execution, 0)
    assert line["response"]["body"] == {"error": {"message": "no"}}


async def test_a_response_above_the_size_limit_is_final_at_once() -> None:
    execution = ExecutionFixture(
        lambda content: httpx.Response(200, content=b'"' + b"x" * 2000 + b'"'), max_response_bytes=1024
    )
    await planned(execution, lines=1)
    assert await execution.run(request()) == SliceResult(finished=True, failed=1)
    assert (await settled_line(execution, 0))["error"]["code"] == "response_too_large"


@pytest.mark.parametrize(
    "kind", [302, 429, 502, 503, 504, 520, 529, httpx.ConnectError, httpx.ConnectTimeout]
)
async def test_an_outage_uses_up_no_attempts(kind: Trouble) -> None:
    execution = ExecutionFixture(failing_first(12, trouble(kind)), max_attempts=1)
    await planned(execution)
    assert await until_finished(execution) == SliceResult(finished=True, completed=LINES)
    assert {record.kind for record in await execution.records()} == {RecordKind.SETTLED}


@pytest.mark.parametrize("kind", [500, httpx.ReadTimeout, httpx.ReadError, b"<html>"])
async def test_an_error_is_not_attributed_to_the_line_while_the_backend_answers_no_request(
    kind: Trouble,
) -> None:
    execution = ExecutionFixture(failing_first(12, trouble(kind)), max_attempts=2)
    await planned(execution)
    assert await until_finished(execution) == SliceResult(finished=True, completed=LINES)


async def test_a_single_line_that_always_fails_ends() -> None:
    execution = ExecutionFixture(lambda content: status(500))
    await planned(execution, lines=1)
    assert await until_finished(execution) == SliceResult(finished=True, failed=1)
    assert len(execution.sent) == 5


@pytest.mark.parametrize("kind", [httpx.ReadError, httpx.ReadTimeout])
@pytest.mark.parametrize("left", [1, 2, 4])
async def test_a_backend_that_drops_connections_fails_no_line_even_if_few_are_left(
    kind: Trouble, left: int
) -> None:
    execution = ExecutionFixture(failing_first(30, trouble(kind)))
    execution.listing = lambda _: ok("") if len(execution.sent) >= 30 else trouble(kind)()
    await planned(execution, lines=left)
    assert await until_finished(execution) == SliceResult(finished=True, completed=left)


async def test_a_line_whose_connection_always_drops_at_a_healthy_backend_ends() -> None:
    execution = ExecutionFixture(trouble_of(httpx.ReadError))
    await planned(execution, lines=1)
    assert await until_finished(execution) == SliceResult(finished=True, failed=1)
    assert len(execution.sent) == 6  # the first may have been an outage
    assert (await settled_line(execution, 0))["error"]["code"] == "connection_error"


async def test_a_line_that_crashes_its_backend_each_time_ends_even_if_it_is_the_only_one() -> None:
    """The backend is up, gets requests, and then refuses connections for a while."""
    failures_left = [0]

    def reply(content: str) -> httpx.Response:
        if failures_left[0]:
            failures_left[0] -= 1
            raise httpx.ConnectError("refused")
        failures_left[0] = 7
        raise httpx.ReadError("reset")

    def listing(_: str) -> httpx.Response:
        if failures_left[0]:
            raise httpx.ConnectError("refused")
        return ok("")

    execution = ExecutionFixture(reply)
    execution.listing = listing
    await planned(execution, lines=1)
    assert await until_finished(execution) == SliceResult(finished=True, failed=1)
    assert (await settled_line(execution, 0))["error"]["code"] == "connection_error"


async def test_poison_lines_end_when_no_other_lines_are_left() -> None:
    poison = {str(n) for n in range(0, 20, 2)}
    execution = ExecutionFixture(lambda content: status(500) if content in poison else ok(content))
    await planned(execution)
    assert await until_finished(execution) == SliceResult(finished=True, completed=10, failed=10)
    assert all(5 <= Counter(execution.sent)[content] <= 7 for content in poison)


async def test_attempts_of_earlier_turns_count() -> None:
    execution = ExecutionFixture(lambda content: status(500))
    (offset,) = await planned(execution, lines=1)
    await execution.store(
        SegmentRecord(RecordKind.ATTEMPT, offset, LineAttempt(count=4).model_dump_json().encode())
    )
    assert await execution.run(request()) == SliceResult(finished=True, failed=1)
    assert execution.sent == ["0"]


async def test_a_line_is_not_retried_before_its_backoff_has_passed() -> None:
    execution = ExecutionFixture(ok)
    (offset,) = await planned(execution, lines=1)
    later = LineAttempt(count=1, not_before=time.time() + 20)
    await execution.store(SegmentRecord(RecordKind.ATTEMPT, offset, later.model_dump_json().encode()))
    error = await execution.failure(request())
    assert error.type == Failure.DEFERRED
    assert error.next_retry_delay is not None
    assert error.next_retry_delay.total_seconds() == pytest.approx(20, abs=0.1)
    assert execution.sent == []


async def test_a_ready_line_is_sent_while_all_others_wait_for_their_backoff() -> None:
    execution = ExecutionFixture(ok)
    ready, waiting = await planned(execution, lines=2)
    later = LineAttempt(count=1, not_before=time.time() + 20)
    await execution.store(SegmentRecord(RecordKind.ATTEMPT, waiting, later.model_dump_json().encode()))
    assert (await execution.failure(request())).type == Failure.DEFERRED
    assert list(await execution.settled()) == [ready]


async def test_retry_after_is_honoured_and_survives_the_turn() -> None:
    execution = ExecutionFixture(lambda content: status(429, **{"retry-after": "30"}))
    (offset,) = await planned(execution, lines=1)
    error = await execution.failure(request())
    (record,) = await execution.records()
    assert (record.kind, record.offset) == (RecordKind.ATTEMPT, offset)
    attempt = LineAttempt.model_validate_json(record.payload)
    assert attempt.count == 0
    assert attempt.not_before - time.time() == pytest.approx(30, abs=0.1)
    assert error.next_retry_delay is not None
    assert error.next_retry_delay.total_seconds() == pytest.approx(30, abs=0.1)
    assert execution.sent == ["0"]


@pytest.mark.parametrize("code", [429, 500, 503])
@pytest.mark.parametrize("header", ["retry-after", "retry-after-ms"])
async def test_no_backoff_is_longer_than_the_time_to_the_deadline(code: int, header: str) -> None:
    execution = ExecutionFixture(lambda content: status(code, **{header: "300000"}))
    await planned(execution, lines=1)
    deadline = in_seconds(60)
    assert await execution.turn(request(deadline=deadline)) is None
    (record,) = await execution.records()
    attempt = LineAttempt.model_validate_json(record.payload)
    assert attempt.count == (code == 500)
    assert time.time() < attempt.not_before < deadline.timestamp() - 25


@pytest.mark.parametrize(("code", "reason"), [(401, "authentication"), (403, "permission")])
async def test_a_refused_key_blocks_the_model_and_fails_no_line(code: int, reason: str) -> None:
    execution = ExecutionFixture(lambda content: status(code), model_in_flight=1, max_attempts=1)
    await planned(execution)
    error = await execution.failure(request())
    await reasons_published()
    assert error.type == Failure.DEFERRED
    assert f"({code})" in error.message
    assert await execution.records() == []
    [(_, reported)] = execution.reported_reasons
    assert f"({code})" in reported.reason
    assert "http://" not in reported.reason
    assert execution.counted("batchwright_model_group_deferrals_total", model=MODEL, reason=reason) == 1
    execution.reply = ok
    assert await until_finished(execution) == SliceResult(finished=True, completed=LINES)
    await reasons_published()
    assert [after.reason for _, after in execution.reported_reasons] == [reported.reason, ""]


async def test_patience_with_capacity_can_be_limited() -> None:
    execution = ExecutionFixture(lambda content: status(503), give_up_after_seconds=0.000001)
    await planned(execution, lines=1)
    assert await until_finished(execution) == SliceResult(finished=True, failed=1)
    assert (await settled_line(execution, 0))["response"]["status_code"] == 503


async def test_a_refusal_lowers_the_limit_of_the_backend() -> None:
    execution = ExecutionFixture(failing_first(1, lambda: status(429)), model_in_flight=8)
    await planned(execution)
    await execution.run(request())
    labels = {"backend": "http://backend", "cause": "rejected"}
    assert execution.counted("batchwright_backend_limit_changes_total", **labels) == 1
    assert execution.counted("batchwright_request_retries_total", model=MODEL, category="rate_limit") == 1


async def until_finished(execution: ExecutionFixture) -> SliceResult:
    """Run the slice again and again until it is finished. Before each run, wait as long as Temporal would."""
    while True:
        try:
            return await execution.run(request())
        except ApplicationError as error:
            if error.type not in (Failure.TURN_OVER, Failure.DEFERRED):
                raise
            await asyncio.sleep(error.next_retry_delay.total_seconds() if error.next_retry_delay else 0)
            execution.next_attempt()


async def test_a_line_at_a_backend_that_never_lists_its_models_ends_too() -> None:
    execution = ExecutionFixture(
        lambda content: ok(content) if content == "0" else trouble(httpx.ReadError)()
    )
    execution.listing = lambda _: trouble(httpx.ReadError)()
    await planned(execution, lines=2)
    assert await until_finished(execution) == SliceResult(finished=True, completed=1, failed=1)
