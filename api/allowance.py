"""What a tenant may still take: refused with 429 as soon as a quota is used up."""

from typing import NamedTuple

from api.errors import ApiError, no_room, too_many
from api.services import Services
from batchwright.database.quotas_base import OwnQuotas
from batchwright.rules.quotas import Limits, Quota


class Room(NamedTuple):
    """For bytes in storage; `limit` 0: any number."""

    limit: int
    used: int

    def takes(self, size: int) -> bool:
        return not self.limit or self.used + size <= self.limit


class Allowance:
    """Of one tenant. All methods raise DatabaseUnavailable."""

    def __init__(self, services: Services, tenant: str) -> None:
        self._services, self._tenant = services, tenant
        self._quotas = services.database.quotas

    async def own(self) -> OwnQuotas:
        return await self._quotas.get(self._tenant)

    async def limits(self) -> Limits:
        return (await self.own()).limits(self._services.settings.quotas)

    async def check_live(self) -> None:
        """Raises ApiError where no further batch may be unfinished."""
        limit = (await self.limits()).live_batches
        if limit and await self._services.database.batches.count_live(self._tenant) >= limit:
            message = f"Too many batches at once: at most {limit} may be unfinished. Try again later."
            raise self._refusal(Quota.LIVE_BATCHES, too_many(message, limit))

    async def room(self) -> Room:
        limit = (await self.limits()).stored_bytes
        return Room(limit, await self._quotas.stored(self._tenant) if limit else 0)

    def check_room(self, room: Room, size: int) -> None:
        """Raises ApiError where `size` bytes more are too many."""
        if not room.takes(size):
            raise self._refusal(Quota.STORED_BYTES, no_room(room.limit, room.used))

    async def count_request(self) -> None:
        """Raises ApiError where it is one too many in this minute."""
        limit = (await self.limits()).requests_per_minute
        if not limit:
            return
        counted = await self._quotas.count_request(self._tenant)
        if counted.requests > limit:
            seconds = max(1, -int(-counted.seconds_left // 1))
            message = f"Too many requests: at most {limit} a minute. Try again in {seconds} s."
            refusal = too_many(message, limit, seconds=seconds, window=60)
            raise self._refusal(Quota.REQUESTS_PER_MINUTE, refusal)

    def _refusal(self, quota: Quota, error: ApiError) -> ApiError:
        metrics = self._services.metrics
        metrics.quota_refusals.labels(metrics.tenants(self._tenant), quota.value).inc()
        return error
