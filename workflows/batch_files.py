"""Write the files of a batch and set its final status.

The status is set on time, even if the files can only be written later.
"""

import contextlib
from collections.abc import Callable
from typing import TypeVar

from temporalio import workflow
from temporalio.exceptions import ActivityError

with workflow.unsafe.imports_passed_through():
    from batchwright.contracts.temporal_payloads.batch import BatchOrder, BatchResult
    from batchwright.contracts.temporal_payloads.finalization import (
        EndRequest,
        FinalizationActivities,
        FinalizeRequest,
        FinalizeResult,
        LifecycleActivities,
    )
    from batchwright.contracts.temporal_payloads.ingestion import IngestResult
    from batchwright.contracts.terms import BatchStatus
    from batchwright.workflows.batch_end_reason import EndReason
    from batchwright.workflows.failures import abandoned, gave_up_on_storage
    from batchwright.workflows.options import (
        FILES_TIMEOUT,
        end_options,
        finalization_options,
    )
    from batchwright.workflows.steps import run_until

T = TypeVar("T")


class BatchFiles:
    """The last part of a batch's workflow: it runs the activities to write the files and to end the batch.

    Args:
        enter: called with each new status of the batch.

    Attributes:
        are_pending: True if the batch has its final status, and only its files are missing.
        are_abandoned: True if an operator has given up the files, so that they are not written.
        failed_by_code: number of failed lines by error code; empty until the files are written.
    """

    def __init__(
        self, order: BatchOrder, end_reason: EndReason, enter: Callable[[BatchStatus], None]
    ) -> None:
        self._order, self._end_reason, self._enter = order, end_reason, enter
        self._is_finalizing = False
        self.are_pending = False
        self.are_abandoned = False
        self.failed_by_code: dict[str, int] = {}

    def abandon(self) -> None:
        """End the batch without files, because an operator has given them up.

        The call has an effect only in two cases: the files are being written, or the batch has its final
        status but its files are still missing.
        """
        self.are_abandoned = self._is_finalizing or self.are_pending

    async def finalize(self, ingested: IngestResult) -> BatchResult:
        """Write the output files, set the batch's final status, and return the batch's result.

        A cancel has an effect until the final status is set. If the files cannot be written, or if an
        operator gives them up (`abandon`), the batch ends without files.
        """
        self._is_finalizing = True
        status = self._end_reason.status or BatchStatus.COMPLETED
        if status == BatchStatus.COMPLETED:
            self._enter(BatchStatus.FINALIZING)
        try:
            written = await self._write_files(ingested, status)
        except ActivityError as error:
            self.report_failure("The results could not be written", error)
            return await self.end_without_files(ingested.total, keep_results=True)
        if written is None:
            self._end_reason.add_error(abandoned(results_kept=True))
            return await self.end_without_files(ingested.total, keep_results=True)
        self.failed_by_code = written.failed_by_code
        return BatchResult(
            status=written.status,
            total=ingested.total,
            completed=written.completed,
            failed=written.failed,
            usage=written.usage,
        )

    async def _write_files(self, ingested: IngestResult, status: BatchStatus) -> FinalizeResult | None:
        """Write the files, and return the activity's result.

        Return None if an operator gives up the files (`abandon`).
        """
        if status == BatchStatus.COMPLETED:
            step = self._start_finalization(ingested, status, waits_for_storage=True)
            written = await run_until(
                step,
                lambda: self.are_abandoned or self._end_reason.status == BatchStatus.CANCELLED,
            )
            if written is not None or self.are_abandoned:
                return written
            status = BatchStatus.CANCELLED
        return await self._write_files_of_early_end(ingested, status)

    async def _write_files_of_early_end(
        self, ingested: IngestResult, status: BatchStatus
    ) -> FinalizeResult | None:
        """Write the files of a batch that expired, failed or was cancelled. Return the activity's result.

        If writing takes longer than FILES_TIMEOUT, or if storage is unavailable, first set the batch's final
        status, and write the files later. Return None if an operator gives up the files (`abandon`).
        """
        step = self._start_finalization(ingested, status, waits_for_storage=self.are_pending)
        if not self.are_pending:
            await self.end_in_time(status, step)
        try:
            return await run_until(step, lambda: self.are_abandoned)
        except ActivityError as error:
            if not gave_up_on_storage(error):
                raise
        step = self._start_finalization(ingested, status, waits_for_storage=True)
        return await run_until(step, lambda: self.are_abandoned)

    def _start_finalization(
        self, ingested: IngestResult, status: BatchStatus, *, waits_for_storage: bool
    ) -> workflow.ActivityHandle[FinalizeResult]:
        return workflow.start_activity_method(
            FinalizationActivities.finalize,
            FinalizeRequest(
                order=self._order,
                ingest_prefix=ingested.ingest_prefix,
                models=ingested.models,
                total=ingested.total,
                status=status,
                missing_line_code=self._end_reason.code_of_missing_lines(status),
                errors=self._end_reason.errors,
            ),
            **finalization_options(self._order, status, waits_for_storage=waits_for_storage),
        )

    async def end_in_time(self, status: BatchStatus, step: workflow.ActivityHandle[T]) -> None:
        """Wait for an activity. If it takes too long, set the batch's final status before the files exist.

        - If the activity takes longer than FILES_TIMEOUT, or fails because storage is unavailable, set the
          status and return. The files are written later.
        - If the activity ends in any other way, return and set no status.
        - If an operator gives up the files (`abandon`), return immediately and set no status.

        Args:
            status: the final status.
            step: the running ingestion or finalization. It is not cancelled.
        """
        with contextlib.suppress(TimeoutError):
            await workflow.wait_condition(
                lambda: step.done() or self.are_abandoned,
                timeout=FILES_TIMEOUT,
                timeout_summary="then the batch ends, its files follow",
            )
        if self.are_abandoned:
            return
        if step.done() and (step.cancelled() or not gave_up_on_storage(step.exception())):
            return
        row = await workflow.execute_activity_method(
            LifecycleActivities.end,
            EndRequest(order=self._order, status=status, errors=self._end_reason.errors, files_pending=True),
            **end_options(self._order, status, "its files follow"),
        )
        if row == status:
            self.are_pending = True
            self._enter(status)

    async def end_without_files(self, total: int, *, keep_results: bool = False) -> BatchResult:
        status = self._end_reason.status or BatchStatus.FAILED
        row = await workflow.execute_activity_method(
            LifecycleActivities.end,
            EndRequest(
                order=self._order, status=status, errors=self._end_reason.errors, keep_results=keep_results
            ),
            **end_options(self._order, status),
        )
        return BatchResult(status=row, total=total)

    def report_failure(self, what: str, error: ActivityError) -> None:
        """Report an activity's failure to the tenant, and fail the batch if it has no final status yet.

        `what` is the start of the sentence for the tenant, such as "The results could not be written".
        """
        if not self.are_pending:
            self._end_reason.status = BatchStatus.FAILED
        self._end_reason.add_failure(what, error)
