"""Records denied requests of known callers for actions: they lack the scope, or name another tenant.

An action is an operation that changes or destroys something, such as the removal of a model.
"""

import logging
from collections.abc import Sequence

from fastapi import APIRouter
from fastapi.routing import APIRoute
from starlette.routing import Match
from starlette.types import Scope

from batchwright.api.audit_log.recorder import AuditLog, TenantAction, action_of
from batchwright.database.errors import DatabaseUnavailable

logger = logging.getLogger(__name__)

_MISSING_SCOPE = "missing_scope"  # code of the error if a caller lacks the scope


class DenialRecorder:
    """Records in the audit log that an action was denied.

    An action is an operation that routes declare for this log. If a tenant only lacks the scope for an action
    on its own data, this is not recorded. Authentication denies a request before FastAPI finds its route. So
    this class finds the route and its action.
    """

    def __init__(self, log: AuditLog, routers: Sequence[APIRouter]) -> None:
        self._log = log
        routes = [route for router in routers for route in router.routes if isinstance(route, APIRoute)]
        self._actions = [(route, declared) for route in routes if (declared := action_of(route))]

    async def record(self, scope: Scope, code: str) -> None:
        """Record a denied request, if its route declares an action. `scope` is its ASGI scope.

        If the database is unavailable, this only logs a warning. Nothing is lost, because the action did not
        happen.

        Args:
            code: error code of the response.
        """
        for route, declared in self._actions:
            if isinstance(declared, TenantAction) and code == _MISSING_SCOPE:
                continue
            match, child = route.matches(scope)
            if match is Match.FULL:
                try:
                    await self._log.record_denial({**scope, **child}, declared, code)
                except DatabaseUnavailable as error:
                    extra = {"action": declared.action.value, "error": str(error)}
                    logger.warning("denied action was not recorded in the audit log", extra=extra)
                return
