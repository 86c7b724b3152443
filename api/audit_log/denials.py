"""Records denied requests of known callers for acts: they lack the scope, or name another tenant.

An act is an operation that changes or destroys something, such as the removal of a model.
"""

import logging
from collections.abc import Sequence

from fastapi import APIRouter
from fastapi.routing import APIRoute
from starlette.routing import Match
from starlette.types import Scope

from batchwright.api.audit_log.recorder import AuditLog, TenantAct, act_of
from batchwright.database.errors import DatabaseUnavailable

logger = logging.getLogger(__name__)

_MISSING_SCOPE = "missing_scope"  # code of the error if a caller lacks the scope


class DenialRecorder:
    """Records in the audit log that an act was denied.

    An act is an operation that routes declare for this log. If a tenant only lacks the scope for an act on
    its own data, this is not recorded. Authentication denies a request before FastAPI finds its route. So
    this class finds the route and its act.
    """

    def __init__(self, log: AuditLog, routers: Sequence[APIRouter]) -> None:
        self._log = log
        routes = [route for router in routers for route in router.routes if isinstance(route, APIRoute)]
        self._acts = [(route, act) for route in routes if (act := act_of(route))]

    async def record(self, scope: Scope, code: str) -> None:
        """Record a denied request, if its route declares an act. `scope` is its ASGI scope.

        If the database is unavailable, this only logs a warning. Nothing is lost, because the act did not
        happen.

        Args:
            code: error code of the response.
        """
        for route, act in self._acts:
            if isinstance(act, TenantAct) and code == _MISSING_SCOPE:
                continue
            match, child = route.matches(scope)
            if match is Match.FULL:
                try:
                    await self._log.record_denial({**scope, **child}, act, code)
                except DatabaseUnavailable as error:
                    extra = {"action": act.action.value, "error": str(error)}
                    logger.warning("denied act was not recorded in the audit log", extra=extra)
                return
