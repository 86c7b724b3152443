"""/admin/quotas: quotas, weights and model permissions of tenants, for operators."""

import logging
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, TypeVar

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import BaseModel, Field, TypeAdapter

from batchwright.api.audit_log.operator_targets import QuotaTarget
from batchwright.api.audit_log.recorder import AuditLog
from batchwright.api.dependencies import ApiDependencies
from batchwright.api.errors import invalid_value
from batchwright.api.openapi import error_responses, pattern_schema
from batchwright.api.routes.limits import limits_of
from batchwright.api.schemas.budgets import NAME_PATTERN, checked_name, cost_per_day_of
from batchwright.api.schemas.json_body import (
    check_text,
    json_body_spec,
    read_json_object,
    reject_unknown,
    required_integer,
    required_text,
    wrong_type,
)
from batchwright.api.schemas.openai_objects import json_response
from batchwright.contracts.api_objects.audit_log import AuditAction
from batchwright.contracts.api_objects.quotas import DefaultQuotas, LimitsObject, QuotaList, QuotaObject
from batchwright.contracts.model_registry.price_config import DecimalText
from batchwright.contracts.temporal_payloads.batch import MAX_PRIORITY, MIN_PRIORITY
from batchwright.contracts.terms import OverQuota, Quota, WindowTooShort
from batchwright.rules.dispatch.fair_queue import MAX_WEIGHT, MIN_WEIGHT
from batchwright.rules.tenants.quotas import MAX_QUOTA

logger = logging.getLogger(__name__)

_MAX_MODELS = 1_000
_MAX_NAME_CHARACTERS = 256
_Choice = TypeVar("_Choice", bound=StrEnum)
_LIST = TypeAdapter(list[object])
_Limit = Annotated[int, Field(ge=0, le=MAX_QUOTA)]
_Model = Annotated[str, Field(min_length=1, max_length=_MAX_NAME_CHARACTERS, pattern=r"^[^\x00]+$")]


class QuotaUpdate(BaseModel):
    """New values for a tenant. Fields that are missing stay unchanged. `null` resets a field to the default.

    - `weight`: the tenant's share of the workers, relative to other tenants.
    - `max_in_flight`: the maximum number of the tenant's requests in flight (sent, but not answered yet) on
      all workers together. However, each worker that runs slices of the tenant may always send one request.
    - `max_priority`: the highest priority that a new batch may have.
    - `over_quota`: what happens to a batch that exceeds the quota of enqueued lines or tokens. The batch
      fails (the default) or waits.
    - `window_too_short`: what happens to a batch that cannot complete within its completion window. The batch
      is accepted (the default) or refused.
    - `backend_requests_per_minute`, `backend_tokens_per_minute`: limits of what all workers together send to
      backends for the tenant.
    - `cost_per_day`: the daily budget, in the currency of the models' prices.
    """

    tenant: str = Field(pattern=NAME_PATTERN)
    live_batches: _Limit | None = None
    stored_bytes: _Limit | None = None
    enqueued_lines: _Limit | None = None
    enqueued_tokens: _Limit | None = None
    requests_per_minute: _Limit | None = None
    tokens_per_day: _Limit | None = None
    cost_per_day: DecimalText | None = None
    webhooks: _Limit | None = None
    models: list[_Model] | None = Field(None, max_length=_MAX_MODELS)
    weight: float | None = Field(None, ge=MIN_WEIGHT, le=MAX_WEIGHT)
    max_in_flight: int | None = Field(None, ge=1, le=MAX_QUOTA)
    max_priority: int | None = Field(None, ge=MIN_PRIORITY, le=MAX_PRIORITY)
    over_quota: OverQuota | None = None
    window_too_short: WindowTooShort | None = None
    backend_requests_per_minute: int | None = Field(None, ge=1, le=MAX_QUOTA)
    backend_tokens_per_minute: int | None = Field(None, ge=1, le=MAX_QUOTA)


class QuotaRoutes:
    def __init__(self, deps: ApiDependencies) -> None:
        self._deps = deps
        self._quotas = deps.database.quotas
        self._audit_log = AuditLog(deps)

    def router(self) -> APIRouter:
        router = APIRouter(prefix="/admin/quotas", tags=["Operation"])
        router.add_api_route("", self.list, response_model=QuotaList)
        update = json_body_spec(QuotaUpdate)
        router.add_api_route(
            "",
            self.put,
            methods=["PUT"],
            response_model=QuotaList,
            openapi_extra=update,
            dependencies=self._audit_log.of_operator(AuditAction.QUOTA_SET, QuotaTarget),
        )
        router.add_api_route(
            "",
            self.delete,
            methods=["DELETE"],
            response_model=QuotaList,
            dependencies=self._audit_log.of_operator(AuditAction.QUOTA_RESET, QuotaTarget),
        )
        router.add_api_route("/{tenant}", self.get, response_model=LimitsObject, responses=error_responses())
        return router

    async def list(self) -> Response:
        """List the tenants for which an operator has set quotas, a weight or model permissions.

        The response also contains the defaults, which apply to all other tenants.
        """
        return await self._quota_list()

    async def get(self, tenant: Annotated[str, Path(), pattern_schema(NAME_PATTERN)]) -> Response:
        """Show the limits of a tenant and how much of each limit is used."""
        return json_response(await limits_of(self._deps, checked_name(tenant, "tenant")))

    async def put(self, request: Request) -> Response:
        """Change a tenant's quotas, its weight, or the models that it may use.

        Workers apply changes to running batches within 5 seconds.
        """
        fields = await read_json_object(request)
        reject_unknown(fields, QuotaUpdate.model_fields)
        tenant = checked_name(required_text(fields, "tenant"), "tenant")
        changes: dict[str, object] = {
            quota.value: _parse_limit(fields, quota)
            for quota in Quota
            if quota in fields and quota is not Quota.COST_PER_DAY
        }
        if "cost_per_day" in fields:
            changes["cost_per_day"] = cost_per_day_of(fields)
        if "models" in fields:
            changes["models"] = _parse_models(fields["models"])
        if "weight" in fields:
            changes["weight"] = _parse_weight(fields["weight"])
        if "max_in_flight" in fields:
            changes["max_in_flight"] = _parse_up_to(fields, "max_in_flight", MAX_QUOTA, "no cap")
        for name in ("backend_requests_per_minute", "backend_tokens_per_minute"):
            if name in fields:
                changes[name] = _parse_up_to(fields, name, MAX_QUOTA, "no limit")
        if "max_priority" in fields:
            changes["max_priority"] = _parse_up_to(fields, "max_priority", MAX_PRIORITY, "all priorities")
        if "over_quota" in fields:
            changes["over_quota"] = _parse_choice(fields, "over_quota", OverQuota)
        if "window_too_short" in fields:
            changes["window_too_short"] = _parse_choice(fields, "window_too_short", WindowTooShort)
        await self._quotas.change(tenant, changes, self._deps.clock())
        logger.info("quotas changed", extra={"of_tenant": tenant, "changed": ",".join(changes)})
        return await self._quota_list()

    async def delete(self, tenant: Annotated[str, Query(), pattern_schema(NAME_PATTERN)] = "") -> Response:
        """Reset all quotas of a tenant to the defaults. If the tenant already has the defaults, nothing
        happens.
        """
        await self._quotas.clear(checked_name(tenant, "tenant"))
        logger.info("quotas reset", extra={"of_tenant": tenant})
        return await self._quota_list()

    async def _quota_list(self) -> Response:
        limits = self._deps.settings.quotas._asdict()
        defaults = DefaultQuotas.model_validate(
            {**limits, "cost_per_day": self._deps.settings.max_cost_per_day}
        )
        data = [
            QuotaObject(
                tenant=row.tenant,
                **row.own.model_dump(exclude={"models"}),
                models=None if row.own.models is None else sorted(row.own.models),
                changed_at=row.changed_at,
            )
            for row in await self._quotas.all()
        ]
        return json_response(QuotaList(defaults=defaults, data=data))


def _parse_limit(fields: Mapping[str, object], quota: Quota) -> int | None:
    if fields[quota] is None:
        return None
    limit = required_integer(fields, quota)
    if not 0 <= limit <= MAX_QUOTA:
        message = f"Invalid value for '{quota}': expected 0, for no limit, to {MAX_QUOTA}, but got {limit}."
        raise invalid_value(quota, message)
    return limit


def _parse_weight(value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise wrong_type("weight", "a decimal number", value)
    if not MIN_WEIGHT <= value <= MAX_WEIGHT:
        message = (
            f"Invalid value for 'weight': expected a number from {MIN_WEIGHT:g} to {MAX_WEIGHT:g}, or null "
            f"for the weight of the settings, but got {value}."
        )
        raise invalid_value("weight", message)
    return float(value)


def _parse_up_to(fields: Mapping[str, object], name: str, highest: int, if_null: str) -> int | None:
    """Return the field `name`, an integer from 1 to `highest`. If the field is null, return None.

    Args:
        if_null: what the value null means, for the error message, such as "no limit".

    Raises:
        ApiError: the value is neither null nor an integer from 1 to `highest`.
    """
    if fields[name] is None:
        return None
    most = required_integer(fields, name)
    if not 1 <= most <= highest:
        message = (
            f"Invalid value for '{name}': expected 1 to {highest}, or null for {if_null}, but got {most}."
        )
        raise invalid_value(name, message)
    return most


def _parse_choice(fields: Mapping[str, object], name: str, choices: type[_Choice]) -> _Choice | None:
    if fields[name] is None:
        return None
    text = required_text(fields, name)
    if text not in set(choices):
        expected = ", ".join(repr(choice.value) for choice in choices)
        raise invalid_value(
            name, f"Invalid value for '{name}': expected {expected} or null, but got {text!r}."
        )
    return choices(text)


def _parse_models(value: object) -> frozenset[str] | None:
    if value is None:
        return None
    if not isinstance(value, list):
        raise wrong_type("models", "an array", value)
    names = [
        check_text(name, f"models[{number}]") for number, name in enumerate(_LIST.validate_python(value))
    ]
    if len(names) > _MAX_MODELS or not all(0 < len(name) <= _MAX_NAME_CHARACTERS for name in names):
        message = (
            f"Invalid value for 'models': expected at most {_MAX_MODELS} names of 1 to "
            f"{_MAX_NAME_CHARACTERS} characters."
        )
        raise invalid_value("models", message)
    return frozenset(names)
