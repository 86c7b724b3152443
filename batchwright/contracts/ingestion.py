"""Messages and activity of the ingestion phase, which validates the input of a batch and plans its slices."""

from temporalio import activity

from batchwright.contracts.batch import BatchOrder
from batchwright.contracts.message import Message


class ModelShare(Message):
    """One model's part of a batch, as ingestion planned it. `lines` is the number of lines in its slices."""

    model: str
    safe_model: str  # the model as a part of object keys and queue names
    lines: int
    slices: int
    queue: str = ""  # first task queue of its slices; empty for the model's own
    resumed_completed: int = 0  # lines with results copied from the source batch; they are in no slice
    resumed_failed: int = 0
    duplicates: int = 0  # lines that get the results of equal lines; they are in no slice either


class IngestResult(Message):
    """Result of ingestion. The objects under the key prefix `ingest_prefix` are the batch's plan.

    Objects of other attempts do not count. `failed` means that the input is invalid; the batch's row then
    already has the status `failed`, and `ingest_prefix` is empty.
    """

    failed: bool = False
    ingest_prefix: str = ""
    models: list[ModelShare] = []
    total: int = 0  # lines of the input
    unserved: int = 0  # lines settled by ingestion because no backend serves their model
    resumed: int = 0  # lines with results copied from the source batch
    error_count: int = 0  # validation errors
    deadline_passed: bool = False  # then at least one model was planned without slices


class IngestionActivities:
    """Declaration of the activity, so that workflows can call it without importing its implementation.

    It is implemented in `activities/ingestion/activity.py`.
    """

    @activity.defn
    async def ingest(self, order: BatchOrder) -> IngestResult:
        raise NotImplementedError
