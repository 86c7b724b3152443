"""Errors as OpenAI's clients read them: `{"error": {"message", "type", "param", "code"}}`, on every route."""

import logging
from collections.abc import Mapping, Sequence

import orjson
from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.routing import Match, Route

from api.temporal_gateway import RunMissing
from batchwright.database.errors import DatabaseUnavailable
from batchwright.rules.paging import BadParameter
from batchwright.storage.base import StorageFull, StorageUnavailable
from batchwright.telemetry import tracing
from batchwright.temporal import TemporalUnavailable

logger = logging.getLogger(__name__)

RETRY_AFTER_SECONDS = 5
_FINAL = {"x-should-retry": "false"}
# The first that fits: StorageFull is a StorageUnavailable too.
_UNAVAILABLE: dict[type[Exception], str] = {
    DatabaseUnavailable: "The database does not answer.",
    StorageFull: "The storage is full.",
    StorageUnavailable: "The storage does not answer.",
    TemporalUnavailable: "Temporal does not answer.",
}


class ApiError(Exception):
    """An answer other than 2xx; everything in it is for the client."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.code, self.param = status, message, code, param
        self.headers = dict(headers or {})


def invalid_value(param: str, message: str) -> ApiError:
    return ApiError(400, message, code="invalid_value", param=param)


def missing(param: str) -> ApiError:
    message = f"Missing required parameter: '{param}'."
    return ApiError(400, message, code="missing_required_parameter", param=param)


def unknown_parameter(param: str) -> ApiError:
    return ApiError(400, f"Unknown parameter: '{param}'.", code="unknown_parameter", param=param)


def wrong_type_of(param: str, expected: str, got: str) -> ApiError:
    """`expected` and `got` are JSON types with their articles."""
    message = f"Invalid type for '{param}': expected {expected}, but got {got} instead."
    return ApiError(400, message, code="invalid_type", param=param)


def conflict(message: str, *, code: str | None = None, param: str | None = None) -> ApiError:
    """A 409 that will stay one: the official clients retry every other."""
    return ApiError(409, message, code=code, param=param, headers=_FINAL)


def too_many(
    message: str, limit: int, *, seconds: int = RETRY_AFTER_SECONDS, window: int | None = None
) -> ApiError:
    """A 429 of a limit that is used up, in the headers of OpenAI and of the IETF's draft.

    It may be otherwise in `seconds`; `window` is how many the limit is for.
    """
    headers = {
        "Retry-After": str(seconds),
        "RateLimit-Policy": f'"requests";q={limit}' + (f";w={window}" if window else ""),
        "RateLimit": f'"requests";r=0;t={seconds}',
        "x-ratelimit-limit-requests": str(limit),
        "x-ratelimit-remaining-requests": "0",
        "x-ratelimit-reset-requests": f"{seconds}s",
    }
    return ApiError(429, message, code="rate_limit_exceeded", headers=headers)


def no_room(limit: int, used: int) -> ApiError:
    """A 429 that waiting does not change: the official clients would send the file again."""
    message = (
        f"Too many bytes are stored: of at most {limit}, {used} are taken. Delete files, or let them expire."
    )
    headers = {
        "Retry-After": str(RETRY_AFTER_SECONDS),
        "RateLimit-Policy": f'"bytes";q={limit}',
        "RateLimit": f'"bytes";r={max(limit - used, 0)}',
        **_FINAL,
    }
    return ApiError(429, message, code="rate_limit_exceeded", headers=headers)


def no_file(file_id: str) -> ApiError:
    return ApiError(404, f"No such File object: {file_id}", param="id")


def no_upload(upload_id: str) -> ApiError:
    return ApiError(404, f"No such Upload object: {upload_id}", param="id")


def no_batch(batch_id: str) -> ApiError:
    return ApiError(404, f"No batch found with id '{batch_id}'.")


def error_response(error: ApiError) -> Response:
    details = {
        "message": error.message,
        "type": _type_of(error.status),
        "param": error.param,
        "code": error.code,
    }
    return Response(orjson.dumps({"error": details}), error.status, error.headers, "application/json")


def internal_error() -> Response:
    """What a client learns of an exception nobody expected; the rest is in the log."""
    return error_response(ApiError(500, "The server had an error while processing your request."))


def handle_errors(app: FastAPI, routers: Sequence[APIRouter]) -> None:
    """Has every error of every route, all of them in `routers`, answered in OpenAI's shape."""
    app.add_exception_handler(ApiError, _api_error)
    app.add_exception_handler(BadParameter, _bad_parameter)
    app.add_exception_handler(HTTPException, _HttpErrors(routers))
    app.add_exception_handler(RequestValidationError, _validation_error)
    app.add_exception_handler(RunMissing, _run_missing)
    for unavailable in _UNAVAILABLE:
        app.add_exception_handler(unavailable, _unavailable)


def _type_of(status: int) -> str:
    if status >= 500:
        return "server_error"
    return "requests" if status == 429 else "invalid_request_error"


async def _api_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error_response(error)


async def _bad_parameter(_: Request, error: Exception) -> Response:
    assert isinstance(error, BadParameter)
    return error_response(ApiError(400, str(error), code=error.code, param=error.param))


class _HttpErrors:
    """Errors of the router itself: no such path, no such method."""

    def __init__(self, routers: Sequence[APIRouter]) -> None:
        self._routes = [route for router in routers for route in router.routes if isinstance(route, Route)]

    async def __call__(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        message, headers = error.detail, error.headers
        if error.status_code == 404:
            message = f"Invalid URL ({request.method} {request.url.path})"
        elif error.status_code == 405:
            message = f"Not allowed to {request.method} on {request.url.path}."
            headers = {"Allow": ", ".join(self._methods(request))}
        return error_response(ApiError(error.status_code, message, headers=headers))

    def _methods(self, request: Request) -> list[str]:
        """All that the path takes; the router tells only those of the first route that has it.

        A path that is a route's own is not one that another takes for an id.
        """
        found = [route for route in self._routes if route.matches(request.scope)[0] is not Match.NONE]
        own = [route for route in found if route.path == request.scope["path"]]
        methods = {method for route in own or found for method in route.methods or ()}
        return sorted(methods | {"HEAD"} if "GET" in methods else methods)


async def _validation_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return error_response(ApiError(400, "; ".join(str(one["msg"]) for one in error.errors())))


async def _run_missing(_: Request, error: Exception) -> Response:
    logger.error("a live batch has no run", extra={"batch_id": str(error)})
    return error_response(ApiError(500, "The batch's workflow is not there any more.", code="run_missing"))


async def _unavailable(_: Request, error: Exception) -> Response:
    return unavailable(error)


def unavailable(error: Exception) -> Response:
    """What a client learns of a part that does not answer."""
    tracing.failed(error)
    logger.warning("a part is unavailable", extra={"part": type(error).__name__, "error": str(error)})
    message = next(text for kind, text in _UNAVAILABLE.items() if isinstance(error, kind))
    headers = {"Retry-After": str(RETRY_AFTER_SECONDS)}
    return error_response(ApiError(503, f"{message} Try again later.", headers=headers))
