"""/admin/keys: list, create and revoke API keys, for operators."""

import logging
import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, Field

from batchwright.api.audit_log.operator_targets import KeyTarget, NewKeyTarget
from batchwright.api.audit_log.recorder import AuditLog
from batchwright.api.auth.caller import operator_of
from batchwright.api.dependencies import ApiDependencies
from batchwright.api.errors import ApiError, conflict, invalid_value
from batchwright.api.openapi import error_responses, pattern_schema
from batchwright.api.schemas.budgets import NAME_PATTERN, checked_name, text_list_of
from batchwright.api.schemas.json_body import (
    check_text,
    json_body_spec,
    read_json_object,
    reject_unknown,
    required_integer,
    required_text,
)
from batchwright.api.schemas.openai_objects import json_response
from batchwright.contracts.api_objects.audit_log import AuditAction
from batchwright.contracts.api_objects.operator import CreatedKey, KeyList, KeyObject
from batchwright.database.errors import UnknownTenant
from batchwright.database.records import ApiKeyRow
from batchwright.rules.tenants.api_keys import hash_secret, new_key
from batchwright.rules.tenants.scopes import Scope

logger = logging.getLogger(__name__)
_MAX_LABEL_CHARACTERS = 200
_MAX_DAYS = 36_500
_KEY_ID = re.compile(r"key_[0-9a-f]{32}")
_DEFAULT_SCOPES = (Scope.READ, Scope.WRITE)


class NewKey(BaseModel):
    tenant: str = Field(pattern=NAME_PATTERN)
    scopes: list[Scope] = Field(list(_DEFAULT_SCOPES), min_length=1, max_length=len(Scope))
    label: str = Field("", max_length=_MAX_LABEL_CHARACTERS, description="printable characters")
    expires_in_days: int | None = Field(None, ge=1, le=_MAX_DAYS, description="null: the key never expires")


class KeyRoutes:
    def __init__(self, deps: ApiDependencies) -> None:
        self._settings, self._clock = deps.settings, deps.clock
        self._keys, self._audit_log = deps.database.api_keys, AuditLog(deps)

    def router(self) -> APIRouter:
        router = APIRouter(prefix="/admin/keys", tags=["Operation"])
        router.add_api_route("", self.list, response_model=KeyList)
        router.add_api_route(
            "",
            self.create,
            methods=["POST"],
            response_model=CreatedKey,
            openapi_extra=json_body_spec(NewKey),
            responses=error_responses(404, 409),
            dependencies=self._audit_log.of_operator(AuditAction.KEY_CREATE, NewKeyTarget),
        )
        router.add_api_route(
            "/{key_id}/revoke",
            self.revoke,
            methods=["POST"],
            response_model=KeyObject,
            responses=error_responses(404),
            dependencies=self._audit_log.of_operator(AuditAction.KEY_REVOKE, KeyTarget),
        )
        return router

    async def list(
        self, tenant: Annotated[str | None, Query(), pattern_schema(NAME_PATTERN)] = None
    ) -> Response:
        """List API keys, including revoked and expired keys. `tenant` selects the keys of one tenant."""
        only = None if tenant is None else checked_name(tenant, "tenant")
        return json_response(KeyList(data=[_key(row) for row in await self._keys.all(only)]))

    async def create(self, request: Request) -> Response:
        """Create an API key. Only this response contains the whole key, because the key itself is not
        stored.
        """
        if self._settings.auth != "api_key":
            message = "This API checks no keys, so it creates none: it needs BATCHWRIGHT_AUTH=api_key."
            raise conflict(message)
        fields = await read_json_object(request)
        reject_unknown(fields, NewKey.model_fields)
        key, now = new_key(), self._clock()
        row = ApiKeyRow(
            id=NewKeyTarget.id_of(request),
            tenant=checked_name(required_text(fields, "tenant"), "tenant"),
            prefix=key.prefix,
            scopes=_scopes_of(fields),
            label=_label_of(fields),
            created_at=now,
            expires_at=_expiry_of(fields, now),
        )
        try:
            await self._keys.insert(row, hash_secret(key))
        except UnknownTenant:
            message = f"No such tenant: '{row.tenant}'. `batchwright tenants create` creates tenants."
            raise ApiError(404, message, param="tenant") from None
        extra = {"key": row.id, "of_tenant": row.tenant, "operator": operator_of(request)}
        logger.info("API key created by an operator", extra=extra)
        return json_response(CreatedKey(**_key(row).model_dump(), secret_key=key.text))

    async def revoke(self, request: Request, key_id: str) -> Response:
        """Revoke an API key permanently. The key stops working within seconds.

        In batches that were created with this key, all lines that were not sent yet fail.
        """
        row = await self._keys.revoke(key_id, self._clock()) if _KEY_ID.fullmatch(key_id) else None
        if row is None:
            raise ApiError(404, f"No such API key: '{key_id}'.", param="key_id")
        extra = {"key": row.id, "of_tenant": row.tenant, "operator": operator_of(request)}
        logger.info("API key revoked by an operator", extra=extra)
        return json_response(_key(row))


def _key(row: ApiKeyRow) -> KeyObject:
    times = (row.created_at, row.expires_at, row.revoked_at, row.last_used_at)
    created, expires, revoked, used = (None if each is None else int(each.timestamp()) for each in times)
    return KeyObject(
        id=row.id,
        tenant=row.tenant,
        prefix=f"bw_{row.prefix}",
        scopes=[*row.scopes],
        label=row.label,
        created_at=created or 0,
        expires_at=expires,
        revoked_at=revoked,
        last_used_at=used,
    )


def _scopes_of(fields: Mapping[str, object]) -> list[Scope]:
    """Return the scopes in the field `scopes`, in the order of the enum `Scope`. If the field is missing,
    return `read` and `write`.

    Raises:
        ApiError: the value is not a list of known scopes, or the list is empty.
    """
    named = text_list_of({"scopes": list(_DEFAULT_SCOPES), **fields}, "scopes")
    unknown = sorted({*named}.difference(Scope))
    if unknown or not named:
        got = f"got {unknown[0]!r}" if unknown else "the list is empty"
        message = f"Invalid value for 'scopes': expected some of {', '.join(Scope)}, but {got}."
        raise invalid_value("scopes", message)
    return [scope for scope in Scope if scope in named]


def _label_of(fields: Mapping[str, object]) -> str:
    label = check_text(fields.get("label", ""), "label")
    if len(label) > _MAX_LABEL_CHARACTERS or not label.isprintable():
        message = f"expected at most {_MAX_LABEL_CHARACTERS} characters, all of them printable."
        raise invalid_value("label", f"Invalid value for 'label': {message}")
    return label


def _expiry_of(fields: Mapping[str, object], now: datetime) -> datetime | None:
    name = "expires_in_days"
    if fields.get(name) is None:
        return None
    days = required_integer(fields, name)
    if not 1 <= days <= _MAX_DAYS:
        raise invalid_value(name, f"Invalid value for '{name}': expected 1 to {_MAX_DAYS}, but got {days}.")
    return now + timedelta(days=days)
