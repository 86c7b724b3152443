"""Counts of live batches: what the workers told of the slices, laid over the row."""

from batchwright.contracts.openai import BatchStatus
from batchwright.database.rows import BatchRow, ModelCount

LIVE = (BatchStatus.VALIDATING, BatchStatus.IN_PROGRESS, BatchStatus.FINALIZING)


def laid_over(models: list[ModelCount], told: list[ModelCount]) -> list[ModelCount]:
    """`models` in their order with the counts of `told`; models only `told` knows follow."""
    by_name = {count.model: count for count in told}
    known = [_with(count, by_name.pop(count.model, None)) for count in models]
    return known + list(by_name.values())


def _with(count: ModelCount, told: ModelCount | None) -> ModelCount:
    if told is None:
        return count
    return count.model_copy(update={"completed": told.completed, "failed": told.failed})


def add_told(row: BatchRow, told: list[ModelCount]) -> BatchRow:
    """A live row as its readers see it; its own `failed` are the lines that ingestion settled."""
    return row.model_copy(
        update={
            "models": laid_over(row.models, told),
            "completed": row.completed + sum(count.completed for count in told),
            "failed": row.failed + sum(count.failed for count in told),
        }
    )
