"""One request of a browser: who sends it, what it may do, and the check of its forms."""

import hmac
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from urllib.parse import parse_qsl

from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from batchwright.api.errors import ApiError, payload_too_large
from batchwright.api.ui.api_client import ApiClient
from batchwright.rules.api_keys import Scope as ApiScope
from batchwright.rules.api_keys import is_granted

COOKIE = "batchwright_ui"
PREFIX = "/ui"
_MAX_FORM_BYTES = 64 * 1024
_MAX_FORM_FIELDS = 100


@dataclass(frozen=True)
class Visit:
    """One request of a browser.

    Attributes:
        api: the API with the rights of the visitor.
        token: content of the visitor's cookie. If the visitor has signed in, it identifies the session.
        tenant: tenant of the visitor; empty if it is not known.
        scopes: scopes of the visitor. The pages only use them to hide actions that the API would reject.
        has_session: True if the visitor has signed in.
        identity: text that identifies the visitor's rights. It is equal for all requests with the same
            rights.
    """

    request: Request
    api: ApiClient
    token: str
    tenant: str = ""
    scopes: Collection[str] = ()
    has_session: bool = False
    identity: str = ""

    @property
    def csrf_field(self) -> Markup:
        return Markup('<input type="hidden" name="csrf" value="{}">').format(self.csrf)

    @cached_property
    def csrf(self) -> str:
        """Token that protects each form from pages of other sites (CSRF).

        It is derived from the visitor's cookie. Other sites cannot read this cookie, so they cannot make a
        valid form.
        """
        return hmac.digest(self.token.encode(), b"csrf", "sha256").hex()

    def may(self, scope: str) -> bool:
        return is_granted(ApiScope(scope), self.scopes)

    def argument(self, name: str) -> str:
        """Return a query parameter of the page; empty if it is absent."""
        return self.request.query_params.get(name, "").strip()

    def path(self, name: str) -> str:
        """Return a parameter in the path of the page."""
        value: str = self.request.path_params[name]
        return value

    async def form(self) -> dict[str, str]:
        """Return the fields of a form that was sent from this site.

        If a field is repeated, its last value counts.

        Raises:
            ApiError: the form is too large, or it does not contain the visitor's token.
        """
        body = bytearray()
        async for piece in self.request.stream():
            body += piece
            if len(body) > _MAX_FORM_BYTES:
                raise payload_too_large(_MAX_FORM_BYTES, "form")
        try:
            fields = parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=_MAX_FORM_FIELDS)
        except ValueError:
            raise ApiError(400, "The form cannot be read.") from None
        form = {name: value.strip() for name, value in fields}
        self.check_csrf(form.pop("csrf", ""))
        return form

    def check_csrf(self, sent: str) -> None:
        """Check the token that a form has sent against the visitor's token.

        Raises:
            ApiError: the token is not the visitor's.
        """
        if not hmac.compare_digest(sent.encode(), self.csrf.encode()):
            message = "This form is no longer valid. Open the page again, and repeat what you did."
            raise ApiError(403, message)


class Forwarded(Response):
    """Response that passes the API's response to a GET to the browser."""

    def __init__(
        self,
        visit: Visit,
        path: str,
        sent_on: Sequence[str],
        change: Callable[[bytes], Awaitable[bytes]] | None = None,
    ) -> None:
        """Create the response.

        Args:
            path: path of the API.
            sent_on: names of the browser's headers that are passed to the API.
            change: function that changes each piece of the body; None to change nothing.
        """
        super().__init__()
        sent = visit.request.headers
        self._headers = {name: sent[name] for name in sent_on if name in sent}
        self._api, self._path, self._change = visit.api, path, change

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def changed(message: Message) -> None:
            if self._change is not None and message["type"] == "http.response.body":
                message = {**message, "body": await self._change(message.get("body", b""))}
            await send(message)

        await self._api.forward(self._path, self._headers, receive, changed)


def set_cookie(response: Response, request: Request, token: str, lifetime: timedelta | None = None) -> None:
    """Store a token in a cookie. Scripts cannot read it, and other sites cannot make the browser send it.

    Without a lifetime, the browser keeps the cookie until the browser is closed.
    """
    response.set_cookie(
        COOKIE,
        token,
        max_age=None if lifetime is None else round(lifetime.total_seconds()),
        path=PREFIX,
        secure=request.url.scheme == "https",
        httponly=True,
        samesite="strict",
    )
