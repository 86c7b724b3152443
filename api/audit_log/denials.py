"""Records denied requests of callers who lack the scope for an operator act.

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


class DenialRecorder:
    """Records denied operator acts. Acts of tenants on their own data are not recorded.

    Authentication denies a request before FastAPI finds its route, so this class finds the route and its act.
    """

    def __init__(self, log: AuditLog, routers: Sequence[APIRouter]) -> None:
        self._log = log
        routes = [route for router in routers for route in router.routes if isinstance(route, APIRoute)]
        acts = [(route, act_of(route)) for route in routes]
        self._acts = [(route, act) for route, act in acts if act and not isinstance(act, TenantAct)]

    async def record(self, scope: Scope, code: str) -> None:
        """Record the denied request with this ASGI scope if it requested an operator act.

        If the database is unavailable, this only logs a warning, because the denied act did not happen.

        Args:
            code: error code of the response.
        """
        for route, act in self._acts:
            match, child = route.matches(scope)
            if match is Match.FULL:
                try:
                    await self._log.record_denial({**scope, **child}, act, code)
                except DatabaseUnavailable as error:
                    extra = {"action": act.action.value, "error": str(error)}
                    logger.warning("denied act was not recorded in the audit log", extra=extra)
                return
