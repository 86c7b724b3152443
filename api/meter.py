"""Counts the requests of tenants that have a limit of them, before a route sees the request."""

from fastapi import Request

from api.allowance import Allowance
from api.recent import Recent
from api.services import Services
from api.tenants import tenant_of
from batchwright.database.errors import DatabaseUnavailable
from batchwright.rules.quotas import Limits


class Meter:
    """A dependency of every route that answers a tenant."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._limits = Recent(self._read, services.recent_seconds)

    async def __call__(self, request: Request) -> None:
        """Raises ApiError where it is one too many."""
        tenant = tenant_of(request, self._services.settings)
        try:
            limit = (await self._limits.get(tenant)).requests_per_minute
            if limit:
                await Allowance(self._services, tenant).count_request(limit)
        except DatabaseUnavailable:
            return  # a route that needs the database says so itself

    async def _read(self, tenant: str) -> Limits:
        return await Allowance(self._services, tenant).limits()
