"""/v1/x/limits: the limits of a tenant, how much of each limit is used, and how much is left."""

from fastapi import APIRouter, Request, Response

from batchwright.api.auth.caller import key_id_of, tenant_of
from batchwright.api.dependencies import ApiDependencies
from batchwright.api.openapi import error_responses
from batchwright.api.schemas.openai_objects import json_response
from batchwright.contracts.api_objects.quotas import GroupLimit, LimitObject, LimitsObject
from batchwright.contracts.terms import OverQuota, Quota, WindowTooShort
from batchwright.rules.tenants.quotas import BUDGETS, DailyAmounts
from batchwright.rules.token_costs import amount_text


class LimitRoutes:
    def __init__(self, deps: ApiDependencies) -> None:
        self._deps = deps

    def router(self) -> APIRouter:
        router = APIRouter(prefix="/v1/x/limits", tags=["Limits"])
        router.add_api_route("", self.get, response_model=LimitsObject, responses=error_responses())
        return router

    async def get(self, request: Request) -> Response:
        """Show your limits, how much of each limit you have used, and how much is left."""
        tenant = tenant_of(request, self._deps.settings)
        return json_response(await limits_of(self._deps, tenant, key_id_of(request)))


async def limits_of(deps: ApiDependencies, tenant: str, key_id: str = "") -> LimitsObject:
    """Return the limits of a tenant and how much of each limit is used.

    The daily budget of the tenant's organization is included. If `key_id` is not empty, the daily budgets of
    this API key, of the key's team and of the key's user are also included.

    Raises:
        DatabaseUnavailable: the database does not respond.
    """
    key = await deps.database.quotas.key_budget(tenant, key_id) if key_id else None
    groups = await deps.database.budget_groups.budgets_of(tenant, key_id)
    own, used = await deps.database.quotas.get(tenant), await deps.database.quotas.used(tenant)
    limits, taken = own.limits(deps.settings.quotas), used._asdict()
    return LimitsObject(
        tenant=tenant,
        data=[_limit(quota, limits.of(quota), taken[quota]) for quota in Quota],
        key=[] if key is None else _budget(key.limit, key.used),
        groups=[
            GroupLimit(kind=found.group.kind, name=found.group.name, **limit.model_dump())
            for found in groups
            for limit in _budget(found.limit, found.used)
        ],
        max_lines=deps.settings.max_lines,
        max_batch_file_bytes=deps.settings.max_batch_file_bytes,
        models=None if own.models is None else sorted(own.models),
        weight=deps.settings.weight_of(tenant) if own.weight is None else own.weight,
        max_in_flight=own.max_in_flight,
        max_priority=own.highest_priority,
        over_quota=own.over_quota or OverQuota.FAIL,
        window_too_short=own.window_too_short or WindowTooShort.ACCEPT,
        backend_requests_per_minute=own.backend_requests_per_minute,
        backend_tokens_per_minute=own.backend_tokens_per_minute,
    )


def _budget(limit: DailyAmounts, used: DailyAmounts) -> list[LimitObject]:
    return [_limit(quota, limit.of(quota), used.of(quota)) for quota in BUDGETS]


def _limit(quota: Quota, limit: int, used: int) -> LimitObject:
    shown = amount_text if quota is Quota.COST_PER_DAY else int
    return LimitObject(
        quota=quota,
        limit=shown(limit) if limit else None,
        used=shown(used),
        left=shown(max(limit - used, 0)) if limit else None,
    )
