"""CORS (cross-origin requests): lets web pages call the API if the settings list their origin."""

from fastapi import FastAPI
from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response

from batchwright.api.errors import ApiError, error_response

_METHODS = ("DELETE", "GET", "HEAD", "PATCH", "POST", "PUT")
_EXPOSED_HEADERS = (
    "Content-Disposition",
    "Content-Range",
    "ETag",
    "Request-Id",
    "Retry-After",
    "X-Batchwright-Warning",
    "X-Request-Id",
    "X-Should-Retry",
)
_MAX_AGE_SECONDS = 600


class _CorsMiddleware(CORSMiddleware):
    def preflight_response(self, request_headers: Headers) -> Response:
        """Return the response to a browser's preflight request (its check before a cross-origin request).

        A rejection is returned in the API's error format.
        """
        response = super().preflight_response(request_headers)
        if response.status_code == 200:
            return response
        kept = {name: value for name, value in response.headers.items() if not name.startswith("content-")}
        return error_response(ApiError(response.status_code, bytes(response.body).decode(), headers=kept))


def allow_origins(app: FastAPI, origins: list[str]) -> None:
    """Allow web pages of these origins, such as `https://app.example.com`, to call the API.

    The origin `*` allows all origins. An empty list allows none.

    Pages can send all headers. A list of allowed headers would be long, because the official clients add more
    than ten headers, and the setting `pass_headers` can name more headers.
    """
    if origins:
        app.add_middleware(
            _CorsMiddleware,
            allow_origins=origins,
            allow_methods=_METHODS,
            allow_headers=("*",),
            expose_headers=_EXPOSED_HEADERS,
            max_age=_MAX_AGE_SECONDS,
        )
