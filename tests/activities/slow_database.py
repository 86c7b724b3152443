"""An environment for activities in which calls of the database last until the activity sends a heartbeat."""

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest
from temporalio.testing import ActivityEnvironment


class SlowDatabaseEnvironment(ActivityEnvironment):
    """An environment whose activities have a heartbeat timeout, and whose database is slow.

    An activity that calls a slow method of the database and sends no heartbeats never ends.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.info = dataclasses.replace(self.info, heartbeat_timeout=timedelta(milliseconds=3))
        self.on_heartbeat = lambda *_: self._beats.set()
        self._monkeypatch, self._beats = monkeypatch, asyncio.Event()

    def slow_down(self, table: object, method: str) -> None:
        """Let each call of a method of the database wait until the activity sends the next heartbeat."""
        call: Callable[..., Awaitable[object]] = getattr(table, method)

        async def call_after_a_heartbeat(*arguments: object) -> object:
            self._beats.clear()
            await self._beats.wait()
            return await call(*arguments)

        self._monkeypatch.setattr(table, method, call_after_a_heartbeat)
