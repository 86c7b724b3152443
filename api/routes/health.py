"""/healthz, /readyz, /metrics: liveness, readiness and Prometheus metrics of the API process."""

import asyncio
import logging
import re
from collections.abc import Awaitable
from typing import Literal

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel

from batchwright.api.auth.authenticators import Authenticator, has_key_header
from batchwright.api.dependencies import ApiDependencies
from batchwright.api.errors import RETRY_AFTER_SECONDS, ApiError
from batchwright.api.openapi import TEXT_RESPONSE, auth_error_responses
from batchwright.api.read_cache import CoalescingCache
from batchwright.api.schemas.openai_objects import json_response
from batchwright.background import BackgroundTaskFailing
from batchwright.database.errors import DatabaseError
from batchwright.oidc.issuer import IssuerUnavailable
from batchwright.storage.base import StorageError
from batchwright.telemetry.exposition import CONTENT_TYPE, render_metrics
from batchwright.temporal import TemporalUnavailable

logger = logging.getLogger(__name__)

_CHECK_SECONDS = 3.0
_TENANT_SERIES = re.compile(rb'^[a-z_]+\{(?:.*,)?(?:tenant|organization)="')
State = Literal["ok", "unavailable"]


class LivenessObject(BaseModel):
    status: Literal["ok"] = "ok"


class ReadinessChecks(BaseModel):
    background_tasks: State
    postgresql: State
    temporal: State
    storage: State


class ReadinessObject(BaseModel):
    status: State
    checks: ReadinessChecks


class HealthRoutes:
    def __init__(self, deps: ApiDependencies, authenticator: Authenticator | None) -> None:
        """Create the routes.

        Args:
            authenticator: the authenticator that all other routes use; None if requests need no
                authentication.
        """
        self._deps, self._authenticator = deps, authenticator
        self._checks = CoalescingCache(self._check, deps.recent_seconds)

    def router(self) -> APIRouter:
        router = APIRouter(tags=["Operation"])
        router.add_api_route("/healthz", self.healthz, response_model=LivenessObject)
        router.add_api_route(
            "/readyz",
            self.readyz,
            response_model=ReadinessObject,
            responses={503: {"model": ReadinessObject}},
        )
        router.add_api_route(
            "/metrics",
            self.metrics,
            response_class=Response,
            responses=TEXT_RESPONSE | auth_error_responses(self._deps.settings),
        )
        return router

    async def healthz(self) -> Response:
        """Liveness probe. 200 if the process responds."""
        return json_response(LivenessObject())

    async def readyz(self) -> Response:
        """Readiness probe. Check all dependencies, such as the database. Return 200 if all are available, and
        503 otherwise.

        The result is at most a second old.
        """
        checks = await self._checks.get("all")
        if "unavailable" in dict(checks).values():
            unready = json_response(ReadinessObject(status="unavailable", checks=checks), 503)
            unready.headers["Retry-After"] = str(RETRY_AFTER_SECONDS)
            return unready
        return json_response(ReadinessObject(status="ok", checks=checks))

    async def _check(self, _: str) -> ReadinessChecks:
        deps = self._deps
        background, postgresql, temporal, storage = await asyncio.gather(
            _state("background_tasks", deps.background.check()),
            _state("postgresql", deps.database.check()),
            _state("temporal", deps.temporal.check()),
            _state("storage", deps.storage.check()),
        )
        return ReadinessChecks(
            background_tasks=background, postgresql=postgresql, temporal=temporal, storage=storage
        )

    async def metrics(self, request: Request) -> Response:
        """Return the metrics of this process for Prometheus.

        Metrics with names of tenants are included only for callers with the scope (right) `viewer`.
        """
        deps = self._deps
        shows_tenants = await self._may_read_tenants(request)
        body = await render_metrics(deps.metrics, deps.sdk_metrics)
        return Response(
            body
            if shows_tenants
            else b"".join(line for line in body.splitlines(keepends=True) if not _TENANT_SERIES.search(line)),
            media_type=CONTENT_TYPE,
        )

    async def _may_read_tenants(self, request: Request) -> bool:
        """Return True if the caller may see names of tenants in the metrics.

        - If authentication is off, return True.
        - If the caller has the scope (right) `viewer`, return True.
        - If the caller sent no credentials, return False.
        - If the database or the issuer of tokens is unavailable, return False.

        Raises:
            ApiError: the caller's credentials are not valid or do not include the scope `viewer`.
        """
        if self._authenticator is None:
            return True
        try:
            await self._authenticator.authenticate(request.scope)
        except ApiError:
            if self._has_credentials(request):
                raise
            return False
        except (DatabaseError, IssuerUnavailable):  # metrics must stay available while a dependency is not
            return False
        return True

    def _has_credentials(self, request: Request) -> bool:
        settings = self._deps.settings
        if settings.auth == "api_key":
            return has_key_header(request.headers)
        return settings.tenant_header in request.headers


async def _state(name: str, check: Awaitable[None]) -> State:
    try:
        async with asyncio.timeout(_CHECK_SECONDS):
            await check
    except (
        BackgroundTaskFailing,
        DatabaseError,
        StorageError,
        TemporalUnavailable,
        TimeoutError,
    ) as error:
        logger.warning("dependency is not ready", extra={"dependency": name, "error": str(error)})
        return "unavailable"
    return "ok"
