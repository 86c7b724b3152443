"""/admin/holds: stop sending the lines of a tenant or a model (hold), and allow it again (release); for
operators.
"""

import logging
from collections.abc import Mapping
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, Field

from batchwright.api.audit_log.operator_targets import HoldTarget
from batchwright.api.audit_log.recorder import AuditLog
from batchwright.api.auth.caller import operator_of
from batchwright.api.dependencies import ApiDependencies
from batchwright.api.errors import invalid_value, missing_parameter
from batchwright.api.openapi import pattern_schema
from batchwright.api.schemas.budgets import NAME_PATTERN, checked_name
from batchwright.api.schemas.json_body import check_text, json_body_spec, read_json_object, reject_unknown
from batchwright.api.schemas.openai_objects import json_response
from batchwright.contracts.api_objects.audit_log import AuditAction
from batchwright.contracts.api_objects.operator import HoldList, HoldObject
from batchwright.contracts.terms import HoldKind

logger = logging.getLogger(__name__)
_MAX_NAME_CHARACTERS = 256
_MODEL_PATTERN = rf"^[^\x00]{{1,{_MAX_NAME_CHARACTERS}}}$"


class NewHold(BaseModel):
    """The tenant or the model to hold. Set exactly one of the two fields.

    While a tenant or a model is held, its lines are not sent.
    """

    tenant: str | None = Field(None, pattern=NAME_PATTERN)
    model: str | None = Field(None, pattern=_MODEL_PATTERN)


class HoldRoutes:
    def __init__(self, deps: ApiDependencies) -> None:
        self._clock, self._holds = deps.clock, deps.database.holds
        self._audit_log = AuditLog(deps)

    def router(self) -> APIRouter:
        router = APIRouter(prefix="/admin/holds", tags=["Operation"])
        router.add_api_route("", self.list, response_model=HoldList)
        router.add_api_route(
            "",
            self.put,
            methods=["PUT"],
            response_model=HoldList,
            openapi_extra=json_body_spec(NewHold),
            dependencies=self._audit_log.of_operator(AuditAction.HOLD_SET, HoldTarget),
        )
        router.add_api_route(
            "",
            self.delete,
            methods=["DELETE"],
            response_model=HoldList,
            dependencies=self._audit_log.of_operator(AuditAction.HOLD_RELEASE, HoldTarget),
        )
        return router

    async def list(self) -> Response:
        """List the tenants and models that are held. Their lines are not sent."""
        return await self._hold_list()

    async def put(self, request: Request) -> Response:
        """Hold a tenant or a model. While a tenant or a model is held, its lines are not sent.

        Workers apply a hold within seconds. Requests that are already sent are completed. A hold does not
        extend the completion windows of batches.
        """
        fields = await read_json_object(request)
        reject_unknown(fields, NewHold.model_fields)
        kind, name = _parse_hold(fields)
        await self._holds.put(kind, name, self._clock())
        logger.info("held by an operator", extra=_log_fields(request, kind, name))
        return await self._hold_list()

    async def delete(
        self,
        request: Request,
        tenant: Annotated[str | None, Query(), pattern_schema(NAME_PATTERN)] = None,
        model: Annotated[str | None, Query(), pattern_schema(_MODEL_PATTERN)] = None,
    ) -> Response:
        """Release a tenant or a model that is held. Its lines are then sent again.

        If the tenant or the model is not held, nothing happens.
        """
        reject_unknown(request.query_params, NewHold.model_fields)
        kind, name = _parse_hold({"tenant": tenant, "model": model})
        await self._holds.remove(kind, name)
        logger.info("released by an operator", extra=_log_fields(request, kind, name))
        return await self._hold_list()

    async def _hold_list(self) -> Response:
        data = [
            HoldObject(
                tenant=hold.name if hold.kind is HoldKind.TENANT else None,
                model=hold.name if hold.kind is HoldKind.MODEL else None,
                held_at=int(hold.held_at.timestamp()),
            )
            for hold in await self._holds.all()
        ]
        return json_response(HoldList(data=data))


def _parse_hold(fields: Mapping[str, object]) -> tuple[HoldKind, str]:
    """Return the kind of the hold (tenant or model), and the name of the tenant or model.

    Raises:
        ApiError: `fields` does not have exactly one of `tenant` and `model`, or the name is not valid.
    """
    tenant, model = fields.get("tenant"), fields.get("model")
    if tenant is None and model is None:
        raise missing_parameter("tenant")
    if tenant is not None and model is not None:
        raise invalid_value("model", "Invalid value for 'model': name either a tenant or a model, not both.")
    if tenant is not None:
        return HoldKind.TENANT, checked_name(check_text(tenant, "tenant"), "tenant")
    name = check_text(model, "model")
    if not 0 < len(name) <= _MAX_NAME_CHARACTERS:
        message = f"Invalid value for 'model': expected 1 to {_MAX_NAME_CHARACTERS} characters."
        raise invalid_value("model", message)
    return HoldKind.MODEL, name


def _log_fields(request: Request, kind: HoldKind, name: str) -> dict[str, str]:
    return {"of_tenant" if kind is HoldKind.TENANT else "model": name, "operator": operator_of(request)}
