"""/admin/models and /admin/model-configs: the model registry (the list of models, their backends and
settings) and its changes at run time; for operators.
"""

import logging
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Annotated

from fastapi import APIRouter, Path, Request, Response
from fastapi.params import Depends as DependsOn

from batchwright.api.audit_log.operator_targets import ModelTarget
from batchwright.api.audit_log.recorder import AuditLog
from batchwright.api.dependencies import ApiDependencies
from batchwright.api.errors import ApiError, invalid_value
from batchwright.api.openapi import error_responses
from batchwright.api.schemas.json_body import check_text, json_body_spec, read_json_object
from batchwright.api.schemas.model_registry import (
    ModelConfigBody,
    ModelConfigObject,
    model_config_object,
    model_settings_object,
    registered_model,
)
from batchwright.api.schemas.model_update import (
    etag,
    expected_versions,
    model_config_patch,
    reject_header_clash,
    reject_secret_misuse,
    validated_config,
    version_conflict,
)
from batchwright.api.schemas.openai_objects import json_response
from batchwright.contracts.api_objects.audit_log import AuditAction
from batchwright.contracts.api_objects.operator import ModelSettingsObject, RegisteredModels
from batchwright.contracts.model_registry.price_config import describe_mixed_currencies
from batchwright.contracts.model_registry.registry_config import (
    ModelConfig,
    ModelNameConflict,
    check_model_names,
    prices_of,
)
from batchwright.contracts.model_registry.stored_models import ModelChange, ServedModel
from batchwright.database.errors import VersionConflict
from batchwright.inference.registry.model_catalog import Catalog, CatalogEntry
from batchwright.rules.backends.registry_changes import (
    MODEL_SETTINGS,
    ModelSettings,
    apply_patch,
    merge_settings,
)
from batchwright.settings import Settings

logger = logging.getLogger(__name__)
_MAX_NAME_CHARACTERS = 256
_Model = Annotated[str, Path(description="model id, which may contain slashes")]


class ModelRegistryRoutes:
    def __init__(self, deps: ApiDependencies) -> None:
        self._deps = deps
        self._changes = deps.database.model_changes
        self._catalog, self._audit_log = Catalog(deps.settings), AuditLog(deps)

    def router(self) -> APIRouter:
        router = APIRouter(prefix="/admin", tags=["Operation"])
        # Every route with a name can return 404, because a name with a line break matches no route.
        missing = error_responses(404)
        router.add_api_route("/models", self.list, response_model=RegisteredModels)
        one, config = "/models/{model:path}", "/model-configs/{model:path}"
        stale = error_responses(404, 412)
        router.add_api_route(one, self.get, response_model=ModelSettingsObject, responses=missing)
        router.add_api_route(
            one,
            self.put,
            methods=["PUT"],
            response_model=RegisteredModels,
            openapi_extra=json_body_spec(ModelConfig),
            responses=stale,
            dependencies=self._audited(AuditAction.MODEL_REGISTER),
        )
        router.add_api_route(
            one,
            self.patch,
            methods=["PATCH"],
            response_model=ModelSettingsObject,
            openapi_extra=json_body_spec(ModelConfig),
            responses=stale,
            dependencies=self._audited(AuditAction.MODEL_CHANGE),
        )
        router.add_api_route(
            one,
            self.delete,
            methods=["DELETE"],
            response_model=RegisteredModels,
            responses=stale,
            dependencies=self._audited(AuditAction.MODEL_REMOVE),
        )
        router.add_api_route(config, self.get_config, response_model=ModelConfigObject, responses=missing)
        router.add_api_route(
            config,
            self.put_config,
            methods=["PUT"],
            response_model=ModelConfigObject,
            openapi_extra=json_body_spec(ModelConfigBody),
            responses=stale,
            dependencies=self._audited(AuditAction.MODEL_CHANGE),
        )
        router.add_api_route(
            config,
            self.revert,
            methods=["DELETE"],
            response_model=RegisteredModels,
            responses=stale,
            dependencies=self._audited(AuditAction.MODEL_REVERT),
        )
        return router

    def _audited(self, action: AuditAction) -> list[DependsOn]:
        return self._audit_log.of_operator(action, ModelTarget)

    async def list(self) -> Response:
        """List the registered models with their backends, as they are now. If you change a model, workers
        apply the change within seconds.
        """
        return await self._registry_response(await self._changes.all())

    async def get(self, model: _Model) -> Response:
        """Show the settings of a model that are in effect, and where each setting comes from.

        The header `ETag` contains the version of the model's settings.
        """
        name = _checked_name(model)
        entry = self._entry_of(name, *await self._read())
        found = model_settings_object(entry, self._deps.settings)
        return json_response(found, headers=etag(found.version))

    async def put(self, request: Request, model: _Model) -> Response:
        """Register a model, or replace all settings of a model. These settings then apply instead of those in
        the registry file.
        """
        name, expected = _checked_name(model), expected_versions(request)
        fields = await read_json_object(request)
        config = validated_config(name, lambda: ModelConfig.model_validate(fields))
        changes, seen = await self._read()
        self._reject_conflicts(name, config, seen)
        if request.headers.get("if-none-match", "").strip() == "*":
            if any(entry.model == name for entry in self._catalog.registered(changes, seen)):
                remedy = "PATCH changes it, PUT without If-None-Match replaces it"
                message = f"The model '{name}' exists already: {remedy}."
                raise ApiError(412, message, code="version_conflict", param="If-None-Match")
            expected = [row.version for row in changes if row.model == name] or [0]
        with self._translated_errors(name):
            changes = await self._changes.put(
                name, config, self._deps.clock(), lambda rows: self._check_names(rows, seen), expected
            )
        logger.info("model registered", extra={"model": name})
        return await self._registry_response(changes, name)

    async def patch(self, request: Request, model: _Model) -> Response:
        """Change some settings of a model, and keep all others.

        To undo an earlier change of a setting, send `null` for this setting.
        """
        name, expected = _checked_name(model), expected_versions(request)
        fields = MODEL_SETTINGS.validate_python(await read_json_object(request))
        return model_settings_response(
            await self._change_settings(name, lambda base: fields, expected), self._deps.settings
        )

    async def _change_settings(
        self,
        name: str,
        fields_for: Callable[[ModelConfig | None], ModelSettings],
        expected: Sequence[int] | None,
    ) -> CatalogEntry:
        """Store changes of some settings of a model, and return the changed model.

        Args:
            fields_for: function that returns the settings to change. Its argument is the model's
                configuration without run-time changes, or None if the model was registered at run time.
            expected: versions that the model may have before the change; None for any version.

        Raises:
            ApiError: the model does not exist, the change is not valid, or the model has none of the expected
                versions (412).
        """
        changes, seen = await self._read()
        base = self._catalog.base_of(name, seen)
        if base is None:
            self._entry_of(name, changes, seen)

        def merge(present: ModelChange | None) -> ModelConfig | ModelSettings:
            fields = fields_for(base)
            if present is not None and present.is_removal:
                raise _model_removed(name)
            if present is not None and present.config is not None:
                whole = present.config
                config = change = validated_config(name, lambda: apply_patch(whole, fields))
            elif base is not None:
                whole, patch = base, merge_settings((present and present.patch) or {}, fields)
                config, change = validated_config(name, lambda: apply_patch(whole, patch)), patch
            else:
                raise _model_not_found(name)
            self._reject_conflicts(name, config, seen)
            return change

        with self._translated_errors(name):
            changes = await self._changes.patch(
                name, merge, self._deps.clock(), lambda rows: self._check_names(rows, seen), expected
            )
        logger.info("model settings changed", extra={"model": name})
        return self._entry_of(name, changes, seen)

    async def delete(self, request: Request, model: _Model) -> Response:
        """Remove a model. It stays removed until you register it again or undo the removal.

        You can also remove a model that is in the registry file. The file itself does not change.
        """
        name, expected = _checked_name(model), expected_versions(request)
        changes, seen = await self._read()
        known = {row.model for row in changes} | {row.name for row in seen}
        if name not in known and name not in self._catalog.configured:
            raise _model_not_found(name)
        with self._translated_errors(name):
            changes = await self._changes.put(
                name, None, self._deps.clock(), lambda rows: self._check_names(rows, seen), expected
            )
        logger.info("model removed", extra={"model": name})
        return await self._registry_response(changes, name)

    async def get_config(self, model: _Model) -> Response:
        """Show if requests to a model are sent synchronously or as jobs, and how often a failed request is
        retried. A backend accepts a job at once, and answers it later.
        """
        entry = self._entry_of(_checked_name(model), *await self._read())
        found = model_config_object(entry, self._deps.settings)
        return json_response(found, headers=etag(found.version))

    async def put_config(self, request: Request, model: _Model) -> Response:
        """Change how requests are sent to a model. The settings in the body apply instead of those in the
        registry file or in the model lists of the backends.

        If the body lacks a setting, an earlier change of this setting is undone.
        """
        name, expected = _checked_name(model), expected_versions(request)
        fields = await read_json_object(request)
        entry = await self._change_settings(name, lambda base: model_config_patch(fields, base), expected)
        found = model_config_object(entry, self._deps.settings)
        return json_response(found, headers=etag(found.version))

    async def revert(self, request: Request, model: _Model) -> Response:
        """Undo all changes that were made to a model at run time.

        The settings in the registry file, or in the model lists of the backends, then apply again. If the
        model was not changed at run time, nothing happens.
        """
        name, expected = _checked_name(model), expected_versions(request)
        seen = await self._catalog.seen(self._deps.database)
        with self._translated_errors(name):
            changes = await self._changes.revert(name, lambda rows: self._check_names(rows, seen), expected)
        logger.info("model change reverted", extra={"model": name})
        return await self._registry_response(changes, name)

    async def _read(self) -> tuple[Sequence[ModelChange], Sequence[ServedModel]]:
        database = self._deps.database
        return await self._changes.all(), await self._catalog.seen(database)

    def _entry_of(
        self, name: str, changes: Sequence[ModelChange], seen: Sequence[ServedModel]
    ) -> CatalogEntry:
        for entry in self._catalog.registered(changes, seen):
            if entry.model == name:
                return entry
        if any(row.model == name and row.is_removal for row in changes):
            raise _model_removed(name)
        raise _model_not_found(name)

    def _reject_conflicts(self, name: str, config: ModelConfig, seen: Sequence[ServedModel]) -> None:
        """Check the new configuration of a model against the settings of this installation and the models
        that backends list.

        Raises:
            ApiError: there is a conflict. For example, an alias of the model is the name of a listed model,
                or the model needs callbacks but the settings have no callback URL.
        """
        settings = self._deps.settings
        reject_secret_misuse(config, self._catalog.trusted)
        reject_header_clash(name, config, settings.dispatch_header)
        if config.kind == "callback" and not settings.takes_callbacks:
            message = (
                "Invalid value for 'kind': callback needs BATCHWRIGHT_CALLBACK_URL and "
                "BATCHWRIGHT_CALLBACK_SECRET, which are not set."
            )
            raise invalid_value("kind", message)
        listed = {row.name for row in seen}
        if alias := next((alias for alias in config.aliases if alias in listed), None):
            message = f"Invalid value for 'aliases': {alias!r} is a model itself: remove one of them."
            raise invalid_value("aliases", message)

    @contextmanager
    def _translated_errors(self, name: str) -> Generator[None]:
        try:
            yield
        except ModelNameConflict as clash:
            raise invalid_value("model", f"This change is not possible: {clash}.") from None
        except VersionConflict as conflict:
            raise version_conflict(name, conflict) from None

    def _check_names(self, changes: Sequence[ModelChange], seen: Sequence[ServedModel]) -> None:
        entries = self._catalog.registered(changes, seen)
        models = {entry.model: entry.config for entry in entries}
        prices = prices_of(models)
        for gateway in self._catalog.gateways:
            if gateway.prices is not None:
                prices["the gateway"] = gateway.prices
        if problem := describe_mixed_currencies(prices):
            raise invalid_value("prices.currency", f"Invalid value for 'prices.currency': {problem}.")
        listed = {entry.model for entry in entries if entry.source == "listing"}
        registered = {name: config for name, config in models.items() if name not in listed}
        check_model_names(registered, frozenset(listed))

    async def _registry_response(self, changes: Sequence[ModelChange], name: str = "") -> Response:
        found = self._catalog.registered(changes, await self._catalog.seen(self._deps.database))
        removed = [row.model for row in changes if row.is_removal]
        version = next((row.version for row in changes if row.model == name), 0)
        page = RegisteredModels(data=[registered_model(entry) for entry in found], removed=removed)
        return json_response(page, headers=etag(version) if name else None)


def model_settings_response(entry: CatalogEntry, settings: Settings) -> Response:
    found = model_settings_object(entry, settings)
    return json_response(found, headers=etag(found.version))


def _checked_name(model: str) -> str:
    if not 0 < len(model) <= _MAX_NAME_CHARACTERS:
        message = (
            f"Invalid value for 'model': expected 1 to {_MAX_NAME_CHARACTERS} characters, "
            f"but got {len(model)}."
        )
        raise invalid_value("model", message)
    return check_text(model, "model")


def _model_not_found(name: str) -> ApiError:
    message = f"The model '{name}' does not exist: GET /admin/models lists all models."
    return ApiError(404, message, code="model_not_found", param="model")


def _model_removed(name: str) -> ApiError:
    message = f"The model '{name}' was removed at run time: DELETE /admin/model-configs/{name} restores it."
    return ApiError(404, message, code="model_not_found", param="model")
