"""/v1/x/limits: what the tenant may have, has, and has left."""

from typing import Literal

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field

from api.objects import answer
from api.responses import errors
from api.services import Services
from api.tenants import key_id_of, tenant_of
from batchwright.database.quotas_base import SharedBudget
from batchwright.rules.quotas import Quota


class LimitObject(BaseModel):
    quota: Quota
    limit: int | None = Field(description="null: there is none")
    used: int
    left: int | None = Field(description="null: there is no limit")


class SharedLimit(LimitObject):
    name: str


class LimitsObject(BaseModel):
    object: Literal["limits"] = "limits"
    tenant: str
    data: list[LimitObject]
    key: LimitObject | None = Field(description="the budget of the API key that asks; null: none asks")
    user: SharedLimit | None = Field(
        description="the budget of all keys of the user whose key asks; null: it is nobody's, or none asks"
    )
    organization: SharedLimit | None = Field(
        description="the budget of all tenants of the organization together; null: the tenant is in none"
    )
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
        tenant = tenant_of(request, self._services.settings)
        return answer(await limits_of(self._services, tenant, key_id_of(request)))


async def limits_of(services: Services, tenant: str, key_id: str = "") -> LimitsObject:
    """Raises DatabaseUnavailable."""
    key = await services.database.quotas.key_budget(tenant, key_id) if key_id else None
    user = await services.database.quotas.user_of(tenant, key_id) if key_id else None
    organization = await services.database.quotas.organization_of(tenant)
    own, used = await services.database.quotas.get(tenant), await services.database.quotas.used(tenant)
    limits, taken = own.limits(services.settings.quotas), used._asdict()
    return LimitsObject(
        tenant=tenant,
        data=[_limit(quota, limits.of(quota), taken[quota]) for quota in Quota],
        key=None if key is None else _limit(Quota.TOKENS_PER_DAY, key.limit or 0, key.used),
        user=None if user is None else _shared(user),
        organization=None if organization is None else _shared(organization),
        models=None if own.models is None else sorted(own.models),
    )


def _shared(found: SharedBudget) -> SharedLimit:
    limit = _limit(Quota.TOKENS_PER_DAY, found.limit or 0, found.used)
    return SharedLimit(name=found.name, **limit.model_dump())


def _limit(quota: Quota, limit: int, used: int) -> LimitObject:
    if not limit:
        return LimitObject(quota=quota, limit=None, used=used, left=None)
    return LimitObject(quota=quota, limit=limit, used=used, left=max(limit - used, 0))
