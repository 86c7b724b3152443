"""Keeps this worker's share of the limits that backends and models have for the whole fleet."""

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Protocol

from batchwright.contracts.registry import BackendConfig
from batchwright.contracts.temporal_names import inference_queue
from batchwright.database.errors import DatabaseUnavailable
from batchwright.database.records import WorkerHeartbeat
from batchwright.inference.router import ModelRouter
from batchwright.inference.send_limits import FleetRate, Rates
from batchwright.rules.dispatch.fleet_share import share_of, share_of_rate
from batchwright.rules.ids import safe_name
from batchwright.rules.worker_stats import FRESH_AGE, is_polled, polled_queues, running_models

# With `FRESH_AGE`, workers divide the limits again within ten seconds after another one starts or stops.
_REFRESH_SECONDS = 2.0
_JOIN_SECONDS = 0.25  # until this worker has read its own first heartbeat


class WorkerList(Protocol):
    async def heartbeats(self, max_age: timedelta) -> Sequence[WorkerHeartbeat]: ...


class Backends(Protocol):
    @property
    def gateways(self) -> Sequence[BackendConfig]:
        """The backends that list their models themselves."""
        ...

    @property
    def routers(self) -> Sequence[ModelRouter]:
        """The routers of all models."""
        ...


class FleetShares:
    """Divides each backend's `in_flight` between the live workers that can send requests to it.

    The rates per minute of a model are divided between the workers that run its slices.

    A worker is live if its last heartbeat is at most `FRESH_AGE` old. Until this worker has read its own
    heartbeat, its shares are 0. While the database is unavailable, the last known workers count.
    """

    def __init__(
        self,
        worker_id: str,
        workers: WorkerList,
        backends: Backends,
        queue_of: Callable[[str], str],
        set_shares: Callable[[Mapping[str, int], Mapping[str, Rates]], None],
    ) -> None:
        """Create the shares of one worker.

        Args:
            worker_id: id of this worker in its heartbeats.
            workers: the heartbeats of all workers.
            backends: the models and backends that this worker knows.
            queue_of: returns the queue that a model shares with other models; empty if it has its own.
            set_shares: receives the share of each backend that has a limit, by URL, and the share of each
                model's rates per minute, by model.
        """
        self._worker_id, self._workers, self._backends = worker_id, workers, backends
        self._queue_of, self._set_shares = queue_of, set_shares
        self._live: Sequence[WorkerHeartbeat] = ()

    async def run(self) -> None:
        """Refresh the shares again and again, until cancelled."""
        while True:
            with contextlib.suppress(DatabaseUnavailable):  # DependencyMonitor reports it
                await self.refresh()
            has_joined = any(worker.id == self._worker_id for worker in self._live)
            await asyncio.sleep(_REFRESH_SECONDS if has_joined else _JOIN_SECONDS)

    async def refresh(self) -> None:
        """Read the live workers, and apply the shares. Raises DatabaseUnavailable if they cannot be read."""
        self._live = await self._workers.heartbeats(FRESH_AGE)
        self.apply()

    def apply(self) -> None:
        """Compute the shares of the current registry from the workers that were read last, and apply them."""
        limits = self._limits()
        queues = self._queues() if limits else {}
        polled = {worker.id: polled_queues([worker.stats]) for worker in self._live} if limits else {}
        shares: dict[str, int] = {}
        for url, limit in limits.items():
            workers = [
                id for id, served in polled.items() if any(is_polled(q, served) for q in queues.get(url, ()))
            ]
            shares[url] = share_of(limit, self._worker_id, workers)
        self._set_shares(shares, self._rates())

    def _rates(self) -> dict[str, Rates]:
        """Return this worker's part of the rates per minute of each model that has one."""
        limited = [router for router in self._backends.routers if _has_rate(router)]
        if not limited:
            return {}
        running = {worker.id: {m for _, m in running_models([worker.stats])} for worker in self._live}

        def part(per_minute: int | None, model: str) -> FleetRate | None:
            if per_minute is None:
                return None
            if self._worker_id not in running:
                return FleetRate(per_minute, 0.0)
            users = [id for id, models in running.items() if model in models]
            return FleetRate(per_minute, share_of_rate(per_minute, self._worker_id, users, len(running)))

        return {
            router.model: Rates(
                part(router.limits.requests_per_minute, router.model),
                part(router.limits.tokens_per_minute, router.model),
            )
            for router in limited
        }

    def count_workers(self, queue: str) -> int:
        """Return how many live workers serve the task queue `queue`, as of the last refresh."""
        return sum(is_polled(queue, polled_queues([worker.stats])) for worker in self._live)

    def _limits(self) -> dict[str, int]:
        """Return the limit of each backend that has one, by URL.

        If a URL has several limits, the lowest counts. Gateways are included even if no model is known yet,
        so that the first model is limited, too.
        """
        found = [(gateway.url, gateway.in_flight) for gateway in self._backends.gateways]
        for router in self._backends.routers:
            found += [(upstream.backend.url, upstream.in_flight) for upstream in router.upstreams]
        limits: dict[str, int] = {}
        for url, in_flight in found:
            if in_flight is not None:
                limits[url] = min(in_flight, limits.get(url, in_flight))
        return limits

    def _queues(self) -> dict[str, set[str]]:
        """Return the queues of the models whose requests each backend can get, by URL."""
        queues: dict[str, set[str]] = {}
        for router in self._backends.routers:
            queue = self._queue_of(router.model) or inference_queue(safe_name(router.model))
            for reached in (router, *router.fallbacks):
                for upstream in reached.upstreams:
                    queues.setdefault(upstream.backend.url, set()).add(queue)
        return queues


def _has_rate(router: ModelRouter) -> bool:
    return (router.limits.requests_per_minute, router.limits.tokens_per_minute) != (None, None)
