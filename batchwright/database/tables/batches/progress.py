"""Table of progress: how many lines of each slice have a final result, as reported by the workers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple, Protocol

from batchwright.database.pool import ConnectionPool
from batchwright.database.records import SliceProgress
from batchwright.database.sql import queries
from batchwright.database.tables.batches.batch_records import dump_error_counts, parse_costs
from batchwright.database.tables.batches.batch_snapshots import BatchKey
from batchwright.rules.token_costs import amount_of, amount_text, total_cost


class SettledLines(NamedTuple):
    completed: int
    failed: int


class ProgressSample(NamedTuple):
    """Number of lines of a batch that had a final result at the time `at`."""

    at: datetime
    settled: int


class SliceKey(NamedTuple):
    """The key of a slice (a part of a model's lines) within its batch: the model and the slice's number."""

    model: str
    number: int


class BatchSpending(NamedTuple):
    """Cap on the cost of a batch, and the cost of the batch so far.

    `cap` and `amount` are in 10^-12 of the currency's unit (`rules/token_costs.py`). `amount` does not
    include the slices (parts of the batch) that were passed to `ProgressTable.spending`. `is_ending` is True
    if the batch is ending because it has reached its cap.
    """

    cap: int
    amount: int
    is_ending: bool = False


class ProgressTable(Protocol):
    async def record(self, rows: list[SliceProgress]) -> None:
        """Store workers' reports about slices (parts of a model's lines).

        The totals in a report replace the stored totals of its slice. A report is ignored if the batch has
        ended, or if a newer attempt of the slice has reported already.
        """
        ...

    async def slices(self, tenant: str, batch_id: str) -> dict[tuple[str, int], SettledLines]:
        """Return how many lines of each slice of a batch have a final result, by (model, number of the
        slice).

        Call this only for a batch that has not ended. Slices for which no worker has reported yet are left
        out.
        """
        ...

    async def spending(self, batches: Mapping[BatchKey, Sequence[SliceKey]]) -> dict[BatchKey, BatchSpending]:
        """Return the cap on the cost, and the cost so far, of each batch that has a cap.

        The cost is computed from the tokens that workers have reported for the slices (parts) of a batch.

        Args:
            batches: for each batch, the slices that are left out of the returned cost. The caller counts the
                cost of these slices itself.
        """
        ...

    async def reach_cap(self, batch: BatchKey, amount: int) -> bool:
        """Record that a batch ends because it has reached the cap on its cost, and return True.

        From then on, the cap cannot be changed. Return False without a change if the batch is not in
        progress, or if its cap was removed or is now greater than `amount`.

        Args:
            amount: cost of the batch so far, in 10^-12 of the currency's unit.
        """
        ...

    async def sample(self, at: datetime) -> None:
        """Add a sample of the progress, with the time `at`, to all batches in progress.

        The interval between two samples of a batch is at least ten seconds, and at least 1/40 of the time
        since the first sample. If the latest sample is younger, the batch gets no new sample. Several workers
        can therefore call this method, and a batch that runs for a day has only about 260 samples.
        """
        ...

    async def samples(self, tenant: str, batch_id: str) -> list[ProgressSample]:
        """Return the progress samples of a batch, oldest first.

        A sample is made when the status becomes `in_progress`, by `sample` while the batch runs, and when the
        status becomes `finalizing`. The list is empty if the batch was never in progress, or if there is no
        such batch.
        """
        ...


@dataclass(frozen=True)
class ProgressQueries:
    record: str
    slices: str
    spending: str
    reach_cap: str
    sample: str
    samples: str


class PostgresProgress(ProgressTable):
    def __init__(self, connections: ConnectionPool) -> None:
        self._connections = connections
        self._sql = queries(ProgressQueries, "progress")

    async def record(self, rows: list[SliceProgress]) -> None:
        if not rows:
            return
        await self._connections.execute(
            self._sql.record,
            [row.tenant for row in rows],
            [row.batch_id for row in rows],
            [row.model for row in rows],
            [row.number for row in rows],
            [row.generation for row in rows],
            [row.attempt for row in rows],
            [row.completed for row in rows],
            [row.failed for row in rows],
            [row.usage.input_tokens for row in rows],
            [row.usage.cached_tokens for row in rows],
            [row.usage.output_tokens for row in rows],
            [row.usage.reasoning_tokens for row in rows],
            [dump_error_counts(row.errors) for row in rows],
        )

    async def slices(self, tenant: str, batch_id: str) -> dict[tuple[str, int], SettledLines]:
        records = await self._connections.fetch(self._sql.slices, tenant, batch_id)
        return {
            (each["model"], each["number"]): SettledLines(each["completed"], each["failed"])
            for each in records
        }

    async def spending(self, batches: Mapping[BatchKey, Sequence[SliceKey]]) -> dict[BatchKey, BatchSpending]:
        left_out = [(key, place) for key, places in batches.items() for place in places]
        records = await self._connections.fetch(
            self._sql.spending,
            [key.tenant for key in batches],
            [key.batch_id for key in batches],
            [key.tenant for key, _ in left_out],
            [key.batch_id for key, _ in left_out],
            [place.model for _, place in left_out],
            [place.number for _, place in left_out],
        )
        return {
            BatchKey(each["tenant"], each["id"]): BatchSpending(
                amount_of(each["max_cost"]),
                total_cost(*parse_costs(each["usages"], each["prices"])),
                each["is_ending"],
            )
            for each in records
        }

    async def reach_cap(self, batch: BatchKey, amount: int) -> bool:
        row = await self._connections.fetchrow(self._sql.reach_cap, *batch, amount_text(amount))
        return row is not None

    async def sample(self, at: datetime) -> None:
        await self._connections.execute(self._sql.sample, at)

    async def samples(self, tenant: str, batch_id: str) -> list[ProgressSample]:
        records = await self._connections.fetch(self._sql.samples, tenant, batch_id)
        return [ProgressSample(record["sampled_at"], record["settled"]) for record in records]
