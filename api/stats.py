"""/v1/stats: what the fleet has sent, and to whom. An operator's, for it adds up all tenants."""

import asyncio
import time
from datetime import timedelta
from typing import Literal

from fastapi import APIRouter, Response
from pydantic import BaseModel, Field

from api.objects import answer
from api.recent import Recent
from api.services import Services
from batchwright.inference.catalog import Catalog
from batchwright.rules.polled import FRESH_SECONDS
from batchwright.rules.traffic import Traffic, added_up


class RequestStats(BaseModel):
    """Of requests that had an end; asked again they count again, and lines that share one count one each."""

    total: int
    success: int
    errors: int


class BackendStats(BaseModel):
    id: str = Field(description="its URL")
    requests: int
    average_latency_ms: float
    pending: int


class ModelStats(BaseModel):
    name: str
    requests: int
    average_duration_ms: float


class StatsObject(BaseModel):
    """Over the workers that are alive, each since its start."""

    object: Literal["stats"] = "stats"
    uptime_seconds: int = Field(description="of the API process that answers")
    workers: int
    requests: RequestStats
    backends: list[BackendStats] = Field(description="by URL")
    models: list[ModelStats] = Field(description="the busiest first")


class StatsRoutes:
    def __init__(self, services: Services) -> None:
        self._services = services
        self._catalog = Catalog(services.settings)
        self._started = time.monotonic()
        self._sums = Recent(self._added_up, services.recent_seconds)

    def router(self) -> APIRouter:
        router = APIRouter(tags=["Operation"])
        router.add_api_route("/v1/stats", self.get, response_model=StatsObject)
        return router

    async def get(self) -> Response:
        """Requests over all workers, by backend and by model of the registry; a second old at most."""
        return answer(self._object(*await self._sums.get("all")))

    async def _added_up(self, _: str) -> tuple[Traffic, int]:
        """With the number of workers that told it."""
        database = self._services.database
        since = self._services.clock() - timedelta(seconds=FRESH_SECONDS)
        told, workers, registered = await asyncio.gather(
            database.workers.traffic(since), database.workers.alive(since), self._catalog.read(database)
        )
        urls = [backend.url for entry in registered for backend in entry.config.backends]
        return added_up(told, urls, [entry.model for entry in registered]), workers

    def _object(self, found: Traffic, workers: int) -> StatsObject:
        return StatsObject(
            uptime_seconds=int(time.monotonic() - self._started),
            workers=workers,
            requests=RequestStats(
                total=found.requests, success=found.requests - found.errors, errors=found.errors
            ),
            backends=[
                BackendStats(
                    id=share.name,
                    requests=share.requests,
                    average_latency_ms=round(share.average_ms, 3),
                    pending=share.pending,
                )
                for share in found.backends
            ],
            models=[
                ModelStats(
                    name=share.name,
                    requests=share.requests,
                    average_duration_ms=round(share.average_ms, 3),
                )
                for share in found.models
            ],
        )
