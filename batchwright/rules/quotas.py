"""Quotas of a tenant: what is counted, which limits hold, and how many tokens a request is taken for."""

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

from msgspec import UNSET

from batchwright.rules.lines import Prompting, written

MOST = 2**53 - 1  # every JSON parser reads it as it stands
_BYTES_PER_TOKEN = 4


class Quota(StrEnum):
    LIVE_BATCHES = "live_batches"
    STORED_BYTES = "stored_bytes"
    ENQUEUED_LINES = "enqueued_lines"
    ENQUEUED_TOKENS = "enqueued_tokens"
    REQUESTS_PER_MINUTE = "requests_per_minute"
    TOKENS_PER_DAY = "tokens_per_day"


class Limits(NamedTuple):
    """Of one tenant; 0: no limit. The names are those of `Quota`."""

    live_batches: int = 0
    stored_bytes: int = 0
    enqueued_lines: int = 0
    enqueued_tokens: int = 0
    requests_per_minute: int = 0
    tokens_per_day: int = 0

    def of(self, quota: Quota) -> int:
        return self._asdict()[quota]

    def changed(self, own: Mapping[str, int | None]) -> "Limits":
        """With a tenant's own limits in place of these; None stands for none of its own."""
        return self._replace(**{name: limit for name, limit in own.items() if limit is not None})


class Enqueued(NamedTuple):
    """Work that waits for its result."""

    lines: int
    tokens: int


class Excess(NamedTuple):
    """What does not fit: `asked` beside `used` is more than `limit`."""

    quota: Quota
    limit: int
    used: int
    asked: int


def excess(limits: Limits, used: Enqueued, asked: Enqueued) -> Excess | None:
    """Whether more work may be enqueued; None: it may."""
    wanted = (
        Excess(Quota.ENQUEUED_LINES, limits.enqueued_lines, used.lines, asked.lines),
        Excess(Quota.ENQUEUED_TOKENS, limits.enqueued_tokens, used.tokens, asked.tokens),
    )
    return next((found for found in wanted if found.limit and found.used + found.asked > found.limit), None)


def left(batch: Enqueued, settled: int) -> Enqueued:
    """Of a batch when `settled` of its lines have their results: tokens in proportion, rounded up."""
    lines = max(batch.lines - settled, 0)
    return Enqueued(lines, -(-batch.tokens * lines // batch.lines) if lines else 0)


def estimated_tokens(body: Prompting, asked: int) -> int:
    """Of the prompt alone, `asked` bytes of it: a token for each four bytes of its JSON, at least one.

    OpenAI's rule of thumb. No tokenizer is asked: which one is right only the backend knows.
    """
    if body.instructions is not UNSET or body.tools is not UNSET:
        asked += written(body.instructions) + written(body.tools)
    return -(-asked // _BYTES_PER_TOKEN) or 1
