"""Middleware that authenticates requests.

Health probes, metric scrapes, the documentation and callbacks of backends need no authentication.
"""

from starlette.types import ASGIApp, Receive, Scope, Send

from batchwright.api.audit_log.denials import DenialRecorder
from batchwright.api.auth.authenticators import AccessDenied, Authenticator
from batchwright.api.auth.caller import SCOPE_TENANT
from batchwright.api.error_handlers import unavailable_response
from batchwright.api.errors import ApiError, error_response
from batchwright.database.errors import DatabaseUnavailable
from batchwright.oidc.issuer import IssuerUnavailable
from batchwright.rules.backends.callback_tokens import CALLBACK_PATH
from batchwright.telemetry.context import add_fields
from batchwright.telemetry.metrics import Metrics

# Probes, scrapes and the API description show no tenant data. All other paths require authentication.
PUBLIC_PATHS = frozenset({"/healthz", "/readyz", "/metrics", "/openapi.json", "/docs"})


class AuthenticationMiddleware:
    """Rejects requests that fail authentication, and stores the tenant of accepted requests.

    The tenant is stored in the ASGI scope. Requests for `PUBLIC_PATHS` and callbacks of backends are not
    checked, and get no tenant.
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
                scope[SCOPE_TENANT] = await self._authenticator.authenticate(scope)
            except ApiError as error:
                reason = error.reason if isinstance(error, AccessDenied) else "header"
                add_fields(refused=reason)
                self._metrics.api_refusals.labels(reason).inc()
                if SCOPE_TENANT in scope:  # the caller is known
                    await self._denials.record(scope, str(error.code))
                return await error_response(error)(scope, receive, send)
            except (DatabaseUnavailable, IssuerUnavailable) as error:
                return await unavailable_response(error)(scope, receive, send)
        await self._app(scope, receive, send)
