"""Ends without files: messages and the activity."""

from temporalio import activity

from batchwright.contracts.batch import BatchOrder
from batchwright.contracts.message import Message
from batchwright.contracts.openai import BatchStatus, ValidationError


class EndRequest(Message):
    """End the batch in `status` (cancelled or failed) with the counts known so far and no files.

    `keep_results`: what its slices settled stays in storage until retention, for whoever goes on with it.
    """

    order: BatchOrder
    status: BatchStatus
    errors: list[ValidationError] = []
    keep_results: bool = False


class LifecycleActivities:
    """Declared here, implemented in `activities/lifecycle.py`; workflows see only this."""

    @activity.defn
    async def end(self, request: EndRequest) -> BatchStatus:
        """Returns the status the row now has: another one if it had ended already."""
        raise NotImplementedError
