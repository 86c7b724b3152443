"""Web pages are kept from an API without authentication, which the browser beside it could reach for them.

A page acts across sites (its form or script sends its Origin), or as the API's own after its name was made to
lead here (DNS rebinding, the name is in Host). Programs and the pages of `api_cors_origins` are let through.
"""

import ipaddress
from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from api.errors import ApiError, error_response

_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_OF_THE_MACHINE = (".localhost", ".local", ".internal", ".svc", ".test")  # nobody can register one


class Pages:
    """A middleware, for where nobody has to say who they are."""

    def __init__(self, app: ASGIApp, origins: Collection[str], hosts: Collection[str]) -> None:
        self._app = app
        self._origins = frozenset(origins)
        self._hosts = frozenset(host.lower() for host in hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._refusal(scope["method"], Headers(scope=scope)) if scope["type"] == "http" else None
        if refusal is None:
            await self._app(scope, receive, send)
        else:
            await error_response(refusal)(scope, receive, send)

    def _refusal(self, method: str, headers: Headers) -> ApiError | None:
        host, origin = headers.get("host", ""), headers.get("origin")
        if not self._is_ours(_name_of(host)):
            message = (
                f"Without authentication the API is not called by the name {host!r}: use a loopback address, "
                "or put the name into BATCHWRIGHT_API_HOSTS."
            )
            return ApiError(421, message)
        known = {None, f"http://{host}", f"https://{host}"} | self._origins
        if method in _SAFE or origin in known or "*" in self._origins:
            return None
        message = (
            f"Pages of {origin!r} may not call the API: BATCHWRIGHT_API_CORS_ORIGINS lists those that may."
        )
        return ApiError(403, message)

    def _is_ours(self, name: str) -> bool:
        """A name with a dot may be anybody's."""
        if "." not in name or name.endswith(_OF_THE_MACHINE) or name in self._hosts:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True


def _name_of(host: str) -> str:
    """Without the port, in lower case; what cannot be read is nobody's."""
    try:
        return (urlsplit(f"//{host}").hostname or "").rstrip(".")
    except ValueError:
        return "unreadable."
