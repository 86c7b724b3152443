"""Idempotency-Key: the same key and request give the first answer, another request gets 409.

A key belongs to a tenant and to one kind of request, for a day. Only what was made holds a key: a refused or
failed request may be sent again, changed or not.
"""

import re
from collections.abc import Mapping
from datetime import timedelta
from hashlib import sha256
from typing import Annotated, Literal

import orjson
from fastapi import Header, Request

from api.errors import conflict, invalid_value
from api.parameters import pattern_schema
from api.services import Services
from batchwright.database.rows import FileRow
from batchwright.database.upload_rows import Claim, UploadRow

Operation = Literal["batches", "files", "uploads"]
KEPT = timedelta(hours=24)
_KEY = re.compile(r"[\x21-\x7e]{1,255}", re.ASCII)


def key_of(request: Request) -> str | None:
    """The request's key, None without one. Raises ApiError."""
    key = request.headers.get("idempotency-key")
    if key is not None and _KEY.fullmatch(key) is None:
        message = "Invalid Idempotency-Key header: expected 1 to 255 visible ASCII characters without spaces."
        raise invalid_value("Idempotency-Key", message)
    return key


def fingerprint(fields: Mapping[str, object]) -> str:
    """Of a JSON body; the order of its keys and its spaces do not count."""
    return sha256(orjson.dumps(fields, option=orjson.OPT_SORT_KEYS)).hexdigest()


class Keys:
    """One kind of request's keys of one tenant."""

    def __init__(self, services: Services, tenant: str, operation: Operation) -> None:
        self._claims = services.database.claims
        self._clock = services.clock
        self._tenant = tenant
        self._operation: Operation = operation

    async def find(self, key: str | None, fingerprint: str) -> str | None:
        """What the key made already, as JSON. Raises ApiError (409) where another request has the key."""
        if key is None:
            return None
        held = await self._claims.find(self._tenant, self._operation, key, self._clock() - KEPT)
        return None if held is None else _made(held, fingerprint)

    async def claim(
        self, key: str, fingerprint: str, made: str, row: FileRow | UploadRow | None = None
    ) -> str | None:
        """Takes the key for `made`, whose row it inserts: None. Or what the key made first, as JSON.

        Raises ApiError (409) where another request has the key.
        """
        now = self._clock()
        claim = Claim(
            tenant=self._tenant,
            operation=self._operation,
            key=key,
            fingerprint=fingerprint,
            made=made,
            created_at=now,
        )
        held = await self._claims.claim(claim, now - KEPT, row)
        return None if held is None else _made(held, fingerprint)


def _made(held: Claim, fingerprint: str) -> str:
    if held.fingerprint != fingerprint:
        message = (
            "This Idempotency-Key was used with another request within the last 24 hours. Use a new key, or "
            "send that request unchanged."
        )
        raise conflict(message, code="idempotency_key_reused", param="Idempotency-Key")
    return held.made


async def keyed(
    idempotency_key: Annotated[
        str | None,
        Header(description="the same key and request within 24 h give the first answer"),
        pattern_schema(r"^[\x21-\x7e]{1,255}$"),
    ] = None,
) -> None:
    """A dependency that puts the header into the OpenAPI description."""
