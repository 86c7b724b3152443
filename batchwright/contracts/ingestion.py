"""The ingestion phase: its messages and the activity it declares."""

from temporalio import activity

from batchwright.contracts.batch import BatchOrder
from batchwright.contracts.message import Message


class ModelShare(Message):
    """One model's part of a batch, as committed by ingestion."""

    model: str
    safe: str
    lines: int
    slices: int
    queue: str = ""  # the task queue its slices go to first; empty: the model's own
    adopted_completed: int = 0  # lines whose results another batch had: they are in no slice
    adopted_failed: int = 0
    duplicates: int = 0  # lines that get the answers of others: they are in no slice, and not among `lines`


class IngestResult(Message):
    """The commit of ingestion: only what lies under `prefix` counts, whatever other attempts left behind.

    `failed` means the input did not validate: the row is `failed` already, and `prefix` is empty.
    """

    failed: bool = False
    prefix: str = ""
    models: list[ModelShare] = []
    total: int = 0  # lines of the input
    unserved: int = 0  # lines settled by ingestion because no backend serves their model
    adopted: int = 0  # lines settled by the batch this one resumes
    errors: int = 0  # validation errors found
    closed: bool = False  # the window was over: of a model without slices only the plan was written


class IngestionActivities:
    """Declared here, implemented in `activities/ingestion.py`; workflows see only this."""

    @activity.defn
    async def ingest(self, order: BatchOrder) -> IngestResult:
        raise NotImplementedError
