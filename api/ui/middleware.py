"""Serves the pages and `/docs`. All other paths are passed to the API."""

import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

from pydantic import BaseModel, JsonValue
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from batchwright.api.auth.authenticators import DEFAULT_SCOPES, ApiKeyAuthenticator, Authenticator
from batchwright.api.auth.caller import scopes_from_headers, tenant_from_headers
from batchwright.api.auth.sessions import Sessions, new_token
from batchwright.api.dependencies import ApiDependencies
from batchwright.api.errors import ApiError
from batchwright.api.ui.api_client import ApiClient
from batchwright.api.ui.batch_pages import BatchPages
from batchwright.api.ui.csrf import check_site
from batchwright.api.ui.file_pages import FilePages
from batchwright.api.ui.line_pages import LINE_PAGES
from batchwright.api.ui.list_pages import list_pages
from batchwright.api.ui.live import LiveFragments
from batchwright.api.ui.rendering import Renderer
from batchwright.api.ui.session_pages import SessionPages
from batchwright.api.ui.visit import COOKIE, PREFIX, Page, Visit, see_other, set_cookie
from batchwright.database.errors import DatabaseUnavailable
from batchwright.rules.tenants.scopes import Scope as ApiScope

logger = logging.getLogger(__name__)

_STATIC = Path(__file__).parent / "static"
_CACHED = "public, max-age=31536000, immutable"  # the URL changes with the content
_NO_DATABASE = "The database does not answer. Try again later."


class _Description(BaseModel):
    """Those parts of the API's OpenAPI description that the page `/docs` shows."""

    info: dict[str, str]
    paths: dict[str, dict[str, dict[str, JsonValue]]]
    components: dict[str, JsonValue]


class UiMiddleware:
    """The middleware that serves `/docs` and the pages below `/ui`, and passes all other requests to the API.

    The pages get the data that they show from the API's routes.
    """

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
        self._renderer = Renderer(self._digests, deps.clock, has_pages=deps.settings.ui)
        self._docs: Response | None = None
        # Without pages, `/docs` needs the style sheet.
        self._folder = f"{PREFIX}/" if deps.settings.ui else f"{PREFIX}/static/"
        self._router = Router(self._routes(keys), redirect_slashes=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_http, path = scope["type"] == "http", scope.get("path", "")
        if not (is_http and (path == "/docs" or f"{path}/".startswith(self._folder))):
            await self._app(scope, receive, send)
            return
        try:
            await self._router(scope, receive, send)
        except HTTPException as error:  # an unknown path, or a method that it does not allow
            visit = self._anonymous(Request(scope, receive))
            await visit.error(ApiError(error.status_code, f"{error.detail}."))(scope, receive, send)

    def _routes(self, keys: ApiKeyAuthenticator | None) -> Sequence[Route]:
        live, settings = LiveFragments(self._deps.stopping), self._deps.settings
        batches, files = BatchPages(settings, live).table(), FilePages(settings, live).table()
        pages = {**batches, **LINE_PAGES, **files, **list_pages()}
        open_pages = {} if keys is None else SessionPages(self._sessions, keys, self._deps.metrics).table()
        routes = [
            Route(PREFIX + path, self._endpoint(page, needs_session=needs_session), methods=[method])
            for table, needs_session in ((open_pages, False), (pages, keys is not None))
            for (method, path), page in ((name.split(" "), page) for name, page in table.items())
        ]
        static = Route(f"{PREFIX}/static/{{name}}", self._static)
        return [Route("/docs", self._show_docs), static, Route(PREFIX, self._start), *routes]

    async def _start(self, _: Request) -> Response:
        return see_other("/batches")

    async def _show_docs(self, request: Request) -> Response:
        """Return the page `/docs`.

        All visitors get the same page. Browsers send the session cookie only to the pages at `/ui`, so the
        visitor of `/docs` is not known.
        """
        if self._docs is None:
            scopes = list(ApiScope) if self._deps.settings.auth == "none" else [ApiScope.READ]
            visit = replace(self._anonymous(request), scopes=scopes)
            api = await visit.api.get("/openapi.json", _Description)
            operations = [(path, *each) for path, methods in api.paths.items() for each in methods.items()]
            self._docs = visit.page("docs.html", title="API", api=api, operations=operations)
        return self._docs

    async def _static(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in self._digests:
            raise HTTPException(404)
        return FileResponse(_STATIC / name, headers={"Cache-Control": _CACHED})

    def _endpoint(self, page: Page, *, needs_session: bool) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            has_cookie, is_get = COOKIE in request.cookies, request.method == "GET"
            if is_get and not has_cookie and request.headers.get("sec-fetch-site") == "cross-site":
                # After a link on another site, the reload brings the cookie.
                return HTMLResponse('<meta http-equiv="refresh" content="0">')
            visit = self._anonymous(request)
            try:
                check_site(request)
                visit = await self._identified(visit)
                if needs_session and not visit.has_session:
                    response = _to_sign_in(request)
                else:
                    response = await page(visit)
            except ApiError as error:
                response = visit.error(error)
            except DatabaseUnavailable as error:
                logger.warning("a page cannot be shown", extra={"error": str(error)})
                response = visit.error(ApiError(503, _NO_DATABASE))
            if is_get and not has_cookie:
                set_cookie(response, request, visit.token)
            return response

        return endpoint

    def _anonymous(self, request: Request) -> Visit:
        """Return the `Visit` object for a browser's request, without the visitor's tenant, scopes and key."""
        api = ApiClient(self._app, request.scope, None)
        return Visit(request, api, self._renderer, token=request.cookies.get(COOKIE) or new_token())

    async def _identified(self, visit: Visit) -> Visit:
        """Return the visit with the tenant and scopes of the visitor, and with the API key of the session.

        If keys are required and the visitor has no valid session, return the visit unchanged.

        Raises:
            ApiError: the header that names the tenant is missing or not valid.
            DatabaseUnavailable: the database does not respond, so the session cannot be looked up.
        """
        settings, request = self._deps.settings, visit.request
        if settings.auth == "api_key":
            key = await self._sessions.key_of(visit.token) if COOKIE in request.cookies else None
            if key is None:
                return visit
            api = ApiClient(self._app, request.scope, self._sessions.cached_key_reader(visit.token, key))
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
    query = f"?{request.url.query}" if request.url.query else ""
    return see_other("/sign-in", next=request.url.path + query)
