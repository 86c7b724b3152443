"""/admin/rates: the rates of the whole fleet, and their change at run time. An operator's, not a tenant's."""

import logging
from collections.abc import Sequence
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, Field

from api.bodies import check_text, json_body, read_object, refuse_unknown, wrong_type
from api.errors import ApiError, invalid_value, missing
from api.objects import answer
from api.responses import errors
from api.services import Services
from batchwright.contracts.names import DISPATCH_QUEUE
from batchwright.database.rows import RateChange
from batchwright.rules.rates import ALL_MODELS, LEAST, MOST, RatesConflict, effective
from batchwright.rules.rates import Rates as RatesInEffect

logger = logging.getLogger(__name__)


class RateObject(BaseModel):
    """A rate in effect, in requests/s, 0: no limit. `model` is null for the one over all models."""

    model: str | None
    requests_per_second: float
    source: Literal["setting", "change"]
    queue: str = Field(description="the task queue on which it is kept")


class RateList(BaseModel):
    object: Literal["list"] = "list"
    data: list[RateObject]
    shared_requests_per_second: float | None = Field(
        description="what the models without a rate of their own share; null without a rate over all models"
    )


class RateUpdate(BaseModel):
    """`model` null: over all models. `requests_per_second` 0: no limit, whatever the setting says."""

    model: str | None
    requests_per_second: float = Field(ge=0, le=MOST)


class RateRoutes:
    def __init__(self, services: Services) -> None:
        self._services = services
        self._changes = services.database.rates

    def router(self) -> APIRouter:
        router = APIRouter(prefix="/admin/rates", tags=["Operation"])
        router.add_api_route("", self.list, response_model=RateList)
        router.add_api_route(
            "",
            self.put,
            methods=["PUT"],
            response_model=RateList,
            openapi_extra=json_body(RateUpdate),
            responses=errors(404),
        )
        router.add_api_route("", self.delete, methods=["DELETE"], response_model=RateList)
        return router

    async def list(self) -> Response:
        """The rates in effect. Workers follow within BATCHWRIGHT_MODEL_REFRESH_SECONDS."""
        return await self._answer(await self._changes.all())

    async def put(self, request: Request) -> Response:
        """Set a rate until it is changed again or removed, whatever the settings say."""
        fields = await read_object(request)
        refuse_unknown(fields, RateUpdate.model_fields)
        for name in RateUpdate.model_fields:
            if name not in fields:
                raise missing(name)
        rate = _rate_of(fields["requests_per_second"])
        return await self._change(await self._model_of(fields["model"]), rate)

    async def delete(
        self,
        model: Annotated[str | None, Query(description="absent: the rate over all models")] = None,
    ) -> Response:
        """Take a change back: the setting holds again. Without a change there is nothing to do."""
        if model == ALL_MODELS:
            raise invalid_value("model", "Invalid value for 'model': leave it out for all models.")
        return await self._change(ALL_MODELS if model is None else check_text(model, "model"), None)

    async def _model_of(self, value: object) -> str:
        if value is None:
            return ALL_MODELS
        model = check_text(value, "model")
        if model not in await self._services.models.served():
            message = (
                f"The model '{model}' does not exist: no backend serves it; GET /v1/models lists the others."
            )
            raise ApiError(404, message, code="model_not_found", param="model")
        return model

    async def _change(self, model: str, requests_per_second: float | None) -> Response:
        now = self._services.clock()
        try:
            changes = await self._changes.change(model, requests_per_second, now, self._check)
        except RatesConflict as conflict:
            raise invalid_value("requests_per_second", f"This change is not possible: {conflict}.") from None
        said = {"model": model or None, "requests_per_second": requests_per_second}
        logger.info("a rate was changed", extra=said)
        return await self._answer(changes)

    def _check(self, changes: Sequence[RateChange]) -> None:
        self._in_effect(changes).check()

    def _in_effect(self, changes: Sequence[RateChange]) -> RatesInEffect:
        return effective(
            self._services.settings.rates, {row.model: row.requests_per_second for row in changes}
        )

    async def _answer(self, changes: Sequence[RateChange]) -> Response:
        rates = self._in_effect(changes)
        shared = _shared(rates, await self._services.models.served())
        return answer(RateList(data=_objects(rates), shared_requests_per_second=shared))


def _objects(rates: RatesInEffect) -> list[RateObject]:
    """The one over all models first, then by name."""
    return [
        RateObject(
            model=name or None,
            requests_per_second=rate.requests_per_second,
            source="change" if rate.changed else "setting",
            queue=DISPATCH_QUEUE if name == ALL_MODELS else rates.queue_of(name),
        )
        for name, rate in sorted(rates.entries.items())
    ]


def _shared(rates: RatesInEffect, served: frozenset[str]) -> float | None:
    """0: settings that came after a change leave nothing."""
    if not rates.over_all:
        return None
    try:
        return rates.left(served)
    except RatesConflict:
        return 0.0


def _rate_of(value: object) -> float:
    name = "requests_per_second"
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise wrong_type(name, "a decimal number", value)
    if value and not LEAST <= value <= MOST:
        raise invalid_value(
            name, f"Invalid value for '{name}': expected 0, for no limit, or {LEAST:g} to {MOST:,.0f}."
        )
    return float(value)
