"""Ends exchanges that take too long, with one timer for all of a kind instead of one each."""

import asyncio
from collections.abc import Callable
from functools import partial

from msgspec import Struct


class Watch(Struct, eq=False):
    """One exchange that is under way; `overdue` is called once, if it still is when its time is up.

    Whoever sets `overdue` later than at once asks first whether it `is_over`.
    """

    lane: "dict[Watch, None]"  # of the same patience, so that the first is always the next to be due
    at: float
    overdue: Callable[[], None]
    is_over: bool = False

    def end(self) -> None:
        self.lane.pop(self, None)


class Deadlines:
    """Of one event loop."""

    def __init__(self) -> None:
        self._lanes: dict[float, dict[Watch, None]] = {}
        self._timers: dict[float, asyncio.TimerHandle] = {}

    def start(self, seconds: float) -> Watch:
        """To be ended by its `end`, whatever comes."""
        loop, lane = asyncio.get_running_loop(), self._lanes.get(seconds)
        if lane is None:
            lane = self._lanes[seconds] = {}
        watch = Watch(lane, loop.time() + seconds, _nothing)
        lane[watch] = None
        if seconds not in self._timers:
            self._timers[seconds] = loop.call_at(watch.at, partial(self._due, seconds))
        return watch

    def close(self) -> None:
        """For good, or until the next one is started."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._lanes = {seconds: lane for seconds, lane in self._lanes.items() if lane}

    def _due(self, seconds: float) -> None:
        loop, lane = asyncio.get_running_loop(), self._lanes[seconds]
        while (first := next(iter(lane), None)) is not None and first.at <= loop.time():
            first.end()
            first.is_over = True
            first.overdue()
        if first is not None:
            self._timers[seconds] = loop.call_at(first.at, partial(self._due, seconds))
        elif self._lanes.get(seconds) is lane:  # whoever was overdue may have closed it
            del self._timers[seconds], self._lanes[seconds]


def _nothing() -> None:
    """Of a watch whose exchange has no connection yet: once it has one, it looks whether its time is up."""
