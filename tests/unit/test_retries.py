"""Budgets, backoff and Retry-After (R8)."""

from datetime import UTC, datetime

import pytest

from batchwright.rules.retries import MAX_RETRY_AFTER, Budget, backoff, judge, retry_after

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
