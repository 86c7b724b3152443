"""Serve the pages. All other paths pass to the API."""

import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from urllib.parse import urlencode

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from batchwright.api.auth.authenticators import DEFAULT_SCOPES, ApiKeyAuthenticator, Authenticator
from batchwright.api.auth.caller import scopes_from_headers, tenant_from_headers
from batchwright.api.auth.sessions import Sessions, new_token
from batchwright.api.dependencies import ApiDependencies
from batchwright.api.errors import ApiError
from batchwright.api.ui.api_client import ApiClient
from batchwright.api.ui.batch_pages import BatchPages, Page
from batchwright.api.ui.file_pages import FilePages
from batchwright.api.ui.line_pages import LinePages
from batchwright.api.ui.list_pages import ListPages
from batchwright.api.ui.live import LiveFragments
from batchwright.api.ui.rendering import Renderer
from batchwright.api.ui.session_pages import SessionPages
from batchwright.api.ui.visit import COOKIE, PREFIX, Visit, set_cookie
from batchwright.database.errors import DatabaseUnavailable
from batchwright.rules.api_keys import Scope as ApiScope

logger = logging.getLogger(__name__)

_STATIC = Path(__file__).parent / "static"
_CACHED = "public, max-age=31536000, immutable"  # the URL changes with the content
# Such as a sign-in with somebody else's key.
_OTHER_SITE = "Another site sent this form. Open the page here, and repeat what you did."
_NO_DATABASE = "The database does not answer. Try again later."


class UiMiddleware:
    """Serves the pages below `/ui`, and passes all other requests to the API. The pages call the API, too."""

    def __init__(self, app: ASGIApp, deps: ApiDependencies, authenticator: Authenticator | None) -> None:
        """Create the middleware.

        Args:
            app: the routes of the API, including the middleware that authenticates callers.
            authenticator: authenticator of the API; None if callers need no authentication.
        """
        self._app, self._deps = app, deps
        self._sessions = Sessions(deps.database.sessions, deps.clock)
        keys = authenticator if isinstance(authenticator, ApiKeyAuthenticator) else None
        self._digests = {path.name: sha256(path.read_bytes()).hexdigest()[:16] for path in _STATIC.iterdir()}
        self._renderer = Renderer(self._digests, deps.clock)
        self._router = Router(self._routes(keys), redirect_slashes=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_page = scope["type"] == "http" and (scope["path"] + "/").startswith(PREFIX + "/")
        if not is_page:
            await self._app(scope, receive, send)
            return
        try:
            await self._router(scope, receive, send)
        except HTTPException as error:  # an unknown path, or a method that it does not allow
            visit = self._anonymous(Request(scope, receive))
            page = self._renderer.error(visit, ApiError(error.status_code, f"{error.detail}."))
            await page(scope, receive, send)

    def _routes(self, keys: ApiKeyAuthenticator | None) -> Sequence[BaseRoute]:
        renderer, settings = self._renderer, self._deps.settings
        live = LiveFragments(self._deps.stopping)
        routes: list[BaseRoute] = [
            Route(f"{PREFIX}/static/{{name}}", self._static),
            Route(PREFIX, self._start),
        ]

        def add(pages: Mapping[str, Page], *, needs_session: bool) -> None:
            for name, page in pages.items():
                method, _, path = name.partition(" ")
                routes.append(Route(PREFIX + path, self._endpoint(page, needs_session), methods=[method]))

        if keys is not None:
            session_pages = SessionPages(renderer, self._sessions, keys, self._deps.metrics)
            add(session_pages.table(), needs_session=False)
        files = FilePages(renderer, settings, live)
        for pages in (BatchPages(renderer, settings, live), LinePages(renderer), files, ListPages(renderer)):
            add(pages.table(), needs_session=keys is not None)
        return routes

    async def _start(self, _: Request) -> Response:
        return RedirectResponse(f"{PREFIX}/batches", 303)

    async def _static(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in self._digests:
            raise HTTPException(404)
        return FileResponse(_STATIC / name, headers={"Cache-Control": _CACHED})

    def _endpoint(self, page: Page, needs_session: bool) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            site, has_cookie = request.headers.get("sec-fetch-site"), COOKIE in request.cookies
            if request.method == "GET" and site == "cross-site" and not has_cookie:
                return self._renderer.html(
                    b'<meta http-equiv="refresh" content="0">'
                )  # after a link on another site; the reload brings the cookie
            visit = self._anonymous(request)
            try:
                if request.method == "POST" and site in ("cross-site", "same-site"):
                    raise ApiError(403, _OTHER_SITE)
                visit = await self._identified(visit)
                if needs_session and not visit.has_session:
                    response = _to_sign_in(request)
                else:
                    response = await page(visit)
            except ApiError as error:
                response = self._renderer.error(visit, error)
            except DatabaseUnavailable as error:
                logger.warning("a page cannot be shown", extra={"error": str(error)})
                response = self._renderer.error(visit, ApiError(503, _NO_DATABASE))
            if request.method == "GET" and not has_cookie:
                set_cookie(response, request, visit.token)
            return response

        return endpoint

    def _anonymous(self, request: Request) -> Visit:
        """Return the visit (one browser request) before it is known who sent the request."""
        api = ApiClient(self._app, request.scope, None)
        return Visit(request, api, token=request.cookies.get(COOKIE) or new_token())

    async def _identified(self, visit: Visit) -> Visit:
        """Return the visit with the tenant and scopes of the visitor, and with the API key of the session.

        Raises:
            ApiError: the header that names the tenant is missing or not valid.
            DatabaseUnavailable: the database does not respond, so the session cannot be looked up.
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
    return RedirectResponse(f"{PREFIX}/sign-in?{urlencode({'next': page})}", 303)
