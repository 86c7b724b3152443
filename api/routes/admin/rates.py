"""/admin/rates: limits for the requests per second of all workers together, and their changes at run time;
for operators.
"""

import logging
from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, Field

from batchwright.api.audit_log.operator_targets import RateTarget
from batchwright.api.audit_log.recorder import AuditLog
from batchwright.api.dependencies import ApiDependencies
from batchwright.api.errors import ApiError, invalid_value, missing_parameter
from batchwright.api.openapi import error_responses
from batchwright.api.schemas.json_body import (
    check_text,
    json_body_spec,
    read_json_object,
    reject_unknown,
    wrong_type,
)
from batchwright.api.schemas.openai_objects import json_response
from batchwright.contracts.api_objects.audit_log import AuditAction
from batchwright.contracts.api_objects.quotas import RateList, RateObject
from batchwright.contracts.model_registry.stored_models import RateChange
from batchwright.contracts.temporal_names import DISPATCH_QUEUE
from batchwright.rules.limits.rate_allocation import (
    ALL_MODELS,
    MAX_RATE,
    MIN_RATE,
    RatesConflict,
    effective_rates,
)
from batchwright.rules.limits.rate_allocation import RateTable as RatesInEffect

logger = logging.getLogger(__name__)


class RateUpdate(BaseModel):
    """New value of a rate limit. If `model` is null, this is the limit for all models together.

    If `requests_per_second` is 0, there is no limit. A limit in the settings then does not apply.
    """

    model: str | None
    requests_per_second: float = Field(ge=0, le=MAX_RATE)


class RateRoutes:
    def __init__(self, deps: ApiDependencies) -> None:
        self._deps = deps
        self._changes, self._audit_log = deps.database.rates, AuditLog(deps)

    def router(self) -> APIRouter:
        router = APIRouter(prefix="/admin/rates", tags=["Operation"])
        router.add_api_route("", self.list, response_model=RateList)
        router.add_api_route(
            "",
            self.put,
            methods=["PUT"],
            response_model=RateList,
            openapi_extra=json_body_spec(RateUpdate),
            responses=error_responses(404),
            dependencies=self._audit_log.of_operator(AuditAction.RATE_SET, RateTarget),
        )
        router.add_api_route(
            "",
            self.delete,
            methods=["DELETE"],
            response_model=RateList,
            dependencies=self._audit_log.of_operator(AuditAction.RATE_RESET, RateTarget),
        )
        return router

    async def list(self) -> Response:
        """List the rate limits (requests per second of all workers together) that are in effect.

        If you change a limit, workers apply the change within 5 seconds.
        """
        return await self._rate_list(await self._changes.all())

    async def put(self, request: Request) -> Response:
        """Set a limit for the requests per second of all workers together.

        Until this limit is removed, the limit in the settings does not apply.
        """
        fields = await read_json_object(request)
        reject_unknown(fields, RateUpdate.model_fields)
        for name in RateUpdate.model_fields:
            if name not in fields:
                raise missing_parameter(name)
        rate = _parse_rate(fields["requests_per_second"])
        return await self._change(await self._parse_model(fields["model"]), rate)

    async def delete(
        self,
        model: Annotated[str | None, Query(description="if absent, the rate over all models")] = None,
    ) -> Response:
        """Remove a rate limit that was set at run time. The limit in the settings then applies again.

        If no limit was set at run time, nothing happens.
        """
        if model == ALL_MODELS:
            raise invalid_value("model", "Invalid value for 'model': leave it out for all models.")
        return await self._change(ALL_MODELS if model is None else check_text(model, "model"), None)

    async def _parse_model(self, value: object) -> str:
        if value is None:
            return ALL_MODELS
        model = check_text(value, "model")
        models = self._deps.models
        if model not in await models.served() and not models.accepts_unlisted(model):
            message = (
                f"The model '{model}' does not exist: no backend serves it; GET /v1/models lists the others."
            )
            raise ApiError(404, message, code="model_not_found", param="model")
        return model

    async def _change(self, model: str, requests_per_second: float | None) -> Response:
        now = self._deps.clock()

        def check(changes: Sequence[RateChange]) -> None:
            self._effective_rates(changes).check_remainder()

        try:
            changes = await self._changes.change(model, requests_per_second, now, check)
        except RatesConflict as conflict:
            raise invalid_value("requests_per_second", f"This change is not possible: {conflict}.") from None
        change = {"model": model or None, "requests_per_second": requests_per_second}
        logger.info("rate changed", extra=change)
        return await self._rate_list(changes)

    def _effective_rates(self, changes: Sequence[RateChange]) -> RatesInEffect:
        return effective_rates(
            self._deps.settings.rates, {row.model: row.requests_per_second for row in changes}
        )

    async def _rate_list(self, changes: Sequence[RateChange]) -> Response:
        """Return the response with all rate limits: first the limit for all models together, then the limits
        of single models, sorted by name.
        """
        rates = self._effective_rates(changes)
        shared = _shared_rate(rates, await self._deps.models.served())
        data = [
            RateObject(
                model=name or None,
                requests_per_second=rate.requests_per_second,
                source="change" if rate.changed else "setting",
                queue=DISPATCH_QUEUE if name == ALL_MODELS else rates.queue_of(name),
            )
            for name, rate in sorted(rates.entries.items())
        ]
        return json_response(RateList(data=data, shared_requests_per_second=shared))


def _shared_rate(rates: RatesInEffect, served: frozenset[str]) -> float | None:
    """Return the requests per second that are left for the models that have no separate limit.

    The result is the limit for all models together minus the separate limits of models in `served`. Return 0
    if less than `MIN_RATE` is left. Return None if there is no limit for all models together.

    Args:
        served: names of all models that backends serve, with and without a separate limit.
    """
    if not rates.overall_rate:
        return None
    try:
        return rates.remainder(served)
    except RatesConflict:
        return 0.0


def _parse_rate(value: object) -> float:
    name = "requests_per_second"
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise wrong_type(name, "a decimal number", value)
    if value and not MIN_RATE <= value <= MAX_RATE:
        raise invalid_value(
            name, f"Invalid value for '{name}': expected 0, for no limit, or {MIN_RATE:g} to {MAX_RATE:,.0f}."
        )
    return float(value)
