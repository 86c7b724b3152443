"""Counts per model: what the workers told of live batches' slices, what ended batches' files hold."""

from batchwright.database.rows import BatchRow, ModelCount


def laid_over(models: list[ModelCount], told: list[ModelCount]) -> list[ModelCount]:
    """`models` in their order with the counts of `told`; models only `told` knows follow."""
    by_name = {count.model: count for count in told}
    known = [_with(count, by_name.pop(count.model, None)) for count in models]
    return known + list(by_name.values())


def as_ended(models: list[ModelCount], found: list[ModelCount] | None) -> list[ModelCount]:
    """`models` with the counts of `found`, in which every line has its result.

    Whatever else the row names was settled by ingestion: what had not completed before has failed.
    """
    if found is None:
        return models
    planned = {count.model for count in found}
    failed = [_rest_failed(count) for count in models if count.model not in planned]
    return laid_over(models, [*found, *failed])


def _rest_failed(count: ModelCount) -> ModelCount:
    return count.model_copy(update={"failed": count.lines - count.completed})


def _with(count: ModelCount, told: ModelCount | None) -> ModelCount:
    if told is None:
        return count
    return count.model_copy(update={"completed": told.completed, "failed": told.failed})


def add_told(row: BatchRow, told: list[ModelCount]) -> BatchRow:
    """A live row as its readers see it; its own counts are the lines that ingestion settled."""
    own = {count.model: count for count in row.models}
    return row.model_copy(
        update={
            "models": laid_over(row.models, [_sum(count, own.get(count.model)) for count in told]),
            "completed": row.completed + sum(count.completed for count in told),
            "failed": row.failed + sum(count.failed for count in told),
        }
    )


def _sum(told: ModelCount, own: ModelCount | None) -> ModelCount:
    if own is None:
        return told
    if own.completed + own.failed >= own.lines:  # all settled by ingestion: no slice has any of them
        return own
    counts = {"completed": told.completed + own.completed, "failed": told.failed + own.failed}
    return told.model_copy(update=counts)
