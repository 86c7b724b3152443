"""Helpers for tests of timers and of limits."""

import asyncio

import pytest

from batchwright.rules.tenants.attempt_limiter import AttemptLimiter


def skip_time(seconds: float) -> None:
    """Move the running event loop's clock forward by `seconds`, so that its timers fire."""
    loop = asyncio.get_running_loop()
    before = loop.time
    setattr(loop, "time", lambda: before() + seconds)  # noqa: B010 - a method, for this loop only


def stop_time_of_limiters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop the clock of all rate limiters that are created from now on.

    Otherwise a test whose requests take longer than a second could send more of them than the limit.
    """
    monkeypatch.setattr(AttemptLimiter.__init__, "__defaults__", (lambda: 0.0,))
