"""Quotas: which limits hold, what fits, what a request is taken for."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchwright.database.quotas_base import OwnQuotas
from batchwright.rules.findings import over_quota
from batchwright.rules.lines import Body, prompt_bytes, read_body
from batchwright.rules.quotas import Enqueued, Excess, Limits, Quota, estimated_tokens, excess, left


def body(text: str) -> Body:
    return read_body(msgspec.Raw(text.encode()))


def test_limits_are_named_as_quotas_are() -> None:
    assert Limits._fields == tuple(Quota)
    assert Limits(1, 2, 3, 4, 5).of(Quota.ENQUEUED_TOKENS) == 4


def test_a_tenants_own_limit_stands_before_the_setting_also_none_at_all() -> None:
    defaults = Limits(live_batches=50, enqueued_lines=7)
    own = OwnQuotas(live_batches=0, stored_bytes=9)
    assert own.limits(defaults) == Limits(live_batches=0, stored_bytes=9, enqueued_lines=7)
    assert OwnQuotas().limits(defaults) == defaults


@pytest.mark.parametrize(
    ("limits", "used", "asked", "found"),
    [
        (Limits(), Enqueued(10**9, 10**9), Enqueued(10**9, 10**9), None),
        (Limits(enqueued_lines=10), Enqueued(4, 0), Enqueued(6, 999), None),
        (Limits(enqueued_lines=10), Enqueued(4, 0), Enqueued(7, 0), Excess(Quota.ENQUEUED_LINES, 10, 4, 7)),
        (Limits(enqueued_tokens=9), Enqueued(1, 9), Enqueued(1, 1), Excess(Quota.ENQUEUED_TOKENS, 9, 9, 1)),
    ],
)
def test_work_fits_up_to_its_limit(
    limits: Limits, used: Enqueued, asked: Enqueued, found: Excess | None
) -> None:
    assert excess(limits, used, asked) == found


@given(st.integers(1, 10**6), st.integers(0, 10**9), st.data())
def test_what_is_left_never_grows_as_lines_settle_and_ends_at_nothing(
    lines: int, tokens: int, data: st.DataObject
) -> None:
    batch = Enqueued(lines, tokens)
    assert left(batch, 0) == batch
    some = data.draw(st.integers(0, lines))
    assert left(batch, some).tokens <= tokens
    assert left(batch, min(some + 1, lines)).tokens <= left(batch, some).tokens
    assert left(batch, lines) == left(batch, lines + 5) == Enqueued(0, 0)


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
    asked = body(text)
    assert estimated_tokens(asked, prompt_bytes(asked)) == tokens


def test_the_message_says_the_limit_and_what_to_do() -> None:
    error = over_quota(Excess(Quota.ENQUEUED_TOKENS, 90_000, 80_000, 20_000))
    assert (error.code, error.param, error.line) == ("token_limit_exceeded", None, None)
    assert "Limit: 90,000 enqueued tokens; 80,000 are enqueued" in error.message
    alone = over_quota(Excess(Quota.ENQUEUED_LINES, 10, 0, 20))
    assert "10 enqueued lines; this batch alone has 20. Split it" in alone.message
