"""Serve the pages. All other paths pass to the API."""

import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from urllib.parse import urlencode

from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Route, Router
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from batchwright.api.auth.authenticators import DEFAULT_SCOPES, ApiKeyAuthenticator, Authenticator
from batchwright.api.auth.caller import scopes_from_headers, tenant_from_headers
from batchwright.api.auth.sessions import Sessions, new_token
from batchwright.api.dependencies import ApiDependencies
from batchwright.api.errors import ApiError
from batchwright.api.ui.api_client import ApiClient
from batchwright.api.ui.batch_pages import BatchPages
from batchwright.api.ui.file_pages import FilePages
from batchwright.api.ui.line_pages import LinePages
from batchwright.api.ui.new_batch_pages import NewBatchPages
from batchwright.api.ui.operator_pages import OperatorPages
from batchwright.api.ui.rendering import Renderer
from batchwright.api.ui.session_pages import SIGN_IN, SessionPages
from batchwright.api.ui.visit import COOKIE, PREFIX, Visit, set_cookie
from batchwright.database.errors import DatabaseUnavailable
from batchwright.rules.api_keys import Scope as ApiScope

logger = logging.getLogger(__name__)

_STATIC = Path(__file__).parent / "static"
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_CACHED = "public, max-age=31536000, immutable"  # the URL changes with the content
_RELOAD = (
    '<!doctype html><html lang="en"><meta http-equiv="refresh" content="0"><title>Batchwright</title></html>'
)
Page = Callable[[Visit], Awaitable[Response]]


class UiMiddleware:
    """Serves the pages below `/ui`, which call the API below this middleware."""

    def __init__(self, app: ASGIApp, deps: ApiDependencies, authenticator: Authenticator | None) -> None:
        """Create the middleware.

        Args:
            app: the routes of the API, behind the middleware that authenticates their callers.
            authenticator: authenticator of the API; None if callers need no authentication.
        """
        self._app, self._deps = app, deps
        self._sessions = Sessions(deps.database.sessions, deps.clock)
        keys = authenticator if isinstance(authenticator, ApiKeyAuthenticator) else None
        self._digests = {path.name: _digest(path) for path in _STATIC.iterdir()}
        self._renderer = Renderer(self._digests, deps.clock)
        self._router = Router(self._routes(keys), redirect_slashes=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_page = scope["type"] == "http" and (scope["path"] + "/").startswith(PREFIX + "/")
        if not is_page:
            await self._app(scope, receive, send)
            return
        try:
            await self._router(scope, receive, _secured(send))
        except HTTPException as error:  # an unknown path, or a method that it does not allow
            visit = self._anonymous(Request(scope, receive))
            page = self._renderer.error(visit, ApiError(error.status_code, f"{error.detail}."))
            await page(scope, receive, _secured(send))

    def _routes(self, keys: ApiKeyAuthenticator | None) -> Sequence[BaseRoute]:
        routes = [
            Route(f"{PREFIX}/static/{{name}}", self._static),
            Route(PREFIX, self._start),
        ]
        renderer, settings = self._renderer, self._deps.settings
        if keys is not None:
            pages = SessionPages(renderer, self._sessions, keys, self._deps.metrics)
            routes += [
                Route(SIGN_IN, self._endpoint(pages.form)),
                Route(SIGN_IN, self._endpoint(pages.sign_in), methods=["POST"]),
                Route(f"{PREFIX}/sign-out", self._endpoint(pages.sign_out), methods=["POST"]),
            ]
        tables = (
            BatchPages(renderer, settings, self._deps.stopping).table(),
            LinePages(renderer).table(),
            NewBatchPages(renderer, settings).table(),
            FilePages(renderer).table(),
            OperatorPages(renderer).table(),
        )
        for table in tables:
            for name, page in table.items():
                method, _, path = name.partition(" ")
                endpoint = self._endpoint(page, needs_session=keys is not None)
                routes.append(Route(PREFIX + path, endpoint, methods=[method]))
        return routes

    async def _start(self, request: Request) -> Response:
        return RedirectResponse(f"{PREFIX}/batches", 303)

    async def _static(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in self._digests:
            raise HTTPException(404)
        return FileResponse(_STATIC / name, headers={"Cache-Control": _CACHED})

    def _endpoint(
        self, page: Page, *, needs_session: bool = False
    ) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            if request.method == "GET" and _hides_cookies(request):
                return HTMLResponse(_RELOAD)
            visit = self._anonymous(request)
            try:
                _check_site(request)
                visit = await self._identified(visit)
                if needs_session and not visit.has_session:
                    response = _to_sign_in(request)
                else:
                    response = await page(visit)
            except (ApiError, DatabaseUnavailable) as error:
                response = self._renderer.error(visit, _as_api_error(error))
            if request.method == "GET" and COOKIE not in request.cookies:
                set_cookie(response, request, visit.token)
            return response

        return endpoint

    def _anonymous(self, request: Request) -> Visit:
        """Return the visit of a request before its sender is known."""
        return Visit(
            request=request,
            api=ApiClient(self._app, request.scope, None),
            token=request.cookies.get(COOKIE) or new_token(),
            tenant="",
            scopes=(),
            has_session=False,
            identity="",
        )

    async def _identified(self, visit: Visit) -> Visit:
        """Return the visit with its tenant and scopes, and with the key of its session.

        Raises:
            ApiError: the header that names the tenant is missing or not valid.
            DatabaseUnavailable: the session cannot be looked up.
        """
        settings, request = self._deps.settings, visit.request
        if settings.auth == "api_key":
            key = await self._sessions.key_of(visit.token) if COOKIE in request.cookies else None
            if key is None:
                return visit
            api = ApiClient(self._app, request.scope, self._sessions.reader(visit.token, key))
            return replace(
                visit, api=api, tenant=key.tenant, scopes=key.scopes, has_session=True, identity=key.id
            )
        scopes: Collection[str] = tuple(ApiScope)
        if settings.auth == "trusted_header":
            name = settings.scopes_header
            scopes = scopes_from_headers(request.headers, name) if name else DEFAULT_SCOPES
        tenant = tenant_from_headers(request.headers, settings)
        return replace(visit, tenant=tenant, scopes=scopes, identity=" ".join([tenant, *sorted(scopes)]))


def _to_sign_in(request: Request) -> Response:
    # To a stream, a page would look like one that has ended, and the browser would connect again at once.
    if request.method != "GET" or "text/event-stream" in request.headers.get("accept", ""):
        raise ApiError(401, "You are signed out. Sign in, and repeat what you did.")
    page = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    return RedirectResponse(f"{SIGN_IN}?{urlencode({'next': page})}", 303)


def _check_site(request: Request) -> None:
    """Check that a form was not sent by a page of another site, such as a sign-in with somebody else's key.

    Raises:
        ApiError: the browser says that another site sent it.
    """
    if request.method == "POST" and request.headers.get("sec-fetch-site") in ("cross-site", "same-site"):
        raise ApiError(403, "Another site sent this form. Open the page here, and repeat what you did.")


def _hides_cookies(request: Request) -> bool:
    """Return True if the request comes from a link on another site, so that the browser sent no cookie.

    A page that reloads itself gets the cookie.
    """
    return request.headers.get("sec-fetch-site") == "cross-site" and COOKIE not in request.cookies


def _as_api_error(error: ApiError | DatabaseUnavailable) -> ApiError:
    if isinstance(error, ApiError):
        return error
    logger.warning("a page cannot be shown", extra={"error": str(error)})
    return ApiError(503, "The database does not answer. Try again later.")


def _secured(send: Send) -> Send:
    """Return a `send` function that adds the Content Security Policy to pages."""

    async def secured(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            if headers.get("content-type", "").startswith("text/html"):
                headers["content-security-policy"] = _POLICY
        await send(message)

    return secured


def _digest(path: Path) -> str:
    return sha256(path.read_bytes()).hexdigest()[:16]
