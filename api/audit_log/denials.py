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
    """Records denied acts. An act of a tenant on its own data is not recorded if only its scope is missing.

    Authentication denies a request before FastAPI finds its route, so this class finds the route and its act.
    """

    def __init__(self, log: AuditLog, routers: Sequence[APIRouter]) -> None:
        self._log = log
        routes = [route for router in routers for route in router.routes if isinstance(route, APIRoute)]
        self._acts = [(route, act) for route in routes if (act := act_of(route))]

    async def record(self, scope: Scope, code: str) -> None:
        """Record the denied request with this ASGI scope if it requested an act.

        If the database is unavailable, this only logs a warning, because the denied act did not happen.

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
