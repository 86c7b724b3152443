"""Messages and activity of the ingestion phase, which validates the input of a batch and plans its slices."""

from temporalio import activity

from batchwright.contracts.message import Message
from batchwright.contracts.model_registry.price_config import PriceConfig
from batchwright.contracts.temporal_payloads.batch import BatchOrder


class ModelShare(Message):
    """The lines of a batch that are for one model.

    `lines` is the number of lines to send. They are divided into `slices` parts (slices). If there are lines
    but no slices, the deadline passed during ingestion, and the lines are not sent.
    """

    model: str
    safe_model: str  # the model's name in a form that object keys and queue names allow
    lines: int
    slices: int
    prices: PriceConfig | None = None  # prices of the model during ingestion; None without prices
    queue: str = ""  # first task queue of the slices; empty for the model's own queue
    resumed_completed: int = 0  # lines with results copied from the source batch; they are in no slice
    resumed_failed: int = 0
    duplicates: int = 0  # lines that get the results of equal lines; they are in no slice either


class IngestResult(Message):
    """The result of ingestion, which reads and checks the input of a batch.

    Each attempt of the activity stores objects under a key prefix of its own. Only the objects of one attempt
    are used: those under `ingest_prefix`. `failed` is True if the input is invalid. The batch then already
    has the status `failed` in the database, and `ingest_prefix` is empty.
    """

    failed: bool = False
    ingest_prefix: str = ""
    models: list[ModelShare] = []
    total: int = 0  # lines of the input
    unserved: int = 0  # lines settled by ingestion because no backend serves their model
    resumed: int = 0  # lines with results copied from the source batch
    error_count: int = 0  # validation errors
    deadline_passed: bool = False  # True if at least one model was planned without slices


class IngestionActivities:
    """The declaration of the activity `ingest`. Workflows call it without importing its code.

    The implementation is in `activities/ingestion/activity.py`.
    """

    @activity.defn
    async def ingest(self, order: BatchOrder) -> IngestResult:
        raise NotImplementedError
