"""build_app(): the HTTP API over given services."""

from importlib.metadata import version

from fastapi import Depends, FastAPI

from api.batches import BatchRoutes
from api.bounds import Bounds
from api.cors import allow_origins
from api.described import DescribedApp
from api.edge import Edge
from api.errors import handle_errors
from api.files import FileRoutes
from api.health import HealthRoutes
from api.limits import LimitRoutes
from api.meter import Meter
from api.models import ModelRoutes
from api.quotas import QuotaRoutes
from api.rates import RateRoutes
from api.request_log import RequestLog
from api.responses import errors
from api.services import Services
from api.uploads import UploadRoutes

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
        redoc_url=None,
        redirect_slashes=False,
        # Its own spans and logs would hold bodies and messages as they are; ours are made at the edge.
        telemetry={"tracing": False, "metrics": False, "logs": False, "auto_configure": False},
        responses=errors(),
    )
    of_tenants = (FileRoutes, UploadRoutes, BatchRoutes, ModelRoutes, LimitRoutes)
    counted = [routes(services).router() for routes in of_tenants]
    others = [routes(services).router() for routes in (RateRoutes, QuotaRoutes, HealthRoutes)]
    for router in counted:
        app.include_router(router, dependencies=[Depends(Meter(services))], responses=errors(429))
    for router in others:
        app.include_router(router)
    handle_errors(app, [*counted, *others])
    allow_origins(app, services.settings.api_cors_origins)
    app.add_middleware(Bounds, body_seconds=services.settings.api_silence_seconds)
    app.add_middleware(RequestLog)
    app.add_middleware(Edge, metrics=services.metrics)
    return app
