"""The retention workflow: delete expired data, one kind after the other, in activities of limited length.

If one kind fails, the workflow continues with the next kind.
"""

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError, is_cancelled_exception

with workflow.unsafe.imports_passed_through():
    from batchwright.contracts.errors import Failure
    from batchwright.contracts.temporal_payloads.retention import (
        WORKFLOW,
        DeletionCount,
        RetentionActivities,
        RetentionKind,
        RetentionOrder,
        RetentionResult,
        SweepPosition,
        SweepRequest,
    )
    from batchwright.workflows.failures import cause_of
    from batchwright.workflows.options import retention_options


@workflow.defn(name=WORKFLOW)
class RetentionWorkflow:
    """The workflow that deletes expired data. Several runs may overlap safely."""

    @workflow.init
    def __init__(self, order: RetentionOrder) -> None:
        self._order = order
        self._now = order.now or workflow.now()
        self._kinds = list(order.kinds)
        self._position = order.position
        self._deleted = {deleted.kind: deleted for deleted in order.deleted}
        self._errors = list(order.errors)
        self._turns = 0

    @workflow.run
    async def run(self, order: RetentionOrder) -> RetentionResult:
        """Delete the expired data of all kinds in `order`, and return how much was deleted.

        If `order` is a dry run, only count the data. If data of one kind cannot be deleted, continue with the
        next kind.

        Raises:
            ApplicationError (RETENTION_FAILED): data of at least one kind could not be deleted. The error is
                raised after all kinds were tried.
        """
        while self._kinds:
            if self._turns >= order.max_turns or workflow.info().is_continue_as_new_suggested():
                workflow.continue_as_new(self._next_order())
            await self._turn(self._kinds[0])
        deleted = list(self._deleted.values())
        result = RetentionResult(deleted=deleted, errors=self._errors, dry_run=order.dry_run)
        if any(count.failures for count in deleted):
            raise ApplicationError(
                _summary(result), result, type=Failure.RETENTION_FAILED, non_retryable=True
            )
        return result

    async def _turn(self, kind: RetentionKind) -> None:
        before = self._deleted.setdefault(kind, DeletionCount(kind=kind))
        request = SweepRequest(
            kind=kind, now=self._now, position=self._position, so_far=before, dry_run=self._order.dry_run
        )
        self._turns += 1
        try:
            result = await workflow.execute_activity_method(
                RetentionActivities.sweep, request, **retention_options(kind)
            )
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            self._errors.append(f"{kind}: {cause_of(error)}")
            self._add(DeletionCount(kind=kind, failures=1))
            self._continue_at(None)
            return
        self._add(result.deleted)
        self._continue_at(result.position)

    def _add(self, deleted: DeletionCount) -> None:
        before = self._deleted[deleted.kind]
        self._deleted[deleted.kind] = DeletionCount(
            kind=deleted.kind,
            count=before.count + deleted.count,
            bytes=before.bytes + deleted.bytes,
            failures=before.failures + deleted.failures,
        )

    def _continue_at(self, position: SweepPosition | None) -> None:
        """Record where the next activity continues to delete data of the current kind.

        Args:
            position: None if the deletion of this kind has ended or failed. The next kind then follows.
        """
        if position is None:
            del self._kinds[0]
        self._position = position or SweepPosition()

    def _next_order(self) -> RetentionOrder:
        return RetentionOrder(
            kinds=self._kinds,
            dry_run=self._order.dry_run,
            now=self._now,
            position=self._position,
            deleted=list(self._deleted.values()),
            errors=self._errors,
            max_turns=self._order.max_turns,
        )


def _summary(result: RetentionResult) -> str:
    counts = ", ".join(f"{deleted.kind} {deleted.failures}" for deleted in result.deleted if deleted.failures)
    reasons = "; ".join(result.errors)
    return f"Retention failed ({counts}){': ' + reasons if reasons else ''}"
