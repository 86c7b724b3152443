"""A fake table of the custom ids of batches, in memory. It passes the tests of the PostgreSQL table."""

from batchwright.database.records import BatchRow
from batchwright.database.tables.batches.batch_list import BatchList
from batchwright.database.tables.batches.custom_ids import CustomIdsTable, FoundBatches
from batchwright.rules.batch_filters import NO_FILTERS, BatchFilters
from batchwright.rules.growing_bytes import GrowingBytes
from batchwright.rules.input.custom_id_search import CustomIdIndex, CustomIdPart
from tests.fakes.tables.rows import Rows

_ALL = 1_000_000


def part_of(*custom_ids: str) -> CustomIdPart:
    """Return the record that the table stores for a batch whose lines have these custom ids."""
    index = CustomIdIndex(GrowingBytes)
    index.add_all([*custom_ids])
    return next(index.parts())


class MemoryCustomIds(CustomIdsTable):
    def __init__(self, rows: Rows, batch_list: BatchList) -> None:
        self._rows, self._batch_list = rows, batch_list

    async def store(self, tenant: str, batch_id: str, number: int, part: CustomIdPart) -> None:
        if (tenant, batch_id) in self._rows.enter().batches:
            self._rows.custom_ids.setdefault((tenant, batch_id, number), part)

    async def search(
        self,
        tenant: str,
        custom_id: str,
        *,
        limit: int,
        after: str | None,
        filters: BatchFilters = NO_FILTERS,
    ) -> FoundBatches:
        listed, _ = await self._batch_list.page(tenant, limit=_ALL, after=after, filters=filters)
        return found_among(listed, self._rows, custom_id, limit)


def found_among(listed: list[BatchRow], rows: Rows, custom_id: str, limit: int) -> FoundBatches:
    """Return the first `limit` of these batches that have a line with this custom id."""
    found = [row for row in listed if row.in_progress_at is not None and _has(rows, row, custom_id)]
    return FoundBatches(found[:limit], found[limit - 1].order.batch_id if len(found) > limit else None)


def _has(rows: Rows, row: BatchRow, custom_id: str) -> bool:
    key = (row.order.tenant, row.order.batch_id)
    return any(part.contains(custom_id) for own, part in rows.custom_ids.items() if own[:2] == key)
