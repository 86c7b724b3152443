"""Reads JSON request bodies within limits, and checks their fields with OpenAI's error messages.

Field values have the type `object` until a function of this module has checked them.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial
from typing import TypeVar

import msgspec
import orjson
from fastapi import Request
from pydantic import BaseModel, TypeAdapter
from starlette.requests import ClientDisconnect

from batchwright.api.errors import (
    NO_HINTS,
    ApiError,
    invalid_type,
    invalid_value,
    missing_parameter,
    unknown_parameter,
)
from batchwright.rules.calls.call_lines import MAX_CALL_NESTING
from batchwright.rules.json_text import RepeatedKey, check_nesting, check_unique_keys

MAX_BODY_BYTES = 1024 * 1024  # bodies with files are limited in `api/services/files/`
_SCOPE_BODY = "batchwright.body"  # key of the body in the ASGI scope
_Result = TypeVar("_Result")
_OBJECT = TypeAdapter(dict[str, object])
_LIST = TypeAdapter(list[object])
_RAW_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
# Larger bodies are checked in a thread: 10 MiB of nested brackets take five seconds.
_MOST_PARSED_INLINE = 64 * 1024
_BEYOND_64_BITS = 2.0**63
_KINDS: list[tuple[type, str]] = [
    (bool, "a boolean"),  # before int, because a Python bool is an int
    (int, "an integer"),
    (float, "a decimal number"),
    (str, "a string"),
    (list, "an array"),
    (dict, "an object"),
]


async def _read_body(
    request: Request, max_bytes: int = MAX_BODY_BYTES, count: Callable[[int], None] = lambda size: None
) -> bytes:
    """Return the body of a request. The first call for a request receives the body and keeps it in memory.
    Later calls return the same body.

    Args:
        max_bytes: maximum size of the body in bytes.
        count: function that is called each time a part of the body arrives, with the part's number of bytes.
            It can raise ApiError to reject the body.

    Raises:
        ApiError: the body is too large (413), or the client closed the connection too early (400).
    """
    if _SCOPE_BODY in request.scope:
        read: bytes = request.scope[_SCOPE_BODY]
        return read
    body = bytearray()
    try:
        async for piece in request.stream():
            count(len(piece))
            body += piece
            if len(body) > max_bytes:
                raise ApiError(413, f"The body of this request may hold at most {max_bytes} bytes.")
    except ClientDisconnect:
        raise ApiError(400, "The request ended before its body did.") from None
    request.scope[_SCOPE_BODY] = bytes(body)
    return bytes(body)


async def read_json_object(request: Request) -> Mapping[str, object]:
    """Read the body of a request, which must be a JSON object.

    Below /admin, a repeated key is an error. On other paths, its last value is used, as in OpenAI's API.

    Raises:
        ApiError: the body is too large, is not JSON or is not an object.
    """
    return _parse_object(request, await _read_body(request))


async def read_optional_object(request: Request) -> Mapping[str, object]:
    """Read the body of a request as `read_json_object` does. If there is no body, return an empty object."""
    body = await _read_body(request)
    return _parse_object(request, body) if body else {}


async def read_raw_object(
    request: Request, max_bytes: int, count: Callable[[int], None]
) -> dict[str, msgspec.Raw]:
    """Read the body of a call (a single request without a batch). It must be a JSON object. Return its fields
    with unparsed values.

    If a key is repeated, its last value is used. The body may be nested at most MAX_CALL_NESTING levels deep.

    Args:
        max_bytes: maximum size of the body in bytes.
        count: function that is called each time a part of the body arrives, with the part's number of bytes.
            It can raise ApiError to reject the body.

    Raises:
        ApiError: the body is too large, is not JSON, is not an object or is nested too deeply.
    """
    body = await _read_body(request, max_bytes, count)
    try:
        return await process_body(request, partial(_raw_fields, body))
    except msgspec.ValidationError:
        message = "The JSON body of your request must be an object."
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        message = f"We could not parse the JSON body of your request: {error}."
    raise ApiError(400, message)


async def process_body(request: Request, process: Callable[[], _Result]) -> _Result:
    """Call `process`, a function that processes the request's body, and return its result.

    Read the request's body before you call this function. If the body is large, `process` runs in a thread,
    and the event loop can serve other requests.
    """
    if len(await _read_body(request)) > _MOST_PARSED_INLINE:
        return await asyncio.to_thread(process)
    return process()


def _raw_fields(body: bytes) -> dict[str, msgspec.Raw]:
    check_nesting(body, MAX_CALL_NESTING)
    return _RAW_OBJECT.decode(body)


def _parse_object(request: Request, body: bytes) -> Mapping[str, object]:
    try:
        check_nesting(body)
        value: object = orjson.loads(body)
        if request.url.path.startswith("/admin/"):
            check_unique_keys(body)
    except orjson.JSONDecodeError as error:
        raise ApiError(400, f"We could not parse the JSON body of your request: {error}.") from None
    except RepeatedKey as error:
        message = f"The JSON body of your request is ambiguous: {error}."
        raise ApiError(400, message, code="invalid_value") from None
    except RecursionError:
        message = "We could not parse the JSON body of your request: it is nested too deeply."
        raise ApiError(400, message) from None
    fields = as_object(value)
    if fields is None:
        raise ApiError(400, f"The JSON body of your request must be an object, not {json_type_of(value)}.")
    return fields


def as_object(value: object) -> Mapping[str, object] | None:
    return _OBJECT.validate_python(value) if isinstance(value, dict) else None


def json_type_of(value: object) -> str:
    """Return the JSON type of a value in words, for error messages, such as "a string" or "null"."""
    return next((name for kind, name in _KINDS if isinstance(value, kind)), "null")


def wrong_type(param: str, expected: str, value: object) -> ApiError:
    return invalid_type(param, expected, json_type_of(value))


def reject_unknown(
    fields: Mapping[str, object],
    known: Iterable[str],
    prefix: str = "",
    hints: Mapping[str, str] = NO_HINTS,
) -> None:
    for name in fields:
        if name not in known:
            raise unknown_parameter(prefix + name, hints)


def required_text(fields: Mapping[str, object], name: str, prefix: str = "") -> str:
    """Return the field `name`, which must be a string that the database can store.

    Args:
        prefix: text before the field's name in errors, such as `metadata.`.

    Raises:
        ApiError: the field is missing, is not a string, or contains a NUL character.
    """
    if name not in fields:
        raise missing_parameter(prefix + name)
    return check_text(fields[name], prefix + name)


def check_text(value: object, param: str) -> str:
    if not isinstance(value, str):
        raise wrong_type(param, "a string", value)
    if "\x00" in value:
        raise invalid_value(param, f"Invalid value for '{param}': it contains a NUL character.")
    return value


def required_integer(fields: Mapping[str, object], name: str, prefix: str = "") -> int:
    """Return the field `name`, which must be an integer. Integers over 64 bits may lose digits.

    Args:
        prefix: text before the field's name in errors, such as `metadata.`.

    Raises:
        ApiError: the field is missing or is not an integer.
    """
    if name not in fields:
        raise missing_parameter(prefix + name)
    value = fields[name]
    if isinstance(value, float) and abs(value) >= _BEYOND_64_BITS and value.is_integer():
        return int(value)  # the parser turns integers over 64 bits into floats
    if isinstance(value, bool) or not isinstance(value, int):
        raise wrong_type(prefix + name, "an integer", value)
    return value


def json_body_spec(model: type[BaseModel]) -> dict[str, object]:
    """Return the OpenAPI description of a required JSON body with the schema `model`."""
    described = _schema_of(model)
    schema = _inlined(described, as_object(described.get("$defs")) or {})
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def optional_body_spec(model: type[BaseModel]) -> dict[str, object]:
    """Return the OpenAPI description of an optional JSON body with the schema `model`."""
    described = as_object(json_body_spec(model)["requestBody"]) or {}
    return {"requestBody": {**described, "required": False}}


@cache
def _schema_of(model: type[BaseModel]) -> Mapping[str, object]:
    """Return the JSON schema of `model`. The caller must not change it.

    The schema is cached because many routes need it, and because tests build the application many times.
    """
    return model.model_json_schema()


def _inlined(node: object, definitions: Mapping[str, object]) -> object:
    """Return the schema `node` with each reference (`$ref`) replaced by the definition that it names.

    References would not work, because `/openapi.json` does not contain these definitions.
    """
    if isinstance(node, list):
        return [_inlined(item, definitions) for item in _LIST.validate_python(node)]
    fields = as_object(node)
    if fields is None:
        return node
    reference = fields.get("$ref")
    if isinstance(reference, str):
        return _inlined(definitions[reference.rpartition("/")[2]], definitions)
    return {name: _inlined(value, definitions) for name, value in fields.items() if name != "$defs"}
