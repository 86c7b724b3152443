"""Does to a running stack what the schedule says, and measures how soon it goes on."""

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress

import httpx

from tests.chaos.fleet import Proxies, Workers
from tests.chaos.schedule import Disturbance, Kind
from tests.e2e.stack import MODELS, Part, Stack

_LOOK_SECONDS = 0.05
_PATIENCE_SECONDS = 60.0
_DELAY_SECONDS = 0.2
_KILLED_PARTS: dict[Kind, Part] = {
    Kind.KILL_API: "api",
    Kind.KILL_TEMPORAL: "temporal",
    Kind.KILL_POSTGRES: "postgres",
}
_FAULTS = {Kind.OUTAGE: "503", Kind.HANG: "hang"}
# How long each model takes, so that a batch lasts some seconds and is met in the middle of things.
_LATENCY = {MODELS[0]: 0.4, MODELS[1]: 0.15, MODELS[2]: 0.05}
OF_WORKERS = frozenset({Kind.KILL_WORKER, Kind.KILL_ALL_WORKERS, Kind.FREEZE_WORKER})


async def settle_in(stack: Stack) -> None:
    """The models' latencies, after whatever faults there are: of several that fit, the oldest hits."""
    for model, seconds in _LATENCY.items():
        await stack.faults(model=model, kind="slow", seconds=seconds)


class Disturber:
    """`before_worker` is called right before a worker is killed or frozen."""

    def __init__(
        self, stack: Stack, workers: Workers, proxies: Proxies, before_worker: Callable[[], None]
    ) -> None:
        self._stack, self._workers, self._proxies = stack, workers, proxies
        self._before_worker = before_worker
        self.done: Counter[Kind] = Counter()
        self.recoveries: list[float] = []

    async def do(self, what: Disturbance) -> None:
        """Until it is over and the stack has answered something again."""
        await self._disturb(what)
        self.done[what.kind] += 1
        over = time.monotonic()
        await self._goes_on()
        self.recoveries.append(time.monotonic() - over)

    async def _disturb(self, what: Disturbance) -> None:
        if what.kind in OF_WORKERS or what.kind is Kind.TERM_WORKER:
            await self._to_workers(what)
        elif part := _KILLED_PARTS.get(what.kind):
            self._stack.kill(part)
        elif fault := _FAULTS.get(what.kind):
            await self._fault(what, fault)
        else:
            async with self._wire(what.kind):
                await asyncio.sleep(what.seconds)

    def _wire(self, kind: Kind) -> AbstractAsyncContextManager[None]:
        proxies = self._proxies
        match kind:
            case Kind.CUT_BACKEND | Kind.REFUSE_BACKEND:
                return proxies.backend.refusing()
            case Kind.STALL_BACKEND:
                return proxies.backend.stalled()
            case Kind.CUT_TEMPORAL:
                return proxies.temporal.refusing()
            case Kind.STALL_TEMPORAL:
                return proxies.temporal.stalled()
            case Kind.CUT_POSTGRES:
                return proxies.postgres.refusing()
            case Kind.STALL_POSTGRES:
                return proxies.postgres.stalled()
            case _:
                return proxies.postgres.delayed(_DELAY_SECONDS)

    async def _to_workers(self, what: Disturbance) -> None:
        pids = self._workers.pids
        if not pids:
            return
        chosen = pids if what.kind is Kind.KILL_ALL_WORKERS else [pids[int(what.choice * len(pids))]]
        if what.kind is Kind.TERM_WORKER:
            self._workers.signal(chosen[0], signal.SIGTERM)
            return
        self._before_worker()
        if what.kind is Kind.FREEZE_WORKER:
            await self._freeze(chosen[0], what.seconds)
            return
        for pid in chosen:
            self._workers.signal(pid, signal.SIGKILL)

    async def _freeze(self, pid: int, seconds: float) -> None:
        """Longer than the heartbeat timeout: others take its slices, and then it is there again."""
        self._workers.signal(pid, signal.SIGSTOP)
        await asyncio.sleep(seconds)
        if pid in self._workers.pids:
            os.kill(pid, signal.SIGCONT)

    async def _fault(self, what: Disturbance, kind: str) -> None:
        model = MODELS[int(what.choice * len(MODELS))]
        await self._stack.heal()
        await self._stack.faults(kind=kind, model=model, for_seconds=what.seconds)
        await settle_in(self._stack)
        await asyncio.sleep(what.seconds)

    async def _goes_on(self) -> None:
        """Until the backend has answered more than before, or there is hardly anything left to ask."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE_SECONDS), httpx.AsyncClient() as http:
                before = await self._answered(http)
                while await self._answered(http) == before:  # noqa: ASYNC110 - another process's
                    await asyncio.sleep(_LOOK_SECONDS)

    async def _answered(self, http: httpx.AsyncClient) -> int:
        answer = await http.get(self._stack.simulator + "/admin/ledger?entries=false")
        return answer.raise_for_status().json()["answered"]
