"""Queries over the live batches of all tenants.

The results are shown as metrics. Workers also use them to choose the task queues of Temporal that they poll.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from batchwright.contracts.terms import BatchStatus, HoldKind
from batchwright.database.pool import ConnectionPool
from batchwright.database.sql import queries
from batchwright.database.tables.batches.waiting_reasons import WaitingSource


@dataclass(frozen=True)
class LiveBatch:
    """Counts and times of a batch that has not ended.

    `status` is the status that users see, such as `cancelling` after a cancel request. `entered_at` is the
    time when the batch entered this status. If a client has set a start time for the batch, `entered_at` is
    this start time as long as the batch is in validation.
    """

    tenant: str
    id: str
    status: BatchStatus
    created_at: datetime  # or `start_at`, if the batch has one
    deadline: datetime
    entered_at: datetime  # when the batch entered its status
    lines: int  # lines that ingestion left to the workers; 0 before ingestion has ended
    settled: int  # how many of `lines` have a final result
    in_progress_at: datetime | None  # end of ingestion


@dataclass(frozen=True)
class ModelBacklog:
    """Number of lines of one batch and one model that still need a final result. The batch is in progress."""

    tenant: str
    batch_id: str
    model: str
    lines_left: int
    deadline: datetime
    priority: int
    created_at: datetime  # or `start_at`, if the batch has one
    is_paused: bool = False  # True if a user has paused the batch
    held: HoldKind | None = None  # set if an operator has stopped the tenant or the model


@dataclass(frozen=True)
class ModelDeadline:
    """Number of lines for one model, over all batches, that need a final result by the time `deadline`."""

    model: str
    deadline: datetime
    lines: int


class LiveBatches(Protocol):
    """Queries over the live batches of all tenants. A batch is live as long as it has not ended.

    Only operators and workers may see the results.
    """

    async def live(self) -> list[LiveBatch]:
        """Return all batches that have not ended, with their counts and times."""
        ...

    async def backlogs(self, now: datetime) -> list[ModelBacklog]:
        """Return how many lines still need a final result, for each batch in progress and each of its models.

        Models without such lines, and batches that are being cancelled, are left out. Batches that a user has
        paused or an operator has stopped are included: see `is_paused` and `held` in the result.
        """
        ...

    async def awaited_models(self, now: datetime) -> dict[str, dict[str, int]]:
        """Return the models for which batches in progress have lines, in the order in which workers poll.

        The value for a model is a dict. For each tenant, the dict has the number of batches that may now send
        lines for this model (`lines_due` lists the conditions). If there is no such batch, the dict is empty.

        Models with an empty dict come last. The order of the other models is fair to tenants: the first model
        of every tenant comes before the second model of any tenant. Within a tenant, models of older batches
        come first.
        """
        ...

    async def lines_left(self) -> dict[str, int]:
        """Return how many lines still need a final result, by model, over all batches that have not ended.

        Models without such lines are left out.
        """
        ...

    async def lines_due(self, now: datetime) -> list[ModelDeadline]:
        """Return how many lines still need a final result, by model and deadline.

        Only batches whose lines may be sent now are counted. A batch is left out in these cases:

        - It is paused, stopped by an operator, or being cancelled.
        - Its deadline has passed.
        - The sending of its lines has not begun, or has ended.
        """
        ...


@dataclass(frozen=True)
class FleetQueries:
    live: str
    backlogs: str
    awaited_models: str
    lines_left: str
    lines_due: str


class PostgresLiveBatches(LiveBatches):
    def __init__(self, connections: ConnectionPool) -> None:
        self._connections = connections
        self._sql = queries(FleetQueries, "fleet")

    async def live(self) -> list[LiveBatch]:
        async with self._connections.session() as session:
            records = await session.fetch(self._sql.live)
        # Parsed without validation: there may be thousands of records several times a minute.
        return [
            LiveBatch(
                tenant=each["tenant"],
                id=each["id"],
                status=BatchStatus(each["shown"]),
                created_at=each["created_at"],
                deadline=each["deadline"],
                entered_at=each["entered_at"],
                lines=each["lines"],
                settled=each["settled"],
                in_progress_at=each["in_progress_at"],
            )
            for each in records
        ]

    async def backlogs(self, now: datetime) -> list[ModelBacklog]:
        async with self._connections.session() as session:
            records = await session.fetch(self._sql.backlogs, now, WaitingSource.USER)
        return [
            ModelBacklog(
                tenant=each["tenant"],
                batch_id=each["id"],
                model=each["model"],
                lines_left=each["lines_left"],
                deadline=each["deadline"],
                priority=each["priority"],
                created_at=each["created_at"],
                is_paused=each["is_paused"],
                held=each["held"] and HoldKind(each["held"]),
            )
            for each in records
        ]

    async def awaited_models(self, now: datetime) -> dict[str, dict[str, int]]:
        async with self._connections.session() as session:
            records = await session.fetch(self._sql.awaited_models, now, WaitingSource.USER)
        return {
            record["model"]: dict(zip(record["tenants"], record["batches"], strict=True))
            for record in records
        }

    async def lines_left(self) -> dict[str, int]:
        async with self._connections.session() as session:
            records = await session.fetch(self._sql.lines_left)
        return {record["model"]: record["lines_left"] for record in records}

    async def lines_due(self, now: datetime) -> list[ModelDeadline]:
        async with self._connections.session() as session:
            records = await session.fetch(self._sql.lines_due, now, WaitingSource.USER)
        return [ModelDeadline(each["model"], each["deadline"], each["lines"]) for each in records]
