"""Table with the result of the latest consistency check of rows, workflow runs and files."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple, Protocol

from batchwright.contracts.temporal_payloads.consistency import DifferenceCount
from batchwright.database.pool import ConnectionPool
from batchwright.database.sql import queries


class RecordedConsistencyCheck(NamedTuple):
    """Result of the latest consistency check for one kind of difference, and the time when the check ended.

    A difference is, for example, a running batch without a workflow. `counted` has the number of differences
    that were found, and the number of differences that were not repaired. Before the first check, both
    numbers are 0, and `at` is the creation time of the table.
    """

    counted: DifferenceCount
    at: datetime


class ConsistencyChecksTable(Protocol):
    async def record(self, counts: Mapping[str, DifferenceCount], at: datetime) -> None:
        """Store the result of a consistency check that ended at the time `at`.

        `counts` has the numbers of differences for each kind of difference. A difference is, for example, a
        running batch without a workflow. If the result of a later check is already stored, nothing changes.
        """
        ...

    async def latest(self) -> Mapping[str, RecordedConsistencyCheck]:
        """Return the numbers of differences that the latest consistency check found, by kind of difference.

        A kind of difference is, for example, a batch without a workflow.
        """
        ...


@dataclass(frozen=True)
class ConsistencyCheckQueries:
    record: str
    latest: str


class PostgresConsistencyChecks(ConsistencyChecksTable):
    def __init__(self, connections: ConnectionPool) -> None:
        self._connections = connections
        self._sql = queries(ConsistencyCheckQueries, "consistency_checks")

    async def record(self, counts: Mapping[str, DifferenceCount], at: datetime) -> None:
        kinds = sorted(counts)
        found, left = [counts[kind].found for kind in kinds], [counts[kind].left for kind in kinds]
        await self._connections.execute(self._sql.record, kinds, found, left, at)

    async def latest(self) -> Mapping[str, RecordedConsistencyCheck]:
        rows = await self._connections.fetch(self._sql.latest)
        return {
            row["kind"]: RecordedConsistencyCheck(
                DifferenceCount(found=row["found"], left=row["unrepaired"]), row["checked_at"]
            )
            for row in rows
        }
