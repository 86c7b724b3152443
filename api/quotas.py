"""/admin/quotas: the tenants' quotas and permissions on models. An operator's, not a tenant's."""

import logging
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import BaseModel, Field, TypeAdapter

from api.bodies import check_text, integer_of, json_body, read_object, refuse_unknown, text_of, wrong_type
from api.budgets import NAME, checked_name
from api.errors import invalid_value
from api.limits import LimitsObject, limits_of
from api.objects import answer
from api.parameters import pattern_schema
from api.responses import errors
from api.services import Services
from batchwright.rules.quotas import MOST, Quota

logger = logging.getLogger(__name__)

_MAX_MODELS = 1_000
_MAX_NAME_CHARACTERS = 256
_LIST = TypeAdapter(list[object])
_Limit = Annotated[int, Field(ge=0, le=MOST)]
_Model = Annotated[str, Field(min_length=1, max_length=_MAX_NAME_CHARACTERS, pattern=r"^[^\x00]+$")]


class DefaultQuotas(BaseModel):
    """What a tenant has that has none of its own. 0: no limit."""

    live_batches: int
    stored_bytes: int
    enqueued_lines: int
    enqueued_tokens: int
    requests_per_minute: int
    tokens_per_day: int


class QuotaObject(BaseModel):
    """A tenant's own. null: the default, of `models`: every one; 0: no limit."""

    tenant: str
    live_batches: int | None
    stored_bytes: int | None
    enqueued_lines: int | None
    enqueued_tokens: int | None
    requests_per_minute: int | None
    tokens_per_day: int | None
    models: list[str] | None
    changed_at: datetime


class QuotaList(BaseModel):
    object: Literal["list"] = "list"
    defaults: DefaultQuotas
    data: list[QuotaObject]


class QuotaUpdate(BaseModel):
    """What is not named stays as it is; null takes it back."""

    tenant: str = Field(pattern=NAME)
    live_batches: _Limit | None = None
    stored_bytes: _Limit | None = None
    enqueued_lines: _Limit | None = None
    enqueued_tokens: _Limit | None = None
    requests_per_minute: _Limit | None = None
    tokens_per_day: _Limit | None = None
    models: list[_Model] | None = Field(None, max_length=_MAX_MODELS)


class QuotaRoutes:
    def __init__(self, services: Services) -> None:
        self._services = services
        self._quotas = services.database.quotas

    def router(self) -> APIRouter:
        router = APIRouter(prefix="/admin/quotas", tags=["Operation"])
        router.add_api_route("", self.list, response_model=QuotaList)
        update = json_body(QuotaUpdate)
        router.add_api_route("", self.put, methods=["PUT"], response_model=QuotaList, openapi_extra=update)
        router.add_api_route("", self.delete, methods=["DELETE"], response_model=QuotaList)
        router.add_api_route("/{tenant}", self.get, response_model=LimitsObject, responses=errors())
        return router

    async def list(self) -> Response:
        """The tenants that have anything of their own."""
        return await self._answer()

    async def get(self, tenant: Annotated[str, Path(), pattern_schema(NAME)]) -> Response:
        """What holds for a tenant, and what it has taken."""
        return answer(await limits_of(self._services, checked_name(tenant, "tenant")))

    async def put(self, request: Request) -> Response:
        """Change a tenant's own quotas, or the models it may use."""
        fields = await read_object(request)
        refuse_unknown(fields, QuotaUpdate.model_fields)
        tenant = checked_name(text_of(fields, "tenant"), "tenant")
        changes = _changes(fields)
        await self._quotas.change(tenant, changes, self._services.clock())
        logger.info("quotas were changed", extra={"of_tenant": tenant, "changed": ",".join(changes)})
        return await self._answer()

    async def delete(self, tenant: Annotated[str, Query(), pattern_schema(NAME)] = "") -> Response:
        """Take everything back that is a tenant's own. Without anything there is nothing to do."""
        await self._quotas.clear(checked_name(tenant, "tenant"))
        logger.info("quotas were cleared", extra={"of_tenant": tenant})
        return await self._answer()

    async def _answer(self) -> Response:
        defaults = DefaultQuotas.model_validate(self._services.settings.quotas._asdict())
        data = [
            QuotaObject(
                tenant=row.tenant,
                **row.own.model_dump(exclude={"models"}),
                models=None if row.own.models is None else sorted(row.own.models),
                changed_at=row.changed_at,
            )
            for row in await self._quotas.all()
        ]
        return answer(QuotaList(defaults=defaults, data=data))


def _changes(fields: Mapping[str, object]) -> dict[str, object]:
    """Raises ApiError for the first thing that is wrong."""
    changes: dict[str, object] = {quota.value: _limit(fields, quota) for quota in Quota if quota in fields}
    if "models" in fields:
        changes["models"] = _models(fields["models"])
    return changes


def _limit(fields: Mapping[str, object], quota: Quota) -> int | None:
    if fields[quota] is None:
        return None
    limit = integer_of(fields, quota)
    if not 0 <= limit <= MOST:
        message = f"Invalid value for '{quota}': expected 0, for no limit, to {MOST}, but got {limit}."
        raise invalid_value(quota, message)
    return limit


def _models(value: object) -> frozenset[str] | None:
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
