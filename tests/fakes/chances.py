"""Second chances in memory, held to the same suite as PostgreSQL's."""

from batchwright.contracts.batch import BatchOrder, Origin
from batchwright.database.chances_base import ChancesTable
from batchwright.database.errors import UnknownBatch
from batchwright.database.rows import FileRow
from tests.fakes.rows import Rows


class MemoryChances(ChancesTable):
    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    async def find(self, tenant: str, origin: Origin) -> BatchOrder | None:
        return self._rows.enter().chances.get((tenant, origin.batch_id, origin.chance))

    async def claim(self, order: BatchOrder, origin: Origin, file: FileRow | None = None) -> BatchOrder:
        rows, key = self._rows.enter(), (order.tenant, origin.batch_id)
        row = rows.batches.get(key)
        if row is None:
            raise UnknownBatch(origin.batch_id)
        first = rows.chances.setdefault((*key, origin.chance), order)
        if first is order:
            if file is not None:
                rows.files[file.tenant, file.id] = file
            if row.results_kept_until is not None:
                kept = max(row.results_kept_until, order.expires_at)
                rows.batches[key] = row.model_copy(update={"results_kept_until": kept})
        return first
