"""Which failed requests are retried: retry budgets, categories of failures, backoff, and the Retry-After
header.
"""

import random
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchwright.rules.dispatch import retry_policy
from batchwright.rules.dispatch.retry_policy import (
    MAX_RETRY_AFTER,
    UPSTREAM_UNREACHABLE,
    Budget,
    Category,
    Classification,
    backoff,
    classify,
    classify_response,
    parse_retry_after,
    retry_after_of,
    within_deadline,
)
from tests.unit.rules.texts import matching, texts

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("budget", "codes"),
    [
        (Budget.SETTLED, [200, 201, 204, 299, 400, 402, 404, 410, 413, 422, 451, 501, 505]),
        (Budget.ATTEMPT, [408, 409, 425, 500, 506, 507, 511, 530, 599]),
        (Budget.CAPACITY, [429, 502, 503, 504, 520, 524, 529, 301, 307]),
        (Budget.CREDENTIALS, [401, 403]),
    ],
)
def test_each_status_uses_its_retry_budget(budget: Budget, codes: list[int]) -> None:
    assert {code: classify(code).budget for code in codes} == dict.fromkeys(codes, budget)


def test_backoff_doubles_up_to_the_maximum() -> None:
    waits = [backoff(n, initial=1, longest=60, draw=lambda: 1.0) for n in range(1, 9)]
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60]


def test_jitter_can_remove_the_whole_backoff() -> None:
    assert backoff(1, initial=1, longest=60, draw=lambda: 0.0) == 0


def test_very_many_failures_do_not_overflow() -> None:
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
    assert parse_retry_after(value, NOW) == seconds


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
    assert {code: classify(code).category for code in codes} == dict.fromkeys(codes, category)


def test_failures_without_a_status_have_a_category_too() -> None:
    unanswered = {
        retry_policy.NOT_SENT: (Budget.CAPACITY, Category.TRANSPORT),
        retry_policy.RESPONSE_INTERRUPTED: (Budget.ATTEMPT, Category.TRANSPORT),
        retry_policy.RESPONSE_TIMEOUT: (Budget.ATTEMPT, Category.TIMEOUT),
        retry_policy.INVALID_RESPONSE: (Budget.ATTEMPT, Category.RESPONSE_SHAPE),
        retry_policy.RESPONSE_TOO_LARGE: (Budget.SETTLED, Category.RESPONSE_SHAPE),
        retry_policy.HOOK_REJECTED: (Budget.SETTLED, Category.POLICY),
        retry_policy.NOT_AUTHENTICATED: (Budget.CREDENTIALS, Category.AUTHENTICATION),
    }
    assert all(tuple(verdict) == expected for verdict, expected in unanswered.items())


def test_every_category_is_used() -> None:
    response_body = {b"no healthy upstream", b"insufficient_quota", b""}
    answers = {
        classify_response(code, {}, body).category for code in range(100, 600) for body in response_body
    }
    others = {Category.TRANSPORT, Category.RESPONSE_SHAPE, Category.POLICY, Category.BUSY}
    assert answers | others == set(Category)


@pytest.mark.parametrize("code", [429, 502, 503, 504])
@pytest.mark.parametrize(
    ("response_body", "category"),
    [
        (b'{"error":{"message":"No healthy upstream"}}', Category.NO_HEALTHY_DEPLOYMENTS),
        (b'{"detail":"No deployments available for selected model"}', Category.NO_HEALTHY_DEPLOYMENTS),
        (b"no available server", Category.NO_HEALTHY_DEPLOYMENTS),
        (b'{"error":{"code":"insufficient_quota"}}', Category.BUDGET),
        (b"ExceededBudget: Budget has been exceeded!", Category.BUDGET),
    ],
)
def test_the_error_text_of_a_gateway_decides_the_category(
    code: int, response_body: bytes, category: Category
) -> None:
    assert classify_response(code, {}, response_body) == (Budget.CAPACITY, category)


@pytest.mark.parametrize(
    "response_body",
    [
        b'{"error":{"message":"litellm.InternalServerError: OpenAIException - Connection error."}}',
        b'{"detail":"litellm.APIConnectionError: ..."}',
        b"dial tcp 10.0.0.7:8000: connect: connection refused",
        b"Cannot connect to host vllm:8000 ssl:default",
        b"httpx.ConnectError: All connection attempts failed",
        b"[Errno -2] Name or service not known",
    ],
)
def test_a_gateway_500_for_an_unreachable_backend_is_classified_like_502(response_body: bytes) -> None:
    assert classify_response(500, {}, response_body) == (Budget.CAPACITY, Category.TRANSPORT)
    assert classify_response(500, {b"x-should-retry": b"false"}, response_body).budget is Budget.CAPACITY
    for code in (200, 400, 507):
        assert classify_response(code, {}, response_body) == classify(code)


@pytest.mark.parametrize(
    "request_body",
    [
        b'{"messages":[{"role":"user","content":"Why is my Connection refused?"}]}',
        b'{"messages":[{"role":"user","content":"Why is my connection\\u0020refused?"}]}',
        b'{"messages":[{"role":"user","content":"Why is my connection\\nrefused?"}]}',
    ],
)
@pytest.mark.parametrize(
    "response_body",
    [b'{"error":{"message":"Bad prompt: why is my connection refused?"}}', b"connection refused?"],
)
def test_text_quoted_from_the_request_does_not_decide_the_category(
    request_body: bytes, response_body: bytes
) -> None:
    assert classify_response(500, {}, response_body, request_body) == classify(500)
    assert classify_response(500, {}, response_body, b'{"messages":[]}') == UPSTREAM_UNREACHABLE


def test_text_late_in_an_error_does_not_decide_the_category() -> None:
    for response_body in (b'{"error":{"message":"%b"}}', b"%b", b'{"error":{"message":"no","prompt":"%b"}}'):
        assert classify_response(500, {}, response_body % (b"x" * 300 + b" connection refused")) == classify(
            500
        )
    assert classify_response(
        500, {}, b'{"error":{"message":"no","prompt":"connection refused"}}'
    ) == classify(500)


def test_a_quoted_prompt_does_not_decide_the_category() -> None:
    response_body = b'{"error":{"message":"rate limited: budget_exceeded, no healthy"}}'
    assert classify_response(429, {}, response_body, b'{"input":"budget_exceeded, no healthy"}') == classify(
        429
    )


def test_any_other_500_may_be_caused_by_the_line() -> None:
    for response_body in (
        b"",
        b'{"error":{"message":"Internal server error"}}',
        b"CUDA error: connection lost",
    ):
        assert classify_response(500, {}, response_body) == (Budget.ATTEMPT, Category.UPSTREAM_5XX)


@pytest.mark.parametrize("code", [200, 400, 401, 500])
def test_gateway_error_texts_are_ignored_for_other_statuses(code: int) -> None:
    assert classify_response(code, {}, b"no healthy upstream: insufficient_quota") == classify(code)


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
        (401, b"false", Budget.CREDENTIALS),
    ],
)
def test_x_should_retry_decides_if_the_line_may_have_caused_the_error(
    code: int, wish: bytes, budget: Budget
) -> None:
    assert classify_response(code, {b"x-should-retry": wish}, b"{}") == Classification(
        budget, classify(code).category
    )


@given(
    failures=st.integers(1, 40),
    initial=st.floats(0.001, 10),
    longest=st.floats(0.001, 100),
    seed=st.integers(),
)
def test_a_backoff_is_between_zero_and_its_maximum(
    failures: int, initial: float, longest: float, seed: int
) -> None:
    wait = backoff(failures, initial=initial, longest=longest, draw=random.Random(seed).random)
    assert 0 <= wait <= min(longest, initial * 2 ** (failures - 1))


def test_backoffs_are_spread_over_the_whole_range() -> None:
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
    assert retry_after_of(headers, NOW) == seconds


@given(value=texts(max_size=40) | matching(r"\w{3}, \d+ \w{3} \d+ \d+:\d+:\d+ [\w+-]+"))
def test_no_retry_after_header_exceeds_the_cap(value: str) -> None:
    wait = retry_after_of({b"retry-after": value.encode(), b"retry-after-ms": value.encode()}, NOW)
    assert wait is None or 0 <= wait <= MAX_RETRY_AFTER


@pytest.mark.parametrize(
    ("wait", "left", "waits"), [(5, 100, 5), (60, 100, 50), (300, 10, 5), (3, 0, 0), (3, -5, 0)]
)
def test_a_backoff_leaves_time_for_an_answer_before_the_deadline(
    wait: float, left: float, waits: float
) -> None:
    assert within_deadline(wait, left) == waits


def test_truncated_json_has_no_error_text() -> None:
    assert classify_response(500, {}, b'{"input":"connection refused","error') == classify(500)
