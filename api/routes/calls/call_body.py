"""Reads and checks the bodies of single calls: requests that clients send without a batch."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager

import msgspec
from fastapi import Request

from batchwright.api.client_limits.held_bytes import HeldBytes
from batchwright.api.errors import ApiError, invalid_type, invalid_value, missing_parameter
from batchwright.api.schemas.json_body import process_body, read_raw_object
from batchwright.api.services.calls.acceptance import SentKey
from batchwright.api.services.idempotency import fingerprint, idempotency_key_of
from batchwright.contracts.terms import Endpoint
from batchwright.rules.calls.call_lines import LONGEST_LINE_START
from batchwright.rules.ids import is_model_name
from batchwright.rules.input.body_rules import kind_of
from batchwright.rules.input.line_parser import read_text
from batchwright.rules.input.line_rules import describe_body_problems
from batchwright.settings import Settings

Fields = dict[str, msgspec.Raw]
_OBJECT = msgspec.json.Decoder(Fields)
_TRUE, _ABSENT = b"true", (b"false", b"null")


class CallBodies:
    """A reader of the bodies of single calls (requests that clients send without a batch).

    A call becomes a line of a batch. A body that would exceed the maximum size or nesting of a line is
    rejected.

    `HeldBytes` limits the number of bytes in memory. If the client waits for the answer on the same
    connection, the bytes of the body count towards this limit until the connection ends. Otherwise they
    count until the call is accepted.
    """

    def __init__(self, settings: Settings, held: HeldBytes) -> None:
        self._most, self._held = settings.max_line_bytes - LONGEST_LINE_START, held

    @asynccontextmanager
    async def read(self, request: Request, tenant: str) -> AsyncGenerator[Fields]:
        """Context manager that reads a request's body and yields the fields of the JSON object in the body.

        Until the `with` block ends, the bytes of the body count towards the limits of `HeldBytes`.

        Raises:
            ApiError: the body is too large (413). The body is not a JSON object, is nested too deeply, or is
                incomplete (400). Too many bytes of the tenant or of all tenants are in memory (429).
        """
        with self._held.counted(tenant) as count:
            yield await read_raw_object(request, self._most, count)


def nested(fields: Mapping[str, msgspec.Raw], name: str) -> Fields:
    """Return the fields of the JSON object in the field `name`.

    Raises:
        ApiError: the field is missing or is not an object.
    """
    if name not in fields:
        raise missing_parameter(name)
    try:
        return _OBJECT.decode(fields[name])
    except msgspec.ValidationError:
        raise invalid_type(name, "an object", kind_of(fields[name])) from None


def flag(fields: Mapping[str, msgspec.Raw], name: str, prefix: str = "") -> bool:
    """Return the value of a boolean field; False if the field is missing or null.

    Args:
        prefix: text before the field's name in errors, such as `payload.`.

    Raises:
        ApiError: the field has another value (400).
    """
    value = fields.get(name)
    if value is None or bytes(value) in _ABSENT:
        return False
    if bytes(value) != _TRUE:
        raise invalid_type(prefix + name, "a boolean", kind_of(value))
    return True


def text(fields: Mapping[str, msgspec.Raw], name: str, prefix: str = "") -> str | None:
    """Return the value of a text field; None if the field is missing or null.

    Args:
        prefix: text before the field's name in errors, such as `payload.`.

    Raises:
        ApiError: the field has another value (400).
    """
    value = fields.get(name)
    if value is None or bytes(value) == b"null":
        return None
    found = read_text(value) if kind_of(value) == "a string" else None
    if found is None:
        raise invalid_type(prefix + name, "a string", kind_of(value))
    return found


async def sent_key(request: Request, fields: Fields) -> SentKey | None:
    """Return the idempotency key of a request, and the digest of the request; None if the request has no
    key.
    """
    key = idempotency_key_of(request)
    if key is None:
        return None

    def digest() -> str:
        texts = {name: bytes(value).decode(errors="replace") for name, value in fields.items()}
        return fingerprint({"path": request.url.path, "body": texts})

    return SentKey(key, await process_body(request, digest))


def model_of(fields: Mapping[str, msgspec.Raw], settings: Settings) -> str:
    """Return the model that the body names. If the body names none, return the default model of the settings.

    Raises:
        ApiError: the body names no model and there is no default, or the name is not valid.
    """
    model = text(fields, "model") or settings.default_model
    if not model:
        raise missing_parameter("model")
    if not is_model_name(model):
        raise invalid_value("model", "Invalid 'model': expected 1 to 256 printable characters.")
    return model


def check_body(endpoint: Endpoint, body: bytes) -> None:
    """Check a body that is to be sent to a backend.

    Raises:
        ApiError: the body is not valid for the endpoint (400).
    """
    problems = describe_body_problems(endpoint, msgspec.Raw(body))
    if problems:
        raise ApiError(400, problems, code="invalid_value")
