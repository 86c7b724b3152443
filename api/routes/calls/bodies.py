"""Read and check the bodies of single calls."""

from collections.abc import Mapping

import msgspec
from fastapi import Request

from batchwright.api.errors import ApiError, invalid_type, invalid_value, missing_parameter
from batchwright.api.schemas.json_body import read_raw_object
from batchwright.api.services.calls import SentKey
from batchwright.api.services.idempotency import fingerprint, idempotency_key_of
from batchwright.contracts.openai import Endpoint
from batchwright.rules.calls import LONGEST_LINE_START
from batchwright.rules.ids import is_model_name
from batchwright.rules.input.body_checks import kind_of
from batchwright.rules.input.line_checks import describe_body_problems
from batchwright.rules.input.lines import read_text
from batchwright.settings import Settings

Fields = dict[str, msgspec.Raw]
_OBJECT = msgspec.json.Decoder(Fields)
_TRUE, _ABSENT = b"true", (b"false", b"null")


async def read_fields(request: Request, settings: Settings) -> Fields:
    """Return the fields of the request's body. It may be as large as a line of a batch.

    Raises:
        ApiError: the body is too large (413), is not JSON or is not an object (400).
    """
    return await read_raw_object(request, settings.max_line_bytes - LONGEST_LINE_START)


def nested(fields: Mapping[str, msgspec.Raw], name: str) -> Fields:
    """Return the fields of an object in the field `name`.

    Raises:
        ApiError: the field is missing or is no object.
    """
    if name not in fields:
        raise missing_parameter(name)
    try:
        return _OBJECT.decode(fields[name])
    except msgspec.ValidationError:
        raise invalid_type(name, "an object", kind_of(fields[name])) from None


def flag(fields: Mapping[str, msgspec.Raw], name: str, prefix: str = "") -> bool:
    """Return a boolean field; False if it is absent or null. Raises ApiError if it is not a boolean.

    Args:
        prefix: text before the field's name in errors, such as `payload.`.
    """
    value = fields.get(name)
    if value is None or bytes(value) in _ABSENT:
        return False
    if bytes(value) != _TRUE:
        raise invalid_type(prefix + name, "a boolean", kind_of(value))
    return True


def text(fields: Mapping[str, msgspec.Raw], name: str, prefix: str = "") -> str | None:
    """Return a field that is text; None if it is absent or null. Raises ApiError if it is anything else."""
    value = fields.get(name)
    if value is None or bytes(value) == b"null":
        return None
    found = read_text(value) if kind_of(value) == "a string" else None
    if found is None:
        raise invalid_type(prefix + name, "a string", kind_of(value))
    return found


def sent_key(request: Request, fields: Fields) -> SentKey | None:
    """Return the idempotency key of a call and the digest of its request; None if it has no key."""
    key = idempotency_key_of(request)
    if key is None:
        return None
    texts = {name: bytes(value).decode(errors="replace") for name, value in fields.items()}
    return SentKey(key, fingerprint({"path": request.url.path, "body": texts}))


def model_of(fields: Mapping[str, msgspec.Raw], settings: Settings) -> str:
    """Return the model of a call, which is the default model of the settings if the body names none.

    Raises:
        ApiError: the body names no model, and there is no default; or the name is not valid.
    """
    model = text(fields, "model") or settings.default_model
    if not model:
        raise missing_parameter("model")
    if not is_model_name(model):
        raise invalid_value("model", "Invalid 'model': expected 1 to 256 printable characters.")
    return model


def check_body(endpoint: Endpoint, body: bytes) -> None:
    """Check the body that a backend would get.

    Raises:
        ApiError: the body is not valid for this endpoint (400).
    """
    problems = describe_body_problems(endpoint, msgspec.Raw(body))
    if problems:
        raise ApiError(400, problems, code="invalid_value")
