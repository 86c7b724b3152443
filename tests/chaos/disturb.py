"""Applies disturbances to a running stack, and measures how soon requests are answered again."""

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress

import httpx

from tests.chaos.fleet import Workers, no_room_for
from tests.chaos.phases import reached
from tests.chaos.schedule import Disturbance, Kind
from tests.chaos.wires import Wires
from tests.chaos.witness import Witness
from tests.clients import http_client
from tests.e2e.stack import MODELS, Part, Stack

_LOOK_SECONDS = 0.05
_PATIENCE_SECONDS = 60.0
_RESTART_SECONDS = 240.0
_PARTS: dict[Kind, tuple[Part, ...]] = {
    Kind.KILL_API: ("api",),
    Kind.KILL_TEMPORAL: ("temporal",),
    Kind.KILL_POSTGRES: ("postgres",),
    Kind.KILL_EVERYTHING: ("api", "temporal", "postgres"),
}
_FROZEN: dict[Kind, Part] = {Kind.FREEZE_API: "api", Kind.FREEZE_TEMPORAL: "temporal"}
_FAULTS = {Kind.OUTAGE: "503", Kind.HANG: "hang"}
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


async def settle_in(stack: Stack) -> None:
    """Give each model of the simulator its usual latency. Faults that were set earlier have precedence."""
    for model, seconds in _LATENCY.items():
        await stack.faults(model=model, kind="slow", seconds=seconds)


class Disturber:
    """Applies disturbances to a stack and counts them.

    `may_repeat` is the number of requests that had no stored result when a disturbance began. This many
    requests may be sent twice without breaking a promise.
    """

    def __init__(self, stack: Stack, workers: Workers, wires: Wires, witness: Witness) -> None:
        self._stack, self._workers, self._wires, self._witness = stack, workers, wires, witness
        self.done: Counter[Kind] = Counter()
        self.missed: Counter[Kind] = Counter()  # phases that no batch came to
        self.kills = 0  # processes
        self.may_repeat = 0
        self.recoveries: list[float] = []

    async def do(self, what: Disturbance) -> None:
        """Apply one disturbance. Wait until it is over and the backend has answered another request."""
        if not await reached(self._stack.now.postgres, what.kind):
            self.missed[what.kind] += 1
            return
        if what.kind not in _ALL_WORKERS:  # of a phase that lasts milliseconds, nothing is left after a look
            self.may_repeat += await self._witness.under_way()
        await self._disturb(what)
        self.may_repeat += await self._witness.under_way()
        self.done[what.kind] += 1
        over = time.monotonic()
        await self._batch_continues()
        self.recoveries.append(time.monotonic() - over)

    async def _disturb(self, what: Disturbance) -> None:
        kind = what.kind
        if kind in _ALL_WORKERS or kind in _ONE_WORKER:
            await self._to_workers(what)
        for part in _PARTS.get(kind, ()):
            self.kills += _signal(self._stack.now.pids.of(part), signal.SIGKILL)
        if fault := _FAULTS.get(kind):
            await self._fault(what, fault)
        elif part := _FROZEN.get(kind):
            await self._freeze_part(part, what.seconds)
        elif kind is Kind.KILL_POSTGRES_TWICE:
            await self._kill_twice(what.seconds)
        elif kind is Kind.FILL_DISK:
            with no_room_for([*self._workers.pids, *self._stack.now.pids.api]):
                await asyncio.sleep(what.seconds)
        elif kind not in _ALL_WORKERS and kind not in _ONE_WORKER and kind not in _PARTS:
            async with self._wires.disturbed(kind):
                await asyncio.sleep(what.seconds)

    async def _to_workers(self, what: Disturbance) -> None:
        pids = self._workers.pids
        if not pids:
            return
        chosen = pids if what.kind in _ALL_WORKERS else [pids[int(what.choice * len(pids))]]
        if what.kind is Kind.FREEZE_WORKER:
            await self._freeze(chosen[0], what.seconds)
            return
        stopped = what.kind in (Kind.TERM_WORKER, Kind.TERM_ALL_WORKERS)
        for pid in chosen:
            self._workers.signal(pid, signal.SIGTERM if stopped else signal.SIGKILL)
        self.kills += 0 if stopped else len(chosen)

    async def _freeze(self, pid: int, seconds: float) -> None:
        """Suspend a worker with SIGSTOP for longer than the heartbeat timeout, and then continue it.

        Meanwhile, other workers take its slices, so that it no longer owns them when it continues.
        """
        self._workers.signal(pid, signal.SIGSTOP)
        await asyncio.sleep(seconds)
        if pid in self._workers.pids:
            self._workers.signal(pid, signal.SIGCONT)

    async def _freeze_part(self, part: Part, seconds: float) -> None:
        """Suspend all processes of a part. Its connections stay open, but nothing is sent on them."""
        pids = self._stack.now.pids.of(part)
        _signal(pids, signal.SIGSTOP)
        try:
            await asyncio.sleep(seconds)
        finally:
            _signal(pids, signal.SIGCONT)

    async def _kill_twice(self, seconds: float) -> None:
        """Kill PostgreSQL, wait until it has been started again, and kill the new process after `seconds`.

        At that time, the new process may be starting, recovering or ready.
        """
        [first] = self._stack.now.pids.of("postgres")
        self.kills += _signal([first], signal.SIGKILL)
        until = time.monotonic() + _RESTART_SECONDS
        while (second := self._stack.postmaster) in (None, first):
            assert time.monotonic() < until, "PostgreSQL was not started again"
            await asyncio.sleep(_LOOK_SECONDS)
        await asyncio.sleep(seconds)
        self.kills += _signal([second], signal.SIGKILL)

    async def _fault(self, what: Disturbance, kind: str) -> None:
        model = MODELS[int(what.choice * len(MODELS))]
        await self._stack.heal()
        await self._stack.faults(kind=kind, model=model, for_seconds=what.seconds)
        await settle_in(self._stack)
        await asyncio.sleep(what.seconds)

    async def _batch_continues(self) -> None:
        """Wait until the backend has answered another request.

        Give up after a minute, because there may be nothing left to send.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE_SECONDS), http_client() as http:
                before = await self._answered(http)
                while await self._answered(http) == before:  # noqa: ASYNC110 - another process's
                    await asyncio.sleep(_LOOK_SECONDS)

    async def _answered(self, http: httpx.AsyncClient) -> int:
        answer = await http.get(self._stack.simulator + "/admin/ledger?entries=false")
        return answer.raise_for_status().json()["completed"]


def _signal(pids: Iterable[int], number: signal.Signals) -> int:
    """Send a signal to the processes that still exist, and return how many there were."""
    met = 0
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
            met += 1
    return met
