"""Reads and checks the bodies of single calls."""

from collections import Counter
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager

import msgspec
from fastapi import Request

from batchwright.api.errors import ApiError, invalid_type, invalid_value, missing_parameter, no_room
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
MAX_HELD_BYTES = 256 * 1024 * 1024  # for calls in this process, and again for answers
MAX_HELD_BYTES_PER_TENANT = 128 * 1024 * 1024


class HeldBytes:
    """Limits the bytes that this process keeps in memory for clients.

    There is one limit for each tenant (`MAX_HELD_BYTES_PER_TENANT`), and one for all tenants together
    (`MAX_HELD_BYTES`).
    """

    def __init__(self, what: str, *, largest: int = 0) -> None:
        """Create a limit.

        Args:
            what: plural name of the objects to limit, such as "calls", for error messages.
            largest: maximum size of one object in bytes. Both limits are raised if two such objects would
                exceed them, so that no permitted object is always refused. `0` leaves the limits as they are.
        """
        self._what, self._least = what, 2 * largest
        self._held = Counter[str]()  # bytes by tenant

    @contextmanager
    def counted(self, tenant: str) -> Generator[Callable[[int], None]]:
        """Context manager that yields a function to count bytes of the tenant. At the end of the block, all
        bytes that it has counted are freed.

        The argument of the function is the number of additional bytes; it is negative if bytes are freed
        earlier. If a limit would be exceeded, the function counts nothing and raises ApiError (429).
        """
        counted = 0

        def count(size: int) -> None:
            nonlocal counted
            own, all = self._held[tenant] + size, self._held.total() + size
            own_limit, limit = max(MAX_HELD_BYTES_PER_TENANT, self._least), max(MAX_HELD_BYTES, self._least)
            if size > 0 and (own > own_limit or all > limit):
                message = f"No room: this process holds too many bytes of {self._what}. Try again later."
                raise no_room(message)
            self._held[tenant] += size
            counted += size

        try:
            yield count
        finally:
            self._held[tenant] -= counted
            if not self._held[tenant]:
                del self._held[tenant]


class CallBodies:
    """Reads the bodies of single calls. With a body, a line of a batch stays within its limits for bytes and
    nesting.

    The bytes of all bodies in the memory of this process count towards the limits of `HeldBytes`. The bytes
    of a body count until its call (a single request) is accepted. If the client waits for the answer on the
    same connection, they count until the connection ends.
    """

    def __init__(self, settings: Settings) -> None:
        self._most = settings.max_line_bytes - LONGEST_LINE_START
        self._held = HeldBytes("calls")

    @asynccontextmanager
    async def read(self, request: Request, tenant: str) -> AsyncGenerator[Fields]:
        """Context manager that reads a request's body and yields its fields. Until the block ends, the bytes
        of the body count towards the limits of `HeldBytes`.

        Raises:
            ApiError: the body is too large (413), is not JSON, is not an object or is nested too deeply
                (400). Or the bodies of the tenant, or of all tenants together, have too many bytes (429).
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
