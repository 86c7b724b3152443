"""JSON bodies of requests: read within bounds, then picked apart with OpenAI's words for what is wrong.

Values are `object` until a reader here has looked at them.
"""

from collections.abc import Iterable, Mapping

import orjson
from fastapi import Request
from pydantic import BaseModel, TypeAdapter
from starlette.requests import ClientDisconnect

from api.errors import ApiError, invalid_value, missing, unknown_parameter, wrong_type_of

_OBJECT = TypeAdapter(dict[str, object])
_LIST = TypeAdapter(list[object])
MAX_BODY_BYTES = 1024 * 1024
_BEYOND_64_BITS = 2.0**63
_KINDS: list[tuple[type, str]] = [
    (bool, "a boolean"),  # before int: Python takes a bool for one
    (int, "an integer"),
    (float, "a decimal number"),
    (str, "a string"),
    (list, "an array"),
    (dict, "an object"),
]


async def read_object(request: Request) -> Mapping[str, object]:
    """The body, a JSON object."""
    return _object(await _read(request))


def _object(body: bytes) -> Mapping[str, object]:
    try:
        value: object = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise ApiError(400, f"We could not parse the JSON body of your request: {error}.") from None
    fields = as_object(value)
    if fields is None:
        raise ApiError(400, f"The JSON body of your request must be an object, not {kind_of(value)}.")
    return fields


async def read_optional(request: Request) -> Mapping[str, object]:
    """The same; no body says nothing."""
    body = await _read(request)
    return _object(body) if body else {}


def as_object(value: object) -> Mapping[str, object] | None:
    return _OBJECT.validate_python(value) if isinstance(value, dict) else None


def kind_of(value: object) -> str:
    """The value's JSON type with its article."""
    return next((name for kind, name in _KINDS if isinstance(value, kind)), "null")


def wrong_type(param: str, expected: str, value: object) -> ApiError:
    return wrong_type_of(param, expected, kind_of(value))


def refuse_unknown(fields: Mapping[str, object], known: Iterable[str], prefix: str = "") -> None:
    for name in fields:
        if name not in known:
            raise unknown_parameter(prefix + name)


def text_of(fields: Mapping[str, object], name: str, prefix: str = "") -> str:
    """A required string that a database can hold."""
    if name not in fields:
        raise missing(prefix + name)
    return check_text(fields[name], prefix + name)


def check_text(value: object, param: str) -> str:
    if not isinstance(value, str):
        raise wrong_type(param, "a string", value)
    if "\x00" in value:
        raise invalid_value(param, f"Invalid value for '{param}': it contains a NUL character.")
    return value


def integer_of(fields: Mapping[str, object], name: str, prefix: str = "") -> int:
    """A required whole number; beyond 64 bits it may have lost its last digits."""
    if name not in fields:
        raise missing(prefix + name)
    value = fields[name]
    if isinstance(value, float) and abs(value) >= _BEYOND_64_BITS and value.is_integer():
        return int(value)  # what the parser makes of such an integer
    if isinstance(value, bool) or not isinstance(value, int):
        raise wrong_type(prefix + name, "an integer", value)
    return value


def json_body(model: type[BaseModel]) -> dict[str, object]:
    """What a route with such a body adds to its OpenAPI description."""
    described = model.model_json_schema()
    schema = _inlined(described, as_object(described.get("$defs")) or {})
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def optional_body(model: type[BaseModel]) -> dict[str, object]:
    """The same for a body that may be left out."""
    described = as_object(json_body(model)["requestBody"]) or {}
    return {"requestBody": {**described, "required": False}}


def _inlined(node: object, definitions: Mapping[str, object]) -> object:
    """The schema without references: the description has no place for a body's own definitions."""
    if isinstance(node, list):
        return [_inlined(item, definitions) for item in _LIST.validate_python(node)]
    fields = as_object(node)
    if fields is None:
        return node
    reference = fields.get("$ref")
    if isinstance(reference, str):
        return _inlined(definitions[reference.rpartition("/")[2]], definitions)
    return {name: _inlined(value, definitions) for name, value in fields.items() if name != "$defs"}


async def _read(request: Request) -> bytes:
    body = bytearray()
    try:
        async for piece in request.stream():
            body += piece
            if len(body) > MAX_BODY_BYTES:
                raise ApiError(413, f"The body of this request may hold at most {MAX_BODY_BYTES} bytes.")
    except ClientDisconnect:
        raise ApiError(400, "The request ended before its body did.") from None
    return bytes(body)
