"""/healthz, /readyz, /metrics."""

import asyncio
import logging
import re
from collections.abc import Awaitable
from typing import Literal

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel

from api.doors import Door, door_of
from api.errors import RETRY_AFTER_SECONDS, ApiError
from api.objects import answer
from api.responses import refusals, text
from api.services import Services
from batchwright.database.errors import DatabaseError
from batchwright.storage.base import StorageError
from batchwright.telemetry.exposition import CONTENT_TYPE, exposition
from batchwright.temporal import TemporalUnavailable

logger = logging.getLogger(__name__)

_PATIENCE_SECONDS = 3.0
_OF_TENANT = re.compile(rb'^[a-z_]+\{(?:.*,)?(?:tenant|organization)="')
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
        self._door = door_of(services)

    def router(self) -> APIRouter:
        router = APIRouter(tags=["Operation"])
        router.add_api_route("/healthz", self.healthz, response_model=Alive)
        router.add_api_route("/readyz", self.readyz, response_model=Ready, responses={503: {"model": Ready}})
        router.add_api_route(
            "/metrics",
            self.metrics,
            response_class=Response,
            responses=text("text/plain") | refusals(self._services.settings),
        )
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

    async def metrics(self, request: Request) -> Response:
        """The process's metrics, for Prometheus: those of tenants only with a key of the scope admin."""
        services = self._services
        shows_tenants = await self._may_see_tenants(request, self._door)
        body = await exposition(services.metrics, services.sdk_metrics)
        return Response(body if shows_tenants else _without_tenants(body), media_type=CONTENT_TYPE)

    async def _may_see_tenants(self, request: Request, door: Door | None) -> bool:
        """Raises ApiError for a key that is sent and does not open them."""
        if door is None:
            return True
        try:
            await door.admit(request.scope)
        except ApiError:
            if "authorization" in request.headers:
                raise
            return False
        except DatabaseError:  # a scrape is wanted most while something is down
            return False
        return True


def _without_tenants(body: bytes) -> bytes:
    return b"".join(line for line in body.splitlines(keepends=True) if not _OF_TENANT.search(line))


async def _state(name: str, check: Awaitable[None]) -> State:
    try:
        async with asyncio.timeout(_PATIENCE_SECONDS):
            await check
    except (DatabaseError, StorageError, TemporalUnavailable, TimeoutError) as error:
        logger.warning("a part is not ready", extra={"part": name, "error": str(error)})
        return "unavailable"
    return "ok"
