"""Idempotency keys: a repeated request with the same key returns the result of the first request.

A different request with the same key gets a 409. A key belongs to one tenant and one kind of request, and
expires after a day. A key is stored only if its request was successful.
"""

import re
from collections.abc import Mapping, Sequence
from datetime import timedelta
from hashlib import sha256
from typing import Annotated, Literal

import orjson
from fastapi import Header, Request

from batchwright.api.dependencies import ApiDependencies
from batchwright.api.errors import conflict, invalid_value
from batchwright.api.openapi import pattern_schema
from batchwright.database.records import FileRow, IdempotencyClaim, UploadRow
from batchwright.database.tables.tenants.admissions import Admission

Operation = Literal["batches", "calls", "files", "uploads"]
KEY_LIFETIME = timedelta(hours=24)
_KEY = re.compile(r"[\x21-\x7e]{1,255}", re.ASCII)


def idempotency_key_of(request: Request) -> str | None:
    """Return the request's idempotency key; None if it has no key.

    Raises:
        ApiError: the key is too long, or contains characters other than visible ASCII.
    """
    key = request.headers.get("idempotency-key")
    if key is not None and _KEY.fullmatch(key) is None:
        message = "Invalid Idempotency-Key header: expected 1 to 255 visible ASCII characters without spaces."
        raise invalid_value("Idempotency-Key", message)
    return key


def fingerprint(fields: Mapping[str, object]) -> str:
    """Return a digest of a JSON body. The order of keys and white space do not change it."""
    return sha256(orjson.dumps(fields, option=orjson.OPT_SORT_KEYS)).hexdigest()


class IdempotencyKeys:
    """The stored idempotency keys of one tenant, for one kind of request."""

    def __init__(self, deps: ApiDependencies, tenant: str, operation: Operation) -> None:
        self._claims = deps.database.idempotency
        self._clock = deps.clock
        self._tenant = tenant
        self._operation: Operation = operation

    async def find(self, key: str, fingerprint: str) -> str | None:
        """Return the stored result of the earlier request with this key, as JSON; None if there was none.

        Args:
            fingerprint: digest of the request.

        Raises:
            ApiError: the key was already used with another request, which has another digest (409).
        """
        existing = await self.find_claim(key)
        return None if existing is None else stored_result(existing, fingerprint)

    async def find_claim(self, key: str) -> IdempotencyClaim | None:
        """Return what is stored with this key: the digest and the result of the earlier request. Return None
        if the key is not stored.

        Use this method instead of `find` if the digest of the new request is not known yet. Later, pass the
        returned object and that digest to `stored_result`.
        """
        return await self._claims.find(self._tenant, self._operation, key, self._clock() - KEY_LIFETIME)

    async def claim(
        self,
        key: str,
        fingerprint: str,
        made: str,
        row: FileRow | UploadRow | None = None,
        *,
        admissions: Sequence[Admission] = (),
    ) -> str | None:
        """Store the result of a request under `key`, insert `row` in the same transaction, and return None.

        If the key is already stored, change nothing, and return the stored result as JSON.

        Args:
            key: the idempotency key.
            fingerprint: digest of the request.
            made: result of this request, as JSON.
            row: row of the file or upload that the request creates; None if there is none.
            admissions: the amounts to count towards the tenant's quotas for this request, each with its
                limit. If the key is already stored, nothing is counted.

        Raises:
            QuotaExhausted: the tenant would exceed the quota.
            ApiError: the key was already used with another request, which has another digest (409).
        """
        now = self._clock()
        claim = IdempotencyClaim(
            tenant=self._tenant,
            operation=self._operation,
            key=key,
            fingerprint=fingerprint,
            made=made,
            created_at=now,
        )
        existing = await self._claims.claim(claim, now - KEY_LIFETIME, row, admissions=admissions)
        return None if existing is None else stored_result(existing, fingerprint)


def stored_result(existing: IdempotencyClaim, fingerprint: str) -> str:
    """Return the result that an earlier request has stored with a key, as JSON.

    Args:
        fingerprint: digest of the repeated request.

    Raises:
        ApiError: the key was already used with another request, which has another digest (409).
    """
    if existing.fingerprint != fingerprint:
        message = (
            "This Idempotency-Key was used with another request within the last 24 hours. Use a new key, or "
            "send that request unchanged."
        )
        raise conflict(message, code="idempotency_key_reused", param="Idempotency-Key")
    return existing.made


async def idempotency_key_parameter(
    idempotency_key: Annotated[
        str | None,
        Header(description="repeating a request with the same key within 24 h returns the first response"),
        pattern_schema(r"^[\x21-\x7e]{1,255}$"),
    ] = None,
) -> None:
    """Do nothing. Routes declare this dependency only so that `/openapi.json` describes the header."""
