"""What `/openapi.json` says of answers: every status a route can give, and what is in it."""

from batchwright.settings import Settings

Response = dict[str, object]
Responses = dict[int | str, Response]

# Its schema is in `api/described.py`: FastAPI would make a validator of the model for every route and status.
_ERROR: Response = {"application/json": {"schema": {"$ref": "#/components/schemas/ErrorObject"}}}
_TEXT: Response = {"schema": {"type": "string"}}
_SECONDS: Response = {"schema": {"type": "integer", "minimum": 0}}
_WORDS = {
    400: "The request is wrong; `param` and `code` say where and how",
    401: "No API key, or one that opens nothing",
    403: "The caller lacks the scope, or its tenant may not do this",
    404: "There is no such object, or it is another tenant's",
    408: "The request did not come in time",
    409: "It cannot be done as things stand; `x-should-retry: false`, for that will not change",
    410: "It was valid once, and its time is over",
    413: "The body is too large",
    416: "The range is outside of the file",
    429: "A limit is used up for now",
    431: "The headers are too large",
    500: "A mistake of the server",
    503: "PostgreSQL, Temporal or the storage does not answer",
}
_HEADERS: dict[int, Response] = {
    401: {"WWW-Authenticate": _TEXT},
    409: {"x-should-retry": _TEXT},
    416: {"Content-Range": _TEXT},
    429: {"Retry-After": _SECONDS, "RateLimit": _TEXT, "RateLimit-Policy": _TEXT},
    503: {"Retry-After": _SECONDS},
}
_ANYWHERE = (400, 408, 413, 431, 500, 503)


def errors(*statuses: int) -> Responses:
    """These, and those that every route can give."""
    return {status: _error(status) for status in sorted({*_ANYWHERE, *statuses})}


def refusals(settings: Settings) -> Responses:
    """What a route answers to those who may not enter."""
    if settings.auth == "none" and settings.default_tenant:
        return {}
    return {status: _error(status) for status in (401, 403, 429)}


def _error(status: int) -> Response:
    headers = {"x-request-id": _TEXT, **_HEADERS.get(status, {})}
    return {"content": _ERROR, "description": _WORDS[status], "headers": headers}


def text(media_type: str) -> Responses:
    """An answer that is text of that kind."""
    return {
        200: {"description": "Successful Response", "content": {media_type: {"schema": {"type": "string"}}}}
    }


_BYTES: Response = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
_ABOUT_BYTES: Response = {
    "Accept-Ranges": _TEXT,
    "Cache-Control": _TEXT,
    "Content-Disposition": _TEXT,
    "Content-Length": _SECONDS,
    "ETag": _TEXT,
}
CONTENT: Responses = {
    200: {"description": "The whole file", "content": _BYTES, "headers": _ABOUT_BYTES},
    206: {
        "description": "The range asked for",
        "content": _BYTES,
        "headers": {**_ABOUT_BYTES, "Content-Range": _TEXT},
    },
    304: {"description": "The client has it already", "headers": {"ETag": _TEXT}},
    **errors(404, 416),
}
