"""Messages and activities that end a batch, with or without output files."""

from temporalio import activity

from batchwright.contracts.errors import LineCode
from batchwright.contracts.message import Message
from batchwright.contracts.temporal_payloads.batch import BatchOrder
from batchwright.contracts.temporal_payloads.ingestion import ModelShare
from batchwright.contracts.terms import BatchStatus, Usage, ValidationError


class FinalizeRequest(Message):
    """Request to write the output and error files of a batch, and then to end the batch with `status`.

    `missing_line_code` is the error code that each line without a result gets in the error file.
    """

    order: BatchOrder
    ingest_prefix: str
    models: list[ModelShare]
    total: int
    status: BatchStatus
    missing_line_code: LineCode = LineCode.BATCH_FAILED
    errors: list[ValidationError] = []  # why the batch failed; empty if it did not fail


class FinalizeResult(Message):
    """The final status and the counts of a batch, as they are in its database row.

    If an earlier attempt of the activity has already ended the batch, the status can differ from the status
    in the request.
    """

    status: BatchStatus
    completed: int = 0
    failed: int = 0
    usage: Usage = Usage()
    failed_by_code: dict[str, int] = {}  # number of failed lines by error code, without text of the lines


class FinalizationActivities:
    """The declaration of the activity `finalize`. Workflows call it without importing its code.

    The implementation is in `activities/finalization/activity.py`.
    """

    @activity.defn
    async def finalize(self, request: FinalizeRequest) -> FinalizeResult:
        raise NotImplementedError


class EndRequest(Message):
    """A request to end the batch with `status` and its present line counts, without writing its files now.

    Attributes:
        keep_results: True to keep the results in storage until retention deletes them, so that the batch can
            be resumed.
        files_pending: True if the files will be written later; False if the files will never be written.
            If writing them later fails, a second request with False follows.
        errors: why the batch failed, or why its files are missing.
    """

    order: BatchOrder
    status: BatchStatus
    errors: list[ValidationError] = []
    keep_results: bool = False
    files_pending: bool = False


class LifecycleActivities:
    """The declarations of the activities `insert_row` and `end`.

    Workflows call them without importing their code.
    The implementation is in `activities/batch_end/end_without_files.py`.
    """

    @activity.defn
    async def insert_row(self, order: BatchOrder) -> None:
        """Insert the batch's database row, if it is missing."""
        raise NotImplementedError

    @activity.defn
    async def end(self, request: EndRequest) -> BatchStatus:
        """End the batch and return its status. If the batch has already ended, its status does not change."""
        raise NotImplementedError
