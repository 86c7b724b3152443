"""Which web pages may call the API from a browser: none, unless settings name their origins."""

from fastapi import FastAPI
from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response

from api.errors import ApiError, error_response

_METHODS = ("DELETE", "GET", "HEAD", "POST", "PUT")
_SENT = (
    *("Authorization", "Content-Type", "Idempotency-Key", "If-None-Match", "If-Range", "Range"),
    "X-Request-Id",
)
_READ = ("Content-Disposition", "Content-Range", "ETag", "Retry-After", "X-Request-Id", "X-Should-Retry")
_MAX_AGE_SECONDS = 600


class _Cors(CORSMiddleware):
    def preflight_response(self, request_headers: Headers) -> Response:
        """A refusal in the shape of every other error."""
        answer = super().preflight_response(request_headers)
        if answer.status_code == 200:
            return answer
        kept = {name: value for name, value in answer.headers.items() if not name.startswith("content-")}
        return error_response(ApiError(answer.status_code, bytes(answer.body).decode(), headers=kept))


def allow_origins(app: FastAPI, origins: list[str], tenant_header: str) -> None:
    """`origins` as browsers send them, such as https://app.example.com; `*` is all, none is none."""
    if origins:
        app.add_middleware(
            _Cors,
            allow_origins=origins,
            allow_methods=_METHODS,
            allow_headers=(*_SENT, tenant_header),
            expose_headers=_READ,
            max_age=_MAX_AGE_SECONDS,
        )
