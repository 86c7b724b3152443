"""Converts records of the table of batches to BatchRow, and combines the counts of a batch by model.

Until a batch has ended, its counts are in two tables. The batch's row counts the lines that already got a
result in ingestion (when the input was read). The table of progress counts the lines for which workers have
reported results. BatchRow has the sums.
"""

from datetime import datetime

from pydantic import BaseModel, Field, Json, TypeAdapter

from batchwright.contracts.model_registry.price_config import DecimalText, PriceConfig
from batchwright.contracts.temporal_payloads.batch import (
    BatchForecast,
    BatchOrder,
    BatchPolicy,
    ErrorCount,
    ModelCounts,
    ModelUsage,
    SourceBatch,
    StartForecast,
)
from batchwright.contracts.temporal_payloads.output_copies import OutputCopy
from batchwright.contracts.terms import BatchStatus, Endpoint, Usage, ValidationError
from batchwright.database.driver import Row
from batchwright.database.records import BatchRow, parse_row
from batchwright.database.tables.batches.waiting_reasons import WaitingRow
from batchwright.rules.json_text import storable_json
from batchwright.rules.results.error_tally import ErrorTally
from batchwright.rules.results.token_usage import total_usage


def overlay_counts(models: list[ModelCounts], reported: list[ModelCounts]) -> list[ModelCounts]:
    """Return a copy of `models` in which `reported` replaces the numbers of completed and failed lines of
    each model.

    A model that is not in `reported` stays unchanged. A model that is only in `reported` is added at the end.
    """
    by_name = {count.model: count for count in reported}
    counts: list[ModelCounts] = []
    for count in models:
        if (now := by_name.pop(count.model, None)) is not None:
            count = count.model_copy(update={"completed": now.completed, "failed": now.failed})
        counts.append(count)
    return [*counts, *by_name.values()]


def final_counts(models: list[ModelCounts], planned: list[ModelCounts] | None) -> list[ModelCounts]:
    """Return the final counts of a batch by model.

    If `planned` is None, return `models`. Otherwise, there are two cases:

    - The model is in `planned`: return its counts from `planned`.
    - The model is only in `models`: no requests were sent for this model. All its lines that are not
      completed count as failed.

    Args:
        models: counts in the row of the batch.
        planned: final counts of the models whose lines were sent to backends; None if unknown.
    """
    if planned is None:
        return models
    names = {count.model for count in planned}
    refused = [
        count.model_copy(update={"failed": count.lines - count.completed})
        for count in models
        if count.model not in names
    ]
    return overlay_counts(models, [*planned, *refused])


def add_reported(row: BatchRow, reported: list[ModelCounts], errors: list[ErrorCount]) -> BatchRow:
    """Return a copy of `row` whose counts include the counts and errors that workers have reported.

    Call this only for a batch that has not ended.
    """
    own = {count.model: count for count in row.models}
    return row.model_copy(
        update={
            "models": overlay_counts(row.models, [_sum(count, own.get(count.model)) for count in reported]),
            "completed": row.completed + sum(count.completed for count in reported),
            "failed": row.failed + sum(count.failed for count in reported),
            "errors_summary": ErrorTally([*row.ingestion_errors, *errors]).counts(),
        }
    )


def _sum(reported: ModelCounts, own: ModelCounts | None) -> ModelCounts:
    if own is None:
        return reported
    if own.completed + own.failed >= own.lines:  # all lines have results from ingestion, and no slices
        return own
    counts = {"completed": reported.completed + own.completed, "failed": reported.failed + own.failed}
    return reported.model_copy(update=counts)


_METADATA = TypeAdapter(dict[str, str])
_ERRORS = TypeAdapter(list[ValidationError])
_MODELS = TypeAdapter(list[ModelCounts])
_USAGES = TypeAdapter(list[ModelUsage])
_PRICES = TypeAdapter(dict[str, PriceConfig])
_ERROR_COUNTS = TypeAdapter(list[ErrorCount])
_WAITING = TypeAdapter(list[WaitingRow])


class _Columns(BaseModel):
    """Columns of a row in the table of batches. JSON columns are read as text, and this class parses them."""

    tenant: str
    batch_id: str = Field(alias="id")
    input_file_id: str
    endpoint: Endpoint
    completion_window: str
    metadata: Json[dict[str, str]] | None
    output_expires_after_seconds: int | None
    weight: float
    priority: int
    max_cost: DecimalText | None
    policy: Json[BatchPolicy]
    origin: Json[SourceBatch] | None
    status: BatchStatus
    created_at: datetime
    deadline: datetime
    start_at: datetime | None
    input_location: str | None
    output_location: str | None
    output_copy: Json[OutputCopy] | None
    in_progress_at: datetime | None
    finalizing_at: datetime | None
    completed_at: datetime | None
    failed_at: datetime | None
    expired_at: datetime | None
    cap_reached_at: datetime | None
    cancel_requested_at: datetime | None
    cancelled_at: datetime | None
    output_file_id: str | None
    error_file_id: str | None
    errors: Json[list[ValidationError]]
    models: Json[list[ModelCounts]]
    total: int
    completed: int
    failed: int
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    reasoning_tokens: int
    results_kept_until: datetime | None
    files_pending_until: datetime | None
    ingestion_began_at: datetime | None
    reported_models: Json[list[ModelCounts]] | None
    reported_usage: Json[list[ModelUsage]] | None
    final_usage: Json[list[ModelUsage]] = Field(alias="model_usage")
    prices: Json[dict[str, PriceConfig]]
    ingestion_errors: Json[list[ErrorCount]]
    final_errors: Json[list[ErrorCount]] | None = Field(alias="errors_summary")
    reported_errors: Json[list[ErrorCount]] | None
    start_forecast: Json[StartForecast] | None
    forecast: Json[BatchForecast] | None = None

    @property
    def order(self) -> BatchOrder:
        return BatchOrder.model_validate(self, from_attributes=True)

    @property
    def errors_summary(self) -> list[ErrorCount]:
        return self.final_errors or []

    @property
    def usage(self) -> Usage:
        """Tokens of all models together.

        While the batch runs, the numbers come from the workers' reports. After the batch has ended, they come
        from the batch's row.
        """
        if self.reported_usage is None:
            return Usage.model_validate(self, from_attributes=True)
        return total_usage(self.reported_usage)

    @property
    def model_usage(self) -> list[ModelUsage]:
        return self.final_usage if self.reported_usage is None else self.reported_usage


def parse_batch(record: Row) -> BatchRow:
    """Parse a database row of a batch.

    If the batch has not ended, its counts include the counts that workers have reported.
    """
    columns = parse_row(_Columns, record)
    row = BatchRow.model_validate(columns, from_attributes=True)
    if row.status.is_terminal:
        return row
    return add_reported(row, columns.reported_models or [], columns.reported_errors or [])


def parse_waiting(rows: str | None) -> list[WaitingRow]:
    """Return the reasons why a batch waits, from a JSON array. If `rows` is None, return an empty list."""
    return [] if rows is None else _WAITING.validate_json(rows)


def dump_metadata(metadata: dict[str, str] | None) -> str | None:
    return None if metadata is None else _METADATA.dump_json(metadata).decode()


def dump_errors(errors: list[ValidationError]) -> str:
    return _ERRORS.dump_json(errors).decode()


def dump_error_counts(counts: list[ErrorCount]) -> str:
    return storable_json(_ERROR_COUNTS.dump_json(counts).decode())


def dump_usages(usages: list[ModelUsage]) -> str:
    return storable_json(_USAGES.dump_json(usages).decode())


def parse_costs(usages: str | None, prices: str) -> tuple[list[ModelUsage], dict[str, PriceConfig]]:
    """Parse the usage by model and the prices by model from two JSON texts.

    If `usages` is None, the list of usage is empty.
    """
    return [] if usages is None else _USAGES.validate_json(usages), _PRICES.validate_json(prices)


def dump_prices(prices: dict[str, PriceConfig]) -> str:
    return storable_json(_PRICES.dump_json(prices).decode())


def dump_models(models: list[ModelCounts]) -> str:
    return storable_json(_MODELS.dump_json(models).decode())
