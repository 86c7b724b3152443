"""Limits the number of requests that a tenant may send per minute. Further requests get a 429."""

from fastapi import Request

from batchwright.api.auth.caller import tenant_of
from batchwright.api.dependencies import ApiDependencies
from batchwright.api.read_cache import CoalescingCache
from batchwright.api.services.quota_checks import QuotaChecks
from batchwright.database.errors import DatabaseUnavailable
from batchwright.rules.tenants.quotas import QuotaLimits


class RequestRateLimit:
    """A FastAPI dependency that limits how many requests a tenant may send per minute.

    The routes that tenants call declare this dependency.
    """

    def __init__(self, deps: ApiDependencies) -> None:
        self._deps = deps
        self._limits = CoalescingCache(self._read, deps.recent_seconds)

    async def __call__(self, request: Request) -> None:
        """Count the request, and check the tenant's quota.

        While the database is unavailable, requests are accepted without being counted.

        Raises:
            ApiError: the tenant has used up its quota of requests in this minute (429).
        """
        tenant = tenant_of(request, self._deps.settings)
        try:
            limit = (await self._limits.get(tenant)).requests_per_minute
            if limit:
                await QuotaChecks(self._deps, tenant).count_request(limit)
        except DatabaseUnavailable:
            return  # routes that need the database report this themselves

    async def _read(self, tenant: str) -> QuotaLimits:
        return await QuotaChecks(self._deps, tenant).limits()
