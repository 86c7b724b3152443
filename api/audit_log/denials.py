"""Records denied requests in the audit log.

A request is denied if its caller is known, but lacks the scope (the right) for an action or names another
tenant. An action is an operation that changes or destroys something, such as the removal of a model.
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
    """A recorder of denied actions in the audit log, such as a denied removal of a model.

    Authentication denies a request before FastAPI finds the request's route. So `record` finds the route. It
    records the request in two cases:

    - The route declares an operator's action.
    - The route declares a tenant's action, and the request's tenant header names another tenant.

    If a caller only lacks the scope for a tenant's action, the request is not recorded, because many API keys
    may only read.
    """

    def __init__(self, log: AuditLog, routers: Sequence[APIRouter]) -> None:
        self._log = log
        routes = [route for router in routers for route in router.routes if isinstance(route, APIRoute)]
        self._actions = [(route, declared) for route in routes if (declared := action_of(route))]

    async def record(self, scope: Scope, code: str) -> None:
        """Record a denied request if its route declares an action for the audit log.

        If the database is unavailable, only log a warning.

        Args:
            scope: the request's ASGI scope.
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
