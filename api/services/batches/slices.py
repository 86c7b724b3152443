"""Shows the state of each slice of a batch, since when it has this state, and why it waits.

A slice is a part of a batch's lines of one model. One worker at a time processes a slice.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime

from batchwright.api.dependencies import ApiDependencies
from batchwright.contracts.api_objects.operator import (
    BatchSlicesObject,
    PendingObject,
    SliceObject,
    StepObject,
)
from batchwright.contracts.temporal_names import is_run_of_model
from batchwright.contracts.temporal_payloads.ingestion import ModelShare
from batchwright.database.records import BatchRow
from batchwright.database.tables.batches.progress import SettledLines
from batchwright.rules.stored_objects import object_keys
from batchwright.storage.base import StorageError
from batchwright.temporal.pending_activities import PendingActivity

_MODELS_AT_ONCE = 16
_STORAGE_SECONDS = 5.0  # for the number of segments, which is not worth a longer wait
_NOTHING = SettledLines(0, 0)


class BatchSlices:
    """A reader of what Temporal, the database and the storage know about the slices of a batch."""

    def __init__(self, deps: ApiDependencies) -> None:
        self._temporal, self._storage = deps.temporal, deps.storage
        self._progress = deps.database.progress

    async def read(self, row: BatchRow) -> BatchSlicesObject:
        """Return the slices of a batch that run or wait for a worker now, sorted by model and number.

        The result also contains the other activities of the batch's workflow that have not ended, such as
        reading the input.

        Raises:
            TemporalUnavailable, DatabaseUnavailable: the slices cannot be read.
        """
        tenant, batch_id = row.order.tenant, row.order.batch_id
        steps = await self._temporal.pending(batch_id)
        ingested = await self._temporal.ingested(batch_id)
        shares = [] if ingested is None else ingested.models
        runs = await self._temporal.children(batch_id)
        settled = await self._progress.slices(tenant, batch_id)
        busy = asyncio.Semaphore(_MODELS_AT_ONCE)

        async def slices_of(share: ModelShare) -> list[SliceObject]:
            async with busy:
                return await self._slices(row, share, runs, settled)

        slices = await asyncio.gather(*map(slices_of, shares))
        return BatchSlicesObject(
            steps=[StepObject(step=each.name, **dict(_shown(each))) for each in steps],
            data=[each for of_model in slices for each in of_model],
        )

    async def _slices(
        self,
        row: BatchRow,
        share: ModelShare,
        runs: Sequence[str],
        settled: Mapping[tuple[str, int], SettledLines],
    ) -> list[SliceObject]:
        own_runs = [run for run in runs if is_run_of_model(run, share.safe_model)]
        pending = [each for run in own_runs for each in await self._temporal.pending(run)]
        if not pending:
            return []
        segments = await self._count_segments(row, share)
        found: list[SliceObject] = []
        for each in sorted(pending, key=_place):
            number = each.slice_number
            lines = _NOTHING if number is None else settled.get((share.model, number), _NOTHING)
            found.append(
                SliceObject(
                    model=share.model,
                    number=number,
                    completed=lines.completed,
                    failed=lines.failed,
                    segments=None if segments is None or number is None else segments[number],
                    **dict(_shown(each)),
                )
            )
        return found

    async def _count_segments(self, row: BatchRow, share: ModelShare) -> Counter[int] | None:
        """Count the segments (stored objects with results) of each slice of a model. Return the counts by
        slice number.

        Return None if the storage is unavailable or does not respond in time.

        Args:
            share: the model, with the number of its lines and slices in this batch.
        """
        order, counts = row.order, Counter[int]()
        prefix = f"{object_keys.results_root(order.tenant, order.batch_id)}{share.safe_model}/"
        try:
            async with asyncio.timeout(_STORAGE_SECONDS):
                async for found in self._storage.list(prefix):
                    counts[object_keys.number_of_slice(found.key)] += 1
        except (StorageError, TimeoutError):
            return None
        return counts


def _shown(activity: PendingActivity) -> PendingObject:
    return PendingObject(
        state=activity.state,
        queue=activity.queue,
        worker=activity.worker or None,
        since=int(activity.state_since.timestamp()),
        attempts=activity.attempt,
        heartbeat_at=_seconds(activity.heartbeat_at),
        next_attempt_at=_seconds(activity.next_attempt_at),
        last_failure=activity.last_failure or None,
    )


def _place(activity: PendingActivity) -> tuple[bool, int]:
    return activity.slice_number is None, activity.slice_number or 0


def _seconds(at: datetime | None) -> int | None:
    return None if at is None else int(at.timestamp())
