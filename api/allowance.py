"""What a tenant may still take: refused with 429 as soon as a quota is used up."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import NamedTuple

from api.errors import ApiError, no_room, too_many
from api.services import Services
from batchwright.database.errors import DatabaseUnavailable
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
            raise self._too_many_live(limit)

    async def admit_batch(self, batch_id: str) -> None:
        """Lets the batch in that is made now. Raises ApiError where no further one may be unfinished."""
        limit = (await self.limits()).live_batches
        if limit and not await self._quotas.admit_batch(self._tenant, batch_id, limit):
            raise self._too_many_live(limit)

    async def withdraw(self, id: str) -> None:
        """What was let in does not come, or is there. Where it fails the admission ends by itself."""
        with suppress(DatabaseUnavailable):
            await self._quotas.withdraw(self._tenant, id)

    @asynccontextmanager
    async def held(self, id: str, size: int, room: Room) -> AsyncGenerator[None]:
        """Keeps the bytes of a file or upload while its row is made.

        Raises ApiError where others have them.
        """
        if not room.limit:
            yield
            return
        if not await self._quotas.admit_bytes(self._tenant, id, size, room.limit):
            used = await self._quotas.stored(self._tenant)
            raise self._refusal(Quota.STORED_BYTES, no_room(room.limit, used))
        try:
            yield
        finally:
            await self.withdraw(id)

    async def room(self) -> Room:
        limit = (await self.limits()).stored_bytes
        return Room(limit, await self._quotas.stored(self._tenant) if limit else 0)

    def check_room(self, room: Room, size: int) -> None:
        """Raises ApiError where `size` bytes more are too many."""
        if not room.takes(size):
            raise self._refusal(Quota.STORED_BYTES, no_room(room.limit, room.used))

    async def count_request(self, limit: int) -> None:
        """Raises ApiError where it is one more than `limit` in this minute."""
        counted = await self._quotas.count_request(self._tenant)
        if counted.requests > limit:
            seconds = max(1, -int(-counted.seconds_left // 1))
            message = f"Too many requests: at most {limit} a minute. Try again in {seconds} s."
            refusal = too_many(message, limit, seconds=seconds, window=60)
            raise self._refusal(Quota.REQUESTS_PER_MINUTE, refusal)

    def _too_many_live(self, limit: int) -> ApiError:
        message = f"Too many batches at once: at most {limit} may be unfinished. Try again later."
        return self._refusal(Quota.LIVE_BATCHES, too_many(message, limit))

    def _refusal(self, quota: Quota, error: ApiError) -> ApiError:
        metrics = self._services.metrics
        metrics.quota_refusals.labels(metrics.tenants(self._tenant), quota.value).inc()
        return error
