"""Middleware that authenticates requests.

Health probes, metric scrapes, the documentation and callbacks of backends need no authentication.
"""

import asyncio
import contextlib
import logging

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from batchwright.api.audit_log.denials import DenialRecorder
from batchwright.api.auth.authenticators import AccessDenied, Authenticator
from batchwright.api.auth.caller import SCOPE_TENANT
from batchwright.api.error_handlers import unavailable_response
from batchwright.api.errors import ApiError, error_response
from batchwright.contracts.terms import Endpoint
from batchwright.database.errors import DatabaseUnavailable
from batchwright.oidc.issuer import IssuerUnavailable
from batchwright.rules.backends.callback_tokens import CALLBACK_PATH
from batchwright.telemetry.context import add_fields
from batchwright.telemetry.metrics import Metrics

logger = logging.getLogger(__name__)

RECHECK_SECONDS = 30.0
# Responses that last as long as clients follow a batch, or until a backend has answered a single call.
_LASTING = ("/x/events", "/x/results", *Endpoint)
# Probes, scrapes and the API description show no tenant data. All other paths require authentication.
PUBLIC_PATHS = frozenset({"/healthz", "/readyz", "/metrics", "/openapi.json", "/docs"})


class AuthenticationMiddleware:
    """The middleware that rejects requests that fail authentication. It stores the tenant of accepted
    requests in the ASGI scope.

    Requests for `PUBLIC_PATHS` and callbacks of backends are not checked, and get no tenant. During a long
    response, such as an event stream, the caller is checked again every `RECHECK_SECONDS`. So the response
    ends soon after the caller's key was revoked.
    """

    def __init__(
        self, app: ASGIApp, authenticator: Authenticator, metrics: Metrics, denials: DenialRecorder
    ) -> None:
        self._app = app
        self._authenticator = authenticator
        self._metrics, self._denials = metrics, denials

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # The path of a backend callback contains a signed token instead.
        if (
            scope["type"] == "http"
            and scope["path"] not in PUBLIC_PATHS
            and not scope["path"].startswith(CALLBACK_PATH)
        ):
            try:
                await self._authenticator.authenticate(scope)
            except ApiError as error:
                self._count(error)
                if SCOPE_TENANT in scope:  # the caller is known
                    await self._denials.record(scope, str(error.code))
                return await error_response(error)(scope, receive, send)
            except (DatabaseUnavailable, IssuerUnavailable) as error:
                return await unavailable_response(error)(scope, receive, send)
            if scope["path"].endswith(_LASTING):
                return await self._follow(scope, receive, send)
        await self._app(scope, receive, send)

    async def _follow(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Call the application for a long response, and check during the response that the caller has access.

        If the caller loses access, the application receives a disconnect message, and ends the response.
        """
        waiting = set[asyncio.Timeout]()  # timeouts of calls that wait for a message of the client

        async def received() -> Message:
            if not denied.done():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(None) as limit:
                        waiting.add(limit)
                        try:
                            return await receive()
                        finally:
                            waiting.discard(limit)
            return {"type": "http.disconnect"}

        def interrupt(_: asyncio.Task[None]) -> None:
            for limit in waiting:
                limit.reschedule(0)

        denied = asyncio.create_task(self._until_denied(scope))
        denied.add_done_callback(interrupt)
        try:
            await self._app(scope, received, send)
        finally:
            denied.cancel()

    async def _until_denied(self, scope: Scope) -> None:
        """Authenticate the request again every `RECHECK_SECONDS`. Return when access is denied."""
        while True:
            await asyncio.sleep(RECHECK_SECONDS)
            try:
                await self._authenticator.authenticate({**scope})
            except ApiError as error:
                self._count(error)
                return
            except (DatabaseUnavailable, IssuerUnavailable) as error:  # then there is nothing new to follow
                logger.warning("access to a stream cannot be checked", extra={"error": str(error)})

    def _count(self, error: ApiError) -> None:
        reason = error.reason if isinstance(error, AccessDenied) else "header"
        add_fields(refused=reason)
        self._metrics.api_refusals.labels(reason).inc()
