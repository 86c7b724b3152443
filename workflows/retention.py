"""Retention: one kind after the other, in turns; what fails keeps no other kind from its turn."""

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError, is_cancelled_exception

with workflow.unsafe.imports_passed_through():
    from batchwright.contracts.errors import Failure
    from batchwright.contracts.retention import (
        WORKFLOW,
        Gone,
        Kind,
        Place,
        RetentionActivities,
        RetentionOrder,
        RetentionResult,
        SweepRequest,
    )
    from workflows.failures import cause_of
    from workflows.options import retention


@workflow.defn(name=WORKFLOW)
class RetentionWorkflow:
    """Any number may run at once: whatever a turn deletes may be gone already."""

    @workflow.init
    def __init__(self, order: RetentionOrder) -> None:
        self._order = order
        self._now = order.now or workflow.now()
        self._left = list(order.left)
        self._place = order.place
        self._gone = {gone.kind: gone for gone in order.gone}
        self._errors = list(order.errors)
        self._turns = 0

    @workflow.run
    async def run(self, order: RetentionOrder) -> RetentionResult:
        """Raises ApplicationError Failure.RETENTION_FAILED at the end, if anything could not be deleted."""
        while self._left:
            if self._is_long():
                workflow.continue_as_new(self._carried())
            await self._turn(self._left[0])
        gone = list(self._gone.values())
        result = RetentionResult(gone=gone, errors=self._errors, dry_run=order.dry_run)
        if any(one.failures for one in gone):
            raise ApplicationError(
                _summary(result), result, type=Failure.RETENTION_FAILED, non_retryable=True
            )
        return result

    async def _turn(self, kind: Kind) -> None:
        before = self._gone.setdefault(kind, Gone(kind=kind))
        request = SweepRequest(
            kind=kind, now=self._now, place=self._place, so_far=before, dry_run=self._order.dry_run
        )
        self._turns += 1
        try:
            result = await workflow.execute_activity_method(
                RetentionActivities.sweep, request, **retention(kind)
            )
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            self._errors.append(f"{kind}: {cause_of(error)}")
            self._add(Gone(kind=kind, failures=1))
            self._go_on(None)
            return
        self._add(result.gone)
        self._go_on(result.place)

    def _add(self, gone: Gone) -> None:
        before = self._gone[gone.kind]
        self._gone[gone.kind] = Gone(
            kind=gone.kind,
            count=before.count + gone.count,
            bytes=before.bytes + gone.bytes,
            failures=before.failures + gone.failures,
        )

    def _go_on(self, place: Place | None) -> None:
        """To the next turn of this kind, or the next kind."""
        if place is None:
            del self._left[0]
        self._place = place or Place()

    def _is_long(self) -> bool:
        return self._turns >= self._order.turns or workflow.info().is_continue_as_new_suggested()

    def _carried(self) -> RetentionOrder:
        return RetentionOrder(
            left=self._left,
            dry_run=self._order.dry_run,
            now=self._now,
            place=self._place,
            gone=list(self._gone.values()),
            errors=self._errors,
            turns=self._order.turns,
        )


def _summary(result: RetentionResult) -> str:
    counts = ", ".join(f"{gone.kind} {gone.failures}" for gone in result.gone if gone.failures)
    reasons = "; ".join(result.errors)
    return f"Retention failed ({counts}){': ' + reasons if reasons else ''}"
