"""Reads, cancels, pauses, resumes and abandons one batch, for its tenant and for operators.

To abandon a batch means to stop writing its files.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence

from batchwright.api.batch_rows import BatchRows
from batchwright.api.dependencies import ApiDependencies
from batchwright.api.errors import batch_not_found, conflict, invalid_value, rate_limited
from batchwright.api.schemas.openai_objects import batch_object, cost_of
from batchwright.api.schemas.shown_forecasts import forecast_object
from batchwright.api.services.batches.shown_waiting_reasons import PAUSED, BatchWaitingReasons, PolledQueues
from batchwright.api.temporal_gateway import RunMissing
from batchwright.contracts.api_objects.openai import BatchObject
from batchwright.contracts.terms import BatchStatus
from batchwright.database.records import BatchRow
from batchwright.database.tables.batches.waiting_reasons import WaitingRow
from batchwright.rules import batch_states
from batchwright.rules.batch_states import CancelEffect
from batchwright.rules.ids import is_batch_id
from batchwright.rules.pause_limit import (
    FREE_CHANGES,
    allowed_pause_changes,
    change_interval,
    seconds_to_next_pause_change,
)
from batchwright.rules.token_costs import amount_of
from batchwright.temporal import TemporalUnavailable
from batchwright.temporal.errors import TemporalOutcomeUnknown


class BatchControl:
    """The service that reads and controls batches.

    Each method that has the parameter `batch_id` raises ApiError (404) if the tenant has no such batch.
    """

    def __init__(self, deps: ApiDependencies) -> None:
        self._clock, self._temporal = deps.clock, deps.temporal
        self._batches, self._rows = deps.database.batches, BatchRows(deps)
        self._waiting = BatchWaitingReasons(deps)

    async def row(self, tenant: str, batch_id: str) -> BatchRow:
        row = await self._rows.find(tenant, batch_id)
        if row is None:
            raise batch_not_found(batch_id)
        return row

    async def get(self, tenant: str, batch_id: str) -> BatchObject:
        """Return the batch object. For a live batch, the object includes why it waits, and a forecast of its
        end.
        """
        if not is_batch_id(batch_id):
            raise batch_not_found(batch_id)
        read = self._batches.get_with_reasons(tenant, batch_id, self._clock())
        found, polled = await asyncio.gather(read, self._waiting.polled_queues(), return_exceptions=True)
        if isinstance(found, BaseException):
            raise found
        row, reported = found or (await self.row(tenant, batch_id), [])
        if row.status.is_terminal:
            return batch_object(row)
        if isinstance(polled, BaseException):
            raise polled
        return self.shown(row, reported, polled)

    async def page(self, rows: Sequence[BatchRow]) -> list[BatchObject]:
        """Return the batch objects for database rows, in the same order.

        For live batches, the objects include why they wait, and a forecast of their end.
        """
        live = [row for row in rows if not row.status.is_terminal]
        if not live:
            return [batch_object(row) for row in rows]
        reported, polled = await asyncio.gather(self._waiting.reported(live), self._waiting.polled_queues())
        return [self.shown(row, reported[row.order.tenant, row.order.batch_id], polled) for row in rows]

    async def polled_queues(self) -> PolledQueues:
        return await self._waiting.polled_queues()

    def shown(self, row: BatchRow, reported: list[WaitingRow], polled: PolledQueues) -> BatchObject:
        """Return the batch object for a database row.

        For a live batch, the object includes why it waits, and a forecast of its end.

        Args:
            reported: waiting reasons of the batch that are stored in the database.
            polled: the task queues that workers poll now, as returned by `polled_queues`.
        """
        if row.status.is_terminal:
            return batch_object(row)
        waiting = self._waiting.of_batch(row, reported, polled)
        paused = any(each.model is None and each.reason == PAUSED for each in waiting)
        forecast = None if paused else forecast_object(row, self._clock())
        return batch_object(row, paused=paused, waiting=waiting, forecast=forecast)

    async def cancel(self, tenant: str, batch_id: str) -> BatchObject:
        """Cancel a batch. If the batch is already cancelled or being cancelled, nothing changes.

        Raises:
            ApiError: the batch has ended without being cancelled (409).
        """
        row = await self.row(tenant, batch_id)
        if _must_cancel(row):
            try:
                await self._temporal.cancel(batch_id)
            except RunMissing:  # the batch may have ended after the row was read
                row = await self.row(tenant, batch_id)
                if row.status in batch_states.LIVE_STATES:
                    raise
            else:
                noted = await self._batches.request_cancel(tenant, batch_id, self._clock())
                row = noted or row
            _must_cancel(row)
        return batch_object(row)

    async def pause(self, tenant: str, batch_id: str) -> BatchObject:
        """Pause a batch, so that none of its lines are sent, and return the batch.

        Raises:
            ApiError: the batch has ended or is being cancelled (409), or it was paused and resumed too often
                (429).
        """
        row, change = await self._claim_pause_or_resume(tenant, batch_id, "pause")
        await self._signal_live(self._temporal.pause, row, change, "pause")
        await self._waiting.report_paused(row, change)
        return batch_object(row, paused=True)

    async def resume_paused(self, tenant: str, batch_id: str) -> BatchObject:
        """Resume a paused batch. If the batch is not paused, it continues unchanged.

        Raises:
            ApiError: the batch has ended or is being cancelled (409), or it was paused and resumed too often
                (429).
        """
        row, change = await self._claim_pause_or_resume(tenant, batch_id, "resume")
        await self._signal_live(self._temporal.resume, row, change, "resume")
        await self._waiting.clear_paused(row, change)
        return batch_object(row, paused=False)

    async def _claim_pause_or_resume(self, tenant: str, batch_id: str, verb: str) -> tuple[BatchRow, int]:
        """Check that a batch may be paused or resumed once more. Return the batch's row and a change number.

        The pauses and resumes of a batch are its changes. They are numbered from 1. Call this method before
        you send a change as a signal to the batch's workflow.

        The number of changes is limited, because each signal makes the workflow's history longer. A change
        without effect counts, too, such as the pause of a paused batch.

        Signals can arrive in the wrong order. If the workflow has received a change with a greater number in
        the last minute, the workflow ignores this change. The database always keeps the greatest number.

        Args:
            verb: name of the operation in error messages: "pause" or "resume".

        Raises:
            ApiError: the batch has ended or is being cancelled (409), or it was paused and resumed too often
                (429).
        """
        row = await self.row(tenant, batch_id)
        check_live(row, verb)
        order, now = row.order, self._clock()
        allowed = allowed_pause_changes(order, now)
        change = await self._batches.claim_pause_or_resume(tenant, batch_id, allowed)
        if change is None:
            check_live(await self.row(tenant, batch_id), verb)  # it may have ended meanwhile
            seconds = seconds_to_next_pause_change(order, now)
            message = (
                f"The batch was paused and resumed too often: {FREE_CHANGES} changes are allowed, and one "
                f"more every {math.ceil(change_interval(order).total_seconds())} s since it was created. "
                f"Send this one again in {seconds} s. You can cancel the batch at any time."
            )
            raise rate_limited(message, FREE_CHANGES, seconds=seconds)
        return row, change

    async def _signal_live(
        self, signal: Callable[[str, int], Awaitable[None]], row: BatchRow, change: int, verb: str
    ) -> None:
        """Send a pause or resume to the workflow of a batch.

        The number of pauses and resumes of a batch is limited. If the workflow did not receive the signal,
        this pause or resume does not count towards the limit. If Temporal did not answer in time, it counts,
        because the workflow may have received the signal.

        Args:
            signal: function that sends the signal. It is called with the batch id and with `change`.
            row: row of the batch, which was live when this row was read.
            change: number of this pause or resume, from `_claim_pause_or_resume`.
            verb: name of the operation in error messages: "pause" or "resume".

        Raises:
            ApiError: after the row was read, the batch has ended or was cancelled (409), or the batch was
                deleted (404).
            RunMissing: the batch has no running workflow, although its row says that it is live.
            TemporalOutcomeUnknown: Temporal did not answer in time.
            TemporalUnavailable: Temporal refused the signal, or could not be reached.
            DatabaseUnavailable: the workflow did not receive the signal, and the database does not respond.
        """
        tenant, batch_id = row.order.tenant, row.order.batch_id
        try:
            await signal(batch_id, change)
        except TemporalOutcomeUnknown:
            raise
        except (RunMissing, TemporalUnavailable) as error:
            await self._batches.release_pause_or_resume(tenant, batch_id)
            if isinstance(error, RunMissing):
                check_live(await self.row(tenant, batch_id), verb)
            raise

    async def change_max_cost(self, tenant: str, batch_id: str, max_cost: str | None) -> BatchObject:
        """Change the maximum cost of a batch in progress. None removes the limit.

        Raises:
            ApiError: the batch is not in progress, is being cancelled or has reached its maximum cost (409).
                The batch has already cost more than `max_cost` (400). A model with unsent lines has no
                prices, and `max_cost` is not None (400).
        """
        row = await self.row(tenant, batch_id)
        if max_cost is not None:
            _check_max_cost(row, max_cost)
        changed = await self._batches.set_max_cost(tenant, batch_id, max_cost)
        row = await self.row(tenant, batch_id)
        if not changed and row.cap_reached_at is not None:
            raise conflict(
                f"Cannot change the cap on the cost: the batch has reached its cap of {row.order.max_cost} "
                "and ends. Then resume it with a higher `max_cost` to send its other lines."
            )
        if not changed:
            raise conflict(
                f"Cannot change the cap on the cost of a batch with status '{_visible_status(row)}'."
            )
        return batch_object(row)

    async def abandon(self, tenant: str, batch_id: str) -> BatchObject:
        """Stop writing the files of a batch. The batch then ends within seconds, without files.

        Use this if the files cannot be written. The results of the batch stay in storage.

        Raises:
            ApiError: the files of the batch are not being written (409).
        """
        row = await self.row(tenant, batch_id)
        if not (row.files_pending or await self._is_finalizing(row)):
            remedy = "" if row.status.is_terminal else " Cancel it to end it."
            raise conflict(
                f"Cannot abandon the files of a batch with status '{_visible_status(row)}': "
                f"they are not being written.{remedy}"
            )
        await self._temporal.abandon(batch_id)
        return batch_object(row)

    async def _is_finalizing(self, row: BatchRow) -> bool:
        """Return True if a live batch is writing its result files, or waits for a worker that writes them.

        The workflow's status is `finalizing` while it waits for this worker, and while the worker writes. The
        status of the batch's row is `finalizing` only from the time when the worker begins to write. If the
        row's status is `in_progress`, this method therefore reads the workflow's status, too.

        If the batch expired, failed or was cancelled before the writing, its workflow never has the status
        `finalizing`. The result is then False.
        """
        if row.status is not BatchStatus.IN_PROGRESS:
            return row.status is BatchStatus.FINALIZING
        state = await self._temporal.state(row.order.batch_id)
        return state is not None and state.status is BatchStatus.FINALIZING


def _check_max_cost(row: BatchRow, max_cost: str) -> None:
    # Models without lines to send, such as unknown ones, cost nothing more. Duplicates are not sent.
    unsent = (
        part.model for part in row.models if part.completed + part.failed < part.lines - part.duplicates
    )
    unpriced = next((model for model in unsent if model not in row.prices), None)
    cost = cost_of(row)
    if row.status is BatchStatus.IN_PROGRESS and unpriced is not None:
        message = (
            f"Invalid value for 'max_cost': the model '{unpriced}' of the batch had no prices when it began."
        )
        raise invalid_value("max_cost", message)
    if cost is not None and amount_of(max_cost) < amount_of(cost.amount):
        message = (
            f"Invalid value for 'max_cost': the batch has cost {cost.amount} {cost.currency} already, which "
            f"is more than {max_cost}. Use a higher cap, or cancel the batch."
        )
        raise invalid_value("max_cost", message)


def check_live(row: BatchRow, verb: str) -> None:
    """Check that the batch has not ended and is not being cancelled.

    Args:
        verb: name of the operation in the error message, such as "pause".

    Raises:
        ApiError: the batch has ended or is being cancelled (409).
    """
    status = _visible_status(row)
    if status not in batch_states.LIVE_STATES:
        raise conflict(f"Cannot {verb} a batch with status '{status}'.")


def _must_cancel(row: BatchRow) -> bool:
    """Return True if the batch is live and no cancel was requested. Return False if the batch is already
    cancelled or being cancelled.

    Raises:
        ApiError: the batch has ended without being cancelled (409).
    """
    effect = batch_states.cancel_effect(_visible_status(row))
    if effect is CancelEffect.REFUSED:
        raise conflict(f"Cannot cancel a batch with status '{row.status}'.")
    return effect is CancelEffect.STOPS


def _visible_status(row: BatchRow) -> BatchStatus:
    return batch_states.visible_status(row.status, cancel_requested=row.cancel_requested_at is not None)
