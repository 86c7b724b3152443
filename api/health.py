"""/healthz, /readyz, /metrics."""

import asyncio
import logging
from collections.abc import Awaitable
from typing import Literal

from fastapi import APIRouter, Response
from pydantic import BaseModel

from api.errors import RETRY_AFTER_SECONDS
from api.objects import answer
from api.responses import text
from api.services import Services
from batchwright.database.errors import DatabaseError
from batchwright.storage.base import StorageError
from batchwright.telemetry.exposition import CONTENT_TYPE, exposition
from batchwright.temporal import TemporalUnavailable

logger = logging.getLogger(__name__)

_PATIENCE_SECONDS = 3.0
State = Literal["ok", "unavailable"]


class Alive(BaseModel):
    status: Literal["ok"] = "ok"


class Checks(BaseModel):
    postgresql: State
    temporal: State
    storage: State


class Ready(BaseModel):
    status: State
    checks: Checks


class HealthRoutes:
    def __init__(self, services: Services) -> None:
        self._services = services

    def router(self) -> APIRouter:
        router = APIRouter(tags=["Operation"])
        router.add_api_route("/healthz", self.healthz, response_model=Alive)
        router.add_api_route("/readyz", self.readyz, response_model=Ready, responses={503: {"model": Ready}})
        router.add_api_route("/metrics", self.metrics, response_class=Response, responses=text("text/plain"))
        return router

    async def healthz(self) -> Response:
        """Whether the process answers at all."""
        return answer(Alive())

    async def readyz(self) -> Response:
        """Whether all that a request needs answers; 503 if something does not."""
        services = self._services
        postgresql, temporal, storage = await asyncio.gather(
            _state("postgresql", services.database.check()),
            _state("temporal", services.temporal.check()),
            _state("storage", services.storage.check()),
        )
        checks = Checks(postgresql=postgresql, temporal=temporal, storage=storage)
        if "unavailable" in (postgresql, temporal, storage):
            unready = answer(Ready(status="unavailable", checks=checks), 503)
            unready.headers["Retry-After"] = str(RETRY_AFTER_SECONDS)
            return unready
        return answer(Ready(status="ok", checks=checks))

    async def metrics(self) -> Response:
        """The process's metrics, for Prometheus."""
        services = self._services
        body = await exposition(services.metrics, services.sdk_metrics)
        return Response(body, media_type=CONTENT_TYPE)


async def _state(name: str, check: Awaitable[None]) -> State:
    try:
        async with asyncio.timeout(_PATIENCE_SECONDS):
            await check
    except (DatabaseError, StorageError, TemporalUnavailable, TimeoutError) as error:
        logger.warning("a part is not ready", extra={"part": name, "error": str(error)})
        return "unavailable"
    return "ok"
