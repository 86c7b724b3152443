"""Budgets, categories, backoff and Retry-After (R8)."""

import random
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchwright.rules import retries
from batchwright.rules.retries import (
    MAX_RETRY_AFTER,
    Budget,
    Category,
    Verdict,
    asked_wait,
    backoff,
    judge,
    judge_answer,
    retry_after,
    within,
)
from tests.unit.texts import matching, texts

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("budget", "codes"),
    [
        (Budget.SETTLED, [200, 201, 204, 299, 400, 402, 404, 410, 413, 422, 451, 501, 505]),
        (Budget.ATTEMPT, [408, 409, 425, 500, 506, 507, 511, 530, 599]),
        (Budget.CAPACITY, [429, 502, 503, 504, 520, 524, 529, 301, 307]),
        (Budget.BLOCKED, [401, 403]),
    ],
)
def test_each_status_uses_its_budget(budget: Budget, codes: list[int]) -> None:
    assert {code: judge(code).budget for code in codes} == dict.fromkeys(codes, budget)


def test_waits_double_up_to_the_longest() -> None:
    waits = [backoff(n, initial=1, longest=60, draw=lambda: 1.0) for n in range(1, 9)]
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60]


def test_chance_may_take_all_of_a_wait() -> None:
    assert backoff(1, initial=1, longest=60, draw=lambda: 0.0) == 0


def test_very_many_failures_are_no_overflow() -> None:
    assert backoff(100_000, initial=1, longest=60, draw=lambda: 1.0) == 60


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("7", 7.0),
        ("0.5", 0.5),
        (" 3 ", 3.0),
        ("-1", 0.0),
        ("86400", MAX_RETRY_AFTER),
        ("inf", MAX_RETRY_AFTER),
        ("Thu, 01 Jan 2026 12:00:30 GMT", 30.0),
        ("Thu, 01 Jan 2026 12:00:30 -0000", 30.0),
        ("Thu, 01 Jan 2026 11:00:00 GMT", 0.0),
        ("nan", None),
        ("soon", None),
        ("", None),
        (None, None),
    ],
)
def test_retry_after_is_seconds_or_a_date(value: str | None, seconds: float | None) -> None:
    assert retry_after(value, NOW) == seconds


@pytest.mark.parametrize(
    ("category", "codes"),
    [
        (Category.NONE, [200, 201, 299]),
        (Category.AUTHENTICATION, [401]),
        (Category.BUDGET, [402]),
        (Category.PERMISSION, [403]),
        (Category.MISSING_MODEL, [404]),
        (Category.TIMEOUT, [408, 409, 425]),
        (Category.RATE_LIMIT, [429]),
        (Category.INVALID_REQUEST, [400, 410, 413, 422, 501, 505]),
        (Category.UPSTREAM_5XX, [500, 507, 599]),
        (Category.SERVICE_UNAVAILABLE, [301, 502, 503, 504, 520, 529]),
        (Category.UNKNOWN, [100, 600, 999]),
    ],
)
def test_each_status_has_its_category(category: Category, codes: list[int]) -> None:
    assert {code: judge(code).category for code in codes} == dict.fromkeys(codes, category)


def test_what_is_no_status_has_a_category_too() -> None:
    unanswered = {
        retries.NOT_SENT: (Budget.CAPACITY, Category.TRANSPORT),
        retries.ANSWER_BROKE: (Budget.ATTEMPT, Category.TRANSPORT),
        retries.NO_ANSWER_IN_TIME: (Budget.ATTEMPT, Category.TIMEOUT),
        retries.UNREADABLE: (Budget.ATTEMPT, Category.RESPONSE_SHAPE),
        retries.TOO_LARGE: (Budget.SETTLED, Category.RESPONSE_SHAPE),
        retries.REJECTED: (Budget.SETTLED, Category.POLICY),
        retries.NO_KEY: (Budget.BLOCKED, Category.AUTHENTICATION),
    }
    assert all(tuple(verdict) == expected for verdict, expected in unanswered.items())


def test_every_category_is_that_of_something() -> None:
    said = {b"no healthy upstream", b"insufficient_quota", b""}
    answers = {judge_answer(code, {}, body).category for code in range(100, 600) for body in said}
    assert answers | {Category.TRANSPORT, Category.RESPONSE_SHAPE, Category.POLICY} == set(Category)


@pytest.mark.parametrize("code", [429, 502, 503, 504])
@pytest.mark.parametrize(
    ("said", "category"),
    [
        (b'{"error":{"message":"No healthy upstream"}}', Category.NO_HEALTHY_DEPLOYMENTS),
        (b'{"detail":"No deployments available for selected model"}', Category.NO_HEALTHY_DEPLOYMENTS),
        (b"no available server", Category.NO_HEALTHY_DEPLOYMENTS),
        (b'{"error":{"code":"insufficient_quota"}}', Category.BUDGET),
        (b"ExceededBudget: Budget has been exceeded!", Category.BUDGET),
    ],
)
def test_a_gateways_words_name_the_category_of_its_refusal(
    code: int, said: bytes, category: Category
) -> None:
    assert judge_answer(code, {}, said) == (Budget.CAPACITY, category)


@pytest.mark.parametrize(
    "said",
    [
        b'{"error":{"message":"litellm.InternalServerError: OpenAIException - Connection error."}}',
        b'{"detail":"litellm.APIConnectionError: ..."}',
        b"dial tcp 10.0.0.7:8000: connect: connection refused",
        b"Cannot connect to host vllm:8000 ssl:default",
        b"httpx.ConnectError: All connection attempts failed",
        b"[Errno -2] Name or service not known",
    ],
)
def test_a_gateway_that_reaches_nobody_and_answers_500_is_judged_as_with_502(said: bytes) -> None:
    assert judge_answer(500, {}, said) == (Budget.CAPACITY, Category.TRANSPORT)
    assert judge_answer(500, {b"x-should-retry": b"false"}, said).budget is Budget.CAPACITY
    for code in (200, 400, 507):
        assert judge_answer(code, {}, said) == judge(code)


def test_any_other_500_may_be_the_lines_own_fault() -> None:
    for said in (b"", b'{"error":{"message":"Internal server error"}}', b"CUDA error: connection lost"):
        assert judge_answer(500, {}, said) == (Budget.ATTEMPT, Category.UPSTREAM_5XX)


@pytest.mark.parametrize("code", [200, 400, 401, 500])
def test_elsewhere_a_gateways_words_mean_nothing(code: int) -> None:
    assert judge_answer(code, {}, b"no healthy upstream: insufficient_quota") == judge(code)


@pytest.mark.parametrize(
    ("code", "wish", "budget"),
    [
        (400, b"true", Budget.ATTEMPT),
        (422, b" True ", Budget.ATTEMPT),
        (500, b"false", Budget.SETTLED),
        (409, b"FALSE", Budget.SETTLED),
        (500, b"true", Budget.ATTEMPT),
        (400, b"false", Budget.SETTLED),
        (400, b"perhaps", Budget.SETTLED),
        (500, b"", Budget.ATTEMPT),
        (200, b"true", Budget.SETTLED),
        (503, b"false", Budget.CAPACITY),
        (429, b"false", Budget.CAPACITY),
        (401, b"false", Budget.BLOCKED),
    ],
)
def test_a_backend_decides_by_x_should_retry_where_the_line_may_be_at_fault(
    code: int, wish: bytes, budget: Budget
) -> None:
    assert judge_answer(code, {b"x-should-retry": wish}, b"{}") == Verdict(budget, judge(code).category)


@given(
    failures=st.integers(1, 40),
    initial=st.floats(0.001, 10),
    longest=st.floats(0.001, 100),
    seed=st.integers(),
)
def test_a_wait_is_anywhere_between_nothing_and_its_bound(
    failures: int, initial: float, longest: float, seed: int
) -> None:
    wait = backoff(failures, initial=initial, longest=longest, draw=random.Random(seed).random)
    assert 0 <= wait <= min(longest, initial * 2 ** (failures - 1))


def test_waits_are_spread_over_all_of_their_bound() -> None:
    draw = random.Random(7).random
    waits = [backoff(3, initial=1, longest=60, draw=draw) for _ in range(1000)]
    assert min(waits) < 0.2
    assert max(waits) > 3.8


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({b"retry-after": b"7"}, 7.0),
        ({b"retry-after": b"Thu, 01 Jan 2026 12:00:30 GMT"}, 30.0),
        ({b"retry-after": b"Fri, 02 Jan 2026 12:00:00 GMT"}, MAX_RETRY_AFTER),
        ({b"retry-after-ms": b"1500"}, 1.5),
        ({b"retry-after-ms": b"250", b"retry-after": b"9"}, 0.25),
        ({b"retry-after-ms": b"9e9"}, MAX_RETRY_AFTER),
        ({b"retry-after-ms": b"-5"}, 0.0),
        ({b"retry-after-ms": b"soon", b"retry-after": b"9"}, 9.0),
        ({b"retry-after": b"\xff"}, None),
        ({}, None),
    ],
)
def test_milliseconds_are_preferred_and_every_wait_is_capped(
    headers: dict[bytes, bytes], seconds: float | None
) -> None:
    assert asked_wait(headers, NOW) == seconds


@given(value=texts(max_size=40) | matching(r"\w{3}, \d+ \w{3} \d+ \d+:\d+:\d+ [\w+-]+"))
def test_no_header_is_more_than_a_wait_within_the_cap(value: str) -> None:
    wait = asked_wait({b"retry-after": value.encode(), b"retry-after-ms": value.encode()}, NOW)
    assert wait is None or 0 <= wait <= MAX_RETRY_AFTER


@pytest.mark.parametrize(
    ("wait", "left", "waits"), [(5, 100, 5), (60, 100, 50), (300, 10, 5), (3, 0, 0), (3, -5, 0)]
)
def test_a_wait_leaves_time_for_an_answer_within_the_window(wait: float, left: float, waits: float) -> None:
    assert within(wait, left) == waits
