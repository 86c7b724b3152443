"""/admin/models: the models, who serves them, and their change at run time. An operator's, not a tenant's."""

import logging
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Literal

from fastapi import APIRouter, Path, Request, Response
from pydantic import BaseModel, Field

from api.bodies import check_text, json_body, read_object
from api.errors import ApiError, invalid_value
from api.objects import answer
from api.registering import config_of, refuse_files, refuse_headers
from api.responses import errors
from api.services import Services
from batchwright.contracts.jobs import JobConfig, Kind
from batchwright.contracts.registry import Choice, ModelConfig, NamesClash, check_names
from batchwright.database.rows import ModelChange
from batchwright.inference.catalog import Catalog, Registered, Source
from batchwright.rules.registry import effective

logger = logging.getLogger(__name__)
_MAX_NAME_CHARACTERS = 256
_Model = Annotated[str, Path(description="its id may contain slashes")]


class PlaceObject(BaseModel):
    """A backend of a model. `model` is the model's name there, null: the same."""

    url: str
    weight: float
    model: str | None


class RegisteredModel(BaseModel):
    """`source`: the registry's file, a change at run time, or the listing of a backend."""

    model: str
    source: Source
    changed_at: datetime | None = Field(description="of a change at run time")
    backends: list[PlaceObject]
    aliases: list[str]
    fallbacks: list[str]
    choice: Choice
    hedge_after: float | None = Field(description="seconds; null: no second backend is asked")
    kind: Kind
    jobs: JobConfig | None = Field(description="null where the kind is sync")
    problems: list[str] = Field(description="what of a change is not heeded, and what to do about it")


class RegisteredModels(BaseModel):
    object: Literal["list"] = "list"
    data: list[RegisteredModel]
    removed: list[str] = Field(description="models that were taken away at run time")


class ModelChangeObject(BaseModel):
    """What was changed at run time; `config` is null where the model was taken away."""

    model: str
    config: ModelConfig | None
    changed_at: datetime


class RegistryRoutes:
    def __init__(self, services: Services) -> None:
        self._services = services
        self._changes = services.database.model_changes
        self._catalog = Catalog(services.settings)

    def router(self) -> APIRouter:
        router = APIRouter(prefix="/admin", tags=["Operation"])
        missing = errors(404)  # on every route with a name: one with a line break in it leads nowhere
        router.add_api_route("/models", self.list, response_model=RegisteredModels)
        router.add_api_route(
            "/models/{model:path}",
            self.put,
            methods=["PUT"],
            response_model=RegisteredModels,
            openapi_extra=json_body(ModelConfig),
            responses=missing,
        )
        router.add_api_route(
            "/models/{model:path}",
            self.delete,
            methods=["DELETE"],
            response_model=RegisteredModels,
            responses=missing,
        )
        changes = "/model-configs/{model:path}"
        router.add_api_route(changes, self.get_change, response_model=ModelChangeObject, responses=missing)
        router.add_api_route(
            changes, self.revert, methods=["DELETE"], response_model=RegisteredModels, responses=missing
        )
        return router

    async def list(self) -> Response:
        """The models as they are registered, and who serves each. Workers follow within seconds."""
        return await self._answer(await self._changes.all())

    async def put(self, request: Request, model: _Model) -> Response:
        """Register a model, or replace one as a whole, whatever the registry's file says."""
        name = _name(model)
        config = config_of(name, await read_object(request))
        refuse_files(config, self._catalog.file)
        refuse_headers(name, config, self._services.settings.dispatch_header)
        if config.kind == "callback" and not self._services.settings.takes_callbacks:
            message = (
                "Invalid value for 'kind': callback needs BATCHWRIGHT_CALLBACK_URL and "
                "BATCHWRIGHT_CALLBACK_SECRET, which are not set."
            )
            raise invalid_value("kind", message)
        others = await self._others()
        for alias in config.aliases:
            if alias in others and alias != name:
                message = f"Invalid value for 'aliases': {alias!r} is a model itself: take one of them away."
                raise invalid_value("aliases", message)
        try:
            changes = await self._changes.put(
                name, config, self._services.clock(), lambda rows: self._check(rows, others)
            )
        except NamesClash as clash:
            raise _refused(clash) from None
        logger.info("a model was registered", extra={"model": name})
        return await self._answer(changes)

    async def delete(self, model: _Model) -> Response:
        """Take a model away, also one of the registry's file, until it is registered again or reverted."""
        name, others = _name(model), await self._others()
        known = {row.model for row in await self._changes.all()}
        if name not in known and name not in self._catalog.configured and name not in others:
            raise _missing(f"The model '{name}' does not exist: GET /admin/models lists those that do.")
        try:
            changes = await self._changes.put(
                name, None, self._services.clock(), lambda rows: self._check(rows, others)
            )
        except NamesClash as clash:
            raise _refused(clash) from None
        logger.info("a model was taken away", extra={"model": name})
        return await self._answer(changes)

    async def get_change(self, model: _Model) -> Response:
        """What was changed of a model at run time."""
        name = _name(model)
        for row in await self._changes.all():
            if row.model == name:
                return answer(ModelChangeObject(model=name, config=row.config, changed_at=row.changed_at))
        raise _missing(f"The model '{name}' was not changed at run time: PUT /admin/models does that.")

    async def revert(self, model: _Model) -> Response:
        """Take a change back: the file holds again, or what backends list. Without a change: nothing."""
        name, others = _name(model), await self._others()
        try:
            changes = await self._changes.revert(name, lambda rows: self._check(rows, others))
        except NamesClash as clash:
            raise _refused(clash) from None
        logger.info("a change of a model was taken back", extra={"model": name})
        return await self._answer(changes)

    async def _others(self) -> frozenset[str]:
        """What backends list themselves."""
        return frozenset(row.name for row in await self._catalog.seen(self._services.database))

    def _check(self, changes: Sequence[ModelChange], listed: frozenset[str]) -> None:
        by_name = {row.model: row.config for row in changes}
        gone = {name for name, config in by_name.items() if config is None}
        check_names(effective(self._catalog.configured, by_name), listed - gone)

    async def _answer(self, changes: Sequence[ModelChange]) -> Response:
        found = self._catalog.registered(changes, await self._catalog.seen(self._services.database))
        removed = [row.model for row in changes if row.config is None]
        return answer(RegisteredModels(data=[_object(entry) for entry in found], removed=removed))


def _object(entry: Registered) -> RegisteredModel:
    config = entry.config
    places = [
        PlaceObject(url=backend.url, weight=backend.weight, model=backend.model or None)
        for backend in config.backends
    ]
    return RegisteredModel(
        model=entry.model,
        source=entry.source,
        changed_at=entry.changed_at,
        backends=places,
        aliases=config.aliases,
        fallbacks=config.fallbacks,
        choice=config.choice,
        hedge_after=config.hedge_after,
        kind=config.kind,
        jobs=None if config.kind == "sync" else config.jobs,
        problems=[*entry.problems],
    )


def _name(model: str) -> str:
    if not 0 < len(model) <= _MAX_NAME_CHARACTERS:
        message = (
            f"Invalid value for 'model': expected 1 to {_MAX_NAME_CHARACTERS} characters, "
            f"but got {len(model)}."
        )
        raise invalid_value("model", message)
    return check_text(model, "model")


def _missing(message: str) -> ApiError:
    return ApiError(404, message, code="model_not_found", param="model")


def _refused(clash: NamesClash) -> ApiError:
    return invalid_value("model", f"This change is not possible: {clash}.")
