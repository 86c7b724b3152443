"""Finds the batches of a group, and adds up their counts. Both clients, synchronous and asynchronous, use
this module.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import cast

from openai import APIStatusError, BaseModel
from openai.types import Batch
from openai.types.batch_request_counts import BatchRequestCounts

from batchwright.client.connection import has_ended
from batchwright.rules.input.oversized_input import (
    GROUP_KEY,
    FoundBatch,
    part_number,
    whole_input_ids,
)
from batchwright.rules.results.error_tally import OTHER

MAX_BATCHES = 100  # batches per page of a list


class PartsFailed(Exception):
    """An error that is raised if the API rejected a call, such as `pause`, for some batches of a group. For
    the other batches, the call has succeeded.

    If you repeat the call, it tries the rejected batches again and does not change the others.

    Attributes:
        errors: the reason for each rejection, by batch id.
    """

    def __init__(self, group: str, errors: Mapping[str, APIStatusError]) -> None:
        super().__init__(f"{group}: " + " ".join(f"{id}: {error.message}" for id, error in errors.items()))
        self.errors = errors


class Deleted(BaseModel):
    deleted: bool


def rejection_of(error: APIStatusError) -> APIStatusError:
    """Return `error` if the API rejected the call (4xx). Raise it if the API itself failed (5xx)."""
    if error.status_code >= 500:
        raise error
    return error


class GroupPage(BaseModel):
    data: list[Batch]
    has_more: bool


def group_query(group: str, after: str | None) -> dict[str, object]:
    """Return the query parameters that list the batches of a group.

    If `after` is not None, the list begins after the batch with this id.
    """
    query: dict[str, object] = {f"metadata[{GROUP_KEY}]": group, "limit": MAX_BATCHES}
    return query if after is None else {**query, "after": after}


def parts_of_group(group: str, found: Sequence[Batch]) -> list[Batch]:
    """Return one batch for each part of a group's input, in the order of the parts.

    If the batch of a part ended early and was resumed, return the newest resuming batch for this part.

    Args:
        found: all batches with the group in their metadata, newest first.

    Raises:
        LookupError: there is no such group, or a part of its input has no batch.
    """
    by_id = {batch.id: batch for batch in found}
    batches: dict[int, Batch] = {}
    count = 0
    for id in whole_input_ids([FoundBatch(b.id, b.input_file_id, _is_retry(b)) for b in found]):
        number, count = part_number(by_id[id].metadata)
        batches.setdefault(number, by_id[id])
    if not batches:
        raise LookupError(f"There is no group {group}.")
    if len(batches) < count:
        raise LookupError(f"{group} has batches for {len(batches)} of its {count} parts: submit it again.")
    return [batches[number] for number in sorted(batches)]


def check_all_ended(group: str, batches: Sequence[Batch]) -> None:
    """Check that all batches of a group have ended, and that their files are written.

    Raises:
        ValueError: a batch has not ended, or its files are not written yet.
    """
    live = [batch.id for batch in batches if not has_ended(batch)]
    if live:
        raise ValueError(f"{group} has batches that have not ended: {', '.join(live)}.")


def with_failed_lines(batches: Iterable[Batch], codes: Iterable[str] | None) -> set[str]:
    """Return the ids of the batches that have failed lines.

    If `codes` is not None, a batch is only included in these cases:

    - A line of the batch failed with one of these error codes.
    - The batch has so many different codes that the API does not list all of them.
    """
    wanted = None if codes is None else {*codes, OTHER}
    return {
        batch.id
        for batch in batches
        if batch.error_file_id is not None
        and (wanted is None or not wanted.isdisjoint(_failure_codes_of(batch)))
    }


def _failure_codes_of(batch: Batch) -> set[str]:
    summary = cast("list[dict[str, str]]", _extension_of(batch).get("errors_summary") or [])
    return {each["code"] for each in summary}


def summed(group: str, batches: Sequence[Batch]) -> Batch:
    """Return one `Batch` for a whole group. It has the group's id and the sums of the counts of all batches.

    The status is found in these steps:

    - If a batch has not ended: the status of the first such batch.
    - If all batches have ended, but one is not completed: the status of the first such batch.
    - If all batches are completed: `completed`.
    """
    ended = [batch for batch in batches if has_ended(batch)]
    live = [batch for batch in batches if not has_ended(batch)]
    unsuccessful = [batch for batch in ended if batch.status != "completed"]
    shown = [*live, *unsuccessful, *ended][0]
    counts = [batch.request_counts for batch in batches if batch.request_counts is not None]
    total = BatchRequestCounts(
        total=sum(each.total for each in counts),
        completed=sum(each.completed for each in counts),
        failed=sum(each.failed for each in counts),
    )
    return shown.model_copy(update={"id": group, "request_counts": total})


def _is_retry(batch: Batch) -> bool:
    origin = cast("dict[str, object]", _extension_of(batch).get("origin") or {})
    return origin.get("kind") == "retry"


def _extension_of(batch: Batch) -> dict[str, object]:
    return cast("dict[str, object]", (batch.model_extra or {}).get("x_batchwright") or {})
