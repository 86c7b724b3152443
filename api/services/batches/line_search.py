"""Searches for batches that have a line with a certain `custom_id`."""

from batchwright.api.dependencies import ApiDependencies
from batchwright.api.services.expensive_task_limiter import ExpensiveTaskLimiter
from batchwright.database.tables.batches.custom_ids import FoundBatches
from batchwright.database.tables.operations.operator_batches import OperatorBatchFilters
from batchwright.rules.batch_filters import BatchFilters

_AT_ONCE = 4  # a search keeps a connection of the database busy, for seconds if there are many batches
_WAIT_SECONDS = 20.0
_OPERATORS = ""  # no tenant has this name


class LineSearch:
    """A search for batches that have a line with a certain custom id.

    At most four searches run at a time in this process, and they use at most half of the database
    connections. If a search gets no free place in time, its method raises ApiError (429). All routes share
    one object, because each object has its own limit.
    """

    def __init__(self, deps: ApiDependencies) -> None:
        self._custom_ids, self._operator_batches = deps.database.custom_ids, deps.database.operator_batches
        most = min(_AT_ONCE, deps.settings.database_pool_size // 2)
        self._limiter = ExpensiveTaskLimiter(most, _WAIT_SECONDS, work="searches for a custom_id are running")

    async def batches(
        self, tenant: str, custom_id: str, *, limit: int, after: str | None, filters: BatchFilters
    ) -> FoundBatches:
        async with self._limiter.slot(tenant, custom_id):
            return await self._custom_ids.search(tenant, custom_id, limit=limit, after=after, filters=filters)

    async def all_batches(
        self,
        custom_id: str,
        filters: OperatorBatchFilters,
        *,
        limit: int,
        ascending: bool,
        after: str | None,
    ) -> FoundBatches:
        """Return batches of all tenants that have a line with this custom id. Only operators may do this.

        Args:
            custom_id: custom id to search for.
            filters: other conditions for the batches.
            limit: maximum number of batches to return.
            ascending: True to return the oldest batches first, False to return the newest first.
            after: id of the batch after which to continue; None to begin with the first batch.
        """
        async with self._limiter.slot(_OPERATORS, custom_id):
            return await self._operator_batches.search(
                custom_id, filters, limit=limit, ascending=ascending, after=after
            )
