"""Exception handlers that return errors in OpenAI's format. If no route has the requested path, the error can
include a hint that says what is wrong in the URL.
"""

import logging
from collections.abc import Callable, Sequence

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.routing import Match, Route

from batchwright.api.errors import RETRY_AFTER_SECONDS, ApiError, batch_not_found, error_response
from batchwright.api.middleware.access_log import without_token
from batchwright.api.temporal_gateway import RunMissing
from batchwright.contracts.terms import Endpoint
from batchwright.database.errors import DatabaseUnavailable, UnknownBatch
from batchwright.oidc.issuer import IssuerUnavailable
from batchwright.rules.pagination import BadParameter
from batchwright.storage.base import StorageFull, StorageUnavailable
from batchwright.telemetry import tracing
from batchwright.temporal import TemporalUnavailable

logger = logging.getLogger(__name__)

# The first match is used, because StorageFull is also a StorageUnavailable.
_UNAVAILABLE: dict[type[Exception], str] = {
    DatabaseUnavailable: "The database does not answer.",
    IssuerUnavailable: "The issuer of tokens does not answer, or not with its keys.",
    StorageFull: "The storage is full.",
    StorageUnavailable: "The storage does not answer.",
    TemporalUnavailable: "Temporal does not answer.",
}
_V1 = "/v1"
_AZURE_PREFIX = "/openai/"
# Paths that clients of inference engines request, in addition to the endpoints of batches.
_INFERENCE_PATHS = frozenset(Endpoint) | {
    "/v1/audio/speech",
    "/v1/audio/transcriptions",
    "/v1/audio/translations",
    "/v1/images/variations",
}


def handle_errors(app: FastAPI, routers: Sequence[APIRouter]) -> None:
    """Register handlers that return every error in OpenAI's format.

    Args:
        routers: all routers of the application. The handlers use them to find the methods that a path allows,
            and to suggest a path when the requested one does not exist.
    """
    app.add_exception_handler(ApiError, _api_error)
    app.add_exception_handler(BadParameter, _bad_parameter)
    app.add_exception_handler(HTTPException, _RoutingErrors(routers))
    app.add_exception_handler(RequestValidationError, _validation_error)
    app.add_exception_handler(RunMissing, _run_missing)
    app.add_exception_handler(UnknownBatch, _unknown_batch)
    for kind in _UNAVAILABLE:
        app.add_exception_handler(kind, _unavailable)


def unavailable_response(error: Exception) -> Response:
    """Log that a dependency does not respond, and return a 503 response."""
    tracing.record_error(error)
    logger.warning(
        "dependency is unavailable", extra={"dependency": type(error).__name__, "error": str(error)}
    )
    message = next(text for kind, text in _UNAVAILABLE.items() if isinstance(error, kind))
    headers = {"Retry-After": str(RETRY_AFTER_SECONDS)}
    return error_response(ApiError(503, f"{message} Try again later.", headers=headers))


async def _api_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error_response(error)


async def _bad_parameter(_: Request, error: Exception) -> Response:
    assert isinstance(error, BadParameter)
    return error_response(ApiError(400, str(error), code=error.code, param=error.param))


class _RoutingErrors:
    """A handler of HTTP errors that FastAPI's router raises.

    It writes the messages for 404 (no route has the path) and 405 (the path does not allow the method).
    """

    def __init__(self, routers: Sequence[APIRouter]) -> None:
        self._routes = [route for router in routers for route in router.routes if isinstance(route, Route)]

    async def __call__(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        message, headers = error.detail, error.headers
        if error.status_code == 404:
            path = request.url.path
            hint = path_hint(path, lambda other: bool(self._matching(request, other)))
            message = f"Invalid URL ({request.method} {without_token(path)})" + (f". {hint}" if hint else "")
        elif error.status_code == 405:
            message = f"Not allowed to {request.method} on {without_token(request.url.path)}."
            headers = {"Allow": ", ".join(self._methods(request))}
        return error_response(ApiError(error.status_code, message, headers=headers))

    def _methods(self, request: Request) -> list[str]:
        """Return all methods that are allowed for the path of a request.

        If several routes have this path, FastAPI's router reports only the methods of the first route. The
        result contains the methods of all these routes.
        """
        found = self._matching(request, request.scope["path"])
        own = [route for route in found if route.path == request.scope["path"]]
        methods = {method for route in own or found for method in route.methods or ()}
        return sorted(methods | {"HEAD"} if "GET" in methods else methods)

    def _matching(self, request: Request, path: str) -> list[Route]:
        scope = {**request.scope, "path": path}
        return [route for route in self._routes if route.matches(scope)[0] is not Match.NONE]


async def _validation_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    found = (f"{one['loc'][-1]}: {one['msg']}" for one in error.errors())
    return error_response(ApiError(400, "; ".join(found)))


async def _run_missing(_: Request, error: Exception) -> Response:
    logger.error("live batch has no workflow", extra={"batch_id": str(error)})
    message = (
        "The batch has no running workflow, so it stands still. After an operator has run `batchwright "
        "consistency --repair`, which ends the batch with the results it has, you can resume it."
    )
    return error_response(ApiError(500, message, code="run_missing"))


async def _unknown_batch(_: Request, error: Exception) -> Response:
    """Return the 404 response for a request about a batch that was deleted while the request was served."""
    assert isinstance(error, UnknownBatch)
    return error_response(batch_not_found(error.batch_id))


async def _unavailable(_: Request, error: Exception) -> Response:
    return unavailable_response(error)


def path_hint(path: str, exists: Callable[[str], bool]) -> str:
    """Return a sentence that says what is probably wrong in the URL of a request; empty if this is not clear.

    Args:
        path: path of the request, for which no route exists.
        exists: function that returns True if a route has the given path.
    """

    def is_known(other: str) -> bool:
        return other in _INFERENCE_PATHS or exists(other)

    if path in _INFERENCE_PATHS:
        return (
            "This is Batchwright, which runs batches: send this request to your inference backend, or submit "
            "it as a job (POST /queue/submit), or upload a file of requests (POST /v1/files) and create a "
            "batch of it (POST /v1/batches)"
        )
    if path.startswith(_V1 + _V1 + "/") and is_known(path.removeprefix(_V1)):
        return "The path has /v1 twice: remove one from the base URL of your client"
    if is_known(_V1 + path):
        return "The path lacks /v1: the base URL of your client has to end in /v1"
    if path.startswith(_AZURE_PREFIX):
        return "Paths of Azure OpenAI do not exist here: give your client a base URL that ends in /v1"
    return ""
