"""What the tables hold, as values."""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from batchwright.contracts.batch import BatchOrder
from batchwright.contracts.message import Message
from batchwright.contracts.openai import BatchStatus, Usage, ValidationError
from batchwright.contracts.registry import ModelConfig
from batchwright.rules.dead_letters import DeadLetter

Purpose = Literal["assistants", "batch", "fine-tune", "vision", "user_data", "evals", "batch_output"]


class FileRow(Message):
    id: str
    tenant: str
    purpose: Purpose
    filename: str
    bytes: int
    created_at: datetime
    expires_at: datetime | None = None
    storage_key: str


class ModelCount(Message):
    """A model's part of a batch: its lines, and how many have settled so far."""

    model: str
    lines: int
    completed: int = 0
    failed: int = 0
    duplicates: int = 0  # of the lines, those that get the answers of others


class BatchRow(Message):
    """`status` is the stored one: never `cancelling`, which is `cancel_requested_at` on a live batch."""

    order: BatchOrder
    status: BatchStatus
    in_progress_at: datetime | None = None
    finalizing_at: datetime | None = None
    completed_at: datetime | None = None
    failed_at: datetime | None = None
    expired_at: datetime | None = None
    cancel_requested_at: datetime | None = None
    cancelled_at: datetime | None = None
    output_file_id: str | None = None
    error_file_id: str | None = None
    errors: list[ValidationError] = []
    models: list[ModelCount] = []
    total: int = 0
    completed: int = 0  # of a live batch: what the workers last told, at most 5 s old
    failed: int = 0
    usage: Usage = Usage()
    results_kept_until: datetime | None = None  # of one that failed without files


class SliceProgress(Message):
    """Absolute numbers of one slice; an older (generation, attempt) never overwrites a newer."""

    tenant: str
    batch_id: str
    model: str
    number: int
    generation: int
    attempt: int
    completed: int
    failed: int
    usage: Usage = Usage()


class Outcome(Message):
    """What finalization writes in one guarded transaction.

    `models` are the planned ones, with every line of theirs; None where only the workers know.
    """

    status: BatchStatus
    completed: int
    failed: int
    usage: Usage
    models: list[ModelCount] | None = None
    output: FileRow | None = None
    error: FileRow | None = None
    errors: list[ValidationError] = []
    dead_letters: list[DeadLetter] = []


class RateChange(Message):
    """A rate set at run time, in requests/s, 0: no limit; `model` is empty for the one over all models."""

    model: str
    requests_per_second: float
    changed_at: datetime


class ModelChange(Message):
    """A model registered or changed at run time; `config` None: taken away."""

    model: str
    config: ModelConfig | None
    changed_at: datetime


@dataclass(frozen=True)
class LiveBatch:
    """What can be counted of a batch that has not ended; `status` is the one that is shown."""

    tenant: str
    id: str
    status: BatchStatus
    created_at: datetime
    expires_at: datetime
    entered_at: datetime  # the status
    lines: int  # that were left to the workers; 0 before ingestion
    settled: int  # of those
    begun_at: datetime | None  # ingested


@dataclass(frozen=True)
class Unsettled:
    """A model's part of a batch that dispatches, with lines left."""

    tenant: str
    batch_id: str
    model: str
    lines_left: int
    expires_at: datetime


class ServedModel(Message):
    """A model and the backend that last listed it."""

    name: str
    backend_url: str
    seen_at: datetime


class WorkerBeat(Message):
    """What a worker process told last of itself."""

    id: str  # host:pid
    stats: dict[str, float]
    registry: str = ""  # the fingerprint of what it goes by
    beat_at: datetime
    started_at: datetime | None = None
