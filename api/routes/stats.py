"""/v1/stats: how many requests the running workers have sent, by backend and model; for operators."""

import asyncio
import time
from collections import Counter
from typing import NamedTuple

from fastapi import APIRouter, Response

from batchwright.api.dependencies import ApiDependencies
from batchwright.api.read_cache import CoalescingCache
from batchwright.api.schemas.openai_objects import json_response
from batchwright.contracts.api_objects.operator import (
    BackendStats,
    ModelStats,
    OpenCircuitObject,
    RequestStats,
    StatsObject,
)
from batchwright.inference.registry.model_catalog import Catalog
from batchwright.rules.worker_stats import FRESH_AGE, FleetTraffic, sum_traffic


class _FleetTotals(NamedTuple):
    """Numbers for all workers together.

    Attributes:
        traffic: requests that the running workers have sent since they started, by backend and model.
        workers: number of running workers.
        in_flight: for each backend's URL, the maximum number of requests in flight at this backend. The
            value None means that the backend has no limit.
        lines_left: number of lines without a final result, by model.
    """

    traffic: FleetTraffic
    workers: int
    in_flight: dict[str, int | None]
    lines_left: Counter[str]


class StatsRoutes:
    def __init__(self, deps: ApiDependencies) -> None:
        self._deps = deps
        self._catalog = Catalog(deps.settings)
        self._started = time.monotonic()
        self._totals = CoalescingCache(self._read_totals, deps.recent_seconds)

    def router(self) -> APIRouter:
        router = APIRouter(tags=["Operation"])
        router.add_api_route("/v1/stats", self.get, response_model=StatsObject)
        return router

    async def get(self) -> Response:
        """Show how many requests all running workers have sent, by registered backend and model.

        Each worker counts from its start. The data is at most a second old.
        """
        totals = await self._totals.get("all")
        found = totals.traffic
        stats = StatsObject(
            uptime_seconds=int(time.monotonic() - self._started),
            workers=totals.workers,
            requests=RequestStats(
                total=found.requests, success=found.requests - found.errors, errors=found.errors
            ),
            backends=[
                BackendStats(
                    id=share.name,
                    in_flight=totals.in_flight.get(share.name),
                    requests=share.requests,
                    average_latency_ms=round(share.average_ms, 3),
                    pending=share.pending,
                )
                for share in found.backends
            ],
            models=[
                ModelStats(
                    name=share.name,
                    lines_left=totals.lines_left[share.name],
                    requests=share.requests,
                    average_duration_ms=round(share.average_ms, 3),
                    tokens_per_second=round(share.tokens_per_second, 1),
                )
                for share in found.models
            ],
            open_circuits=[OpenCircuitObject.model_validate(each._asdict()) for each in found.open_circuits],
        )
        return json_response(stats)

    async def _read_totals(self, _: str) -> _FleetTotals:
        database = self._deps.database
        reported, workers, registered, work = await asyncio.gather(
            database.workers.traffic(FRESH_AGE),
            database.workers.count_alive(FRESH_AGE),
            self._catalog.read(database),
            database.forecasts.work(self._deps.clock()),
        )
        in_flight = {each.url: each.in_flight for entry in registered for each in entry.config.backends}
        lines_left = Counter[str]()
        for each in work:
            lines_left[each.model] += each.unsettled.left
        traffic = sum_traffic(reported, in_flight, [entry.model for entry in registered])
        return _FleetTotals(traffic, workers, in_flight, lines_left)
