"""Quotas: which limits apply, which batches fit, which batches wait, and how many tokens a prompt counts."""

import msgspec
import pytest

from batchwright.contracts.terms import Quota
from batchwright.database.tables.tenants.quota_records import TenantQuotas
from batchwright.rules.input.line_parser import RequestBody, read_body
from batchwright.rules.input.validation_errors import quota_exceeded
from batchwright.rules.planning.request_work import estimate_tokens, prompt_bytes
from batchwright.rules.tenants.quotas import (
    DailyAmounts,
    EnqueuedWork,
    QuotaExcess,
    QuotaLimits,
    find_excess,
    queue_behind,
)


def body(text: str) -> RequestBody:
    return read_body(msgspec.Raw(text.encode()))


def test_limits_are_named_as_quotas_are() -> None:
    assert QuotaLimits._fields == tuple(Quota)
    assert QuotaLimits(1, 2, 3, 4, 5).of(Quota.ENQUEUED_TOKENS) == 4


def test_a_limit_of_the_tenant_overrides_the_setting_even_if_it_is_no_limit() -> None:
    defaults = QuotaLimits(live_batches=50, enqueued_lines=7)
    own = TenantQuotas(live_batches=0, stored_bytes=9, weight=2, max_in_flight=3)
    assert own.limits(defaults) == QuotaLimits(live_batches=0, stored_bytes=9, enqueued_lines=7)
    assert TenantQuotas().limits(defaults) == defaults


@pytest.mark.parametrize(
    ("limits", "used", "requested", "found"),
    [
        (QuotaLimits(), EnqueuedWork(10**9, 10**9), EnqueuedWork(10**9, 10**9), None),
        (QuotaLimits(enqueued_lines=10), EnqueuedWork(4, 0), EnqueuedWork(6, 999), None),
        (
            QuotaLimits(enqueued_lines=10),
            EnqueuedWork(4, 0),
            EnqueuedWork(7, 0),
            QuotaExcess(Quota.ENQUEUED_LINES, 10, 4, 7),
        ),
        (
            QuotaLimits(enqueued_tokens=9),
            EnqueuedWork(1, 9),
            EnqueuedWork(1, 1),
            QuotaExcess(Quota.ENQUEUED_TOKENS, 9, 9, 1),
        ),
    ],
)
def test_work_fits_up_to_its_limit(
    limits: QuotaLimits, used: EnqueuedWork, requested: EnqueuedWork, found: QuotaExcess | None
) -> None:
    assert find_excess(limits, used, requested) == found


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("{}", 1),
        ('{"input": "abcdef"}', 2),
        ('{"prompt": "abcdefg"}', 3),
        ('{"messages": [{"role": "user", "content": "hello"}], "max_tokens": 5000}', 10),
        ('{"instructions": "abcdef", "input": "abcdef", "tools": []}', 5),
        ('{"instructions": "abcdef", "input": "abcdef"}', 4),
        ('{"input": "abcdef", "tools": [{"a": 1}]}', 5),
    ],
)
def test_a_token_is_four_bytes_of_the_prompt(text: str, tokens: int) -> None:
    requested = body(text)
    assert estimate_tokens(requested, prompt_bytes(requested)) == tokens


def test_the_message_has_the_limit_and_the_remedy() -> None:
    error = quota_exceeded(QuotaExcess(Quota.ENQUEUED_TOKENS, 90_000, 80_000, 20_000))
    assert (error.code, error.param, error.line) == ("token_limit_exceeded", None, None)
    assert "Limit: 90,000 enqueued tokens; 80,000 are enqueued" in error.message
    alone = quota_exceeded(QuotaExcess(Quota.ENQUEUED_LINES, 10, 0, 20))
    assert "10 enqueued lines; this batch alone has 20. Split it" in alone.message


def test_a_quota_that_the_batch_exceeds_alone_is_named_first() -> None:
    limits = QuotaLimits(enqueued_lines=10, enqueued_tokens=100)
    found = find_excess(limits, EnqueuedWork(9, 90), EnqueuedWork(5, 101))
    assert found == QuotaExcess(Quota.ENQUEUED_TOKENS, 100, 90, 101)
    assert found is not None
    assert not found.can_wait


def test_a_batch_waits_behind_earlier_ones_even_if_it_fits() -> None:
    limits = QuotaLimits(enqueued_tokens=1000)
    found = queue_behind(limits, EnqueuedWork(1, 100), EnqueuedWork(1, 10), before=2)
    assert found is not None
    assert found.waiting_reason == (
        "its tenant may have 1,000 tokens enqueued: 100 are, and this batch has 10; "
        "2 earlier batches wait, too"
    )


def test_without_limits_nothing_waits() -> None:
    assert queue_behind(QuotaLimits(), EnqueuedWork(1, 1), EnqueuedWork(1, 1), before=2) is None


def test_a_batch_behind_one_other_waits_for_lines_if_only_they_are_limited() -> None:
    limits = QuotaLimits(enqueued_lines=1000)
    found = queue_behind(limits, EnqueuedWork(100, 1), EnqueuedWork(10, 1), before=1)
    assert found is not None
    assert found.waiting_reason == (
        "its tenant may have 1,000 lines enqueued: 100 are, and this batch has 10; 1 earlier batch waits, too"
    )


def test_a_batch_that_exceeds_a_quota_waits_for_that_one_behind_earlier_ones() -> None:
    limits = QuotaLimits(enqueued_lines=1000, enqueued_tokens=50)
    found = queue_behind(limits, EnqueuedWork(100, 45), EnqueuedWork(10, 6), before=3)
    assert found == QuotaExcess(Quota.ENQUEUED_TOKENS, 50, 45, 6, before=3)


def test_of_two_quotas_that_a_batch_exceeds_the_one_of_lines_is_named() -> None:
    limits = QuotaLimits(enqueued_lines=10, enqueued_tokens=100)
    found = find_excess(limits, EnqueuedWork(9, 90), EnqueuedWork(5, 50))
    assert found == QuotaExcess(Quota.ENQUEUED_LINES, 10, 9, 5)


@pytest.mark.parametrize(("requested", "can_wait"), [(10, True), (11, False)])
def test_a_batch_as_large_as_the_limit_can_wait_and_a_larger_one_cannot(
    requested: int, can_wait: bool
) -> None:
    assert QuotaExcess(Quota.ENQUEUED_LINES, 10, 5, requested).can_wait is can_wait


def test_tokens_and_cost_of_a_day_are_added_and_found_separately() -> None:
    amounts = DailyAmounts(3, 500).plus(DailyAmounts(4, 60))
    assert (amounts.of(Quota.TOKENS_PER_DAY), amounts.of(Quota.COST_PER_DAY)) == (7, 560)
    assert QuotaLimits(tokens_per_day=8, cost_per_day=9).budget == DailyAmounts(8, 9)
