"""build_app(): the HTTP API over given services."""

from importlib.metadata import version

from fastapi import Depends, FastAPI
from fastapi.params import Depends as DependsOn
from fastapi.security import HTTPBearer

from api.batches import BatchRoutes
from api.bounds import Bounds
from api.callbacks import CallbackRoutes
from api.cors import allow_origins
from api.dead_letters import DeadLetterRoutes
from api.described import DescribedApp
from api.doors import door_of
from api.edge import Edge
from api.errors import handle_errors
from api.files import FileRoutes
from api.gate import Gate
from api.heads import Heads
from api.health import HealthRoutes
from api.limits import LimitRoutes
from api.meter import Meter
from api.models import ModelRoutes
from api.organizations import OrganizationRoutes
from api.pages import Pages
from api.quotas import QuotaRoutes
from api.rates import RateRoutes
from api.registry import RegistryRoutes
from api.request_log import RequestLog
from api.responses import errors, refusals
from api.services import Services
from api.stats import StatsRoutes
from api.tenants import documented
from api.uploads import UploadRoutes
from api.users import UserRoutes
from batchwright.settings import Settings

_DESCRIPTION = (
    "OpenAI's Files, Uploads, Batches and Models. "
    "What OpenAI does not have is under `x_batchwright` and `/x/`."
)


def build_app(services: Services) -> FastAPI:
    """The application; whoever opened the services closes them after it."""
    app = DescribedApp(
        title="Batchwright",
        version=version("batchwright"),
        description=_DESCRIPTION,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        # Its own spans and logs would hold bodies and messages as they are; ours are made at the edge.
        telemetry={"tracing": False, "metrics": False, "logs": False, "auto_configure": False},
        responses=errors(),
    )
    settings = services.settings
    of_tenants = (FileRoutes, UploadRoutes, BatchRoutes, ModelRoutes, LimitRoutes)
    counted = [routes(services).router() for routes in of_tenants]
    of_budgets = (RateRoutes, QuotaRoutes, OrganizationRoutes, UserRoutes)
    kinds = (*of_budgets, RegistryRoutes, DeadLetterRoutes, StatsRoutes)
    of_operators = [routes(services).router() for routes in kinds]
    keys, closed = _described_keys(settings), refusals(settings)
    tenant, meter = documented(settings), Depends(Meter(services))
    for router in counted:
        app.include_router(router, dependencies=[*keys, tenant, meter], responses=closed | errors(429))
    for router in of_operators:
        app.include_router(router, dependencies=keys, responses=closed)
    of_nobody = [routes(services).router() for routes in (CallbackRoutes, HealthRoutes)]
    for router in of_nobody:
        app.include_router(router)
    app.add_route("/docs", app.page, include_in_schema=False)
    handle_errors(app, [*counted, *of_operators, *of_nobody])
    _surround(app, services)
    return app


def _surround(app: FastAPI, services: Services) -> None:
    """What every request goes through, the last added first."""
    settings = services.settings
    app.add_middleware(Heads)
    door = door_of(services)
    if door is not None:
        app.add_middleware(Gate, door=door, metrics=services.metrics)
    else:
        app.add_middleware(Pages, origins=settings.api_cors_origins, hosts=settings.api_hosts)
    allow_origins(app, settings.api_cors_origins, settings.tenant_header)
    app.add_middleware(
        Bounds, body_seconds=settings.api_silence_seconds, body_rate=settings.api_body_bytes_per_second
    )
    app.add_middleware(RequestLog)
    app.add_middleware(Edge, metrics=services.metrics)


def _described_keys(settings: Settings) -> list[DependsOn]:
    """Dependencies that put the key into the OpenAPI description; the gate has checked it by then."""
    if settings.auth != "api_key":
        return []
    bearer = HTTPBearer(auto_error=False, scheme_name="API key", description="a key of `batchwright keys`")
    return [Depends(bearer)]
