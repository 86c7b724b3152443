"""The finalization phase: its messages and the activity it declares."""

from temporalio import activity

from batchwright.contracts.batch import BatchOrder
from batchwright.contracts.errors import LineCode
from batchwright.contracts.ingestion import ModelShare
from batchwright.contracts.message import Message
from batchwright.contracts.openai import BatchStatus, Usage, ValidationError


class FinalizeRequest(Message):
    """Write the files and end the batch in `status`; lines without a result get `unsettled` as their error.

    `completed` with every line settled never uses `unsettled`.
    """

    order: BatchOrder
    prefix: str
    models: list[ModelShare]
    total: int
    status: BatchStatus
    unsettled: LineCode = LineCode.BATCH_FAILED
    errors: list[ValidationError] = []  # why the system failed it, if it did


class FinalizeResult(Message):
    """`status` is the one the row now has: an earlier attempt's, if that one had won already."""

    status: BatchStatus
    completed: int = 0
    failed: int = 0
    usage: Usage = Usage()


class FinalizationActivities:
    """Declared here, implemented in `activities/finalization.py`; workflows see only this."""

    @activity.defn
    async def finalize(self, request: FinalizeRequest) -> FinalizeResult:
        raise NotImplementedError
