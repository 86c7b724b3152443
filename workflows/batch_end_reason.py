"""The reason why a batch ends early.

The reason consists of the batch's status, the errors that the tenant sees, and the error code that lines
without a result get. This file only records the reason. `batch.py` receives the cancel signal and watches the
deadline.
"""

from temporalio import workflow
from temporalio.exceptions import ActivityError

with workflow.unsafe.imports_passed_through():
    from batchwright.contracts.errors import SYSTEM_ERROR, LineCode
    from batchwright.contracts.terms import BatchStatus, ValidationError
    from batchwright.workflows.failures import cause_of, code_for_tenant, sentence_for_tenant

_MISSING_LINE_CODES = {
    BatchStatus.EXPIRED: LineCode.BATCH_EXPIRED,
    BatchStatus.CANCELLED: LineCode.BATCH_CANCELLED,
}
_OVER_CAP = (
    "The batch reached the cap on its cost, `x_batchwright.max_cost`. The lines that were not sent have the "
    "error `budget_exceeded`; resume the batch with a higher cap to send them."
)


class EndReason:
    """The reason why a batch ends early, for example a cancel or its deadline.

    The first recorded reason sets the status. Later reasons have no effect. Two events change the status:

    - If ingestion or finalization fails before the batch has its final status, the status becomes `failed`.
    - If all lines have results although the deadline has passed, `withdraw_deadline` removes the status
      `expired`.

    Attributes:
        status: status with which the batch ends early; None if it is not ending early.
        errors: errors of the batch for the tenant.
    """

    def __init__(self) -> None:
        self.status: BatchStatus | None = None
        self.errors: list[ValidationError] = []
        self._is_over_cap = False

    def record(self, status: BatchStatus, error: str | None = None, code: str = SYSTEM_ERROR) -> None:
        """Record the status and an error for the tenant, unless the batch is already ending early."""
        if self.status is None:
            self.status = status
            if error is not None:
                self.add_error(error, code)

    def withdraw_deadline(self) -> None:
        """Let the batch complete although its deadline has passed, because all of its lines have results.

        If the batch ends early for another reason, do nothing.
        """
        if self.status is BatchStatus.EXPIRED and not self._is_over_cap:
            self.status = None

    def record_over_cap(self) -> None:
        """Record that the batch has reached the cap on its cost, unless the batch is already ending early."""
        if self.status is None:
            self.status, self._is_over_cap = BatchStatus.EXPIRED, True
            self.add_error(_OVER_CAP, LineCode.BUDGET_EXCEEDED)

    def add_failure(self, what: str, error: ActivityError) -> None:
        """Add an activity's failure to the errors that the tenant sees. The details are only logged.

        `what` is the start of the sentence for the tenant, such as "The results could not be written".
        """
        workflow.logger.error("batch step failed", extra={"step": what, "error": cause_of(error)})
        self.add_error(f"{what}: {sentence_for_tenant(error)}", code_for_tenant(error))

    def add_error(self, message: str, code: str = SYSTEM_ERROR) -> None:
        self.errors = [*self.errors, ValidationError(code=code, message=message)]

    def code_of_missing_lines(self, status: BatchStatus) -> LineCode:
        """Return the error code that lines without a result get in a batch that ends with this status."""
        if status is BatchStatus.EXPIRED and self._is_over_cap:
            return LineCode.BUDGET_EXCEEDED
        return _MISSING_LINE_CODES.get(status, LineCode.BATCH_FAILED)
