"""Finds the database row of a batch. If the row is missing while the batch's workflow runs, inserts it.

The row is missing if the database did not respond while the batch was created. The workflow inserts the row,
too, but only when a worker runs.
"""

from batchwright.api.dependencies import ApiDependencies
from batchwright.database.records import BatchRow
from batchwright.rules.ids import is_batch_id


class BatchRows:
    def __init__(self, deps: ApiDependencies) -> None:
        self._batches, self._deletions = deps.database.batches, deps.database.batch_deletions
        self._operator_batches, self._temporal = deps.database.operator_batches, deps.temporal
        self._running = deps.running_batches

    async def find(self, tenant: str, batch_id: str) -> BatchRow | None:
        """Return the database row of a batch. If the row is missing but the batch's workflow runs, insert the
        row.

        Return None if the tenant has no such batch, or if `tenant` is empty.

        Raises:
            ApiError: the tenant has asked for too many unknown batches (429).
            TemporalUnavailable: the batch has no row, and Temporal does not respond. It is unknown if the
                batch exists.
        """
        if not tenant or not is_batch_id(batch_id):
            return None
        row = await self._batches.get(tenant, batch_id)
        if row is not None or await self._deletions.is_deleted(tenant, batch_id):
            return row
        order = await self._running.order(tenant, batch_id)
        return None if order is None else await self._batches.upsert(order)

    async def owner(self, batch_id: str) -> str | None:
        """Return the name of the tenant to which a batch belongs; None if there is no such batch.

        If the batch's row is missing but its workflow runs, insert the row.

        Raises:
            TemporalUnavailable: the batch has no row, and Temporal does not respond. It is unknown if the
                batch exists.
        """
        if not is_batch_id(batch_id):
            return None
        tenant = await self._operator_batches.owner(batch_id)
        if tenant is None and (order := await self._temporal.running_order(batch_id)) is not None:
            return (await self._batches.upsert(order)).order.tenant
        return tenant
