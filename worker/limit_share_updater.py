"""Divide fleet-wide limits of backends and models between the workers. Each worker computes its own part."""

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Protocol

from batchwright.contracts.model_registry.backend_config import BackendConfig
from batchwright.contracts.temporal_names import inference_queue
from batchwright.database.errors import DatabaseUnavailable
from batchwright.database.records import BackendLoad, InteractiveRate, WorkerHeartbeat
from batchwright.inference.limits.tenant_and_model_limits import FleetRate, Rates
from batchwright.inference.router import ModelRouter
from batchwright.rules.ids import safe_name
from batchwright.rules.limits.interactive_reserve import left_to_batches, places_for_interactive_calls
from batchwright.rules.limits.limit_shares_of_workers import share_of, share_of_rate
from batchwright.rules.worker_stats import (
    FRESH_AGE,
    INTERACTIVE_AGE,
    is_polled,
    polled_queues,
    running_models,
)

# With `FRESH_AGE`, workers divide the limits again within ten seconds after a worker starts or stops.
_REFRESH_SECONDS = 2.0
_JOIN_SECONDS = 0.25  # pause between refreshes until this worker has read its own heartbeat


class Heartbeats(Protocol):
    async def heartbeats(self, max_age: timedelta) -> Sequence[WorkerHeartbeat]: ...
    async def interactive_load(self, max_age: timedelta) -> Sequence[BackendLoad]: ...
    async def interactive_rates(self, max_age: timedelta) -> Sequence[InteractiveRate]: ...


class Backends(Protocol):
    @property
    def gateways(self) -> Sequence[BackendConfig]:
        """The gateways: backends that report themselves which models they serve."""
        ...

    @property
    def routers(self) -> Sequence[ModelRouter]:
        """The routers of all models."""
        ...


class LimitShareUpdater:
    """The object that divides the fleet's limits between the live workers, and sets this worker's parts.

    A backend has a limit on requests in flight. A part of the limit is kept free for interactive calls
    (requests that do not belong to batches). The workers that can send requests to the backend divide the
    rest. A model has limits on requests and tokens per minute. The workers that run slices (parts of batches)
    of the model divide the part that interactive calls do not use. At least a tenth of each limit is always
    left to batches.

    A worker is live if its last heartbeat is at most `FRESH_AGE` old. Until this worker has read its own
    heartbeat, its parts are 0. While the database is unavailable, the last known workers count as live.
    """

    def __init__(
        self,
        worker_id: str,
        workers: Heartbeats,
        backends: Backends,
        queue_of: Callable[[str], str],
        set_shares: Callable[[Mapping[str, int], Mapping[str, Rates]], None],
    ) -> None:
        """Create the object that computes the parts of one worker.

        Args:
            worker_id: id of this worker in its heartbeats.
            workers: heartbeats of all workers.
            backends: models and backends that this worker knows.
            queue_of: returns the task queue that a model shares with other models; empty if the model has its
                own queue.
            set_shares: called with two maps: this worker's part of each backend's limit, by URL, and its part
                of each model's rates per minute, by model.
        """
        self._worker_id, self._workers, self._backends = worker_id, workers, backends
        self._queue_of, self._set_shares = queue_of, set_shares
        self._live: Sequence[WorkerHeartbeat] = ()
        self._load: dict[str, BackendLoad] = {}  # interactive calls, by backend URL
        self._interactive_rates: dict[str, InteractiveRate] = {}  # interactive calls, by model
        self._used_up = set[str]()  # URLs of the backends for which `is_used_up_by_interactive` returns True

    async def run(self) -> None:
        """Divide the fleet-wide limits again at regular intervals, until cancelled.

        Each time, read which workers are live, and apply this worker's part of each limit.
        """
        while True:
            with contextlib.suppress(DatabaseUnavailable):  # DependencyMonitor reports it
                await self.refresh()
            has_joined = any(worker.id == self._worker_id for worker in self._live)
            await asyncio.sleep(_REFRESH_SECONDS if has_joined else _JOIN_SECONDS)

    async def refresh(self) -> None:
        """Compute and apply this worker's part of each fleet-wide limit again.

        The parts depend on the live workers and on the interactive requests of all API processes. Both are
        read from the database.

        Raises:
            DatabaseUnavailable: the database does not respond. The parts do not change.
        """
        self._live = await self._workers.heartbeats(FRESH_AGE)
        self._load = {load.backend: load for load in await self._workers.interactive_load(INTERACTIVE_AGE)}
        interactive = await self._workers.interactive_rates(INTERACTIVE_AGE)
        self._interactive_rates = {each.name: each for each in interactive if not each.of_tenant}
        self.apply()

    def apply(self) -> None:
        """Compute this worker's part of each limit, and call `set_shares` with the parts.

        The parts follow from the registry and the last known workers.
        """
        limits = self._limits()
        queues = self._queues() if limits else {}
        polled = {worker.id: polled_queues([worker.stats]) for worker in self._live} if limits else {}
        shares: dict[str, int] = {}
        self._used_up.clear()
        for url, limit in limits.items():
            workers = [
                id for id, served in polled.items() if any(is_polled(q, served) for q in queues.get(url, ()))
            ]
            shares[url] = share_of(left_to_batches(limit, self._reserved(url)), self._worker_id, workers)
            if not shares[url] and share_of(limit, self._worker_id, workers):
                self._used_up.add(url)
        self._set_shares(shares, self._rates())

    def _rates(self) -> dict[str, Rates]:
        """Return this worker's parts of the rates per minute, by model. Models without rates are left out."""
        limited = [router for router in self._backends.routers if _has_rate(router)]
        if not limited:
            return {}
        running = {worker.id: {m for _, m in running_models([worker.stats])} for worker in self._live}

        def part(per_minute: int | None, interactive: float, model: str) -> FleetRate | None:
            if per_minute is None:
                return None
            if self._worker_id not in running:
                return FleetRate(per_minute, 0.0)
            users = [id for id, models in running.items() if model in models]
            left = left_to_batches(per_minute, interactive)
            return FleetRate(per_minute, share_of_rate(left, self._worker_id, users, len(running)))

        rates: dict[str, Rates] = {}
        for router in limited:
            model, limits = router.model, router.limits
            used = self._interactive_rates.get(model, InteractiveRate(False, model, 0.0, 0.0))
            rates[model] = Rates(
                part(limits.requests_per_minute, used.requests, model),
                part(limits.tokens_per_minute, used.tokens, model),
            )
        return rates

    def is_used_up_by_interactive(self, url: str) -> bool:
        """Return True if interactive requests use this worker's whole part of the backend's limit.

        The worker may then send nothing to the backend with this URL.
        """
        return url in self._used_up

    def count_workers(self, queue: str) -> int:
        """Return how many live workers polled the task queue at the last refresh."""
        return sum(is_polled(queue, polled_queues([worker.stats])) for worker in self._live)

    def _limits(self) -> dict[str, int]:
        """Return how many requests of the fleet may be in flight at each backend with a limit, by URL.

        If a URL has several limits, the lowest one counts. A gateway (a backend that lists its own models) is
        in the result even before its models are known.
        """
        found = [(gateway.url, gateway.in_flight) for gateway in self._backends.gateways]
        for router in self._backends.routers:
            found += [(upstream.backend.url, upstream.in_flight) for upstream in router.upstreams]
        limits: dict[str, int] = {}
        for url, in_flight in found:
            if in_flight is not None:
                limits[url] = min(in_flight, limits.get(url, in_flight))
        return limits

    def _reserved(self, url: str) -> int:
        """Return how many requests in flight at a backend are kept free for interactive calls.

        If a backend serves direct callers first, the result is 0, because the backend refuses lines of
        batches itself.
        """
        load = self._load.get(url)
        if load is None or url in self._direct_first():
            return 0
        return places_for_interactive_calls(load.mean, load.in_flight)

    def _direct_first(self) -> set[str]:
        """Return the URLs of backends that recognize lines of batches, and serve all other requests first."""
        upstreams = (upstream for router in self._backends.routers for upstream in router.upstreams)
        return {upstream.backend.url for upstream in upstreams if upstream.backend.client.serves_direct_first}

    def _queues(self) -> dict[str, set[str]]:
        """Return the task queues of the models that a backend serves, by backend URL."""
        queues: dict[str, set[str]] = {}
        for router in self._backends.routers:
            queue = self._queue_of(router.model) or inference_queue(safe_name(router.model))
            for reached in (router, *router.fallbacks):
                for upstream in reached.upstreams:
                    queues.setdefault(upstream.backend.url, set()).add(queue)
        return queues


def _has_rate(router: ModelRouter) -> bool:
    return (router.limits.requests_per_minute, router.limits.tokens_per_minute) != (None, None)
