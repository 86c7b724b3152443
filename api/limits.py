"""/v1/x/limits: what the tenant may have, has, and has left."""

from typing import Literal

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field

from api.objects import answer
from api.responses import errors
from api.services import Services
from api.tenants import tenant_of
from batchwright.rules.quotas import Quota


class LimitObject(BaseModel):
    quota: Quota
    limit: int | None = Field(description="null: there is none")
    used: int
    left: int | None = Field(description="null: there is no limit")


class LimitsObject(BaseModel):
    object: Literal["limits"] = "limits"
    tenant: str
    data: list[LimitObject]
    models: list[str] | None = Field(description="those that may be used; null: every one")


class LimitRoutes:
    def __init__(self, services: Services) -> None:
        self._services = services

    def router(self) -> APIRouter:
        router = APIRouter(prefix="/v1/x/limits", tags=["Limits"])
        router.add_api_route("", self.get, response_model=LimitsObject, responses=errors())
        return router

    async def get(self, request: Request) -> Response:
        """What you may have, have, and have left."""
        return answer(await limits_of(self._services, tenant_of(request, self._services.settings)))


async def limits_of(services: Services, tenant: str) -> LimitsObject:
    """Raises DatabaseUnavailable."""
    own, used = await services.database.quotas.get(tenant), await services.database.quotas.used(tenant)
    limits, taken = own.limits(services.settings.quotas), used._asdict()
    return LimitsObject(
        tenant=tenant,
        data=[_limit(quota, limits.of(quota), taken[quota]) for quota in Quota],
        models=None if own.models is None else sorted(own.models),
    )


def _limit(quota: Quota, limit: int, used: int) -> LimitObject:
    if not limit:
        return LimitObject(quota=quota, limit=None, used=used, left=None)
    return LimitObject(quota=quota, limit=limit, used=used, left=max(limit - used, 0))
