"""A batch's record of the database as a BatchRow, and back."""

from datetime import datetime

from pydantic import BaseModel, Field, Json, TypeAdapter

from batchwright.contracts.batch import BatchOrder, BatchPolicy, Origin
from batchwright.contracts.openai import BatchStatus, Endpoint, Usage, ValidationError
from batchwright.database.counts import add_told
from batchwright.database.driver import Row
from batchwright.database.rows import BatchRow, ModelCount
from batchwright.database.waiting_base import Waiting

_METADATA = TypeAdapter(dict[str, str])
_ERRORS = TypeAdapter(list[ValidationError])
_MODELS = TypeAdapter(list[ModelCount])
_WAITING = TypeAdapter(list[Waiting])


class _Columns(BaseModel):
    """The columns by their names; JSON comes as text."""

    tenant: str
    batch_id: str = Field(alias="id")
    input_file_id: str
    endpoint: Endpoint
    completion_window: str
    metadata: Json[dict[str, str]] | None
    output_expires_after_seconds: int | None
    weight: float
    priority: int
    policy: Json[BatchPolicy]
    origin: Json[Origin] | None
    status: BatchStatus
    created_at: datetime
    expires_at: datetime
    in_progress_at: datetime | None
    finalizing_at: datetime | None
    completed_at: datetime | None
    failed_at: datetime | None
    expired_at: datetime | None
    cancel_requested_at: datetime | None
    cancelled_at: datetime | None
    output_file_id: str | None
    error_file_id: str | None
    errors: Json[list[ValidationError]]
    models: Json[list[ModelCount]]
    total: int
    completed: int
    failed: int
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    reasoning_tokens: int
    results_kept_until: datetime | None
    told_models: Json[list[ModelCount]] | None
    told_usage: Json[Usage] | None

    @property
    def order(self) -> BatchOrder:
        return BatchOrder.model_validate(self, from_attributes=True)

    @property
    def usage(self) -> Usage:
        return self.told_usage or Usage.model_validate(self, from_attributes=True)


def batch_row(record: Row) -> BatchRow:
    """The row as its readers see it: a live one with what the workers told."""
    columns = _Columns.model_validate(dict(record.items()))
    row = BatchRow.model_validate(columns, from_attributes=True)
    return add_told(row, columns.told_models or [])


def waiting_of(told: str | None) -> list[Waiting]:
    """Of a JSON array of rows; None: there is none."""
    return [] if told is None else _WAITING.validate_json(told)


def json_of_metadata(metadata: dict[str, str] | None) -> str | None:
    return None if metadata is None else _METADATA.dump_json(metadata).decode()


def json_of_errors(errors: list[ValidationError]) -> str:
    return _ERRORS.dump_json(errors).decode()


def json_of_models(models: list[ModelCount]) -> str:
    return _MODELS.dump_json(models).decode()
