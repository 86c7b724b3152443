"""One request of a browser to the pages at `/ui`: the visitor's tenant and rights, and the form's fields.

`csrf.py` checks that a form comes from a page of Batchwright, not from another site.
"""

import re
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from http import HTTPStatus
from urllib.parse import parse_qsl

from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from batchwright.api.errors import ApiError, payload_too_large
from batchwright.api.ui.api_client import ApiClient
from batchwright.api.ui.csrf import FIELD, check_token, csrf_field, csrf_token
from batchwright.api.ui.rendering import Renderer, link
from batchwright.rules.tenants.scopes import Scope as ApiScope
from batchwright.rules.tenants.scopes import is_granted

COOKIE = "batchwright_ui"
PREFIX = "/ui"
Page = Callable[["Visit"], Awaitable[Response]]
_MAX_FORM_BYTES = 64 * 1024
_MAX_FORM_FIELDS = 100
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)


@dataclass(frozen=True)
class Visit:
    """One request of a browser to the pages at `/ui`.

    Attributes:
        api: client of the API with the rights of the visitor.
        token: content of the visitor's cookie. If the visitor has signed in, the token identifies the
            session.
        tenant: tenant of the visitor; empty if it is not known.
        scopes: scopes (rights) of the visitor. The pages only use them to hide actions that the API would
            reject.
        has_session: True if the visitor has signed in.
        identity: text that identifies the rights of the visitor: the id of the API key, or the tenant and the
            scopes. Requests with the same text have the same rights.
    """

    request: Request
    api: ApiClient
    renderer: Renderer
    token: str
    tenant: str = ""
    scopes: Collection[str] = ()
    has_session: bool = False
    identity: str = ""

    def page(self, template: str, status: int = 200, /, **context: object) -> HTMLResponse:
        policy = {"content-security-policy": _POLICY}
        return HTMLResponse(self.fragment("base.html", content=template, **context), status, policy)

    def fragment(self, template: str, /, **context: object) -> bytes:
        return self.renderer.render(template, {"visit": self, **context})

    def error(self, error: ApiError) -> HTMLResponse:
        title = HTTPStatus(error.status).phrase
        page = self.page("error.html", error.status, title=title, error=error)
        page.headers.update(error.headers)
        return page

    @property
    def csrf_field(self) -> Markup:
        return csrf_field(self.csrf)

    @cached_property
    def csrf(self) -> str:
        """Token that each form for this visitor contains (`csrf_token`)."""
        return csrf_token(self.token)

    def may(self, scope: str) -> bool:
        return is_granted(ApiScope(scope), self.scopes)

    def argument(self, name: str) -> str:
        """Return a query parameter in the URL of the page; empty if it is absent."""
        return self.request.query_params.get(name, "").strip()

    def path(self, name: str) -> str:
        """Return a parameter in the path of the page."""
        value: str = self.request.path_params[name]
        return value

    async def form(self) -> dict[str, str]:
        """Return the fields of the form that the browser has sent. If a field is repeated, its last value is
        returned.

        The form must contain the visitor's token (`csrf`).

        Raises:
            ApiError: the form is too large or cannot be read, or its token is not the visitor's.
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
        check_token(form.pop(FIELD, ""), self.csrf)
        return form


def see_other(path: str, **query: object) -> Response:
    """Return a response that redirects the browser to a page."""
    return RedirectResponse(link(path, **query), 303)


def whole_number(text: str, name: str) -> int | None:
    """Return the whole number in a field of a form; None if the field is empty.

    Raises:
        ApiError: the text is not a whole number.
    """
    if text and not re.fullmatch("[0-9]{1,15}", text):
        raise ApiError(400, f"{name} has to be a whole number.", param=name)
    return int(text) if text else None


def set_cookie(response: Response, request: Request, token: str, lifetime: timedelta | None = None) -> None:
    """Store a token in a cookie.

    Scripts cannot read the cookie, and requests from other sites do not contain the cookie.
    If `lifetime` is None, the browser deletes the cookie when the browser is closed.
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
