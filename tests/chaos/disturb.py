"""Applies disturbances to a running stack, and measures how soon it recovers."""

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import httpx

from tests.chaos.fleet import Workers, no_room_for
from tests.chaos.load import Seen
from tests.chaos.phases import reached
from tests.chaos.schedule import Disturbance, Kind
from tests.chaos.wires import Wires
from tests.chaos.witness import Witness
from tests.clients import http_client
from tests.e2e.stack import MODELS, Part, Stack

_LOOK_SECONDS = 0.05
_ANSWER_PATIENCE_SECONDS = 60.0  # there may be nothing left to send
_BATCHES_PATIENCE_SECONDS = 120.0
_RESTART_SECONDS = 240.0
_PARTS: dict[Kind, tuple[Part, ...]] = {
    Kind.KILL_API: ("api",),
    Kind.KILL_TEMPORAL: ("temporal",),
    Kind.KILL_POSTGRES: ("postgres",),
    Kind.KILL_EVERYTHING: ("api", "temporal", "postgres"),
}
_FROZEN: dict[Kind, Part] = {
    Kind.FREEZE_API: "api",
    Kind.FREEZE_TEMPORAL: "temporal",
    Kind.FREEZE_POSTGRES: "postgres",
}
_FAULTS: dict[Kind, dict[str, str | float]] = {
    Kind.OUTAGE: {"kind": "503"},
    Kind.HANG: {"kind": "hang"},
    Kind.LIMIT: {"kind": "429"},
    Kind.SLOW: {"kind": "slow", "seconds": 5},
}
# How long each model takes, so that a batch lasts some seconds and is met in the middle of things.
_LATENCY = {MODELS[0]: 0.4, MODELS[1]: 0.15, MODELS[2]: 0.05}
_ONE_WORKER = frozenset({Kind.KILL_WORKER, Kind.TERM_WORKER, Kind.FREEZE_WORKER})
_ALL_WORKERS = frozenset(
    {
        Kind.KILL_ALL_WORKERS,
        Kind.KILL_INGESTING,
        Kind.KILL_RUNNING,
        Kind.KILL_FINALIZING,
        Kind.KILL_CANCELLING,
        Kind.KILL_EVERYTHING,
        Kind.TERM_ALL_WORKERS,
    }
)


class Recovery(NamedTuple):
    """The times that a stack needed to recover from disturbances that came together.

    Attributes:
        answer: seconds from their end to the next response of the backend; 60 if there was none by then.
        batches: seconds from their end until the user had seen progress of every batch that ran then; 120 if
            that took longer; None if it was not measured.
    """

    kinds: tuple[Kind, ...]
    answer: float
    batches: float | None


async def settle_in(stack: Stack) -> None:
    """Give each model of the simulator its usual latency. Faults that are already set have precedence."""
    for model, seconds in _LATENCY.items():
        await stack.faults(model=model, kind="slow", seconds=seconds)


class Disturber:
    """A tool that applies disturbances to a stack and counts them.

    `may_repeat` counts the requests that had no stored result before or after a disturbance. This many
    requests may be sent twice without breaking a promise.
    """

    def __init__(self, stack: Stack, workers: Workers, wires: Wires, witness: Witness) -> None:
        self._stack, self._workers, self._wires, self._witness = stack, workers, wires, witness
        self._faults: list[dict[str, str | float]] = []
        self._setting_faults = asyncio.Lock()
        self.done: Counter[Kind] = Counter()
        self.kills = 0  # processes
        self.may_repeat = 0
        self.recoveries: list[Recovery] = []

    async def do(self, burst: Sequence[Disturbance], live: Iterable[Seen], *, patiently: bool) -> bool:
        """Apply disturbances together. Wait until they are over and the backend has answered again.

        A disturbance needs a process, or a batch in a certain phase. If there was none, the disturbance does
        not count. Return False if none of the disturbances counts.

        Args:
            live: the batches that run.
            patiently: also wait until all of these batches have made progress.
        """
        self.may_repeat += await self._witness.under_way()
        were_met = await asyncio.gather(*(self._do(what) for what in burst))
        kinds = tuple(what.kind for what, was_met in zip(burst, were_met, strict=True) if was_met)
        self.done.update(kinds)
        if not kinds:
            return False
        answer, batches, under_way = await asyncio.gather(
            self._seconds_until_answer(),
            _seconds_until_progress(live) if patiently else _nothing(),
            self._witness.under_way(),
        )
        self.may_repeat += under_way
        self.recoveries.append(Recovery(kinds, answer, batches))
        return True

    async def _do(self, what: Disturbance) -> bool:
        await asyncio.sleep(what.pause)
        return await reached(self._stack.now.postgres, what.kind) and await self._disturb(what)

    async def _disturb(self, what: Disturbance) -> bool:
        """Apply a disturbance. Return False if the processes to disturb were not there."""
        kind = what.kind
        if kind in _PARTS or kind in _ALL_WORKERS or kind in _ONE_WORKER:
            pids = [pid for part in _PARTS.get(kind, ()) for pid in self._stack.now.pids.of(part)]
            killed = _signal(pids, signal.SIGKILL)
            self.kills += killed
            return killed + await self._to_workers(what) > 0
        if fault := _FAULTS.get(kind):
            async with self._faulty({**fault, "model": MODELS[int(what.choice * len(MODELS))]}):
                await asyncio.sleep(what.seconds)
        elif part := _FROZEN.get(kind):
            return await self._freeze_part(part, what.seconds)
        elif kind is Kind.KILL_POSTGRES_TWICE:
            await self._kill_twice(what.seconds)
        elif kind is Kind.FILL_DISK:
            with no_room_for([*self._workers.pids, *self._stack.now.pids.api]):
                await asyncio.sleep(what.seconds)
        else:
            async with self._wires.disturbed(kind):
                await asyncio.sleep(what.seconds)
        return True

    async def _to_workers(self, what: Disturbance) -> int:
        """Apply a disturbance to workers, if it concerns them. Return how many there were."""
        pids = self._workers.pids
        if not pids or not (what.kind in _ALL_WORKERS or what.kind in _ONE_WORKER):
            return 0
        chosen = pids if what.kind in _ALL_WORKERS else [pids[int(what.choice * len(pids))]]
        if what.kind is Kind.FREEZE_WORKER:
            await self._freeze(chosen[0], what.seconds)
            return 1
        stopped = what.kind in (Kind.TERM_WORKER, Kind.TERM_ALL_WORKERS)
        for pid in chosen:
            self._workers.signal(pid, signal.SIGTERM if stopped else signal.SIGKILL)
        self.kills += 0 if stopped else len(chosen)
        return len(chosen)

    async def _freeze(self, pid: int, seconds: float) -> None:
        """Suspend a worker with SIGSTOP for longer than the heartbeat timeout, and then continue it.

        Meanwhile, other workers take its slices, so that it no longer owns them when it continues.
        """
        self._workers.signal(pid, signal.SIGSTOP)
        await asyncio.sleep(seconds)
        if pid in self._workers.pids:
            self._workers.signal(pid, signal.SIGCONT)

    async def _freeze_part(self, part: Part, seconds: float) -> bool:
        """Suspend all processes of a part of the stack. Its connections stay open, but nothing is sent on
        them.

        Return False if the part has no process.
        """
        pids = self._stack.now.pids.of(part)
        found = _signal(pids, signal.SIGSTOP)
        children = [child for pid in pids for child in _children(pid)]  # PostgreSQL has one per connection
        _signal(children, signal.SIGSTOP)
        try:
            await asyncio.sleep(seconds)
        finally:
            _signal([*children, *pids], signal.SIGCONT)
        return found > 0

    async def _kill_twice(self, seconds: float) -> None:
        """Kill PostgreSQL, wait until it has been started again, and kill the new process after `seconds`.

        At that time, the new process may be starting, recovering or ready.
        """
        first = self._stack.now.pids.postgres
        self.kills += _signal([first], signal.SIGKILL)
        until = time.monotonic() + _RESTART_SECONDS
        while (second := self._stack.postmaster) in (None, first):
            assert time.monotonic() < until, "PostgreSQL was not started again"
            await asyncio.sleep(_LOOK_SECONDS)
        await asyncio.sleep(seconds)
        self.kills += _signal([second], signal.SIGKILL)

    @asynccontextmanager
    async def _faulty(self, fault: dict[str, str | float]) -> AsyncGenerator[None]:
        """Context manager in which a model of the simulator has a fault."""
        self._faults.append(fault)
        await self._set_faults()
        try:
            yield
        finally:
            self._faults.remove(fault)
            await self._set_faults()

    async def _set_faults(self) -> None:
        """Let the simulator have the faults that are applied now, and no others."""
        async with self._setting_faults:
            await self._stack.heal()
            for fault in self._faults:
                await self._stack.faults(**fault)
            await settle_in(self._stack)

    async def _seconds_until_answer(self) -> float:
        """Wait until the backend has answered another request, for at most a minute. Return the seconds."""
        began = time.monotonic()
        async with http_client() as http:
            before = await self._answered(http)
            while time.monotonic() < began + _ANSWER_PATIENCE_SECONDS:
                if await self._answered(http) != before:
                    return time.monotonic() - began
                await asyncio.sleep(_LOOK_SECONDS)
        return _ANSWER_PATIENCE_SECONDS

    async def _answered(self, http: httpx.AsyncClient) -> int:
        answer = await http.get(self._stack.simulator + "/admin/ledger?entries=false")
        return answer.raise_for_status().json()["completed"]


async def _seconds_until_progress(live: Iterable[Seen]) -> float:
    """Wait until the batches that run now have made progress, for at most two minutes. Return the seconds."""
    began = time.monotonic()
    waiting = [seen for seen in live if seen.ended_at is None]
    for seen in waiting:
        seen.await_progress()
    while time.monotonic() < began + _BATCHES_PATIENCE_SECONDS:
        if all(seen.has_progressed for seen in waiting):
            return time.monotonic() - began
        await asyncio.sleep(_LOOK_SECONDS)
    return _BATCHES_PATIENCE_SECONDS


async def _nothing() -> None:
    """Return None, in place of a measurement."""


def _children(pid: int) -> list[int]:
    """Return the ids of the processes that a process has started and that still run."""
    found: list[int] = []
    for threads in Path("/proc", f"{pid}", "task").glob("*/children"):
        with suppress(FileNotFoundError, ProcessLookupError):
            found += map(int, threads.read_text().split())
    return found


def _signal(pids: Iterable[int], number: signal.Signals) -> int:
    """Send a signal to the processes that still exist, and return how many there were."""
    met = 0
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
            met += 1
    return met
