"""The OpenAPI description at `/openapi.json`: responses, parameter schemas, and the application class.

Routes receive parameters as text. The code of each route validates the text, so that errors have OpenAI's
messages. The parameter schemas validate nothing. They are only documentation.
"""

from collections.abc import Mapping

from fastapi import FastAPI
from pydantic import TypeAdapter, WithJsonSchema

from batchwright.contracts.api_objects.anthropic import MessageErrorObject
from batchwright.contracts.api_objects.openai import ErrorObject
from batchwright.rules.batch_filters import LAST_TIME, MAX_CUSTOM_ID_CHARACTERS
from batchwright.settings import Settings

ResponseSpec = dict[str, object]
ResponseSpecs = dict[int | str, ResponseSpec]
# `DocumentedApp` adds the schema, because FastAPI would build a validator for every route and status.
_ERROR: ResponseSpec = {"application/json": {"schema": {"$ref": "#/components/schemas/ErrorObject"}}}
_TEXT: ResponseSpec = {"schema": {"type": "string"}}
_SECONDS: ResponseSpec = {"schema": {"type": "integer", "minimum": 0}}
_OBJECT = TypeAdapter(dict[str, object])
_UNUSED = {"responses": {"422"}, "schemas": {"HTTPValidationError", "ValidationError"}}
_DESCRIPTIONS = {
    400: "The request is not valid; `param` and `code` name the problem",
    401: "The API key is missing or not valid",
    403: "The caller lacks the scope, or its tenant may not do this",
    404: "The object does not exist, or belongs to another tenant",
    408: "The request did not arrive in time",
    409: "The request conflicts with the object's state. `x-should-retry: false`: a retry would fail again",
    410: "The URL has expired",
    412: "The object was changed after it was read",
    413: "The body is too large",
    416: "The range is outside the file",
    429: "A limit or quota is exhausted",
    431: "The headers are too large",
    500: "An error of the server",
    502: "The backend has not given a usable answer",
    503: "PostgreSQL, Temporal or the storage is unavailable",
    504: "The backend has not answered in time",
}
_HEADERS: dict[int, ResponseSpec] = {
    401: {"WWW-Authenticate": _TEXT},
    409: {"x-should-retry": _TEXT},
    412: {"ETag": _TEXT},
    416: {"Content-Range": _TEXT},
    429: {"Retry-After": _SECONDS, "RateLimit": _TEXT, "RateLimit-Policy": _TEXT},
    503: {"Retry-After": _SECONDS},
}
_COMMON_STATUSES = (400, 408, 413, 431, 500, 503)


def error_responses(*statuses: int) -> ResponseSpecs:
    """Return descriptions of error responses for `/openapi.json`.

    The result describes the given statuses, and the statuses that every route can return, such as 400.
    """
    return {status: _error(status) for status in sorted({*_COMMON_STATUSES, *statuses})}


def auth_error_responses(settings: Settings) -> ResponseSpecs:
    """Return the descriptions of the errors that authentication can cause.

    The result is empty if the settings require neither an API key nor the name of a tenant.
    """
    if settings.auth == "none" and settings.default_tenant:
        return {}
    return {status: _error(status) for status in (401, 403, 429)}


def _error(status: int) -> ResponseSpec:
    headers = {"x-request-id": _TEXT, **_HEADERS.get(status, {})}
    return {"content": _ERROR, "description": _DESCRIPTIONS[status], "headers": headers}


TEXT_RESPONSE: ResponseSpecs = {
    200: {"description": "Successful Response", "content": {"text/plain": {"schema": {"type": "string"}}}}
}
_BINARY: ResponseSpec = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
_FILE_HEADERS: ResponseSpec = {
    "Accept-Ranges": _TEXT,
    "Cache-Control": _TEXT,
    "Content-Disposition": _TEXT,
    "Content-Length": _SECONDS,
    "ETag": _TEXT,
    "Vary": _TEXT,
}
FILE_RESPONSES: ResponseSpecs = {
    200: {
        "description": "The whole file, compressed if the client accepts it; then without Content-Length",
        "content": _BINARY,
        "headers": {**_FILE_HEADERS, "Content-Encoding": _TEXT},
    },
    206: {
        "description": "The requested range",
        "content": _BINARY,
        "headers": {**_FILE_HEADERS, "Content-Range": _TEXT},
    },
    304: {"description": "The client has it already", "headers": {"ETag": _TEXT}},
    **error_responses(404, 416),
}

EVENT_STREAM_RESPONSES: ResponseSpecs = {
    200: {
        "description": "Server-Sent Events. The data of each is a batch object",
        "content": {"text/event-stream": {}},  # OpenAPI 3.1 cannot describe events in a stream
        "headers": {"X-Accel-Buffering": _TEXT},
    },
    204: {"description": "The batch has ended, and the client has its last event"},
    **error_responses(404, 429),
}


def limit_schema(default: int, maximum: int) -> WithJsonSchema:
    """Return the schema of the query parameter `limit` of a list: an integer from 1 to `maximum`."""
    return WithJsonSchema({"type": "integer", "minimum": 1, "maximum": maximum, "default": default})


# Schema of a Unix time in seconds, as `time_filter` accepts it.
TIME_SCHEMA = WithJsonSchema({"type": "integer", "minimum": 0, "maximum": LAST_TIME})


# Schema of a custom id, as `custom_id_filter` accepts it.
CUSTOM_ID_SCHEMA = WithJsonSchema({"type": "string", "minLength": 1, "maxLength": MAX_CUSTOM_ID_CHARACTERS})


def enum_schema(*values: str) -> WithJsonSchema:
    return WithJsonSchema({"type": "string", "enum": list(values)})


def pattern_schema(pattern: str) -> WithJsonSchema:
    return WithJsonSchema({"type": "string", "pattern": pattern})


class DocumentedApp(FastAPI):
    """A FastAPI application whose OpenAPI description lists only responses that its routes can return.

    FastAPI itself would add a 422 response for invalid requests, but this API returns 400.
    """

    def openapi(self) -> dict[str, object]:
        if self.openapi_schema is None:
            self.openapi_schema = _with_error_schema(_without_members(super().openapi(), set()))
        return self.openapi_schema


def _with_error_schema(description: dict[str, object]) -> dict[str, object]:
    """Return a copy of the OpenAPI description, with the schemas of error objects added."""
    components = _OBJECT.validate_python(description["components"])
    schemas = _OBJECT.validate_python(components["schemas"])
    for kind in (ErrorObject, MessageErrorObject):
        error = kind.model_json_schema(ref_template="#/components/schemas/{model}")
        schemas |= {**_OBJECT.validate_python(error.pop("$defs")), kind.__name__: error}
    return {**description, "components": {**components, "schemas": dict(sorted(schemas.items()))}}


def _without_members(node: Mapping[str, object], excluded: set[str]) -> dict[str, object]:
    """Return a copy of `node`, a part of the OpenAPI description, without the keys in `excluded`.

    `_UNUSED` maps the names of nested objects to the keys that are left out of these objects. For example,
    the key `422` is left out of each object with the name `responses`.
    """
    return {
        name: _without_members(_OBJECT.validate_python(value), _UNUSED.get(name, set()))
        if isinstance(value, dict)
        else value
        for name, value in node.items()
        if name not in excluded
    }
