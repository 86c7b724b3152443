"""Checks the quotas of a tenant: live batches, stored bytes, webhooks, and requests per minute.

A request that would exceed a quota gets a 429.
"""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import NamedTuple

from batchwright.api.dependencies import ApiDependencies
from batchwright.api.errors import (
    ApiError,
    rate_limited,
    storage_quota_exceeded,
    webhook_quota_exceeded,
)
from batchwright.contracts.terms import Quota
from batchwright.database.errors import DatabaseUnavailable, QuotaExhausted
from batchwright.database.records import FileRow
from batchwright.database.tables.tenants.admissions import Admission
from batchwright.database.tables.tenants.quota_records import TenantQuotas
from batchwright.database.tables.webhooks.webhook_endpoints import WebhookEndpoint
from batchwright.rules.tenants.quotas import QuotaLimits


class StorageQuota(NamedTuple):
    """A tenant's limit of stored bytes (0 for no limit), and how many bytes the tenant has stored."""

    limit: int
    used: int

    def allows(self, size: int) -> bool:
        return not self.limit or self.used + size <= self.limit


class QuotaChecks:
    """The checks of the quotas of one tenant.

    To *admit* a batch, file or upload means to count it towards the quota before its row exists. This
    prevents concurrent requests from exceeding the quota together. An `Admission` contains what to count and
    the limit.

    If the database does not respond, all methods except `release` that use it raise DatabaseUnavailable.
    """

    def __init__(self, deps: ApiDependencies, tenant: str) -> None:
        self._deps, self._tenant = deps, tenant
        self._quotas, self._admissions = deps.database.quotas, deps.database.admissions

    async def own(self) -> TenantQuotas:
        return await self._quotas.get(self._tenant)

    async def limits(self) -> QuotaLimits:
        return (await self.own()).limits(self._deps.settings.quotas)

    async def check_live_batches(self) -> None:
        """Check that the tenant may have one more live batch. The new batch is not counted yet.

        Raises:
            ApiError: the tenant already has as many live batches as its quota allows (429).
        """
        limit = (await self.limits()).live_batches
        if limit and await self._deps.database.batch_list.count_live(self._tenant) >= limit:
            raise self._too_many_live(limit)

    async def admit_batch(self, batch_id: str) -> None:
        """Check that the tenant may have one more live batch, and count the new batch before its row exists.

        Raises:
            ApiError: the tenant already has as many live batches as its quota allows (429).
        """
        if admission := await self.batch_admission(batch_id):
            async with self.quota_errors():
                await self._admissions.admit(admission)

    async def batch_admission(self, batch_id: str) -> Admission | None:
        """Return the admission of a new batch: an object with which a later transaction counts the batch
        towards the quota of live batches.

        Return None if the tenant has no limit of live batches.
        """
        limit = (await self.limits()).live_batches
        return Admission(self._tenant, batch_id, Quota.LIVE_BATCHES, 1, limit) if limit else None

    async def batch_admissions(self, batch_id: str, file: FileRow | None) -> list[Admission]:
        """Return the admissions of a new batch and its new file: objects with which a later transaction
        counts the batch and the file towards the quotas.

        A quota without a limit needs no admission, so the list may be empty.

        Args:
            file: the file that is made for the batch; None if there is none.
        """
        limits, admissions = await self.limits(), list[Admission]()
        if limits.live_batches:
            admissions.append(Admission(self._tenant, batch_id, Quota.LIVE_BATCHES, 1, limits.live_batches))
        if file is not None and limits.stored_bytes:
            stored = Admission(self._tenant, file.id, Quota.STORED_BYTES, file.bytes, limits.stored_bytes)
            admissions.append(stored)
        return admissions

    def storage_admission(self, id: str, size: int, quota: StorageQuota) -> Admission | None:
        """Return the admission of a file or upload: an object with which a later transaction counts its
        `size` bytes towards the quota.

        Return None if the tenant has no limit of stored bytes.
        """
        return Admission(self._tenant, id, Quota.STORED_BYTES, size, quota.limit) if quota.limit else None

    @asynccontextmanager
    async def quota_errors(self) -> AsyncGenerator[None]:
        """Context manager that converts an error. If the `with` block raises QuotaExhausted, the context
        manager raises ApiError (429) instead.
        """
        try:
            yield
        except QuotaExhausted as error:
            if error.quota is Quota.LIVE_BATCHES:
                raise self._too_many_live(error.limit) from None
            used = await self._quotas.stored(self._tenant)
            raise self._refused(error.quota, storage_quota_exceeded(error.limit, used)) from None

    async def release(self, id: str) -> None:
        """Remove the admission of a batch, file or upload.

        The admission counts this object towards a quota before the object's row exists. Call this in two
        cases:

        - The row was inserted. The row now counts towards the quota, and the admission is not needed.
        - The row will never be inserted.

        If the database does not respond, the admission stays, and expires one minute after it was made.
        """
        with suppress(DatabaseUnavailable):
            await self._admissions.release(self._tenant, id)

    @asynccontextmanager
    async def reserve(self, id: str, size: int, quota: StorageQuota) -> AsyncGenerator[None]:
        """Context manager that counts the bytes of a file or upload while its row is inserted.

        This prevents concurrent requests from exceeding the quota together.

        Args:
            id: id of the file or upload.
            size: size of the file or upload in bytes.
            quota: result of `storage_quota`, for the limit. The number of bytes that the tenant has stored
                is read again from the database.

        Raises:
            ApiError: the tenant may not store `size` more bytes (429).
        """
        admission = self.storage_admission(id, size, quota)
        if admission is None:
            yield
            return
        async with self.quota_errors():
            await self._admissions.admit(admission)
        try:
            yield
        finally:
            await self.release(id)

    async def storage_quota(self) -> StorageQuota:
        limit = (await self.limits()).stored_bytes
        return StorageQuota(limit, await self._quotas.stored(self._tenant) if limit else 0)

    def check_storage(self, quota: StorageQuota, size: int) -> None:
        """Check that the tenant may store `size` more bytes, according to the usage in `quota`.

        The bytes are not added to the usage.

        Raises:
            ApiError: the tenant may not store `size` more bytes (429).
        """
        if not quota.allows(size):
            raise self._refused(Quota.STORED_BYTES, storage_quota_exceeded(quota.limit, quota.used))

    async def insert_webhook(self, row: WebhookEndpoint) -> None:
        """Insert a webhook endpoint that gets the events of all batches of the tenant.

        Raises:
            ApiError: the tenant already has as many endpoints as its quota allows (429).
        """
        limit = (await self.limits()).webhooks
        if not await self._deps.database.webhook_endpoints.insert(row, limit):
            raise self._refused(Quota.WEBHOOKS, webhook_quota_exceeded(limit))

    async def count_request(self, limit: int) -> None:
        """Count one request of the tenant in the current minute, and check the limit.

        Raises:
            ApiError: the tenant has now sent more than `limit` requests in this minute (429).
        """
        counted = await self._quotas.count_request(self._tenant)
        if counted.requests > limit:
            seconds = max(1, -int(-counted.seconds_left // 1))
            message = f"Too many requests: at most {limit} a minute. Try again in {seconds} s."
            error = rate_limited(message, limit, seconds=seconds, window=60)
            raise self._refused(Quota.REQUESTS_PER_MINUTE, error)

    def _too_many_live(self, limit: int) -> ApiError:
        message = f"Too many batches at once: at most {limit} may be unfinished. Try again later."
        seconds = self._deps.retry_spread.next_seconds(self._tenant)
        return self._refused(Quota.LIVE_BATCHES, rate_limited(message, limit, seconds=seconds))

    def _refused(self, quota: Quota, error: ApiError) -> ApiError:
        metrics = self._deps.metrics
        metrics.quota_refusals.labels(metrics.tenants(self._tenant), quota.value).inc()
        return error
