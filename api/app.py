"""Builds the FastAPI application: its routes, middleware and error handlers."""

from importlib.metadata import version

from fastapi import APIRouter, Depends, FastAPI
from fastapi.params import Depends as DependsOn
from fastapi.security import APIKeyHeader, HTTPBearer

from batchwright.api.audit_log.denials import DenialRecorder
from batchwright.api.audit_log.recorder import AuditLog
from batchwright.api.auth.authenticators import (
    ANTHROPIC_KEY_HEADER,
    AZURE_KEY_HEADER,
    Authenticator,
    build_authenticator,
)
from batchwright.api.auth.caller import tenant_header_parameter
from batchwright.api.client_limits.held_downloads import HeldDownloads
from batchwright.api.dependencies import ApiDependencies
from batchwright.api.error_handlers import handle_errors
from batchwright.api.middleware.access_log import AccessLogMiddleware
from batchwright.api.middleware.authentication import AuthenticationMiddleware
from batchwright.api.middleware.cors import allow_origins
from batchwright.api.middleware.head_method import HeadMethodMiddleware
from batchwright.api.middleware.header_size_and_body_speed import HeaderSizeAndBodySpeedMiddleware
from batchwright.api.middleware.keyless_cross_site_guard import KeylessCrossSiteGuardMiddleware
from batchwright.api.middleware.path_guard import PathGuardMiddleware
from batchwright.api.middleware.query_parameters import QueryParametersMiddleware
from batchwright.api.middleware.request_id import RequestIdMiddleware
from batchwright.api.middleware.security_headers import SecurityHeadersMiddleware
from batchwright.api.openapi import DocumentedApp, auth_error_responses, error_responses
from batchwright.api.routes.admin.audit_log import AuditLogRoutes
from batchwright.api.routes.admin.batches import OperatorBatchRoutes
from batchwright.api.routes.admin.budget_groups import BudgetGroupRoutes
from batchwright.api.routes.admin.dead_letters import DeadLetterRoutes
from batchwright.api.routes.admin.holds import HoldRoutes
from batchwright.api.routes.admin.keys import KeyRoutes
from batchwright.api.routes.admin.model_registry import ModelRegistryRoutes
from batchwright.api.routes.admin.quotas import QuotaRoutes
from batchwright.api.routes.admin.rates import RateRoutes
from batchwright.api.routes.admin.workers import WorkerRoutes
from batchwright.api.routes.anthropic.error_format import MessageErrorMiddleware, message_error_responses
from batchwright.api.routes.anthropic.message_batches import MessageBatchRoutes
from batchwright.api.routes.batch_events import BatchEventRoutes
from batchwright.api.routes.batches import BatchRoutes
from batchwright.api.routes.callbacks import CallbackRoutes
from batchwright.api.routes.calls.call_body import CallBodies
from batchwright.api.routes.calls.chat import ChatRoutes
from batchwright.api.routes.calls.flex import FlexCalls
from batchwright.api.routes.calls.interactive_passthrough import InteractiveForwarder, InteractiveRoutes
from batchwright.api.routes.calls.queue_jobs import QueueRoutes
from batchwright.api.routes.calls.responses import ResponseRoutes
from batchwright.api.routes.files import FileRoutes
from batchwright.api.routes.health import HealthRoutes
from batchwright.api.routes.limits import LimitRoutes
from batchwright.api.routes.models import ModelRoutes
from batchwright.api.routes.results import ResultRoutes
from batchwright.api.routes.schedules import ScheduleRoutes
from batchwright.api.routes.stats import StatsRoutes
from batchwright.api.routes.uploads import UploadRoutes
from batchwright.api.routes.webhooks import WebhookRoutes
from batchwright.api.services.batches.line_search import LineSearch
from batchwright.api.services.batches.progress_events import BatchEvents
from batchwright.api.services.calls.acceptance import Calls
from batchwright.api.services.calls.interactive_calls import InteractiveCalls
from batchwright.api.services.request_rate_limit import RequestRateLimit
from batchwright.api.ui.middleware import UiMiddleware
from batchwright.settings import Settings

_DESCRIPTION = (
    "OpenAI's Files, Uploads, Batches and Models, Responses in the background, and Anthropic's Message "
    "Batches. "
    "Extensions to OpenAI's API are under `x_batchwright` and `/x/`."
)
_TENANT_ROUTES = (ResultRoutes, ModelRoutes, LimitRoutes, WebhookRoutes, ScheduleRoutes)
_OPERATOR_ROUTES = (
    *(RateRoutes, HoldRoutes, QuotaRoutes, BudgetGroupRoutes),
    *(ModelRegistryRoutes, DeadLetterRoutes, StatsRoutes),
    *(AuditLogRoutes, WorkerRoutes, KeyRoutes),
)


def build_app(
    deps: ApiDependencies, events: BatchEvents, interactive: InteractiveCalls | None = None
) -> FastAPI:
    """Build the FastAPI application with its routes, middleware and error handlers.

    The caller opens and closes the dependencies. While the application serves requests, the caller must also
    run `events` and `interactive` in the background.

    Args:
        deps: the opened dependencies, such as the database.
        events: the event streams that show clients the progress of batches.
        interactive: the sender of interactive calls (single requests that a backend must answer immediately).
            If it is None, the API rejects these calls.
    """
    app = DocumentedApp(
        title="Batchwright",
        version=version("batchwright"),
        description=_DESCRIPTION,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        # FastAPI's own spans and logs would contain bodies and messages. `RequestIdMiddleware` replaces them.
        telemetry={"tracing": False, "metrics": False, "logs": False, "auto_configure": False},
        responses=error_responses(),
    )
    authenticator = build_authenticator(deps)  # one, so that all routes share its limit of wrong keys
    routers = _add_routes(app, deps, events, interactive)
    public_routers = [CallbackRoutes(deps).router(), HealthRoutes(deps, authenticator).router()]
    for router in public_routers:
        app.include_router(router)
    handle_errors(app, [*routers, *public_routers])
    _add_middleware(app, deps, authenticator, routers)
    return app


def _add_routes(
    app: FastAPI, deps: ApiDependencies, events: BatchEvents, interactive: InteractiveCalls | None
) -> list[APIRouter]:
    """Add the routes for tenants and operators to the application. Return the routers of these routes."""
    settings = deps.settings
    keys, denials = _key_parameters(settings), auth_error_responses(settings)
    tenant, request_rate = tenant_header_parameter(settings), Depends(RequestRateLimit(deps))
    search, downloads = LineSearch(deps), HeldDownloads(deps.held_bytes)
    tenant_routers = [
        *(
            FileRoutes(deps, downloads).router(),
            UploadRoutes(deps).router(),
            BatchRoutes(deps, search).router(),
        ),
        *(routes(deps).router() for routes in _TENANT_ROUTES),
        BatchEventRoutes(deps, events).router(),
    ]
    calls, bodies = Calls(deps), CallBodies(settings, deps.held_bytes)
    flex = FlexCalls(deps, calls)
    forwarder = None if interactive is None else InteractiveForwarder(deps, interactive)
    tenant_routers += [
        ResponseRoutes(deps, bodies, calls, flex, forwarder).router(),
        ChatRoutes(deps, bodies, flex, forwarder).router(),
        QueueRoutes(deps, bodies, calls).router(),
    ]
    if forwarder is not None:
        tenant_routers.append(InteractiveRoutes(deps, bodies, forwarder).router())
    for router in tenant_routers:
        app.include_router(
            router, dependencies=[*keys, tenant, request_rate], responses=denials | error_responses(429)
        )
    message_router = MessageBatchRoutes(deps, downloads).router()
    tenant_routers.append(message_router)
    app.include_router(
        message_router,
        dependencies=[*keys, tenant, request_rate],
        responses=message_error_responses(429, *map(int, denials)),
    )
    operator_routers = [
        OperatorBatchRoutes(deps, search).router(),
        *(routes(deps).router() for routes in _OPERATOR_ROUTES),
    ]
    for router in operator_routers:
        app.include_router(router, dependencies=keys, responses=denials)
    return [*tenant_routers, *operator_routers]


def _add_middleware(
    app: FastAPI, deps: ApiDependencies, authenticator: Authenticator | None, routers: list[APIRouter]
) -> None:
    """Add all middleware to the application. The middleware added last is the outermost: it gets each request
    first.
    """
    settings = deps.settings
    app.add_middleware(QueryParametersMiddleware, routers=routers, profile=settings.profile)
    app.add_middleware(HeadMethodMiddleware)
    if authenticator is not None:
        denials = DenialRecorder(AuditLog(deps), routers)
        app.add_middleware(
            AuthenticationMiddleware, authenticator=authenticator, metrics=deps.metrics, denials=denials
        )
    app.add_middleware(UiMiddleware, deps=deps, authenticator=authenticator)
    app.add_middleware(PathGuardMiddleware)
    if settings.auth != "api_key":
        app.add_middleware(
            KeylessCrossSiteGuardMiddleware, origins=settings.api_cors_origins, hosts=settings.api_hosts
        )
    allow_origins(app, settings.api_cors_origins)
    app.add_middleware(HeaderSizeAndBodySpeedMiddleware)
    app.add_middleware(SecurityHeadersMiddleware)
    app.add_middleware(AccessLogMiddleware)
    app.add_middleware(RequestIdMiddleware, metrics=deps.metrics)
    app.add_middleware(MessageErrorMiddleware)


def _key_parameters(settings: Settings) -> list[DependsOn]:
    """Return FastAPI dependencies that describe the API key in `/openapi.json`. The list is empty if the
    settings require no key.

    The dependencies do not check the key: `AuthenticationMiddleware` does.
    """
    if settings.auth != "api_key":
        return []
    description = "an API key made with `batchwright keys create`"
    token = f", or a token of {settings.oidc_issuer}" if settings.oidc_issuer else ""
    bearer = HTTPBearer(auto_error=False, scheme_name="API key", description=description + token)
    azure = APIKeyHeader(
        name=AZURE_KEY_HEADER, auto_error=False, scheme_name="Azure", description=description
    )
    anthropic = APIKeyHeader(
        name=ANTHROPIC_KEY_HEADER, auto_error=False, scheme_name="Anthropic", description=description
    )
    return [Depends(bearer), Depends(azure), Depends(anthropic)]
