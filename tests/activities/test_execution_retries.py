"""Which lines are asked again, how often, and what they end with (R8)."""

import json
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import httpx
import pytest

from activities.slices.work import Attempt
from batchwright.contracts.errors import Failure
from batchwright.contracts.execution import SliceResult
from batchwright.rules.segments import Kind, Record
from tests.activities.execution_house import MODEL, House, Reply, line_of, ok, plan_slice, request, status

pytestmark = pytest.mark.usefixtures("skipped_waits")

LINES = 20
POISON = "3"

Trouble = int | bytes | type[httpx.TransportError]


def poisoned(answer: Callable[[], httpx.Response]) -> Reply:
    return lambda content: answer() if content == POISON else ok(content)


def failing_first(tries: int, answer: Callable[[], httpx.Response]) -> Reply:
    """The first `tries` requests, whichever lines they are, get `answer`."""
    left = [tries]

    def reply(content: str) -> httpx.Response:
        left[0] -= 1
        return answer() if left[0] >= 0 else ok(content)

    return reply


def trouble(kind: Trouble) -> Callable[[], httpx.Response]:
    """A status, a body that is not JSON, or an error of the transport."""

    def answer() -> httpx.Response:
        if isinstance(kind, int):
            return status(kind)
        if isinstance(kind, bytes):
            return httpx.Response(200, content=kind)
        raise kind("simulated")

    return answer


def trouble_of(kind: Trouble) -> Reply:
    return lambda content: trouble(kind)()


async def settled_line(house: House, number: int) -> dict[str, dict[str, object]]:
    """The error or output line of the slice's `number`-th line."""
    records = await house.settled()
    return json.loads(records[sorted(records)[number]].payload)


async def planned(house: House, lines: int = LINES) -> list[int]:
    house.hurry()
    return await plan_slice(house.storage, [line_of(n) for n in range(lines)])


@pytest.mark.parametrize("code", [408, 409, 425, 500, 507, 599])
async def test_a_poison_line_ends_after_its_attempts_with_its_answer(code: int) -> None:
    house = House(poisoned(lambda: status(code)))
    await planned(house)
    assert await house.run(request()) == SliceResult(finished=True, completed=LINES - 1, failed=1)
    assert Counter(house.sent)[POISON] == 5
    assert len(house.sent) == LINES - 1 + 5
    line = await settled_line(house, 3)
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
    house = House(poisoned(trouble(kind)))
    await planned(house)
    assert await house.run(request()) == SliceResult(finished=True, completed=LINES - 1, failed=1)
    assert Counter(house.sent)[POISON] == 5
    line = await settled_line(house, 3)
    assert (line["response"], line["error"]["code"]) == (None, code)


@pytest.mark.parametrize("code", [400, 402, 404, 413, 422, 501, 505])
async def test_a_refused_request_is_final_at_once_with_its_answer(code: int) -> None:
    house = House(lambda content: status(code))
    await planned(house, lines=1)
    assert await house.run(request()) == SliceResult(finished=True, failed=1)
    assert house.sent == ["0"]
    line = await settled_line(house, 0)
    assert line["response"]["body"] == {"error": {"message": "no"}}


async def test_an_answer_beyond_the_limit_is_final_at_once() -> None:
    house = House(
        lambda content: httpx.Response(200, content=b'"' + b"x" * 2000 + b'"'), max_response_bytes=1024
    )
    await planned(house, lines=1)
    assert await house.run(request()) == SliceResult(finished=True, failed=1)
    assert (await settled_line(house, 0))["error"]["code"] == "response_too_large"


@pytest.mark.parametrize(
    "kind", [302, 429, 502, 503, 504, 520, 529, httpx.ConnectError, httpx.ConnectTimeout]
)
async def test_an_outage_uses_up_no_attempts(kind: Trouble) -> None:
    house = House(failing_first(12, trouble(kind)), max_attempts=1)
    await planned(house)
    assert await until_finished(house) == SliceResult(finished=True, completed=LINES)
    assert {record.kind for record in await house.records()} == {Kind.SETTLED}


@pytest.mark.parametrize("kind", [500, httpx.ReadTimeout, httpx.ReadError, b"<html>"])
async def test_what_may_be_the_lines_fault_is_not_while_the_backend_answers_nobody(kind: Trouble) -> None:
    house = House(failing_first(12, trouble(kind)), max_attempts=2)
    await planned(house)
    assert await until_finished(house) == SliceResult(finished=True, completed=LINES)


async def test_a_single_line_that_always_fails_ends() -> None:
    house = House(lambda content: status(500))
    await planned(house, lines=1)
    assert await until_finished(house) == SliceResult(finished=True, failed=1)
    assert len(house.sent) == 5


@pytest.mark.parametrize("kind", [httpx.ReadError, httpx.ReadTimeout])
@pytest.mark.parametrize("left", [1, 2, 4])
async def test_a_backend_that_breaks_connections_fails_no_line_however_few_are_left(
    kind: Trouble, left: int
) -> None:
    house = House(failing_first(30, trouble(kind)))
    house.listing = lambda _: ok("") if len(house.sent) >= 30 else trouble(kind)()
    await planned(house, lines=left)
    assert await until_finished(house) == SliceResult(finished=True, completed=left)


async def test_a_line_that_breaks_its_connection_at_a_backend_that_is_there_ends() -> None:
    house = House(trouble_of(httpx.ReadError))
    await planned(house, lines=1)
    assert await until_finished(house) == SliceResult(finished=True, failed=1)
    assert len(house.sent) == 6  # the first may have been an outage
    assert (await settled_line(house, 0))["error"]["code"] == "connection_error"


async def test_a_line_that_takes_its_backend_down_each_time_ends_even_alone() -> None:
    """As it is seen from here: the backend is there, is asked, and then refuses connections for a while."""
    away = [0]

    def reply(content: str) -> httpx.Response:
        if away[0]:
            away[0] -= 1
            raise httpx.ConnectError("refused")
        away[0] = 7
        raise httpx.ReadError("reset")

    def listing(_: str) -> httpx.Response:
        if away[0]:
            raise httpx.ConnectError("refused")
        return ok("")

    house = House(reply)
    house.listing = listing
    await planned(house, lines=1)
    assert await until_finished(house) == SliceResult(finished=True, failed=1)
    assert (await settled_line(house, 0))["error"]["code"] == "connection_error"


async def test_poison_lines_that_are_left_alone_still_end() -> None:
    poison = {str(n) for n in range(0, 20, 2)}
    house = House(lambda content: status(500) if content in poison else ok(content))
    await planned(house)
    assert await until_finished(house) == SliceResult(finished=True, completed=10, failed=10)
    assert all(5 <= Counter(house.sent)[content] <= 7 for content in poison)


async def test_attempts_survive_the_turn_they_were_made_in() -> None:
    house = House(lambda content: status(500))
    (offset,) = await planned(house, lines=1)
    await house.store(Record(Kind.ATTEMPT, offset, Attempt(count=4).model_dump_json().encode()))
    assert await house.run(request()) == SliceResult(finished=True, failed=1)
    assert house.sent == ["0"]


async def test_a_line_is_not_asked_before_its_time() -> None:
    house = House(ok)
    (offset,) = await planned(house, lines=1)
    later = Attempt(count=1, not_before=time.time() + 20)
    await house.store(Record(Kind.ATTEMPT, offset, later.model_dump_json().encode()))
    error = await house.failure(request())
    assert error.type == Failure.DEFERRED
    assert error.next_retry_delay is not None
    assert 15 < error.next_retry_delay.total_seconds() <= 20
    assert house.sent == []


async def test_a_line_that_is_ready_goes_out_though_all_others_wait_for_long() -> None:
    house = House(ok)
    ready, waiting = await planned(house, lines=2)
    later = Attempt(count=1, not_before=time.time() + 20)
    await house.store(Record(Kind.ATTEMPT, waiting, later.model_dump_json().encode()))
    assert (await house.failure(request())).type == Failure.DEFERRED
    assert list(await house.settled()) == [ready]


async def test_retry_after_is_honoured_and_survives_the_turn() -> None:
    house = House(lambda content: status(429, **{"retry-after": "30"}))
    (offset,) = await planned(house, lines=1)
    error = await house.failure(request())
    (kept,) = await house.records()
    assert (kept.kind, kept.offset) == (Kind.ATTEMPT, offset)
    attempt = Attempt.model_validate_json(kept.payload)
    assert attempt.count == 0
    assert 25 < attempt.not_before - time.time() <= 30
    assert error.next_retry_delay is not None
    assert 25 < error.next_retry_delay.total_seconds() <= 30
    assert house.sent == ["0"]


@pytest.mark.parametrize("code", [429, 500, 503])
@pytest.mark.parametrize("header", ["retry-after", "retry-after-ms"])
async def test_no_line_is_put_off_beyond_its_window(code: int, header: str) -> None:
    house = House(lambda content: status(code, **{header: "300000"}))
    await planned(house, lines=1)
    closes_at = datetime.now(UTC) + timedelta(seconds=60)
    assert await house.turn(request(closes_at=closes_at)) is None
    (kept,) = await house.records()
    attempt = Attempt.model_validate_json(kept.payload)
    assert attempt.count == (code == 500)
    assert time.time() < attempt.not_before < closes_at.timestamp() - 25


@pytest.mark.parametrize(("code", "reason"), [(401, "authentication"), (403, "permission")])
async def test_a_refused_key_blocks_the_model_and_burns_no_line(code: int, reason: str) -> None:
    house = House(lambda content: status(code), model_in_flight=1, max_attempts=1)
    await planned(house)
    error = await house.failure(request())
    await house.tools.waiting.settle()
    assert error.type == Failure.DEFERRED
    assert f"({code})" in error.message
    assert await house.records() == []
    assert [told.reason for _, told in house.told] == [error.message]
    assert house.counted("batchwright_model_group_deferrals_total", model=MODEL, reason=reason) == 1
    house.reply = ok
    assert await until_finished(house) == SliceResult(finished=True, completed=LINES)
    await house.tools.waiting.settle()
    assert [told.reason for _, told in house.told] == [error.message, ""]


async def test_patience_with_capacity_can_be_limited() -> None:
    house = House(lambda content: status(503), give_up_after_seconds=0.000001)
    await planned(house, lines=1)
    assert await until_finished(house) == SliceResult(finished=True, failed=1)
    assert (await settled_line(house, 0))["response"]["status_code"] == 503


async def test_a_refusal_lowers_the_limit_of_the_backend() -> None:
    house = House(failing_first(1, lambda: status(429)), model_in_flight=8)
    await planned(house)
    await house.run(request())
    assert house.tools.permits.backends.limit_of("http://backend") < 8
    assert house.tools.permits.backends.in_flight("http://backend") == 0
    labels = {"backend": "http://backend", "cause": "refused"}
    assert house.counted("batchwright_backend_limit_changes_total", **labels) == 1
    assert house.counted("batchwright_request_retries_total", model=MODEL, category="rate_limit") == 1


async def until_finished(house: House) -> SliceResult:
    """Turn after turn, as Temporal would start them; the waits between them are skipped."""
    while True:
        result = await house.turn(request())
        if result is not None:
            return result
        house.next_attempt()


async def test_a_line_at_a_backend_that_never_lists_its_models_ends_too() -> None:
    house = House(lambda content: ok(content) if content == "0" else trouble(httpx.ReadError)())
    house.listing = lambda _: trouble(httpx.ReadError)()
    await planned(house, lines=2)
    assert await until_finished(house) == SliceResult(finished=True, completed=1, failed=1)
