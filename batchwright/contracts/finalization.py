"""Messages and activities that end a batch: with its files (finalization), or without files."""

from temporalio import activity

from batchwright.contracts.batch import BatchOrder
from batchwright.contracts.errors import LineCode
from batchwright.contracts.ingestion import ModelShare
from batchwright.contracts.message import Message
from batchwright.contracts.openai import BatchStatus, Usage, ValidationError


class FinalizeRequest(Message):
    """Request to write the output and error files of a batch, and then to end the batch with `status`.

    A line without a result is written to the error file with the error code `missing_line_code`.
    """

    order: BatchOrder
    ingest_prefix: str
    models: list[ModelShare]
    total: int
    status: BatchStatus
    missing_line_code: LineCode = LineCode.BATCH_FAILED
    errors: list[ValidationError] = []  # why the batch was failed, if it was


class FinalizeResult(Message):
    """Final status and counts of the batch, as its row has them.

    They can differ from the request, because an earlier attempt may have ended the batch already.
    """

    status: BatchStatus
    completed: int = 0
    failed: int = 0
    usage: Usage = Usage()
    failed_by_code: dict[str, int] = {}  # number of failed lines by error code, without text of the lines


class FinalizationActivities:
    """Declaration of the activity, so that workflows can call it without importing its implementation.

    It is implemented in `activities/finalization/activity.py`.
    """

    @activity.defn
    async def finalize(self, request: FinalizeRequest) -> FinalizeResult:
        raise NotImplementedError


class EndRequest(Message):
    """Request to end the batch with `status` and the counts known so far, without writing its files.

    Attributes:
        keep_results: True keeps the results in storage until retention deletes them, so that the batch can be
            resumed.
        files_pending: True if the files are written later. False for a batch that already ended with pending
            files means that its files will never be written.
        errors: why the batch failed, or why its files are missing.
    """

    order: BatchOrder
    status: BatchStatus
    errors: list[ValidationError] = []
    keep_results: bool = False
    files_pending: bool = False


class LifecycleActivities:
    """Declaration of the activity, so that workflows can call it without importing its implementation.

    It is implemented in `activities/lifecycle.py`.
    """

    @activity.defn
    async def end(self, request: EndRequest) -> BatchStatus:
        """End the batch and return its status. A batch that had already ended keeps its status."""
        raise NotImplementedError
