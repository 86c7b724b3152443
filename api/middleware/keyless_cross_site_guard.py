"""Protects an API without keys from web pages of other sites.

Without keys, requests contain no secret. Any web page could then use the API through a browser that can reach
the API. The middleware checks two headers to prevent this:

- Host is the name under which a page calls the API. Unknown names are rejected, because the owner of a site
  can let the site's DNS name point to the API's address (DNS rebinding).
- Origin is the site of the page. The site must be the API's own, or be listed in `api_cors_origins`. Requests
  that only read data may have any Origin, because browsers do not show the response to pages of other sites.
  Programs other than browsers send no Origin. Requests without Origin are allowed.

Forms of the pages at `/ui` are protected in every API, with keys or without (`ui/csrf.py`).
"""

import ipaddress
from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from batchwright.api.errors import ApiError, error_response
from batchwright.rules.backends.callback_tokens import CALLBACK_PATH

_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_LOCAL_SUFFIXES = (".localhost", ".internal", ".svc", ".test")
# `.local` is not allowed, because any device in the local network can claim such a name (multicast DNS).


class KeylessCrossSiteGuardMiddleware:
    """A middleware that rejects requests from web pages of other sites. It is used if callers need no API
    key.

    The headers Host and Origin show to which site the page belongs.
    """

    def __init__(self, app: ASGIApp, origins: Collection[str], hosts: Collection[str]) -> None:
        self._app = app
        self._origins = frozenset(origins)
        self._hosts = frozenset(hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # The path of a backend callback contains a secret token.
        checked = scope["type"] == "http" and not scope["path"].startswith(CALLBACK_PATH)
        denial = self._denial(scope["method"], Headers(scope=scope)) if checked else None
        if denial is None:
            await self._app(scope, receive, send)
        else:
            await error_response(denial)(scope, receive, send)

    def _denial(self, method: str, headers: Headers) -> ApiError | None:
        host, origin = headers.get("host", ""), headers.get("origin")
        if not self._is_allowed_host(host):
            message = (
                f"The API does not answer to the name {host!r}: use an IP address, or add the name to "
                "BATCHWRIGHT_API_HOSTS."
            )
            return ApiError(421, message)
        allowed = {None, f"http://{host}", f"https://{host}"} | self._origins
        if method in _SAFE_METHODS or origin in allowed or "*" in self._origins:
            return None
        message = (
            f"Pages of {origin!r} may not call the API: BATCHWRIGHT_API_CORS_ORIGINS lists those that may."
        )
        return ApiError(403, message)

    def _is_allowed_host(self, host: str) -> bool:
        """Return True if the host is an IP address, a local name or a configured name. The port is
        ignored.
        """
        try:
            name = (urlsplit(f"//{host}").hostname or "").rstrip(".")
        except ValueError:
            return False
        if "." not in name or name.endswith(_LOCAL_SUFFIXES) or name in self._hosts:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True
