"""What every request passes before any route sees it: the door of the settings."""

from starlette.types import ASGIApp, Receive, Scope, Send

from api.doors import Door, Refusal
from api.errors import ApiError, error_response, unavailable
from api.tenants import ADMITTED
from batchwright.database.errors import DatabaseUnavailable
from batchwright.rules.callbacks import PATH
from batchwright.telemetry.context import learn
from batchwright.telemetry.metrics import Metrics

# Probes, scrapes and the description: nothing of any tenant. Whatever else there is, or will be, has a door.
OPEN = frozenset({"/healthz", "/readyz", "/metrics", "/openapi.json", "/docs"})


def _is_open(path: str) -> bool:
    """A backend that calls back has a signed token in the path, and no key."""
    return path in OPEN or path.startswith(PATH)


class Gate:
    """A middleware."""

    def __init__(self, app: ASGIApp, door: Door, metrics: Metrics) -> None:
        self._app = app
        self._door = door
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not _is_open(scope["path"]):
            try:
                scope[ADMITTED] = await self._door.admit(scope)
            except ApiError as error:
                self._note(error)
                return await error_response(error)(scope, receive, send)
            except DatabaseUnavailable as error:
                return await unavailable(error)(scope, receive, send)
        await self._app(scope, receive, send)

    def _note(self, error: ApiError) -> None:
        reason = error.reason if isinstance(error, Refusal) else "header"
        learn(refused=reason)
        self._metrics.api_refusals.labels(reason).inc()
