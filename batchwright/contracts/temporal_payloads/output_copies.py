"""State of the copies of a batch's output and error files, and the activities that make the copies.

The target is the batch's `output_location`, a URL that names a bucket and a key prefix.
"""

from enum import StrEnum

from temporalio import activity

from batchwright.contracts.message import Message
from batchwright.contracts.temporal_payloads.batch import BatchOrder

WORKFLOW = "OutputCopyWorkflow"


class OutputCopyState(StrEnum):
    PENDING = "pending"  # the batch has not ended, or the copy is not complete
    WRITTEN = "written"  # each file of the batch was copied
    FAILED = "failed"  # no more attempts follow


class OutputCopy(Message):
    """Progress of copying a batch's files to its output location.

    `error` tells the tenant why the last attempt failed. It is empty if no attempt failed.
    """

    state: OutputCopyState = OutputCopyState.PENDING
    error: str = ""


class OutputCopyActivities:
    """The declarations of the activities that copy a batch's files.

    Workflows call them without importing their code.
    The implementation is in `activities/output_copies/activity.py`.
    """

    @activity.defn
    async def copy_output(self, order: BatchOrder) -> OutputCopyState:
        """Copy the files of an ended batch to its output location. Return the final state of the copy."""
        raise NotImplementedError

    @activity.defn
    async def give_up_output_copy(self, order: BatchOrder) -> OutputCopyState:
        """Record that the batch's files will not be copied. Return the final state of the copy."""
        raise NotImplementedError
